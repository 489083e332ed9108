"""Timers in runs: what damage does to some of them, what a ``forget`` leaves at every write, and a clock that is set back."""

from __future__ import annotations

import subprocess
import sys
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st
from msgspec import structs

from rmqstore import CorruptStoreError, Message, MessageBatch
from rmqstore.contract import EMPTY_CURSOR, CancelOutcome, EngineOptions, TimerCursor, TimerHandle, TimerStore
from rmqstore.engine import runs, session
from rmqstore.engine.kv.base import WriteBatch
from rmqstore.engine.runs import DamagedRunError, decode_run
from rmqstore.engine.schema import HOLE, SPACES, TIMERS, TRACES, after_prefix
from rmqstore.engine.timers import ticks, tombstones
from rmqstore_conformance.stores import Pair, message as labelled, stores_of
from rmqstore_memory.kv import MemoryKV

MINUTE = 1_700_000_040_000
"""A whole minute."""


@given(st.binary(max_size=80), st.integers(0, 9), st.booleans())
def test_a_run_of_any_bytes_is_a_run_or_damaged(rest: bytes, count: int, is_summed: bool) -> None:
    """Whatever the sum says."""
    behind = b"\1\0\0\0" + count.to_bytes(4, "little") + rest
    value = zlib.crc32(behind).to_bytes(4, "little") + behind if is_summed else behind
    with suppress(DamagedRunError):
        run = decode_run(value)
        assert run.records == [run.record(at) for at in range(len(run.sizes))]
        assert len(run.deltas) == len(run.sizes)


NOW_MS = 1_800_000_000_123
DELIVERS = st.one_of(st.just(-1), st.integers(NOW_MS - 3000, NOW_MS + 3000), st.integers(NOW_MS, NOW_MS + 10 * ticks.MINUTE_MS))


@given(
    rows=st.lists(st.tuples(DELIVERS, st.binary(min_size=1, max_size=40)), min_size=1, max_size=ticks._FEW),
    run_bytes=st.sampled_from([30, runs.RUN_BYTES]),
)
def test_few_rows_get_the_places_that_many_get(rows: list[tuple[int, bytes]], run_bytes: int) -> None:
    delivers, records = [deliver for deliver, _ in rows], [record for _, record in rows]
    few, before, runs.RUN_BYTES = ticks._FEW, runs.RUN_BYTES, run_bytes  # type: ignore[misc]
    try:
        one_by_one = ticks.place(records, delivers, 7, NOW_MS, 100, 3)
        ticks._FEW = 0  # type: ignore[misc]
        by_column = ticks.place(records, delivers, 7, NOW_MS, 100, 3) if len(rows) > 1 else one_by_one
    finally:
        ticks._FEW, runs.RUN_BYTES = few, before  # type: ignore[misc]
    assert one_by_one.ticks == by_column.ticks
    assert sorted(one_by_one.entries) == sorted(by_column.entries)
    assert one_by_one.by_minute == by_column.by_minute


class TapedKV(MemoryKV):
    """Remembers every write, so that a store can be opened as of any of them."""

    def __init__(self) -> None:
        super().__init__("taped", len(SPACES))
        self.tape: list[WriteBatch] = []

    def write(self, batch: WriteBatch) -> int:
        self.tape.append(batch)
        return super().write(batch)

    def as_of(self, writes: int) -> TapedKV:
        """Return the database as a crash after so many writes leaves it."""
        copy = TapedKV()
        for batch in self.tape[:writes]:
            copy.write(batch)
        copy.sync()
        return copy


def opened(kv: TapedKV, cursor: TimerCursor = EMPTY_CURSOR, **options: Any) -> TimerStore:
    timers = session.open_session(kv, EngineOptions(store_tag=7, broker="b", precision_ms=1000, **options)).timers()
    timers.recover(cursor)
    return timers


def crashed(kv: TapedKV, cursor: TimerCursor = EMPTY_CURSOR) -> tuple[TapedKV, TimerStore]:
    """Open a database anew, with what the receiver has durably."""
    kv = kv.as_of(len(kv.tape))
    return kv, opened(kv, cursor)


