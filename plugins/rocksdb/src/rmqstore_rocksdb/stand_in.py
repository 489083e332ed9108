"""A database directory in another place, to open it there without a change to its files.

A *stand-in* is a temporary directory with copies of the small files, and with links to open descriptors of the large ones, which stay
readable when an owner deletes them. RocksDB opens every table file at once; blob files only when it needs them, so a stand-in with blob
files stays until whoever reads is done.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rmqstore.errors import CorruptStoreError
from rmqstore_rocksdb import wal
from rmqstore_rocksdb.database import Database
from rmqstore_rocksdb.tuning import RocksDBTuning

_LINKED: Final = (".sst", ".blob", ".log")
_COPIED: Final = ("OPTIONS-", "rocksdict-config.json", "IDENTITY")


class OutrunError(Exception):
    """The owner deleted a file that was about to be opened. Never leaves this package."""


def where_to_cut(path: Path, promised: int, spaces: Sequence[str], tuning: RocksDBTuning) -> wal.Trap | None:
    """Return where the logs of the database ``path`` have to be cut before RocksDB reads them; None where nothing is wrong.

    RocksDB is asked what headers do not tell: which log it needs first, as an older one may have come back with a power cut; and what is
    left, as there may be damage before the trap.

    Args:
        path: the database directory.
        promised: the sequence number that a sync reached for sure.
        spaces: names of the column families.
        tuning: the settings of the engine.

    Raises:
        CorruptStoreError: some of what was promised would be cut off.
    """
    found = wal.trap(path)
    if found is None:
        return None
    try:
        first_log, _ = _asked(path, wal.all_of(path), spaces, tuning)
    except CorruptStoreError:
        if found.is_first:
            # It is the manifest that is damaged, of which RocksDB tells itself.
            return None
        raise
    found = wal.trap(path, first_log)
    if found is not None:
        _, kept = _asked(path, found, spaces, tuning)
        if kept < found.kept:
            found = min(found, wal.Trap(*wal.locate(path, kept, first_log), kept), key=lambda each: (int(each.log.stem), each.offset))
        if kept < promised:
            raise log_missing(found.log) if found.is_first else promise_broken(found.log, found.offset)
    return found


def _asked(path: Path, trap: wal.Trap, spaces: Sequence[str], tuning: RocksDBTuning) -> tuple[int, int]:
    """Return the first log that a database needs, and the last sequence number that is there when its logs are cut at ``trap``."""
    stand_in = StandIn(path, trap)
    try:
        database = stand_in.read(spaces, tuning)
        told = database.first_log(), database.sequence()
        database.close()
    except CorruptStoreError as error:  # which names a file of the stand-in
        what, file = (text.replace(str(stand_in.path), str(path)) for text in (str(error), error.file))
        raise CorruptStoreError(what, file=file, offset=error.offset) from error
    finally:
        stand_in.close()
    return told


def promise_broken(log: Path, offset: int) -> CorruptStoreError:
    """Return the error of a log that lost what a sync promised."""
    return CorruptStoreError(f"{log} is damaged at offset {offset}, within what was synced", file=str(log), offset=offset)


def log_missing(log: Path) -> CorruptStoreError:
    """Return the error of a database that lost the log before ``log``, and with it what a sync promised."""
    remedy = "nothing was changed; put it back, or restore a snapshot"
    return CorruptStoreError(f"the log before {log} is missing, with what was synced; {remedy}", file=str(log), offset=0)


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

    def read(self, spaces: Sequence[str], tuning: RocksDBTuning) -> Database:
        """Open it for reading, up to the first damage."""
        return Database(self.path, spaces, tuning, strict=False, read_only=True)

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
        # No signal handler comes in between, as none does behind a statement that calls nothing: each is closed once.
        fd = files[-1]
        del files[-1]
        os.close(fd)
