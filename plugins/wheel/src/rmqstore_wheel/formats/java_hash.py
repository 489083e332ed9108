"""Java's ``String.hashCode``: h = 31 * h + c over the UTF-16 units c of a text, in 32 bits, signed.

RocketMQ keeps it as the tags code of a consume queue, as the topic hash of a timer log, and as the key hash of an index file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rmqstore.columns import nulls_of
from rmqstore.late import pa
from rmqstore_wheel.formats.binary_columns import Octets


def java_hash(text: str) -> int:
    """Return the hash of one text, -2**31 to 2**31-1; 0 for the empty text."""
    result = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        result = (31 * result + (high << 8) + low) & 0xFFFFFFFF
    return result - (result >> 31 << 32)


def java_hashes(column: pa.Array) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the hash of every text of a string (or UTF-8 binary) column; 0 for nulls and empty texts."""
    if column.null_count:
        hashes = np.zeros(len(column), np.int32)
        hashes[~nulls_of(column)] = java_hashes(column.drop_null())
        return hashes
    if not len(column):
        return np.zeros(0, np.int32)
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    offsets = np.frombuffer(column.buffers()[1], np.int64 if wide else np.int32)[column.offset : column.offset + len(column) + 1]
    data = column.buffers()[2]
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        return np.zeros(len(column), np.int32)
    units: Any = np.frombuffer(data, np.uint8)[first:last]
    bounds = offsets.astype(np.int64) - first
    if units.max() >= 0x80:
        units, bounds = _utf16(units, bounds)
    lengths = np.diff(bounds)
    # The unit at distance d from the end of its text counts 31**d times; 32-bit sums wrap as Java's do.
    distance = np.repeat(bounds[1:], lengths) - 1 - np.arange(len(units))
    weighted = units * (np.uint32(31) ** np.arange(lengths.max(), dtype=np.uint32))[distance]
    sums = np.zeros(len(units) + 1, np.uint32)
    np.cumsum(weighted, dtype=np.uint32, out=sums[1:])
    return (sums[bounds[1:]] - sums[bounds[:-1]]).view(np.int32)


def _utf16(data: Octets, bounds: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[Any, Any]:
    """Return the UTF-16 units of UTF-8 bytes, and the bounds of the texts among them."""
    # A unit for every byte that starts a character, and a second one for characters of four bytes.
    units_of_byte = ((data & 0xC0) != 0x80).astype(np.int64) + (data >= 0xF0)
    ends = np.zeros(len(data) + 1, np.int64)
    np.cumsum(units_of_byte, out=ends[1:])
    units = np.frombuffer(data.tobytes().decode().encode("utf-16-be"), ">u2").astype(np.uint32)
    return units, ends[bounds]
