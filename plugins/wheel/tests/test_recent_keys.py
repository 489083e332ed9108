"""Keys that are in no index file yet: all are found, oldest first, however they came."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqstore_wheel.timers.keys import RecentKeys

HASHES = st.sampled_from([0, 1, 2, 77, 2**31 - 1])
CALLS = st.lists(st.tuples(st.lists(HASHES, min_size=1, max_size=12), st.sampled_from([1, 1, 1, 60, 700])), max_size=40)


@settings(max_examples=80, deadline=None)
@given(CALLS)
def test_small_and_large_calls_are_found_in_their_order(calls: list[tuple[list[int], int]]) -> None:
    recent = RecentKeys()
    expected: dict[int, list[int]] = {}
    count = 0
    for hashes, times in calls:
        given_hashes = np.array(hashes * times, np.int64)
        offsets = 10 * (count + np.arange(len(given_hashes)))
        recent.add_many(given_hashes, offsets)
        count += len(given_hashes)
        for hashed, offset in zip(given_hashes.tolist(), offsets.tolist(), strict=True):
            expected.setdefault(hashed, []).append(offset)
    for hashed in (0, 1, 2, 3, 77, 2**31 - 1):
        assert recent.lookup(hashed) == expected.get(hashed, [])


def test_there_are_few_runs_of_many_calls() -> None:
    recent = RecentKeys()
    for call in range(1000):
        recent.add_many(np.arange(600), np.arange(600) + 600 * call)
    assert len(recent._runs) <= 3 * 6
    assert recent.lookup(5) == [5 + 600 * call for call in range(1000)]
