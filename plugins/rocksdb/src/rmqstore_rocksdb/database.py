"""The rocksdict objects of one open database, kept together because every one of them keeps it open."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import starmap
from pathlib import Path

import rocksdict
from rocksdict import Rdict

from rmqstore.engine.kv.base import DeleteFew, DeleteMany, PutMany, WriteBatch
from rmqstore.errors import StoreForkedError
from rmqstore_rocksdb.tuning import RocksDBTuning, options, translated

_BY_KEY = (DeleteMany, DeleteFew)


class Database:
    """One open RocksDB. All of rocksdict's reads and writes hold the GIL; ``sync``, ``flush`` and ``close`` let it go.

    Args:
        path: its directory; made when it is not there.
        spaces: names of the column families, in index order.
        strict: refuse to open on damage in the WAL that is not a record cut short at its end; otherwise stop at the damage.
        read_only: change no file, and need no lock.

    Attributes:
        sync: makes every finished write durable.
    """

    def __init__(self, path: Path, spaces: Sequence[str], tuning: RocksDBTuning, *, strict: bool = True, read_only: bool = False) -> None:
        if _is_forked:
            raise StoreForkedError(
                f"{path}: this process was forked from one that had used RocksDB, and lacks its threads; start it by spawn or forkserver, "
                "or fork before anybody opens a store of this engine"
            )
        _note_use()
        self._path = path
        access = rocksdict.AccessType.read_only(False) if read_only else rocksdict.AccessType.read_write()
        try:
            database, family = options(tuning, strict=strict)
            self._db = Rdict(str(path), database, dict.fromkeys(spaces, family), access)
            self.families = [self._db.get_column_family(name) for name in spaces]
            self._handles = [self._db.get_column_family_handle(name) for name in spaces]
        except Exception as error:
            raise translated(error, path) from error
        self.sync = partial(self._db.flush_wal, sync=True)
        _open_databases.add(self)

    def write(self, batch: WriteBatch) -> int:
        """Append the batch to the WAL and make it visible; returns the sequence number that it reached."""
        native = rocksdict.WriteBatch(raw_mode=True)
        for op in batch.ops:
            handle = self._handles[op.space]
            if isinstance(op, PutMany):
                native.set_default_column_family(handle)
                deque(starmap(native.__setitem__, op.items), maxlen=0)
            elif isinstance(op, _BY_KEY):
                native.set_default_column_family(handle)
                deque(map(native.__delitem__, op.keys), maxlen=0)
            else:
                native.delete_range(op.start, op.stop, handle)
        self._db.write(native)
        return self._db.latest_sequence_number()

    def begin_flush(self, space: int) -> None:
        """Have the memory table of ``space`` written to a table file, in the background."""
        self.families[space].flush(wait=False)

    def sequence(self) -> int:
        """Return the sequence number of the last write."""
        return self._db.latest_sequence_number()

    def first_log(self) -> int:
        """Return the number of the first log that is still needed, as the manifest has it."""
        return int(self._db.property_int_value("rocksdb.min-log-number-to-keep") or 0)

    def checkpoint(self, path: Path) -> None:
        """Write a copy to the new directory ``path``."""
        # It does this itself, but with the GIL held, so that no thread could do anything meanwhile.
        for family in self.families:
            family.flush(wait=True)
        rocksdict.Checkpoint(self._db).create_checkpoint(str(path))

    def close(self) -> None:
        """Flush and close; an error in it loses nothing that was promised, because the WAL has it. Idempotent."""
        self._handles.clear()
        for part in (*self.families, self._db):
            try:
                part.close()
            except Exception as error:
                if translated(error, self._path) is error:  # a signal handler raised it
                    raise


_open_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_is_used = False
_is_forked = False
"""Whether RocksDB had been used before the fork that made this process: its threads, which all databases share, are not there then."""


def _note_use() -> None:
    global _is_used
    _is_used = True


def _abandon_in_forked_child() -> None:
    """Keep a forked child from waiting for RocksDB's threads, which a fork does not copy.

    A database that is freed flushes, so each gets one reference too many. And when the process exits, RocksDB joins its threads (hang or
    crash), so the exit handlers of C that were there at the fork are passed over; Python's own have run by then.
    """
    global _is_forked
    _is_forked = _is_used
    for database in list(_open_databases):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(database))
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):
        libc.on_exit(libc._exit, None)


os.register_at_fork(after_in_child=_abandon_in_forked_child)
