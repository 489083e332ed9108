"""X3: threads: no lost or double lease under contention, and syncs that are shared."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest

from rmqstore import AckOutcome, Store, SystemClock
from rmqstore.contract import Side, Ticket
from rmqstore.errors import StoreClosedError
from rmqstore_conformance.cases.scenes import together
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.stores import Stores, label, message

(T,) = topics(__name__.rpartition(".")[2], 1)
(G,) = groups(__name__.rpartition(".")[2], 1)


@pytest.mark.clause("P13")
@pytest.mark.parametrize(("threads", "queues"), [(1, 1), (8, 4), (64, 8)])
def test_x3_no_queue_starves_under_many_consumers(engine_stores: Stores, threads: int, queues: int) -> None:
    """X3, P13: 1 to 64 consumers on 1 to 8 queues that are always full: after any number of pops the queues have given about the same."""
    store = engine_stores.open(flush="async")
    store.topics.create(T, queues)
    each = 1600 // queues
    store.send_batch([message(n, queue_id=n % queues) for n in range(each * queues)])
    given: list[int] = []
    acked: Counter[str] = Counter()
    lock = threading.Lock()

    def work(_: int) -> None:
        while True:
            with lock:
                popped = store.pop(T, G, max_messages=3)
                given.extend(m.queue_id for m in popped)
            if not popped:
                return
            assert set(store.ack(popped)) == {AckOutcome.ACKED}
            with lock:
                acked.update(label(m) for m in popped)

    together(work, threads)
    assert len(acked) == each * queues
    assert set(acked.values()) == {1}
    so_far = Counter(dict.fromkeys(range(queues), 0))
    for queue in given[: each * (queues - 1)]:
        so_far[queue] += 1
        assert max(so_far.values()) - min(so_far.values()) <= 6, "one queue gets ahead of another"


def test_x3_a_waiting_pop_is_woken(stores: Stores) -> None:
    """X3: a pop that waits returns with what another thread sends, releases, or lets become due, without polling for time."""
    store = stores.open()
    results: list[str] = []

    def consume() -> None:
        results.extend(label(m) for m in store.pop(T, G, wait_ms=60_000))

    for number, arrive in enumerate(("send", "tick")):
        if arrive == "tick":
            store.send(message(1), delay_ms=1000)
            stores.clock.advance(1000)
        thread = threading.Thread(target=consume)
        thread.start()
        if arrive == "send":
            store.send(message(0))
        else:
            store.tick()
        thread.join(timeout=30)
        assert not thread.is_alive(), f"{arrive} did not wake the pop"
        assert results[number:] == [f"m{number}"]


@pytest.mark.clause("T2")
def test_x3_the_background_thread_follows_a_manual_clock(stores: Stores) -> None:
    """§3: with services the store hands over by itself as soon as the clock is moved; a day passes in no time."""
    store = stores.open(services=True)
    store.send(message(1), delay_ms=86_400_000)
    stores.clock.advance(86_400_000)
    got = store.pop(T, G, wait_ms=60_000)
    assert [label(m) for m in got] == ["m1"]
    assert not isinstance(stores.clock, SystemClock)


# ---------------------------------------------------------------- beside a close


@pytest.mark.clause("X3")
@pytest.mark.parametrize("call", ["send", "send for later", "cancel", "ack"])
def test_f3_a_call_that_meets_a_close_says_whether_it_was_done(durable_stores: Stores, call: str) -> None:
    """F3: the store is closed while a call waits for the disk: it is answered and done, or refused and not done."""
    store = durable_stores.open()
    handle = store.send(message(0), delay=timedelta(days=1)).handle
    assert handle is not None
    store.send(message(1))
    (popped,) = store.pop(T, G, invisible=timedelta(days=1))
    calls: dict[str, Callable[[], object]] = {
        "send": lambda: store.send(message(2)),
        "send for later": lambda: store.send(message(2), delay=timedelta(days=2)),
        "cancel": lambda: store.cancel(handle),
        "ack": lambda: store.ack(popped),
    }
    for side in (store.engine.timers, store.engine.pops):
        _close_before_sync(store, side)
    try:
        calls[call]()
        done = True
    except StoreClosedError:
        done = False
    again = durable_stores.open()
    there = {
        "send": again.lag(T, G).ready == 1,
        "send for later": again.pending().total == 2,
        "cancel": again.pending().total == 0,
        "ack": again.lag(T, G).in_flight == 0,
    }
    assert there[call] == done


def _close_before_sync(store: Store, side: Side) -> None:
    sync = side.sync

    def closed_first(ticket: Ticket | None = None) -> None:
        store.close()
        sync(ticket)

    side.sync = closed_first  # type: ignore[method-assign]
