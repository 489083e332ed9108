"""RocksDB as an ``OrderedKV``: one column family per space, one ``WriteBatch`` per write, always in rocksdict's raw mode.

``write`` appends to the write-ahead log (WAL) without a disk sync, so it survives the process; ``sync`` syncs the WAL.

**Recovery.** RocksDB can either stop at the first bad WAL record (point in time), or refuse to open unless the damage is a record cut
short at the end (tolerate corrupted tail records). The first drops acknowledged writes behind damage in the middle without a word; the
second refuses a tail that a power cut left garbled, although it was not promised. What tells the two apart is how far the WAL was
known to be synced. So the file ``SYNCED`` holds the sequence number that the last sync reached, written after each sync and itself not
synced: a lower bound of what was promised. The strict mode opens first. When it finds damage, a read-only point-in-time open tells how
much is left: at least the bound, then the rest was a torn tail and is cut; less, then it is ``CorruptStoreError``, and no file was changed.
Some torn tails keep RocksDB's reader busy for ever, and some holes it does not see; ``wal.trap`` finds them first, and the same bound
decides.

**Range deletes** are RocksDB's own, one tombstone each; ``gaps`` keeps scans from walking them.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from threading import Lock, RLock
from traceback import clear_frames
from typing import Any, Final

from rocksdict import ReadOptions

from rmqstore.engine.kv.base import PAGE_BYTES, Alone, WriteBatch, at_once
from rmqstore.engine.kv.directory import EngineHome, copy_tree
from rmqstore.engine.kv.group_commit import CommittedKV
from rmqstore.errors import CorruptStoreError, StoreError, StoreFullError, system_error
from rmqstore_rocksdb import wal
from rmqstore_rocksdb.database import Database
from rmqstore_rocksdb.gaps import Gaps
from rmqstore_rocksdb.scans import read_backward, read_forward
from rmqstore_rocksdb.stand_in import promise_broken, where_to_cut
from rmqstore_rocksdb.tuning import RocksDBTuning, translated

FORMAT_VERSION: Final = 1

_SYNCED: Final = "SYNCED"
_COPY: Final = "db.copy-"
"""How the name of a checkpoint begins that is only there to be copied; an open removes those of a snapshot that was killed."""
_MARK: Final = struct.Struct(">QI")
_TOMBSTONES: Final = 1024
"""So many range deletes of one space are flushed: in memory each makes the next scan a little slower."""

_UNSYNCED_LOG: Final = re.compile(r"While \w*sync\w*: .*\.log\b")
"""What RocksDB says when a sync of a log failed."""

_Entry = tuple[bytes, bytes]


def open_rocksdb(directory: Path, spaces: Sequence[str], tuning: RocksDBTuning) -> RocksDBKV:
    """Open the engine directory ``directory``, or make it; see ``Engine.open`` for the errors."""
    home = EngineHome(directory, "rocksdb", FORMAT_VERSION)

    def create(path: Path) -> None:
        Database(path, spaces, tuning).close()
        (path / _SYNCED).write_bytes(_packed_mark(0))

    home.open(create)
    try:
        for left in directory.glob(f"{_COPY}*"):
            shutil.rmtree(left, ignore_errors=True)
        return RocksDBKV(home, spaces, tuning)
    except BaseException as error:
        home.close()
        if isinstance(error, OSError):
            raise system_error(error, directory) from error
        raise


class RocksDBKV(CommittedKV):
    """See the module docstring; made by :func:`open_rocksdb`."""

    def __init__(self, home: EngineHome, spaces: Sequence[str], tuning: RocksDBTuning) -> None:
        super().__init__(str(home.directory), keeps_written=True)
        self._home = home
        self._spaces = tuple(spaces)
        self._tuning = tuning
        self._found_no_room = False
        self._gaps = Gaps(len(spaces))
        self._scanning = Lock()
        self._copying = RLock()
        self._mark_fd = os.open(home.database / _SYNCED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._db = self._open()
        except BaseException:
            os.close(self._mark_fd)
            raise
        self._sequence = self._db.sequence()

    def _open(self) -> Database:
        """Open the database, checking that nothing that a sync promised is gone."""
        path, promised = self._home.database, read_mark(self._home.database)
        if (found := where_to_cut(path, promised, self._spaces, self._tuning)) is not None:
            wal.cut(found)
        end_of_log = wal.end(path)
        try:
            database = Database(path, self._spaces, self._tuning)
        except CorruptStoreError as damage:
            rest = Database(path, self._spaces, self._tuning, strict=False, read_only=True)
            kept = rest.sequence()
            rest.close()
            if kept < promised:
                raise promise_broken(*wal.locate(path, kept)) from damage
            database = Database(path, self._spaces, self._tuning, strict=False)
        kept = database.sequence()
        if kept < promised:
            database.close()
            raise promise_broken(*end_of_log)
        return database

    # ------------------------------------------------------------ reads

    def get(self, space: int, key: bytes) -> bytes | None:
        if self.refusal is not None:
            self.check()
        try:
            value: bytes | None = self._db.families[space].get(key)
        except Exception as error:
            raise self._unread(error) from error
        return value

    def get_many(self, space: int, keys: Sequence[bytes]) -> list[bytes | None]:
        if self.refusal is not None:
            self.check()
        try:
            values: Any = self._db.families[space].get(list(keys))
        except Exception as error:
            raise self._unread(error) from error
        return list(values)

    def _unread(self, error: Exception) -> Exception:
        """Return why a get failed; raise what calls are refused for by now, which comes first."""
        self.check()
        return translated(error, self._home.database)

    def scan(
        self, space: int, start: bytes, stop: bytes | None, limit: int, *, reverse: bool = False, page_bytes: int = PAGE_BYTES
    ) -> list[_Entry]:
        if limit <= 0 or (stop is not None and start >= stop):
            return []
        if self.refusal is not None:
            self.check()
        cursor = None
        # One at a time, which costs nothing as all of it holds the GIL; so a close knows by the lock that none is left.
        with self._scanning:
            try:
                gaps = self._gaps
                with self.lock:
                    if self.refusal is not None:
                        self.check()
                    gap = gaps.gaps[space]
                    bounds = ReadOptions()
                    if stop is not None:
                        bounds.set_iterate_upper_bound(stop)
                    cursor = self._db.families[space].iter(bounds)
                    sequence = self._sequence
                page, empty = (read_backward if reverse else read_forward)(cursor, start, stop, gap, limit, page_bytes)
            except BaseException as error:
                raise self._problem(error) from error
            finally:
                # It keeps the database open, and a traceback this frame.
                cursor = None
            if empty is not None and gap is not None:
                low, high = empty
                # It touches the gap, and would widen it.
                if low <= gap.high and high >= gap.low and (low < gap.low or high > gap.high):
                    with self.lock:
                        if sequence == self._sequence:
                            gaps.learn(space, low, high)
        return page

    # ------------------------------------------------------------ writes

    def write(self, batch: WriteBatch) -> int:
        """Append ``batch`` to the WAL and make it visible, atomically."""
        if self.refusal is not None:
            self.check()
        with self.lock:
            if self.refusal is not None:
                self.check()
            try:
                sequence = self._db.write(batch)
                self._gaps.follow(batch)
                self.position += 1
                self._sequence = sequence
                return self.position
            except BaseException as error:
                problem = self._problem(error)
                self._found_no_room |= isinstance(problem, StoreFullError)
                cause = error
        if isinstance(problem, StoreFullError):
            raise self.refuse_full(problem) from cause
        raise self.refuse_poisoned(problem, "a write") from cause

    def _problem(self, error: BaseException) -> Exception:
        """Return what RocksDB said, in the store's terms; raise what came from elsewhere, a signal handler for one."""
        # The frames hold iterators and handles, which would keep the database open as long as somebody keeps the error.
        clear_frames(error.__traceback__)
        if not isinstance(error, Exception) or (problem := translated(error, self._home.database)) is error:
            raise error
        return problem

    def after_interrupt(self) -> None:
        """Take from the database whether the write that was cut short is there, and forget the gaps, which may not follow it."""
        with self.lock:
            self._gaps = Gaps(len(self._spaces))
            if (sequence := self._db.sequence()) != self._sequence:
                self.position += 1
                self._sequence = sequence

    def _sync_to_disk(self) -> int:
        with self.lock:
            reached, sequence = self.position, self._sequence
            crowded = self._gaps.crowded(_TOMBSTONES) if self._gaps.range_deletes >= _TOMBSTONES else ()
        try:
            for space in crowded:
                self._db.begin_flush(space)
            self._db.sync()
        except Exception as error:
            problem = translated(error, self._home.database)
            with self.lock:
                found_no_room = self._found_no_room or isinstance(problem, StoreFullError)
            if _UNSYNCED_LOG.search(str(error)) or not found_no_room:
                # Also when it was for lack of room: the writes are in the log, and the kernel may have dropped them (F2).
                raise StoreError(str(problem)) if isinstance(problem, StoreFullError) else problem from error
            # Elsewhere was no room. RocksDB syncs nothing any more, but the writes that were finished before are whole in the log.
            wal.sync(self._home.database)
        try:
            os.pwrite(self._mark_fd, _packed_mark(sequence), 0)
        except OSError:
            pass  # An older note is a lower bound as well, and what it is about is durable.
        return reached

    # ------------------------------------------------------------ life cycle

    def _reopen_files(self) -> int:
        """Open the database again; what its WAL still holds is there and durable afterwards."""
        # Should it not open, RocksDB syncs nothing until it does.
        self._found_no_room = True
        self._close_database()
        self._db = self._open()
        self._gaps = Gaps(len(self._spaces))
        kept = self.position if self._db.sequence() >= self._sequence else self.durable_position
        self._found_no_room = False
        return kept

    def _readmitted(self) -> None:
        self._sequence = self._db.sequence()

    def snapshot(self, path: Path, alone: Alone = at_once) -> None:
        """Write a RocksDB checkpoint, which shares the table files by hard links where the file system can.

        It ends with a copy of the write-ahead log, so it holds all writes up to some position, and no call has to be kept out. Onto another
        file system RocksDB would copy the tables itself, with the GIL held, so that no thread of the process could do anything meanwhile:
        there a checkpoint beside the database is what is copied.
        """
        self.sync()

        def copy(new: Path) -> None:
            if new.parent.stat().st_dev == self._home.directory.stat().st_dev:
                self._checkpoint(new)
                return
            beside = self._home.directory / f"{_COPY}{secrets.token_hex(4)}"
            try:
                self._checkpoint(beside)
                copy_tree(beside, new)
            finally:
                shutil.rmtree(beside, ignore_errors=True)

        self._home.snapshot(path, copy)

    def _checkpoint(self, path: Path) -> None:
        with self._copying:
            self.check()
            try:
                self._db.checkpoint(path)
            except Exception as error:
                problem = translated(error, path)
                # Where the tables that it flushes first find no room, RocksDB writes nothing more until it is opened again.
                raise self.refuse_full(problem) if isinstance(problem, StoreFullError) else problem from error

    def _let_go(self) -> None:
        """Flush what is in memory, so that the next open replays nothing, and let go of the files."""
        self._close_database()
        fd, self._mark_fd = self._mark_fd, -1
        if fd >= 0:
            os.close(fd)
        self._home.close()

    def _close_database(self) -> None:
        """Close the database once no scan is under way, whose iterator would keep it open, and no snapshot."""
        with self._copying, self._scanning, self.lock:
            self._db.close()


def read_mark(database: Path) -> int:
    """Return the sequence number that a sync of the database reached for sure; 0 when nothing is known, or what is noted was torn."""
    try:
        mark = (database / _SYNCED).read_bytes()
    except FileNotFoundError:
        return 0
    sequence = int.from_bytes(mark[:8], "big")
    return sequence if mark == _packed_mark(sequence) else 0


def _packed_mark(sequence: int) -> bytes:
    return _MARK.pack(sequence, zlib.crc32(sequence.to_bytes(8, "big")))
