"""What the imports of both sides are made of: each call is one write, and rows of the two large tables are encoded by columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rmqstore.batch import IN_SCHEMA
from rmqstore.contract.state import Adopted
from rmqstore.engine.kv.base import OrderedKV, WriteBatch
from rmqstore.engine.schema import EPOCH_KEY, IMPORTED, META
from rmqstore.engine.state.adopted import put_adopted
from rmqstore.errors import UnsupportedOperationError


def is_taken_in(kv: OrderedKV, side: bytes, marks: Sequence[bytes]) -> bool:
    """Say whether a call with one of these marks was taken in already."""
    return any(kv.get(META, IMPORTED + side + mark) is not None for mark in marks)


def note_taken_in(write: WriteBatch, side: bytes, marks: Sequence[bytes]) -> None:
    """Add the marks of a call to its write."""
    write.put_many(META, [(IMPORTED + side + mark, b"") for mark in marks])


def raise_epoch(kv: OrderedKV, write: WriteBatch, epoch: int) -> None:
    """See to it that the next open gets an epoch above ``epoch``."""
    if epoch > int.from_bytes(kv.get(META, EPOCH_KEY) or b"", "big"):
        write.put(META, EPOCH_KEY, epoch.to_bytes(4, "big"))


def stretches(*changes: Any) -> list[tuple[int, int]]:
    """Return (start, stop) of the stretches between the rows where any of the columns says that something new begins."""
    begins = np.logical_or.reduce(changes)
    begins[:1] = True
    starts = np.flatnonzero(begins)
    return list(zip(starts.tolist(), [*starts[1:].tolist(), len(begins)], strict=True))


def numbers(rows: pa.RecordBatch, name: str) -> Any:
    """Return a column as a NumPy array."""
    return rows.column(name).to_numpy(zero_copy_only=False)


def messages_in(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return what rows say of messages, as a batch of ``IN_SCHEMA``."""
    return pa.RecordBatch.from_arrays([rows.column(name) for name in IN_SCHEMA.names], schema=IN_SCHEMA)


def taker(takers: dict[str, Callable[[pa.RecordBatch], None]], table: str, known: Any) -> Callable[[pa.RecordBatch], None]:
    """Return what takes the rows of a table.

    Raises:
        UnsupportedOperationError: there is no such table.
    """
    if table not in takers:
        raise UnsupportedOperationError(f"there is no table {table!r}; there are {', '.join(known)}")
    return takers[table]


def put_all_adopted(write: WriteBatch, side: bytes, rows: pa.RecordBatch) -> None:
    """Add the stores whose state is taken in to the write."""
    for record in rows.column("record").to_pylist():
        put_adopted(write, side, Adopted.from_bytes(record))
