"""The language: how things may be spelled, what binds tighter, and how long and deep an expression may be."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from rmqstore.errors import IllegalArgumentTypeError, IllegalFilterError
from rmqstore.filters import MAX_EXPRESSION, TagFilter, grammar, parse_filter

ROW = {"a": "5", "b": "x", "_c": "7", "$d": "8", "A": "other", "yes": "True", "quote": "it's"}


@pytest.mark.parametrize(
    "expression",
    [
        "a=5",
        "a = 5L",
        "a = 5l",
        "a > - 1",
        "a = +5",
        "a = - -5",
        "quote = 'it''s'",
        "_c = 7 AND $d = 8",
        "a BETWEEN -5 AND +5",
        "(a) BETWEEN (1) AND (9)",
        "b IN ('w', 'x','y')",
        "b LIKE '!x' ESCAPE 'e' OR b LIKE 'ex' OR b LIKE '_' ESCAPE '!'",
        "quote CONTAINS '''s'",
        "yes AND TRUE",
        "a = 5 -- the rest of the line is a comment",
        "a -- one\n = 5",
        "a /* one\n* two **/ = 5 /**/",
        "\t\r\n\f a\n=\n5 ",
    ],
)
def test_each_spelling_passes_the_row_it_describes(expression: str) -> None:
    assert parse_filter(expression).matches(ROW)
    assert not parse_filter(f"NOT ({expression}\n)").matches(ROW)


@pytest.mark.parametrize("keywords", ["upper", "lower", "title", "swapcase"])
def test_keywords_are_known_in_any_case(keywords: str) -> None:
    words = [
        "a BETWEEN 1 AND 9",
        "b IN ('x')",
        "b LIKE 'x' ESCAPE '!'",
        "b CONTAINS 'x'",
        "b STARTSWITH 'x'",
        "b ENDSWITH 'x'",
        "missing IS NULL",
        "NOT FALSE",
        "(FALSE OR TRUE)",
    ]
    # Names and strings have to stay as they are, and are the words in small letters.
    expression = " ".join(word if word.islower() else getattr(word, keywords)() for word in " AND ".join(words).split(" "))
    assert parse_filter(expression).matches(ROW), expression


def test_names_are_case_sensitive_and_may_begin_like_keywords() -> None:
    assert parse_filter("A = 'other' AND a <> 'other'").matches(ROW)
    row = {"android": "1", "ORDER": "2", "isnull": "3", "NULLABLE": "4", "inn": "5", "like_": "6"}
    assert parse_filter("android = 1 and ORDER = 2 and isnull = 3 and NULLABLE = 4 and inn = 5 and like_ = 6").matches(row)


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("*", set()),
        ("x || y", {"TAGS"}),
        ("TAGS = 'x' OR KEYS CONTAINS 'k' OR UNIQ_KEY = 'u' OR __SHARDINGKEY = 'g'", {"TAGS", "KEYS", "UNIQ_KEY", "__SHARDINGKEY"}),
        ("a > 1 AND (b = c OR NOT d IN ('x')) AND e LIKE 'x' AND f IS NULL AND (g = 1) IS NULL AND h", set("abcdefgh")),
        ("1 < 2", set()),
        ("a BETWEEN low AND high", {"a", "low", "high"}),
    ],
)
def test_names_are_the_properties_that_count(expression: str, names: set[str]) -> None:
    assert parse_filter(expression).names == names


# ---------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    "expression",
    [
        " OR ".join(["a=1"] * 1000),
        " AND ".join(["a=1"] * 900),
        "b IN (" + ",".join(["'x'"] * 2000) + ")",
        "(" * 90 + "a=5" + ")" * 90,
        "NOT " * 90 + "a=5",
        f"b = '{'x' * 8000}'",
        f"b LIKE '{'_%' * 4000}'",
    ],
    ids=["or", "and", "in", "parentheses", "not", "string", "like"],
)
def test_long_expressions_are_parsed_and_evaluated(expression: str) -> None:
    assert len(expression) <= MAX_EXPRESSION
    found = parse_filter(expression)
    assert {found.matches(row) for row in (ROW, {"a": "1", "b": "x" * 8000})} == {False, True}
    assert not found.matches({})


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 4000 + "a=5" + ")" * 4000,
        "(" * MAX_EXPRESSION,
        "NOT " * 2000 + "a=5",
        "a" + " = a" * 2000,
        "a" + " IS NULL" * 1000,
        "(a OR " * 1300 + "b" + ")" * 1300 + "=1",
    ],
    ids=["parentheses", "open", "not", "equal", "null", "or"],
)
def test_deep_expressions_are_refused_and_do_not_overflow(expression: str) -> None:
    with pytest.raises(IllegalFilterError):
        parse_filter(expression[:MAX_EXPRESSION])


def test_depth_is_refused_with_its_place() -> None:
    with pytest.raises(IllegalFilterError, match="at most 100 levels") as caught:
        parse_filter("(" * 150 + "a=5" + ")" * 150)
    assert 0 < caught.value.position < 150


def test_signs_in_a_row_need_no_depth() -> None:
    assert parse_filter("a = " + "- " * 3000 + "5").matches(ROW)


@pytest.mark.parametrize("make", [lambda n: "a" * n, lambda n: "a = 1".ljust(n)], ids=["tag", "sql"])
def test_the_length_is_bounded(make: Callable[[int], str]) -> None:
    parse_filter(make(MAX_EXPRESSION))
    with pytest.raises(IllegalFilterError, match="at most 8192 characters") as caught:
        parse_filter(make(MAX_EXPRESSION + 1))
    assert caught.value.position == MAX_EXPRESSION


# ---------------------------------------------------------------- the face


def test_only_text_is_parsed() -> None:
    with pytest.raises(IllegalArgumentTypeError, match="must be a str, not bytes"):
        parse_filter(b"a = 5")  # type: ignore[arg-type]


def test_a_parsed_filter_is_kept() -> None:
    assert parse_filter("kept = 'once'") is parse_filter("kept = 'once'")


def test_a_filter_shows_its_expression() -> None:
    assert parse_filter("a = 'é'").expression == "a = 'é'"
    assert repr(parse_filter("a = 5")) == "Sql92Filter('a = 5')"
    assert isinstance(parse_filter("a || b"), TagFilter)


def test_the_parser_library_is_imported_by_sql92_only() -> None:
    code = (
        "import sys; from rmqstore.filters import parse_filter; parse_filter('a || b'); assert 'lark' not in sys.modules; "
        "parse_filter('a = 5'); assert 'lark' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_parser_is_complete_before_threads_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lexer of the library builds its scanner on first use; a thread that came in between would take keywords for names."""
    from lark import lexer

    made = []

    class Counted(lexer.Scanner):
        def __init__(self, *args: object) -> None:
            made.append(args)
            super().__init__(*args)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(lexer, "Scanner", Counted)
    grammar._parser.cache_clear()
    grammar._parser()
    complete = len(made)
    assert complete > 0
    _, names, _ = grammar.parse("NOT a IS NULL")
    assert names == {"a"}
    assert len(made) == complete
