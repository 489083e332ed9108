"""What every filter is, whatever language it was written in; and property columns: how they are made, and how a filter reads them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmqstore.errors import IllegalArgumentError, IllegalArgumentTypeError
from rmqstore.filters.numbers import NumberColumn, numbers_of

PropertyColumns: TypeAlias = Mapping[str, "pa.Array | pa.ChunkedArray"]
"""Property values by property name: one Arrow string per message, null where the message has no such property.

A name that is not there is a property that no message has.
"""

Mask: TypeAlias = npt.NDArray[np.bool_]
"""One bool per message: whether it passes."""


class Filter(ABC):
    """A parsed filter expression; immutable, so threads may share it.

    Attributes:
        expression: the text it was parsed from.
        names: the properties that the outcome depends on; no other needs to be decoded. The tag is ``TAGS``, the keys are
            ``KEYS``, the message id is ``UNIQ_KEY`` and the message group is ``__SHARDINGKEY``.
    """

    expression: str
    names: frozenset[str]

    @abstractmethod
    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether a message with these properties passes."""

    @abstractmethod
    def mask(self, columns: PropertyColumns, count: int) -> Mask:
        """Return which of ``count`` messages pass; the same answers as :meth:`matches`, for many at once.

        Raises:
            IllegalArgumentError: a column that the filter needs has not ``count`` rows.
            IllegalArgumentTypeError: a column that the filter needs holds no text.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.expression!r})"


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
