"""Reading a RocksDB that somebody else may have open and change.

RocksDB opened for reading takes no lock, but it has two habits that do not go with a running owner: rocksdict writes its own file into the
directory, and a file that the owner deletes between the reading of the manifest and the opening of the file is missing. So the database
is opened in a *stand-in*: a temporary directory with copies of the small files, and with links to open descriptors of the large ones,
which stay readable when the owner deletes them. RocksDB opens every table file at once; blob files only when it needs them, so a
stand-in with blob files stays until the view is closed.

Why the view is a prefix of the owner's writes: the logs are listed before the manifest is read and opened after it. The owner deletes
logs oldest first, and only after a manifest that no longer needs them. So when none of the listed logs is gone, none that this manifest
needs is gone either; and a log that was listed, or came later, is read from its begin. When one is gone, or a table file is, the owner was
faster, and the view is opened again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from traceback import clear_frames
from typing import Final

from rocksdict import ReadOptions

from rmqstore.engine.kv.directory import EngineHome
from rmqstore.engine.kv.snapshot_view import FixedView, ViewKV
from rmqstore.errors import CorruptStoreError, RmqstoreError, StorePathError
from rmqstore_rocksdb import wal
from rmqstore_rocksdb.database import Database
from rmqstore_rocksdb.kv import FORMAT_VERSION, promise_broken, read_mark
from rmqstore_rocksdb.scans import read_backward, read_forward
from rmqstore_rocksdb.tuning import RocksDBTuning, translated

_ATTEMPTS: Final = 25
"""So often an owner may be faster. One flush or compaction costs an attempt, and an attempt takes less time than either."""

_LINKED: Final = (".sst", ".blob", ".log")
_COPIED: Final = ("OPTIONS-", "rocksdict-config.json", "IDENTITY")

Entry = tuple[bytes, bytes]


class OutrunError(Exception):
    """The owner deleted a file that was about to be opened. Never leaves this module."""


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
            found = wal.trap(path)
        except FileNotFoundError as error:
            raise OutrunError from error
        if found is not None and found.kept < promised:
            raise promise_broken(found.log, found.offset)
        stand_in = StandIn(path, found)
        try:
            database = Database(stand_in.path, self._spaces, self._tuning, strict=False, read_only=True)
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


class StandIn:
    """A temporary directory that looks like the database directory ``source`` at one moment, the logs cut before a trap.

    Raises:
        OutrunError: the owner deleted something meanwhile.
    """

    def __init__(self, source: Path, trap: wal.Trap | None = None) -> None:
        self._pid = os.getpid()
        self._trap = trap
        self._files: list[int] = []
        self._lasting: list[int] = []
        self.path = Path(tempfile.mkdtemp(prefix="rmqstore-view-"))
        try:
            self._fill(source)
        except FileNotFoundError as error:
            self.close()
            raise OutrunError from error
        except BaseException:
            self.close()
            raise

    def _fill(self, source: Path) -> None:
        logs = {file.name for file in source.glob("*.log")}
        current = (source / "CURRENT").read_bytes()
        manifest = current.decode("ascii", errors="replace").strip()
        content = (source / manifest).read_bytes()
        found = [file.name for file in source.iterdir()]
        if not logs <= set(found):
            raise OutrunError
        for name in found:
            if self._trap is not None and name.endswith(".log") and int(Path(name).stem) >= int(self._trap.log.stem):
                with open(source / name, "rb") as file:
                    (self.path / name).write_bytes(file.read(self._trap.offset) if name == self._trap.log.name else b"")
            elif name.endswith(_LINKED):
                try:
                    linked = os.open(source / name, os.O_RDONLY | os.O_CLOEXEC)
                except FileNotFoundError:
                    if name in logs:
                        raise
                    # Perhaps not needed; if it is, RocksDB says so.
                    continue
                (self._lasting if name.endswith(".blob") else self._files).append(linked)
                (self.path / name).symlink_to(f"/proc/self/fd/{linked}")
            elif name.startswith(_COPIED):
                shutil.copyfile(source / name, self.path / name)
        (self.path / manifest).write_bytes(content)
        (self.path / "CURRENT").write_bytes(current)

    def settle(self) -> None:
        """Let go of what RocksDB has open by itself, once it is open."""
        _close_all(self._files)
        if not self._lasting:
            shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        """Let go of everything."""
        _close_all(self._files)
        _close_all(self._lasting)
        if os.getpid() == self._pid:
            shutil.rmtree(self.path, ignore_errors=True)


def _close_all(files: list[int]) -> None:
    while files:
        os.close(files.pop())
