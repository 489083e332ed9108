"""What a store remembers is bounded by how long it remembers, and what a call costs by what the call is about (P5, I1, Q2, X3)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from operator import methodcaller
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest

from rmqstore import AckOutcome, CancelOutcome, Lag, Message, PoppedMessage, RejectOutcome, Store
from rmqstore.contract import MessageState, PopRequest
from rmqstore.store.ticker import Duties
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.stores import Stores, id_of, ids, label, message, plain, pop_all

(T,) = topics(__name__, 1)
G, H = groups(__name__, 2)

PER_SECOND = 1200
"""Pops, acks, timers and marks in a second of the clock: more than one step of upkeep takes."""

ROWS = 50
"""Messages, and marks, of one send."""

MEMORY_MS = 1_000

MIB = 1024 * 1024


@pytest.fixture
def stores(engine_stores: Stores) -> Stores:
    """Stores of each engine: the sides of a pair keep their own."""
    return engine_stores


def _rows(store: Store) -> dict[str, int]:
    return {table: found.rows for table, found in store.transfer.digest().items()}


@pytest.mark.clause("C4", "I1")
@pytest.mark.needs("import_state")
def test_p5_what_is_remembered_does_not_grow_with_the_load(stores: Stores) -> None:
    """P5: pops, acks, cancels and marks at a rate above every step of upkeep: state is flat once the memory is full."""
    store = stores.open(flush="async", outcome_memory_ms=MEMORY_MS, mark_memory_ms=MEMORY_MS, cancel_memory_ms=MEMORY_MS, default_queues=1)
    half: dict[str, int] = {}
    for second in range(4):
        for call in range(PER_SECOND // ROWS):
            names = [f"{second}-{call}-{n}" for n in range(ROWS)]
            store.send_batch([plain(name) for name in names], marks=[name.encode() for name in names])
            later = [f"t{name}" for name in names]
            timers = store.send_batch(
                [plain(name) for name in later], delay=timedelta(milliseconds=500), marks=[name.encode() for name in later]
            )
            store.cancel([each.handle or "" for each in timers])
        held: Sequence[PoppedMessage] = ()
        for _ in range(PER_SECOND):
            held = store.pop(T, G, max_messages=1, invisible=timedelta(milliseconds=800), acks=held)
        stores.clock.advance(1000)
        Duties(store).tick()
        if second == 2:
            half = _rows(store)
    full = _rows(store)
    grown = {table: (half[table], rows) for table, rows in full.items() if rows > half[table] + PER_SECOND // 12}
    assert not grown, f"rows of state that grew although the load was the same: {grown}"
    assert full["leases"], "it is looked at where outcomes are kept"


def _steps(call: Callable[[], object]) -> int:
    """Return how many lines of Python the call runs, each turn of a loop counted: what it does, on any machine."""
    steps = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return steps


def _crowded(stores: Stores, name: str, others: int) -> Store:
    """Return a store with a topic "mine", and so many other topics, each with a group that holds a lease of it."""
    store = stores.open(name, flush="async", default_queues=1)
    store.send_batch([message(f"mine-{n}", "mine") for n in range(4)])
    store.send_batch([message(f"other-{n}", f"t{n}") for n in range(others)])
    for n in range(others):
        store.pop(f"t{n}", f"g{n}")
    for n in range(4):
        store.pop("mine", f"m{n}", max_messages=1)
    store.tick()
    return store


_IN_A_CROWD: dict[str, Callable[[Store], object]] = {
    "upkeep": methodcaller("tick"),
    "lag": lambda store: store.lag("mine", "m0"),
    "send": lambda store: store.send(message("late", "mine")),
    "pop": lambda store: store.pop("mine", "m0"),
    "reset_offset": lambda store: store.groups.reset_offset("mine", "m0", 0),
    "delete_group": lambda store: store.groups.delete("m1"),
    "delete_topic": lambda store: store.topics.delete("mine"),
}
"""Calls that are made one after the other."""


def test_x3_a_call_does_no_work_for_pairs_of_other_topics_and_groups(stores: Stores) -> None:
    """X3: ten times as many other topics and groups make a call no more than about ten times longer, however they could be paired."""
    small, large = _crowded(stores, "small", 30), _crowded(stores, "large", 300)
    for name, call in _IN_A_CROWD.items():
        few, many = (_steps(partial(call, store)) for store in (small, large))
        assert many < 15 * few, f"{name} runs {few} lines of Python beside 30 other topics and groups, and {many} beside 300"


def _longest_revive(stores: Stores, groups: int) -> int:
    store = stores.open(str(groups), flush="async", default_queues=1)
    store.send_batch([message(n) for n in range(3)])
    for n in range(groups):
        assert len(store.pop(T, f"g{n}", max_messages=3, invisible=timedelta(seconds=10))) == 3
    stores.clock.advance(timedelta(seconds=11))
    given_back, steps = 0, []
    is_more = True

    def revive() -> None:
        nonlocal given_back, is_more
        report, ticket = store.engine.pops.revive(stores.clock.now_ms(), 10_000)
        store.engine.pops.sync(ticket)
        given_back, is_more = given_back + report.retried, report.more

    while is_more:
        steps.append(_steps(revive))
    assert given_back == 3 * groups
    assert len(store.pop(T, f"g{groups - 1}", max_messages=4)) == 3
    return max(steps)


@pytest.mark.clause("P3")
def test_x3_leases_of_many_groups_that_end_together_come_back_in_steps(stores: Stores) -> None:
    """X3: when all consumers of many groups die at once, no call gives back so much that the others wait for it."""
    few, many = _longest_revive(stores, 30), _longest_revive(stores, 450)
    assert many < 10 * few, f"the longest call runs {few} lines of Python for 30 groups, and {many} for 450"


@pytest.mark.needs("fifo")
@pytest.mark.parametrize("order", [False, True], ids=["any order", "in order"])
def test_x3_a_pop_holds_a_bounded_number_of_bytes(stores: Stores, order: bool) -> None:
    """X3: a pop that asks for many large messages gets fewer, and the rest by the next pops."""
    store = stores.open(flush="async", default_queues=1)
    body = bytes(3 * MIB)
    store.send_batch([message(n, body=body) for n in range(24)])
    found: list[str] = []
    while popped := store.pop(T, G, max_messages=32, order=order):
        assert sum(len(each.body) for each in popped) <= (64 + 3) * MIB
        found += [label(each) for each in popped]
        store.ack(popped)
    assert found == [f"m{n}" for n in range(24)]


@pytest.mark.clause("T10")
def test_x3_a_page_holds_a_bounded_number_of_bytes(stores: Stores) -> None:
    """X3: a caller of many large timers or messages gets them in pages, so that the others have their turn in between."""
    store = stores.open(flush="async", default_queues=1)
    large = [message(n, body=bytes(3 * MIB)) for n in range(12)]
    store.send_batch(large)
    store.send_batch([msgspec.structs.replace(each, message_id=id_of(f"t{label(each)}")) for each in large], delay=timedelta(hours=1))
    lying, waiting, after = list[str](), list[str](), None
    while page := store.read(T, 0, len(lying), 1000).messages:
        assert sum(len(each.body) for each in page) <= (8 + 3) * MIB
        lying += ids(page)
    while True:
        found = store.scan(after=after)
        assert sum(len(each.message.body) for each in found.timers) <= (8 + 3) * MIB
        waiting += ids(each.message for each in found.timers)
        if (after := found.next_after) is None:
            break
    assert lying == ids(large)
    assert waiting == [f"tm{n}" for n in range(12)]
    assert store.get(id_of("m11")) is not None
    assert [each.state for name in ("m11", "tm11") for each in store.where(id=id_of(name))] == [MessageState.READY, MessageState.PENDING]


@pytest.mark.clause("P10")
def test_x3_a_pop_that_passes_over_everything_lets_others_in_between(stores: Stores) -> None:
    """X3: a filter that nothing passes costs as much as there are messages, but not within one call of the engine."""
    store = stores.open(flush="async", default_queues=1)
    for _ in range(4):
        store.send_batch([message("red", tag="red")] * 3000)
    asked = PopRequest(T, G, filter="blue")
    calls = 1
    while store.engine.pops.pop(asked, stores.clock.now_ms())[0].more:
        calls += 1
    assert calls >= 10, f"12,000 messages that do not pass were looked at in {calls} calls"
    assert store.lag(T, G).ready == 0
    store.send(message("last", tag="blue"))
    assert [label(each) for each in store.pop(T, G, filter="blue")] == ["mlast"]
    assert label(store.pop(T, H, filter="blue", max_messages=5)[0]) == "mlast", "the store itself looks on until something passes"


def _positions(store: Store) -> int:
    """Return how often a store was changed since it was opened."""
    return store.stats().timers.position + store.stats().pops.position


def _written() -> int:
    """Return how many bytes this process has passed to the system so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def test_x3_a_store_where_nothing_happens_writes_next_to_nothing(stores: Stores) -> None:
    """X3: with timers, leases, marks and consumed messages in it, ticks at which nothing is due write less than a page each."""
    store = stores.open(flush="async", default_queues=1, mark_memory_ms=10**10)
    store.send_batch([message(n) for n in range(2000)], marks=[b"%04d" % n * 60 for n in range(2000)])
    store.send_batch([message(f"far-{n}") for n in range(2000)], delay=timedelta(days=30))
    store.ack(store.pop(T, G, max_messages=1000))
    store.pop(T, G, max_messages=10, invisible=timedelta(days=2))
    store.flush()
    for _ in range(20):
        stores.tick_after(store, 10 * 60_000)
    begin, calls = _written(), _positions(store)
    for _ in range(50):
        stores.tick_after(store, 10 * 60_000)
    written = _written() - begin
    assert written < 50 * 4096, f"50 ticks of a store where nothing happened wrote {written} bytes"
    changes = _positions(store) - calls
    assert changes < 25, f"50 ticks of a store where nothing happened changed it {changes} times"


