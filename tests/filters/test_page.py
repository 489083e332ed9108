"""docs/filters.md: every example is parsed, and has the result that the page gives."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from rmqstore.errors import IllegalFilterError
from rmqstore.filters import MAX_EXPRESSION, TagFilter, parse_filter
from rmqstore.filters.building import MAX_DEPTH
from rmqstore.filters.grammar import KEYWORDS

TEXT = (Path(__file__).parents[2] / "docs" / "filters.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
ROW: dict[str, str] = ast.literal_eval(next(code for kind, code in BLOCKS if kind == "python"))
RESULTS = ("TRUE", "FALSE", "NULL")
EXAMPLES = re.findall(r"\| `([^`]+)` \| (TRUE|FALSE|NULL) \|$", TEXT, re.MULTILINE)
ERRORS = re.findall(r"^\| `([^`]+)` \| (\d+) \| (.+) \|$", TEXT, re.MULTILINE)


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_no_example_is_missed() -> None:
    assert len(EXAMPLES) == sum(line.endswith(tuple(f"| {result} |" for result in RESULTS)) for line in TEXT.splitlines())
    assert len(EXAMPLES) > 40
    assert len(ERRORS) > 5


@pytest.mark.parametrize(("expression", "result"), EXAMPLES)
def test_an_example_has_its_result(expression: str, result: str) -> None:
    passing = {"TRUE": expression, "FALSE": f"NOT ({expression})", "NULL": f"({expression}) IS NULL"}
    for other, wrapped in passing.items():
        found = parse_filter(wrapped)
        assert found.matches(ROW) is (other == result), wrapped


@pytest.mark.parametrize(("expression", "position", "told"), ERRORS)
def test_an_error_is_as_the_page_says(expression: str, position: str, told: str) -> None:
    with pytest.raises(IllegalFilterError, match=re.escape(told)) as caught:
        parse_filter(expression)
    assert caught.value.position == int(position)


def test_the_tag_expressions_are_tag_expressions() -> None:
    expressions = next(code for kind, code in BLOCKS if kind == "text").split("\n")
    assert [getattr(parse_filter(each), "tags", "none") for each in expressions if each] == [None, {"created"}, {"created", "paid"}]
    assert isinstance(parse_filter("vip"), TagFilter)


def test_the_texts_have_the_numbers_of_the_table() -> None:
    rows = re.findall(r"^\| (`.+`) \| (\S+) \|$", section("Numbers"), re.MULTILINE)
    assert [number for _, number in rows] == ["5", "-0.5", "none"]
    for texts, number in rows:
        for text in re.findall(r"`([^`]+)`", texts):
            asked = "a IS NOT NULL AND (a = 0) IS NULL" if number == "none" else f"a = {number}"
            assert parse_filter(asked).matches({"a": text}), text


def test_what_is_refused_is_refused() -> None:
    paragraph = section("Differences from RocketMQ").partition("Refused here")[2].partition("\n\n")[0]
    conditions = [code for code in re.findall(r"`([^`]+)`", paragraph) if re.search("[=<>]", code)]
    assert len(conditions) == 2
    for expression in (*conditions, "LIKE = 5", "escape = 5", "a BETWEEN 5 AND -5"):
        with pytest.raises(IllegalFilterError):
            parse_filter(expression)


def test_the_keywords_and_bounds_are_the_true_ones() -> None:
    named = re.search(r"called like a keyword: (.*?)\.\n", section("SQL92"), re.DOTALL)
    assert named is not None
    assert re.findall(r"`(\w+)`", named[1]) == sorted(KEYWORDS)
    assert f"at most {MAX_EXPRESSION} characters, and at most {MAX_DEPTH} levels" in section("Bounds")


def test_the_program_runs() -> None:
    exec(compile([code for kind, code in BLOCKS if kind == "python"][-1], "docs/filters.md", "exec"), {})
