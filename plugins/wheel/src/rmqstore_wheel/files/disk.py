"""The seam between the engine and the disk: everything that the engine ever does to its files goes through here.

Writes are positioned writes into space that was set aside before, so that only :meth:`DiskFile.zero_fill` and :meth:`DiskFile.set_aside`
can find no room and make a file longer; reads are maps of whole files. Tests put a :class:`Disk` of their own in its place, which refuses
the n-th call.

What a crash leaves, as the engine counts on it: of a file, all that was written before its last :meth:`DiskFile.sync`, and any part of what
was written since; of a directory, all names of before its last :meth:`Disk.sync_directory`, and any of the changes since, a rename whole.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from rmqstore.errors import NO_ROOM, StoreFullError
from rmqstore_wheel.formats.binary_columns import Bytes, Ints

_PIECE_BYTES: Final = 1024 * 1024
"""So much goes to the system at a time: larger writes cost more a byte, as they ask for larger pages, and no signal is handled within."""

_ZEROS: Final = bytes(_PIECE_BYTES)


class DiskFile:
    """One open file."""

    _fd = -1  # where a signal handler ends the constructor

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._map: mmap.mmap | None = None

    @property
    def length(self) -> int:
        """Bytes of the file, holes included."""
        return os.fstat(self._fd).st_size

    @property
    def filled(self) -> int:
        """Up to where space is set aside from the start on, without a gap."""
        return os.lseek(self._fd, 0, os.SEEK_HOLE) if self.length else 0

    @property
    def is_current(self) -> bool:
        """Whether its name still leads to this file."""
        try:
            return os.path.samestat(os.fstat(self._fd), self.path.stat())
        except FileNotFoundError:
            return False

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill ``buffer`` with a copy of what is at ``offset``; returns how much there was before the file ended."""
        done = 0
        while done < len(buffer) and (count := os.preadv(self._fd, [buffer[done:]], offset + done)):
            done += count
        return done

    def write_at(self, offset: int, data: Bytes) -> None:
        """Write all of ``data``; raises ``OSError`` when that fails, and then any part of it may have been written."""
        written = os.pwrite(self._fd, data, offset) if len(data) <= _PIECE_BYTES else 0
        while written < len(data):
            data, offset = memoryview(data)[written:], offset + written
            written = os.pwrite(self._fd, data[:_PIECE_BYTES], offset)

    def zero_fill(self, offset: int, length: int) -> None:
        """Write zeros, so that the disk has set room aside and later writes there need none."""
        while length > 0:
            step = min(length, len(_ZEROS))
            self.write_at(offset, memoryview(_ZEROS)[:step])
            offset, length = offset + step, length - step

    def set_aside(self, offset: int, length: int) -> None:
        """Have the disk set room aside, which reads as zeros, without a write; by :meth:`zero_fill` where it cannot do that."""
        while length > 0:
            step = min(length, _PIECE_BYTES)
            try:
                os.posix_fallocate(self._fd, offset, step)
            except OSError as error:
                if error.errno in NO_ROOM or error.errno == errno.EIO:
                    raise
                self.zero_fill(offset, step)
            offset, length = offset + step, length - step

    def truncate(self, length: int) -> None:
        """Give the file this length; what is new is a hole, which reads as zeros."""
        self._map = None
        os.ftruncate(self._fd, length)

    def data_from(self, offset: int) -> Iterator[tuple[int, int]]:
        """Yield what is no hole from ``offset`` on: from where to where. A hole that is read through a view may take room, as on tmpfs."""
        length = self.length
        while offset < length:
            try:
                start = os.lseek(self._fd, offset, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:  # behind the last data
                    raise
                return
            offset = os.lseek(self._fd, start, os.SEEK_HOLE)
            yield start, offset

    def zeros_from(self, offset: int) -> int | None:
        """Return up to where space is set aside from ``offset`` on without a gap; None when something else than zeros is behind it."""
        filled, read = offset, memoryview(bytearray(len(_ZEROS)))  # no map, which takes a descriptor
        for start, stop in self.data_from(offset):
            for at in range(start, stop, len(_ZEROS)):
                size = self.read_into(at, read[: min(len(_ZEROS), stop - at)])
                if read[:size] != _ZEROS[:size]:
                    return None
            if start <= filled:
                filled = stop
        return filled

    def sync(self) -> None:
        """Return when all that was written is durable."""
        os.fdatasync(self._fd)

    def lock(self) -> bool:
        """Keep other processes from locking the file until it is closed, as Java's ``FileChannel.tryLock`` does; False when one has.

        Any close of the same file by this process lets the lock go.
        """
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        return True

    def view(self, upto: int | None = None) -> memoryview:
        """Return the content, which follows later writes; valid as long as it is held, also after the file is closed or removed.

        Args:
            upto: as much as is needed: the view may end anywhere behind it. The system finds each page again once the file is mapped again,
                so a file that grows is not mapped again for bytes that were there before.
        """
        if self._map is None or (len(self._map) != self.length if upto is None else len(self._map) < upto):
            length = self.length
            if not length:
                return memoryview(b"")
            # The map before is not closed: a view that is still held keeps it, and it goes with the last of them.
            try:
                with room_to_read(self.path):  # a map has a descriptor of its own
                    self._map = mmap.mmap(self._fd, length, access=mmap.ACCESS_READ)
            except ValueError as error:  # its owner, where that is another process, has just cut it off
                raise OSError(errno.ESTALE, f"{self.path} was cut off meanwhile") from error
        return memoryview(self._map)

    @contextmanager
    def unordered(self) -> Iterator[None]:
        """Within this block, let the system read nothing around the pages of the view that are read."""
        mapped = self._map
        _advise(mapped, mmap.MADV_RANDOM)
        try:
            yield
        finally:
            _advise(mapped, mmap.MADV_NORMAL)

    def announce(self, parts: Sequence[tuple[int, int]]) -> None:
        """Have parts of the view read in the background, as far as they are not in memory.

        Args:
            parts: (first byte, byte behind the last) of each; it begins with a page.
        """
        if (mapped := self._map) is not None:
            length = len(mapped)
            with suppress(OSError):
                for begin, stop in parts:
                    if begin < length:
                        mapped.madvise(mmap.MADV_WILLNEED, begin, min(stop, length) - begin)

    def close(self) -> None:
        """Let go of the file; idempotent."""
        self._map = None
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


@contextmanager
def room_to_read(path: Path) -> Iterator[None]:
    """Turn what the system says when it opens, or maps, no file more into the error of a store: a read changes nothing (F3)."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise StoreFullError(f"{path} cannot be read ({error.strerror}); make room and try again") from error


def _advise(mapped: mmap.mmap | None, advice: int) -> None:
    """Tell the system how a map is going to be read; it may be out of memory for that, and then reads only take longer."""
    if mapped is not None:
        with suppress(OSError):
            mapped.madvise(advice)


class Left(NamedTuple):
    """How many bytes, and how many names of files, a file system has left for this process; many where it does not say."""

    bytes: int
    names: int


def share_of_descriptors(part: int) -> int:
    """Return a part of how many files the process may open."""
    return max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // part, 1)


class Disk:
    """The operating system's files.

    Attributes:
        may_reopen: a file that is let go can be opened again, as nobody else removes it.
    """

    may_reopen = True

    def left(self, path: Path) -> Left:
        """Return what is left where ``path`` is, by the file system's own account, which leaves quotas out."""
        try:
            disk = os.statvfs(path)
        except OSError:
            return Left(sys.maxsize, sys.maxsize)
        blocks, names = (disk.f_bfree, disk.f_ffree) if os.geteuid() == 0 else (disk.f_bavail, disk.f_favail)
        return Left(blocks * disk.f_frsize if disk.f_blocks else sys.maxsize, names if disk.f_files else sys.maxsize)

    def create(self, path: Path, length: int = 0) -> DiskFile:
        """Make a file of ``length`` bytes, a hole, in place of one that is there; its name is durable with the directory."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        file = DiskFile(path, fd)
        try:
            if length:
                file.truncate(length)
        except BaseException:
            file.close()
            raise
        return file

    def write_new(self, path: Path, length: int, pieces: Iterable[tuple[int, Bytes]]) -> None:
        """Make a file of ``length`` bytes that holds pieces at some places, durably but for its name."""
        with closing(self.create(path, length)) as file:
            for at, data in pieces:
                file.write_at(at, data)
            file.sync()

    def open(self, path: Path) -> DiskFile:
        """Open a file that is there.

        Raises:
            StoreFullError: the process may open no more.
        """
        with room_to_read(path):
            return DiskFile(path, os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def rename(self, old: Path, new: Path) -> None:
        """Give a file or directory another name, in place of what has that name."""
        old.rename(new)

    def remove(self, path: Path) -> None:
        path.unlink()

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with all that is in it; nothing happens when there is none."""
        if path.is_dir():
            shutil.rmtree(path)

    def make_directory(self, path: Path) -> None:
        """Make a directory, unless it is there. The one above is there: a store that was removed is not made again by its owner."""
        path.mkdir(exist_ok=True)

    def sync_directory(self, path: Path) -> None:
        """Return when the names in a directory are durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


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
        """Read within this block what is at some places of a file, in any order."""
        is_announced = self._announced_left > 0
        before = self._waits()
        with file.unordered():
            if is_announced:
                self._announced_left -= 1
                file.announce(stretches(starts, stops))
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
