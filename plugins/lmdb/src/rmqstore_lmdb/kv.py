"""LMDB as the durable base of a ``BufferedKV``: one environment, one named sub-database per space, one transaction per group of calls.

The environment runs in LMDB's default mode (``sync``, ``metasync``): a commit is durable when it returns.

The map is a piece of address space, not of memory or disk. It doubles when it is full: the transaction is aborted, the map is moved,
the transaction runs again. Readers whose transaction dies by the move read again; ``_moves`` tells them that it was the move.
Read transactions last for one get or one page, because an older one keeps every page freed since from being used again.
A snapshot is one more read transaction, LMDB's own, which cannot be begun again: while it lasts, the map is not moved, and the environment
stays open (``_copying``). Nothing waits for that but a commit that needs more room than the map has, and before a snapshot begins the map
is twice as long as the file: what is written meanwhile would have to be as much as what is copied.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, RLock
from typing import TYPE_CHECKING, Final

import lmdb

from rmqstore.engine.kv.base import Entry
from rmqstore.engine.kv.buffered import Base, BufferedKV
from rmqstore.engine.kv.directory import EngineHome
from rmqstore.engine.kv.overlay import SpaceChange
from rmqstore.errors import (
    NO_ROOM,
    CorruptStoreError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    system_error,
)
from rmqstore_lmdb import reading
from rmqstore_lmdb.memory import stays_in_memory
from rmqstore_lmdb.pages import PAGE_BYTES, page_of, size_of, translated

if TYPE_CHECKING:
    from lmdb import _Database

MAP_BYTES: Final = 1 << 30
"""The smallest map that an environment is opened with, unless the setting ``lmdb.map_bytes`` says otherwise."""

FORMAT_VERSION: Final = 1
MAX_READERS: Final = 510
_READER_BYTES: Final = 64
_LMDB_WRITE_BYTES: Final = 64 * PAGE_BYTES
AUTO: Final = "auto"


def open_lmdb(directory: Path, spaces: Sequence[str], *, map_bytes: int = MAP_BYTES, readahead: str = AUTO) -> BufferedKV:
    """Open the engine directory ``directory``, or make it; see ``Engine.open`` for the errors, :class:`LmdbBase` for the options."""
    home = EngineHome(directory, "lmdb", FORMAT_VERSION)

    def create(path: Path) -> None:
        LmdbBase(path, spaces, map_bytes).close()

    path = home.open(create)
    try:
        return BufferedKV(LmdbBase(path, spaces, map_bytes, home, readahead), len(spaces))
    except BaseException as error:
        home.close()
        if isinstance(error, OSError):
            raise system_error(error, directory) from error
        raise


class LmdbBase(Base):
    """One LMDB environment.

    Args:
        path: directory of the environment.
        spaces: names of the sub-databases, in index order.
        map_bytes: smallest size of the map.
        home: the engine directory, let go when the base is closed; None to make the environment.
        readahead: ``on``, ``off``, or ``auto``: whether the system reads around the pages that are wanted (``lmdb.readahead``).
    """

    def __init__(self, path: Path, spaces: Sequence[str], map_bytes: int, home: EngineHome | None = None, readahead: str = AUTO) -> None:
        self.name = str(path if home is None else home.directory)
        self._path = path
        self._place = str(path)
        self._file = path / "data.mdb"
        self._spaces = tuple(spaces)
        self._map_bytes = map_bytes
        self._home = home
        self._readahead = readahead
        self._moving = RLock()  # the frame of an exception that came from outside may hold it until that is forgotten
        self._writing = Lock()
        self._copying = RLock()
        self._moves = 0
        self._closed = False
        self._is_let_go = False
        self._is_open = False
        self._key = reading.key_of(path)
        reading.check_not_inherited(self._key, path)
        with reading.owned(self._key):
            self._open()
        _open_bases.add(self)

    def _open(self, *, grows: bool = True) -> None:
        making = self._home is None
        used_bytes = 0 if making else size_of(self._file)
        while grows and self._map_bytes < 2 * used_bytes:
            self._map_bytes *= 2
        try:
            self._reserve_lock_file()
            self._env = lmdb.Environment(
                str(self._path),
                map_size=self._map_bytes,
                max_dbs=len(self._spaces),
                max_readers=MAX_READERS,
                max_spare_txns=1,
                readahead=stays_in_memory(used_bytes) if self._readahead == AUTO else self._readahead == "on",
                create=making,
            )
            try:
                self._cover_last_page()
                self._dbs = [self._env.open_db(name.encode(), create=making) for name in self._spaces]
                reading.announce(self._key, self._env, self._dbs)
                self._is_open = True
            except BaseException:
                self._env.close()
                raise
        except lmdb.NotFoundError as error:
            raise CorruptStoreError(f"{self._file} lacks a sub-database: {error}", file=str(self._file), offset=0) from error
        except lmdb.Error as error:
            raise translated(error, self._path) from error
        except OSError as error:
            raise system_error(error, self._path) from error

    def _open_again(self, *, grows: bool = True) -> None:
        """Open another environment in place of this one. When that fails, the next commit or read tries it again."""
        self._is_open = False
        self._env.close()
        self._open(grows=grows)

    def _open_if_lost(self) -> None:
        with self._copying:
            self._check_open()
            if not self._is_open:
                with reading.owned(self._key), self._moved():
                    self._open_again(grows=False)

    def _reserve_lock_file(self) -> None:
        """Give LMDB's reader table its room on the disk. LMDB writes it through a map, where a full disk kills the process (SIGBUS)."""
        fd = os.open(self._path / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(fd, 0, _READER_BYTES * (MAX_READERS + 2))
        finally:
            os.close(fd)

    def _cover_last_page(self) -> None:
        """Extend a file that ends before its last page: reading the map behind the end of the file kills the process (SIGBUS).

        Pages that are missing because they were free when they were allocated last do not matter. Others read as zeros, which LMDB
        finds corrupted, or whose values fail the checksum of their reader.
        """
        needed_bytes = (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]
        if self._file.stat().st_size < needed_bytes:
            os.truncate(self._file, needed_bytes)

    # ------------------------------------------------------------ reads

    def get(self, space: int, key: bytes) -> bytes | None:
        moves = self._moves
        try:
            return self._env.begin(self._dbs[space]).get(key)
        except lmdb.Error as error:
            self._check_moved(moves, error)
        return self.get(space, key)

    def scan(self, space: int, start: bytes, stop: bytes | None, limit: int, *, reverse: bool, page_bytes: int) -> list[Entry]:
        while True:
            moves = self._moves
            try:
                txn = self._env.begin()
                try:
                    return page_of(txn, self._dbs[space], start, stop, limit, reverse=reverse, page_bytes=page_bytes)
                finally:
                    txn.abort()
            except lmdb.Error as error:
                self._check_moved(moves, error)

    def _check_moved(self, moves: int, error: lmdb.Error) -> None:
        """Return when ``error`` is over: the map was moved since ``moves``, or killed readers had all slots; raise it otherwise."""
        if not self._is_open:
            self._open_if_lost()
            return
        with self._moving:
            if self._closed:
                raise StoreClosedError(f"{self.name} is closed; open it again") from error
            if self._moves != moves:
                return
            if isinstance(error, lmdb.ReadersFullError):
                self._env.reader_check()
                with suppress(lmdb.Error):
                    self._env.begin().abort()
                    return
            raise translated(error, self._path) from error

    # ------------------------------------------------------------ writes

    def commit(self, changes: Sequence[SpaceChange]) -> None:
        with self._writing:
            while True:
                was_full = self._free_bytes() < _LMDB_WRITE_BYTES
                if not self._is_open:
                    self._open_if_lost()
                try:
                    # What a killed reader held can be used again.
                    self._env.reader_check()
                    with self._env.begin(write=True) as txn:
                        _apply(txn, self._dbs, changes)
                    return
                except lmdb.MapFullError:
                    self._grow()
                except lmdb.Error as error:
                    if os.strerror(errno.EIO) in str(error) and (was_full or self._disk_is_full()):
                        raise StoreFullError(f"{self._file}: {error}, and the disk is full, or the file") from error
                    raise translated(error, self._path) from error

    def _free_bytes(self) -> int:
        """Bytes that the disk has left for this process, by its own account, which leaves quotas out; many when it does not say.

        LMDB reports a write that the end of the disk cut short as EIO, like a broken disk. Asked before a commit, it tells the two apart
        even when somebody makes room before the failure is looked into. A disk that is full and breaks as well passes for full.
        """
        try:
            disk = os.statvfs(self._place)
        except OSError:
            return sys.maxsize
        return disk.f_frsize * (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail)

    def _disk_is_full(self) -> bool:
        """Tell by writing a file, for a disk that filled up during the commit, or a quota; and by the limit of the process for files.

        A write cut short leaves no room behind, so a disk that takes as much as LMDB writes at once was not full.
        """
        most_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if 0 <= most_bytes <= self._file.stat().st_size:
            return True
        probe = self._path / "probe"
        try:
            with probe.open("wb") as file:
                file.write(bytes(_LMDB_WRITE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            return error.errno in NO_ROOM
        finally:
            probe.unlink(missing_ok=True)
        return False

    def _grow(self) -> None:
        """Double the map. Readers under way lose their transaction and wait here for the new map."""
        with self._copying, reading.owned(self._key), self._moved():
            self._check_open()
            try:
                self._env.set_mapsize(2 * self._map_bytes)
            except lmdb.Error as error:
                # py-lmdb uses this environment no more; with the map as it was, another one goes on. A snapshot leaves calls let in.
                with suppress(StoreError):
                    self._open_again(grows=False)
                raise StoreFullError(f"{self._file}: no address space for a map of {2 * self._map_bytes} bytes: {error}") from error
            finally:
                if self._is_open:
                    reading.announce(self._key, self._env, self._dbs)
            self._map_bytes *= 2

    @contextmanager
    def _moved(self) -> Iterator[None]:
        """Count a move at its begin and at its end, so that a read that began in between knows of it too."""
        with self._moving:
            self._moves += 1
            try:
                yield
            finally:
                self._moves += 1

    # ------------------------------------------------------------ life cycle

    def reopen(self) -> None:
        # A commit that failed in the meta page leaves an environment that refuses every later one, so a new one it must be.
        with self._copying, reading.owned(self._key), self._moved():
            self._open_again()

    def snapshot(self, path: Path) -> None:
        assert self._home is not None

        def copy(new: Path) -> None:
            new.mkdir()
            with self._writing:
                if not self._is_open:
                    self._open_if_lost()
                if self._map_bytes < 2 * self._file.stat().st_size:
                    self._grow()
            with self._copying:
                self._check_open()
                try:
                    self._env.reader_check()
                    self._env.copy(str(new), compact=True)
                except lmdb.Error as error:
                    raise translated(error, self._path) from error

        self._home.snapshot(path, copy)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self.name} is closed; open it again")

    def close(self) -> None:
        if not self._is_let_go:  # behind the lock of the directory, the environment of this path may be somebody else's
            with self._copying, reading.owned(self._key), self._moving:
                self._closed = True
                self._env.close()
                self._is_let_go = True
        if self._home is not None:
            self._home.close()


def _apply(txn: lmdb.Transaction[bytes], dbs: Sequence[_Database], changes: Sequence[SpaceChange]) -> None:
    """Apply changes within ``txn``."""
    for change in changes:
        cursor = txn.cursor(dbs[change.space])
        for start, stop in change.ranges:
            cursor.set_range(start or b"\x00")
            key = cursor.key()
            while key and key < stop:
                cursor.delete()
                key = cursor.key()
        for key in change.deletes:
            if cursor.set_key(key):
                cursor.delete()
        if change.puts:
            # Past the last key, pages are filled to the brim instead of being split in half.
            past_the_end = not cursor.last() or cursor.key() < change.puts[0][0]
            cursor.putmulti(change.puts, dupdata=False, append=past_the_end)


_open_bases: weakref.WeakSet[LmdbBase] = weakref.WeakSet()


def _abandon_in_forked_child() -> None:
    # Freed in the child, an environment would give back reader slots in the table that it shares with the parent. One reference too many
    # prevents that.
    for base in list(_open_bases):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(base))


os.register_at_fork(after_in_child=_abandon_in_forked_child)
