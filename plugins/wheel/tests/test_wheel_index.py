"""The wheel over the timer log: every timer is found in the slot that it belongs to, however it came there."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from plugins.wheel.tests.stores import Run, WheelStores, index_of, opened
from rmqstore import CancelOutcome, FlowControlError, ManualClock, Message, Store
from rmqstore.contract import TimerCursor
from rmqstore.errors import CorruptStoreError
from rmqstore_conformance.stores import DAY_MS, START_MS, directory, message, read_ids
from rmqstore_wheel.files.disk import Disk
from rmqstore_wheel.files.units import RebuildReason, Sums, UnitLog
from rmqstore_wheel.formats import timer_log
from rmqstore_wheel.formats.wheel import Ring
from rmqstore_wheel.reader.log import ReadDisk
from rmqstore_wheel.reader.units import ReadUnits
from rmqstore_wheel.timers import slot_counts, table as timer_table
from rmqstore_wheel.timers.records import EncodedTimer
from rmqstore_wheel.timers.wheel import WheelIndex

SLOTS, WINDOW = 1000, 200
NOW_MS = START_MS


def new_index(
    path: Path,
    per_file: int = 64,
    asked: Callable[[RebuildReason], None] = lambda why: None,
    slots: int = SLOTS,
    unit_log: type[UnitLog] = UnitLog,
) -> WheelIndex:
    disk = ReadDisk() if unit_log is ReadUnits else Disk()
    return WheelIndex(disk, path, Ring(1000, slots), per_file, asked, WINDOW, unit_log=unit_log)


def index(path: Path, slots: int = SLOTS) -> WheelIndex:
    found = new_index(path, slots=slots)
    found.units.start(Sums())
    return found


def put(wheel: WheelIndex, seqs: list[int], ticks: list[int], now_ms: int = NOW_MS) -> Any:
    numbers = np.array(seqs, np.int64)
    placing = wheel.reserve(numbers, np.array(ticks, np.int64), now_ms, numbers * 100, np.full(len(seqs), 100))
    wheel.publish(placing)
    return placing


DELAYS_AND_LEAVES = st.tuples(st.integers(-2 * SLOTS, 3 * WINDOW) | st.integers(0, 3) | st.just(2 * WINDOW), st.booleans())


@given(st.lists(st.tuples(st.lists(DELAYS_AND_LEAVES, min_size=1, max_size=5), st.integers(0, 3000)), min_size=1, max_size=20))
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_few_timers_go_where_a_batch_of_them_does(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[list[tuple[int, bool]], int]]
) -> None:
    few, many = (index(tmp_path_factory.mktemp("wheel")) for _ in range(2))
    now_ms, seq = NOW_MS, 1
    for timers, later_ms in calls:
        now_ms += later_ms
        ticks = [now_ms + 1000 * delay for delay, _ in timers]
        seqs = np.arange(seq, seq + len(timers))
        places, sizes = seqs * 100, np.full(len(timers), 100)
        encoded = [EncodedTimer(b"", tick, tick, 7, [], 0) for tick in ticks]
        alone = few.reserve_few(seq, encoded, now_ms, places.tolist(), sizes.tolist())
        batch = many.reserve(seqs, np.array(ticks), now_ms, places, sizes, 7)
        is_aside = np.isin(np.arange(len(timers)), batch.aside)
        assert [*alone.aside] == batch.aside.tolist()
        assert [*alone.elsewhere] == np.flatnonzero(batch.rolled | is_aside).tolist()
        few.publish_few(alone)
        many.publish(batch)
        stay = [at for at in range(len(timers)) if not is_aside[at]]
        if stay:
            assert few.units.read_one(few.units.count - 1)[-1] == seq + stay[-1], "a broker takes its cursor from the last unit"
        for at, (_, leaves) in enumerate(timers):
            if leaves and not batch.rolled[at]:
                # A cancel, whose timer may have found no place.
                cancel = few.reserve_cancel(1000 + seq + at, ticks[at], now_ms, 7, 50)
                cancels = many.reserve_cancels(np.array([1000 + seq + at]), np.array([ticks[at]]), now_ms, np.array([7]), np.array([50]))
                assert (cancel is None) == (cancels.units is None)
                if cancel is not None:
                    few.publish_few(cancel)
                many.publish(cancels)
                few.count_off_one(few.slot_of(ticks[at]))
                many.count_off(np.array([many.slot_of(ticks[at])]))
        seq += len(timers)
        assert all((few.slots[name] == many.slots[name]).all() for name in ("tick", "timers", "magic"))
        assert few.first_roll == many.first_roll
        for slot in many.live_slots(0, 2**40).tolist():
            assert _chain(few, slot) == _chain(many, slot)
    if all(len(timers) == 1 for timers, _ in calls):
        assert few.check_point() == many.check_point()
        assert (few.units.read(0, few.units.count) == many.units.read(0, many.units.count)).all()
    for wheel in (few, many):
        wheel.close()


def _chain(wheel: WheelIndex, slot: int) -> list[int]:
    """Return the seqs of what is in the chain of a slot."""
    numbers, _ = wheel.walk(np.array([slot]))
    return sorted(wheel.units.gather(numbers)["reserved"].tolist())


def test_a_place_that_another_lap_holds_is_not_taken(tmp_path: Path) -> None:
    wheel = index(tmp_path)
    put(wheel, [1], [NOW_MS + 1000])
    later_ms = NOW_MS + 1000 * 2 * SLOTS
    placing = put(wheel, [2, 3], [later_ms + 1000, later_ms + 2000], later_ms)
    assert placing.aside.tolist() == [0]
    numbers, _ = wheel.walk(np.array([wheel.slot_of(NOW_MS + 1000)]))
    assert wheel.units.gather(numbers)["reserved"].tolist() == [1]
    wheel.count_off(np.array([wheel.slot_of(NOW_MS + 1000)]))
    assert not len(put(wheel, [4], [later_ms + 1000], later_ms).aside)


def test_timers_roll_out_of_a_slot_that_others_roll_into(tmp_path: Path) -> None:
    """The mark and the count of a slot are those of the moment at which the new timers are seen."""
    wheel = index(tmp_path)
    put(wheel, [1], [NOW_MS + 1000 * WINDOW * 5])
    (slot,) = wheel.slots_to_roll(NOW_MS // 1000 + WINDOW).tolist()
    numbers = np.array([2], np.int64)
    placing = wheel.reserve(numbers, np.array([(slot + 1) * 1000]), NOW_MS, numbers, numbers)
    wheel.count_off(np.array([slot]))
    wheel.note_rolled(np.array([slot]))
    wheel.publish(placing)
    assert wheel.count_in(slot) == 1
    assert not len(wheel.slots_to_roll(slot))


@pytest.mark.parametrize(
    ("more", "said"), [(1, "the timer log has 2 timers, the wheel says 3"), (-1, "2 timers are pending, the wheel says 1")]
)
def test_a_slot_that_counts_wrongly_is_told(stores: WheelStores, more: int, said: str) -> None:
    store = stores.open()
    sent = [store.send(message(n), delay_ms=5000) for n in range(3)]
    store.cancel(sent[0].handle)
    assert store.verify() == []
    slots = index_of(store).wheel.slots
    slots["timers"][slots["timers"] > 0] += more
    (told,) = store.verify()
    assert said in told


@pytest.mark.parametrize("slots", [SLOTS, 1024], ids=["its last page is short", "it ends with a page"])
def test_a_snapshot_is_read_with_holes_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: int) -> None:
    """A copy may have none; what the pages hold is found, the last one too, and where timers are and roll."""
    wheel = index(tmp_path, slots)
    last = 2 * slots * 850_000 - 1  # of the last place of the ring
    for seq, slot in enumerate((last - 900, last), start=1):
        put(wheel, [seq], [(slot + 1) * 1000], now_ms=(slot - 10) * 1000)
    put(wheel, [3], [(last + 5 * WINDOW) * 1000], now_ms=last * 1000)
    sums, crc = wheel.check_point()
    snapshot = tmp_path / "timerwheel"
    for _ in range(2):
        found = new_index(tmp_path, slots=slots)
        found.start(sums, crc)
        assert (found.slots == wheel.slots).all()
        assert (found.first_roll, found.first_needed(), found.next_live(0)) == (wheel.first_roll, 0, last - 900)
        assert found.live_slots(0, last + 5 * WINDOW).tolist() == wheel.live_slots(0, last + 5 * WINDOW).tolist()
        with monkeypatch.context() as slow:
            slow.setattr(os, "preadv", _less_than_asked_for)
            assert (found._snapshot.read(crc)[0] == wheel.slots).all()
        found.close()
        snapshot.write_bytes(snapshot.read_bytes())  # without holes


def _less_than_asked_for(descriptor: int, buffers: list[memoryview], offset: int, preadv: Callable[..., int] = os.preadv) -> int:
    """Read as some file systems do."""
    return preadv(descriptor, [buffers[0][:1000]], offset)


def _slot_of_the_only_timer(store: Store) -> int:
    (found,) = index_of(store).wheel.live_slots(0, 2**50)
    return int(found)


def test_what_was_rolled_and_handed_over_is_not_put_into_the_wheel_behind_a_crash(stores: WheelStores) -> None:
    """A check point of before has it where it waited; nobody would ever count it off its own slot again."""
    store = stores.open()
    store.send(message("far"), delay_ms=3 * DAY_MS)
    waits_in = _slot_of_the_only_timer(store)
    store = stores.reopen(store)
    stores.clock.set((waits_in + 1) * 1000)
    store.tick()
    assert _slot_of_the_only_timer(store) == index_of(store).wheel.slot_of(START_MS + 3 * DAY_MS)
    stores.clock.set(START_MS + 3 * DAY_MS)
    assert store.tick().handed_over == 1
    store = stores.killed(store)
    store.tick()
    assert not len(index_of(store).wheel.live_slots(0, 2**50))
    assert store.pending().total == 0
    assert read_ids(store) == ["mfar"]


def test_timers_that_wait_in_a_slot_to_be_rolled_take_no_room_in_it(stores: WheelStores) -> None:
    """T9 counts those of the slot itself."""
    store = stores.open(congestion_limit=1)
    store.send(message("far"), delay_ms=3 * DAY_MS)
    there_ms = 1000 * _slot_of_the_only_timer(store) + 1000
    store.send(message("first"), deliver_at_ms=there_ms)
    store = stores.reopen(store, congestion_limit=1)
    with pytest.raises(FlowControlError, match="would hold 3 timers"):
        store.send_batch([message(f"more-{n}") for n in range(2)], deliver_at_ms=there_ms)


# ---------------------------------------------------------------- chains

ALL = [*range(5), *range(10, 100)]
"""The slots that hold anything in :func:`slots`."""


class Slots:
    """A wheel of 100 slots ahead, and what was put into each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.put_in: dict[int, list[int]] = {}
        self.asked: list[RebuildReason] = []
        self.wheel = self._new()
        self.wheel.units.start(Sums())
        self.base = self.wheel.slot_of(NOW_MS + 1000)

    def _new(self, unit_log: type[UnitLog] = UnitLog) -> WheelIndex:
        return new_index(self._path, 5000, self.asked.append, unit_log=unit_log)  # no multiple of a block of sums

    def put(self, slots: list[int]) -> None:
        seqs = 1 + self.wheel.units.count + np.arange(len(slots))
        self.wheel.publish(self.wheel.reserve(seqs, NOW_MS + 1000 * (1 + np.array(slots)), NOW_MS, seqs, seqs))
        for slot, seq in zip(slots, seqs.tolist(), strict=True):
            self.put_in.setdefault(slot, []).append(seq)

    def reopen(self, unit_log: type[UnitLog] = UnitLog) -> None:
        sums, crc = self.wheel.check_point()
        self.wheel.close()
        self.wheel = self._new(unit_log)
        self.wheel.start(sums, crc)

    def found_in(self, slots: list[int]) -> dict[int, list[int]]:
        """Return what a walk finds in some slots, sorted."""
        numbers, owners = self.wheel.walk(self.base + np.array(slots, np.int64))
        found: dict[int, list[int]] = {}
        for seq, slot in zip(self.wheel.units.gather(numbers)["reserved"].tolist(), (owners - self.base).tolist(), strict=True):
            found.setdefault(slot, []).append(seq)
        return {slot: sorted(seqs) for slot, seqs in found.items()}

    def spoil(self, number: int, field: str, value: int) -> None:
        """Change a field of a unit in its file."""
        units = self.wheel.units
        path, at = units.chain.path_of(units.position(number)), units.position(number) % units.chain.file_bytes
        data = bytearray(path.read_bytes())
        np.frombuffer(data, timer_log.UNIT, 1, at)[field] = value
        path.write_bytes(data)


