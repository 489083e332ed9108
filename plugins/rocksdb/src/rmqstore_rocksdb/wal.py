"""Where in the write-ahead log a sequence number would be: RocksDB says that a log is damaged, but not where.

A log file is cut into blocks of 32 KiB. A record has a header of 7 bytes (CRC-32C u32, length u16, type u8, little-endian) and never
crosses a block; a longer one is given in parts (first, middle …, last). A whole record is a write batch: sequence number of its first
change u64, number of changes u32, changes.

RocksDB's reader loops for ever over a record header whose type belongs to recycled logs, when no recycled log was begun. Logs are never
recycled here, so such a header is what a power cut left of something else, or damage; :func:`trap` finds it before RocksDB does.

And RocksDB's reader passes over a *hole* without a word: when a power cut takes the end of a log and leaves the log behind it, or leaves
zeros up to the end of a block, it goes on with what is behind. The store would have lost writes, and have later ones. Sequence numbers
tell: each batch begins where the one before it ended, across logs too. Only a log that RocksDB no longer needs may be missing before
another one: when a power cut brings back one that was removed, and not the next. So :func:`trap` is told which log is the first that
counts. What a flush put into tables is behind no hole, as RocksDB syncs all logs but the last one before it lists them.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

_BLOCK_BYTES: Final = 32 * 1024
_HEADER: Final = struct.Struct("<IHB")
_BATCH: Final = struct.Struct("<QI")
_FULL, _FIRST, _LAST = 1, 2, 4
_ENDLESS: Final = frozenset((5, 6, 7, 8, 11))
"""The types of records in recycled logs (RocksDB ``log_format.h``)."""


class Trap(NamedTuple):
    """What RocksDB must not read: a record header that it does not get past, or what lies behind a hole.

    Attributes:
        log: the file.
        offset: of the header, or where the hole begins.
        kept: the last sequence number before it, as far as headers tell.
    """

    log: Path
    offset: int
    kept: int


def trap(directory: Path, first_log: int = 0) -> Trap | None:
    """Return the first header in the logs that would keep RocksDB from ever opening them, or the first hole, if that comes before.

    Args:
        directory: the database.
        first_log: number of the first log that RocksDB still needs; those before it are passed over.
    """
    kept = reached = 0
    whole: tuple[Path, int] | None = None
    for log in _logs(directory, first_log):
        with open(log, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) if size else nullcontext(b"") as data:
                begins = last = 0
                # Between two records of a log RocksDB itself sees what is missing, unless it is zeros.
                may_miss = True
                for header in _headers(data):
                    if header.kind in _ENDLESS:
                        if not header.at:
                            break  # RocksDB takes it for a recycled log, and finds nothing in it
                        return Trap(log, header.at, kept)
                    if header.first:
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
        for header in _headers(log.read_bytes()):
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


class _Header(msgspec.Struct, gc=False):
    """The header of a part of a record: its place, its type, the first and last sequence number of a batch that begins there, or 0.

    ``is_end``: the record ends with this part. ``is_sound``: the part may be what the header says, and is all there.
    """

    at: int
    end: int
    kind: int
    first: int
    last: int
    is_end: bool
    is_sound: bool


def _headers(data: bytes | mmap.mmap) -> Iterator[_Header]:
    """Yield the headers of a log; after one that is not sound it goes on with the next block."""
    at = 0
    while at + _HEADER.size <= len(data):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _HEADER.size:
            at += left
            continue
        _, length, kind = _HEADER.unpack_from(data, at)
        first = last = 0
        if kind in (_FULL, _FIRST):
            begin = at + _HEADER.size
            head = data[begin : begin + min(length, left - _HEADER.size, _BATCH.size)]
            if kind == _FIRST and len(head) < _BATCH.size:
                # The block had room for a header and less than the head of a batch: the rest is behind the header of the next block.
                begin = at + left + _HEADER.size
                head += data[begin : begin + _BATCH.size - len(head)]
            if len(head) == _BATCH.size:
                first, count = _BATCH.unpack(head)
                last = first + count - 1
        behind = at + _HEADER.size + length
        is_sound = kind != 0 and behind <= min(at + left, len(data))
        yield _Header(at, behind, kind, first, last, kind in (_FULL, _LAST), is_sound)
        at = behind if is_sound else at + left
