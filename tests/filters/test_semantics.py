"""What an expression means: truths worked out by hand, three-valued logic, numbers, LIKE, and each difference from RocketMQ."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from rmqstore.filters import columns_of, parse_filter

Truth = bool | None


def truth_of(expression: str, row: Mapping[str, str]) -> Truth:
    """Return what an expression is for a row, told from what passes: itself, its opposite, or its being unknown."""
    outcomes = []
    for wrapped in ("({})", "NOT ({})", "({}) IS NULL"):
        found = parse_filter(wrapped.format(expression))
        # The message stands among others, so that a mask which mixes rows up is seen.
        rows = [{}, row, dict.fromkeys(row, "no number")]
        mask = found.mask(columns_of(rows, found.names), len(rows)).tolist()
        assert mask == [found.matches(each) for each in rows], wrapped.format(expression)
        outcomes.append(mask[1])
    assert sum(outcomes) == 1, f"{expression} is one of true, false and unknown"
    return (True, False, None)[outcomes.index(True)]


# ---------------------------------------------------------------- logic

_OF = {"T": True, "F": False, "U": None}


@pytest.mark.parametrize("table", ["T T T", "T F F", "T U U", "F T F", "F F F", "F U F", "U T U", "U F F", "U U U"])
def test_and(table: str) -> None:
    left, right, expected = (_OF[letter] for letter in table.split())
    assert truth_of(f"{written(left)} AND {written(right)}", {"p": "true"}) is expected


@pytest.mark.parametrize("table", ["T T T", "T F T", "T U T", "F T T", "F F F", "F U U", "U T T", "U F U", "U U U"])
def test_or(table: str) -> None:
    left, right, expected = (_OF[letter] for letter in table.split())
    assert truth_of(f"{written(left)} OR {written(right)}", {"p": "true"}) is expected


@pytest.mark.parametrize("table", ["T F", "F T", "U U"])
def test_not(table: str) -> None:
    operand, expected = (_OF[letter] for letter in table.split())
    assert truth_of(f"NOT {written(operand)}", {"p": "true"}) is expected


@pytest.mark.parametrize(("left", "right"), list(itertools.product(_OF.values(), repeat=2)))
def test_conditions_are_compared(left: Truth, right: Truth) -> None:
    for write in (written, literal):
        # A bare NULL is refused as an operand of =, so it is written as a condition.
        one, other = f"({written(left)})", f"({write(right) if right is not None else written(right)})"
        assert truth_of(f"{one} = {other}", {"p": "true"}) is (None if None in (left, right) else left is right)
        assert truth_of(f"{one} <> {other}", {"p": "true"}) is (None if None in (left, right) else left is not right)


@pytest.mark.parametrize(("left", "right"), list(itertools.product(_OF.values(), repeat=2)))
def test_literals_take_part_in_logic(left: Truth, right: Truth) -> None:
    assert truth_of(f"{literal(left)} AND {literal(right)}", {}) is truth_of(f"({written(left)}) AND ({written(right)})", {"p": "true"})
    assert truth_of(f"{literal(left)} OR {written(right)}", {"p": "true"}) is truth_of(
        f"{written(left)} OR {literal(right)}", {"p": "true"}
    )


def written(truth: Truth) -> str:
    """Return a condition with this outcome, for a row in which only ``p`` is there."""
    return {True: "p IS NOT NULL", False: "p IS NULL", None: "missing = 1"}[truth]


def literal(truth: Truth) -> str:
    return {True: "TRUE", False: "FALSE", None: "NULL"}[truth]


# ---------------------------------------------------------------- numbers

NUMBERS = [
    # text, what it equals, what it is below, what it is above
    ("5", "5", "6", "4"),
    ("5", "5.0", "5.5", "4.5"),
    ("5.5", "5.5", "6", "5"),
    ("5.", "5", "6", "4"),
    (".5", "0.5", "1", "0"),
    ("+5", "5", "6", "4"),
    ("+.5e1", "5", "6", "4"),
    ("-5", "-5", "-4", "-6"),
    ("-0", "0", "1", "-1"),
    ("-0.0", "0", "1", "-1"),
    ("007", "7", "8", "6"),
    ("-000000000000000000000000000007", "-7", "-6", "-8"),
    ("5e3", "5000", "5001", "4999"),
    ("5E-1", ".5", "1", "0"),
    ("1e999", "", "", "9223372036854775807"),
    ("-1e999", "", "-1.7e308", ""),
    ("1e-999", "0", "1", "-1"),
    ("9" * 400, "", "", "1.7e308"),
    ("9007199254740993", "9007199254740993", "9007199254740994", "9007199254740992"),
    ("1234567890123456789", "1234567890123456789", "1234567890123456790", "1234567890123456788"),
    ("9223372036854775807", "9223372036854775807", "", "9223372036854775806"),
    ("-9223372036854775808", "", "-9223372036854775807", ""),
    ("9223372036854775808", "9223372036854775808.0", "9.3e18", "9223372036854774784"),
    ("-9223372036854775809", "-9223372036854775808.0", "-9223372036854774784", "-9.3e18"),
]


@pytest.mark.parametrize(("text", "same", "above", "below"), NUMBERS, ids=[f"{row[0][:32]}" for row in NUMBERS])
def test_texts_are_compared_with_numbers_by_value(text: str, same: str, above: str, below: str) -> None:
    row = {"a": text}
    for number, expected in ((same, "= <= >="), (above, "< <= <>"), (below, "> >= <>")):
        for symbol in ("=", "<>", "<", "<=", ">", ">=") if number else ():
            assert truth_of(f"a {symbol} {number}", row) is (symbol in expected.split()), f"{text} {symbol} {number}"
            flipped = symbol.translate(str.maketrans("<>", "><")) if symbol != "<>" else symbol
            assert truth_of(f"{number} {flipped} a", row) is (symbol in expected.split()), f"{number} {flipped} {text}"


@pytest.mark.parametrize("text", "x|5x|5L|5f|5d|0x10|1_000| 5|5 |5\n|+|-|.|e5|1e|1e+|--5|+-5|NaN|Infinity|-inf|٣|５|1,5|1 2|".split("|"))
def test_other_texts_are_no_numbers(text: str) -> None:
    for row in ({"a": text, "b": "1"}, {"a": text, "b": "1.5"}):
        for expression in ("a = 5", "a <> 5", "a < 5", "a >= 5.5", "5 > a", "a BETWEEN 1 AND 9", "a < b", "b < a", "b BETWEEN a AND 9"):
            assert truth_of(expression, row) is None, expression


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("5", "10", True),
        ("10", "5", False),
        ("5", "5.0", False),
        ("5.5", "6", True),
        ("-1", "1e-3", True),
        ("9007199254740992", "9007199254740993", True),
        ("1234567890123456788", "1234567890123456789", True),
        ("9007199254740992", "9007199254740993.0", False),
    ],
)
def test_properties_are_compared_by_size_as_numbers(one: str, other: str, expected: bool) -> None:
    """Two integers exactly, all else as doubles."""
    assert truth_of("a < b", {"a": one, "b": other}) is expected
    assert truth_of("b > a", {"a": one, "b": other}) is expected
    assert truth_of("a >= b", {"a": one, "b": other}) is not expected


def test_columns_that_mix_all_kinds_of_numbers() -> None:
    texts = ["1", "-1", "1.5", "x", None, "9223372036854775807", "9223372036854775808", "1e3", "0000000000000000000000002"]
    rows = [{} if text is None else {"a": text} for text in texts]
    columns = columns_of(rows, {"a"})
    expected = {
        "a > 1": [False, False, True, False, False, True, True, True, True],
        "NOT a > 1": [True, True, False, False, False, False, False, False, False],
        "a = 9223372036854775807": [False] * 5 + [True] + [True] + [False] * 2,  # the text that is too large is a double, of the same value
        "a < 1.5": [True, True] + [False] * 7,
    }
    for expression, mask in expected.items():
        assert parse_filter(expression).mask(columns, len(rows)).tolist() == mask, expression
        assert [parse_filter(expression).matches(row) for row in rows] == mask, expression


# ---------------------------------------------------------------- each comparison

ROW = {"n": "5", "s": "north", "t": "TRUE", "f": "no", "e": "", "u": "ünïcode", "q": "it's", "pct": "50%", "under": "a_b", "lines": "a\nb"}
TRUTHS: list[tuple[str, Truth]] = [
    # texts
    ("s = 'north'", True),
    ("s = 'North'", False),
    ("s = 'north '", False),
    ("s <> 'north'", False),
    ("s <> 'x'", True),
    ("n = '5'", True),
    ("n = '5.0'", False),
    ("n = s", False),
    ("n = n", True),
    ("n <> s", True),
    ("missing = 'x'", None),
    ("missing <> 'x'", None),
    ("missing = s", None),
    ("s = missing", None),
    ("s <> missing", None),
    ("missing = absent", None),
    ("missing = 5", None),
    ("missing > 5", None),
    ("n > missing", None),
    ("e = ''", True),
    ("e = 0", None),
    ("u = 'ünïcode'", True),
    ("q = 'it''s'", True),
    # booleans
    ("t", True),
    ("f", False),
    ("missing", None),
    ("t = TRUE", True),
    ("TRUE = t", True),
    ("t = FALSE", False),
    ("f = FALSE", True),
    ("f <> TRUE", True),
    ("n = TRUE", False),
    ("missing = TRUE", None),
    ("missing <> FALSE", None),
    ("(n > 4) = t", True),
    ("t = (n > 4)", True),
    ("(n > 9) = f", True),
    ("(n > 9) = missing", None),
    ("n = 5 = t", True),
    # ranges
    ("n BETWEEN 5 AND 6", True),
    ("n BETWEEN 4 AND 5", True),
    ("n BETWEEN 5.5 AND 6", False),
    ("n NOT BETWEEN 6 AND 7", True),
    ("n NOT BETWEEN 5 AND 5", False),
    ("n NOT BETWEEN 9 AND 0", True),
    ("n BETWEEN n AND n", True),
    ("n BETWEEN missing AND 6", None),
    ("n BETWEEN missing AND 4", False),
    ("n BETWEEN 6 AND missing", False),
    ("n NOT BETWEEN 6 AND missing", True),
    ("n NOT BETWEEN missing AND 6", None),
    ("missing BETWEEN 1 AND 9", None),
    ("missing NOT BETWEEN 1 AND 9", None),
    ("s BETWEEN 1 AND 9", None),
    ("7 BETWEEN n AND 9", True),
    ("7 NOT BETWEEN n AND 6", True),
    ("7 BETWEEN 1 AND 9", True),
    # lists
    ("s IN ('north')", True),
    ("s IN ('south', 'north', 'north')", True),
    ("s IN ('NORTH', 'nor', '')", False),
    ("s NOT IN ('south')", True),
    ("s NOT IN ('south', 'north')", False),
    ("n IN ('5')", True),
    ("n IN ('5.0', '05')", False),
    ("missing IN ('x')", None),
    ("missing NOT IN ('x')", None),
    ("e IN ('')", True),
    # pieces
    ("s CONTAINS 'ort'", True),
    ("s CONTAINS 'north'", True),
    ("s CONTAINS 'ORT'", False),
    ("s CONTAINS '.'", False),
    ("s NOT CONTAINS 'x'", True),
    ("s NOT CONTAINS 'n'", False),
    ("s STARTSWITH 'nor'", True),
    ("s STARTSWITH 'orth'", False),
    ("s NOT STARTSWITH 'orth'", True),
    ("s ENDSWITH 'th'", True),
    ("s ENDSWITH 'nort'", False),
    ("s NOT ENDSWITH 'nort'", True),
    ("u CONTAINS 'nï'", True),
    ("missing CONTAINS 'x'", None),
    ("missing NOT CONTAINS 'x'", None),
    ("missing STARTSWITH 'x'", None),
    ("missing NOT ENDSWITH 'x'", None),
    ("s CONTAINS ''", False),
    ("s NOT CONTAINS ''", False),
    ("s STARTSWITH ''", False),
    ("s NOT ENDSWITH ''", False),
    ("missing CONTAINS ''", False),
    ("'axb' CONTAINS 'x'", True),
    ("'axb' NOT STARTSWITH 'ax'", False),
    ("'axb' ENDSWITH 'ax'", False),
    # patterns
    ("s LIKE 'north'", True),
    ("s LIKE 'nort'", False),
    ("s LIKE 'NORTH'", False),
    ("s LIKE 'nor%'", True),
    ("s LIKE 'north%'", True),
    ("s LIKE '%th'", True),
    ("s LIKE '%north'", True),
    ("s LIKE '%ort%'", True),
    ("s LIKE '%x%'", False),
    ("s LIKE 'n%h'", True),
    ("s LIKE 'n%t'", False),
    ("s LIKE 'n%r%h'", True),
    ("s LIKE 'nor%rth'", False),
    ("s LIKE 'north%h'", False),
    ("s LIKE '_orth'", True),
    ("s LIKE '_____'", True),
    ("s LIKE '____'", False),
    ("s LIKE '______'", False),
    ("s LIKE '_____%'", True),
    ("s LIKE '%_____'", True),
    ("s LIKE '%______'", False),
    ("s LIKE '%o_t%'", True),
    ("s LIKE '%'", True),
    ("s LIKE '%%'", True),
    ("s LIKE ''", False),
    ("e LIKE ''", True),
    ("e LIKE '%'", True),
    ("e LIKE '_'", False),
    ("u LIKE '_n_code'", True),
    ("u LIKE '%ï____'", True),
    ("lines LIKE 'a_b'", True),
    ("lines LIKE 'a%'", True),
    ("lines LIKE 'a%b%'", True),
    ("lines LIKE 'a'", False),
    ("s LIKE 'n.rth'", False),
    ("s LIKE 'n.*'", False),
    ("s LIKE '[n]orth'", False),
    ("pct LIKE '50!%' ESCAPE '!'", True),
    ("s LIKE 'nort!%' ESCAPE '!'", False),
    ("pct LIKE '%!%' ESCAPE '!'", True),
    ("pct LIKE '5_!%' ESCAPE '!'", True),
    ("under LIKE 'a!_b' ESCAPE '!'", True),
    ("under LIKE 'a\\_b' ESCAPE '\\'", True),
    ("s LIKE 'nor!_h' ESCAPE '!'", False),
    ("q LIKE 'it''''s' ESCAPE ''''", True),
    ("pct LIKE '50%%' ESCAPE '%'", True),
    ("under LIKE 'a__b' ESCAPE '_'", True),
    ("s NOT LIKE 'x%'", True),
    ("s NOT LIKE 'n%'", False),
    ("missing LIKE '%'", None),
    ("missing NOT LIKE 'x'", None),
    ("'north' LIKE 'n%'", True),
    ("'north' NOT LIKE '%_____'", False),
    # missing
    ("missing IS NULL", True),
    ("missing IS NOT NULL", False),
    ("s IS NULL", False),
    ("s IS NOT NULL", True),
    ("e IS NULL", False),
    ("(missing = 1) IS NULL", True),
    ("(s > 1) IS NULL", True),
    ("(n > 1) IS NULL", False),
    ("NULL IS NULL", True),
    ("TRUE IS NULL", False),
    ("'x' IS NULL", False),
    ("5 IS NOT NULL", True),
    # a text that is no number is unknown, and the rest of the condition still counts
    ("s > 5 OR n = 5", True),
    ("s > 5 AND n = 5", None),
    ("s > 5 AND n = 6", False),
    # numbers of the expression
    ("5 > 4 AND n = 5", True),
    ("0.1 = 1e-1", True),
    ("9223372036854775807 > 9223372036854775806", True),
    ("'a' = 'a'", True),
    ("'a' <> 'a'", False),
    ("n > 0.0", True),
]


@pytest.mark.parametrize(("expression", "expected"), TRUTHS, ids=[expression for expression, _ in TRUTHS])
def test_truths(expression: str, expected: Truth) -> None:
    assert truth_of(expression, ROW) is expected


@pytest.mark.parametrize("special", [chr(code) for code in range(1, 127) if chr(code) not in "%_'"])
def test_no_character_but_two_is_special_in_a_pattern(special: str) -> None:
    row = {"a": f"x{special}y"}
    assert truth_of(f"a LIKE '_{special}_'", row) is True
    assert truth_of(f"a LIKE '_{special}{special}_'", row) is False
    assert truth_of(f"a LIKE 'x{special}%'", row) is True
    assert truth_of(f"a CONTAINS '{special}'", row) is True
    assert truth_of(f"a LIKE '_{special}_'", {"a": "xxy" if special != "x" else "xzy"}) is False


def test_a_pattern_takes_time_that_does_not_explode() -> None:
    """A backtracking match would take longer than the age of the universe."""
    found = parse_filter(f"a LIKE '{'%a' * 40}%b'")
    rows = [{"a": "a" * 20_000}, {"a": "a" * 20_000 + "b"}]
    assert [found.matches(row) for row in rows] == [False, True]
    assert found.mask(columns_of(rows, {"a"}), 2).tolist() == [False, True]
