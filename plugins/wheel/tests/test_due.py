"""Timers by column."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, strategies as st

from rmqstore_wheel.timers.table import Due

_MOST = 2**63 - 1
_NUMBERS = st.one_of(st.integers(0, 20), st.integers(0, _MOST))


def _due(rows: list[tuple[int, int]]) -> Due:
    ticks, seqs = np.array(rows, np.int64).reshape(-1, 2).T
    return Due(ticks, seqs, np.arange(len(rows)))


@given(st.lists(st.tuples(_NUMBERS, _NUMBERS), max_size=30, unique=True))
@example([(0, _MOST), (1, 0)])
@example([(_MOST, 5), (0, 5), (3, 5)])
@example([(7, _MOST), (7, 0), (7, 1)])
@example([(2**31, 0), (0, 2**32), (2**31, 2**32), (0, 0)])
@example([(2**31 - 1, 0), (0, 2**32 - 1), (2**31 - 1, 2**32 - 1), (0, 0)])
def test_timers_are_put_into_order_by_tick_and_then_by_seq(rows: list[tuple[int, int]]) -> None:
    found = _due(rows).in_order()
    assert list(zip(found.ticks.tolist(), found.seqs.tolist(), strict=True)) == sorted(rows)
    assert [rows[at] for at in found.dues.tolist()] == sorted(rows)
