"""Columns as bytes: what stands in every row, numbers as text, and rows of structured arrays that are written at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from rmqstore_wheel.formats.binary_columns import join_columns, measure
from rmqstore_wheel.formats.properties import decimal_parts

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


@pytest.mark.parametrize("numbers", [[-1], [-5, 5], [9, 10], [1, 100_000]])
def test_other_numbers_are_left_to_somebody_else(numbers: list[int]) -> None:
    assert decimal_parts(np.array(numbers)) is None
