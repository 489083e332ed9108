"""A slot may hold any number of timers: until it is due nobody looks at them, and then they are read a stretch at a time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from plugins.wheel.tests.breaking import WheelStores, index_of
from rmqstore.contract import PopTxn
from rmqstore_conformance.stores import START_MS, message, pop_all
from rmqstore_wheel.files.units import UnitLog
from rmqstore_wheel.formats.log_columns import joined
from rmqstore_wheel.formats.timer_log import UNIT
from rmqstore_wheel.timers import index as timer_index, table as timer_table
from rmqstore_wheel.timers.records import EncodedTimers

COUNT = 5000


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many units of the timer log each look took."""
    looks: list[int] = []
    gather = UnitLog.gather

    def noting(log: UnitLog, numbers: Any) -> Any:
        if log.unit == UNIT:
            looks.append(len(numbers))
        return gather(log, numbers)

    monkeypatch.setattr(UnitLog, "gather", noting)
    return looks


def test_a_tick_looks_at_no_slot_that_is_to_come(stores: WheelStores, gathered: list[int]) -> None:
    store = stores.open()
    crowd = store.send_batch([message(n) for n in range(COUNT)], delay=timedelta(hours=1))
    store.cancel([each.handle or "" for each in crowd[: COUNT // 2]])
    for second in range(1, 6):
        store.send(message(f"early-{second}", "early"), delay=timedelta(seconds=second))
    store = stores.reopen(store)
    for _ in range(5):
        gathered.clear()
        stores.clock.advance(1000)
        assert store.tick().handed_over == 1
        assert sum(gathered) < 10
    assert store.engine.timers.next_tick_ms() == START_MS + 3_600_000


def test_a_tick_looks_at_nothing_that_was_handed_over(stores: WheelStores, gathered: list[int]) -> None:
    """Until the hand-over is durable, which nobody sees to here, the timers stay where they were."""
    store = stores.open(flush="async")
    for number in range(50):
        store.send(message(number), delay=timedelta(seconds=1))
        stores.clock.advance(2000)
        gathered.clear()
        assert store.tick().handed_over == 1
        assert sum(gathered) == 1
    late = store.send(message("late"), delay=timedelta(seconds=5))
    stores.clock.set(stores.clock.now_ms() - 60_000)
    store.send(message("earlier"), delay=timedelta(seconds=1))
    store.tick()
    stores.clock.advance(120_000)
    assert store.tick().handed_over == 2
    assert late.handle is not None
    assert len(pop_all(store)) == 52


@pytest.mark.parametrize("facts_a_timer", [8, 0], ids=["by the facts", "by the slot"])
def test_of_a_crowded_slot_a_stretch_is_read_at_a_time(
    stores: WheelStores, gathered: list[int], monkeypatch: pytest.MonkeyPatch, facts_a_timer: int
) -> None:
    monkeypatch.setattr(timer_index, "_WINDOW_TIMERS", 700)
    monkeypatch.setattr(timer_index, "_FACTS_A_TIMER", facts_a_timer)
    store = stores.open()
    crowd = [store.send_batch([message(f"{part}-{n}") for n in range(500)], delay=timedelta(hours=1)) for part in range(6)]
    store.cancel([each.handle or "" for each in crowd[2]])
    gathered.clear()
    stores.clock.advance(3_600_000)
    assert store.tick().handed_over == 2500
    assert gathered == [] if facts_a_timer else 0 < max(gathered) <= 700
    assert [each.message_id for each in pop_all(store)] == [f"m{part}-{n}" for part in (0, 1, 3, 4, 5) for n in range(500)]


def test_a_crowded_slot_is_not_read_before_its_first_timers_go(stores: WheelStores, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is put, forgotten and made durable between two batches of it changes nothing of what the others hold."""
    monkeypatch.setattr(timer_index, "_WINDOW_TIMERS", 700)
    monkeypatch.setattr(timer_table, "_PAGE", 200)
    looks: list[int] = []
    read = UnitLog.read

    def noting(log: UnitLog, first: int, count: int) -> Any:
        if log.unit == timer_table.FACT:
            looks.append(count)
        return read(log, first, count)

    monkeypatch.setattr(UnitLog, "read", noting)
    store = stores.open(hand_over_limit=100)
    for part in range(30):
        store.send_batch([message(f"{part}-{n}") for n in range(100)], delay=timedelta(hours=1))
    store.send(message("other", "others"), delay=timedelta(hours=2))
    stores.clock.advance(3_600_000)
    timers, pops = store.engine.timers, store.engine.pops
    now_ms = stores.clock.now_ms()
    looks.clear()
    timers.seal(now_ms)
    found = timers.due(pops.timer_cursor(), 100)
    assert sum(looks) <= 600
    pops.apply(PopTxn(appends=found.messages, timer_cursor=found.cursor), now_ms)
    store.flush()
    timers.forget(pops.durable_cursor())
    store.send(message("late"), deliver_at_ms=now_ms - 1)
    assert store.tick().handed_over == 2900
    stores.clock.advance(3_600_000)
    assert store.tick().handed_over == 1
    expected = [f"m{part}-{n}" for part in range(30) for n in range(100)]
    assert sorted(each.message_id for each in pop_all(store)) == sorted(["mlate", *expected])


def test_a_tick_that_is_no_end_of_a_slot_is_told_of_in_time(stores: WheelStores) -> None:
    """Timers of a store with a finer precision keep their ticks."""
    store = stores.open()
    index = index_of(store)
    ticks = np.array([START_MS + 4300, START_MS + 5000])
    none = np.zeros(0, np.int64)
    found = EncodedTimers(joined([]), ticks, ticks, 0, none, none)
    index.put_many(found, np.array([1, 2]), 1, START_MS, np.array([0, 0]), np.array([100, 100]))()
    assert index.first_tick(START_MS) == START_MS + 4300
    assert index.first_tick(START_MS + 4300) == START_MS + 5000
    index.cancel(np.array([1]))
    assert index.first_tick(START_MS) == START_MS + 5000
    index.cancel(np.array([2]))
    assert index.first_tick(START_MS) is None
