"""The sum of a record: over what no field of RocketMQ's format has one, and what a reader who comes by its place cannot tell otherwise.

Each message of ours has as its last property ``RMQS_CRC``, 18 bytes; behind it stands ``RMQS_FRAME`` (``frames``) at most::

    RMQS_CRC U+0001 xxxxxxxx U+0002

The value, 8 hexadecimal digits, is the CRC-32 of bytes 36 to 84 of the record (more with IPv6 hosts), which are all from the system flag to
the length of the body, and then of the properties before it. Queue, offsets, topic and lengths are compared with what leads to the record,
and the body has a sum of its own; the flag of the application (16 to 20) is nobody's. So a record may be copied to another place of the
log, and its sum stays: damage is never signed anew.

A record that has no place yet ends with :data:`ROOM`. It is given its digits together with its store time.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Any, Final
from zlib import crc32

import numpy as np

from rmqstore_wheel import frames
from rmqstore_wheel.formats import commit_log as log
from rmqstore_wheel.formats.binary_columns import Bytes, Ints, cells
from rmqstore_wheel.formats.log_columns import Encoded

PROPERTY: Final = b"RMQS_CRC\x01"
ROOM: Final = PROPERTY + b"00000000\x02"
"""The property before its digits are known."""

PROPERTY_BYTES: Final = len(ROOM)
MAX_TEXT_BYTES: Final = log.MAX_PROPERTIES_BYTES - PROPERTY_BYTES
"""The longest properties that leave room for the sum."""

_BOTH_BYTES: Final = PROPERTY_BYTES + frames.PROPERTY_BYTES
_DIGITS_AT: Final = len(PROPERTY)
_HEAD_AT: Final = 36
_HEAD_END: Final = log.FIXED_BYTES - 4
_HEAD: Final = np.dtype(f"V{_HEAD_END - _HEAD_AT}")
_HOSTS_AT: Final = 39
_HOST_BITS: Final = log.BORN_HOST_V6 | log.STORE_HOST_V6
_V6_MORE: Final = log.HOST_V6_BYTES - log.HOST_V4_BYTES
_END: Final = 2
_PAIRS: Final = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), "u2")
_NAME_WORD: Final = np.frombuffer(PROPERTY[:8], "u8")[0]
_ROOM_WORD: Final = np.frombuffer(ROOM[_DIGITS_AT:], "u8", 1)[0]

Flags = np.ndarray[Any, np.dtype[np.bool_]]

# ---------------------------------------------------------------- one record


def sealed(record: Bytes, text: int) -> bytes:
    """Return a record that ends with room for its sum with the sum in it; its properties start at byte ``text``."""
    return b"".join((memoryview(record)[:-PROPERTY_BYTES], _property_of(record, text, len(record) - PROPERTY_BYTES)))


def seal(record: bytearray, text: int) -> None:
    """Write the sum into the room at the end of a record, whose properties start at byte ``text``."""
    record[-PROPERTY_BYTES:] = _property_of(record, text, len(record) - PROPERTY_BYTES)


def is_good(record: bytes, text: int) -> bool:
    """Say whether a record, whose parts add up, has its sum and nothing but a frame's property behind it."""
    at = place_in(record)
    return at >= text and record[at : at + PROPERTY_BYTES] == _property_of(record, text, at)


def place_in(record: Bytes) -> int:
    """Return where the property starts; -1 when there is none where it should be."""
    tail = bytes(record[-_BOTH_BYTES:])
    if tail[-PROPERTY_BYTES:][:_DIGITS_AT] == PROPERTY:
        return len(record) - PROPERTY_BYTES
    has_both = tail.startswith(PROPERTY) and frames.is_property(tail[PROPERTY_BYTES:])
    return len(record) - _BOTH_BYTES if has_both else -1


def text_end(record: Bytes) -> int:
    """Return where the properties end that the sum is over; all of them, when a record has none."""
    at = place_in(record)
    return len(record) if at < 0 else at


def _property_of(record: Bytes, text: int, end: int) -> bytes:
    bits = record[_HOSTS_AT] & _HOST_BITS
    head_end = _HEAD_END + _V6_MORE * bits.bit_count() if bits else _HEAD_END
    return b"%b%08x\x02" % (PROPERTY, crc32(record[text:end], crc32(record[_HEAD_AT:head_end])))


# ---------------------------------------------------------------- many records


def fill(records: Encoded, texts: Ints) -> None:
    """Write the sums into the rooms at the ends of records, whose properties start at ``texts``."""
    data, starts, sizes = records
    places = starts + (sizes - PROPERTY_BYTES)
    cells(data, "u8")[places + _DIGITS_AT] = _digits(_crcs(data, starts, texts, places))


def empty(data: Any, ends: Ints) -> None:
    """Turn the sums that end at ``ends`` into rooms again."""
    cells(data, "u8")[ends - (PROPERTY_BYTES - _DIGITS_AT)] = _ROOM_WORD


def good_rows(data: Any, starts: Ints, texts: Ints, ends: Ints) -> Flags:
    """Say which records of a buffer have their sums, as :func:`is_good` does; none of them is shorter than a record can be."""
    places = places_of(data, texts, ends)
    good: Flags = places >= 0
    if not good.any():
        return good
    places[~good] = ends[~good] - PROPERTY_BYTES
    good &= cells(data, "u8")[places + _DIGITS_AT] == _digits(_crcs(data, starts, texts, places))
    return good


def places_of(data: Any, texts: Ints, ends: Ints) -> Ints:
    """Return where the properties start, as :func:`place_in` does; -1 as well for one that ends nowhere, or starts before ``texts``."""
    places: Ints = ends - PROPERTY_BYTES
    framed = np.flatnonzero(~_stands_at(data, places))
    if len(framed):
        before = places[framed] - frames.PROPERTY_BYTES
        good = frames.are_properties(data, ends[framed]) & _stands_at(data, before)
        places[framed] = np.where(good, before, -1)
    places[(places < texts) | (data[places + (PROPERTY_BYTES - 1)] != _END)] = -1
    return places


def _stands_at(data: Any, places: Ints) -> Flags:
    found: Flags = (cells(data, "u8")[places] == _NAME_WORD) & (data[places + (_DIGITS_AT - 1)] == PROPERTY[-1])
    return found


def _digits(crcs: Ints) -> Ints:
    """Return hexadecimal digits, eight of them as one number."""
    digits: Ints = _PAIRS[crcs.astype(">u4").view(np.uint8)].view("u8")
    return digits


def _crcs(data: Any, starts: Ints, texts: Ints, ends: Ints) -> Ints:
    view = memoryview(data)
    pieces = map(view.__getitem__, map(slice, texts.tolist(), ends.tolist()))
    return np.fromiter(map(crc32, pieces, _head_crcs(data, starts)), np.uint32, len(starts))


def _head_crcs(data: Any, starts: Ints) -> Iterable[int]:
    hosts = data[starts + _HOSTS_AT] & _HOST_BITS
    if hosts.any():
        ends = starts + _HEAD_END + _V6_MORE * np.where(hosts == _HOST_BITS, 2, hosts != 0)
        view = memoryview(data)
        return [crc32(view[start + _HEAD_AT : end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    heads = cells(data, _HEAD)[starts + _HEAD_AT]
    words = heads.view("u8").reshape(len(starts), -1)
    # Of one call, mostly all are alike.
    if (words == words[:1]).all():
        return repeat(crc32(heads[:1]))
    return map(crc32, heads.tolist())
