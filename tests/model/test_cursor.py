"""``TimerCursor`` is the staircase of the model, and the smallest one that covers what it must."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rmqstore.contract.timers import EMPTY_CURSOR, TimerCursor

from .protocol import stairs, stairs_cover

EDGE = 7
"""Small enough that a grid holds every case, since only the order of coordinates matters."""

GRID = list(itertools.product(range(1, EDGE + 2), range(1, EDGE + 2)))

small = st.integers(1, EDGE)
corners = st.lists(st.tuples(small, small), max_size=8)
wide = st.integers(1, 2**62)
wide_corners = st.lists(st.tuples(wide, wide), max_size=8)
any_corners = corners | wide_corners


@given(any_corners)
def test_of_is_the_models_staircase(given_corners: list[tuple[int, int]]) -> None:
    cursor = TimerCursor.of(given_corners)
    assert cursor.corners == stairs(given_corners)
    assert all(one[0] > next_[0] and one[1] < next_[1] for one, next_ in itertools.pairwise(cursor.corners))
    assert TimerCursor.of(cursor.corners) == TimerCursor.of(reversed(given_corners)) == cursor
    for left_out in cursor.corners:
        fewer = TimerCursor.of(corner for corner in cursor.corners if corner != left_out)
        assert not fewer.covers(*left_out), "a smaller staircase covers the same"


@given(st.lists(st.tuples(st.integers(-2, EDGE), st.integers(-2, EDGE)), max_size=8))
def test_of_keeps_tick_0_and_drops_corners_that_cover_nothing(given_corners: list[tuple[int, int]]) -> None:
    """The model counts ticks from 1, rmqstore from 0."""
    shifted = stairs([(tick + 1, seq) for tick, seq in given_corners])
    assert TimerCursor.of(given_corners).corners == tuple((tick - 1, seq) for tick, seq in shifted)


@given(any_corners, st.lists(st.tuples(wide, wide), max_size=20))
def test_covers_is_the_models_one_by_one_and_in_columns(given_corners: list[tuple[int, int]], puts: list[tuple[int, int]]) -> None:
    cursor = TimerCursor.of(given_corners)
    puts = [*GRID, *puts, *given_corners]
    covered = [any(a >= tick and b >= seq for a, b in given_corners) for tick, seq in puts]
    assert [stairs_cover(cursor.corners, *put) for put in puts] == [cursor.covers(*put) for put in puts] == covered
    ticks, seqs = np.array(puts, np.int64).T
    assert cursor.covers_each(ticks, seqs).tolist() == covered
    assert cursor.covers_each(ticks[:0], seqs[:0]).tolist() == []


@given(any_corners, any_corners)
def test_join_is_the_staircase_of_both(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    first, second = TimerCursor.of(one), TimerCursor.of(other)
    assert first.join(second.corners).corners == second.join(first.corners).corners == stairs([*one, *other])
    assert first.join(EMPTY_CURSOR.corners) == EMPTY_CURSOR.join(first.corners) == first.join(first.corners) == first


@given(any_corners)
def test_bounds_are_the_largest_covered_seqs_and_ticks(given_corners: list[tuple[int, int]]) -> None:
    cursor = TimerCursor.of(given_corners)
    for tick in {0, 1, *(tick + step for tick, _ in given_corners for step in (-1, 0, 1))}:
        bound = cursor.bound(tick)
        assert bound == 0 or cursor.covers(tick, bound)
        assert not cursor.covers(tick, bound + 1)
    assert cursor.highest_tick == max((tick for tick, _ in cursor.corners), default=-1)
    assert cursor.highest_seq == max((seq for _, seq in cursor.corners), default=0)


@given(any_corners)
def test_bytes_are_16_a_corner_and_come_back(given_corners: list[tuple[int, int]]) -> None:
    cursor = TimerCursor.of(given_corners)
    data = cursor.to_bytes()
    assert len(data) == 16 * len(cursor.corners)
    assert TimerCursor.from_bytes(data) == cursor
    assert data == b"".join(number.to_bytes(8, "big") for corner in cursor.corners for number in corner)


@given(st.binary(max_size=64).filter(lambda data: len(data) % 16))
def test_bytes_of_another_length_are_no_cursor(data: bytes) -> None:
    with pytest.raises(ValueError, match="16 bytes a corner"):
        TimerCursor.from_bytes(data)
