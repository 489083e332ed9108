"""Property columns: how they are made from messages, and how a filter reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from rmqstore.errors import IllegalArgumentError, IllegalArgumentTypeError
from rmqstore.filters.filter import PropertyColumns
from rmqstore.filters.numbers import NumberColumn, numbers_of


def columns_of(rows: Sequence[Mapping[str, str]], names: Iterable[str]) -> PropertyColumns:
    """Return the named properties of messages, given as one mapping per message."""
    return {name: pa.array([row.get(name) for row in rows], pa.string()) for name in names}


class ColumnReader:
    """The columns of one call: each is checked when it is first asked for, and converted to numbers once at most."""

    def __init__(self, columns: PropertyColumns, count: int) -> None:
        self._columns = columns
        self._count = count
        self._texts: dict[str, pa.Array] = {}
        self._numbers: dict[str, NumberColumn] = {}

    def texts(self, name: str) -> pa.Array:
        """Return the values of a property as Arrow strings."""
        found = self._texts.get(name)
        if found is None:
            found = self._texts[name] = self._checked(name)
        return found

    def numbers(self, name: str) -> NumberColumn:
        """Return the values of a property as numbers."""
        found = self._numbers.get(name)
        if found is None:
            found = self._numbers[name] = numbers_of(self.texts(name))
        return found

    def _checked(self, name: str) -> pa.Array:
        column = self._columns.get(name)
        if column is None:
            return pa.nulls(self._count, pa.string())
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if len(column) != self._count:
            raise IllegalArgumentError(f"the column of property {name!r} has {len(column)} rows where the call names {self._count}")
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            raise IllegalArgumentTypeError(f"the column of property {name!r} must hold Arrow strings, not {column.type}")
        return column
