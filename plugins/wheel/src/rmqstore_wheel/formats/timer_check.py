"""``config/timercheck``: how far the timers are (``TimerCheckpoint``). 4096 bytes, of which the first 56 count; no checksum::

    0    i64  slots before this time, ms, are delivered
    8    i64  position up to which the timer log is on disk
    16   i64  next queue offset of the wheel's topic that is to be read
    24   i64  the same, as the master of a replicated broker told
    32   i64  state version      40  i64  when the version was made, ms      48  i64  its counter

The first 56 bytes alone, or without the version 32, are what brokers send each other.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.formats.binary_columns import Bytes
from rmqstore_wheel.formats.config_files import DataVersion

FILE_NAME: Final = "timercheck"
FILE_BYTES: Final = 4096
USED_BYTES: Final = 56
OLD_BYTES: Final = 32

_FIELDS = struct.Struct(">7q")
_OLD_FIELDS = struct.Struct(">4q")


class TimerCheck(msgspec.Struct, frozen=True):
    """The file, in the order of its fields."""

    read_ms: int = 0
    timer_log_position: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    version: DataVersion = DataVersion()


def encode(check: TimerCheck) -> bytes:
    """Return the 56 bytes that count."""
    version = check.version
    return _FIELDS.pack(
        check.read_ms,
        check.timer_log_position,
        check.queue_offset,
        check.master_queue_offset,
        version.state_version,
        version.timestamp_ms,
        version.counter,
    )


def decode(data: Bytes) -> TimerCheck:
    """Read the file, or what a broker sends.

    Raises:
        CorruptStoreError: it is too short.
    """
    if len(data) == OLD_BYTES:
        return TimerCheck(*_OLD_FIELDS.unpack(data))
    if len(data) < USED_BYTES:
        raise CorruptStoreError(f"{FILE_NAME} has {len(data)} bytes; at least {USED_BYTES} are needed", offset=len(data))
    read_ms, position, offset, master, state_version, timestamp_ms, counter = _FIELDS.unpack_from(data)
    return TimerCheck(read_ms, position, offset, master, DataVersion(counter, state_version, timestamp_ms))
