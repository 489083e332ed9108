"""The engine with files and a wheel so small that everything happens within a few calls."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from rmqstore_wheel import facts, reclaim, timer_index
from rmqstore_wheel.ledger_ports import Sizes
from rmqstore_wheel.wheel_index import WheelIndex

SIZES: Final = Sizes(
    log_file_bytes=4096,
    queue_file_units=32,
    timer_file_units=32,
    check_point_bytes=3000,
    check_point_calls=8,
    index_slots=64,
    index_entries=16,
)
FACTS_PER_FILE: Final = 16


@contextmanager
def small_wheel(*, slots: int = 256, roll_window: int = 16, again_ms: int = 1000) -> Iterator[None]:
    """Let engines that are opened in a ``with`` block have a small ring, a short roll window and short files of facts.

    They look at the files of the log anew after ``again_ms``.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(facts, "PER_FILE", FACTS_PER_FILE)
        patch.setattr(timer_index, "SLOTS", slots)
        patch.setattr(reclaim, "AGAIN_MS", again_ms)
        patch.setattr(timer_index, "WheelIndex", functools.partial(WheelIndex, roll_window=roll_window))
        yield


@contextmanager
def scratch() -> Iterator[Path]:
    """Give a directory in memory, where there is one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="rmqs-power-", dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


def remove(path: Path) -> None:
    """Remove a directory that may not be there."""
    shutil.rmtree(path, ignore_errors=True)