@pytest.fixture
def slots(tmp_path: Path) -> Iterator[Slots]:
    """Give a wheel whose slots 0 to 3 have units all over the log, 4 has long runs, and 10 to 99 are short."""
    made = Slots(tmp_path)
    made.put([10])
    for number in range(400):
        made.put([slot for slot in (0, 1, 2, 3) for _ in range(1 + number % 2)] + [10 + number % 90])
        if number % 100 == 50:
            made.put([4] * 2000)
    yield made
    made.wheel.close()


_ONE_CALL = st.one_of(
    st.lists(st.integers(0, 99), min_size=1, max_size=100),
    st.builds(lambda slot, count: [slot] * count, st.integers(0, 3), st.integers(1, 300)),
    st.builds(lambda slot: list(range(slot, 100)), st.integers(0, 50)),
)


@settings(max_examples=40)
@given(calls=st.lists(_ONE_CALL, min_size=1, max_size=60), again=st.booleans())
def test_a_walk_finds_each_unit_once(calls: list[list[int]], again: bool) -> None:
    with directory() as root:
        made = Slots(root)
        for call in calls:
            made.put(call)
        if again:
            made.reopen()
        there = sorted(made.put_in)
        for looked in (there, there[:3], there[:1], there[-30:]):
            assert made.found_in(looked) == {slot: made.put_in[slot] for slot in looked}
        made.wheel.close()


