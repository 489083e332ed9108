"""The wheel over the timer log: every timer is found in the slot that it belongs to, however it came there."""

from __future__ import annotations

from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from plugins.wheel.tests.breaking import WheelStores, index_of
from rmqstore import FlowControlError, Store
from rmqstore.errors import CorruptStoreError
from rmqstore_conformance.stores import DAY_MS, START_MS, message, read_ids
from rmqstore_wheel.files.disk import Disk
from rmqstore_wheel.files.units import Sums
from rmqstore_wheel.formats.wheel import Ring
from rmqstore_wheel.timers.wheel import WheelIndex

SLOTS, WINDOW, PER_FILE = 1000, 200, 64
NOW_MS = 1_700_000_000_000


def index(path: Path, precision_ms: int = 1000) -> WheelIndex:
    found = WheelIndex(Disk(), path, Ring(precision_ms, SLOTS), PER_FILE, lambda reason: None, WINDOW)
    found.units.start(Sums())
    return found


def put(wheel: WheelIndex, seqs: list[int], ticks: list[int], now_ms: int = NOW_MS) -> Any:
    numbers = np.array(seqs, np.int64)
    placing = wheel.reserve(numbers, np.array(ticks, np.int64), now_ms, numbers * 100, np.full(len(seqs), 100))
    wheel.publish(placing)
    return placing


def seqs_in(wheel: WheelIndex, slots: list[int]) -> dict[int, set[int]]:
    numbers, owners = wheel.walk(np.array(slots, np.int64))
    found: dict[int, set[int]] = {}
    for seq, slot in zip(wheel.units.gather(numbers)["reserved"].tolist(), owners.tolist(), strict=True):
        assert seq not in found.setdefault(slot, set()), "a chain has a timer twice"
        found[slot].add(seq)
    return found


@given(st.lists(st.tuples(st.integers(-2 * SLOTS, 3 * WINDOW), st.integers(0, 3000), st.booleans()), min_size=1, max_size=40))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_timer_goes_where_a_batch_of_one_does(
    tmp_path_factory: pytest.TempPathFactory, timers: list[tuple[int, int, bool]]
) -> None:  # fmt: skip
    one, many = (index(tmp_path_factory.mktemp("wheel")) for _ in range(2))
    now_ms = NOW_MS
    for seq, (delay, later_ms, leaves) in enumerate(timers, 1):
        now_ms += later_ms
        tick = now_ms + 1000 * delay
        alone = one.reserve_one(seq, tick, now_ms, seq * 100, 100, 7)
        batch = many.reserve(np.array([seq]), np.array([tick]), now_ms, np.array([seq * 100]), np.array([100]), 7)
        assert (alone.rolled, alone.aside) == (bool(batch.rolled[0]), bool(len(batch.aside)))
        one.publish_one(alone)
        many.publish(batch)
        if leaves and not alone.rolled:
            # A cancel, whose timer may have found no place.
            cancel = one.reserve_cancel(100 + seq, tick, now_ms, 7, 50)
            batch = many.reserve_cancels(np.array([100 + seq]), np.array([tick]), now_ms, np.array([7]), np.array([50]))
            assert (cancel is None) == (batch.units is None)
            if cancel is not None:
                one.publish_one(cancel)
            many.publish(batch)
            one.count_off_one(one.slot_of(tick))
            many.count_off(np.array([many.slot_of(tick)]))
        assert (one.slots == many.slots).all()
        assert one.first_roll == many.first_roll
    assert one.check_point() == many.check_point()
    assert (one.units.read(0, one.units.count) == many.units.read(0, many.units.count)).all()
    for wheel in (one, many):
        wheel.close()


def test_a_place_that_another_lap_holds_is_not_taken(tmp_path: Path) -> None:
    wheel = index(tmp_path)
    put(wheel, [1], [NOW_MS + 1000])
    later_ms = NOW_MS + 1000 * 2 * SLOTS
    placing = put(wheel, [2, 3], [later_ms + 1000, later_ms + 2000], later_ms)
    assert placing.aside.tolist() == [0]
    assert seqs_in(wheel, [wheel.slot_of(NOW_MS + 1000)]) == {wheel.slot_of(NOW_MS + 1000): {1}}
    wheel.count_off(np.array([wheel.slot_of(NOW_MS + 1000)]))
    assert not len(put(wheel, [4], [later_ms + 1000], later_ms).aside)


@pytest.mark.parametrize("to", [-1, 0, 3, 4, 8, 2**40])
def test_a_chain_that_leads_nowhere_is_refused(tmp_path: Path, to: int) -> None:
    """Also one that leads back to itself: a walk always ends."""
    wheel = index(tmp_path)
    for seq in range(1, 6):
        put(wheel, [seq, 100 + seq], [NOW_MS + 1000, NOW_MS + 9000])
    slot = wheel.slot_of(NOW_MS + 1000)
    last = int(wheel.units.numbers(wheel.slots["last"][np.array([slot]) % wheel.ring.length].astype(np.int64))[0])
    unit = wheel.units.read(last, 1).copy()
    unit["previous"] = to * wheel.units.unit.itemsize if to >= 0 else to
    wheel.units.reserve(np.array([last]), unit)()
    if to in (0, 4):
        # That this skips units is what the sums of the blocks are for.
        assert len(seqs_in(wheel, [slot])[slot]) < 5
    else:
        with pytest.raises(CorruptStoreError) as caught:
            wheel.walk(np.array([slot]))
        assert "timerlog" in caught.value.file


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
def test_a_snapshot_is_read_with_holes_and_without(tmp_path: Path, slots: int) -> None:
    """A copy may have none; what the pages hold is found, the last one too, and where timers are and roll."""

    def opened() -> WheelIndex:
        return WheelIndex(Disk(), tmp_path, Ring(1000, slots), PER_FILE, lambda reason: None, WINDOW)

    wheel = opened()
    wheel.units.start(Sums())
    last = 2 * slots * 850_000 - 1  # of the last place of the ring
    for seq, slot in enumerate((last - 900, last), start=1):
        put(wheel, [seq], [(slot + 1) * 1000], now_ms=(slot - 10) * 1000)
    put(wheel, [3], [(last + 5 * WINDOW) * 1000], now_ms=last * 1000)
    sums, crc = wheel.check_point()
    snapshot = tmp_path / "timerwheel"
    for _ in range(2):
        found = opened()
        found.start(sums, crc)
        assert (found.slots == wheel.slots).all()
        assert (found.first_roll, found.first_needed(), found.next_live(0)) == (wheel.first_roll, 0, last - 900)
        assert found.live_slots(0, last + 5 * WINDOW).tolist() == wheel.live_slots(0, last + 5 * WINDOW).tolist()
        with _Slow(snapshot) as file:
            assert (found._snapshot._filled(file)[0] == wheel.slots).all()
        found.close()
        snapshot.write_bytes(snapshot.read_bytes())  # without holes


class _Slow(FileIO):
    """Gives less than is asked for, as some file systems do."""

    def readinto(self, buffer: Any) -> int:
        return super().readinto(memoryview(buffer)[:1000])


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
