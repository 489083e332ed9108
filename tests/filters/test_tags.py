"""Tag expressions: which texts are one, and what passes."""

from __future__ import annotations

import pytest

from rmqstore.filters import Filter, TagFilter, parse_filter


def passed(found: Filter, tags: list[str | None]) -> list[str | None]:
    return [tag for tag in tags if found.matches({} if tag is None else {"TAGS": tag})]


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("a", {"a"}),
        (" a ", {"a"}),
        ("a||b", {"a", "b"}),
        ("a || b || a", {"a", "b"}),
        ("5", {"5"}),
        ("TRUE", {"TRUE"}),
        ("order.created||order-paid||übrig||%x_", {"order.created", "order-paid", "übrig", "%x_"}),
        ("* || a", {"*", "a"}),
    ],
)
def test_words_joined_by_bars_are_tags(expression: str, tags: set[str]) -> None:
    found = parse_filter(expression)
    assert isinstance(found, TagFilter)
    assert found.tags == frozenset(tags)
    assert found.names == {"TAGS"}
    others = ["none of them", None, "A", "aa", ""]
    assert passed(found, [*sorted(tags), *others]) == sorted(tags)


@pytest.mark.parametrize("expression", ["*", " * "])
def test_the_star_passes_all(expression: str) -> None:
    found = parse_filter(expression)
    assert isinstance(found, TagFilter)
    assert found.tags is None
    assert found.names == frozenset()
    assert found.matches({})
    assert found.matches({"TAGS": "a"})


@pytest.mark.parametrize("expression", ["TAGS = 'a'", "a IS NULL", "(a)", "NOT a", "a AND b", "a<5"])
def test_everything_else_is_sql92(expression: str) -> None:
    assert not isinstance(parse_filter(expression), TagFilter)


def test_sql92_can_ask_for_the_tag() -> None:
    assert passed(parse_filter("TAGS IN ('a', 'b') OR TAGS IS NULL"), ["a", "c", None]) == ["a", None]