@pytest.mark.parametrize("again", [None, UnitLog, ReadUnits], ids=["at once", "opened again", "by a reader"])
def test_chains_of_all_kinds_are_walked_together(slots: Slots, again: type[UnitLog] | None) -> None:
    if again is not None:
        slots.reopen(again)
    for looked in ([0, 1, 2, 3], [4], [0, 4, 10], ALL):
        assert slots.found_in(looked) == {slot: slots.put_in[slot] for slot in looked}


WAYS = pytest.mark.parametrize(("looked", "spoilt"), [([0], 0), ([4], 4), (ALL, 1)], ids=["links", "runs", "abreast"])


@WAYS
def test_a_damaged_link_is_not_followed(slots: Slots, looked: list[int], spoilt: int) -> None:
    """It leads to an older unit of the slot, past others, which only the sum of its block tells."""
    slots.reopen()
    chain = slots.put_in[spoilt]
    unit, far = chain[len(chain) // 2] - 1, chain[len(chain) // 4] - 1
    slots.spoil(unit, "previous", slots.wheel.units.position(far))
    for _ in range(2):
        with pytest.raises(CorruptStoreError, match="are not what was written") as caught:
            slots.wheel.walk(slots.base + np.array(looked))
        assert "timerlog" in caught.value.file
    assert set(slots.asked) == {RebuildReason.DAMAGED}


@WAYS
@pytest.mark.parametrize("to", ["none", "itself", "a later one", "before the first", "between two units", "no file"])
def test_a_link_to_no_older_unit_of_its_slot_is_refused(slots: Slots, looked: list[int], spoilt: int, to: str) -> None:
    chain, units = slots.put_in[spoilt], slots.wheel.units
    unit = chain[len(chain) // 2] - 1
    at = units.position(unit)
    positions = {"none": -1, "itself": at, "a later one": at + timer_log.UNIT_BYTES, "between two units": at - 1, "no file": 10**12}
    slots.spoil(unit, "previous", positions.get(to, units.position(chain[0] - 2)))
    with pytest.raises(CorruptStoreError, match=f"the unit at {at} is not followed by an older one"):
        slots.found_in(looked)


YEAR_MS = 365 * DAY_MS


@pytest.mark.parametrize("leap_ms", [YEAR_MS, -YEAR_MS], ids=["ahead", "back"])
def test_after_one_send_under_a_wrong_clock_timers_lie_in_the_wheel(stores: WheelStores, leap_ms: int) -> None:
    store = stores.open()
    stores.clock.set(START_MS + leap_ms)
    store.send(message("stray"), delay=timedelta(minutes=90))
    store.tick()
    stores.clock.set(START_MS)
    sent = [store.send(message(n), delay=timedelta(hours=n)) for n in range(1, 97)]
    store.send_batch([message(f"b{n}") for n in range(100)], delay=timedelta(days=3))
    assert aside(store) == 0
    store = stores.killed(store)
    assert aside(store) == 0
    assert store.verify() == []
    assert store.cancel([each.handle or "" for each in sent[:24]]) == [CancelOutcome.CANCELLED] * 24
    stores.clock.advance(timedelta(days=4))
    store.tick()
    assert len(set(read_ids(store)) - {"mstray"}) == 72 + 100
    assert aside(store) == 0


def aside(store: Store) -> int:
    return len(index_of(store).aside)


@pytest.mark.parametrize("is_due_first", [False, True])
def test_a_slot_that_was_rolled_takes_no_other_far_timer(tmp_path: Path, is_due_first: bool) -> None:
    """Its chain still has the units of what rolled on, which another roll would take again: doubled, and what stayed counted off, lost."""
    precision, window, hour = 100, 172_800, 3_600_000
    clock = ManualClock(START_MS)

    def waits_in(seq: int) -> int:
        return window // 2 + ((seq * 0x9E3779B97F4A7C15 & (2**64 - 1)) >> 33) % (window - window // 2)

    slot = START_MS // precision + waits_in(1)
    came: list[bytes] = []
    with opened(tmp_path / "store", clock, precision_ms=precision) as store:

        def tick_at(now_ms: int) -> None:
            clock.set(now_ms)
            store.tick()
            popped = store.pop("t", "g", max_messages=100, invisible_ms=10**12)
            came.extend(each.body for each in popped)

        store.send(Message("t", b"far"), deliver_at_ms=START_MS + 40 * hour)
        store.send(Message("t", b"stays"), deliver_at_ms=(slot + 1) * precision)
        store.send(Message("t", b"seals"), deliver_at_ms=slot * precision - precision // 2)
        tick_at(slot * precision + precision // 2)
        clock.set((slot - waits_in(4)) * precision)
        store.send(Message("t", b"far too"), deliver_at_ms=START_MS + 41 * hour)
        if is_due_first:
            tick_at((slot + 1) * precision)
        for hours in range(13 if is_due_first else 42, 60):
            tick_at(START_MS + hours * hour)
        assert sorted(came) == [b"far", b"far too", b"seals", b"stays"]
        assert store.pending().total == 0
        assert store.verify() == []


def test_t9_timers_that_wait_to_be_rolled_crowd_their_slot(run: Run) -> None:
    """They wait in other slots, also when their own is so near by now that what is put for it goes there at once."""
    limit = run.settings["congestion_limit"] = 10
    run.reopen()
    due_ms = START_MS + 1_100_000
    run.far(*(f"far{number}" for number in range(limit)), due_ms=due_ms)
    for step_ms in (0, 200_000, 890_000):
        run.clock.advance(step_ms)
        run.store.tick()
        run.reopen()
        rows = [Message("late", b"x", message_id=f"{step_ms}.{number}", deliver_at_ms=due_ms) for number in range(limit)]
        with pytest.raises(FlowControlError, match=f"slot {due_ms} ms would hold {2 * limit} timers"):
            run.store.send_batch(rows)
    assert len(run.take_late()) == limit


@pytest.mark.parametrize("seed", range(5))
def test_a_slot_counts_all_timers_that_it_is_to_hand_over(run: Run, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Wherever they wait, whatever becomes of them, and behind an open."""
    chance = random.Random(seed)
    monkeypatch.setattr(slot_counts, "_FEW", 3)
    run.settings["congestion_limit"] = 10**6
    run.reopen()
    handles: list[Any] = []
    dues = [START_MS + 1000 * chance.randrange(5000) for _ in range(30)]
    for number in range(120):
        kind = chance.choice(["one", "many", "cancel", "cancel many", "tick", "tick", "back", "reopen"])
        if kind == "one":
            handles += [each for each in run.far(f"o{number}", due_ms=chance.choice(dues)) if each is not None]
        elif kind == "many":
            rows = [Message("late", b"x", message_id=f"{number}.{at}", deliver_at_ms=chance.choice(dues)) for at in range(9)]
            handles += [each.handle for each in run.store.send_batch(rows) if each.handle is not None]
        elif kind.startswith("cancel"):
            run.store.cancel([handles.pop(chance.randrange(len(handles))) for _ in range(min(len(handles), 1 if kind == "cancel" else 5))])
        elif kind == "tick":
            run.clock.advance(chance.choice([1000, 60_000, 300_000]))
            run.store.tick()
        elif kind == "back":
            run.clock.set(run.clock.now_ms() - 50_000)
        elif chance.random() < 0.3:
            run.reopen(rebuild=chance.random() < 0.5)
        index = index_of(run.store)
        slots = Counter(index.wheel.slot_of(tick) for piece in index.live() for tick in piece.ticks.tolist())
        assert {slot: index.count_of_tick(index.end_of(slot)) for slot in slots} == slots
        assert not any(index.count_of_tick(due_ms) for due_ms in dues if index.wheel.slot_of(due_ms) not in slots)


def test_what_is_pending_is_gone_through_a_piece_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T8: an open behind a hand-over that was cut short goes through all of it, however many millions that are."""
    monkeypatch.setattr(timer_table, "_PAGE", 512)
    count = 40_000
    with opened(tmp_path / "store") as store:
        for _ in range(4):
            store.send_batch([Message("t", b"x", deliver_at_ms=START_MS + 60_000)] * (count // 4))
        index = index_of(store)
        tracemalloc.start()
        try:
            assert sum(len(piece) for piece in index.live()) == count
            assert tracemalloc.get_traced_memory()[1] < 24 * count / 4, "tick, seq and due time of a timer are 24 bytes"
        finally:
            tracemalloc.stop()


def test_a_page_that_cannot_be_read_leaves_what_is_pending_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F3: a call that an error of rmqstore ends has changed nothing."""
    monkeypatch.setattr(timer_table, "_PAGE", 512)
    with opened(tmp_path / "store") as store:
        store.send_batch([Message("t", b"x", deliver_at_ms=START_MS + 60_000)] * 2000)
        timers, facts = store.engine.timers, index_of(store).facts
        read = facts.read

        def broken(number: int, count: int) -> Any:
            if number >= 1024:
                raise CorruptStoreError("a page is damaged")
            return read(number, count)

        with monkeypatch.context() as patched:
            patched.setattr(facts, "read", broken)
            with pytest.raises(CorruptStoreError):
                timers.forget(TimerCursor(((START_MS + 60_000, 1500),)))
        assert index_of(store).pending == 2000
        assert store.verify() == []
        timers.forget(TimerCursor(((START_MS + 60_000, 1500),)))
        assert index_of(store).pending == 500
