"""Columns: what a filter takes as columns, and what it asks for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rmqstore.errors import IllegalArgumentError, IllegalArgumentTypeError
from rmqstore.filters import columns_of, parse_filter

VALUES = ["5", "x", None, "7.5", "-3", "5"]
EXPRESSIONS = [
    "a = 5",
    "a > -4",
    "a = 'x'",
    "a = b",
    "a < b",
    "a IN ('x', '5')",
    "a LIKE '%5'",
    "a LIKE 'x'",
    f"a LIKE '{'%' * 200}5'",
    f"b LIKE '_' AND a LIKE '{'%' * 200}_'",
    "a CONTAINS '5'",
    "a IS NULL",
]


@pytest.mark.parametrize("expression", [*EXPRESSIONS, "a = TRUE"])
@pytest.mark.parametrize(
    "column",
    [
        pa.array(VALUES, pa.large_string()),
        pa.chunked_array([VALUES[:2], VALUES[2:], []], pa.string()),
        pa.array(["cut", *VALUES, "cut", "cut"], pa.string()).slice(1, len(VALUES)),
        pa.array(VALUES, pa.string()).dictionary_encode(),
    ],
    ids=["large", "chunked", "sliced", "dictionary"],
)
def test_every_form_of_string_column_gives_the_same(expression: str, column: pa.Array) -> None:
    found = parse_filter(expression)
    other = pa.array(["5", "y", "5", None, "-3", "4"], pa.string())
    expected = found.mask({"a": pa.array(VALUES, pa.string()), "b": other}, len(VALUES))
    mask = found.mask({"a": column, "b": other}, len(VALUES))
    assert mask.dtype == np.bool_
    assert mask.tolist() == expected.tolist()


def test_a_name_without_column_is_a_property_that_nobody_has() -> None:
    assert parse_filter("a IS NULL").mask({}, 3).tolist() == [True] * 3
    for expression in (*EXPRESSIONS[:-1], "a", "NOT a = 5"):
        assert parse_filter(expression).mask({}, 3).tolist() == [False] * 3, expression


def test_columns_that_are_not_asked_for_are_not_looked_at() -> None:
    columns = {"a": pa.array(["5"]), "other": pa.array([1, 2, 3])}
    assert parse_filter("a = 5").mask(columns, 1).tolist() == [True]


@pytest.mark.parametrize("expression", ["1 < 2", "NULL", "FALSE", "a = 5", "a IN ('x')", "a IS NULL", "a LIKE '_'"])
def test_no_messages_is_an_empty_mask(expression: str) -> None:
    mask = parse_filter(expression).mask({"a": pa.array([], pa.string())}, 0)
    assert mask.dtype == np.bool_
    assert mask.tolist() == []


@pytest.mark.parametrize("expression", ["a = 5", "x || y"])
def test_a_column_of_another_length_is_refused(expression: str) -> None:
    columns = {"a": pa.array(["5", "6"]), "TAGS": pa.array(["x", "y"])}
    with pytest.raises(IllegalArgumentError, match="has 2 rows where the call names 3"):
        parse_filter(expression).mask(columns, 3)


def test_a_column_without_text_is_refused() -> None:
    with pytest.raises(IllegalArgumentTypeError, match="'a' must hold Arrow strings, not int64"):
        parse_filter("a = 5").mask({"a": pa.array([5])}, 1)


def test_columns_are_made_from_messages() -> None:
    columns = columns_of([{"a": "1", "b": "2"}, {}, {"a": "3"}], {"a", "c"})
    assert set(columns) == {"a", "c"}
    assert columns["a"].to_pylist() == ["1", None, "3"]
    assert (columns["c"].type, columns["c"].to_pylist()) == (pa.string(), [None] * 3)


def test_a_long_pattern_is_not_matched_by_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its automaton has too many states to be kept, so it would be walked anew for each character of a text."""
    asked: list[str] = []
    kernel = pc.match_like
    monkeypatch.setattr(pc, "match_like", lambda texts, pattern: asked.append(pattern) or kernel(texts, pattern))
    for repeats in (10, 1000):
        found = parse_filter(f"a LIKE '{'ab%' * repeats}'")
        assert found.mask({"a": pa.array(["ab" * 1000, None, "ab"])}, 3).tolist() == [True, False, False]
    assert len(asked) == 1
    assert max(map(len, asked)) < 256


def test_a_pattern_takes_time_that_does_not_explode() -> None:
    """A backtracking match would take longer than the age of the universe."""
    found = parse_filter(f"a LIKE '{'%a' * 40}%b'")
    rows = [{"a": "a" * 20_000}, {"a": "a" * 20_000 + "b"}]
    assert [found.matches(row) for row in rows] == [False, True]
    assert found.mask(columns_of(rows, {"a"}), 2).tolist() == [False, True]


def test_a_mask_can_be_changed_by_its_owner() -> None:
    mask = parse_filter("a = 5").mask({"a": pa.array(["5", "6"])}, 2)
    assert (~mask).tolist() == [False, True]
