"""The timer wheel: slot bytes, the arithmetic of the ring, stale slots, and what a recovery asks of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore.errors import CorruptStoreError, IllegalArgumentError
from rmqstore_wheel.formats import wheel
from rmqstore_wheel.formats.wheel import EMPTY, KEEP, NEVER, Ring, Slot

SMALL = Ring(1000, 4)
SLOT_BYTES = bytes.fromhex(
    "00000000 6553f100"  # tick 1 700 000 000
    "0000000000000034"  # first unit at 52
    "00000000000000d0"  # newest unit at 208
    "00000004"  # four timers
    "00000000"  # magic
)


def test_bytes_and_place() -> None:
    ring = Ring()
    buffer = wheel.create(ring)
    assert len(buffer) == ring.file_bytes == 38_707_200
    slots = wheel.slots_of(buffer, ring)
    wheel.put(slots, ring, 1_700_000_000_999, 52, 208, 4)
    at = 1_700_000_000 % 1_209_600 * 32
    assert buffer[at : at + 32] == SLOT_BYTES
    assert buffer.count(0) == len(buffer) - 32 + SLOT_BYTES.count(0)
    assert wheel.get(slots, ring, 1_700_000_000_000) == Slot(1_700_000_000, 52, 208, 4)


def test_a_slot_of_another_lap_is_empty() -> None:
    slots = wheel.slots_of(wheel.create(SMALL), SMALL)
    assert wheel.get(slots, SMALL, 3000) == EMPTY  # never written
    assert wheel.get(slots, SMALL, 0) == EMPTY  # tick 0, as in a slot of zeros
    wheel.put(slots, SMALL, 3000, 0, 0, 1)
    assert wheel.get(slots, SMALL, 3999) == Slot(3, 0, 0, 1)
    assert wheel.get(slots, SMALL, 3000 + 8000) == EMPTY
    wheel.put(slots, SMALL, 3000 + 8000, 52, 104, 2)
    assert wheel.get(slots, SMALL, 3000) == EMPTY
    assert wheel.get(slots, SMALL, 11_000) == Slot(11, 52, 104, 2)


@pytest.mark.parametrize(
    ("deliver", "precision", "slot"),
    [(5000, 1000, 4000), (5001, 1000, 5000), (5999, 1000, 5000), (6000, 1000, 5000), (250, 100, 200), (300, 100, 200)],
)
def test_rounding_of_a_deliver_time(deliver: int, precision: int, slot: int) -> None:
    assert Ring(precision).slot_time_ms(deliver) == slot
    assert slot < deliver <= slot + precision  # a slot is read a precision after its time, so never early


@pytest.mark.parametrize(("asked", "taken"), [(1000, 1000), (5000, 1000), (999, 500), (300, 200), (150, 100), (1, 100)])
def test_precision_snaps_down(asked: int, taken: int) -> None:
    assert wheel.snap_precision(asked) == taken


RINGS = st.builds(Ring, st.sampled_from(wheel.PRECISIONS_MS), st.integers(1, 20))


@given(RINGS, st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 2**40), st.integers(0, 2**40), st.integers(-5, 5)), max_size=20))
def test_many_slots_are_as_one_by_one(ring: Ring, puts: list[tuple[int, int, int, int]]) -> None:
    unique = list({ring.place(put[0]): put for put in puts}.values())
    one, many = wheel.create(ring), wheel.create(ring)
    for time_ms, first, last, timers in unique:
        wheel.put(wheel.slots_of(one, ring), ring, time_ms, first, last, timers)
    times, firsts, lasts, timers_of = (np.array([put[at] for put in unique], np.int64) for at in range(4))
    wheel.put_many(wheel.slots_of(many, ring), ring, ring.ticks(times), firsts, lasts, timers_of)
    assert one == many
    slots = wheel.slots_of(many, ring)
    asked = np.array([put[0] for put in puts] + [0, 5 * 10**6], np.int64)
    found = wheel.get_many(slots, ring, ring.ticks(asked))
    for time_ms, row in zip(asked.tolist(), found, strict=True):
        assert Slot(*row.item()) == wheel.get(slots, ring, time_ms)


def test_two_ticks_of_one_slot_are_refused() -> None:
    slots = wheel.slots_of(wheel.create(SMALL), SMALL)
    one = np.ones(2, np.int64)
    with pytest.raises(IllegalArgumentError, match="share a slot"):
        wheel.put_many(slots, SMALL, np.array([3, 11]), one, one, one)
    assert not slots["tick"].any()


def test_revise() -> None:
    slots = wheel.slots_of(wheel.create(SMALL), SMALL)
    wheel.put(slots, SMALL, 3000, 10, 20, 7)
    wheel.revise(slots, SMALL, 3000, KEEP, 30, force=False)
    assert wheel.get(slots, SMALL, 3000) == Slot(3, 10, 30, 7)
    wheel.revise(slots, SMALL, 3000, 5, KEEP, force=False)
    assert wheel.get(slots, SMALL, 3000) == Slot(3, 5, 30, 7)
    wheel.revise(slots, SMALL, 11_000, KEEP, 90, force=False)
    assert wheel.get(slots, SMALL, 3000) == Slot(3, 5, 30, 7)
    wheel.revise(slots, SMALL, 11_000, KEEP, 90, force=True)
    assert wheel.get(slots, SMALL, 11_000) == Slot(11, 90, 90, 7)  # the count of the earlier lap stays, as in RocketMQ


def test_first_position_behind() -> None:
    slots = wheel.slots_of(wheel.create(SMALL), SMALL)
    assert wheel.first_position_behind(slots, SMALL, 2000, 0) == NEVER
    wheel.put(slots, SMALL, 2000, 104, 520, 1)
    wheel.put(slots, SMALL, 9000, 52, 1040, 1)
    wheel.put(slots, SMALL, 3000, 0, 156, 1)
    assert wheel.first_position_behind(slots, SMALL, 2000, 300) == 52
    assert wheel.first_position_behind(slots, SMALL, 1000, 300) == 104  # tick 9 is not of the lap 1 … 8
    assert wheel.first_position_behind(slots, SMALL, 2000, 1040) == NEVER


@pytest.mark.parametrize("length", [0, 1, SMALL.file_bytes - 1, SMALL.file_bytes + 32])
def test_a_file_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(CorruptStoreError, match=f"{length} bytes; 4 slots take 256"):
        wheel.slots_of(bytes(length), SMALL)
