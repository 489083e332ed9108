"""The check point: one file that says how far the caches go and what the state was there, so that an open replays only what came later.

``rmqstore/checkpoint``, and the one before it as ``rmqstore/checkpoint.bak``::

    0    8 bytes  "RMQSCKPT"
    8    u32  format version          12   u32  CRC-32 of all behind it      16  u64  bytes behind it
    24   MessagePack of :class:`CheckPoint`

A new one is written under another name, synced, and renamed, after everything that it vouches for is on disk. One that is missing, torn or
damaged is no loss: everything is made again from the log.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import msgspec
from zlib_ng.zlib_ng import crc32

from rmqstore.errors import FormatVersionError
from rmqstore_wheel.files.disk import Disk
from rmqstore_wheel.files.units import Sums

DIRECTORY: Final = "rmqstore"
NAME: Final = "checkpoint"
VERSION: Final = 3
_READ: Final = (2, VERSION)
"""Version 2 held no units of queues, as all of their files were synced for it."""

_MAGIC: Final = b"RMQSCKPT"
_HEAD: Final = struct.Struct("<8sIIQ")


class KeyFileSums(msgspec.Struct, frozen=True, array_like=True):
    """What a check point knows of an index file.

    Attributes:
        made_ms: what its name says.
        header: its header.
        entries, slots: the CRC-32 of each block of entries, and of each segment of slots.
    """

    made_ms: int
    header: tuple[int, int, int, int, int, int]
    entries: bytes
    slots: bytes


class TimerSection(msgspec.Struct, frozen=True, array_like=True):
    """What the check point says of the timers.

    Attributes:
        facts, units: how far the facts and the timer log go.
        wheel_crc: CRC-32 of the wheel's snapshot that belongs to it.
        write_ms: when the last put or seal was.
        pending: how many there are.
        cancelled, rolled: bits by number, as (base, compressed bits).
        aside: timers that have no place in the wheel, as (seq, tick).
        keys: the files of the index of keys.
        first_kept: number of the first timer that may be pending.
        forgotten: what was handed over and forgotten, as ``TimerCursor.to_bytes``.
    """

    facts: Sums = Sums()
    units: Sums = Sums()
    wheel_crc: int = 0
    write_ms: int = 0
    pending: int = 0
    cancelled: tuple[int, bytes] = (0, b"")
    rolled: tuple[int, bytes] = (0, b"")
    aside: list[tuple[int, int]] = []
    keys: list[KeyFileSums] = []
    first_kept: int = 0
    forgotten: bytes = b""


class CheckPoint(msgspec.Struct, frozen=True, array_like=True):
    """Attributes:
    offset: the log up to here is in the caches and in the state.
    epoch: of the last frame before it.
    journal: number of the next journal record.
    store_ms: the latest store time of a message.
    calls: how many calls were made so far; 0 for a store that was never written to.
    state: the maps, as (space, entries).
    queues: how far the files of every consume queue were synced, as (topic, queue, sums).
    cleared: messages that were removed from their queues, as (topic, queue, offsets).
    timers: what is known of the timers; None when nothing is.
    restart: where the last whole copy of the state begins in the log, -1 for none.
    unsynced: the units of consume queues that come behind that, as (topic, queue, [(offset of the first, units)]).
    """

    offset: int = 0
    epoch: int = 0
    journal: int = 0
    store_ms: int = 0
    calls: int = 0
    state: list[tuple[int, list[tuple[bytes, bytes]]]] = []
    queues: list[tuple[str, int, Sums]] = []
    cleared: list[tuple[str, int, list[int]]] = []
    timers: TimerSection | None = None
    restart: int = -1
    unsynced: list[tuple[str, int, list[tuple[int, bytes]]]] = []


def write(disk: Disk, directory: Path, check_point: CheckPoint, *, keep_before: bool) -> None:
    """Write a check point; the one before it stays as the second best, if the caches still hold what it vouches for."""
    body = msgspec.msgpack.encode(check_point)
    data = _HEAD.pack(_MAGIC, VERSION, crc32(body), len(body)) + body
    path, new, old = directory / NAME, directory / f"{NAME}.new", directory / f"{NAME}.bak"
    disk.write_new(new, len(data), [(0, data)])
    if keep_before and path.exists():
        disk.rename(path, old)
    disk.rename(new, path)
    if not keep_before and old.exists():
        disk.remove(old)
    disk.sync_directory(directory)


def read_all(directory: Path) -> list[CheckPoint]:
    """Return the sound check points of a directory, the best one first.

    Raises:
        FormatVersionError: one was written by another version.
    """
    found = []
    for name in (NAME, f"{NAME}.bak"):
        try:
            data = (directory / name).read_bytes()
        except OSError:
            continue
        check_point = _decode(data, directory / name)
        if check_point is not None:
            found.append(check_point)
    return sorted(found, key=lambda each: each.offset, reverse=True)


def _decode(data: bytes, path: Path) -> CheckPoint | None:
    if len(data) < _HEAD.size:
        return None
    magic, version, crc, length = _HEAD.unpack_from(data)
    body = data[_HEAD.size : _HEAD.size + length]
    if magic != _MAGIC or len(body) != length or crc32(body) != crc:
        return None
    if version not in _READ:
        raise FormatVersionError(f"{path} has format version {version}; this release of the engine reads {' and '.join(map(str, _READ))}")
    try:
        return msgspec.msgpack.decode(body, type=CheckPoint)
    except msgspec.DecodeError:
        return None
