"""Batches with a fault in them: other values in a column, other rows, another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from rmqstore import MessageBatch
from rmqstore.contract import DueBatch


def with_column(batch: MessageBatch, name: str, values: Sequence[Any]) -> MessageBatch:
    """Return a batch with other values in one column."""
    columns = batch.columns
    at = columns.schema.get_field_index(name)
    return MessageBatch(columns=columns.set_column(at, columns.schema.field(at), pa.array(values, columns.schema.field(at).type)))


def of_rows(batch: MessageBatch, rows: Sequence[int]) -> MessageBatch:
    """Return some rows of a batch, in this order."""
    return MessageBatch(columns=batch.columns.take(pa.array(rows, pa.int64())))


def values_of(batch: MessageBatch, name: str) -> list[Any]:
    """Return one column."""
    found: list[Any] = batch.columns.column(name).to_pylist()
    return found


def holding(due: DueBatch, messages: MessageBatch) -> DueBatch:
    """Return what was due with other messages in it."""
    return DueBatch(messages, due.cursor, due.soft)
