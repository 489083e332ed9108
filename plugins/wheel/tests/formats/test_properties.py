"""Properties: RocketMQ's text, its rules for text that is not well formed, and the column path beside the one for single messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings, strategies as st

from rmqstore_wheel.formats import properties as texts
from rmqstore_wheel.formats.binary_columns import join_columns, measure
from rmqstore_wheel.formats.properties import decimal_parts, decode_column

PIECE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=8)
NAMES = st.sampled_from(["a", "b", "KEYS", "UNIQ_KEY", "längs", "RMQS_FRAME"]) | PIECE
MAPS = st.dictionaries(NAMES, PIECE, max_size=5)


def test_bytes() -> None:
    assert texts.encode({"KEYS": "k1 k2", "WAIT": "true"}) == b"KEYS\x01k1 k2\x02WAIT\x01true\x02"
    assert texts.encode({"a": None, "n": 5}) == b"n\x015\x02"
    assert texts.encode({}) == b""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a\x01b", {"a": "b"}),  # no final separator
        (b"a\x01b\x02\x02\x02c\x01d\x02", {"a": "b", "c": "d"}),
        (b"a\x01\x02", {}),  # empty value
        (b"\x01b\x02", {}),  # empty name
        (b"ab\x02", {}),  # no name
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        (b"a\x01b\x02a\x01c\x02", {"a": "c"}),  # the last one wins
        (b"a\x01\xff\x02", {"a": "\ufffd"}),
    ],
)
def test_text_that_is_not_well_formed(text: bytes, expected: dict[str, str]) -> None:
    assert texts.decode(text) == expected
    assert rows(pa.array([text, b"x\x01y\x02"], pa.binary())) == [expected, {"x": "y"}]


def rows(column: pa.Array) -> list[dict[str, str]]:
    """Return the properties of every row, through the columns of each name."""
    found = decode_column(column)
    columns = {name: found.column(name).to_pylist() for name in found.names}
    return [{name: values[row] for name, values in columns.items() if values[row] is not None} for row in range(len(column))]


@settings(max_examples=300)
@given(st.lists(MAPS, max_size=6), st.data())
def test_columns_read_what_single_texts_read(maps: list[dict[str, str]], data: st.DataObject) -> None:
    column = pa.array([texts.encode(each) for each in maps], pa.binary())
    start = data.draw(st.integers(0, len(maps)))
    assert rows(column.slice(start)) == maps[start:]
    assert [texts.decode(each) for each in column.to_pylist()] == maps


@settings(max_examples=500)
@given(st.lists(st.text("ab\x01\x02ä", max_size=12).map(str.encode) | st.binary(max_size=6), max_size=5))
@example([b"a\x01b\x02", b"c\x01", b"d\x02"])
@example([b"a\x01b\x02a\x01c\x02"])
@example([b"a\x01x\x02", b"b\x01x\x02a\x01x\x02b\x01y\x02"])
def test_columns_read_foreign_texts_as_single_ones_do(values: list[bytes]) -> None:
    assert rows(pa.array(values, pa.binary())) == [texts.decode(value) for value in values]


@given(st.lists(MAPS, max_size=6))
def test_what_users_see(maps: list[dict[str, str]]) -> None:
    seen = decode_column(pa.array([texts.encode(each) for each in maps], pa.binary())).visible()
    expected = [{name: value for name, value in each.items() if not texts.is_hidden(name)} for each in maps]
    assert [dict(row or ()) for row in seen.to_pylist()] == expected
    assert [row is None for row in seen.to_pylist()] == [not row for row in expected]
    twice = pa.array([b"a\x01b\x02a\x01c\x02", b"x\x01y\x02"], pa.binary())
    assert decode_column(twice).visible().to_pylist() == [[("a", "c")], [("x", "y")]], "of two of one name, the last"


def test_both_forms_are_taken() -> None:
    """Rows with the same names in the same order have a faster form; both must be in use for the tests above to mean anything."""
    regular: Any = [{"a": str(row), "KEYS": "k"} for row in range(3)]
    assert decode_column(pa.array([texts.encode(each) for each in regular], pa.binary())).is_regular
    for mixed in ([{"a": "1"}, {}], [{"a": "1"}, {"b": "1"}], [{"a": "1", "b": "2"}, {"b": "1", "a": "2"}]):
        assert not decode_column(pa.array([texts.encode(each) for each in mixed], pa.binary())).is_regular


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("-5", -5),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", None),
        ("", None),
        ("1.5", None),
        ("x", None),
        ("٣", None),
    ],
)
def test_integers(text: str, expected: int | None) -> None:
    assert texts.integer(text) == expected
    assert texts.integers(pa.array([text, None, "12"])).to_pylist() == [expected, None, 12]


INT64 = st.integers(0, 2**63 - 1)
NEAR = st.tuples(INT64, st.lists(st.integers(0, 10**9), min_size=1, max_size=20)).map(
    lambda drawn: [min(drawn[0] + each, 2**63 - 1) for each in drawn[1]]
)


@given(st.one_of(NEAR, st.lists(INT64, min_size=1, max_size=20), st.lists(st.integers(0, 9), min_size=1)))
@example([0])
@example([7, 7, 7])
@example([9_999, 10_000])
@example([10_000, 10_001, 99_999])
@example([1_700_000_000_000, 1_700_003_599_999])
@example([1_699_999_999_999, 1_700_000_000_000])
@example([2**63 - 1, 2**63 - 2])
def test_numbers_of_one_length_become_their_text(numbers: list[int]) -> None:
    texts = [str(each).encode() for each in numbers]
    parts = decimal_parts(np.array(numbers, np.int64))
    if len({len(text) for text in texts}) > 1:
        assert parts is None
        return
    assert parts is not None
    total = sum(map(len, texts))
    assert join_columns([measure(part) for part in parts], len(numbers), total)[:total].tobytes() == b"".join(texts)


def test_negative_numbers_are_left_to_somebody_else() -> None:
    assert decimal_parts(np.array([-1])) is decimal_parts(np.array([-5, 5])) is None
