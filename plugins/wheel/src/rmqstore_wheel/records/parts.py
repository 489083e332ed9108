"""Where the parts of a record are, of one and of many, and what becomes of its properties on the record's way.

Properties take at most 32 767 bytes in a record, with the 18 of its sum (``sums``). What a user sends always fits, as the check of a
message leaves room for what its way through the engine adds. A dead letter or a parked entry is told more, and may outgrow the limit;
then, in this order and only as far as needed,

1. ``ORIGIN_MESSAGE_ID`` is left out where the message id says the same,
2. the reason (``DLQ_REASON``, ``PARKED_REASON``) is shortened from its end, at last left out,
3. ``TIMER_DELIVER_MS`` and ``TIMER_OUT_MS``, which are past, then ``DLQ_ATTEMPTS``, ``1ST_POP_TIME``, ``ORIGIN_MESSAGE_ID`` and
   ``ORIGIN_TOPIC`` are left out.

What the user sent always stays.
"""

from __future__ import annotations

import functools
import struct
from typing import Final

import numpy as np

from rmqstore.errors import IllegalArgumentError
from rmqstore.message import (
    PROPERTY_DLQ_ATTEMPTS,
    PROPERTY_DLQ_REASON,
    PROPERTY_ORIGIN_ID,
    PROPERTY_ORIGIN_TOPIC,
    PROPERTY_PARKED_REASON,
)
from rmqstore_wheel.formats import commit_log as log, properties as texts
from rmqstore_wheel.formats.binary_columns import Bytes, Ints, Octets, cells

HOST_BITS: Final = log.BORN_HOST_V6 | log.STORE_HOST_V6
V6_MORE: Final = log.HOST_V6_BYTES - log.HOST_V4_BYTES
V2_BYTE: Final = log.MAGIC_V2 & 0xFF
"""The byte of the magic, at 7, that tells V2 from V1."""

_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_I64X2: Final = struct.Struct(">qq")
_END: Final = b"\x02"

# ---------------------------------------------------------------- one record


def body_at(record: Bytes) -> int:
    """Return where the body is; its length is what is before it."""
    return log.FIXED_BYTES + V6_MORE * (record[39] & HOST_BITS).bit_count()


def parts_of(record: Bytes) -> tuple[int, int, int, int]:
    """Return where the body, the length of the topic, and the topic start, and where that ends; the length of the properties is next."""
    body = log.FIXED_BYTES + V6_MORE * (record[39] & HOST_BITS).bit_count()
    at = body + int(_I32.unpack_from(record, body - 4)[0])
    if record[7] == V2_BYTE:
        return body, at, at + 2, at + 2 + int.from_bytes(record[at : at + 2])
    return body, at, at + 1, at + 1 + record[at]


def new_head(record: Bytes, body: int, size: int) -> bytearray:
    """Return what is before the body, at byte ``body``, for a record of another size that is not placed."""
    head = bytearray(record[:body])
    _I32.pack_into(head, 0, size)
    _I64X2.pack_into(head, log.QUEUE_OFFSET_AT, 0, 0)
    _I64.pack_into(head, log.STORE_MS_AT + (V6_MORE if record[39] & log.BORN_HOST_V6 else 0), 0)
    return head


# ---------------------------------------------------------------- many records


def body_places(data: Octets, starts: Ints) -> Ints:
    """Return where the bodies are; their lengths are what is before them."""
    flags = data[starts + 39] & HOST_BITS
    at = starts + log.FIXED_BYTES
    if flags.any():
        at = at + np.where(flags & log.BORN_HOST_V6, V6_MORE, 0) + np.where(flags & log.STORE_HOST_V6, V6_MORE, 0)
    return at


def topic_places(data: Octets, starts: Ints) -> Ints:
    """Return where the lengths of the topics are, right behind the bodies."""
    at = body_places(data, starts)
    return at + cells(data, ">i4")[at - 4]  # type: ignore[no-any-return]


def topic_bounds(data: Octets, starts: Ints) -> tuple[Ints, Ints]:
    """Return where the topics start and end."""
    at = topic_places(data, starts)
    wide = data[starts + 7] == V2_BYTE
    if not wide.any():
        return at + 1, at + 1 + data[at]
    lengths = np.where(wide, cells(data, ">u2")[at], data[at])  # behind a topic are two bytes, so at least two are there
    at = at + np.where(wide, 2, 1)
    return at, at + lengths


def text_places(data: Octets, starts: Ints) -> Ints:
    """Return where the properties start, behind their length."""
    return topic_bounds(data, starts)[1] + 2


