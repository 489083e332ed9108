"""Units of a consume queue: where the messages of one queue are in the commit log (``ConsumeQueue``).

A chain of files named by :func:`file_name`, 300 000 units each in RocketMQ. The unit of queue offset q is at byte 20 × q of the chain::

    0    i64  offset in the commit log
    8    i32  bytes of the record
    12   i64  tags code: Java hash of the tag, 0 without one

For topic ``SCHEDULE_TOPIC_XXXX`` the tags code is a deliver time in ms instead. A unit (0, 2**31 - 1, 0) fills the space before the first
kept offset; one of zeros was never written.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, Final

import numpy as np

from rmqstore.late import pa
from rmqstore_wheel.formats.binary_columns import Bytes, Flags, Ints, Rows
from rmqstore_wheel.formats.java_hash import java_hash, java_hashes

UNIT_BYTES: Final = 20
FILE_UNITS: Final = 300_000
_MAX_NAME_BYTES: Final = 255

FILL_SIZE: Final = 2**31 - 1
"""The size in a unit that only fills space."""

UNIT: Final = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])


def directory_name(topic: str) -> str:
    """Return the name of a topic's directory: the topic, unless no file name can be so long; then its beginning, ``~`` and a digest.

    Retry topics alone are longer than a file name may be, where group and topic have more than 247 bytes together; a broker has none such.
    """
    if len(topic) <= _MAX_NAME_BYTES:
        return topic
    digest = hashlib.sha256(topic.encode()).hexdigest()[:32]
    return f"{topic[: _MAX_NAME_BYTES - 1 - len(digest)]}~{digest}"


def tags_code(tag: str | None) -> int:
    """Return the code of one tag."""
    return java_hash(tag) if tag else 0


def tags_codes(tags: pa.Array) -> Ints:
    """Return the code of every row of a column of tags."""
    if tags.null_count == len(tags):
        return np.zeros(len(tags), np.int64)
    return java_hashes(tags).astype(np.int64)


def rows_of(log_offsets: Ints, sizes: Ints, codes: Ints | int = 0) -> Rows:
    """Return units."""
    made: Rows = np.empty(len(log_offsets), UNIT)
    made["log_offset"], made["size"], made["tags_code"] = log_offsets, sizes, codes
    return made


encode_one: Final = struct.Struct(">qiq").pack
"""Returns one unit, of the offset in the log, the size and the code of the tag."""


FILL: Final = encode_one(0, FILL_SIZE, 0)
"""A unit that fills the space before the first kept offset."""


def decode(buffer: Bytes) -> Rows:
    """Return the whole units of a buffer, without a copy: fields ``log_offset``, ``size``, ``tags_code``."""
    return np.frombuffer(buffer, UNIT, len(memoryview(buffer)) // UNIT_BYTES)


def is_message(units: Rows) -> Flags:
    """Say which units point to a message: not those that fill space, and not those that were never written."""
    sizes: Any = units["size"]
    return (sizes > 0) & (sizes < FILL_SIZE) & (units["log_offset"] >= 0)  # type: ignore[no-any-return]
