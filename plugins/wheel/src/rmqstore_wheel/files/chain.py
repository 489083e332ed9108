"""``FileChain``: files of one length, each named by the offset at which it starts, as one run of bytes (``MappedFileQueue``)."""

from __future__ import annotations

import errno
import os
from bisect import insort
from pathlib import Path
from typing import Final

from rmqstore.errors import NO_ROOM, CorruptStoreError
from rmqstore_wheel.files.disk import Disk, DiskFile, share_of_descriptors
from rmqstore_wheel.formats.binary_columns import Bytes
from rmqstore_wheel.formats.commit_log import file_name, start_offset


class FailedSyncError(OSError):
    """A sync failed. The system tells of that once: another one would say that all is well, so nobody may try again (F2)."""


_FILL_PARTS: Final = 64
"""A new chain sets this part of its usual room aside first, and then twice as much each time, so that many small ones take little."""

_LARGE: Final = 256 * 1024
"""Room for so much at once is set aside without zeros. A small write that fills zeros needs the shorter sync, as the system has nothing to
note of where the bytes are; of a large one, all would be written twice."""

_SHARE_OF_DESCRIPTORS: Final = 32
"""A chain keeps as many files open as this part of what the process may open; each takes two descriptors once it is mapped."""


class FileChain:
    """The files of one log. A file grows as space is set aside ahead of the writes, and has its full length once the next one begins.

    Names change one at a time, each durably before the next: any two that are not durable might be kept and lost so that a gap is left.

    One thread at a time writes, and another one may sync meanwhile. What a sync has to take in is noted behind each change, so that a sync
    which begins within the change leaves the note to the next one; and before a write as well, for one that is cut short.

    Args:
        directory: where the files are; made as needed.
        file_bytes: length of every file.
        fill_bytes: how much space is set aside at a time, at most; a small log begins with less.
        made_above: in how many of the directories above a name is new when this one is made: they are made with it, but for the last.

    Attributes:
        most_open: so many files stay open, and besides those that are written to.
        holds_back: a descriptor is held back from the making of a file to the sync of its name, where one that finds none would poison.
    """

    def __init__(self, disk: Disk, directory: Path, file_bytes: int, fill_bytes: int, made_above: int = 0) -> None:
        self.directory = directory
        self.file_bytes = file_bytes
        self._disk = disk
        self._fill_bytes = min(fill_bytes, file_bytes)
        self._next_fill = max(self._fill_bytes // _FILL_PARTS, 1)
        self._made_above = made_above
        self.most_open = share_of_descriptors(_SHARE_OF_DESCRIPTORS)
        # The one that was opened first comes first.
        self._open: dict[int, DiskFile] = {}
        self._unsynced: set[int] = set()
        self.starts = self.listed()
        # Those that a killed owner made may not be durable yet.
        self._names = int(bool(self.starts))
        self._durable_names = 0
        self.holds_back = False
        self._held_back: DiskFile | None = None
        self._filled = self.starts[0] if self.starts else 0

    def listed(self) -> list[int]:
        """Return where the files start that are there now."""
        try:
            names = [entry.name for entry in self.directory.iterdir() if len(entry.name) == 20 and entry.name.isdecimal()]
        except FileNotFoundError:
            return []
        return sorted(map(start_offset, names))

    @property
    def first(self) -> int:
        """The offset at which the first file starts."""
        return self.starts[0] if self.starts else 0

    @property
    def end(self) -> int:
        """The offset at which the last file ends."""
        return self.starts[-1] + self.file_bytes if self.starts else 0

    def path_of(self, offset: int) -> Path:
        return self.directory / file_name(self._start_of(offset))

    def _start_of(self, offset: int) -> int:
        return offset // self.file_bytes * self.file_bytes

    def check(self) -> None:
        """Raise unless the files follow one another without a gap.

        Raises:
            CorruptStoreError: naming the missing file.
        """
        for at, start in enumerate(self.starts):
            expected = self.starts[0] + at * self.file_bytes
            if start != expected:
                path = self.directory / file_name(expected)
                raise CorruptStoreError(f"{path} is missing, {file_name(start)} is there", file=str(path), offset=expected)

    def file(self, start: int) -> DiskFile:
        """Return the file that starts at ``start``, opened.

        Raises:
            CorruptStoreError: it was removed.
            StoreFullError: the process may open no more.
        """
        file = self._open.get(start)
        if file is None:
            path = self.directory / file_name(start)
            try:
                file = self._kept(start, self._disk.open(path))
            except FileNotFoundError:
                raise CorruptStoreError(f"{path} is missing", file=str(path), offset=start) from None
        return file

    def _kept(self, start: int, file: DiskFile) -> DiskFile:
        self._open[start] = file
        if len(self._open) > self.most_open:
            self._let_go()
        return file

    def _let_go(self) -> None:
        """Let go of files beyond those that stay open; who works with one of them, as a sync in another thread, still holds it."""
        if self._disk.may_reopen:
            for start in list(self._open)[: -self.most_open]:
                # A sync hears only of what failed to be written since its file was opened; and the last one but one gets its end written
                # when the last is there.
                if start not in self._unsynced and start not in self.starts[-2:]:
                    self._open.pop(start, None)

    def has(self, start: int) -> bool:
        return start in self._open or start in self.starts

    def holds(self, offset: int, stop: int) -> bool:
        """Say whether the files from ``offset`` to ``stop`` are there, each as long as that asks for."""
        start = self._start_of(offset)
        while start < stop:
            if start not in self.starts or self.file(start).length < min(stop - start, self.file_bytes):
                return False
            start += self.file_bytes
        return True

    # ------------------------------------------------------------ writing

    def set_filled(self, offset: int) -> None:
        """Say up to where space is surely set aside."""
        self._filled = offset

    def reserve(self, upto: int) -> None:
        """See to it that writes up to ``upto`` find room; files are made as needed.

        Raises:
            OSError: no room; what was set aside so far stays.
        """
        while self._filled < upto:
            start = self._start_of(self._filled)
            if not self.has(start):
                self._make(start)
            file, is_large = self.file(start), upto - self._filled >= _LARGE
            stop = min(max(upto, self._filled + (0 if is_large else self._next_fill)), start + self.file_bytes)
            (file.set_aside if is_large else file.zero_fill)(self._filled - start, stop - self._filled)
            self._unsynced.add(start)
            self._filled = stop
            self._next_fill = min(2 * self._next_fill, self._fill_bytes)

    def reserve_in(self, start: int, upto: int) -> None:
        """As :meth:`reserve`, in the file that starts at ``start``; files before it may be missing."""
        last = self._start_of(self._filled)
        if start < last:
            if not self.has(start):
                self._make(start)
                try:
                    self.file(start).zero_fill(0, self.file_bytes)
                except BaseException:
                    self._forget(start)  # else a later call would take it for whole
                    raise
                self._unsynced.add(start)
            return
        if start > last:
            if self._filled > last:
                self.reserve(last + self.file_bytes)
            self._filled = start
        self.reserve(upto)

    def _make(self, start: int) -> None:
        self._sync_names()
        if self.holds_back:
            self._held_back = self._disk.open(Path(os.devnull))
        if not self.starts:
            for directory in reversed([self.directory, *self.directory.parents[: max(self._made_above - 1, 0)]]):
                self._disk.make_directory(directory)
        if self.starts and start > self.starts[-1]:
            # RocketMQ wants every file but the last in its full length.
            self._complete(self.starts[-1])
        file = self._disk.create(self.directory / file_name(start))
        insort(self.starts, start)
        self._kept(start, file)
        self._names += 1

    def _complete(self, start: int) -> None:
        file = self.file(start)
        if file.length < self.file_bytes:
            file.truncate(self.file_bytes)
            self._unsynced.add(start)

    def write_at(self, offset: int, data: Bytes, behind: int = 0) -> None:
        """Write within one file, and set space aside before for that, and for so many bytes ``behind`` it in the same file.

        Raises:
            OSError: no room, and nothing was written; or the disk failed.
        """
        start = offset // self.file_bytes * self.file_bytes
        file, upto = self._open.get(start), offset + len(data) + behind
        if file is None or upto > self._filled:
            self.reserve_in(start, upto)
            file = self.file(start)
        self._unsynced.add(start)
        file.write_at(offset - start, data)
        self._unsynced.add(start)  # again: a sync may have begun before the bytes were there

    def clear_from(self, offset: int) -> None:
        """Let everything from ``offset`` on read as zeros, or end there."""
        self._filled = max(offset, self.first)
        for start in [start for start in self.starts if start + self.file_bytes > offset]:
            begin = max(offset - start, 0)
            if self.file(start).length < begin:
                continue
            filled = self.file(start).zeros_from(begin)
            if filled is None:
                self.file(start).truncate(begin)
                self._unsynced.add(start)
            elif begin == offset - start:
                self._filled = start + filled

    def mark_unsynced(self, offset: int, stop: int) -> None:
        """Let the next sync take in the files from ``offset`` to ``stop``: an owner that was killed may have written them."""
        self._unsynced.update(start for start in self.starts if start < stop and start + self.file_bytes > offset)

    def sync(self) -> None:
        """Make everything that was written durable, the earlier files first."""
        for start in sorted(self._unsynced):
            try:
                # Before the sync: what is written meanwhile is for the next one.
                self._unsynced.discard(start)
                (self._open.get(start) or self.file(start)).sync()
            except BaseException as error:
                self._unsynced.add(start)
                if isinstance(error, OSError) and error.errno is not None:
                    raise FailedSyncError(errno.EIO, f"a sync failed: {error.strerror}") from error
                raise
        self._sync_names()
        if len(self._open) > self.most_open:
            self._let_go()

    def _sync_names(self) -> None:
        names = self._names
        if names > self._durable_names:
            self._held_back = None  # which lets go of it
            for directory in [self.directory, *self.directory.parents[: self._made_above]]:
                try:
                    self._disk.sync_directory(directory)
                except OSError as error:
                    if error.errno is None or error.errno in NO_ROOM:  # of a signal handler; or it could not be opened
                        raise
                    raise FailedSyncError(errno.EIO, f"a sync failed: {error.strerror}") from error
            self._durable_names = names

    # ------------------------------------------------------------ reading

    def view(self, start: int, upto: int | None = None) -> memoryview:
        """Return the content of the file that starts at ``start``; with ``upto``, an offset in it, it may end anywhere behind that."""
        return (self._open.get(start) or self.file(start)).view(upto)

    def read(self, offset: int, size: int) -> memoryview:
        """Return bytes that are in one file."""
        at = offset % self.file_bytes
        return (self._open.get(offset - at) or self.file(offset - at)).view(at + size)[at : at + size]

    # ------------------------------------------------------------ removing

    def drop_before(self, offset: int) -> None:
        """Remove the files that end at or before ``offset``."""
        self.drop_between(0, offset - self.file_bytes + 1)

    def drop_first(self) -> None:
        """Remove the first file, durably, so that no crash leaves a gap behind it."""
        self._forget(self.first)
        self._sync_names()

    def drop_from(self, offset: int) -> None:
        """Remove the files that start at or behind ``offset``, the last one first."""
        for start in [start for start in reversed(self.starts) if start >= offset]:
            self._forget(start)
        self._filled = min(self._filled, max(self.end, self.first))

    def drop_between(self, offset: int, stop: int) -> None:
        """Remove the files that start from ``offset`` on and before ``stop``."""
        for start in [start for start in self.starts if offset <= start < stop]:
            self._forget(start)

    def _forget(self, start: int) -> None:
        file = self._open.pop(start, None)
        if file is not None:
            file.close()
        self._unsynced.discard(start)
        self._sync_names()
        self._disk.remove(self.directory / file_name(start))
        self.starts.remove(start)
        self._names += 1

    def close(self) -> None:
        """Let go of the files; what was not synced stays so."""
        for file in self._open.values():
            file.close()
        self._open.clear()
        self._held_back = None
