"""What an SQL92 filter says: operands, and conditions that are true, false or unknown (None) for the properties of a message.

A text is a number when it is written in ASCII as a decimal number: an optional sign, digits with at most one point, and an optional
exponent. Nothing else is: no blank, no ``NaN``, no ``Infinity``, no hexadecimal, no Java suffix such as ``5L`` or ``5f``.

A number without point and exponent that fits into 64 bits is an integer, every other is a double. Two integers are compared exactly,
all else as doubles. So ids of 19 digits are told apart, as they are in Java.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Truth: TypeAlias = bool | None
Properties: TypeAlias = Mapping[str, str]
Numeric: TypeAlias = int | float
Condition: TypeAlias = Callable[[Properties], Truth]

MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1

_INTEGER = re.compile(r"[+-]?0*[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""No two parts of it take the same digits, so that a long text which is no number is refused as fast as it is read."""

_SAFE_DIGITS = 18
"""Any integer of so many digits fits into 64 bits."""


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a property: a text, or unknown where a message has none of this name."""

    name: str

    def text(self, properties: Properties) -> str | None:
        return properties.get(self.name)

    def number(self, properties: Properties) -> Numeric | None:
        """Return the number that the text is; None when it is none."""
        text = properties.get(self.name)
        return None if text is None else number_of(text)


@dataclass(frozen=True, slots=True)
class Text:
    """A string that the expression holds."""

    value: str

    def text(self, _: Properties) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Number:
    """A number that the expression holds, with its sign."""

    value: Numeric

    def number(self, _: Properties) -> Numeric:
        return self.value


@dataclass(frozen=True, slots=True)
class Constant:
    """TRUE, FALSE, or NULL as None."""

    value: Truth


# ---------------------------------------------------------------- numbers


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


_COMPARATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def compared(left: Property | Number, symbol: str, right: Property | Number) -> Condition:
    """Return a comparison of numbers; unknown where one of the two is none."""
    compare = _COMPARATORS[symbol]

    def truth(properties: Properties) -> Truth:
        one, other = left.number(properties), right.number(properties)
        if one is None or other is None:
            return None
        if isinstance(one, int) and isinstance(other, int):
            return compare(one, other)
        return compare(float(one), float(other))

    return truth


# ---------------------------------------------------------------- texts


def of_text(operand: Property | Text, passes: Callable[[str], bool]) -> Condition:
    """Return a test of a text; unknown where a message has no such property."""

    def truth(properties: Properties) -> Truth:
        text = operand.text(properties)
        return None if text is None else passes(text)

    return truth


def is_true(text: str) -> bool:
    """Say whether a text is ``true``, in any case (Java's ``Boolean.valueOf``)."""
    return text.isascii() and text.lower() == "true"


HOLDS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
"""Whether a text contains another one, starts or ends with it."""


class PatternEscapeError(ValueError):
    """An escape character stands before something that needs no escape; ``offset`` counts characters of the pattern from 0."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"bad escape at character {offset}")
        self.offset = offset


def like(pattern: str, escape: str | None) -> Callable[[str], bool]:
    """Return the test of a LIKE pattern: ``%`` stands for any characters, ``_`` for one (SQL92, JMS selectors; RocketMQ has no LIKE).

    The pattern is cut at each ``%``: a text matches when it starts with the first segment, ends with the last, and holds the others in
    between, in order and without overlap. The time of a match is bounded by the product of both lengths.

    Raises:
        PatternEscapeError: the escape character is the last, or is not followed by ``%``, ``_`` or itself.
    """
    segments = [""]
    chars = iter(enumerate(pattern))
    for offset, char in chars:
        is_escaped = char == escape
        if is_escaped:
            _, char = next(chars, (offset, ""))
            if not char or char not in ("%", "_", escape):
                raise PatternEscapeError(offset)
        if char == "%" and not is_escaped:
            segments.append("")
        else:
            segments[-1] += "." if char == "_" and not is_escaped else re.escape(char)
    first, *middle = segments
    last = f".*{middle.pop()}" if middle else ""
    # Each segment takes the leftmost place, which leaves most room for the rest, and is atomic: it is not tried elsewhere.
    compiled = re.compile("".join([first, *(f"(?>.*?{segment})" for segment in middle), last]), re.DOTALL)
    return lambda text: compiled.fullmatch(text) is not None


# ---------------------------------------------------------------- logic


def constant(value: Truth) -> Condition:
    """Return what has the same outcome for every message."""
    return lambda _: value


def same(one: Callable[[Properties], str | Truth], other: Callable[[Properties], str | Truth]) -> Condition:
    """Return whether two texts are equal, letter by letter, or two conditions have the same outcome; unknown when one is unknown."""

    def truth(properties: Properties) -> Truth:
        left, right = one(properties), other(properties)
        return None if left is None or right is None else left == right

    return truth


def is_unknown(of: Callable[[Properties], str | Truth]) -> Condition:
    """Return whether a text or a condition is unknown; this itself never is."""
    return lambda properties: of(properties) is None


def opposite(of: Condition) -> Condition:
    """Return the opposite of a condition; unknown stays unknown."""

    def truth(properties: Properties) -> Truth:
        found = of(properties)
        return None if found is None else not found

    return truth


def all_of(parts: Sequence[Condition]) -> Condition:
    """Return AND: false when one part is false, else unknown when one is unknown, else true."""
    return _joined(False, parts)


def any_of(parts: Sequence[Condition]) -> Condition:
    """Return OR: true when one part is true, else unknown when one is unknown, else false."""
    return _joined(True, parts)


def _joined(by: bool, parts: Sequence[Condition]) -> Condition:
    """Return what one part alone decides when it is ``by``."""

    def truth(properties: Properties) -> Truth:
        unknown = False
        for part in parts:
            found = part(properties)
            if found is by:
                return by
            unknown |= found is None
        return None if unknown else not by

    return truth
