"""What an SQL92 filter says: operands, and conditions that are true, false or unknown (None) for a message.

Each condition is made once into two functions that give the same answers: one for one message, and one for the columns of many, with an
Arrow kernel per comparison and Kleene logic between them. The functions here are named by what is compared: numbers, texts or truths, after
types were checked and operands put in order. A negated form is :func:`opposite` of the plain one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.filters.filter import ColumnReader
from rmqstore.filters.numbers import Numeric, compare_columns, compare_numbers, number_of

Truth: TypeAlias = bool | None
Properties: TypeAlias = Mapping[str, str]
Truths: TypeAlias = "pa.BooleanArray | pa.BooleanScalar"
"""One bool or null per message; a scalar where all messages have the same."""


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a property: a text, or unknown where a message has none of this name."""

    name: str

    def number(self, properties: Properties) -> Numeric | None:
        """Return the number that the text is; None when it is none."""
        text = properties.get(self.name)
        return None if text is None else number_of(text)


@dataclass(frozen=True, slots=True)
class Text:
    """A string that the expression holds."""

    value: str


@dataclass(frozen=True, slots=True)
class Number:
    """A number that the expression holds, with its sign."""

    value: Numeric


@dataclass(frozen=True, slots=True)
class Constant:
    """TRUE, FALSE, or NULL as None."""

    value: Truth


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that is true, false or unknown.

    Attributes:
        names: the properties that the outcome depends on.
        truth: for the properties of one message.
        truths: for the columns of many; null where it is unknown.
    """

    names: frozenset[str]
    truth: Callable[[Properties], Truth]
    truths: Callable[[ColumnReader], Truths]


# ---------------------------------------------------------------- of one property

Test: TypeAlias = tuple[Callable[[str], bool], Callable[[pa.Array], pa.BooleanArray]]
"""A test of a text, and the same of a column of texts, where null stays null."""


def of_text(name: str, test: Test) -> Condition:
    """Return a test of the text of a property; unknown where a message has no such property."""
    passes, passing = test

    def truth(properties: Properties) -> Truth:
        text = properties.get(name)
        return None if text is None else passes(text)

    return Condition(frozenset({name}), truth, lambda columns: passing(columns.texts(name)))


IS_TRUE: Final[Test] = (
    lambda text: text.isascii() and text.lower() == "true",
    lambda texts: pc.equal(pc.ascii_lower(texts), "true"),
)
"""Whether a text is ``true``, in any case (Java's ``Boolean.valueOf``)."""


def is_text(wanted: str) -> Test:
    """Whether a text is another one, letter by letter."""
    return wanted.__eq__, lambda texts: pc.equal(texts, pa.scalar(wanted, texts.type))


def is_one_of(values: frozenset[str]) -> Test:
    """Whether a text is one of some."""

    def passing(texts: pa.Array) -> pa.BooleanArray:
        found = pc.is_in(texts, value_set=pa.array(sorted(values), texts.type))
        return pc.if_else(pc.is_valid(texts), found, pa.scalar(None, pa.bool_())) if texts.null_count else found

    return values.__contains__, passing


HOLDS: Final[dict[str, Callable[[str], Test]]] = {
    "CONTAINS": lambda wanted: (lambda text: wanted in text, lambda texts: pc.match_substring(texts, wanted)),
    "STARTSWITH": lambda wanted: (lambda text: text.startswith(wanted), lambda texts: pc.starts_with(texts, wanted)),
    "ENDSWITH": lambda wanted: (lambda text: text.endswith(wanted), lambda texts: pc.ends_with(texts, wanted)),
}
"""Whether a text contains another one, starts or ends with it."""


def is_missing(name: str) -> Condition:
    """Return whether a message has no such property; never unknown."""
    return Condition(frozenset({name}), lambda properties: name not in properties, lambda columns: pc.is_null(columns.texts(name)))


# ---------------------------------------------------------------- of two operands


def compared(symbol: str, left: Property, right: Property | Number) -> Condition:
    """Return a comparison of numbers; ``symbol`` is a key of :data:`~rmqstore.filters.numbers.COMPARATORS`."""

    def truth(properties: Properties) -> Truth:
        one = left.number(properties)
        other = right.value if isinstance(right, Number) else right.number(properties)
        return None if one is None or other is None else compare_numbers(symbol, one, other)

    def truths(columns: ColumnReader) -> Truths:
        other = right.value if isinstance(right, Number) else columns.numbers(right.name)
        return compare_columns(symbol, columns.numbers(left.name), other)

    names = frozenset({left.name} if isinstance(right, Number) else {left.name, right.name})
    return Condition(names, truth, truths)


def same_text(one: str, other: str) -> Condition:
    """Return whether two properties are equal, letter by letter."""
    return Condition(
        frozenset({one, other}),
        lambda properties: _same(properties.get(one), properties.get(other)),
        lambda columns: pc.equal(columns.texts(one), columns.texts(other)),
    )


def same_truth(left: Condition, right: Condition) -> Condition:
    """Return whether two conditions have the same outcome; unknown when one of them is unknown."""
    return Condition(
        left.names | right.names,
        lambda properties: _same(left.truth(properties), right.truth(properties)),
        lambda columns: pc.equal(left.truths(columns), right.truths(columns)),
    )


def _same(one: str | Truth, other: str | Truth) -> Truth:
    return None if one is None or other is None else one == other


# ---------------------------------------------------------------- logic


def constant(value: Truth) -> Condition:
    """Return what has the same outcome for every message."""
    return Condition(frozenset(), lambda _: value, lambda _: pa.scalar(value, pa.bool_()))


def is_unknown(of: Condition) -> Condition:
    """Return whether a condition is unknown; this itself never is."""
    return Condition(of.names, lambda properties: of.truth(properties) is None, lambda columns: pc.is_null(of.truths(columns)))


def opposite(of: Condition) -> Condition:
    """Return the opposite of a condition; unknown stays unknown."""

    def truth(properties: Properties) -> Truth:
        found = of.truth(properties)
        return None if found is None else not found

    return Condition(of.names, truth, lambda columns: pc.invert(of.truths(columns)))


def all_of(parts: Sequence[Condition]) -> Condition:
    """Return AND: false when one part is false, else unknown when one is unknown, else true."""
    return _joined(False, pc.and_kleene, parts)


def any_of(parts: Sequence[Condition]) -> Condition:
    """Return OR: true when one part is true, else unknown when one is unknown, else false."""
    return _joined(True, pc.or_kleene, parts)


def _joined(by: bool, kernel: Callable[[Truths, Truths], Truths], parts: Sequence[Condition]) -> Condition:
    """Return what one part alone decides when it is ``by``."""

    def truth(properties: Properties) -> Truth:
        unknown = False
        for part in parts:
            found = part.truth(properties)
            if found is by:
                return by
            unknown |= found is None
        return None if unknown else not by

    names = frozenset[str]().union(*(part.names for part in parts))
    return Condition(names, truth, lambda columns: reduce(kernel, (part.truths(columns) for part in parts)))
