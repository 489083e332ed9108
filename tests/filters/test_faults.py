"""Bad filters: each is an ``IllegalFilterError`` that names the place, what was expected there, and the nearest fix."""

from __future__ import annotations

import pickle

import pytest

from rmqstore.errors import IllegalArgumentError, IllegalFilterError, RmqstoreError
from rmqstore.filters import parse_filter

# The place of the fault is where the mark stands; the mark itself is no part of the expression.
FAULTS = [
    # what the grammar refuses
    ("¦", "expected a filter, found nothing", "write * for all"),
    ("a <¦", "found the end", ""),
    ("a =¦= 5", "found =", "write = instead of =="),
    ("a ¦!= 5", "found !", "write <> instead of !="),
    ("a =¦< 5", "found <", "write <= instead of =<"),
    ("a =¦> 5", "found >", "write >= instead of =>"),
    ("a = 1 ¦&& b = 2", "found &", "write AND instead of &&"),
    ("a = 1 ¦|| b = 2", "found |", "write OR instead of ||"),
    ("a = 1 ¦| b", "found |", "write OR between conditions"),
    ("(a > 1¦", "expected ')'; found the end", "close the parenthesis"),
    ("a > 1¦)", "found )", ""),
    ("¦)", "found )", ""),
    ("(¦)", "found )", ""),
    ("a ¦b", "found b", "tags are joined by ||"),
    ("a ¦BETWEN 1 AND 2", "found BETWEN", "did you mean BETWEEN?"),
    ("a ¦LIK 'x'", "found LIK", "did you mean LIKE?"),
    ("a = ¦'x", "expected a closing quote; found the end", "close the string"),
    ("a = 'it'¦s'", "found s", ""),
    ('a = ¦"x"', 'found "', "single quotes"),
    ("a BETWEEN 1¦", "expected AND; found the end", ""),
    ("a BETWEEN 1 ¦OR 2", "expected AND; found OR", ""),
    ("a IN ¦'x'", "expected '('; found 'x'", ""),
    ("a IN (¦)", "expected a string in single quotes; found )", ""),
    ("a IN (¦5)", "expected a string in single quotes; found 5", "write '5'"),
    ("a IN ('x',¦)", "expected a string in single quotes; found )", ""),
    ("a IN ('x' ¦'y')", "expected ',' or ')'; found 'y'", ""),
    ("a IN (¦b)", "expected a string in single quotes; found b", ""),
    ("a CONTAINS ¦x", "expected a string in single quotes; found x", ""),
    ("a CONTAINS ¦123", "expected a string in single quotes; found 123", "write '123'"),
    ("a CONTAINS ¦", "expected a string in single quotes; found the end", ""),
    ("a NOT ¦= 5", "found =", ""),
    ("a IS ¦5", "expected NOT or NULL; found 5", ""),
    ("a ¦+ 1 > 5", "found +", "filters do not calculate"),
    ("a ¦* 2 > 5", "found *", "filters do not calculate"),
    ("¦like = 1", "found like", "LIKE is a keyword and cannot name a property"),
    ("a = 0¦07", "found 0", ""),
    ("a = 5¦x", "found x", ""),
    ("a ¦. b = 5", "found .", ""),
    ("a = 5¦;", "found ;", ""),
    ("a¦\N{NO-BREAK SPACE}= 5", "found ", ""),
    ("a = 1 ¦/* open", "found /", ""),
    ("a = fal¦\N{LATIN SMALL LETTER LONG S}e", "found \N{LATIN SMALL LETTER LONG S}", ""),
    ("a and ¦between 2 and 10", "found between", "BETWEEN is a keyword"),
    ("a = ¦NOT b", "found NOT", ""),
    ("a = 'x' ¦ESCAPE '!'", "found ESCAPE", ""),
    # what does not go together
    ("¦'a' > 5", "expected a property or a number with >, found the string 'a'", "strings can be compared with = and <> only"),
    ("a > ¦'x'", "found the string 'x'", "strings can be compared with = and <> only"),
    ("a > ¦'5'", "found the string '5'", "write 5 without quotes"),
    ("a <= ¦TRUE", "found TRUE", ""),
    ("a < ¦NULL", "found NULL", ""),
    ("¦a > 5 > 3", "found a condition", "put AND between two comparisons"),
    ("1 < ¦(a < 3)", "found a condition", "put AND between two comparisons"),
    ("a = ¦NULL", "expected a value with =, found NULL", "write IS NULL"),
    ("a <> ¦NULL", "expected a value with <>, found NULL", "write IS NOT NULL"),
    ("TRUE = ¦5", "expected what can be compared with TRUE, found the number 5", ""),
    ("5 = ¦TRUE", "expected what can be compared with the number 5, found TRUE", ""),
    ("5 = ¦'5'", "expected what can be compared with the number 5, found the string '5'", ""),
    ("'x' <> ¦(a = 5)", "expected what can be compared with the string 'x', found a condition", ""),
    ("a BETWEEN ¦'a' AND 'b'", "expected a property or a number with BETWEEN", "strings can be"),
    ("a BETWEEN 1 AND ¦'5'", "expected a property or a number with BETWEEN", "write 5 without quotes"),
    ("a BETWEEN 1 AND ¦NULL", "found NULL", ""),
    ("¦'5' BETWEEN 1 AND 9", "found the string '5'", ""),
    ("a BETWEEN 10 AND ¦0", "expected an upper bound that is not below the lower one", "put the smaller number first"),
    ("a BETWEEN -1 AND ¦-1.5", "expected an upper bound", ""),
    ("¦5 IN ('5')", "expected a property before IN, found the number 5", ""),
    ("¦(a = 5) IN ('5')", "expected a property before IN, found a condition", ""),
    ("¦5 CONTAINS '5'", "expected a property or a string before CONTAINS, found the number 5", ""),
    ("¦TRUE STARTSWITH '5'", "expected a property or a string before STARTSWITH, found TRUE", ""),
    ("¦(a = 5) LIKE '5'", "expected a property or a string before LIKE, found a condition", ""),
    ("a LIKE 'x' ESCAPE ¦''", "expected a string of one character after ESCAPE", ""),
    ("a LIKE 'x' ESCAPE ¦'ab'", "expected a string of one character after ESCAPE", ""),
    ("a LIKE 'x¦!y' ESCAPE '!'", "expected %, _ or the escape character", "write it twice"),
    ("a LIKE 'it''s¦!' ESCAPE '!'", "expected %, _ or the escape character", "write it twice"),
    ("a = 5 AND ¦'x'", "expected a condition, found the string 'x'", "compare it with a property"),
    ("NOT ¦5", "expected a condition, found the number 5", "compare it with a property"),
    ("¦'x'", "expected a condition, found the string 'x'", ""),
    ("¦(5.5)", "expected a condition, found the number 5.5", ""),
    ("-¦a > 5", "expected a number behind the sign -, found property a", ""),
    ("a > +¦'5'", "expected a number behind the sign +, found the string '5'", ""),
    ("a > ¦9223372036854775808", "expected an integer up to 9223372036854775807", "give it a decimal point"),
    (f"a > ¦{'1' * 5000}", "expected an integer up to", ""),
    ("a > ¦1e999", "expected a number that fits into a double, found 1e999", ""),
    ("a > ¦1e-999", "expected a number that fits into a double, found 1e-999", ""),
    # tags
    ("a ||¦", "expected a tag, found none", "write tags like a || b"),
    ("¦|| a", "expected a tag, found none", "write tags like a || b"),
    ("a ||¦ || b", "expected a tag, found none", "write tags like a || b"),
    # neither
    ("a ||¦\ud800", "expected Unicode text", ""),
    ("a = '¦\udfff'", "expected Unicode text", ""),
]


