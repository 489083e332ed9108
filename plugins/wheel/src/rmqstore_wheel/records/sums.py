"""The sum of a record: over what no field of RocketMQ's format has one, and what a reader by place cannot tell otherwise.

Each message of ours has as its last property ``RMQS_CRC``, 18 bytes; behind it stands ``RMQS_FRAME`` (``log.frames``) at most::

    RMQS_CRC U+0001 xxxxxxxx U+0002

The value, 8 hexadecimal digits, is the CRC-32 of bytes 36 to 84 of the record (more with IPv6 hosts), which are all from the system flag to
the length of the body, and then of the properties before it. Queue, offsets, topic and lengths are compared with what leads to the record,
and the body has a sum of its own; the flag of the application (16 to 20) is in no sum. So a record may be copied to another place of the
log, and its sum stays: damage is never signed again.

A record that has no place yet ends with :data:`ROOM`. It is given its digits together with its store time.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from zlib_ng.zlib_ng import crc32

from rmqstore_wheel.formats import commit_log as log
from rmqstore_wheel.formats.binary_columns import Bytes, Flags, Ints, Octets, cells, crcs_of, matrix_at
from rmqstore_wheel.formats.log_columns import Encoded
from rmqstore_wheel.records.parts import HOST_BITS, V6_MORE, text_places

PROPERTY: Final = b"RMQS_CRC\x01"
ROOM: Final = PROPERTY + b"00000000\x02"
"""The property before its digits are known."""

PROPERTY_BYTES: Final = len(ROOM)
MAX_TEXT_BYTES: Final = log.MAX_PROPERTIES_BYTES - PROPERTY_BYTES
"""The longest properties that leave room for the sum."""

FRAME: Final = b"RMQS_FRAME\x01"
FRAME_BYTES: Final = len(FRAME) + len(b"count--- bytes----- epoch--- durable--------- crc-----\x02")
"""What may stand behind the sum, in the last record of a call: the name of the property, and how long the whole of it is."""

MOST_BYTES: Final = PROPERTY_BYTES + FRAME_BYTES
"""What both properties take at the end of a record."""

DIGITS_AT: Final = len(PROPERTY)
_HEAD_AT: Final = 36
_HEAD_END: Final = log.FIXED_BYTES - 4
_HEAD: Final = np.dtype(f"V{_HEAD_END - _HEAD_AT}")
_HOSTS_AT: Final = 39
_MORE: Final = {bits: V6_MORE * bits.bit_count() for bits in (0, log.BORN_HOST_V6, log.STORE_HOST_V6, HOST_BITS)}
"""By the hosts that are IPv6, how much longer the head is."""

_END: Final = 2
_PAIRS: Final = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), "u2")
_NAME_WORD: Final = np.frombuffer(PROPERTY[:8], "u8")[0]

# ---------------------------------------------------------------- one record


def sealed(record: bytes, text: int) -> bytes:
    """Return a record that ends with room for its sum with the sum in it; its properties start at byte ``text``."""
    crc = crc32(record[text:-PROPERTY_BYTES], crc32(record[_HEAD_AT : _HEAD_END + _MORE[record[_HOSTS_AT] & HOST_BITS]]))
    return b"%b%b%08x\x02" % (record[:-PROPERTY_BYTES], PROPERTY, crc)


def seal(record: bytearray, text: int) -> None:
    """Write the sum into the room at the end of a record, whose properties start at byte ``text``."""
    crc = crc32(record[text:-PROPERTY_BYTES], crc32(record[_HEAD_AT : _HEAD_END + _MORE[record[_HOSTS_AT] & HOST_BITS]]))
    record[-PROPERTY_BYTES:] = b"%b%08x\x02" % (PROPERTY, crc)


def is_good(record: bytes, text: int) -> bool:
    """Say whether a record, whose parts add up, has its sum and nothing but a frame's property behind it."""
    at = len(record) - PROPERTY_BYTES
    if record[at : at + DIGITS_AT] != PROPERTY:
        at = place_in(record)
    crc = crc32(record[text:at], crc32(record[_HEAD_AT : _HEAD_END + _MORE[record[_HOSTS_AT] & HOST_BITS]]))
    return at >= text and record[at : at + PROPERTY_BYTES] == b"%b%08x\x02" % (PROPERTY, crc)


def place_in(record: Bytes) -> int:
    """Return where the property starts; -1 when there is none where it should be."""
    tail = bytes(record[-MOST_BYTES:])
    if tail[-PROPERTY_BYTES:][:DIGITS_AT] == PROPERTY:
        return len(record) - PROPERTY_BYTES
    has_both = tail.startswith(PROPERTY) and _is_frame(tail[PROPERTY_BYTES:])
    return len(record) - MOST_BYTES if has_both else -1


