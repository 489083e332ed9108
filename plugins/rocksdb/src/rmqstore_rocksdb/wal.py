"""Where in the write-ahead log a sequence number would be: RocksDB says that a log is damaged, but not where.

A log file is cut into blocks of 32 KiB. A record has a header of 7 bytes (CRC-32C u32, length u16, type u8, little-endian) and never
crosses a block; a longer one is given in parts (first, middle …, last). A whole record is a write batch: sequence number of its first
change u64, number of changes u32, changes.

RocksDB's reader loops for ever over a record header whose type belongs to recycled logs, when no recycled log was begun. Logs are never
recycled here, so such a header is what a power cut left of something else, or damage; :func:`trap` finds it before RocksDB does.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_BLOCK_BYTES: Final = 32 * 1024
_HEADER: Final = struct.Struct("<IHB")
_BATCH: Final = struct.Struct("<QI")
_FULL, _FIRST = 1, 2
_ENDLESS: Final = frozenset((5, 6, 7, 8, 11))
"""The types of records in recycled logs (RocksDB ``log_format.h``)."""


class Trap(NamedTuple):
    """A record header that RocksDB's reader does not get past; ``kept`` is the last sequence number before it."""

    log: Path
    offset: int
    kept: int


def trap(directory: Path) -> Trap | None:
    """Return the first header in the logs that would keep RocksDB from ever opening them; None when there is none."""
    kept = 0
    for log in _logs(directory):
        with open(log, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                continue
            with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as data:
                for header in _headers(data):
                    if header.kind in _ENDLESS:
                        if not header.at:
                            break  # RocksDB takes it for a recycled log, and finds nothing in it
                        return Trap(log, header.at, kept)
                    # Sequence numbers follow each other; what does not is no batch.
                    if header.first == kept + 1 or (header.first and not kept):
                        kept = header.last
    return None


def cut(found: Trap) -> None:
    """Remove the trap and all that is behind it in this log and in later ones; durable when this returns."""
    for log in _logs(found.log.parent):
        if int(log.stem) >= int(found.log.stem):
            with open(log, "r+b") as file:
                file.truncate(found.offset if log == found.log else 0)
                os.fsync(file.fileno())


def locate(directory: Path, kept: int) -> tuple[Path, int]:
    """Return log file and offset of the first record behind sequence number ``kept``; the end of the log when there is none."""
    for log in _logs(directory):
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


def _logs(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"), key=lambda file: int(file.stem))


class _Header(NamedTuple):
    """The header of a part of a record: its offset, its type, the first and last sequence number of a batch that begins there, or 0."""

    at: int
    kind: int
    first: int
    last: int
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
        if kind in (_FULL, _FIRST) and _BATCH.size <= length <= left and at + _HEADER.size + _BATCH.size <= len(data):
            first, count = _BATCH.unpack_from(data, at + _HEADER.size)
            last = first + count - 1
        is_sound = kind != 0 and _HEADER.size + length <= left
        yield _Header(at, kind, first, last, is_sound)
        at += _HEADER.size + length if is_sound else left
