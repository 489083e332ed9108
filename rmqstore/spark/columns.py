"""The columns of messages as Spark names them, and what is refused by name or type before any row is looked at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.batch import IN_SCHEMA, OUT_SCHEMA
from rmqstore.errors import IllegalMessageError, IllegalMessageTypeError

_NULL: Final = "void"
_AS_MS: Final = "write unix_millis({}) AS {}"
_READ_ONLY: Final = "shard"
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

    Args:
        columns: name, and Spark's name of the type.

    Raises:
        IllegalMessageError: naming the column (:class:`IllegalMessageTypeError` when its type is wrong).
    """
    given = list(columns)
    names = [name for name, _ in given]
    for name, kind in given:
        if names.count(name) > 1:
            raise IllegalMessageError(f"column {name!r} is there more than once")
        if name not in (*OUT_SCHEMA.names, DELIVER_AT, _READ_ONLY):
            raise IllegalMessageError(f"column {name!r} is unknown; a message has {', '.join(IN_SCHEMA.names)}, or {DELIVER_AT}")
        if name == DELIVER_AT and kind != "timestamp":
            raise IllegalMessageTypeError(f"column {name!r} must be timestamp, not {kind}; numbers of milliseconds go to deliver_at_ms")
        if name in IN_SCHEMA.names:
            wanted = ddl_type(IN_SCHEMA.field(name).type)
            if kind not in (wanted, _NULL):
                # A timestamp that is cast to a number gives seconds.
                hint = _AS_MS.format(name, name) if kind.startswith("timestamp") and name.endswith("_ms") else "cast it"
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
    """Return the columns of messages in a batch of Spark's, with deliver times in milliseconds.

    Raises:
        IllegalMessageError: a deliver time is one of seconds or of microseconds.
    """
    batch = batch.select(written_columns(batch.schema.names))
    at = batch.schema.get_field_index(DELIVER_AT)
    if at >= 0:
        # As datetimes elsewhere, a part of a millisecond is rounded up.
        whole = pc.ceil_temporal(batch.column(at), unit="millisecond").cast(pa.timestamp("ms", "UTC"))
        batch = batch.set_column(at, "deliver_at_ms", whole.cast(pa.int64()))
    if "deliver_at_ms" in batch.schema.names and pa.types.is_int64(batch.column("deliver_at_ms").type):
        _check_unit(batch.column("deliver_at_ms"))
    return batch


def _check_unit(deliver_at_ms: pa.Array) -> None:
    seconds = pc.and_(pc.greater_equal(deliver_at_ms, _SECONDS.start), pc.less(deliver_at_ms, _SECONDS.stop))
    wrong = deliver_at_ms.filter(pc.or_(seconds, pc.greater_equal(deliver_at_ms, _MICROSECONDS_FROM)))
    if len(wrong):
        value = wrong[0].as_py()
        unit = "seconds" if value in _SECONDS else "microseconds"
        raise IllegalMessageError(f"column 'deliver_at_ms': {value} looks like {unit}; it takes milliseconds since the epoch")
