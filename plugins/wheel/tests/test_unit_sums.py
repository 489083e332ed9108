"""The sums over blocks of units hold wherever a file ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqstore_wheel.files.disk import Disk
from rmqstore_wheel.files.units import UnitLog
from rmqstore_wheel.formats import consume_queue, timer_log


def _append(log: UnitLog, data: bytes) -> None:
    log.write_ahead(data)
    log.advance(data)


@pytest.mark.parametrize("unit", [consume_queue.UNIT, timer_log.UNIT], ids=["consume queue", "timer log"])
def test_a_block_that_lies_in_several_files_is_what_was_written(tmp_path: Path, unit: object) -> None:
    written = UnitLog(Disk(), tmp_path / "units", unit, 7)  # type: ignore[arg-type]
    data = bytes(range(256)) * 20
    count = 16
    size = written.unit.itemsize
    _append(written, data[: count * size])
    sums = written.sync()
    written.close()
    read = UnitLog(Disk(), tmp_path / "units", unit, 7)  # type: ignore[arg-type]
    read.start(sums)
    assert read.read(3, 9).tobytes() == data[3 * size : 12 * size]
    read.close()


def test_a_block_of_which_nothing_is_left_begins_anew(tmp_path: Path) -> None:
    written = UnitLog(Disk(), tmp_path / "units", timer_log.UNIT, 8)
    size = written.unit.itemsize
    data = bytes(range(256)) * 8
    _append(written, data[: 8 * size])
    written.trim(8)
    _append(written, data[: 2 * size])
    sums = written.sync()
    written.release()
    written.close()
    read = UnitLog(Disk(), tmp_path / "units", timer_log.UNIT, 8)
    read.start(sums)
    assert read.read(8, 2).tobytes() == data[: 2 * size]
    read.close()
