"""Rows of a put get the same places one by one as by column."""

from __future__ import annotations

from hypothesis import given, strategies as st

from rmqstore.engine import runs
from rmqstore.engine.timers import ticks

NOW_MS = 1_800_000_000_123
DELIVERS = st.one_of(st.just(-1), st.integers(NOW_MS - 3000, NOW_MS + 3000), st.integers(NOW_MS, NOW_MS + 10 * ticks.MINUTE_MS))


@given(
    rows=st.lists(st.tuples(DELIVERS, st.binary(min_size=1, max_size=40)), min_size=1, max_size=ticks._FEW),
    run_bytes=st.sampled_from([30, runs.RUN_BYTES]),
)
def test_few_rows_get_the_places_that_many_get(rows: list[tuple[int, bytes]], run_bytes: int) -> None:
    delivers, records = [deliver for deliver, _ in rows], [record for _, record in rows]
    few, before, runs.RUN_BYTES = ticks._FEW, runs.RUN_BYTES, run_bytes  # type: ignore[misc]
    try:
        one_by_one = ticks.place(records, delivers, 7, NOW_MS, 100, 3)
        ticks._FEW = 0  # type: ignore[misc]
        by_column = ticks.place(records, delivers, 7, NOW_MS, 100, 3) if len(rows) > 1 else one_by_one
    finally:
        ticks._FEW, runs.RUN_BYTES = few, before  # type: ignore[misc]
    assert one_by_one.ticks == by_column.ticks
    assert sorted(one_by_one.entries) == sorted(by_column.entries)
    assert one_by_one.by_minute == by_column.by_minute
