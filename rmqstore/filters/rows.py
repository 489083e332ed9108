"""An SQL92 condition on one message: made once into nested functions, which are then called for each message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from rmqstore.filters.numbers import compare_numbers, number_of
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
    Place,
    Property,
    SameText,
    SameTruth,
    Text,
)

Properties: TypeAlias = Mapping[str, str]
Tester: TypeAlias = Callable[[Properties], bool | None]
"""Tells whether a condition is true for a message; None when that is unknown."""

HOLDS: dict[Place, Callable[[str, str], bool]] = {
    Place.CONTAINS: str.__contains__,
    Place.STARTSWITH: str.startswith,
    Place.ENDSWITH: str.endswith,
}


def tester_of(condition: Condition) -> Tester:
    """Return a condition as a function of the properties of a message."""
    match condition:
        case Constant(value):
            return lambda _: value
        case CompareNumbers(symbol, left, right):
            return _numbers(symbol, left, right)
        case SameText(Property(name), other):
            return _text(name, other.value.__eq__) if isinstance(other, Text) else partial(_same_text, name, other.name)
        case SameTruth(left, right):
            return partial(_same_truth, tester_of(left), tester_of(right))
        case IsTrue(Property(name)):
            return _text(name, lambda text: text.isascii() and text.lower() == "true")
        case IsOneOf(Property(name), values):
            return _text(name, values.__contains__)
        case Holds(place, Property(name), wanted):
            holds = HOLDS[place]
            return _text(name, lambda text: holds(text, wanted))
        case IsLike(Property(name), pattern):
            return _text(name, pattern.matches)
        case IsMissing(Property(name)):
            return lambda properties: name not in properties
        case IsUnknown(operand):
            return _unknown(tester_of(operand))
        case Not(operand):
            return _opposite(tester_of(operand))
        case AllOf(parts):
            return _decided(False, [tester_of(part) for part in parts])
        case AnyOf(parts):
            return _decided(True, [tester_of(part) for part in parts])


def _text(name: str, test: Callable[[str], bool]) -> Tester:
    def tested(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else test(text)

    return tested


def _numbers(symbol: str, left: Property, right: Property | Number) -> Tester:
    def compared(properties: Properties) -> bool | None:
        one = _number(properties.get(left.name))
        other = right.value if isinstance(right, Number) else _number(properties.get(right.name))
        return None if one is None or other is None else compare_numbers(symbol, one, other)

    return compared


def _number(text: str | None) -> int | float | None:
    return None if text is None else number_of(text)


def _same_text(name: str, other: str, properties: Properties) -> bool | None:
    one, two = properties.get(name), properties.get(other)
    return None if one is None or two is None else one == two


def _same_truth(left: Tester, right: Tester, properties: Properties) -> bool | None:
    one, two = left(properties), right(properties)
    return None if one is None or two is None else one == two


def _unknown(tester: Tester) -> Tester:
    return lambda properties: tester(properties) is None


def _opposite(tester: Tester) -> Tester:
    def opposite(properties: Properties) -> bool | None:
        truth = tester(properties)
        return None if truth is None else not truth

    return opposite


def _decided(by: bool, testers: Sequence[Tester]) -> Tester:
    """Return what one part alone decides, else None if a part is unknown, else the opposite."""

    def decided(properties: Properties) -> bool | None:
        unknown = False
        for tester in testers:
            truth = tester(properties)
            if truth is by:
                return by
            unknown |= truth is None
        return None if unknown else not by

    return decided
