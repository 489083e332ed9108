"""Units of the timer log: one per timer that was put into the wheel, chained backwards per slot (``TimerLog``, ``TimerRequest``, RIP-43).

A chain of files named by :func:`file_name`, 100 MiB each in RocketMQ. A unit, 52 bytes::

    0    i32  52
    4    i64  position of the unit before in the same slot, -1 = none
    12   i32  flags: 1 always, 2 to be rolled, 4 a cancel
    16   i64  time of the writing, ms, a multiple of the precision
    24   i32  time of the slot less the time of the writing, ms
    28   i64  offset of the message in the commit log
    36   i32  bytes of the message
    40   i32  Java hash of the message's real topic
    44   i64  0

When a unit and 16 bytes more do not fit into what is left of a file, a blank unit fills it::

    0    i32  bytes left in the file      4   i64  0      12  i32  0xCBD43194

There is no checksum: a unit counts as sound when its size is 52 and no flag is set but the lowest four bits.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np

from rmqstore.errors import IllegalArgumentError
from rmqstore_wheel.formats.binary_columns import Bytes, Ints, Rows
from rmqstore_wheel.formats.commit_log import MAGIC_BLANK
from rmqstore_wheel.formats.log_reading import Stop

UNIT_BYTES: Final = 52
BLANK_BYTES: Final = 16
NO_POSITION: Final = -1

DEFAULT: Final = 1
ROLL: Final = 2
DELETE: Final = 4
_FLAG_BITS: Final = 0xF

UNIT: Final = np.dtype(
    [
        ("size", ">i4"),
        ("previous", ">i8"),
        ("flags", ">i4"),
        ("write_ms", ">i8"),
        ("delta_ms", ">i4"),
        ("log_offset", ">i8"),
        ("message_bytes", ">i4"),
        ("topic_hash", ">i4"),
        ("reserved", ">i8"),
    ]
)
encode_one: Final = struct.Struct(">iqiqiqiiq").pack
"""Returns one unit, of the fields of :data:`UNIT`."""

link_in: Final = struct.Struct(">4xq").unpack_from
"""Returns the position of the unit before, of the unit at a byte of a buffer."""

_BLANK = struct.Struct(">iqi")


def rows_of(
    previous: Ints, flags: Ints | int, write_ms: int, delta_ms: Ints, log_offsets: Ints, sizes: Ints, topic_hashes: Ints | int, reserved:
    Ints
) -> Rows:  # fmt: skip
    """Return units whose slots are near enough for 32 bits."""
    units: Rows = np.empty(len(previous), UNIT)
    units["size"], units["previous"], units["flags"], units["write_ms"], units["delta_ms"] = UNIT_BYTES, previous, flags, write_ms, delta_ms
    units["log_offset"], units["message_bytes"], units["topic_hash"], units["reserved"] = log_offsets, sizes, topic_hashes, reserved
    return units


def slot_times_ms(units: Rows) -> Ints:
    """Return the time of every unit's slot."""
    times: Ints = units["write_ms"].astype(np.int64) + units["delta_ms"]
    return times


def encode_blank(bytes_left: int) -> bytes:
    """Return the start of the blank unit that fills what is left of a file."""
    if bytes_left < BLANK_BYTES:
        raise IllegalArgumentError(f"{bytes_left} bytes are left in the file; a blank unit needs {BLANK_BYTES}")
    return _BLANK.pack(bytes_left, 0, MAGIC_BLANK)


def decode(buffer: Bytes) -> Rows:
    """Return the whole units of a buffer that begins with one, without a copy and without any check."""
    view = memoryview(buffer).cast("B")
    return np.frombuffer(view[: len(view) // UNIT_BYTES * UNIT_BYTES], UNIT)


class Scan(NamedTuple):
    """The sound units at the start of a buffer, and what comes behind them, at byte ``end``."""

    units: Rows
    end: int
    stop: Stop


def scan(buffer: Bytes) -> Scan:
    """Return the units of a file from its start up to the first that is not sound."""
    view = memoryview(buffer).cast("B")
    units = decode(view)
    sound = (units["size"] == UNIT_BYTES) & ((units["flags"] & ~_FLAG_BITS) == 0)
    count = len(sound) if sound.all() else int((~sound).argmax())
    end = count * UNIT_BYTES
    return Scan(units[:count], end, _stop(view, end))


def _stop(view: memoryview, at: int) -> Stop:
    left = len(view) - at
    if not left:
        return Stop.END
    if not any(view[at : at + UNIT_BYTES]):
        return Stop.EMPTY
    if left >= BLANK_BYTES:
        size, _, magic = _BLANK.unpack_from(view, at)
        if magic == MAGIC_BLANK and size >= BLANK_BYTES:
            return Stop.BLANK
    return Stop.DAMAGE if left >= UNIT_BYTES else Stop.TORN
