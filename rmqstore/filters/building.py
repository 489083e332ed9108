"""From the parts of an SQL92 expression to its conditions: what may stand with what, and what it means.

Each public method of :class:`Builder` is the action of the grammar's rule of the same name. It gets what the rule's parts gave, tokens
and :class:`Built` nodes, and gives a node. What RocketMQ refuses when it compiles an expression is refused here, with its place
(``ComparisonExpression``, ``UnaryExpression``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rmqstore.filters.faults import Fault, quoted
from rmqstore.filters.numbers import MAX_INTEGER, compare_numbers, number_of
from rmqstore.filters.patterns import LikePattern, PatternEscapeError
from rmqstore.filters.rows import HOLDS
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
    Node,
    Not,
    Number,
    Place,
    Property,
    SameText,
    SameTruth,
    Text,
)

if TYPE_CHECKING:
    from lark import Token

MAX_DEPTH = 100
"""Levels of parentheses, NOT and comparisons in each other; evaluation recurses once a level."""

_FLIPPED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, slots=True)
class Built:
    """A node with the place where it starts, in characters from 0, and the number of levels below it."""

    node: Node
    position: int
    depth: int = 0


class Builder:
    """The actions of the grammar; without state, so one serves all threads."""

    def start(self, parts: Sequence[Any]) -> Condition:
        return _condition(parts[0])

    # ------------------------------------------------------------ logic

    def any_of(self, parts: Sequence[Built]) -> Built:
        return _above(parts, AnyOf(tuple(map(_condition, parts))))

    def all_of(self, parts: Sequence[Built]) -> Built:
        return _above(parts, AllOf(tuple(map(_condition, parts))))

    def negated(self, parts: Sequence[Any]) -> Built:
        word, operand = parts
        return _above([operand], Not(_condition(operand)), word.start_pos)

    def enclosed(self, parts: Sequence[Any]) -> Built:
        parenthesis, inner = parts
        return _above([inner], inner.node, parenthesis.start_pos)

    # ------------------------------------------------------------ comparisons

    def equal(self, parts: Sequence[Any]) -> Built:
        left, symbol, right = parts
        same = _same(left, symbol, right)
        return _above([left, right], Not(same) if symbol == "<>" else same)

    def ordered(self, parts: Sequence[Any]) -> Built:
        left, symbol, right = parts
        return _above([left, right], _order(left, str(symbol), right, symbol))

    def between(self, parts: Sequence[Any]) -> Built:
        value, negated, low, high = parts
        within = AllOf((_order(value, ">=", low, "BETWEEN"), _order(value, "<=", high, "BETWEEN")))
        # RocketMQ checks the order of the bounds here too, and not in the negated form, which has a meaning.
        if not negated and isinstance(low.node, Number) and isinstance(high.node, Number) and low.node.value > high.node.value:
            raise Fault(high.position, "expected an upper bound that is not below the lower one", "put the smaller number first")
        return _above([value, low, high], _unless(negated, within))

    def within(self, parts: Sequence[Any]) -> Built:
        operand, negated, _, *strings = parts
        if not isinstance(operand.node, Property):
            raise Fault(operand.position, f"expected a property before IN, found {_told(operand)}")
        return _above([operand], _unless(negated, IsOneOf(operand.node, frozenset(map(_unquoted, strings)))))

    def search(self, parts: Sequence[Any]) -> Built:
        operand, negated, word, string = parts
        place, wanted = Place[word.upper()], _unquoted(string)
        found = _on_text(operand, place.name, lambda of: Holds(place, of, wanted), lambda text: HOLDS[place](text, wanted))
        # RocketMQ finds nothing in any text, and does not miss it either.
        return _above([operand], _unless(negated, found) if wanted else Constant(False))

    def like(self, parts: Sequence[Any]) -> Built:
        operand, negated, string, escape_string = parts
        escape = None if escape_string is None else _unquoted(escape_string)
        if escape is not None and len(escape) != 1:
            raise Fault(escape_string.start_pos, f"expected a string of one character after ESCAPE, found {quoted(escape_string)}")
        text = _unquoted(string)
        try:
            pattern = LikePattern(text, escape)
        except PatternEscapeError as error:
            # In the expression, each quote before the place takes two characters, and one more opens the string.
            position = string.start_pos + 1 + error.offset + text.count("'", 0, error.offset)
            raise Fault(
                position, "expected %, _ or the escape character behind the escape character", "write it twice to mean itself"
            ) from None
        return _above([operand], _unless(negated, _on_text(operand, "LIKE", lambda of: IsLike(of, pattern), pattern.matches)))

    def is_null(self, parts: Sequence[Any]) -> Built:
        operand, negated, _ = parts
        match operand.node:
            case Property():
                missing: Condition = IsMissing(operand.node)
            case Text() | Number():
                missing = Constant(False)
            case condition:
                missing = IsUnknown(condition)
        return _above([operand], _unless(negated, missing))

    # ------------------------------------------------------------ operands

    def name(self, parts: Sequence[Token]) -> Built:
        return Built(Property(str(parts[0])), _start(parts[0]))

    def string(self, parts: Sequence[Token]) -> Built:
        return Built(Text(_unquoted(parts[0])), _start(parts[0]))

    def integer(self, parts: Sequence[Token]) -> Built:
        digits = parts[0].rstrip("lL")
        if len(digits) > len(str(MAX_INTEGER)) or int(digits) > MAX_INTEGER:
            raise Fault(_start(parts[0]), f"expected an integer up to {MAX_INTEGER}, found a larger one", "give it a decimal point")
        return Built(Number(int(digits)), _start(parts[0]))

    def decimal(self, parts: Sequence[Token]) -> Built:
        value = float(parts[0])
        if math.isinf(value) or (value == 0 and parts[0].lower().partition("e")[0].strip("0.")):
            raise Fault(_start(parts[0]), f"expected a number that fits into a double, found {quoted(parts[0])}")
        return Built(Number(value), _start(parts[0]))

    def truth(self, parts: Sequence[Token]) -> Built:
        return Built(Constant({"TRUE": True, "FALSE": False, "NULL": None}[parts[0].upper()]), _start(parts[0]))

    def signed(self, parts: Sequence[Any]) -> Built:
        sign, operand = parts
        if not isinstance(operand.node, Number):
            raise Fault(operand.position, f"expected a number behind the sign {sign}, found {_told(operand)}")
        return Built(Number(-operand.node.value if sign == "-" else operand.node.value), sign.start_pos, operand.depth)


def _above(parts: Sequence[Built], node: Node, position: int | None = None) -> Built:
    """Return a node that stands one level above its parts."""
    start = parts[0].position if position is None else position
    depth = 1 + max(part.depth for part in parts)
    if depth > MAX_DEPTH:
        raise Fault(start, f"expected at most {MAX_DEPTH} levels of parentheses, NOT and comparisons, found more")
    return Built(node, start, depth)


def _unless(negated: Token | None, condition: Condition) -> Condition:
    return condition if negated is None else Not(condition)


def _condition(built: Built) -> Condition:
    """Return a node as something that is true or false."""
    match built.node:
        case Property():
            return IsTrue(built.node)
        case Text() | Number():
            raise Fault(built.position, f"expected a condition, found {_told(built)}", "compare it with a property")
        case condition:
            return condition


def _order(left: Built, symbol: str, right: Built, word: str) -> Condition:
    """Return a comparison by size; ``word`` is how the expression writes it."""
    for side in (left, right):
        if not isinstance(side.node, Property | Number):
            raise Fault(side.position, f"expected a property or a number with {word}, found {_told(side)}", _as_number(side.node))
    return _numbers(left.node, symbol, right.node)


def _same(left: Built, symbol: str, right: Built) -> Condition:
    """Return whether two operands are equal; ``symbol`` is how the expression compares them."""
    for side in (left, right):
        if side.node == Constant(None):
            fix = "write IS NOT NULL" if symbol == "<>" else "write IS NULL"
            raise Fault(side.position, f"expected a value with {symbol}, found NULL", fix)
    match left.node, right.node:
        case (Property(), Property() | Text()):
            return SameText(left.node, right.node)
        case (Text(), Property()):
            return SameText(right.node, left.node)
        case (Text(one), Text(other)):
            return Constant(one == other)
        case (Number(), Property() | Number()) | (Property(), Number()):
            return _numbers(left.node, "=", right.node)
        case (Text() | Number(), _) | (_, Text() | Number()):
            raise Fault(right.position, f"expected what can be compared with {_told(left)}, found {_told(right)}")
        case _:
            return SameTruth(_condition(left), _condition(right))


def _numbers(left: Node, symbol: str, right: Node) -> Condition:
    """Return a comparison of numbers, with the property first."""
    match left, right:
        case (Number(one), Number(other)):
            return Constant(compare_numbers(symbol, one, other))
        case (Number(), Property()):
            return CompareNumbers(_FLIPPED[symbol], right, left)
        case (Property(), Property() | Number()):
            return CompareNumbers(symbol, left, right)
        case _:
            raise TypeError(f"{left} and {right} are no numbers")


def _on_text(operand: Built, word: str, ask: Callable[[Property], Condition], test: Callable[[str], bool]) -> Condition:
    """Return a test of a text: later, for a property; now, for a string of the expression."""
    match operand.node:
        case Property():
            return ask(operand.node)
        case Text(value):
            return Constant(test(value))
        case _:
            raise Fault(operand.position, f"expected a property or a string before {word}, found {_told(operand)}")


def _as_number(node: Node) -> str:
    match node:
        case Text(value) if number_of(value) is not None:
            return f"write {quoted(value)} without quotes"
        case Text():
            return "strings can be compared with = and <> only"
        case _:
            return "put AND between two comparisons" if not isinstance(node, Constant) else ""


def _told(built: Built) -> str:
    """Return a node in words, for a message."""
    match built.node:
        case Property(name):
            return f"property {quoted(name)}"
        case Text(value):
            return f"the string '{quoted(value)}'"
        case Number(value):
            return f"the number {value}"
        case Constant(value):
            return {True: "TRUE", False: "FALSE", None: "NULL"}[value]
        case _:
            return "a condition"


def _unquoted(string: Token) -> str:
    return string[1:-1].replace("''", "'")


def _start(token: Token) -> int:
    return operator.index(token.start_pos)  # type: ignore[arg-type]  # None only for tokens that no lexer made
