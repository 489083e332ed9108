"""Which shard a message belongs to: CRC-32 of its message group, else of its first key, else of its id, modulo the number of shards.

A row that has none of the three goes round the shards by its place in its task. CRC-32 is that of zlib and of Spark's ``crc32``, so SQL
gives the same shard: ``pmod(crc32(cast(coalesce(message_group, try_element_at(keys, 1), message_id) AS binary)), shards)``.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ROUTING: Final = "crc32(message_group, keys[0], message_id)"
"""The name of this rule in the manifest of a data set."""

_Numbers = np.ndarray[Any, np.dtype[Any]]


def shard_of(name: str, shards: int) -> int:
    """Return the shard of a message whose message group is ``name``, or whose first key is, when it has no group."""
    return zlib.crc32(name.encode()) % shards


def crc32_column(column: pa.Array) -> _Numbers:
    """Return the CRC-32 of every row of a string column, uint32; a null counts as empty."""
    texts = pc.fill_null(column, "").cast(pa.binary()).to_pylist()
    return np.fromiter(map(zlib.crc32, texts), np.uint32, len(texts))


def shard_column(columns: pa.RecordBatch, shards: int, first_row: int = 0) -> _Numbers:
    """Return the shard of every row of a batch of ``IN_SCHEMA``, int64.

    Args:
        first_row: number of rows that the task had before; rows without a name take their turn by it.
    """
    rows = columns.num_rows
    if shards == 1:
        return np.zeros(rows, np.int64)
    names = columns.column("message_group")
    for other in (_first_keys(columns.column("keys")), columns.column("message_id")):
        if names.null_count and other.null_count < rows:
            names = pc.coalesce(names, other)
    found = np.empty(rows, np.int64)
    if names.null_count < rows:
        found[:] = crc32_column(names) % np.uint32(shards)
    if names.null_count:
        nameless = names.is_null().to_numpy(zero_copy_only=False)
        found[nameless] = (first_row + np.flatnonzero(nameless)) % shards
    return found


def _first_keys(keys: pa.Array) -> pa.Array:
    """Return the first key of every row; null for a row without keys."""
    if keys.null_count == len(keys):
        return pa.nulls(len(keys), pa.string())
    lengths = pc.fill_null(pc.list_value_length(keys), 0).to_numpy(zero_copy_only=False)
    places = np.cumsum(lengths) - lengths
    return keys.flatten().take(pa.array(places, mask=lengths == 0))
