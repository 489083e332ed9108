"""What an SQL92 filter says, after its types were checked and its operands put in order.

Conditions are true, false or unknown (None). The classes name what is compared: numbers, texts or truths. A negated form is a
:class:`Not` around the plain one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from rmqstore.filters.numbers import Numeric
from rmqstore.filters.patterns import LikePattern

# ---------------------------------------------------------------- operands


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a property: a text, or unknown where a message has none of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class Text:
    """A string that the expression holds."""

    value: str


@dataclass(frozen=True, slots=True)
class Number:
    """A number that the expression holds, with its sign."""

    value: Numeric


# ---------------------------------------------------------------- conditions


@dataclass(frozen=True, slots=True)
class Constant:
    """TRUE, FALSE, or NULL as None."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class IsTrue:
    """Whether the text of a property is ``true``, in any case (Java's ``Boolean.valueOf``)."""

    operand: Property


@dataclass(frozen=True, slots=True)
class CompareNumbers:
    """A comparison of numbers; ``symbol`` is a key of :data:`~rmqstore.filters.numbers.COMPARATORS`."""

    symbol: str
    left: Property
    right: Property | Number


@dataclass(frozen=True, slots=True)
class SameText:
    """Whether two texts are equal, letter by letter."""

    left: Property
    right: Property | Text


@dataclass(frozen=True, slots=True)
class SameTruth:
    """Whether two conditions have the same outcome; unknown when one of them is unknown."""

    left: Condition
    right: Condition


@dataclass(frozen=True, slots=True)
class IsOneOf:
    """Whether a property is one of some texts."""

    operand: Property
    values: frozenset[str]


class Place(Enum):
    """Where a text is looked for in another; the value is the name of the Arrow kernel."""

    CONTAINS = "match_substring"
    STARTSWITH = "starts_with"
    ENDSWITH = "ends_with"


@dataclass(frozen=True, slots=True)
class Holds:
    """Whether a property contains a text, starts or ends with it."""

    place: Place
    operand: Property
    wanted: str


@dataclass(frozen=True, slots=True)
class IsLike:
    """Whether a property matches a LIKE pattern."""

    operand: Property
    pattern: LikePattern


@dataclass(frozen=True, slots=True)
class IsMissing:
    """Whether a message has no such property; never unknown."""

    operand: Property


@dataclass(frozen=True, slots=True)
class IsUnknown:
    """Whether a condition is unknown; this itself never is."""

    operand: Condition


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite of a condition; unknown stays unknown."""

    operand: Condition


@dataclass(frozen=True, slots=True)
class AllOf:
    """False when one part is false, else unknown when one is unknown, else true."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """True when one part is true, else unknown when one is unknown, else false."""

    parts: tuple[Condition, ...]


Condition: TypeAlias = (
    Constant | IsTrue | CompareNumbers | SameText | SameTruth | IsOneOf | Holds | IsLike | IsMissing | IsUnknown | Not | AllOf | AnyOf
)
Node: TypeAlias = Property | Text | Number | Condition


def names_of(node: Node) -> frozenset[str]:
    """Return the names of the properties that a node looks at."""
    match node:
        case Property(name):
            return frozenset({name})
        case Text() | Number() | Constant():
            return frozenset()
        case CompareNumbers(_, left, right) | SameText(left, right) | SameTruth(left, right):
            return names_of(left) | names_of(right)
        case AllOf(parts) | AnyOf(parts):
            return frozenset().union(*map(names_of, parts))
        case (
            Not(operand)
            | IsMissing(operand)
            | IsUnknown(operand)
            | IsTrue(operand)
            | IsOneOf(operand)
            | Holds(_, operand)
            | IsLike(operand)
        ):
            return names_of(operand)
