"""Export and import of the state of a store, and what is known of stores whose state was loaded: what both sides share of that.

**Exports** are pages of rows, and of entries of the database. The two tables that may be large, timers and messages, are read run by run
and turned into columns a page at a time; nothing else is read row by row that could be long. What cannot be read is an error here and never
left out: a move of a store must not lose anything.

**Imports**: each call is one write, and rows of the two large tables are encoded by columns.

**Adopted stores**, whose state was loaded: their handles and receipts go on meaning what they meant (``rmqstore.contract.state.Adopted``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from rmqstore.contract.state import Adopted, StatePage
from rmqstore.engine.kv.base import OrderedKV, WriteBatch
from rmqstore.engine.marks import find_mark
from rmqstore.engine.schema import ADOPTED, EPOCH_KEY, IMPORTED, MARK_AGE, META, U32, U64, after_prefix
from rmqstore.engine.shared import epoch_of
from rmqstore.errors import CorruptStoreError, UnsupportedOperationError
from rmqstore.late import np, pa, schemas

_T = TypeVar("_T")

Rows: TypeAlias = Iterable[Mapping[str, Any]]
_MARK_AT: Final = len(MARK_AGE) + 1 + U64.size
"""Where the mark begins in a key of marks by age."""


def of_table(tables: Mapping[str, _T], table: str) -> _T:
    """Return what belongs to a table: its schema, or what takes its rows.

    Raises:
        UnsupportedOperationError: there is no such table.
    """
    if table not in tables:
        raise UnsupportedOperationError(f"there is no table {table!r}; there are {', '.join(tables)}")
    return tables[table]


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
        for key, value in kv.scan_all(space, max(prefix, (after or b"") + b"\x00"), after_prefix(prefix), limit):
            rows += rows_of(key, value)
            if len(rows) >= limit:
                return StatePage(pa.RecordBatch.from_pylist(rows, schema=schema), key)
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


# ---------------------------------------------------------------- imports


def is_taken_in(kv: OrderedKV, side: bytes, marks: Sequence[bytes]) -> bool:
    """Say whether a call with one of these marks was taken in already."""
    return any(kv.get(META, IMPORTED + side + mark) is not None for mark in marks)


def note_taken_in(write: WriteBatch, side: bytes, marks: Sequence[bytes]) -> None:
    """Add the marks of a call to its write."""
    write.put_many(META, [(IMPORTED + side + mark, b"") for mark in marks])


def raise_epoch(kv: OrderedKV, write: WriteBatch, epoch: int) -> None:
    """See to it that the next open gets an epoch above ``epoch``."""
    if epoch > epoch_of(kv):
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
    return pa.RecordBatch.from_arrays([rows.column(name) for name in schemas.IN_SCHEMA.names], schema=schemas.IN_SCHEMA)


def put_adopted(write: WriteBatch, side: bytes, rows: pa.RecordBatch) -> None:
    """Add the stores whose state is taken in to the write; one that is complete takes the marks of its load away."""
    for adopted in map(Adopted.from_bytes, rows.column("record").to_pylist()):
        write.put(META, ADOPTED + side + U32.pack(adopted.store_tag), adopted.to_bytes())
        if adopted.is_complete and adopted.dump_id:
            prefix = IMPORTED + side + adopted.dump_id.encode()
            write.delete_range(META, prefix, prefix + b"\xff")


# ---------------------------------------------------------------- adopted stores


def stored_adopted(kv: OrderedKV, side: bytes) -> dict[int, Adopted]:
    """Return what one side knows of other stores, by their tag."""
    prefix = ADOPTED + side
    return {
        U32.unpack_from(key, len(prefix))[0]: Adopted.from_bytes(value) for key, value in kv.scan_all(META, prefix, after_prefix(prefix))
    }


def giver_of(seq: int, store_tag: int, adopted: Mapping[int, Adopted]) -> int:
    """Return the number of the store that gave a seq: each one that is loaded was there before those that the next one gave."""
    if not adopted:
        return store_tag
    return min(((each.last_seq, each.store_tag) for each in adopted.values() if seq <= each.last_seq), default=(0, store_tag))[1]
