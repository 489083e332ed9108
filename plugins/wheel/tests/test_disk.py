"""Views of files that grow and are cut off."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from plugins.wheel.tests.stores import meanwhile, noted, opened
from rmqstore import ManualClock
from rmqstore_wheel.files.disk import Disk, DiskFile, ScatteredReads, stretches
from rmqstore_wheel.reader.log import ReadDisk


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> Iterator[DiskFile]:
    file = Disk().create(tmp_path / "file")
    file.write_at(0, b"first")
    yield file
    file.close()


def test_a_view_shows_what_is_there_and_maps_nothing_again_without_need(file: DiskFile) -> None:
    before = file.view()
    file.write_at(5, b"second")
    file.write_at(0, b"F")
    again = file.view(5)
    assert again.obj is before.obj
    assert again[:5] == b"First"
    content = b"Firstsecond"
    for upto in (None, 1, 5, 100):
        content += b"third"
        file.write_at(len(content) - 5, b"third")
        assert file.view(None if upto is None else len(content) - 5 + upto) == content
    file.truncate(2)
    assert file.view(2) == file.view(5) == b"Fi"


def test_a_file_that_another_process_cuts_off_while_it_is_mapped_is_told_as_one(file: DiskFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader looks again then; mmap itself raises a ValueError."""
    meanwhile(monkeypatch, mmap, "mmap", lambda *_: file.truncate(2))
    with pytest.raises(OSError, match="was cut off meanwhile"):
        file.view()
    assert file.view() == b"fi"


def test_a_reader_never_looks_behind_the_end_of_a_file_that_its_owner_cut_off(file: DiskFile) -> None:
    readers = [ReadDisk().open(file.path) for _ in range(3)]
    for reader in readers:
        reader.view()
    file.truncate(2)
    assert [reader.view(upto) for reader, upto in zip(readers, (None, 2, 5), strict=True)] == [b"fi"] * 3
    for reader in readers:
        reader.close()


def test_a_hand_over_does_not_map_the_log_again_for_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(0)
    with opened(tmp_path / "store", clock) as store:
        for first in range(0, 20_000, 5000):
            due = pa.array(np.random.default_rng(first).integers(1000, 100_000, 5000))
            store.send_batch(pa.record_batch({"topic": ["t"] * 5000, "body": [b"x" * 2000] * 5000, "deliver_at_ms": due}))
        clock.advance(200_000)
        mapped = noted(monkeypatch, mmap, "mmap", lambda _, fd, *__: Path(f"/proc/self/fd/{fd}").readlink().parent.name)
        assert store.tick().handed_over == 20_000
    assert mapped.count("commitlog") <= 1


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

    def announce(self, parts: Sequence[tuple[int, int]]) -> None:
        self.told += parts
        super().announce(parts)


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
    pages = [(at * PAGE, (at + 1) * PAGE) for at in (3, 9, 40)]
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
    file.announce([(PAGE, 6 * PAGE), (9 * PAGE, 10 * PAGE)])
    unmapped = Disk().open(tmp_path / "f")
    unmapped.announce([(0, PAGE)])
    with unmapped.unordered():
        pass
    file.close()
    unmapped.close()
