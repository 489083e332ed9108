"""The sums over blocks of units hold wherever a file ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqstore_wheel.disk import Disk
from rmqstore_wheel.formats import consume_queue, timer_log
from rmqstore_wheel.unit_log import UnitLog


@pytest.mark.parametrize("unit", [consume_queue.UNIT, timer_log.UNIT], ids=["consume queue", "timer log"])
def test_a_block_that_lies_in_several_files_is_what_was_written(tmp_path: Path, unit: object) -> None:
    written = UnitLog(Disk(), tmp_path / "units", unit, 7)  # type: ignore[arg-type]
    data = bytes(range(256)) * 20
    count = 16
    size = written.unit.itemsize
    written.reserve(count)
    written.append(data[: count * size])
    sums = written.sync()
    written.close()
    read = UnitLog(Disk(), tmp_path / "units", unit, 7)  # type: ignore[arg-type]
    read.start(sums)
    assert read.read(3, 9).tobytes() == data[3 * size : 12 * size]
    read.close()
