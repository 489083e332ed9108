"""The disk of somebody who only reads: files are opened for reading, and nothing that changes a file or a name gets through.

What the engine removes or makes on its way is its own view of the caches only, so those calls do nothing. Writing to a file is refused by
the operating system, because the descriptor does not allow it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Never

from rmqstore_wheel.files.disk import Disk, DiskFile


class ReadFile(DiskFile):
    """A file that its owner may cut off at any time, so each look asks how long it is."""

    def view(self, upto: int | None = None) -> memoryview:
        return super().view()


class ReadDisk(Disk):
    """See the module docstring."""

    def create(self, path: Path, length: int = 0) -> Never:
        """Refuse: a reader has no place for it."""
        raise PermissionError(f"{path} is open for reading")

    def open(self, path: Path) -> DiskFile:
        return ReadFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def rename(self, old: Path, new: Path) -> Never:
        """Refuse, as :meth:`create` does."""
        self.create(new)

    def remove(self, path: Path) -> None:
        """Do nothing."""

    def remove_tree(self, path: Path) -> None:
        """Do nothing."""

    def make_directory(self, path: Path) -> None:
        """Do nothing."""

    def sync_directory(self, path: Path) -> None:
        """Do nothing."""
