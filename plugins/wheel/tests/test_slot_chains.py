"""Chains of the timer log: a walk finds each unit of a slot, wherever it stands, and believes nothing that is damaged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from rmqstore.errors import CorruptStoreError
from rmqstore_conformance.stores import directory
from rmqstore_wheel.files.disk import Disk
from rmqstore_wheel.files.units import RebuildReason, Sums
from rmqstore_wheel.formats import timer_log
from rmqstore_wheel.formats.wheel import Ring
from rmqstore_wheel.timers.wheel import WheelIndex

NOW_MS = 1_700_000_000_000
PER_FILE = 5000
"""No multiple of a block of sums."""

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

    def _new(self) -> WheelIndex:
        return WheelIndex(Disk(), self._path, Ring(1000, 1000), PER_FILE, self.asked.append, 200)

    def put(self, slots: list[int]) -> None:
        """Put timers into slots, all in one call."""
        seqs = 1 + self.wheel.units.count + np.arange(len(slots))
        self.wheel.publish(self.wheel.reserve(seqs, NOW_MS + 1000 * (1 + np.array(slots)), NOW_MS, seqs, seqs))
        for slot, seq in zip(slots, seqs.tolist(), strict=True):
            self.put_in.setdefault(slot, []).append(seq)

    def reopen(self) -> None:
        """Open it again from a check point."""
        sums, crc = self.wheel.check_point()
        self.wheel.close()
        self.wheel = self._new()
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


@pytest.mark.parametrize("again", [False, True])
def test_chains_of_all_kinds_are_walked_together(slots: Slots, again: bool) -> None:
    if again:
        slots.reopen()
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
