"""The sums over blocks of units: of a block that grows from one check point to the next, and of one that begins to go."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqstore import CorruptStoreError
from rmqstore_wheel.files.disk import Disk
from rmqstore_wheel.files.units import Sums, UnitLog
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
@pytest.mark.parametrize("is_looked_into", [False, True])
def test_a_block_grows_over_check_points(tmp_path: Path, is_damaged: bool, is_looked_into: bool) -> None:
    """Whoever appends to it need not look into it: what was damaged before is found by the next one who does."""
    sums = Sums()
    for count in (10, 9, 12):
        log = _log(tmp_path, sums)
        if is_looked_into:
            assert log.read(0, log.count).tobytes() == DATA[: log.count * SIZE]
        _append(log, count)
        sums = log.sync()
        log.close()
        if is_damaged and count == 9:
            path = log.chain.path_of(log.position(3))
            path.write_bytes(path.read_bytes().replace(DATA[3 * SIZE : 4 * SIZE], bytes(SIZE)))
            is_looked_into = False
    log = _log(tmp_path, sums)
    if is_damaged:
        with pytest.raises(CorruptStoreError, match="units 0 to 30 are not what was written"):
            log.read(25, 1)
    else:
        assert log.read(0, 31).tobytes() == DATA[: 31 * SIZE]
    log.close()


@pytest.mark.parametrize("more", [1, 10])
def test_a_block_of_which_nothing_is_left_begins_anew(tmp_path: Path, more: int) -> None:
    written = _log(tmp_path, Sums())
    _append(written, 8)
    sums = written.sync()
    written.close()
    written = _log(tmp_path, sums)
    written.trim(8)
    _append(written, more)
    sums = written.sync()
    written.release()
    written.close()
    read = _log(tmp_path, sums)
    assert read.read(8, more).tobytes() == DATA[8 * SIZE : (8 + more) * SIZE]
    read.close()
