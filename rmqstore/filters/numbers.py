"""Texts as numbers, for one text and for a column; both follow one rule.

A text is a number when it is written in ASCII as a decimal number: an optional sign, digits with at most one point, and an optional
exponent. Nothing else is: no blank, no ``NaN``, no ``Infinity``, no hexadecimal, no Java suffix such as ``5L`` or ``5f``.

A number without point and exponent that fits into 64 bits is an integer, every other is a double. Two integers are compared exactly,
all else as doubles. So ids of 19 digits are told apart, as they are in Java.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1

_INTEGER = re.compile(r"[+-]?0*[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SAFE_DIGITS = 18
"""Any integer of so many digits fits into 64 bits."""

COMPARATORS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "=": (operator.eq, "equal"),
    "<": (operator.lt, "less"),
    "<=": (operator.le, "less_equal"),
    ">": (operator.gt, "greater"),
    ">=": (operator.ge, "greater_equal"),
}
"""What an operator does to two Python numbers, and the name of the Arrow kernel that does it to columns."""

Numeric: TypeAlias = int | float


def number_of(text: str) -> Numeric | None:
    """Return the number that a text is; None when it is none."""
    if text.isdecimal() and text.isascii() and len(text) <= _SAFE_DIGITS:  # the usual one
        return int(text)
    if _INTEGER.fullmatch(text):
        # Python refuses to convert very long texts, and zeros in front count.
        digits = text.lstrip("+-").lstrip("0") or "0"
        value = -int(digits) if text.startswith("-") else int(digits)
        return value if MIN_INTEGER <= value <= MAX_INTEGER else float(value)
    return float(text) if _NUMBER.fullmatch(text) else None


def compare_numbers(symbol: str, left: Numeric, right: Numeric) -> bool:
    """Compare two numbers by the rule of the module."""
    compare = COMPARATORS[symbol][0]
    if isinstance(left, int) and isinstance(right, int):
        return compare(left, right)
    return compare(float(left), float(right))


@dataclass(frozen=True, slots=True)
class NumberColumn:
    """A column of texts as numbers.

    ``integers`` is null where the text is no integer. ``doubles`` is null where it is no number; an integer is in both. ``doubles`` is
    left out when every text is an integer.
    """

    integers: pa.Array
    doubles: pa.Array | None


def numbers_of(texts: pa.Array) -> NumberColumn:
    """Convert a column of Arrow strings."""
    # The usual column holds short plain integers; two cheap kernels tell, where a regular expression would take ten times as long.
    plain = pc.and_(pc.ascii_is_decimal(texts), pc.less_equal(pc.binary_length(texts), _SAFE_DIGITS))
    if pc.all(plain, min_count=0).as_py():
        return NumberColumn(pc.cast(texts, pa.int64()), None)
    unsigned = pc.utf8_ltrim(texts, "+")
    null = pa.scalar(None, texts.type)
    integers = pc.cast(pc.if_else(_are_integers(texts), unsigned, null), pa.int64())
    doubles = pc.cast(pc.if_else(pc.match_substring_regex(texts, rf"\A{_NUMBER.pattern}\z"), unsigned, null), pa.float64())
    return NumberColumn(integers, doubles)


def _are_integers(texts: pa.Array) -> pa.Array:
    """Return which texts are integers of 64 bits."""
    found = pc.match_substring_regex(texts, rf"\A{_INTEGER.pattern}\z")
    digits = pc.utf8_ltrim(pc.utf8_ltrim(texts, "+-"), "0")
    # 19 digits may be too many; among texts of one length the order of the letters is the order of the numbers.
    last = pc.if_else(pc.starts_with(texts, "-"), str(-MIN_INTEGER), str(MAX_INTEGER))
    fits = pc.or_(pc.less_equal(pc.binary_length(digits), _SAFE_DIGITS), pc.less_equal(digits, pc.cast(last, texts.type)))
    return pc.and_(found, fits)


def compare_columns(symbol: str, left: NumberColumn, right: NumberColumn | Numeric) -> pa.Array:
    """Compare numbers row by row, by the rule of the module; null where one of the two is none."""
    kernel = getattr(pc, COMPARATORS[symbol][1])
    if isinstance(right, float):
        return kernel(_doubles(left), pa.scalar(right, pa.float64()))
    if isinstance(right, int):
        exact = kernel(left.integers, pa.scalar(right, pa.int64()))
        return exact if left.doubles is None else pc.coalesce(exact, kernel(left.doubles, pa.scalar(float(right), pa.float64())))
    exact = kernel(left.integers, right.integers)
    if left.doubles is None and right.doubles is None:
        return exact
    return pc.coalesce(exact, kernel(_doubles(left), _doubles(right)))


def _doubles(column: NumberColumn) -> pa.Array:
    return pc.cast(column.integers, pa.float64(), safe=False) if column.doubles is None else column.doubles
