"""``EngineHome``: the directory of a key-ordered engine: locked, checked, and made in one step.

::

    <directory>/LOCK       flock()ed while open; LMDB itself does not keep a second process out
    <directory>/db/        the database, complete: it gets this name by a rename, after everything in it is durable
    <directory>/db/FORMAT  one line, "rmqstore <engine> <format version>"
    <directory>/db.new/    a creation that has not finished; starts afresh at the next open

Copies of its files keep holes as holes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from rmqstore.errors import NO_ROOM, FormatVersionError, StoreError, StoreFullError, StoreLockedError, StorePathError, system_error

_LOCK, _DATABASE, _NEW, _FORMAT = "LOCK", "db", "db.new", "FORMAT"


class EngineHome:
    """The directory of one open engine.

    Args:
        directory: made by the caller, empty the first time.
        engine: the engine's name.
        version: the format version that it writes, and the newest that it reads; oldest: the oldest that it reads.
    """

    def __init__(self, directory: Path, engine: str, version: int = 1, oldest: int = 1) -> None:
        self.directory = directory
        self.database = directory / _DATABASE
        self._engine = engine
        self._version = version
        self._oldest = oldest
        self._lock: FileLock | None = None

    def open(self, create: Callable[[Path], None]) -> Path:
        """Lock the directory and return its database's path, after ``create(path)`` made one if there was none.

        ``create`` gets a new empty directory elsewhere, and must have closed all files in it when it returns.

        Raises:
            StoreLockedError, StorePathError, StoreFullError
            FormatVersionError: made by another engine, or by a version of this one that is too new, or too old.
        """
        try:
            self._lock = FileLock(self.directory / _LOCK)
        except BlockingIOError as error:
            raise StoreLockedError(f"{self.directory} is open elsewhere, here or in another process; close it there first") from error
        except OSError as error:
            raise system_error(error, self.directory / _LOCK) from error
        try:
            if not self.database.exists():
                self._create(create)
            return self.existing()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise system_error(error, self.directory) from error
            raise

    def existing(self) -> Path:
        """Return the database's path, for reading: takes no lock and makes nothing.

        Raises:
            StorePathError: it cannot be read.
            FormatVersionError: made by another engine, or by a version of this one that is too new, or too old.
        """
        try:
            self._check()
        except OSError as error:
            raise system_error(error, self.directory) from error
        return self.database

    def close(self) -> None:
        """Let the lock go; idempotent."""
        if self._lock is not None:
            self._lock.release()

    def _create(self, create: Callable[[Path], None]) -> None:
        foreign = sorted({entry.name for entry in self.directory.iterdir()} - {_LOCK, _NEW})
        if foreign:
            raise FormatVersionError(f"{self.directory} holds {foreign[0]!r}, so it is not a directory of engine {self._engine!r}")
        new = self.directory / _NEW
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        create(new)
        self.stamp(new)
        new.rename(self.database)
        sync_path(self.directory)

    def stamp(self, database: Path) -> None:
        """Write the format file into a complete database and make the whole of it durable."""
        (database / _FORMAT).write_text(f"rmqstore {self._engine} {self._version}\n", encoding="ascii")
        sync_tree(database)

    def _check(self) -> None:
        file = self.database / _FORMAT
        try:
            words = file.read_text(encoding="ascii", errors="replace").split()
        except FileNotFoundError:
            raise FormatVersionError(f"{file} is missing, so this is not a directory of engine {self._engine!r}") from None
        if len(words) != 3 or words[0] != "rmqstore" or not words[2].isdecimal():
            raise FormatVersionError(f"{file} is not a format file of rmqstore: {' '.join(words)!r}")
        if words[1] != self._engine:
            raise FormatVersionError(f"{self.directory} was made by engine {words[1]!r}, not by {self._engine!r}")
        if not self._oldest <= int(words[2]) <= self._version:
            read = f"{self._oldest} to {self._version}" if self._oldest < self._version else f"{self._version}"
            raise FormatVersionError(
                f"{self.directory} has format version {words[2]} of engine {self._engine!r}; this release reads {read}"
            )

    def snapshot(self, path: Path, copy: Callable[[Path], None]) -> None:
        """Make the new directory ``path`` an engine directory, whose database ``copy(path)`` writes to a path that is not there yet.

        Raises:
            StorePathError: ``path`` is there already, or cannot be made.
            StoreFullError: no room; nothing of the copy stays.
        """
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise StorePathError(f"{path}: a snapshot needs a new directory: {error.strerror}") from error
        try:
            new = path / _NEW
            copy(new)
            self.stamp(new)
            new.rename(path / _DATABASE)
            sync_path(path)
            sync_path(path.parent)
        except BaseException as error:
            shutil.rmtree(path, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in NO_ROOM and not isinstance(error, StoreError):
                raise StoreFullError(f"{path}: no room for the snapshot") from error
            raise


def sync_path(path: Path) -> None:
    """Make a file, or the names in a directory, durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_tree(directory: Path) -> None:
    """Make a directory with all that is in it durable."""
    for folder, _, files in os.walk(directory, topdown=False):
        for name in files:
            sync_path(Path(folder, name))
        sync_path(Path(folder))


