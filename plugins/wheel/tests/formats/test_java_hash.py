"""Java's string hash, against values that a Java program prints, and the hash of keys that is made of it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from rmqstore_wheel.formats import index_file
from rmqstore_wheel.formats.java_hash import java_hash, java_hashes

KNOWN = {
    "": 0,
    "a": 97,
    "Aa": 2112,
    "BB": 2112,
    "hello": 99162322,
    "TagA": 2598919,
    "polygenelubricants": -(2**31),
    "中文": 20013 * 31 + 25991,
    "\U0001f600": 0xD83D * 31 + 0xDE00,  # two UTF-16 units
}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@pytest.mark.parametrize(("text", "expected"), KNOWN.items())
def test_known_values(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_known_values_by_column() -> None:
    assert java_hashes(pa.array(list(KNOWN))).tolist() == list(KNOWN.values())
    assert index_file.key_hashes(pa.array(list(KNOWN))).tolist() == [abs(value) % 2**31 for value in KNOWN.values()]


@given(st.lists(st.none() | TEXTS, max_size=12), st.sampled_from([pa.string(), pa.large_string()]))
def test_column_is_every_single_one(texts: list[str | None], kind: pa.DataType) -> None:
    assert java_hashes(pa.array(texts, kind)).tolist() == [java_hash(text or "") for text in texts]
    there = [text or "" for text in texts]
    assert index_file.key_hashes(pa.array(there, kind)).tolist() == [index_file.key_hash(text) for text in there]


@given(st.lists(TEXTS, min_size=1, max_size=8), st.data())
def test_slices_count_from_their_own_start(texts: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(texts)))
    assert java_hashes(pa.array(texts).slice(start)).tolist() == [java_hash(text) for text in texts[start:]]
