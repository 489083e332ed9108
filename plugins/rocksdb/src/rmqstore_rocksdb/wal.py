"""Where in the write-ahead log a sequence number would be: RocksDB says that a log is damaged, but not where.

RocksDB's reader loops for ever over a record header whose type belongs to recycled logs, when no recycled log was begun. Logs are never
recycled here, so such a header is what a power cut left of something else, or damage; :func:`trap` finds it before RocksDB does.

And RocksDB's reader passes over a *hole* without a word: when a power cut takes the end of a log and leaves the log behind it, or leaves
zeros up to the end of a block, it goes on with what is behind. The store would have lost writes, and have later ones. Sequence numbers
tell: each batch begins where the one before it ended, across logs too. Only a log that RocksDB no longer needs may be missing before
another one: when a power cut brings back one that was removed, and not the next. So :func:`trap` is told which log is the first that
counts. That this one itself is missing the MANIFEST tells (``manifest``), unless RocksDB wrote to it when a later log was begun already.
What a flush put into tables is behind no hole, as RocksDB syncs all logs but the last one before it lists them.
"""

from __future__ import annotations

import mmap
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Final, NamedTuple

from rmqstore_rocksdb import manifest
from rmqstore_rocksdb.log_format import headers, is_whole

_ENDLESS: Final = frozenset((5, 6, 7, 8, 11))
"""The types of records in recycled logs (RocksDB ``log_format.h``)."""


class Trap(NamedTuple):
    """What RocksDB must not read: a record header that it does not get past, or what lies behind a hole.

    Attributes:
        log: the file.
        offset: of the header, or where the hole begins.
        kept: the last sequence number before it, as far as headers tell.
        is_first: no log that is there has what was before it, nor has a table.
    """

    log: Path
    offset: int
    kept: int
    is_first: bool = False


def trap(directory: Path, first_log: int = 0) -> Trap | None:
    """Return the first header in the logs that would keep RocksDB from ever opening them, or the first hole, if that comes before.

    Args:
        directory: the database.
        first_log: number of the first log that RocksDB still needs; those before it are passed over.
    """
    kept = reached = 0
    whole: tuple[Path, int] | None = None
    logs = _logs(directory, first_log)
    # Read behind the list: of the logs that an owner removes meanwhile, an earlier manifest would miss one.
    written = manifest.last_sequence(directory) if logs else None
    for log in logs:
        with open(log, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) if size else nullcontext(b"") as data:
                begins = last = 0
                # Between two records of a log RocksDB itself sees what is missing, unless it is zeros.
                may_miss = True
                for header in headers(data):
                    if header.kind in _ENDLESS:
                        if not header.at:
                            break  # RocksDB takes it for a recycled log, and finds nothing in it
                        return Trap(log, header.at, kept)
                    if header.first:
                        if not kept and whole is None and written is not None and header.first > written + 1 and is_whole(data, header):
                            return Trap(log, 0, written, is_first=True)
                        if not kept:
                            # Of a log that is needed and has nothing, one write was lost at least.
                            kept = reached = header.first - (1 if whole is None else 2)
                        if may_miss and header.first > reached + 1:
                            return Trap(*(whole or (log, 0)), reached)
                        begins, last, may_miss = header.first, header.last, False
                    if not header.is_sound:
                        may_miss = True
                    elif last and header.is_end:
                        # What does not follow is no batch.
                        kept = last if begins == kept + 1 else kept
                        reached, last, whole = last, 0, (log, header.end)
        whole = whole or (log, 0)
    return None


def cut(found: Trap) -> None:
    """Remove the trap and all that is behind it in this log and in later ones; durable when this returns."""
    for log in _logs(found.log.parent, int(found.log.stem)):
        with open(log, "r+b") as file:
            file.truncate(found.offset if log == found.log else 0)
            os.fsync(file.fileno())


def all_of(directory: Path) -> Trap:
    """Return where all logs would be cut."""
    return Trap(next(iter(_logs(directory)), directory / "0.log"), 0, 0)


def locate(directory: Path, kept: int, first_log: int = 0) -> tuple[Path, int]:
    """Return log file and offset of the first record behind sequence number ``kept``; the end of the log when there is none."""
    for log in _logs(directory, first_log):
        for header in headers(log.read_bytes()):
            if not header.is_sound or header.last > kept:
                return log, header.at
    return end(directory)


def end(directory: Path) -> tuple[Path, int]:
    """Return the last log file and its size; the directory and 0 when there is none."""
    logs = _logs(directory)
    return (logs[-1], logs[-1].stat().st_size) if logs else (directory, 0)


def sync(directory: Path) -> None:
    """Make what is in the log durable."""
    for log in _logs(directory):
        descriptor = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)


def _logs(directory: Path, first: int = 0) -> list[Path]:
    logs = {int(file.stem): file for file in directory.glob("*.log")}
    return [logs[number] for number in sorted(logs) if number >= first]