@pytest.mark.clause("P13", "P14", "R1")
def test_p12_a_topic_of_the_most_queues(stores: Stores) -> None:
    """P12: 1024 queues, each used, retried, counted and there after an open."""
    store = stores.open(flush="async")
    store.topics.create("wide", 1024)
    store.send_batch([message(queue, "wide", queue_id=queue) for queue in range(1024)])
    for queue in (0, 11, 1023):
        assert [each.queue_id for each in store.pop("wide", "g", queue=queue, invisible=timedelta(seconds=1))] == [queue]
    assert len(store.pop("wide", "g", max_messages=1024, invisible=timedelta(seconds=1))) == 1021
    assert [each.queue_id for each in store.groups.offsets("g")] == list(range(1024))
    stores.tick_after(store, 1000)
    if stores.pair.durable:
        store = stores.reopen(store)
    assert store.lag("wide", "g").retry == 1024
    assert len(pop_all(store, "wide", "g")) == 1024
    store.tick()
    assert store.lag("wide", "g") == Lag(0, 0, 0, 0)


@pytest.mark.clause("R1")
def test_p14_many_topics(stores: Stores) -> None:
    """R1: a thousand topics with a few messages and groups each: sends, pops, counts, deletions and an open."""
    names = [f"topic-{number}" for number in range(1000)]
    store = stores.open(flush="async", default_queues=1)
    store.send_batch([Message(name, b"x", message_id=f"m-{name}") for name in names for _ in range(2)])
    for name in names:
        store.ack(store.pop(name, "g", max_messages=1))
    store.tick()
    for name in names[::10]:
        store.topics.delete(name)
    if stores.pair.durable:
        store = stores.reopen(store)
    assert len(store.topics.list()) == 900
    assert all((store.lag(name, "g").ready == 1) == (number % 10 != 0) for number, name in enumerate(names))