def sum_of(record: Bytes) -> bytes | None:
    """Return the property; None when there is none where it should be."""
    at = place_in(record)
    return None if at < 0 else bytes(record[at : at + PROPERTY_BYTES])


def _is_frame(text: bytes) -> bool:
    """Say whether a text is the property of a frame, whatever its numbers are, and no other one."""
    return len(text) == FRAME_BYTES and text.startswith(FRAME) and text.find(b"\x02") == FRAME_BYTES - 1


def text_end(record: Bytes) -> int:
    """Return where the properties end that the sum is over; all of them, when a record has none."""
    at = place_in(record)
    return len(record) if at < 0 else at


# ---------------------------------------------------------------- many records


def fill(records: Encoded) -> None:
    """Write the sums into the rooms at the ends of records."""
    data, starts, sizes = records.data, records.starts, records.sizes
    if len(starts):
        places = starts + (sizes - PROPERTY_BYTES)
        cells(data, "u8")[places + DIGITS_AT] = _digits(data, starts, text_places(data, starts), places)


def good_rows(data: Octets, starts: Ints, texts: Ints, ends: Ints) -> Flags:
    """Say which records of a buffer, whose parts add up, have their sums, as :func:`is_good` does."""
    places = places_of(data, texts, ends)
    return (places >= 0) & _are_right(data, starts, texts, np.where(places < 0, ends - PROPERTY_BYTES, places))


def wrong_rows(data: Octets, starts: Ints, sizes: Ints) -> Flags:
    """Say which records of a buffer, whose parts add up, have sums that are not their own; those of a broker have none."""
    texts, ends = text_places(data, starts), starts + sizes
    places = places_of(data, texts, ends)
    return (places >= 0) & ~_are_right(data, starts, texts, np.where(places < 0, ends - PROPERTY_BYTES, places))


def _are_right(data: Octets, starts: Ints, texts: Ints, places: Ints) -> Flags:
    right: Flags = cells(data, "u8")[places + DIGITS_AT] == _digits(data, starts, texts, places)
    return right


def places_of(data: Octets, texts: Ints, ends: Ints) -> Ints:
    """Return where the properties start, as :func:`place_in` does; -1 as well for one that ends nowhere, or starts before ``texts``."""
    places: Ints = ends - PROPERTY_BYTES
    framed = np.flatnonzero(~_stands_at(data, places))
    if len(framed):
        before = places[framed] - FRAME_BYTES
        good = _are_frames(data, ends[framed]) & _stands_at(data, before)
        places[framed] = np.where(good, before, -1)
    places[(places < texts) | (data[places + (PROPERTY_BYTES - 1)] != _END)] = -1
    return places


def _are_frames(data: Octets, ends: Ints) -> Flags:
    """Say what of a buffer is the property of a frame, up to ``ends``, as :func:`_is_frame` does; nothing ends before one could."""
    texts = matrix_at(data, ends - FRAME_BYTES, FRAME_BYTES)
    is_named = (texts[:, : len(FRAME)] == np.frombuffer(FRAME, np.uint8)).all(axis=1)
    return is_named & (texts[:, -1] == _END) & (texts[:, :-1] != _END).all(axis=1)  # type: ignore[no-any-return]


def _stands_at(data: Octets, places: Ints) -> Flags:
    found: Flags = (cells(data, "u8")[places] == _NAME_WORD) & (data[places + (DIGITS_AT - 1)] == PROPERTY[-1])
    return found


def _digits(data: Octets, starts: Ints, texts: Ints, ends: Ints) -> Ints:
    """Return the digits of sums, eight of them as one number, of properties from ``texts`` to ``ends``."""
    crcs = crcs_of(data, texts, ends, _head_crcs(data, starts))
    digits: Ints = _PAIRS[crcs.astype(">u4").view(np.uint8)].view("u8")
    return digits


def _head_crcs(data: Octets, starts: Ints) -> Ints | int:
    """Return the CRCs of what goes before the properties into the sum: one number, when they are all alike."""
    hosts = data[starts + _HOSTS_AT] & HOST_BITS
    if hosts.any():
        ends = starts + _HEAD_END + V6_MORE * np.where(hosts == HOST_BITS, 2, hosts != 0)
        return crcs_of(data, starts + _HEAD_AT, ends)
    heads = cells(data, _HEAD)[starts + _HEAD_AT]
    words = heads.view("u8").reshape(-1, _HEAD.itemsize // 8)
    # Mostly, they are of one call.
    if (words == words[:1]).all():
        return crc32(heads[:1])
    return crcs_of(data, starts + _HEAD_AT, starts + _HEAD_END)
