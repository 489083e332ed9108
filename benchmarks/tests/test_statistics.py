"""The histogram: buckets cover everything without gaps, sort like their values, and are narrow."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_benchmarks.statistics import bounds_of, bucket_of, percentile


@given(st.integers(0, 2**62))
def test_a_value_lies_in_its_bucket_which_is_narrow(value: int) -> None:
    low, behind = bounds_of(bucket_of(value))
    assert low <= value < behind
    assert behind - low <= max(1, low / 64)


def test_buckets_follow_one_another_without_gap() -> None:
    behind = 0
    for bucket in range(3000):
        low, next_behind = bounds_of(bucket)
        assert low == behind
        assert bucket_of(low) == bucket_of(next_behind - 1) == bucket
        behind = next_behind


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.99, 0.999])
def test_percentiles_are_within_a_bucket_of_the_exact_ones(share: float) -> None:
    values = np.random.default_rng(3).lognormal(12, 1.5, 20_000).astype(np.int64).tolist()
    exact = sorted(values)[max(round(share * len(values)) - 1, 0)]
    assert percentile(Counter(map(bucket_of, values)), share) == pytest.approx(exact, rel=0.02)


def test_of_nothing_there_is_no_percentile() -> None:
    assert percentile({}, 0.5) == 0.0
    assert percentile({bucket_of(5): 1}, 1.0) == 5
