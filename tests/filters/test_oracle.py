"""Random conditions on random messages: they pass as an evaluator of another make says; garbage is refused and no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hypothesis import example, given, settings, strategies as st

from rmqstore.errors import IllegalFilterError
from rmqstore.filters import parse_filter

Row = Mapping[str, str]
Truth = bool | None
NAMES = ("a", "b", "c", "TAGS")

INTEGERS = (
    "0 5 -5 7 9007199254740992 9007199254740993 1234567890123456788 1234567890123456789 9223372036854775807 -9223372036854775807".split()
)
DECIMALS = "5.0 5. 5.5 .5 -.5 0.5e1 5E-1 5e3 9007199254740992.0 9007199254740993.0 9223372036854775808.0 1e300 1.7e308".split()
# Numbers that only a text can be, and texts that are nearly numbers.
ODD = "+5 05 -0 -0.0 +.5e1 -000000000000000000000000000007 1e999 -1e999 1e-999".split()
ODD += "9223372036854775808 -9223372036854775808 -9223372036854775809 x 5x 5L 5f 5d 0x10 1_000 + - . e5 1e 1e+ --5 +-5".split()
ODD += "NaN Infinity -inf ٣ ５ 1,5 true False ab aab a%b é_".split()
ODD += ["", "5 ", " 5", "5\n", "1 2", "9" * 400]
SPECIAL = "ab%_'5.\né[]*+?^$\\|(){}#-"
texts = st.one_of(st.sampled_from([*INTEGERS, *DECIMALS, *ODD]), st.text(SPECIAL, max_size=5), st.text(max_size=4))
rows = st.lists(st.dictionaries(st.sampled_from(NAMES), texts), max_size=12)


OR, AND, NOT, EQUALITY, COMPARISON, OPERAND = range(6)
"""What an operator binds, loosest first."""


@dataclass(frozen=True)
class Case:
    """A condition in words, its truth by an evaluator of its own, and how tightly its outermost operator binds."""

    text: str
    truth: Callable[[Row], Truth]
    level: int = COMPARISON

    def __repr__(self) -> str:
        return f"Case({self.text})"


# ---------------------------------------------------------------- the other evaluator


def number(text: str | None) -> int | float | None:
    if text is None or not set(text) <= set("0123456789+-.eE"):
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    if set(text) & set(".eE"):
        return value
    return int(text) if -(2**63) <= int(text) < 2**63 else value


def size(one: int | float | None, other: int | float | None) -> int | None:
    """Return -1, 0 or 1, or None where one of the two is no number."""
    if one is None or other is None:
        return None
    if isinstance(one, float) or isinstance(other, float):
        one, other = float(one), float(other)
    return (one > other) - (one < other)


def like(text: str, pattern: str, escape: str) -> bool:
    """Match by following all places of the pattern at once."""
    symbols: list[tuple[bool, str]] = []
    chars = iter(pattern)
    for char in chars:
        symbols.append((False, next(chars)) if char == escape else (char in "%_", char))

    def spread(places: set[int]) -> set[int]:
        for place, symbol in enumerate(symbols):
            if place in places and symbol == (True, "%"):
                places.add(place + 1)
        return places

    places = spread({0})
    for char in text:
        stay = {place for place in places if place < len(symbols) and symbols[place] == (True, "%")}
        move = {place + 1 for place in places if place < len(symbols) and symbols[place] in ((False, char), (True, "_"))}
        places = spread(stay | move)
    return len(symbols) in places


def both(compare: Callable[[Truth, Truth], Truth], left: Truth, right: Truth) -> Truth:
    return None if left is None or right is None else compare(left, right)


def inverse(truth: Truth) -> Truth:
    return None if truth is None else not truth


# ---------------------------------------------------------------- conditions

names = st.sampled_from(NAMES)
literals = st.one_of(st.sampled_from([*INTEGERS, *DECIMALS]), st.integers(-(2**63) + 1, 2**63 - 1).map(str))
SYMBOLS: dict[str, Callable[[int], bool]] = {
    "=": lambda order: order == 0,
    "<>": lambda order: order != 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
}


def quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def operand(text: str, row: Row) -> str | None:
    """Return the text of a property, of a number, or of a string in quotes."""
    if text in NAMES:
        return row.get(text)
    return text[1:-1].replace("''", "'") if text.startswith("'") else text


def ordered(left: str, symbol: str, right: str) -> Callable[[Row], Truth]:
    def truth(row: Row) -> Truth:
        order = size(number(operand(left, row)), number(operand(right, row)))
        return None if order is None else SYMBOLS[symbol](order)

    return truth


def on_text(subject: str, test: Callable[[str], bool], negated: bool) -> Callable[[Row], Truth]:
    def truth(row: Row) -> Truth:
        found = operand(subject, row)
        return None if found is None else test(found) is not negated

    return truth


@st.composite
def comparisons(draw: st.DrawFn) -> Case:
    name, other, not_ = draw(names), draw(names), draw(st.booleans())
    subject = draw(names | texts.map(quote))
    word, symbol = (" NOT", "<>") if not_ else ("", "=")
    match draw(st.integers(0, 8)):
        case 0 | 1:
            left, right = draw(names | literals), draw(names | literals)
            order = draw(st.sampled_from(sorted(SYMBOLS if {left, right} - set(NAMES) else {*SYMBOLS} - {"=", "<>"})))
            return Case(f"{left} {order} {right}", ordered(left, order, right), EQUALITY if order in ("=", "<>") else COMPARISON)
        case 2:
            low, high = sorted([draw(literals), draw(literals)], key=lambda literal: (float(literal), number(literal)))
            low, high, middle = draw(st.sampled_from([low, other])), draw(st.sampled_from([high, other])), draw(names | literals)

            def between(row: Row) -> Truth:
                truths = {ordered(middle, ">=", low)(row), ordered(middle, "<=", high)(row)}
                found: Truth = False if False in truths else None if None in truths else True
                return inverse(found) if not_ else found

            return Case(f"{middle}{word} between {low} and {high}", between)
        case 3:
            text = draw(texts)
            return Case(f"{subject} {symbol} {quote(text)}", on_text(subject, lambda found: found == text, not_), EQUALITY)
        case 4:
            return Case(
                f"{name} {symbol} {other}",
                lambda row: None if {name, other} - set(row) else (row[name] == row[other]) is not not_,
                EQUALITY,
            )
        case 5:
            values = draw(st.lists(texts, min_size=1, max_size=6))
            return Case(f"{name}{word} IN ({','.join(map(quote, values))})", on_text(name, lambda found: found in values, not_))
        case 6:
            kind, wanted = draw(st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"])), draw(texts)
            if not wanted:
                return Case(f"{subject}{word} {kind} ''", lambda _: False)
            tests: dict[str, Callable[[str], bool]] = {
                "CONTAINS": lambda found: wanted in found,
                "STARTSWITH": lambda found: found[: len(wanted)] == wanted,
                "ENDSWITH": lambda found: found[-len(wanted) :] == wanted,
            }
            return Case(f"{subject}{word} {kind} {quote(wanted)}", on_text(subject, tests[kind], not_))
        case 7:
            escape = draw(st.sampled_from("!%_'\\"))
            plain = [each for each in SPECIAL if each not in f"%_{escape}"]
            pieces = [*({*"%_"} - {escape}), *(escape + each for each in {"%", "_", escape}), *plain]
            pattern = "".join(draw(st.lists(st.sampled_from(sorted(pieces)), max_size=6)))
            text = f"{subject}{word} LIKE {quote(pattern)} ESCAPE {quote(escape)}"
            return Case(text, on_text(subject, lambda found: like(found, pattern, escape), not_))
        case _:
            literal = draw(st.sampled_from(["TRUE", "FALSE"]))
            wanted_truth = (literal == "TRUE") is not not_
            text, level = draw(
                st.sampled_from(
                    [
                        (f"{name} {symbol} {literal}", EQUALITY),
                        (f"{literal} {symbol} {name}", EQUALITY),
                        (name if wanted_truth else f"NOT {name}", NOT),
                    ]
                )
            )
            return Case(text, on_text(name, lambda found: (found in TRUES) is wanted_truth, False), level)


@st.composite
def absences(draw: st.DrawFn) -> Case:
    subject, not_ = draw(names | literals | texts.map(quote) | st.sampled_from(["TRUE", "NULL"])), draw(st.booleans())
    is_null: Callable[[Row], bool] = lambda row: subject == "NULL" or operand(subject, row) is None  # noqa: E731
    return Case(f"{subject} IS{' NOT' if not_ else ''} NULL", lambda row: is_null(row) is not not_, EQUALITY)


TRUES = {"".join(t + r + u + e) for t in "tT" for r in "rR" for u in "uU" for e in "eE"}


def within(part: Case, least: int, enclosed: bool) -> str:
    """Return a part in parentheses where it would not bind tightly enough without, or by chance."""
    return f"({part.text})" if enclosed or part.level < least else part.text


def combined(parts: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
    def conjunction(left: Case, right: Case, enclosed: bool) -> Case:
        def truth(row: Row) -> Truth:
            truths = {left.truth(row), right.truth(row)}
            return False if False in truths else None if None in truths else True

        return Case(f"{within(left, AND, enclosed)} AND {within(right, NOT, enclosed)}", truth, AND)

    def disjunction(left: Case, right: Case, enclosed: bool) -> Case:
        def truth(row: Row) -> Truth:
            truths = {left.truth(row), right.truth(row)}
            return True if True in truths else None if None in truths else False

        return Case(f"{within(left, OR, enclosed)} OR {within(right, AND, enclosed)}", truth, OR)

    def equality(left: Case, right: Case, enclosed: bool) -> Case:
        text = f"{within(left, EQUALITY, enclosed)} = {within(right, COMPARISON, enclosed)}"
        return Case(text, lambda row: both(lambda one, two: one is two, left.truth(row), right.truth(row)), EQUALITY)

    def negation(part: Case, enclosed: bool) -> Case:
        return Case(f"NOT {within(part, NOT, enclosed)}", lambda row: inverse(part.truth(row)), NOT)

    def absence(part: Case, enclosed: bool) -> Case:
        return Case(f"{within(part, EQUALITY, enclosed)} IS NULL", lambda row: part.truth(row) is None, EQUALITY)

    pairs = [st.builds(join, parts, parts, st.booleans()) for join in (conjunction, disjunction, equality)]
    return st.one_of(*pairs, *(st.builds(around, parts, st.booleans()) for around in (negation, absence)), st.sampled_from(CONSTANTS))


CONSTANTS = [
    Case("TRUE", lambda _: True, OPERAND),
    Case("FALSE", lambda _: False, OPERAND),
    Case("NULL AND TRUE", lambda _: None, AND),
]
conditions = st.recursive(comparisons() | absences(), combined, max_leaves=8)


@given(conditions, rows)
@settings(max_examples=1000)
def test_another_evaluator_agrees(case: Case, messages: list[dict[str, str]]) -> None:
    found = parse_filter(case.text if " " in case.text else f"({case.text})")  # a word alone is a tag
    expected = [case.truth(row) is True for row in messages]
    assert [found.matches(row) for row in messages] == expected


@given(conditions, st.dictionaries(st.sampled_from(NAMES), texts))
def test_only_the_named_properties_count(case: Case, row: dict[str, str]) -> None:
    found = parse_filter(case.text)
    assert found.matches(row) == found.matches({name: text for name, text in row.items() if name in found.names})


# ---------------------------------------------------------------- garbage

PIECES = (
    "a b 5 1e5 .5 'x' '' ' \" ( ) , = < > <> <= >= + - -- /* */ || | * % ! NOT AND OR IN BETWEEN LIKE ESCAPE IS NULL TRUE FALSE "
    "CONTAINS STARTSWITH ENDSWITH é \n \x00 \ud800 ; . 99999999999999999999 1e999 '!' '%'"
).split(" ")


@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join), st.lists(st.sampled_from(PIECES)).map("".join)))
@settings(max_examples=1500)
@example("'" * 4001)
@example("(" * 8192)
@example("-" * 8192)
@example("a=" * 4096)
@example("/*" * 4096)
def test_garbage_is_parsed_or_refused_with_a_place(text: str) -> None:
    try:
        found = parse_filter(text)
    except IllegalFilterError as error:
        assert error.expression == text
        assert 0 <= error.position <= len(text)
        str(error).encode()
    else:
        messages: list[dict[str, str]] = [{}, {"a": "5", "b": "x", "TAGS": "a"}]
        assert {found.matches(row) for row in messages} <= {False, True}


def test_a_long_text_is_no_number_as_fast_as_it_is_read() -> None:
    """Two parts of a pattern that take the same digits try all ways to share them: with 32,000 that is half a billion."""
    for text in ("1" * 32_000 + "x", "0" * 32_000 + "x", "." + "1" * 32_000 + "x", "1e" + "1" * 32_000 + "x"):
        assert not parse_filter("a > 5").matches({"a": text})
