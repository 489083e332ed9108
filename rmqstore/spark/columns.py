"""The columns of messages as Spark names them, what is refused of them before any row is looked at, and the shard of each row."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.errors import IllegalMessageError, IllegalMessageTypeError
from rmqstore.schemas import IN_SCHEMA, OUT_SCHEMA

_READ_ONLY: Final = ("shard", "handle")
DELIVER_AT: Final = "deliver_at"
"""A column of Spark's type ``timestamp`` that stands for ``deliver_at_ms``."""

_SECONDS: Final = range(10**8, 10**11)
"""Deliver times of the years 1973 to 5138 in seconds; as milliseconds they are of 1970 to 1973."""

_MICROSECONDS_FROM: Final = 10**14
"""As milliseconds the year 5138, as microseconds 1973."""


def ddl_type(kind: pa.DataType) -> str:
    """Return Spark's name of an Arrow type that a message has."""
    if pa.types.is_list(kind):
        return f"array<{ddl_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{ddl_type(kind.key_type)},{ddl_type(kind.item_type)}>"
    return {pa.int64(): "bigint", pa.int32(): "int", pa.binary(): "binary", pa.string(): "string"}[kind]


def ddl(schema: pa.Schema) -> str:
    """Return a schema in Spark's DDL."""
    return ", ".join(f"`{field.name}` {ddl_type(field.type)}" for field in schema)


def check_columns(columns: Iterable[tuple[str, str]]) -> None:
    """Refuse columns that no message has, types that it does not have, and the lack of those that every message has.

    Each is given by its name, and Spark's name of its type.
    """
    given = list(columns)
    names = [name for name, _ in given]
    for name, kind in given:
        if names.count(name) > 1:
            raise IllegalMessageError(f"column {name!r} is there more than once")
        if name not in (*OUT_SCHEMA.names, DELIVER_AT, *_READ_ONLY):
            raise IllegalMessageError(f"column {name!r} is unknown; a message has {', '.join(IN_SCHEMA.names)}, or {DELIVER_AT}")
        if name == DELIVER_AT and kind != "timestamp":
            raise IllegalMessageTypeError(f"column {name!r} must be timestamp, not {kind}; numbers of milliseconds go to deliver_at_ms")
        if name in IN_SCHEMA.names:
            wanted = ddl_type(IN_SCHEMA.field(name).type)
            if kind not in (wanted, "void"):
                # A timestamp that is cast to a number gives seconds.
                hint = f"write unix_millis({name}) AS {name}" if kind.startswith("timestamp") and name.endswith("_ms") else "cast it"
                raise IllegalMessageTypeError(f"column {name!r} must be {wanted}, not {kind}; {hint}")
    if DELIVER_AT in names and "deliver_at_ms" in names:
        raise IllegalMessageError(f"columns {DELIVER_AT!r} and 'deliver_at_ms' say the same; leave one out")
    for name in ("topic", "body"):
        if name not in names:
            raise IllegalMessageError(f"column {name!r} is missing; a message needs at least topic and body")


def written_columns(names: Sequence[str]) -> list[str]:
    """Return those of the columns that a write takes; what a read gave besides means nothing to a new message."""
    return [name for name in (*IN_SCHEMA.names, DELIVER_AT) if name in names]


def taken(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns of messages in a batch of Spark's, with deliver times in milliseconds."""
    batch = batch.select(written_columns(batch.schema.names))
    at = batch.schema.get_field_index(DELIVER_AT)
    if at >= 0:
        # As datetimes elsewhere, a part of a millisecond is rounded up; in UTC, as Arrow goes by the zone's clock, which has an hour twice.
        times = batch.column(at).cast(pa.timestamp(batch.column(at).type.unit, "UTC"))
        # Towards 0, as Arrow's ceil overflows at the last times that there are.
        cut = times.cast(pa.timestamp("ms", "UTC"), safe=times.type.unit in ("s", "ms"))
        part = pc.greater(times, cut.cast(times.type)).cast(pa.int64())
        batch = batch.set_column(at, "deliver_at_ms", pc.add(cut.cast(pa.int64()), part))
    return batch


def check_unit(batch: pa.RecordBatch) -> None:
    """Refuse deliver times that can only be of seconds or of microseconds, in columns of ``IN_SCHEMA``."""
    times = batch.column("deliver_at_ms")
    earliest_ms, latest_ms = pc.min_max(times).values()
    if not earliest_ms.is_valid or (earliest_ms.as_py() >= _SECONDS.stop and latest_ms.as_py() < _MICROSECONDS_FROM):
        return
    seconds = pc.and_(pc.greater_equal(times, _SECONDS.start), pc.less(times, _SECONDS.stop))
    wrong = times.filter(pc.or_(seconds, pc.greater_equal(times, _MICROSECONDS_FROM)))
    if len(wrong):
        value = wrong[0].as_py()
        unit = "seconds" if value in _SECONDS else "microseconds"
        raise IllegalMessageError(f"column 'deliver_at_ms': {value} looks like {unit}; it takes milliseconds since the epoch")


# ---------------------------------------------------------------- routing


ROUTING: Final = "crc32(message_group, keys[0], message_id)"
"""The rule by which a message gets its shard, as the manifest of a data set names it.

It is the CRC-32 of its message group, else of its first key, else of its id, modulo the number of shards. A row that has none of the three
goes round the shards by its place in its task. CRC-32 is that of zlib and of Spark's ``crc32``, so SQL gives the same shard:
``pmod(crc32(cast(coalesce(message_group, try_element_at(keys, 1), message_id) AS binary)), shards)``.
"""


def shard_of(name: str, shards: int) -> int:
    """Return the shard of a message whose message group is ``name``, or whose first key is, when it has no group."""
    return zlib.crc32(name.encode()) % shards


def shard_column(columns: pa.RecordBatch, shards: int, first_row: int = 0) -> npt.NDArray[np.int64]:
    """Return the shard of every row of a batch of ``IN_SCHEMA``.

    A row without a name takes its turn by its number in its task, which had ``first_row`` rows before.
    """
    rows = columns.num_rows
    first_keys = pc.list_element(pc.list_slice(columns.column("keys"), 0, 1, return_fixed_size_list=True), 0)  # null where there is none
    names = pc.coalesce(columns.column("message_group"), first_keys, columns.column("message_id"))
    sums = np.fromiter(map(zlib.crc32, pc.fill_null(names, "").cast(pa.binary()).to_pylist()), np.int64, rows)
    found: npt.NDArray[np.int64] = np.where(names.is_null().to_numpy(zero_copy_only=False), first_row + np.arange(rows), sums) % shards
    return found
