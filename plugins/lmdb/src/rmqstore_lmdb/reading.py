"""Reading an LMDB environment that somebody else may have open and change: one read transaction, held as long as the view lasts.

Another process sees the view in LMDB's reader table, and keeps the pages that it shows. So the owner's file grows while a reader stays on
one view and the owner goes on writing; :meth:`LmdbFixedView.renew` lets the old pages go.

Within one process LMDB allows one open environment for a path. So all views of a path share the owner's, or one that was opened for
reading when there is no owner. What would end their transactions (the owner opens, closes, or moves its map) first gives each view a
compact copy of its state in a temporary directory; that is rare, and costs as much as the state is large.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Final

import lmdb

from rmqstore.engine.kv.base import Entry
from rmqstore.engine.kv.directory import EngineHome
from rmqstore.engine.kv.snapshot_view import FixedView, ViewKV
from rmqstore.errors import StoreError, StoreForkedError, StorePathError
from rmqstore_lmdb.memory import stays_in_memory
from rmqstore_lmdb.pages import page_of, size_of, translated

if TYPE_CHECKING:
    from lmdb import _Database

_MAP_BYTES: Final = 1 << 30


class Environment:
    """An environment of this process, shared by the views of one path; ``is_ours`` when no owner opened it."""

    def __init__(self, env: lmdb.Environment, dbs: Sequence[_Database], *, is_ours: bool) -> None:
        self.env = env
        self.dbs = dbs
        self.is_ours = is_ours
        self.views: weakref.WeakSet[LmdbFixedView] = weakref.WeakSet()


_lock = RLock()
Key = tuple[int, int]
"""What tells a directory from all others, also after it was moved: its device and inode."""

_environments: dict[Key, Environment] = {}
_inherited: set[Key] = set()
"""What the parent of this process had open when it was forked. LMDB opens no directory twice in a process, and takes it for open here."""


def key_of(path: Path) -> Key:
    """Return the key of an environment's directory."""
    found = path.stat()
    return found.st_dev, found.st_ino


def check_not_inherited(key: Key, path: Path) -> None:
    """Refuse an environment that the parent of this process had open; :class:`StoreForkedError`."""
    if key in _inherited:
        raise StoreForkedError(
            f"{path}: this process was forked from one that had this store open, and LMDB opens none twice in a process; start it by "
            "spawn or forkserver, or fork before the store is opened"
        )


@contextmanager
def owned(key: Key) -> Iterator[None]:
    """Within this block the owner may open, close or move the environment; views on it get copies of their own before."""
    with _lock:
        shared = _environments.get(key)
        if shared is not None:
            for view in list(shared.views):
                view.settle_on_a_copy()
            if shared.is_ours:
                shared.env.close()
            del _environments[key]  # the last, so that what was interrupted is done again
        yield


def announce(key: Key, env: lmdb.Environment, dbs: Sequence[_Database]) -> None:
    """Let views of the same directory use the owner's environment."""
    with _lock:
        _environments[key] = Environment(env, dbs, is_ours=False)


def view_lmdb(directory: Path, version: int, spaces: Sequence[str]) -> ViewKV:
    """Open the engine directory ``directory`` for reading; see ``Engine.open_for_reading`` for the errors."""
    return ViewKV(LmdbFixedView(EngineHome(directory, "lmdb", version), spaces))


