"""SQLite as the durable base of a ``BufferedKV``: one file, one table, one connection, one transaction per group of calls.

SQLite knows durable transactions and nothing between "not committed" and "on the disk". For such a database ``rmqstore.engine.kv.buffered``
gathers writes in memory and asks for a transaction when somebody waits for a sync. What is left to write is a ``Base``: read, scan,
commit, open again after a full disk, copy, close.

There is one connection, and its user holds ``_lock``. Reads wait for the commit under way, which is the price of a short adapter; writes
go to memory and do not wait.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock
from typing import Final

from rmqstore.engine.kv.base import Entry, take_page
from rmqstore.engine.kv.buffered import Base, BufferedKV
from rmqstore.engine.kv.directory import EngineHome, sync_path
from rmqstore.engine.kv.overlay import SpaceChange
from rmqstore.errors import CorruptStoreError, StoreClosedError, StoreError, StoreFullError, StoreLockedError, StorePathError

FILE: Final = "entries.sqlite"
"""The database; while it is open, or after a crash, ``entries.sqlite-wal`` beside it is part of it."""

WAL_BYTES: Final = 4 * 1024 * 1024
"""A commit that finds the write-ahead log longer than this moves it into the database first."""

# Blobs compare as bytes do, so the primary key is the order that the interface asks for; WITHOUT ROWID makes the table that index itself.
TABLE: Final = "CREATE TABLE entries(space INTEGER, key BLOB, value BLOB, PRIMARY KEY(space, key)) WITHOUT ROWID"
GET: Final = "SELECT value FROM entries WHERE space = ? AND key = ?"
SCAN: Final = "SELECT key, value FROM entries WHERE space = ? AND key >= ?"
PUT: Final = "REPLACE INTO entries VALUES(?, ?, ?)"
DELETE: Final = "DELETE FROM entries WHERE space = ? AND key = ?"
DELETE_RANGE: Final = "DELETE FROM entries WHERE space = ? AND key >= ? AND key < ?"

# ---------------------------------------------------------------- opening


def open_sqlite(directory: Path, spaces: int) -> BufferedKV:
    """Open the engine directory ``directory``, or make it, for so many spaces; see ``Engine.open`` for the errors.

    ``EngineHome`` locks the directory, refuses what another engine or version made, and makes a new database aside, so that a crash
    never leaves half of one under the name that is opened.
    """
    home = EngineHome(directory, "sqlite")
    home.open(create)
    try:
        return BufferedKV(SqliteBase(home), spaces)
    except BaseException:
        home.close()
        raise


def create(path: Path) -> None:
    """Make an empty database in the directory ``path``; the caller makes it durable."""
    file = path / FILE
    with translated_errors(file), closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute(TABLE)


def connect(file: Path) -> sqlite3.Connection:
    """Open the database at ``file``, which is there, with all that a durable store needs.

    - ``locking_mode=EXCLUSIVE``: SQLite keeps the index of its log in its own memory. In a shared file it would be one more thing to
      fail on a full disk. A process that opens the file meanwhile is refused.
    - ``journal_mode=WAL``, ``synchronous=FULL``: a commit appends its pages to the log and syncs the log, once. With ``NORMAL`` it would
      not be synced. In a rollback journal a commit ends when the journal's name is not in the directory, and only
      ``synchronous=EXTRA`` makes that durable, at four or five syncs a commit.
    - The name of the log is made durable here and not left to SQLite, which tries but ignores an error. The log then stays until the
      connection is closed.
    - ``wal_autocheckpoint=0``: SQLite ignores errors of a check point that it makes by itself; ``commit`` does it where they are seen.
    - The check point at once: what a killed owner failed to sync may be in the page cache and not on the disk. Nothing could tell, and
      commits behind it would be lost with it. A check point writes the pages again and syncs those.
    """
    if not file.is_file():
        # SQLite would make a new database.
        raise CorruptStoreError(f"{file} is missing", file=str(file))
    with translated_errors(file):
        connection = sqlite3.connect(file, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
                raise StoreError(f"{file}: this SQLite cannot keep a write-ahead log here")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute(GET, (0, b"")).fetchone()  # fails without the table
            sync_path(file.parent)
            check_point(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def check_point(connection: sqlite3.Connection) -> None:
    """Move the log into the database, durably, and empty it."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


# ---------------------------------------------------------------- the base