# ---------------------------------------------------------------- many of anything


@pytest.mark.clause("C1", "C2", "C6")
@pytest.mark.needs("cancel_by_key")
def test_c1_cancels_of_thousands_are_done_whole(stores: Stores) -> None:
    """C1: by handle, by a key that thousands have, by any key of a message that has twenty, and of what is delivered."""
    store = stores.open()
    rows = [message(number, keys=("k", *(f"k{number}-{each}" for each in range(20)))) for number in range(2100)]
    sent = store.send_batch(rows, delay_ms=1000)
    assert store.cancel_key(T, "k7-19") == [CancelOutcome.CANCELLED]
    assert set(store.cancel(sent[8:1058])) == {CancelOutcome.CANCELLED}
    assert store.cancel_key(T, "k") == [CancelOutcome.CANCELLED] * 1049
    sent = store.send_batch([message(f"late{number}") for number in range(2100)], delay_ms=1000)
    stores.tick_after(store, 2000)
    assert set(store.cancel(list(sent))) == {CancelOutcome.ALREADY_DELIVERED}


@pytest.mark.clause("P7", "P14")
def test_p8_leases_and_letters_by_the_thousand(stores: Stores) -> None:
    """P8: all leases are told, acked and rejected in one call, and all dead letters told and dropped."""
    store = stores.open(default_queues=1)
    store.send_batch([message(number) for number in range(2100)])
    popped = [each for _ in range(3) for each in store.pop(T, G, max_messages=1024)]
    assert len(store.leases()) == 2100
    assert set(store.ack(popped[:1000])) == {AckOutcome.ACKED}
    assert set(store.reject(popped[1000:])) == {RejectOutcome.REJECTED}
    letters = store.dead_letters.list(G)
    assert len(letters) == 1100
    assert store.dead_letters.drop(letters) == 1100
    assert store.lag(T, G) == Lag(0, 0, 0, 0)


@pytest.mark.needs("retention")
def test_q2_the_queues_of_hundreds_of_topics_make_room(stores: Stores) -> None:
    """Q2: upkeep gets to each of them, in some ticks."""
    store = stores.open(flush="async", default_queues=1)
    names = [f"topic-{number}" for number in range(300)]
    store.send_batch([Message(name, b"x", message_id=f"m-{name}") for name in names])
    for name in names:
        store.ack(store.pop(name, "g"))
    for _ in range(5):
        stores.tick_after(store, 1000)
    assert {each.min_offsets for each in store.topics.list()} == {(1,)}
