"""The sums over blocks of units: of a block that grows from one check point to the next, and of one that begins to go."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rmqstore import CorruptStoreError
from rmqstore_wheel.files.disk import Disk
from rmqstore_wheel.files.units import BLOCK, Sums, UnitLog
from rmqstore_wheel.formats import timer_log

PER_FILE = 8
SIZE = timer_log.UNIT.itemsize
DATA = bytes(range(256)) * 8


def _log(path: Path, sums: Sums) -> UnitLog:
    log = UnitLog(Disk(), path / "units", timer_log.UNIT, PER_FILE)
    log.start(sums)
    return log


def _append(log: UnitLog, count: int) -> None:
    data = DATA[log.count * SIZE : (log.count + count) * SIZE]
    log.write_ahead(data)
    log.advance(data)


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("looks", ["never", "before", "behind"])
def test_a_block_grows_over_check_points(tmp_path: Path, is_damaged: bool, looks: str) -> None:
    """Who appends to it need not look into it: what was damaged before is found by the next one who does."""
    sums = Sums()
    for count in (10, 9, 12):
        log = _log(tmp_path, sums)
        for part in (count // 2, count - count // 2):
            if looks == "before":
                assert log.read(0, log.count).tobytes() == DATA[: log.count * SIZE]
            _append(log, part)
            if looks == "behind":
                assert log.read(0, log.count).tobytes() == DATA[: log.count * SIZE]
            sums = log.sync()
        log.close()
        if is_damaged and count == 9:
            path = log.chain.path_of(log.position(3))
            path.write_bytes(path.read_bytes().replace(DATA[3 * SIZE : 4 * SIZE], bytes(SIZE)))
            looks = "never"
    log = _log(tmp_path, sums)
    if is_damaged:
        with pytest.raises(CorruptStoreError, match="units 0 to 30 are not what was written"):
            log.read(25, 1)
    else:
        assert log.read(0, 31).tobytes() == DATA[: 31 * SIZE]
    log.close()


@pytest.mark.parametrize("first", [BLOCK - 1, BLOCK, 3 * BLOCK + 5])
def test_a_block_is_filled_by_a_gap_behind_it(tmp_path: Path, first: int) -> None:
    sums = Sums()
    unit = np.frombuffer(DATA[:SIZE], timer_log.UNIT)
    for number in (PER_FILE - 1, first, 5 * BLOCK):
        log = _log(tmp_path, sums)
        log.reserve(np.array([number]), unit)()
        sums = log.sync()
        log.close()
    log = _log(tmp_path, sums)
    assert log.gather(np.array([PER_FILE - 1, first, 5 * BLOCK])).tobytes() == DATA[:SIZE] * 3
    assert not any(log.read(first + 1, 2).tobytes())
    log.close()


@pytest.mark.parametrize(("count", "more"), [(8, 0), (8, 1), (8, 10), (12, 0), (12, 3)])
def test_a_block_of_which_units_go_begins_behind_them(tmp_path: Path, count: int, more: int) -> None:
    """Also when nothing is left of it."""
    written = _log(tmp_path, Sums())
    _append(written, count)
    sums = written.sync()
    written.close()
    written = _log(tmp_path, sums)
    written.trim(8)
    if more:
        _append(written, more)
    sums = written.sync()
    written.release()
    written.close()
    read = _log(tmp_path, sums)
    assert (read.first, read.count) == (8, count + more)
    assert read.read(8, count + more - 8).tobytes() == DATA[8 * SIZE : (count + more) * SIZE]
    read.close()