class SqliteBase(Base):
    """One SQLite database.

    Args:
        home: the engine directory, opened; let go when the base is closed.
    """

    def __init__(self, home: EngineHome) -> None:
        self.name = str(home.directory)
        self._home = home
        self._file = home.database / FILE
        self._log = home.database / f"{FILE}-wal"
        self._lock = Lock()
        self._connection = connect(self._file)
        _open_bases.add(self)

    def get(self, space: int, key: bytes) -> bytes | None:
        with self._lock, translated_errors(self._file):
            row = self._connection.execute(GET, (space, key)).fetchone()
        return None if row is None else row[0]

    def scan(self, space: int, start: bytes, stop: bytes | None, limit: int, *, reverse: bool, page_bytes: int) -> list[Entry]:
        """Return a page; ``take_page`` ends it by its bytes, which SQL cannot."""
        query, bounds = (SCAN, [start]) if stop is None else (f"{SCAN} AND key < ?", [start, stop])
        query += f" ORDER BY key {'DESC' if reverse else 'ASC'} LIMIT ?"
        with self._lock, translated_errors(self._file), closing(self._connection.execute(query, (space, *bounds, limit))) as rows:
            return take_page(rows, limit, page_bytes)

    def commit(self, changes: Sequence[SpaceChange]) -> None:
        with self._lock, translated_errors(self._file):
            connection = self._connection
            # Before the transaction: a call whose transaction is done must not fail for lack of room.
            if self._log_is_long():
                check_point(connection)
            connection.execute("BEGIN IMMEDIATE")
            try:
                for each in changes:
                    connection.executemany(DELETE_RANGE, [(each.space, start, stop) for start, stop in each.ranges])
                    connection.executemany(DELETE, [(each.space, key) for key in each.deletes])
                    connection.executemany(PUT, [(each.space, key, value) for key, value in each.puts])
                connection.execute("COMMIT")
            finally:
                # SQLite has rolled back after some errors, and not after others.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _log_is_long(self) -> bool:
        try:
            return self._log.stat().st_size > WAL_BYTES
        except FileNotFoundError:
            return True  # somebody renamed the directory, which an open file survives

    def reopen(self) -> None:
        with self._lock:
            self._connection.close()
            self._connection = connect(self._file)

    def snapshot(self, path: Path) -> None:
        """Copy page by page; ``EngineHome`` makes the copy durable and gives it its name. Other calls wait meanwhile."""

        def copy(new: Path) -> None:
            new.mkdir()
            with self._lock, translated_errors(new / FILE), closing(sqlite3.connect(new / FILE)) as target:
                self._connection.backup(target)

        self._home.snapshot(path, copy)

    def close(self) -> None:
        with self._lock:
            # Moves the log into the database as well; if that fails the log stays, and the next open does it. SQLite syncs here even after
            # a sync that failed. Nothing rests on the answer: what counts of the log is written again, and the failed commit is not in it.
            self._connection.close()
        self._home.close()


# ---------------------------------------------------------------- errors


@contextmanager
def translated_errors(file: Path) -> Iterator[None]:
    """Raise what SQLite says of ``file`` in the store's terms.

    What is neither lack of room nor damage, an I/O error above all, stays a plain ``StoreError``. ``BufferedKV`` poisons the store when a
    commit ends like that: what is durable is unknown then, and a second sync would prove nothing.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise _translated(error, file) from error
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{file}: {error.strerror}") from error


def _translated(error: sqlite3.Error, file: Path) -> Exception:
    text = f"{file}: {error}"
    if isinstance(error, sqlite3.ProgrammingError):
        return StoreClosedError(text)  # closed by another thread during the call
    # The low byte is the kind of error, the rest says more.
    kind = error.sqlite_errorcode & 0xFF
    if kind == sqlite3.SQLITE_FULL:
        return StoreFullError(text)
    # SQLITE_ERROR blames the statement, and the statements here are right: so it is the table that is missing or another one.
    if kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
        return CorruptStoreError(f"{file} is damaged: {error}", file=str(file))
    if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreLockedError(f"{file} is open elsewhere: {error}")
    if kind in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return StorePathError(text)
    return StoreError(f"{text} ({error.sqlite_errorname})")


# ---------------------------------------------------------------- forks

_open_bases: weakref.WeakSet[SqliteBase] = weakref.WeakSet()


def _keep_connections_in_forked_child() -> None:
    # A connection that is freed in the child would move the parent's log into the database and delete it, since the child's copy believes
    # that it holds the lock. One reference too many keeps it from being freed, even at the end of the process.
    for base in list(_open_bases):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(base._connection))


os.register_at_fork(after_in_child=_keep_connections_in_forked_child)
