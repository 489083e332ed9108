"""Counts the calls of one attempt by kind and latency, in a form that the attempts of all shards add up to by SQL."""

from __future__ import annotations

import threading
from typing import Final

import msgspec
import pyarrow as pa

from rmqstore_benchmarks.histogram import bucket_of

CALLS: Final = "shard int, op string, bucket int, calls long, messages long, ns long"
"""Calls of one kind whose latency fell into one bucket of ns; ``messages`` and ``ns`` are sums over them."""

_SCHEMA: Final = pa.schema(
    [("shard", pa.int32()), ("op", pa.string()), ("bucket", pa.int32())] + [(name, pa.int64()) for name in ("calls", "messages", "ns")]
)


class Cell(msgspec.Struct, frozen=True, array_like=True):
    """Calls of one kind and one bucket on all shards, as in :data:`CALLS`."""

    op: str
    bucket: int
    calls: int
    messages: int
    ns: int


class Calls:
    """The calls on one shard; safe to share between threads."""

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self._lock = threading.Lock()
        self._cells: dict[tuple[str, int], list[int]] = {}

    def add(self, op: str, ns: int, messages: int) -> None:
        """Note one call."""
        with self._lock:
            cell = self._cells.setdefault((op, bucket_of(ns)), [0, 0, 0])
            cell[0] += 1
            cell[1] += messages
            cell[2] += ns

    def batch(self) -> pa.RecordBatch:
        """Return everything noted, as rows of :data:`CALLS`."""
        with self._lock:
            rows = [(self._shard, *key, *cell) for key, cell in self._cells.items()]
        columns = zip(*rows, strict=True) if rows else [()] * len(_SCHEMA)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
