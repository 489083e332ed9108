"""Numbers of timers come in any order and leave gaps of any size, which take no room."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqstore import CorruptStoreError
from rmqstore_conformance.stores import directory
from rmqstore_wheel.files.bitmap import Bits
from rmqstore_wheel.files.disk import Disk
from rmqstore_wheel.files.units import Sums, UnitLog, Units
from rmqstore_wheel.formats import consume_queue

PER_FILE = 5000
"""No multiple of a block of sums, as the number of units in a file of a consume queue is none."""

FILL = consume_queue.decode(consume_queue.encode_fill(1))[0]
NUMBERS = st.one_of(st.integers(0, 3 * PER_FILE), st.integers(10**6, 10**6 + 3 * PER_FILE), st.integers(2**32, 2**32 + PER_FILE))
KINDS = st.sampled_from(["place", "follow", "refused", "reopen"])
CALLS = st.lists(st.tuples(KINDS, st.sets(NUMBERS, min_size=1, max_size=12)), max_size=8)


def _log(place: Path, sums: Sums) -> UnitLog:
    log = UnitLog(Disk(), place, consume_queue.UNIT, PER_FILE, fill=consume_queue.encode_fill(1), fill_bytes=4096)
    log.start(sums)
    return log


def _units(numbers: np.ndarray) -> Units:
    return consume_queue.rows_of(numbers * 3, np.full(len(numbers), 99))


@settings(max_examples=25, deadline=None)
@given(calls=CALLS)
def test_units_stay_where_they_were_put(calls: list[tuple[str, set[int]]]) -> None:
    with directory() as root:
        log = _log(root / "units", Sums())
        there: set[int] = set()
        for kind, chosen in calls:
            numbers = np.array(sorted(chosen))
            if kind == "follow":
                numbers = log.count + np.arange(len(chosen))
            if kind == "reopen":
                sums = log.sync()
                log.close()
                log = _log(root / "units", sums)
            else:
                commit = log.reserve(numbers, _units(numbers))
                if kind != "refused":
                    commit()
                    there.update(numbers.tolist())
            for number in sorted(there | {at + 1 for at in there if at + 1 < log.count}):
                expected = _units(np.array([number]))[0] if number in there else FILL
                assert log.gather(np.array([number, number]))[0] == expected
                first = max(number - 7000, 0)
                assert log.read(first, number + 1 - first)[-1] == expected
            held = [range(*stretch) for stretch in log.held(0)]
            assert all(any(number in stretch for stretch in held) for number in there)
            # Two files hold a gap of thousands of millions.
            assert len(list((root / "units").glob("*"))) <= 12
        log.close()


def test_a_lost_file_is_missed_and_an_absent_one_is_not(tmp_path: Path) -> None:
    numbers = np.array([3, 2**32])
    log = _log(tmp_path / "units", Sums())
    log.reserve(numbers, _units(numbers))()
    sums = log.sync()
    log.close()
    assert sums.absent == [(1, 2**32 // PER_FILE)]
    _log(tmp_path / "units", sums).close()
    sorted((tmp_path / "units").iterdir())[0].unlink()
    with pytest.raises(CorruptStoreError, match="does not hold units 0 to"):
        _log(tmp_path / "units", sums)


def test_what_was_written_into_a_gap_after_the_check_point_is_gone_with_it(tmp_path: Path) -> None:
    numbers, later = np.array([3, 2**32]), np.array([10**6])
    log = _log(tmp_path / "units", Sums())
    log.reserve(numbers, _units(numbers))()
    sums = log.sync()
    log.reserve(later, _units(later))()
    log.close()
    log = _log(tmp_path / "units", sums)
    assert log.gather(later)[0] == FILL
    log.close()


@settings(max_examples=25, deadline=None)
@given(calls=st.lists(st.tuples(st.sampled_from(["set", "clear", "dump"]), st.sets(NUMBERS, min_size=1)), max_size=8))
def test_bits_are_what_was_set(calls: list[tuple[str, set[int]]]) -> None:
    bits, there = Bits(), set[int]()
    for kind, chosen in calls:
        if kind == "dump":
            dumped = bits.dump()
            assert len(dumped[1]) < 10**5
            bits = Bits.load(dumped)
        else:
            bits.set_many(np.array(sorted(chosen)), on=kind == "set")
            there = there | chosen if kind == "set" else there - chosen
        asked = np.array(sorted(there | chosen | {number + 1 for number in chosen}))
        assert asked[bits.get_many(asked)].tolist() == sorted(there)


def test_bits_before_a_page_are_forgotten() -> None:
    bits = Bits()
    bits.set_many(np.array([5, 70_000, 2**32]))
    bits.drop_before(66_000)
    assert [bits.get(number) for number in (5, 70_000, 2**32)] == [False, True, True]
    bits.set_many(np.array([5]))
    assert not Bits.load(bits.dump()).get(5)
