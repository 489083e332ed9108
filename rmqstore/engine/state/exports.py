"""What the exports of both sides are made of: pages of rows, and of entries of the database.

The two tables that may be large, timers and messages, are read run by run and turned into columns a page at a time; nothing else is read
row by row that could be long. What cannot be read is an error here and never left out: a move of a store must not lose anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from rmqstore.contract.state import StatePage
from rmqstore.engine.kv.base import OrderedKV
from rmqstore.engine.marks import find_mark
from rmqstore.engine.schema import EPOCH_KEY, MARK_AGE, META, U64, after_prefix
from rmqstore.engine.state.adopted import stored_adopted
from rmqstore.errors import CorruptStoreError, UnsupportedOperationError

Rows: TypeAlias = Iterable[Mapping[str, Any]]
_MARK_AT: Final = len(MARK_AGE) + 1 + U64.size
"""Where the mark begins in a key of marks by age."""


def schema_of(tables: Mapping[str, pa.Schema], table: str) -> pa.Schema:
    """Return the schema of a table.

    Raises:
        UnsupportedOperationError: there is no such table.
    """
    if table not in tables:
        raise UnsupportedOperationError(f"there is no table {table!r}; there are {', '.join(tables)}")
    return tables[table]


def epoch_of(kv: OrderedKV) -> int:
    """Return the epoch that the database has stored."""
    return int.from_bytes(kv.get(META, EPOCH_KEY) or b"", "big")


def listed(rows: Rows, schema: pa.Schema, after: bytes | None, limit: int) -> StatePage:
    """Return a page of rows that are all in memory; the token is the number of rows given so far."""
    found = list(rows)
    start = 0 if after is None else U64.unpack(after)[0]
    page = found[start : start + limit]
    behind = start + len(page)
    return StatePage(pa.RecordBatch.from_pylist(page, schema=schema), U64.pack(behind) if behind < len(found) else None)


def scanned(
    kv: OrderedKV,
    space: int,
    rows_of: Callable[[bytes, bytes], Rows],
    schema: pa.Schema,
    after: bytes | None,
    limit: int,
    prefixes: Sequence[bytes],
) -> StatePage:
    """Return a page of the rows that the entries with these prefixes stand for; the token is the last key."""
    rows: list[Mapping[str, Any]] = []
    for prefix in prefixes:
        if after is not None and after >= after_prefix(prefix):
            continue
        start = prefix if after is None or after < prefix else after + b"\x00"
        while entries := kv.scan(space, start, after_prefix(prefix), limit):
            for key, value in entries:
                rows += rows_of(key, value)
                if len(rows) >= limit:
                    return StatePage(pa.RecordBatch.from_pylist(rows, schema=schema), key)
            start = entries[-1][0] + b"\x00"
    return StatePage(pa.RecordBatch.from_pylist(rows, schema=schema), None)


def mark_of(kv: OrderedKV, side: bytes, key: bytes) -> tuple[dict[str, Any], bytes]:
    """Return what a key of marks by age says, and the first answer of its mark.

    Raises:
        CorruptStoreError: there is no answer.
    """
    mark = key[_MARK_AT:]
    answer = find_mark(kv, side, [mark])
    if answer is None:
        raise CorruptStoreError(f"mark {mark!r} has no answer")
    return {"mark": mark, "time_ms": U64.unpack_from(key, 2)[0]}, answer


def adopted_rows(kv: OrderedKV, side: bytes) -> Rows:
    """Return the stores whose state one side took in."""
    return [{"store_tag": tag, "record": record.to_bytes()} for tag, record in sorted(stored_adopted(kv, side).items())]


def as_batch(columns: Mapping[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns that a table has."""
    return pa.RecordBatch.from_arrays([columns[field.name].cast(field.type) for field in schema], schema=schema)
