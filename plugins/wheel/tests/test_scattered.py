"""Reads of records that lie all over a file: which pages are announced, and when."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
from hypothesis import given, strategies as st

from rmqstore_wheel.files.disk import Disk, DiskFile, ScatteredReads, stretches

PAGE = mmap.PAGESIZE

places = st.lists(st.tuples(st.integers(0, 100_000), st.integers(1, 9_000)), max_size=30)


@given(places)
def test_stretches_are_the_pages_of_all_places_and_no_others(given_places: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in given_places], np.int64)
    sizes = np.array([size for _, size in given_places], np.int64)
    found = stretches(starts, starts + sizes, 4096)
    wanted = {page for start, size in given_places for page in range(start // 4096, (start + size - 1) // 4096 + 1)}
    assert [page for begin, end in found for page in range(begin // 4096, end // 4096)] == sorted(wanted)
    assert all(low[1] < high[0] for low, high in zip(found, found[1:], strict=False)), "those that touch are one"


class Recorder(DiskFile):
    """Remembers what it is told about reads to come."""

    def __init__(self, path: Path, pages: int) -> None:
        path.write_bytes(bytes(pages * PAGE))
        super().__init__(path, os.open(path, os.O_RDWR))
        self.told: list[tuple[int, int]] = []
        self.view()

    def announce(self, offset: int, size: int) -> None:
        self.told.append((offset, size))
        super().announce(offset, size)


def test_places_are_announced_while_reads_wait_for_the_disk(tmp_path: Path) -> None:
    file = Recorder(tmp_path / "f", 64)
    waited = 0
    reads = ScatteredReads(lambda: waited)
    starts = np.array([40, 3, 9]) * PAGE + 100
    announced = []
    for _ in range(36):
        file.told.clear()
        with reads.of(file, starts, starts + 50):
            # Only what nobody announced is waited for.
            waited += 0 if file.told else 3
        announced.append(list(file.told))
    pages = [(3 * PAGE, PAGE), (9 * PAGE, PAGE), (40 * PAGE, PAGE)]
    assert announced == ([[]] + [pages] * 15) * 2 + [[]] + [pages] * 3


def test_nothing_is_announced_of_what_is_in_memory(tmp_path: Path) -> None:
    file = Recorder(tmp_path / "f", 8)
    reads = ScatteredReads(lambda: 0)
    for _ in range(20):
        with reads.of(file, np.array([5, 2]) * PAGE, np.array([5, 2]) * PAGE + 10):
            pass
    assert file.told == []


def test_what_ends_behind_the_file_or_was_never_mapped_does_no_harm(tmp_path: Path) -> None:
    file = Recorder(tmp_path / "f", 2)
    file.announce(PAGE, 5 * PAGE)
    file.announce(9 * PAGE, PAGE)
    unmapped = Disk().open(tmp_path / "f")
    unmapped.announce(0, PAGE)
    with unmapped.unordered():
        pass
    file.close()
    unmapped.close()