class LmdbFixedView(FixedView):
    """One state of the environment."""

    def __init__(self, home: EngineHome, spaces: Sequence[str]) -> None:
        self.name = str(home.directory)
        self._home = home
        self._spaces = tuple(spaces)
        self._path = home.existing()
        self._key = key_of(self._path)
        self._lock = RLock()
        self._env: lmdb.Environment
        self._dbs: Sequence[_Database]
        self._copy: lmdb.Environment | None = None
        self._shared: Environment | None = None
        self._txn: lmdb.Transaction[bytes] | None = None
        self._lost: Exception | None = None
        self._attach()
        _views.add(self)

    # ------------------------------------------------------------ reads

    def get(self, space: int, key: bytes) -> bytes | None:
        with self._lock:
            try:
                return self._live().get(key, db=self._dbs[space])
            except lmdb.Error as error:
                raise translated(error, self._path) from error

    def scan(self, space: int, start: bytes, stop: bytes | None, limit: int, *, reverse: bool, page_bytes: int) -> list[Entry]:
        with self._lock:
            try:
                return page_of(self._live(), self._dbs[space], start, stop, limit, reverse=reverse, page_bytes=page_bytes)
            except lmdb.Error as error:
                raise translated(error, self._path) from error

    def _live(self) -> lmdb.Transaction[bytes]:
        if self._txn is None:
            raise StoreError(f"{self._path}: the view was lost, because there was no room for a copy of it; refresh it") from self._lost
        return self._txn

    # ------------------------------------------------------------ life cycle

    def _attach(self) -> None:
        """Take the newest state of the environment that this process has of the path, opened as needed."""
        with _lock:
            try:
                shared = _environments.get(self._key) or _environments.setdefault(self._key, self._opened())
                txn = self._begun(shared)
            except lmdb.Error as error:
                _close_unused(self._key)
                raise self._translated(error) from error
            with self._lock:
                self._let_go()
                shared.views.add(self)
                self._shared, self._env, self._dbs, self._txn = shared, shared.env, shared.dbs, txn

    def _opened(self) -> Environment:
        check_not_inherited(self._key, self._path)
        size = size_of(self._path / "data.mdb")
        env = lmdb.Environment(
            str(self._path),
            map_size=max(_MAP_BYTES, 2 * size),
            max_dbs=len(self._spaces),
            readonly=True,
            create=False,
            max_spare_txns=1,
            readahead=stays_in_memory(size),
        )
        try:
            dbs = [env.open_db(name.encode(), create=False) for name in self._spaces]
        except BaseException:
            env.close()
            raise
        return Environment(env, dbs, is_ours=True)

    def _begun(self, shared: Environment) -> lmdb.Transaction[bytes]:
        try:
            try:
                return shared.env.begin()
            except lmdb.ReadersFullError:
                # Those that were killed are out.
                shared.env.reader_check()
                return shared.env.begin()
        except lmdb.MapResizedError:
            # The owner's map grew beyond ours. A map is only moved when no transaction is on it.
            for view in list(shared.views):
                view.settle_on_a_copy()
            shared.env.set_mapsize(0)
            return shared.env.begin()

    def settle_on_a_copy(self) -> None:
        """Go on with the same state, in an environment of its own."""
        with self._lock:
            if self._txn is None or self._shared is None:
                return
            txn: lmdb.Transaction[bytes] | None = None
            dbs: Sequence[_Database] = ()
            try:
                # The map keeps the file when its name is gone.
                with tempfile.TemporaryDirectory(prefix="rmqstore-view-") as folder:
                    self._env.copy(folder, compact=True, txn=self._txn)
                    size = Path(folder, "data.mdb").stat().st_size
                    self._copy = lmdb.Environment(
                        folder, map_size=max(_MAP_BYTES, size), max_dbs=len(self._spaces), readonly=True, lock=False, create=False
                    )
                    dbs = [self._copy.open_db(name.encode(), create=False) for name in self._spaces]
                    txn = self._copy.begin()
            except (lmdb.Error, OSError) as error:
                self._lost = error
            self._txn.abort()
            self._shared.views.discard(self)
            self._shared, self._txn = None, txn
            if txn is not None and self._copy is not None:
                self._env, self._dbs = self._copy, dbs

    def renew(self) -> None:
        self._attach()

    def close(self) -> None:
        with _lock, self._lock:
            self._let_go()
            _close_unused(self._key)

    def _let_go(self) -> None:
        """End the transaction, and the copy if there is one."""
        if self._txn is not None:
            self._txn.abort()
            self._txn = None
        if self._shared is not None:
            self._shared.views.discard(self)
            self._shared = None
        if self._copy is not None:
            self._copy.close()
            self._copy = None
        self._lost = None

    def _translated(self, error: lmdb.Error) -> Exception:
        lock = self._path / "lock.mdb"
        if not os.access(lock, os.R_OK | os.W_OK):
            return StorePathError(f"{lock}: a reader must be allowed to write this file, where the owner sees who reads; {error}")
        return translated(error, self._path)


def _close_unused(key: Key) -> None:
    """Close an environment that was opened for reading once nothing reads it; call it with the lock held."""
    shared = _environments.get(key)
    if shared is not None and shared.is_ours and not shared.views:
        shared.env.close()
        del _environments[key]


_views: weakref.WeakSet[LmdbFixedView] = weakref.WeakSet()


def _abandon_in_forked_child() -> None:
    global _lock
    # As for the owner's environments: a transaction that is freed in the child would give back a reader slot that the parent uses.
    for view in list(_views):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(view))
    _inherited.update(_environments)
    _environments.clear()
    # A thread of the parent may have held it.
    _lock = RLock()


os.register_at_fork(after_in_child=_abandon_in_forked_child)
