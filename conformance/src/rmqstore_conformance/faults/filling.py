"""A disk that can be filled, and given room again: a small file system in memory. It needs the right to mount one."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class SmallDisk:
    """A small file system, and a file in it that takes what is left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = path / "store"
        self._filler = path / "filler"

    def fill(self) -> None:
        """Leave no byte free."""
        with open(self._filler, "ab", buffering=0) as file:
            found = os.statvfs(self.path)
            with suppress(OSError):  # others may take some of it meanwhile
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, found.f_bavail * found.f_frsize)
            for size in (1 << 20, 4096, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def leave(self, size: int) -> None:
        """Give so many bytes of the room back."""
        os.truncate(self._filler, self._filler.stat().st_size - size)

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk(path: Path, *, size_mib: int = 96) -> Iterator[SmallDisk]:
    """Mount a small file system at ``path``, which is made, within a ``with`` block.

    Raises:
        OSError: it cannot be mounted; the error says why.
    """
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(path)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        raise OSError(errno.EPERM, f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
