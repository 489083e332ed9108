"""X3, T9: calls that wait for messages or for room: each is woken by whatever another thread does that lets it go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest

from rmqstore import Flow, FlowControlError, InitMode, PoppedMessage, Store
from rmqstore.message import dlq_topic
from rmqstore.store.waits import TopicWait, Waits
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.stores import DAY_MS, START_MS, WIRED, Stores, ids, key_of, message

(T,) = topics(__name__, 1)
(G,) = groups(__name__, 1)

LONG = timedelta(minutes=10)
"""So long a call waits that nobody wakes."""


@contextmanager
def waiting(call: Callable[[], Any]) -> Iterator[list[Any]]:
    """Make a call in another thread; goes on once it has looked in vain and waits, and at the end expects its answer soon."""
    answers: list[Any] = []
    waits = threading.Event()
    # Over a connection it is the server that waits, and looks again behind that.
    kind, name = (Waits, "enter") if WIRED else (TopicWait, "wait_beyond")
    wait = getattr(kind, name)

    def noted(*arguments: Any) -> None:
        waits.set()
        wait(*arguments)

    def answered() -> None:
        try:
            answers.append(call())
        except FlowControlError as error:
            answers.append(error)

    thread = threading.Thread(target=answered, daemon=True)
    with patch.object(kind, name, noted):
        thread.start()
        assert waits.wait(30), f"it does not wait: {answers}"
    yield answers
    thread.join(30)
    assert not thread.is_alive(), "nothing woke it"


# ---------------------------------------------------------------- pops


FIFO = pytest.mark.needs("fifo")

ARRIVALS = [
    *("send", "tick", "revive", "release", "reject", "ack when full", "reset_offset", "resend"),
    *(pytest.param(f"{how} in order", marks=FIFO) for how in ("ack", "reject", "release", "revive")),
]


def arrival(stores: Stores, store: Store, how: str) -> Callable[[], object]:
    """Bring a store so far that a pop finds nothing, and return the call that changes it."""
    if how in ("send", "tick"):
        if how == "tick":
            store.send(message(0), delay_ms=1000)
            stores.clock.advance(1000)
        return {"send": lambda: store.send(message(0)), "tick": store.tick}[how]
    what = how.partition(" ")[0]
    store.send_batch([message(n) for n in range(2 if what == "ack" or how == "reject in order" else 1)])
    (held,) = store.pop(T, G, order="in order" in how, max_messages=1, invisible_ms=1000)
    if what == "revive":
        stores.clock.advance(1000)
    elif what == "resend":
        store.reject(held)
    elif what == "reset_offset":
        store.ack(held)
    acts: dict[str, Callable[[], object]] = {
        "ack": lambda: store.ack(held),
        "release": lambda: store.release(held),
        "reject": lambda: store.reject(held),
        "revive": store.tick,
        "resend": lambda: store.dead_letters.resend(store.dead_letters.list(G)),
        "reset_offset": lambda: store.groups.reset_offset(T, G, InitMode.MIN),
    }
    return acts[what]


@pytest.mark.clause("P3", "P9")
@pytest.mark.parametrize("how", ARRIVALS)
def test_x3_a_waiting_pop_is_woken(stores: Stores, how: str) -> None:
    """X3: a pop that waits returns with what another thread sends, gives back, lets become due or makes room for, without polling."""
    store = stores.open(reclaim="age", max_in_flight=1 if how == "ack when full" else 0)
    act = arrival(stores, store, how)
    topic, order = dlq_topic(G) if how == "reject" else T, "in order" in how

    def pop() -> list[PoppedMessage]:
        return store.pop(topic, G, order=order, wait=LONG)

    with waiting(pop) as answers:
        act()
    is_next = how in ("ack when full", "ack in order", "reject in order")
    assert [ids(each) for each in answers] == [["m1" if is_next else "m0"]]


# ---------------------------------------------------------------- sends


ROOM: dict[str, Callable[[Store, str], object]] = {
    "cancel": lambda store, handle: store.cancel(handle),
    "cancel by key": lambda store, _: store.cancel_key(T, key_of("full")),
    "hand-over": lambda store, _: store.tick(),
    "pause": lambda store, _: store.pauses.end(Flow.SENDS),
}


def crowded(stores: Stores, **settings: Any) -> tuple[Store, str]:
    """Return a store of which one slot, due and not handed over, is full, and the handle of what fills it."""
    store = stores.open(congestion_limit=1, **settings)
    handle = store.send(message("full", keys=(key_of("full"),)), deliver_at_ms=START_MS + 1000).handle
    stores.clock.advance(1000)
    return store, str(handle)


def sending(store: Store) -> Callable[[], object]:
    """Return a send into the slot that is full, and one far from it, which waits."""
    rows = [message(0, deliver_at_ms=START_MS + 1000), message(1, deliver_at_ms=START_MS + DAY_MS)]
    return lambda: store.send_batch(rows, timeout=timedelta(minutes=1))


@pytest.mark.parametrize("how", [*(pytest.param(each, marks=pytest.mark.needs("cancel_by_key") if "key" in each else ()) for each in ROOM)])
def test_t9_a_send_waits_for_room(stores: Stores, how: str) -> None:
    """T9: a send with a timeout, which its slot or a pause refuses, is done when a cancel, a hand-over or the pause's end lets it in."""
    store, handle = crowded(stores)
    if how == "pause":
        store.cancel(handle)
        store.pauses.begin(Flow.SENDS)
    with waiting(sending(store)) as answers:
        ROOM[how](store, handle)
    assert [[bool(each.handle) for each in receipts] for receipts in answers] == [[True, True]]
    assert ids(timer.message for timer in store.scan().timers) == ["m0", "m1"]


def test_t9_a_send_that_waits_in_vain_fails(stores: Stores) -> None:
    """T9: it waits as long as its timeout by the clock of the store, and then fails with the error of a send that does not wait."""
    store, _ = crowded(stores)
    with waiting(sending(store)) as answers:
        stores.clock.advance(59_999)
        stores.clock.advance(1)
    assert len(answers) == 1
    assert isinstance(answers[0], FlowControlError)
    assert str(START_MS + 1000) in str(answers[0])
    assert ids(timer.message for timer in store.scan().timers) == ["mfull"]
