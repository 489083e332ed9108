"""A clock that was wrong for a moment leaves the wheel as it was: later timers find their slots, and only the stray ones cost anything."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

import rmqstore
from plugins.wheel.tests.breaking import WheelStores, index_of, opened
from rmqstore import CancelOutcome, ManualClock, Message, Store
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
    return len(index_of(store).aside)


@pytest.mark.parametrize("is_due_first", [False, True])
def test_a_slot_that_was_rolled_takes_no_other_far_timer(tmp_path: Path, is_due_first: bool) -> None:
    """Its chain still has the units of what rolled on, which another roll would take again: doubled, and what stayed counted off, lost."""
    precision, window, hour = 100, 172_800, 3_600_000
    clock = ManualClock(START_MS)

    def waits_in(seq: int) -> int:
        return window // 2 + ((seq * 0x9E3779B97F4A7C15 & (2**64 - 1)) >> 33) % (window - window // 2)

    slot = START_MS // precision + waits_in(1)
    came: list[bytes] = []
    with opened(tmp_path / "store", clock, precision_ms=precision) as store:

        def tick_at(now_ms: int) -> None:
            clock.set(now_ms)
            store.tick()
            popped = store.pop("t", "g", max_messages=100, invisible_ms=10**12)
            came.extend(each.body for each in popped)

        store.send(Message("t", b"far"), deliver_at_ms=START_MS + 40 * hour)
        store.send(Message("t", b"stays"), deliver_at_ms=(slot + 1) * precision)
        store.send(Message("t", b"seals"), deliver_at_ms=slot * precision - precision // 2)
        tick_at(slot * precision + precision // 2)
        clock.set((slot - waits_in(4)) * precision)
        store.send(Message("t", b"far too"), deliver_at_ms=START_MS + 41 * hour)
        if is_due_first:
            tick_at((slot + 1) * precision)
        for hours in range(13 if is_due_first else 42, 60):
            tick_at(START_MS + hours * hour)
        assert sorted(came) == [b"far", b"far too", b"seals", b"stays"]
        assert store.pending().total == 0
        assert store.verify() == []


def test_a_view_of_a_store_whose_files_went_finds_nothing_wrong(tmp_path: Path) -> None:
    """What went of a queue is missing to nobody who reads beside the owner, or after it."""
    clock = ManualClock(START_MS)

    def seen() -> list[str]:
        with rmqstore.open(tmp_path / "store", read_only=True, clock=clock) as view:
            return list(view.verify())

    with opened(tmp_path / "store", clock, wheel__log_file_mib=8) as store:
        for minute in range(30):
            clock.advance(60_000)
            if minute < 15:
                store.send(Message("t", b"x" * 2_000_000))
            store.tick()
            store.ack(store.pop("t", "g"))
        assert store.topics.list()[0].min_offsets != (0,) * len(store.topics.list()[0].min_offsets), "nothing went"
        assert seen() == store.verify() == []
    assert seen() == []
