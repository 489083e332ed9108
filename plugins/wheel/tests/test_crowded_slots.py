"""A slot may hold any number of timers: until it is due nobody looks at them, and then they are read a stretch at a time; so are queues."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from plugins.wheel.tests.stores import WheelStores, index_of, noted
from rmqstore.batch import MessageBatch
from rmqstore.contract import PopTxn
from rmqstore_conformance.stores import START_MS, message, pop_all
from rmqstore_wheel.files.units import UnitLog
from rmqstore_wheel.formats.log_columns import joined
from rmqstore_wheel.formats.timer_log import UNIT
from rmqstore_wheel.queues import queue_log
from rmqstore_wheel.queues.queue_log import WheelQueueLog
from rmqstore_wheel.timers import index as timer_index, table as timer_table
from rmqstore_wheel.timers.records import EncodedTimers
from rmqstore_wheel.timers.table import Due

COUNT = 5000


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many units of the timer log each look took."""
    return noted(monkeypatch, UnitLog, "gather", lambda _, log, numbers: len(numbers) if log.unit == UNIT else 0)


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


def test_a_tick_within_a_slot_does_not_read_it(stores: WheelStores, gathered: list[int]) -> None:
    """Its timers are due at its end, unless one came late."""
    store = stores.open()
    store.send_batch([message(n) for n in range(COUNT)], delay=timedelta(seconds=10))
    store.send(message("before"), delay=timedelta(seconds=9))
    gathered.clear()
    for due in (1, 0, 0):
        stores.clock.advance(9000 if due else 300)
        assert store.tick().handed_over == due
    assert sum(gathered) < 10
    store.engine.timers.put(MessageBatch([message("late", deliver_at_ms=START_MS)]), stores.clock.now_ms())
    assert store.tick().handed_over == 1
    stores.clock.advance(400)
    assert store.tick().handed_over == COUNT


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
    assert sum(gathered) == 0 if facts_a_timer else 0 < max(gathered) <= 700
    assert [each.message_id for each in pop_all(store)] == [f"m{part}-{n}" for part in (0, 1, 3, 4, 5) for n in range(500)]


def test_a_crowded_slot_is_not_read_before_its_first_timers_go(stores: WheelStores, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is put, forgotten and made durable between two batches of it changes nothing of what the others hold."""
    monkeypatch.setattr(timer_index, "_WINDOW_TIMERS", 700)
    monkeypatch.setattr(timer_table, "_PAGE", 200)
    looks = noted(monkeypatch, UnitLog, "read", lambda _, log, first, count: count if log.unit == timer_table.FACT else 0)
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


MIB = 1024 * 1024


def test_pages_of_large_messages_are_short(stores: WheelStores, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first tick after an open looks at how old messages are, a pop takes some, an export all: each a few MiB at a time."""
    store = stores.open(default_queues=1)
    for first in range(0, 40, 10):
        store.send_batch([message(n, body=bytes(MIB)) for n in range(first, first + 10)])
        store.send_batch([message(n, topic=f"u{first}", body=bytes(MIB)) for n in range(10)])
    pages: list[int] = []
    kept: list[int] = []
    read = WheelQueueLog._read

    def noting(log: WheelQueueLog, topic: str, queue: int, offset: int, count: int) -> queue_log._Page | None:
        kept.append(sum(page.size for page in log._recent.values()))
        page = read(log, topic, queue, offset, count)
        if page is not None:
            assert page.size == sum(len(record) for run in page.runs if isinstance(run, queue_log.Run) for record in run.records)
            pages.append(page.size)
        return page

    monkeypatch.setattr(WheelQueueLog, "_read", noting)
    store = stores.reopen(store)
    stores.clock.advance(1000)
    store.tick()
    for first in range(0, 40, 10):
        while popped := store.pop(f"u{first}", "g", max_messages=2):
            store.ack(popped)
    assert store.transfer.digest()["messages"].rows == 80
    (topic,) = (each for each in store.topics.list() if each.name == "t")
    assert sum(map(len, store.engine.pops.pages(topic))) == 40
    assert np.max(pages) <= 8 * MIB
    assert np.max(kept) <= 40 * MIB
    assert store.verify() == []


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