@pytest.mark.parametrize(("marked", "problem", "fix"), FAULTS, ids=[ascii(marked[:40]) for marked, *_ in FAULTS])
def test_a_fault_is_told_with_place_problem_and_fix(marked: str, problem: str, fix: str) -> None:
    position, expression = marked.index("¦"), marked.replace("¦", "")
    with pytest.raises(IllegalFilterError) as caught:
        parse_filter(expression)
    error, message = caught.value, str(caught.value)
    assert error.position == position
    assert error.expression == expression
    assert message.startswith(f"filter, character {position} (from 0): expected ")
    assert problem in message.split("at the caret in")[0]
    assert fix in message.split("at the caret in")[1]
    assert "\n" not in message
    assert len(message) < 400
    assert message.encode()


def test_the_caret_stands_at_the_place() -> None:
    with pytest.raises(IllegalFilterError) as caught:
        parse_filter("region = 'north'\nAND price >\t'cheap' AND everything_else = 'as it was before'")
    assert "«…n = 'north' AND price > ^'cheap' AND everything_e…»" in str(caught.value)


def test_the_error_has_its_place_among_the_errors() -> None:
    with pytest.raises(ValueError, match="filter") as caught:
        parse_filter("a >")
    assert isinstance(caught.value, IllegalArgumentError)
    assert isinstance(caught.value, RmqstoreError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.expression, again.position) == (str(caught.value), "a >", 3)


def test_a_bad_filter_is_bad_each_time() -> None:
    for _ in range(2):
        with pytest.raises(IllegalFilterError):
            parse_filter("a > > 5")
