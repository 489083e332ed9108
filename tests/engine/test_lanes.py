"""Names of calls that connections make: a lane keeps its last one, and is forgotten when it is not used (I1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import rmqstore
from rmqstore import IllegalArgumentError, ManualClock, Message, MessageBatch, Store
from rmqstore.contract import WriteStatus
from rmqstore.engine import schema
from rmqstore.message import CALL_NAME, CALL_NAME_BYTES, LANE_BYTES
from rmqstore.store.sending import CallName
from tests.pairs import ENGINES

MINUTE_MS = 60_000
ONE = Message("t", b"x")


def name(lane: int, number: int) -> bytes:
    start = CALL_NAME + lane.to_bytes(LANE_BYTES - len(CALL_NAME), "big")
    return start + number.to_bytes(CALL_NAME_BYTES - LANE_BYTES, "big")


def called(lane: int, number: int) -> CallName:
    return CallName((name(lane, number),))


@pytest.fixture
def store(tmp_path: Path, engine: str, clock: ManualClock) -> Iterator[Store]:
    with rmqstore.open(tmp_path / "store", engine=engine, clock=clock, services=False) as opened:
        yield opened


def marks_in(store: Store) -> int:
    """Return how many rows the marks of both sides take, with their ages."""
    timers = store.engine.timers
    with timers._lock, timers._call as kv:  # type: ignore[attr-defined]
        return sum(len(kv.scan(schema.META, family, bytes([family[0] + 1]), 10_000)) for family in (schema.MARK, schema.MARK_AGE))


@pytest.mark.parametrize("later", [None, 60_000])
def test_a_repeat_gives_the_first_answer(store: Store, clock: ManualClock, later: int | None) -> None:
    first = store.send(ONE, delay_ms=later, marks=called(1, 1))
    again = store.send(ONE, delay_ms=later, marks=called(1, 1))
    assert (first.repeated, again.repeated) == (False, True)
    assert (again.message_id, again.handle) == (first.message_id, first.handle)
    assert not store.send(ONE, delay_ms=later, marks=called(2, 1)).repeated
    assert not store.send(ONE, delay_ms=later, marks=called(1, 2)).repeated
    clock.advance(60_000)
    store.tick()
    assert len(store.pop("t", "g")) == 3


def test_a_copy_that_comes_late_stores_nothing(store: Store, clock: ManualClock) -> None:
    batch = MessageBatch(messages=(Message("t", b"x", message_id="i", born_ms=1, queue_id=0, deliver_at_ms=clock.now_ms() + 1000),))
    for number in (1, 2):
        store.engine.timers.put(batch, clock.now_ms(), [name(1, number)])
        store.engine.pops.append(batch, clock.now_ms(), [name(1, number)])
    for put in (store.engine.timers.put, store.engine.pops.append):
        with pytest.raises(IllegalArgumentError, match="comes late"):
            put(batch, clock.now_ms(), [name(1, 1)])
    assert store.pending().total == 2
    assert store.lag("t", "g").ready == 2


def test_a_later_call_for_now_does_not_hide_an_earlier_timer(store: Store, clock: ManualClock) -> None:
    """A copy of the timer's call comes when its time has passed, and when the next call has left its name among the timers."""
    due_ms = clock.now_ms() + 1000
    store.send(ONE, deliver_at_ms=due_ms, marks=called(1, 1))
    clock.advance(5000)
    store.send(ONE, deliver_at_ms=due_ms, marks=called(1, 2))
    with pytest.raises(IllegalArgumentError, match="comes late"):
        store.send(ONE, deliver_at_ms=due_ms, marks=called(1, 1))
    store.tick()
    assert len(store.pop("t", "g")) == 2


def test_a_repeat_for_now_meets_the_timer_that_it_was(store: Store, clock: ManualClock) -> None:
    due_ms = clock.now_ms() + 1000
    first = store.send(ONE, deliver_at_ms=due_ms, marks=called(1, 1))
    clock.advance(5000)
    again = store.send(ONE, deliver_at_ms=due_ms, marks=called(1, 1))
    assert again.repeated
    assert again.handle == first.handle
    store.tick()
    assert len(store.pop("t", "g")) == 1


def test_a_first_call_that_comes_behind_its_repeat_stores_nothing(store: Store, clock: ManualClock) -> None:
    message = Message("t", b"x", message_id="i", born_ms=1, queue_id=0, deliver_at_ms=clock.now_ms() + 1000)
    clock.advance(5000)
    assert not store.send(message, marks=called(1, 1)).repeated
    receipts, _ = store.engine.timers.put(MessageBatch(messages=(message,)), clock.now_ms() - 5000, [name(1, 1)])
    assert receipts.status is WriteStatus.REPEATED
    store.tick()
    assert len(store.pop("t", "g")) == 1


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "memory"])
def test_a_name_survives_an_open(tmp_path: Path, engine: str, clock: ManualClock) -> None:
    for was_sent in (False, True):
        with rmqstore.open(tmp_path / "store", engine=engine, clock=clock, services=False) as store:
            assert store.send(ONE, marks=called(1, 1)).repeated == was_sent


def test_a_lane_takes_one_place_and_is_forgotten(store: Store, clock: ManualClock) -> None:
    for number in range(1, 200):
        store.send(ONE, marks=called(1, number))
        store.send(ONE, delay_ms=1000, marks=called(2, number))
    assert marks_in(store) == 4
    clock.advance(5 * MINUTE_MS)
    store.tick()
    assert store.send(ONE, marks=called(1, 199)).repeated
    for _ in range(8):  # one lane stays in use, the other does not
        clock.advance(5 * MINUTE_MS)
        store.send(ONE, marks=called(1, 200))
        store.tick()
    assert store.send(ONE, marks=called(1, 200)).repeated
    clock.advance(60 * MINUTE_MS)
    store.tick()
    assert marks_in(store) == 0


def test_marks_of_a_caller_are_kept_as_ever(store: Store, clock: ManualClock) -> None:
    store.send(ONE, marks=[b"mine"])
    clock.advance(6 * 24 * 60 * MINUTE_MS)
    store.tick()
    assert store.send(ONE, marks=[b"mine"]).repeated