def put_spread(store: TimerStore, seconds: list[int], first: int = 0) -> list[TimerHandle]:
    rows = [
        Message(
            "t",
            b"%d" % (first + n) + bytes(8),
            keys=(f"k{n % 3}",) if n % 2 else (),
            message_id=f"m{first + n}",
            born_ms=1,
            deliver_at_ms=MINUTE + 1000 * each,
        )
        for n, each in enumerate(seconds)
    ]
    receipts = store.put(MessageBatch.of(rows), MINUTE)[0]
    return [receipts.handle(row) for row in range(len(receipts))]


def spoil(kv: TapedKV, which: int = 0) -> None:
    """Change the last byte of a run of timers."""
    key, value = kv.scan(TIMERS, b"", None, 99)[which]
    write = WriteBatch()
    write.put(TIMERS, key, value[:-1] + bytes((value[-1] ^ 1,)))
    kv.write(write)
    kv.sync()


def ids(found: Any) -> list[str]:
    return [message.message_id for message in found]


def topics(store: TimerStore, after: TimerCursor = EMPTY_CURSOR, limit: int = 10) -> tuple[list[str], TimerCursor]:
    due = store.due(after, limit)
    return [message.topic for message in due.messages.messages], due.cursor


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(0, 130), min_size=2, max_size=9), min_size=1, max_size=5), st.integers(1, 130), st.integers(1, 7))
def test_a_crash_at_any_write_loses_and_doubles_nothing(puts: list[list[int]], until: int, limit: int) -> None:
    """Hand over up to a time, with every forget in many writes; a store opened as of any of them hands over the rest, once."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("rmqstore.engine.timers.rows._FORGET_PAGE", 2)
        kv = TapedKV()
        store = opened(kv)
        for seconds in puts:
            put_spread(store, seconds, 100 * len(kv.tape))
        everything = {each.message.message_id for each in store.scan(0, 2**50).timers}
        store.seal(MINUTE + 1000 * until)
        given_out: list[str] = []
        # What the receiver held durably, as of each write.
        held = [(len(kv.tape), EMPTY_CURSOR, 0)]
        while found := store.due(held[-1][1], limit):
            if not len(found.messages):
                break
            given_out += ids(found.messages.messages)
            held.append((len(kv.tape), found.cursor, len(given_out)))
            store.forget(found.cursor)
        for writes in range(held[0][0], len(kv.tape) + 1):
            _, cursor, count = next(each for each in reversed(held) if each[0] <= writes)
            again = opened(kv.as_of(writes), cursor)
            assert again.verify() == []
            assert again.pending(handed=cursor).total == again.stats().pending == len(everything) - count
            again.seal(MINUTE + 600_000)
            rest = ids(again.due(cursor, 1000).messages.messages)
            assert sorted(given_out[:count] + rest) == sorted(everything)


def test_a_list_of_handles_ends_none_if_one_cannot_be_read() -> None:
    """T12: it says which run is damaged; without those in it, those of runs before and behind it in the same tick are cancelled."""
    kv = TapedKV()
    store = opened(kv)
    handles = [handle for n in range(3) for handle in put_spread(store, [20, 20, 20], 10 * n)]
    spoil(kv, 1)
    with pytest.raises(CorruptStoreError, match=r"timer run \d+/4"):
        store.cancel(handles, MINUTE)
    never_given = [structs.replace(handles[3], seq=999), structs.replace(handles[3], epoch=999)]
    expected = [CancelOutcome.CANCELLED] * 6 + [CancelOutcome.UNKNOWN] * 2
    assert store.cancel(handles[:3] + handles[6:] + never_given, MINUTE)[0] == expected


@pytest.mark.parametrize(("cancelled", "latest_ms"), [([2, 3], MINUTE + 999), ([0, 1, 2, 3], MINUTE + 1)])
def test_the_latest_is_found_behind_a_last_tick_of_nothing_but_holes(cancelled: list[int], latest_ms: int) -> None:
    """It was for now, in no whole second, or is in the tick a precision before the last one, which holds one that is due earlier."""
    store = opened(TapedKV())
    for times, now_ms in (
        ((None, MINUTE + 1), MINUTE),
        ((None, None, MINUTE + 2000, MINUTE + 2000), MINUTE + 999),
    ):
        rows = [Message("t", b"body", message_id="m", born_ms=1, deliver_at_ms=due_ms) for due_ms in times]
        receipts, _ = store.put(MessageBatch.of(rows), now_ms)
    gone = [receipts.handle(row) for row in cancelled]
    assert store.cancel(gone, MINUTE + 999)[0] == [CancelOutcome.CANCELLED] * len(gone)
    assert store.pending().latest_ms == latest_ms


def test_the_counters_are_right_after_every_write_of_a_forget_that_meets_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqstore.engine.timers.rows._FORGET_PAGE", 2)
    kv = TapedKV()
    store = opened(kv)
    put_spread(store, [5, 5, 5])
    put_spread(store, [6, 7, 8, 8, 30, 99], 10)
    spoil(kv)
    kv, store = crashed(kv)
    store.seal(MINUTE + 60_000)
    found, cursor = topics(store)
    assert sorted(found) == ["%PARKED%"] + 5 * ["t"]
    before = len(kv.tape)
    store.forget(cursor)
    assert len(kv.tape) > before + 1
    assert store.verify() == []
    for writes in range(before, len(kv.tape) + 1):
        again = opened(kv.as_of(writes), cursor)
        assert again.verify() == []
        assert again.stats().pending == 1


def test_a_second_damaged_run_is_known_as_such_after_the_first_was_forgotten() -> None:
    kv = TapedKV()
    store = opened(kv)
    put_spread(store, [1])
    put_spread(store, [2])
    put_spread(store, [3])
    spoil(kv, 0)
    spoil(kv, 1)
    kv, store = crashed(kv)
    store.seal(MINUTE + 9000)
    _, first = topics(store, limit=1)
    _, second = topics(store, first, limit=1)
    store.forget(first)
    store.forget(second)
    assert store.verify() == []
    assert store.stats().pending == 1


@pytest.mark.parametrize("seconds", [[5] * 8, [1, 2, 3, 5, 5, 6]], ids=["one tick", "several"])
def test_the_rest_of_a_batch_that_ended_within_a_run_is_announced_after_the_clock_was_set_back(seconds: list[int]) -> None:
    store = opened(TapedKV())
    put_spread(store, seconds)
    store.seal(MINUTE + 9000)
    first, cursor = topics(store, limit=3)
    store.seal(MINUTE)
    none, cursor = topics(store, cursor)
    assert (len(first), none, store.next_tick_ms()) == (3, [], MINUTE + 5000)
    store.seal(MINUTE + 9000)
    rest, cursor = topics(store, cursor)
    assert len(first) + len(rest) == len(seconds)
    store.seal(MINUTE)
    topics(store, cursor)
    assert store.next_tick_ms() is None


def test_to_forget_nothing_after_something_changes_nothing() -> None:
    kv = TapedKV()
    store = opened(kv)
    put_spread(store, [5, 20, 40, 99])
    store.seal(MINUTE + 6000)
    store.forget(topics(store)[1])
    before = len(kv.tape)
    store.forget(EMPTY_CURSOR)
    assert len(kv.tape) == before
    assert store.stats().pending == 3


def test_the_holes_of_a_damaged_run_go_with_it_and_no_other_ones() -> None:
    kv = TapedKV()
    store = opened(kv)
    calls = [put_spread(store, [5, 5, 5], 10 * n) for n in range(5)]
    store.cancel([handles[1] for handles in calls], MINUTE)
    spoil(kv, 1)
    kv, store = crashed(kv)
    store.seal(MINUTE + 5000)
    found, cursor = topics(store, limit=20)
    assert "%PARKED%" in found
    store.forget(cursor)
    assert store.verify() == []
    store.seal(MINUTE + 60_000)
    assert topics(store, cursor, limit=20)[0] == []
    assert not kv.scan(TRACES, HOLE, HOLE + b"\xff", 1)


def test_a_run_that_is_damaged_after_a_part_of_it_went_out_is_parked() -> None:
    kv = TapedKV()
    store = opened(kv)
    put_spread(store, [5, 5, 5])
    put_spread(store, [5, 5], 10)
    store.seal(MINUTE + 9000)
    _, part = topics(store, limit=2)
    _, whole = topics(store, part, limit=1)
    spoil(kv)
    # All of the run went out.
    again, store = crashed(kv, whole)
    assert len(again.scan(TIMERS, b"", None, 9)) == 1
    assert store.verify() == []
    # Two of its three timers did; the receiver has them, and a crash comes again before the parked one is forgotten.
    kv, store = crashed(kv, part)
    kv, store = crashed(kv, part)
    store.seal(MINUTE + 9000)
    found, cursor = topics(store, part)
    assert found == ["%PARKED%", "t", "t"]
    store.forget(cursor)
    assert not kv.scan(TIMERS, b"", None, 1)
    assert store.verify() == []


@pytest.mark.parametrize("set_back", [False, True], ids=["in one tick", "clock set back between"])
def test_a_run_that_is_damaged_between_two_batches_is_parked_once(set_back: bool) -> None:
    """T12: what was before is not durable yet, so the run is still whole; its rest cannot be told apart any more, and does not vanish."""
    kv = TapedKV()
    store = opened(kv)
    for n in range(2):
        put_spread(store, [5, 5, 5], 10 * n)
    put_spread(store, [9], 20)
    store.seal(MINUTE + 9000)
    first, cursor = topics(store, limit=2)
    spoil(kv)
    if set_back:
        store.seal(MINUTE)
        assert topics(store, cursor)[0] == []
        assert store.next_tick_ms() == MINUTE + 5000
        store.seal(MINUTE + 9000)
    parked, behind = topics(store, cursor, limit=1)
    rest, whole = topics(store, behind)
    assert (first, parked, rest) == (["t", "t"], ["%PARKED%"], ["t"] * 4)
    for durable in (cursor, behind):
        store.forget(durable)
        _, again = crashed(kv, behind)
        again.seal(MINUTE + 9000)
        assert topics(again, behind)[0] == rest
        assert again.verify() == []
    store.forget(whole)
    assert not kv.scan(TIMERS, b"", None, 1)
    assert store.verify() == []
    assert topics(store, whole)[0] == []


def test_a_run_that_was_parked_and_is_still_there_is_not_parked_again_behind_a_later_seal() -> None:
    """T12: no run follows in its tick, so what bounds it grows with each seal."""
    kv = TapedKV()
    store = opened(kv)
    put_spread(store, [5, 5, 5], 0)
    spoil(kv)
    store.seal(MINUTE + 5000)
    parked, cursor = topics(store)
    assert parked == ["%PARKED%"]
    for at_s in (9, 12):  # what is given is not done, so it is given again
        put_spread(store, [at_s], at_s)
        store.seal(MINUTE + 1000 * at_s)
        assert set(topics(store, cursor)[0]) == {"t"}


@settings(max_examples=60)
@given(st.lists(st.one_of(st.tuples(st.just("put"), st.integers(0, 40)), st.tuples(st.sampled_from(["seal", "give"]), st.integers(0, 40)))))
@example([("put", 3), ("seal", 20), ("give", 0), ("seal", 5), ("give", 0), ("put", 10), ("seal", 15), ("seal", 5), ("give", 0)])
def test_whatever_the_clock_does_each_timer_is_given_once_and_none_is_forgotten_before(steps: list[tuple[str, int]]) -> None:
    """And what the store says of its next tick is never later than the first timer that waits."""
    kv = TapedKV()
    store = opened(kv)
    cursor = EMPTY_CURSOR
    given_out: list[str] = []
    waiting: dict[str, int] = {}

    def give(limit: int) -> None:
        nonlocal cursor
        found = store.due(cursor, limit)
        cursor = found.cursor
        for message in found.messages.messages:
            given_out.append(str(message.message_id))
            del waiting[given_out[-1]]
        store.forget(cursor)

    for number, (step, seconds) in enumerate(steps):
        match step:
            case "put":
                put_spread(store, [seconds], number)
                waiting[f"m{number}"] = MINUTE + 1000 * seconds
            case "seal":
                store.seal(MINUTE + 1000 * seconds)
            case _:
                give(1 + seconds % 4)
                give(1000)
                next_ms = store.next_tick_ms()
                assert not waiting or (next_ms is not None and next_ms <= min(waiting.values()))
        assert store.verify() == []
    store.seal(MINUTE + 10**9)
    give(1000)
    assert waiting == {}
    assert store.pending().total == 0
    assert len(set(given_out)) == len(given_out) == sum(step == "put" for step, _ in steps)


class CountingKV(TapedKV):
    """Counts the timers that are read."""

    read = 0

    def scan(self, space: int, *arguments: Any, **named: Any) -> list[tuple[bytes, bytes]]:
        found = super().scan(space, *arguments, **named)
        self.read += len(found) * (space == TIMERS)
        return found


def test_ticks_behind_a_clock_that_ran_ahead_do_not_read_what_is_not_due() -> None:
    """K1: an hour ahead, and back; until then it is an hour in which the timers that were put since are all below what was closed."""
    kv = CountingKV()
    store = opened(kv)
    put_spread(store, [1])
    store.seal(MINUTE + 3_600_000)
    _, cursor = topics(store)
    store.forget(cursor)
    for number in range(400):
        put_spread(store, [10 + 2 * number], number + 1)
    store.seal(MINUTE + 1000)
    _, cursor = topics(store, cursor)
    store.forget(cursor)
    before = kv.read
    given_out = 0
    for second in range(2, 60):
        store.seal(MINUTE + 1000 * second)
        found, cursor = topics(store, cursor)
        given_out += len(found)
        store.forget(cursor)
    assert given_out == 25
    assert kv.read - before < 20 * given_out


@pytest.mark.parametrize("left_out", [0, 1])
def test_a_run_goes_with_the_call_that_cancels_all_of_it(left_out: int) -> None:
    """So that no seal has to pass its holes; what is left of one that was cut is a run with holes."""
    with stores_of(Pair("memory", "memory")) as stores:
        store = stores.open()
        sent = list(store.send_batch([labelled(number) for number in range(2000)], delay_ms=1000))
        kv = store.engine.timers._shared.kv  # type: ignore[attr-defined]
        assert store.cancel(sent[left_out:]) == [CancelOutcome.CANCELLED] * (2000 - left_out)
        assert len(list(kv.scan_all(TIMERS))) == left_out
        assert any(kv.scan(TRACES, HOLE, after_prefix(HOLE), 1)) == bool(left_out)
        assert (store.pending().total, store.verify()) == (left_out, [])
        assert store.cancel(sent) == [CancelOutcome.CANCELLED] * 2000
        assert stores.tick_after(store, 2000).handed_over == 0
        assert store.cancel(sent) == [CancelOutcome.CANCELLED] * 2000
        assert (store.pending().total, store.verify()) == (0, [])


IN_ONE_TICK = """
import sys
import rmqstore
clock = rmqstore.ManualClock(0)
with rmqstore.open(sys.argv[1], engine="memory", clock=clock, services=False) as store:
    sent = [store.send(rmqstore.Message("t", b"x"), delay_ms=1000) for _ in range(3)]
    clock.advance(1000)
    assert store.tick().handed_over == 3
    assert store.cancel([each.handle for each in sent]) == [rmqstore.CancelOutcome.ALREADY_DELIVERED] * 3
    assert "numpy" not in sys.modules
"""


def test_a_hand_over_imports_nothing(tmp_path: Path) -> None:
    """F4: an interrupt within the first import of numpy leaves it broken."""
    subprocess.run([sys.executable, "-c", IN_ONE_TICK, str(tmp_path / "store")], check=True)


@given(st.lists(st.integers(1, 2**34), min_size=1, max_size=20, unique=True).map(sorted), st.integers(0, 2**34))
def test_delivered_timers_are_found_among_those_of_their_tick(seqs: list[int], other: int) -> None:
    kv, batch = MemoryKV("delivered", len(SPACES)), WriteBatch()
    tombstones.put_delivered(batch, [(7, seq, 1) for seq in seqs])
    kv.write(batch)
    assert all(tombstones.was_delivered(kv, 7, seq, 1) for seq in seqs)
    assert tombstones.was_delivered(kv, 7, other, 1) == (other in seqs)
    assert not tombstones.was_delivered(kv, 7, seqs[-1], 2)