def store_ms_places(data: Octets, starts: Ints) -> Ints:
    """Return where the store times are."""
    flags = data[starts + 39] & log.BORN_HOST_V6
    return starts + (log.STORE_MS_AT + np.where(flags, V6_MORE, 0) if flags.any() else log.STORE_MS_AT)


# ---------------------------------------------------------------- properties


def _starts(*names: str) -> tuple[bytes, ...]:
    return tuple(f"{name}\x01".encode() for name in names)


OWN: Final = texts.OWN_PREFIX.encode()
FIRST_POP: Final = b"%b\x01" % texts.FIRST_POP_MS.encode()
OF_DELIVERIES: Final = (FIRST_POP, OWN)
"""How entries start that tell of deliveries, and those that the engine noted in the record that this one is a copy of."""

OF_WAITING: Final = (*_starts(texts.REAL_TOPIC, texts.REAL_QUEUE_ID, texts.ROLL_TIMES), OWN)
"""How entries start that only a timer that waits has use for."""

_REASONS: Final = _starts(PROPERTY_DLQ_REASON, PROPERTY_PARKED_REASON)
_GIVING_WAY: Final = _starts(
    texts.DELIVER_MS, texts.OUT_MS, PROPERTY_DLQ_ATTEMPTS, texts.FIRST_POP_MS, PROPERTY_ORIGIN_ID, PROPERTY_ORIGIN_TOPIC
)
_GRAVE: Final = (*_REASONS, *_starts(PROPERTY_DLQ_ATTEMPTS, PROPERTY_ORIGIN_ID, PROPERTY_ORIGIN_TOPIC))


def text_of(record: Bytes) -> bytes:
    """Return the properties as text."""
    return bytes(record[parts_of(record)[3] + 2 :])


def value_in(text: bytes, name: str) -> bytes:
    """Return what ``properties.decode`` finds under a name, without looking at other entries; empty when there is none."""
    needle = _needle(name)
    at = text.rfind(needle)
    if at >= 0:
        start = at + len(needle)
    elif text.startswith(needle[1:]):
        start = len(needle) - 1
    else:
        return b""
    end = text.find(_END, start)
    value = text[start:] if end < 0 else text[start:end]
    return value or texts.decode(text).get(name, "").encode()  # an empty value does not count; an earlier entry may


@functools.cache
def _needle(name: str) -> bytes:
    return f"\x02{name}\x01".encode()


def without(text: bytes, starts: tuple[bytes, ...]) -> bytes:
    """Return properties without the entries that start so; all else stays as it is, byte by byte."""
    *entries, rest = text.split(_END)
    kept = b"".join([entry + _END for entry in entries if not entry.startswith(starts)])
    return kept if rest.startswith(starts) else kept + rest


def fitted(text: bytes, most: int) -> bytes:
    """Return properties that are longer than ``most`` bytes without what the docstring of this module says gives way.

    Raises:
        IllegalArgumentError: they are still too long, or are not those of a dead letter or a parked entry.
    """
    entries = [entry + _END for entry in text.split(_END) if entry]
    over = sum(map(len, entries)) - most
    if not any(entry.startswith(_GRAVE) for entry in entries):
        _refuse(len(text), most)
    same_id = b"%b\x01%b\x02" % (PROPERTY_ORIGIN_ID.encode(), value_in(text, texts.MESSAGE_ID))
    if over > 0 and same_id in entries:
        entries.remove(same_id)
        over -= len(same_id)
    for at, entry in enumerate(entries):
        if over > 0 and entry.startswith(_REASONS):
            entries[at] = _shortened(entry, over)
            over -= len(entry) - len(entries[at])
    for start in _GIVING_WAY:
        if over <= 0:
            break
        over -= sum(len(entry) for entry in entries if entry.startswith(start))
        entries = [entry for entry in entries if not entry.startswith(start)]
    if over > 0:
        _refuse(over + most, most)
    return b"".join(entries)


def _refuse(length: int, most: int) -> None:
    raise IllegalArgumentError(f"the properties have {length} bytes; a record holds at most {most}, and their sum")


def _shortened(entry: bytes, by: int) -> bytes:
    """Return an entry whose value is shorter by so many bytes at least; nothing when no value is left."""
    name, _, value = entry[:-1].partition(b"\x01")
    kept = value[: max(0, len(value) - by)].decode(errors="ignore").encode()
    return b"%b\x01%b\x02" % (name, kept) if kept else b""
