"""Reading a RocksDB that somebody else may have open and change.

RocksDB opened for reading takes no lock, but it has two habits that do not go with a running owner: rocksdict writes its own file into the
directory, and a file that the owner deletes between the reading of the manifest and the opening of the file is missing. So the database
is opened in a stand-in (``stand_in``).

Why the view is a prefix of the owner's writes: the logs are listed before the manifest is read and opened after it. The owner deletes
logs oldest first, and only after a manifest that no longer needs them. So when none of the listed logs is gone, none that this manifest
needs is gone either; and a log that was listed, or came later, is read from its begin. When one is gone, or a table file is, the owner was
faster, and the view is opened again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from traceback import clear_frames
from typing import Final

from rocksdict import ReadOptions

from rmqstore.engine.kv.directory import EngineHome
from rmqstore.engine.kv.snapshot_view import FixedView, ViewKV
from rmqstore.errors import CorruptStoreError, RmqstoreError, StorePathError
from rmqstore_rocksdb.database import Database
from rmqstore_rocksdb.kv import FORMAT_VERSION, read_mark
from rmqstore_rocksdb.scans import read_backward, read_forward
from rmqstore_rocksdb.stand_in import OutrunError, StandIn, where_to_cut
from rmqstore_rocksdb.tuning import RocksDBTuning, translated

_ATTEMPTS: Final = 25
"""So often an owner may be faster. One flush or compaction costs an attempt, and an attempt takes less time than either."""

Entry = tuple[bytes, bytes]


def view_rocksdb(directory: Path, spaces: Sequence[str], tuning: RocksDBTuning) -> ViewKV:
    """Open the engine directory ``directory`` for reading; see ``Engine.open_for_reading`` for the errors."""
    return ViewKV(RocksDBView(EngineHome(directory, "rocksdb", FORMAT_VERSION), spaces, tuning))


class RocksDBView(FixedView):
    """One state of the database."""

    def __init__(self, home: EngineHome, spaces: Sequence[str], tuning: RocksDBTuning) -> None:
        self.name = str(home.directory)
        self._home = home
        self._spaces = tuple(spaces)
        self._tuning = tuning
        self._db, self._stand_in = self._open()

    def _open(self) -> tuple[Database, StandIn]:
        path = self._home.existing()
        last: Exception = StorePathError(f"{path}: its owner changes it faster than it can be opened for reading; try again")
        for _ in range(_ATTEMPTS):
            try:
                return self._open_once(path)
            except OutrunError:
                continue
            except CorruptStoreError as error:
                # A table file that is gone, or a manifest that was read while a group of records was being added.
                last = error
            except OSError as error:
                if isinstance(error, RmqstoreError):
                    raise
                raise StorePathError(f"{path}: {error.strerror or error}") from error
        raise last

    def _open_once(self, path: Path) -> tuple[Database, StandIn]:
        promised = read_mark(path)
        try:
            found = where_to_cut(path, promised, self._spaces, self._tuning)
        except FileNotFoundError as error:
            raise OutrunError from error
        stand_in = StandIn(path, found)
        try:
            database = stand_in.read(self._spaces, self._tuning)
            if database.sequence() < promised:
                database.close()
                raise CorruptStoreError(f"{path}: its log is damaged within what was synced; only an owner can say where", file=str(path))
        except BaseException:
            stand_in.close()
            raise
        stand_in.settle()
        return database, stand_in

    def get(self, space: int, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.families[space].get(key)
        except Exception as error:
            raise translated(error, self._home.database) from error
        return value

    def scan(self, space: int, start: bytes, stop: bytes | None, limit: int, *, reverse: bool, page_bytes: int) -> list[Entry]:
        bounds = ReadOptions()
        if stop is not None:
            bounds.set_iterate_upper_bound(stop)
        cursor = self._db.families[space].iter(bounds)
        try:
            return (read_backward if reverse else read_forward)(cursor, start, stop, None, limit, page_bytes)[0]
        except Exception as error:
            clear_frames(error.__traceback__)
            raise translated(error, self._home.database) from error
        finally:
            del cursor

    def renew(self) -> None:
        old, old_stand_in = self._db, self._stand_in
        self._db, self._stand_in = self._open()
        old.close()
        old_stand_in.close()

    def close(self) -> None:
        self._db.close()
        self._stand_in.close()
