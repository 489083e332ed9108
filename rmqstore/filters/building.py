"""From the parts of an SQL92 expression to its conditions: what may stand with what, and what it means.

Each public method of :class:`Builder` is the action of the grammar's rule of the same name. It gets what the rule's parts gave, tokens
and :class:`Built` nodes, None for an optional token that is not there, and gives a node. What RocketMQ refuses when it compiles an
expression is refused here, with its place (``ComparisonExpression``, ``UnaryExpression``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from lark import Token, Transformer, v_args

from rmqstore.filters import conditions
from rmqstore.filters.conditions import (
    HOLDS,
    MAX_INTEGER,
    Condition,
    Constant,
    Number,
    PatternEscapeError,
    Property,
    Text,
    compared,
    constant,
    is_true,
    is_unknown,
    like,
    number_of,
    of_text,
    opposite,
    same,
)
from rmqstore.filters.filter import Fault, quoted

MAX_DEPTH = 100
"""Levels of parentheses, NOT and comparisons in each other; evaluation recurses once a level."""

Node: TypeAlias = Property | Text | Number | Constant | Condition


@dataclass(frozen=True, slots=True)
class Built:
    """A node with the place where it starts, in characters from 0, the number of levels below it, the properties named in it, and the
    characters of patterns of LIKE.
    """

    node: Node
    position: int
    depth: int = 0
    names: frozenset[str] = frozenset()
    like_length: int = 0


@v_args(inline=True)
class Builder(Transformer[Token, tuple[Condition, frozenset[str], int]]):
    """The actions of the grammar; without state, so one serves all threads."""

    def start(self, condition: Built) -> tuple[Condition, frozenset[str], int]:
        return _condition(condition), condition.names, condition.like_length

    # ------------------------------------------------------------ logic

    def any_of(self, *parts: Built) -> Built:
        return _above(parts, conditions.any_of([*map(_condition, parts)]))

    def all_of(self, *parts: Built) -> Built:
        return _above(parts, conditions.all_of([*map(_condition, parts)]))

    def negated(self, word: Token, operand: Built) -> Built:
        return _above([operand], opposite(_condition(operand)), _start(word))

    def enclosed(self, parenthesis: Token, inner: Built) -> Built:
        return _above([inner], inner.node, _start(parenthesis))

    # ------------------------------------------------------------ comparisons

    def equal(self, left: Built, symbol: Token, right: Built) -> Built:
        alike = _same(left, symbol, right)
        return _above([left, right], opposite(alike) if symbol == "<>" else alike)

    def ordered(self, left: Built, symbol: Token, right: Built) -> Built:
        return _above([left, right], _order(left, str(symbol), right, symbol))

    def between(self, value: Built, negated: Token | None, low: Built, high: Built) -> Built:
        within = conditions.all_of([_order(value, ">=", low, "BETWEEN"), _order(value, "<=", high, "BETWEEN")])
        # RocketMQ checks the order of the bounds here too, and not in the negated form, which has a meaning.
        if not negated and isinstance(low.node, Number) and isinstance(high.node, Number) and low.node.value > high.node.value:
            raise Fault(high.position, "expected an upper bound that is not below the lower one", "put the smaller number first")
        return _above([value, low, high], _unless(negated, within))

    def within(self, operand: Built, negated: Token | None, _: Token, *strings: Token) -> Built:
        if not isinstance(operand.node, Property):
            raise Fault(operand.position, f"expected a property before IN, found {_told(operand)}")
        return _above([operand], _unless(negated, of_text(operand.node, frozenset(map(_unquoted, strings)).__contains__)))

    def search(self, operand: Built, negated: Token | None, word: Token, string: Token) -> Built:
        kind, wanted = word.upper(), _unquoted(string)
        holds = HOLDS[kind]
        found = _on_text(operand, kind, lambda text: holds(text, wanted))
        # RocketMQ finds nothing in any text, and does not miss it either.
        return _above([operand], _unless(negated, found) if wanted else constant(False))

    def like(self, operand: Built, negated: Token | None, string: Token, escape_string: Token | None) -> Built:
        escape = None if escape_string is None else _unquoted(escape_string)
        if escape_string is not None and len(escape or "") != 1:
            raise Fault(_start(escape_string), f"expected a string of one character after ESCAPE, found {quoted(escape_string)}")
        text = _unquoted(string)
        try:
            matches = like(text, escape)
        except PatternEscapeError as error:
            # In the expression, each quote before the place takes two characters, and one more opens the string.
            position = _start(string) + 1 + error.offset + text.count("'", 0, error.offset)
            raise Fault(
                position, "expected %, _ or the escape character behind the escape character", "write it twice to mean itself"
            ) from None
        built = _above([operand], _unless(negated, _on_text(operand, "LIKE", matches)))
        return replace(built, like_length=built.like_length + len(text))

    def is_null(self, operand: Built, negated: Token | None, _: Token) -> Built:
        match operand.node:
            case Property() as named:
                missing = is_unknown(named.text)
            case Text() | Number():
                missing = constant(False)
            case _:
                missing = is_unknown(_condition(operand))
        return _above([operand], _unless(negated, missing))

    # ------------------------------------------------------------ operands

    def name(self, word: Token) -> Built:
        return Built(Property(str(word)), _start(word), names=frozenset({str(word)}))

    def string(self, string: Token) -> Built:
        return Built(Text(_unquoted(string)), _start(string))

    def integer(self, written: Token) -> Built:
        digits = written.rstrip("lL")
        if len(digits) > len(str(MAX_INTEGER)) or int(digits) > MAX_INTEGER:
            raise Fault(_start(written), f"expected an integer up to {MAX_INTEGER}, found a larger one", "give it a decimal point")
        return Built(Number(int(digits)), _start(written))

    def decimal(self, written: Token) -> Built:
        value = float(written)
        if math.isinf(value) or (value == 0 and written.lower().partition("e")[0].strip("0.")):
            raise Fault(_start(written), f"expected a number that fits into a double, found {quoted(written)}")
        return Built(Number(value), _start(written))

    def truth(self, word: Token) -> Built:
        return Built(Constant({"TRUE": True, "FALSE": False, "NULL": None}[word.upper()]), _start(word))

    def signed(self, sign: Token, operand: Built) -> Built:
        if not isinstance(operand.node, Number):
            raise Fault(operand.position, f"expected a number behind the sign {sign}, found {_told(operand)}")
        return Built(Number(-operand.node.value if sign == "-" else operand.node.value), _start(sign), operand.depth)


def _above(parts: Sequence[Built], node: Node, position: int | None = None) -> Built:
    """Return a node that stands one level above its parts."""
    start = parts[0].position if position is None else position
    depth = 1 + max(part.depth for part in parts)
    if depth > MAX_DEPTH:
        raise Fault(start, f"expected at most {MAX_DEPTH} levels of parentheses, NOT and comparisons, found more")
    names = frozenset[str]().union(*(part.names for part in parts))
    return Built(node, start, depth, names, sum(part.like_length for part in parts))


def _unless(negated: Token | None, condition: Condition) -> Condition:
    return condition if negated is None else opposite(condition)


def _condition(built: Built) -> Condition:
    """Return a node as something that is true or false."""
    match built.node:
        case Property() as named:
            return of_text(named, is_true)
        case Constant(value):
            return constant(value)
        case Text() | Number():
            raise Fault(built.position, f"expected a condition, found {_told(built)}", "compare it with a property")
        case condition:
            return condition


def _order(left: Built, symbol: str, right: Built, word: str) -> Condition:
    """Return a comparison by size; ``word`` is how the expression writes it."""
    match left.node, right.node:
        case (Property() | Number() as one, Property() | Number() as other):
            return compared(one, symbol, other)
    side = right if isinstance(left.node, Property | Number) else left
    raise Fault(side.position, f"expected a property or a number with {word}, found {_told(side)}", _as_number(side.node))


def _same(left: Built, symbol: str, right: Built) -> Condition:
    """Return whether two operands are equal; ``symbol`` is how the expression compares them."""
    for side in (left, right):
        if side.node == Constant(None):
            fix = "write IS NOT NULL" if symbol == "<>" else "write IS NULL"
            raise Fault(side.position, f"expected a value with {symbol}, found NULL", fix)
    match left.node, right.node:
        case (Property() | Text() as one, Property() | Text() as other):
            return same(one.text, other.text)
        case (Property() | Number() as one, Property() | Number() as other):
            return compared(one, "=", other)
        case (Text() | Number(), _) | (_, Text() | Number()):
            raise Fault(right.position, f"expected what can be compared with {_told(left)}, found {_told(right)}")
        case _:
            return same(_condition(left), _condition(right))


def _on_text(operand: Built, word: str, passes: Callable[[str], bool]) -> Condition:
    if isinstance(operand.node, Property | Text):
        return of_text(operand.node, passes)
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
