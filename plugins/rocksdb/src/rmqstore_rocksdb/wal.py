"""Where in the write-ahead log a sequence number would be: RocksDB says that a log is damaged, but not where.

A log file is cut into blocks of 32 KiB. A record has a header of 7 bytes (CRC-32C u32, length u16, type u8, little-endian) and never
crosses a block; a longer one is given in parts (first, middle …, last). A whole record is a write batch: sequence number of its first
change u64, number of changes u32, changes.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

_BLOCK_BYTES: Final = 32 * 1024
_HEADER: Final = struct.Struct("<IHB")
_BATCH: Final = struct.Struct("<QI")
_FULL, _FIRST = 1, 2


def locate(directory: Path, kept: int) -> tuple[Path, int]:
    """Return log file and offset of the first record behind sequence number ``kept``; the end of the log when there is none."""
    for log in _logs(directory):
        found = _first_behind(log.read_bytes(), kept)
        if found is not None:
            return log, found
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


def _first_behind(data: bytes, kept: int) -> int | None:
    """Return the offset of the first record that holds a change behind ``kept`` or has no sound header, or None."""
    at = 0
    while at + _HEADER.size <= len(data):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _HEADER.size:
            at += left
            continue
        _, length, kind = _HEADER.unpack_from(data, at)
        if kind == 0 or _HEADER.size + length > left:
            return at
        if kind in (_FULL, _FIRST) and length >= _BATCH.size:
            sequence, count = _BATCH.unpack_from(data, at + _HEADER.size)
            if sequence + count - 1 > kept:
                return at
        at += _HEADER.size + length
    return None
