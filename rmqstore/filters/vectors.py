"""An SQL92 condition on many messages at once: one Arrow kernel per comparison, and Kleene logic between them."""

from __future__ import annotations

from functools import reduce
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.filters.columns import ColumnReader
from rmqstore.filters.numbers import compare_columns
from rmqstore.filters.patterns import Shape
from rmqstore.filters.syntax import (
    AllOf,
    AnyOf,
    CompareNumbers,
    Condition,
    Constant,
    Holds,
    IsLike,
    IsMissing,
    IsOneOf,
    IsTrue,
    IsUnknown,
    Not,
    Number,
    SameText,
    SameTruth,
    Text,
)

Truths: TypeAlias = "pa.BooleanArray | pa.BooleanScalar"
"""One bool or null per message; a scalar where all messages have the same."""


def truths_of(condition: Condition, columns: ColumnReader) -> Truths:
    """Return for each message whether a condition is true; null where that is unknown."""
    match condition:
        case Constant(value):
            return pa.scalar(value, pa.bool_())
        case CompareNumbers(symbol, left, right):
            number = right.value if isinstance(right, Number) else columns.numbers(right.name)
            return compare_columns(symbol, columns.numbers(left.name), number)
        case SameText(left, right):
            texts = columns.texts(left.name)
            return pc.equal(texts, pa.scalar(right.value, texts.type) if isinstance(right, Text) else columns.texts(right.name))
        case SameTruth(left, right):
            return pc.equal(truths_of(left, columns), truths_of(right, columns))
        case IsTrue(operand):
            return pc.equal(pc.ascii_lower(columns.texts(operand.name)), "true")
        case IsOneOf(operand, values):
            texts = columns.texts(operand.name)
            found = pc.is_in(texts, value_set=pa.array(sorted(values), texts.type))
            return pc.if_else(pc.is_valid(texts), found, pa.scalar(None, pa.bool_())) if texts.null_count else found
        case Holds(place, operand, wanted):
            return getattr(pc, place.value)(columns.texts(operand.name), wanted)
        case IsLike(operand, pattern):
            texts = columns.texts(operand.name)
            if pattern.is_long:
                return pa.array([None if text is None else pattern.matches(text) for text in texts.to_pylist()], pa.bool_())
            wanted = pa.scalar(pattern.argument, texts.type) if pattern.shape is Shape.WHOLE else pattern.argument
            return getattr(pc, pattern.shape.value)(texts, wanted)
        case IsMissing(operand):
            return pc.is_null(columns.texts(operand.name))
        case IsUnknown(operand):
            return pc.is_null(truths_of(operand, columns))
        case Not(operand):
            return pc.invert(truths_of(operand, columns))
        case AllOf(parts):
            return reduce(pc.and_kleene, (truths_of(part, columns) for part in parts))
        case AnyOf(parts):
            return reduce(pc.or_kleene, (truths_of(part, columns) for part in parts))
