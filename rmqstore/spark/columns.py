"""The columns of messages as Spark names them, and what is refused by name or type before any row is looked at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from rmqstore.batch import IN_SCHEMA, OUT_SCHEMA
from rmqstore.errors import IllegalMessageError, IllegalMessageTypeError

_NULL: Final = "void"
_AS_MS: Final = "write unix_millis({}) AS {}"


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
        if name not in OUT_SCHEMA.names:
            hint = f"; {_AS_MS.format('deliver_at', 'deliver_at_ms')}" if name == "deliver_at" else ""
            raise IllegalMessageError(f"column {name!r} is unknown; a message has {', '.join(IN_SCHEMA.names)}{hint}")
        if name in IN_SCHEMA.names:
            wanted = ddl_type(IN_SCHEMA.field(name).type)
            if kind not in (wanted, _NULL):
                # A timestamp that is cast to a number gives seconds.
                hint = _AS_MS.format(name, name) if kind.startswith("timestamp") and name.endswith("_ms") else "cast it"
                raise IllegalMessageTypeError(f"column {name!r} must be {wanted}, not {kind}; {hint}")
    for name in ("topic", "body"):
        if name not in names:
            raise IllegalMessageError(f"column {name!r} is missing; a message needs at least topic and body")


def written_columns(names: Sequence[str]) -> list[str]:
    """Return those of the columns that a write takes; what a read gave besides means nothing to a new message."""
    return [name for name in IN_SCHEMA.names if name in names]
