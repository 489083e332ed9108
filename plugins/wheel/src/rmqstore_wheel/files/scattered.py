"""``ScatteredReads``: reading records that lie all over a file which may not be in memory.

Whoever comes to a page of a mapped file that is not in memory has the system read a stretch around it, often 128 KiB and up to some MiB.
That is good for what is read in order, and reads a large backlog of timers many times over, since those of one slot lie wherever they were
written. So the system is told to read nothing around, and, while reads have to wait for the disk, which stretches are wanted next.
"""

from __future__ import annotations

import mmap
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from rmqstore_wheel.files.disk import DiskFile
from rmqstore_wheel.formats.binary_columns import Ints

_FEW: Final = 16
"""So many reads of records for one that waited for the disk need no help."""

_UNTIL_ASKED_AGAIN: Final = 15
"""After so many reads that were announced, one that is not shows whether that is still worth it."""


def waits_of_thread() -> int:
    """Return how often this thread waited for a page to be read."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


class ScatteredReads:
    """Learns whether the records of a log are in memory.

    Args:
        waits: tells how often reads waited for the disk so far.
    """

    def __init__(self, waits: Callable[[], int] = waits_of_thread) -> None:
        self._waits = waits
        self._announced_left = 0

    @contextmanager
    def of(self, file: DiskFile, starts: Ints, stops: Ints) -> Iterator[None]:
        """Read within this block what lies at some places of a file, in any order."""
        is_announced = self._announced_left > 0
        before = self._waits()
        with file.unordered():
            if is_announced:
                self._announced_left -= 1
                for start, stop in stretches(starts, stops):
                    file.announce(start, stop - start)
            yield
        if not is_announced and (self._waits() - before) * _FEW > len(starts):
            self._announced_left = _UNTIL_ASKED_AGAIN


def stretches(starts: Ints, stops: Ints, page_bytes: int = mmap.PAGESIZE) -> list[tuple[int, int]]:
    """Return the whole pages that hold some places, as few (first byte, byte behind the last), rising."""
    if not len(starts):
        return []
    order = np.argsort(starts, kind="stable")
    begins = starts[order] // page_bytes * page_bytes
    ends = np.maximum.accumulate(-(-stops[order] // page_bytes) * page_bytes)
    is_first = np.append(True, begins[1:] > ends[:-1])
    is_last = np.append(is_first[1:], True)
    return list(zip(begins[is_first].tolist(), ends[is_last].tolist(), strict=True))
