"""What an expression means where ``test_oracle`` does not look: strings and numbers as operands, escapes, and how long a match may take."""

from __future__ import annotations

import pytest

from rmqstore.filters import columns_of, parse_filter

ROW = {"n": "5", "s": "north", "t": "TRUE", "q": "it's", "pct": "50%", "under": "a_b", "lines": "a\nb"}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # strings, numbers and truths of the expression
        ("'axb' CONTAINS 'x'", True),
        ("'axb' NOT STARTSWITH 'ax'", False),
        ("'axb' ENDSWITH 'ax'", False),
        ("'axb' CONTAINS ''", False),
        ("'north' LIKE 'n%'", True),
        ("'north' NOT LIKE '%_____'", False),
        ("'a' = 'a'", True),
        ("'a' <> 'a'", False),
        ("'x' IS NULL", False),
        ("5 IS NOT NULL", True),
        ("TRUE IS NULL", False),
        ("NULL IS NULL", True),
        ("5 > 4", True),
        ("0.1 = 1e-1", True),
        ("9223372036854775807 > 9223372036854775806", True),
        ("7 BETWEEN n AND 9", True),
        ("7 NOT BETWEEN n AND 6", True),
        ("7 BETWEEN 1 AND 9", True),
        ("n NOT BETWEEN 9 AND 0", True),
        ("TRUE = t", True),
        ("n = 5 = t", True),
        ("(n > 9) = missing", None),
        ("NULL AND n = 5", None),
        ("NULL OR n = 5", True),
        # patterns
        ("lines LIKE 'a_b'", True),
        ("lines LIKE 'a'", False),
        ("s LIKE '%%'", True),
        ("s LIKE 'north%h'", False),
        ("s LIKE 'nor%rth'", False),
        ("s LIKE '[n]orth'", False),
        ("under LIKE 'a\\_b' ESCAPE '\\'", True),
        ("under LIKE 'a\\_b'", False),
        ("under LIKE 'a__b' ESCAPE '_'", True),
        ("pct LIKE '50%%' ESCAPE '%'", True),
        ("q LIKE 'it''''s' ESCAPE ''''", True),
    ],
)
def test_truths(expression: str, expected: bool | None) -> None:
    """Told from what passes: the expression, its opposite, or its being unknown; for a row among others, so that none are mixed up."""
    rows = [{}, ROW, dict.fromkeys(ROW, "no number")]
    for truth, wrapped in ((True, "({})"), (False, "NOT ({})"), (None, "({}) IS NULL")):
        found = parse_filter(wrapped.format(expression))
        mask = found.mask(columns_of(rows, found.names), len(rows)).tolist()
        assert mask == [found.matches(each) for each in rows]
        assert mask[1] is (expected is truth), wrapped


@pytest.mark.parametrize("special", [chr(code) for code in range(1, 127) if chr(code) not in "%_'x"])
def test_no_character_but_two_is_special_in_a_pattern(special: str) -> None:
    rows = [{"a": f"x{special}y"}, {"a": "xxy"}]
    for pattern in (
        f"LIKE '_{special}_'",
        f"LIKE 'x{special}%'",
        f"NOT LIKE '_{special}{special}_' AND a <> 'xxy'",
        f"CONTAINS '{special}'",
    ):
        found = parse_filter(f"a {pattern} AND a <> 'yxx'")
        is_other_too = special == "y" and "CONTAINS" in pattern
        assert [found.matches(row) for row in rows] == [True, is_other_too]
        assert found.mask(columns_of(rows, {"a"}), 2).tolist() == [True, is_other_too]


def test_a_pattern_takes_time_that_does_not_explode() -> None:
    """A backtracking match would take longer than the age of the universe."""
    found = parse_filter(f"a LIKE '{'%a' * 40}%b'")
    rows = [{"a": "a" * 20_000}, {"a": "a" * 20_000 + "b"}]
    assert [found.matches(row) for row in rows] == [False, True]
    assert found.mask(columns_of(rows, {"a"}), 2).tolist() == [False, True]
