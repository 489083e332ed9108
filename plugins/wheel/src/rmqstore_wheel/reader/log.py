"""``ReadLog``: the commit log of another process, which may be writing to it at this moment; it is looked at and never cut.

Frames are looked for in a copy of what the log holds behind the tail, because the owner may cut off there what is not whole, and a map of
what is cut off cannot be read. What is before the tail, whole frames, stays as it is as long as the file is there, and is read from
maps of files that are opened when they are first seen: when the owner removes one, only its name goes.

A frame that is not whole ends what is seen. It may be one that is just being written, so damage is only what is still not whole after a
later frame was seen that says that it was on disk.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Never

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.files.chain import FileChain
from rmqstore_wheel.files.disk import Disk, DiskFile, room_to_read
from rmqstore_wheel.formats import commit_log as log
from rmqstore_wheel.log import frames
from rmqstore_wheel.log.commit_log import CommitLog, Frame
from rmqstore_wheel.reader.units import OutrunError

_FIRST_LOOK_BYTES: Final = 1024 * 1024
_LOOK_BYTES: Final = 64 * 1024 * 1024


class ReadChain(FileChain):
    """The files of a log that others make and remove."""

    def look(self, tail: int) -> None:
        """Open the files that came since the last look; those that end before ``tail`` are kept, also when their names are gone.

        Raises:
            CorruptStoreError: a file is missing.
            FileNotFoundError: a file was removed at this moment.
        """
        kept = [start for start in self.starts if start + self.file_bytes <= tail]
        for start in set(self._open) - set(kept):
            if not self._open[start].is_current:
                self._open.pop(start).close()
        self.starts = [*kept, *[start for start in self.listed() if start + self.file_bytes > tail]]
        self.check()
        for start in self.starts:
            self.file(start)


class ReadLog(CommitLog):
    """See the module docstring.

    Attributes:
        epoch: of the last frame that was seen.
    """

    chain: ReadChain

    def __init__(self, directory: Path, file_bytes: int = log.FILE_BYTES) -> None:
        super().__init__(ReadDisk(), directory, file_bytes)
        self.chain = ReadChain(ReadDisk(), directory, file_bytes, file_bytes)
        self.epoch = 0
        self._copies: dict[int, mmap.mmap] = {}
        self.look()

    def look(self, seal: bytes | None = None) -> None:
        """Take in the files that came since; see ``ReadChain.look``.

        Args:
            seal: what :meth:`last_seal` has to be still.

        Raises:
            OutrunError: the log is no continuation of what was seen.
        """
        self.chain.look(self.tail)
        if seal is not None and (self.tail < self.chain.first or self.last_seal() != seal):
            raise OutrunError(f"{self.chain.directory} no longer holds the call that ends at {self.tail}")
        self.tail = self.durable = max(self.tail, self.chain.first)

    def last_seal(self) -> bytes:
        """Return what ends the last frame that was seen, which says how long the frame is and what is in it."""
        size = min(frames.PROPERTY_BYTES, self.tail - self.chain.first)
        found = bytearray(size)
        if size:
            start = (self.tail - 1) // self.file_bytes * self.file_bytes
            size = self.chain.file(start).read_into(self.tail - size - start, memoryview(found))
        return bytes(found[:size])

    def recover(self, offset: int, epoch: int = 0, limit: int | None = None) -> Iterator[Frame]:
        """Yield the whole frames from ``offset`` on, as far as ``limit``; nothing is cut off."""
        at = self.tail = max(offset, self.chain.first)
        size = _FIRST_LOOK_BYTES
        suspect = -1
        try:
            while True:
                end = self._copy(at, at + size)
                begin = at
                for frame in super().recover(at, epoch):
                    if limit is not None and frame.end > limit:
                        self.tail = at
                        return
                    at, epoch = frame.end, frame.epoch
                    yield frame
                self.epoch = epoch
                if begin + size < end:
                    size = min(4 * size, max(_LOOK_BYTES, size)) if at > begin else 4 * size
                    continue
                try:
                    self._refuse_damage(epoch)
                    return
                except CorruptStoreError:
                    if suspect == at:
                        raise
                    suspect = at
        finally:
            self._copies.clear()

    def _copy(self, at: int, stop: int) -> int:
        """Copy what is between two offsets; returns where the log ends by the lengths of its files."""
        self._copies.clear()
        end = at
        for start in self.chain.starts:
            file = self.chain.file(start)
            length = file.length
            end = max(end, start + length)
            low, high = max(at - start, 0), min(stop - start, length)
            if low < high:
                copy = self._copies[start] = mmap.mmap(-1, length)
                file.read_into(low, memoryview(copy)[low:high])
        return end

    def _looked_at(self, file_start: int) -> memoryview:
        copy = self._copies.get(file_start)
        return memoryview(b"" if copy is None else copy)

    def _data_in(self, file_start: int, begin: int) -> Iterable[tuple[int, int]]:
        return ((begin, len(self._looked_at(file_start))),)

    def _cut(self, begin: int, epoch: int) -> None:
        """Leave what is there to its owner."""


class ReadFile(DiskFile):
    """A file that its owner may cut off at any time, so each look asks how long it is."""

    def view(self, upto: int | None = None) -> memoryview:
        return super().view()


class ReadDisk(Disk):
    """A disk of which files are opened for reading, and nothing that changes a file or a name gets through.

    What the engine removes or makes on its way is its own view of the caches only, so those calls do nothing. Writing to a file is refused
    by the operating system, because the descriptor does not allow it.
    """

    may_reopen = False

    def create(self, path: Path, length: int = 0) -> Never:
        """Refuse: a reader has no place for it."""
        raise PermissionError(f"{path} is open for reading")

    def open(self, path: Path) -> DiskFile:
        with room_to_read(path):
            return ReadFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def rename(self, old: Path, new: Path) -> Never:
        self.create(new)

    def remove(self, path: Path) -> None:
        """Do nothing."""

    def remove_tree(self, path: Path) -> None:
        """Do nothing."""

    def make_directory(self, path: Path) -> None:
        """Do nothing."""

    def sync_directory(self, path: Path) -> None:
        """Do nothing."""
