"""A clock that was wrong for a moment leaves the wheel as it was: later timers find their slots, and only the stray ones cost anything."""

from __future__ import annotations

from datetime import timedelta

import pytest

from plugins.wheel.tests.breaking import WheelStores
from rmqstore import CancelOutcome, Store
from rmqstore_conformance.stores import DAY_MS, START_MS, message, read_ids

YEAR_MS = 365 * DAY_MS


@pytest.mark.parametrize("leap_ms", [YEAR_MS, -YEAR_MS], ids=["ahead", "back"])
def test_after_one_send_under_a_wrong_clock_timers_lie_in_the_wheel(stores: WheelStores, leap_ms: int) -> None:
    store = stores.open()
    stores.clock.set(START_MS + leap_ms)
    store.send(message("stray"), delay=timedelta(minutes=90))
    store.tick()
    stores.clock.set(START_MS)
    sent = [store.send(message(n), delay=timedelta(hours=n)) for n in range(1, 97)]
    store.send_batch([message(f"b{n}") for n in range(100)], delay=timedelta(days=3))
    assert aside(store) == 0
    store = stores.killed(store)
    assert aside(store) == 0
    assert store.verify() == []
    assert store.cancel([each.handle or "" for each in sent[:24]]) == [CancelOutcome.CANCELLED] * 24
    for _ in range(2 * 96):
        stores.clock.advance(1_800_000)
        store.tick()
    expected = [f"m{n}" for n in range(25, 97)] + [f"mb{n}" for n in range(100)]
    assert sorted(set(read_ids(store)) - {"mstray"}) == sorted(expected)
    assert aside(store) == 0
    assert store.pending().total == (1 if leap_ms > 0 else 0)


def aside(store: Store) -> int:
    """Return how many timers have no place in the wheel."""
    return len(store.engine.timers._index.aside)  # type: ignore[attr-defined]
