"""Views of files that grow and are cut off."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from plugins.wheel.tests.breaking import opened
from rmqstore import ManualClock
from rmqstore_wheel.files.disk import Disk, DiskFile
from rmqstore_wheel.reader.log import ReadDisk


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> Iterator[DiskFile]:
    file = Disk().create(tmp_path / "file")
    file.write_at(0, b"first")
    yield file
    file.close()


def test_what_was_mapped_is_not_mapped_again_when_the_file_grows(file: DiskFile) -> None:
    before = file.view()
    file.write_at(5, b"second")
    file.write_at(0, b"F")
    again = file.view(5)
    assert again.obj is before.obj
    assert again[:5] == b"First"


def test_a_file_that_another_process_cuts_off_while_it_is_mapped_is_told_as_one(file: DiskFile) -> None:
    """A reader looks again then; mmap itself raises a ValueError."""
    mapped = mmap.mmap

    def cut_off(descriptor: int, length: int, **how: int) -> mmap.mmap:
        file.truncate(2)
        return mapped(descriptor, length, **how)

    with patch("mmap.mmap", cut_off), pytest.raises(OSError, match="was cut off meanwhile"):
        file.view()
    assert file.view() == b"fi"


@pytest.mark.parametrize("upto", [None, 6, 11], ids=["all", "a byte of what is new", "up to the end"])
def test_a_view_reaches_as_far_as_is_asked(file: DiskFile, upto: int | None) -> None:
    file.view()
    file.write_at(5, b"second")
    assert file.view(upto) == b"firstsecond"


def test_a_view_ends_where_the_file_ends(file: DiskFile) -> None:
    assert file.view(100) == b"first"


def test_a_file_that_was_cut_off_is_mapped_again(file: DiskFile) -> None:
    file.view()
    file.truncate(2)
    assert file.view(2) == b"fi"
    assert file.view(5) == b"fi"


@pytest.mark.parametrize("upto", [None, 2, 5])
def test_a_reader_never_looks_behind_the_end_of_a_file_that_its_owner_cut_off(file: DiskFile, upto: int | None) -> None:
    reader = ReadDisk().open(file.path)
    reader.view()
    file.truncate(2)
    assert reader.view(upto) == b"fi"
    reader.close()


def test_a_hand_over_does_not_map_the_log_again_for_each_step(tmp_path: Path) -> None:
    clock, mapped = ManualClock(0), []
    with opened(tmp_path / "store", clock) as store:
        for first in range(0, 20_000, 5000):
            due = pa.array(np.random.default_rng(first).integers(1000, 100_000, 5000))
            store.send_batch(pa.record_batch({"topic": ["t"] * 5000, "body": [b"x" * 2000] * 5000, "deliver_at_ms": due}))
        clock.advance(200_000)
        real = mmap.mmap

        def counted(fd: int, *given: int, **named: int) -> mmap.mmap:
            mapped.append(Path(f"/proc/self/fd/{fd}").readlink().parent.name)
            return real(fd, *given, **named)

        with patch("rmqstore_wheel.files.disk.mmap.mmap", counted):
            assert store.tick().handed_over == 20_000
    assert mapped.count("commitlog") <= 1
