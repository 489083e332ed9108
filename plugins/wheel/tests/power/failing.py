"""A disk of which one call fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rmqstore_wheel.disk import Disk, DiskFile
from rmqstore_wheel.formats.binary_columns import Bytes

T = TypeVar("T")


class FailingFile(DiskFile):
    """An open file of a :class:`FailingDisk`."""

    def __init__(self, plain: DiskFile, disk: FailingDisk) -> None:
        super().__init__(plain.path, plain._fd)
        self._disk = disk

    def write_at(self, offset: int, data: Bytes) -> None:
        # One that fails has written the first half.
        half = memoryview(data).cast("B")[: len(memoryview(data).cast("B")) // 2]
        self._disk.count("write", lambda: super(FailingFile, self).write_at(offset, half))
        super().write_at(offset, data)

    def truncate(self, length: int) -> None:
        self._disk.count("truncate")
        super().truncate(length)

    def sync(self) -> None:
        self._disk.count("sync")


class FailingDisk(Disk):
    """The operating system's files, of which call number ``failing`` raises ``OSError(number)``; syncs are left out.

    Attributes:
        calls: how many there were.
        failed: which kind of call failed; empty when none did.
    """

    def __init__(self, failing: int, number: int) -> None:
        self.calls = 0
        self.failed = ""
        self._failing = failing
        self._number = number

    def count(self, kind: str, before: Callable[[], None] = lambda: None) -> None:
        """Count a call, and let it fail when it is its turn, after ``before`` did a part of it."""
        self.calls += 1
        if self.calls == self._failing:
            self.failed = kind
            before()
            raise OSError(self._number, os.strerror(self._number))

    def create(self, path: Path, length: int = 0) -> DiskFile:
        self.count("create")
        return FailingFile(super().create(path, length), self)

    def open(self, path: Path) -> DiskFile:
        self.count("open")
        return FailingFile(super().open(path), self)

    def rename(self, old: Path, new: Path) -> None:
        self.count("rename")
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        self.count("remove")
        super().remove(path)

    def remove_tree(self, path: Path) -> None:
        self.count("remove tree")
        super().remove_tree(path)

    def make_directory(self, path: Path) -> None:
        self.count("make directory")
        super().make_directory(path)

    def sync_directory(self, path: Path) -> None:
        self.count("sync directory")
