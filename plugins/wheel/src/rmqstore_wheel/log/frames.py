"""Frames: the records of one call, which are in the log together or not at all.

The last record of a frame carries, as its last property, ``RMQS_FRAME`` with five hexadecimal numbers of fixed width with blanks between::

    count     8 digits   records of the frame
    bytes    10 digits   bytes of these records, blank records at the end of a file not counted
    epoch     8 digits   open epoch in which it was written
    durable  16 digits   offset of the log up to which everything was on disk at that time
    crc       8 digits   CRC-32 of the frame up to here, blank records not counted

Why recovery keeps a prefix of whole calls: every record says at which offset it is, and the CRC covers all of them, so a frame counts
only when each of its bytes is where it was written. The log is read from a place where a frame begins; the first thing that is not whole
ends it, and what is behind is overwritten with zeros before anything is appended. A frame of an earlier open that is there still,
because those zeros did not reach the disk, has an epoch below that of the frame before it, so it is never taken for a newer one.

A read by the place of a record, and no frame, goes by the sum of that record (``sums``), which stands before this property.

A frame that is not whole may be torn, or damaged after it was on disk. It is damaged when a whole frame behind it says that everything up
to there was durable: a call that a caller may rely on is never cut off.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from zlib_ng.zlib_ng import crc32

from rmqstore_wheel.formats import commit_log as log, log_reading
from rmqstore_wheel.formats.binary_columns import Bytes, Ints, Octets, cells, matrix_at
from rmqstore_wheel.formats.log_columns import Encoded, joined
from rmqstore_wheel.records import sums
from rmqstore_wheel.records.parts import parts_of

_FORM: Final = b"%08x %010x %08x %016x "
_I64: Final = struct.Struct(">q")
TAIL_BYTES: Final = 8 + 1
"""Bytes of a frame that its CRC does not cover: its digits, and the end of the property."""

PROPERTY: Final = sums.FRAME
PROPERTY_BYTES: Final = sums.FRAME_BYTES
MOST_TEXT_BYTES: Final = log.MAX_PROPERTIES_BYTES - PROPERTY_BYTES
"""The longest properties that the last record of a frame can have besides."""

_ROOM: Final = PROPERTY + bytes(PROPERTY_BYTES - len(PROPERTY) - 1) + b"\x02"
_END: Final = _ROOM[-1]


class Trailer(NamedTuple):
    """What the property says."""

    records: int
    size: int
    epoch: int
    durable: int
    crc: int


def has_room_in(record: Bytes) -> bool:
    """Say whether a record can be the last one of a frame."""
    return len(record) <= MOST_TEXT_BYTES or int.from_bytes(record[(at := parts_of(record)[3]) : at + 2]) <= MOST_TEXT_BYTES


def with_room(records: Encoded) -> list[Encoded]:
    """Return records in pieces of a frame; the last one, which is one by itself, has room for the property."""
    last = len(records.starts) - 1
    return [*([records.part(0, last)] if last else []), one(records.part(last, last + 1).data.tobytes())]


def one(record: bytes, *, is_last: bool = True, before: Sequence[bytes] = ()) -> Encoded:
    """Return one record, and others ``before`` it, as a piece of a frame; if it is the last one, with room for the property.

    :func:`finish` fills that in.
    """
    data = bytearray(record)
    if is_last:
        data += _ROOM
        at = parts_of(record)[3]
        data[at : at + 2] = (int.from_bytes(record[at : at + 2]) + PROPERTY_BYTES).to_bytes(2)
        data[:4] = len(data).to_bytes(4)
    if before:
        return joined([*before, data])
    return Encoded(np.frombuffer(data, np.uint8), np.zeros(1, np.int64), np.array([len(data)]))


def finish(pieces: Sequence[Encoded], epoch: int, durable: int) -> None:
    """Fill the property in, once every record has its offset written into it."""
    count = sum(len(piece.starts) for piece in pieces)
    size = sum(len(piece.data) for piece in pieces)
    last = pieces[-1].data
    head = PROPERTY + _FORM % (count, size, epoch, durable)
    last[-PROPERTY_BYTES:-TAIL_BYTES] = np.frombuffer(head, np.uint8)
    crc = 0
    for piece in pieces[:-1]:
        crc = crc32(piece.data.data, crc)
    crc = crc32(last[:-TAIL_BYTES].data, crc)
    last[-TAIL_BYTES:-1] = np.frombuffer(b"%08x" % crc, np.uint8)


def whole(records: Sequence[Bytes], text_at: int, offset: int, epoch: int, durable: int, file_bytes: int) -> bytearray | None:
    """Return a frame of a few records that are one behind the other from ``offset`` on, all filled in; None when it begins another file.

    Args:
        text_at: where in the last record, which has room, the length of its properties is.
    """
    data = bytearray().join(records)
    if len(data) + PROPERTY_BYTES + log.BLANK_BYTES > file_bytes - offset % file_bytes:
        return None
    at = last = 0
    for record in records:
        _I64.pack_into(data, at + log.PHYSICAL_OFFSET_AT, offset + at)
        last, at = at, at + len(record)
    length = last + text_at
    data[length : length + 2] = (at - length - 2 + PROPERTY_BYTES).to_bytes(2)
    data[last : last + 4] = (at - last + PROPERTY_BYTES).to_bytes(4)
    data += PROPERTY + _FORM % (len(records), at + PROPERTY_BYTES, epoch, durable)
    data += b"%08x\x02" % crc32(data)
    return data


def read_trailer(property_text: bytes) -> Trailer | None:
    """Read the property, :data:`PROPERTY_BYTES` long; None when it is none."""
    if not property_text.startswith(PROPERTY) or property_text[-1:] != b"\x02":
        return None
    try:
        numbers = [int(word, 16) for word in property_text[len(PROPERTY) : -1].split(b" ")]
    except ValueError:
        return None
    return Trailer(*numbers) if len(numbers) == len(Trailer._fields) else None


def ends_of(data: Octets, starts: Ints, sizes: Ints) -> Ints:
    """Return which of the records of a buffer carry the property; one whose parts do not add up may."""
    rows = np.flatnonzero(sizes >= log.MIN_BYTES + PROPERTY_BYTES)
    wanted = np.frombuffer(PROPERTY, f"V{len(PROPERTY)}")[0]
    places = starts[rows] + sizes[rows] - PROPERTY_BYTES
    # Two cheap looks at eight bytes each sort out nearly all of the others.
    first = cells(data, "u8")[places] == np.frombuffer(PROPERTY[:8], "u8")[0]
    rows, places = rows[first], places[first]
    named = cells(data, wanted.dtype)[places] == wanted
    rows, places = rows[named], places[named]
    # A body may end with what looks like it, and a property of the user with this name; behind that one comes another property.
    parts = log_reading.layout_of(data, starts[rows], sizes[rows])
    is_last = (matrix_at(data, places, PROPERTY_BYTES - 1) != _END).all(axis=1)
    found: Ints = rows[~parts.sound | (is_last & (places >= parts.properties))]
    return found