class FileLock:
    """A file that is held with flock from now on, made as needed.

    Raises:
        BlockingIOError: somebody else holds it.
    """

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        _locks.add(self)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            self.forget()
            raise

    def release(self) -> None:
        """Let it go; idempotent."""
        if self.fd >= 0:
            # A forked child may hold a copy of the descriptor, so closing ours alone could leave the lock in place.
            fcntl.flock(self.fd, fcntl.LOCK_UN)
            self.forget()

    def forget(self) -> None:
        """Close the file, and leave the lock to whom else has it open."""
        _locks.discard(self)
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


_locks: set[FileLock] = set()
"""Those that are held; also of stores that were dropped without a close."""


def _forget_locks_in_forked_child() -> None:
    # The lock belongs to the open file that parent and child share: while the child keeps it open, a dead parent's lock stays.
    for lock in list(_locks):
        lock.forget()


os.register_at_fork(after_in_child=_forget_locks_in_forked_child)

_PIECE_BYTES: Final = 8 * 1024 * 1024
"""Between two pieces other threads take the interpreter for some ms, so many small ones would take far longer than the disk."""


def copy_tree(source: Path, copy: Path, *, without: Collection[str] = ()) -> None:
    """Copy a directory into ``copy``, made as needed; names in it itself, not below, are left out that are ``without``.

    Unlike ``shutil.copytree`` it ends at the first error, and that error says what went wrong.
    """
    copy.mkdir(parents=True, exist_ok=True)
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.name in without:
                continue
            if entry.is_dir():
                copy_tree(source / entry.name, copy / entry.name)
            else:
                copy_file(entry.path, copy / entry.name)


def copy_file(source: str | Path, copy: str | Path, begin: int = 0, stop: int | None = None) -> str | Path:
    """Copy the content of a file, holes left out; returns ``copy``.

    Args:
        begin, stop: what of it is copied, None for as far as it goes. What of the copy is before stays, and it ends there.
    """
    with open(source, "rb", buffering=0) as reader, open(copy, "r+b" if begin else "wb", buffering=0) as writer:
        length = os.fstat(reader.fileno()).st_size
        if stop is not None:
            length = min(length, stop)
        offset = begin
        while offset < length:
            try:
                offset = os.lseek(reader.fileno(), offset, os.SEEK_DATA)
            except OSError:
                break
            end = min(os.lseek(reader.fileno(), offset, os.SEEK_HOLE), length)
            while offset < end and (piece := os.pread(reader.fileno(), min(end - offset, _PIECE_BYTES), offset)):
                offset += os.pwrite(writer.fileno(), piece, offset)
        os.ftruncate(writer.fileno(), length)
    return copy
