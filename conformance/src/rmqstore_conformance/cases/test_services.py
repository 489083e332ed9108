"""T2, P3, Q2, R1: what a store does by itself, with the background services."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from rmqstore import SystemClock
from rmqstore.contract import PopTxn
from rmqstore_conformance.cases.scenes import told
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.stores import DAY_MS, START_MS, Stores, ids, message

(T,) = topics(__name__, 1)
(G,) = groups(__name__, 1)

SOON_S = 30.0
"""So long at most we wait for the background thread; it has less than a second of work, on a machine that may be busy."""


def becomes_so(condition: Callable[[], bool]) -> bool:
    """Say whether something comes about soon."""
    until_s = time.monotonic() + SOON_S
    while not (found := condition()) and time.monotonic() < until_s:
        time.sleep(0.005)
    return found


def test_t2_a_tick_follows_soon_upon_what_is_due(stores: Stores) -> None:
    """T2: by the clock of the machine a timer comes when its tick is over and a tenth of the precision, not some seconds later."""
    store = stores.open(services=True, clock=SystemClock(), precision_ms=1000)
    begin_s = time.monotonic()
    due_ms = time.time_ns() // 1_000_000 + 300
    store.send(message(1), deliver_at_ms=due_ms)
    # Well behind the 1.4 s that it may take, as the machine may be busy.
    (got,) = store.pop(T, G, wait_ms=8000)
    assert ids([got]) == ["m1"]
    assert got.store_ms >= due_ms
    assert time.monotonic() - begin_s < 8


@pytest.mark.clause("P3")
def test_k1_leases_are_revived_by_a_clock_that_was_set_back(stores: Stores) -> None:
    """K1: the background thread ticks a day ahead, the clock is set right: a lease that ends then is revived by then, not a day later."""
    store = stores.open(services=True, revive_interval_ms=1000)
    store.send(message("ahead"), delay_ms=DAY_MS)
    stores.clock.advance(DAY_MS)
    assert ids(store.pop(T, G, wait_ms=30_000, invisible_ms=2 * DAY_MS)) == ["mahead"]
    stores.clock.set(START_MS)
    store.send(message("lost"))
    assert told(store.pop(T, G, invisible_ms=1000)) == [("mlost", 1)]
    stores.clock.advance(1000)
    assert told(store.pop(T, G, wait_ms=30_000)) == [("mlost", 2)]


@pytest.mark.needs("retention")
def test_q2_what_was_consumed_goes_by_itself(stores: Stores) -> None:
    """Q2: the ticks of the background thread do upkeep: what every group has acked goes, without a call of the program."""
    store = stores.open(services=True)
    for turn in range(1, 3):
        store.send(message(turn))
        store.ack(store.pop(T, G))
        stores.clock.advance(60_000)
        assert becomes_so(lambda turn=turn: store.topics.list()[0].min_offsets == (turn,))  # type: ignore[misc]


@pytest.mark.parametrize("side", ["timers", "pops"])
def test_r1_what_is_sent_becomes_durable_by_itself(durable_stores: Stores, side: str) -> None:
    """R1: with ``flush = async`` a background thread syncs what was answered, on either side, though nobody calls any more."""
    store = durable_stores.open(services=True, flush="async", flush_interval_ms=50)
    now_ms, engine = durable_stores.clock.now_ms(), store.engine
    for turn in range(3):
        if side == "timers":
            store.send(message(turn), delay_ms=DAY_MS)
            _, ticket = engine.timers.cancel([], now_ms)
        else:
            store.send(message(turn))
            _, ticket = engine.pops.apply(PopTxn(notes={"n": b"%d" % turn}), now_ms)
        chosen = getattr(engine, side)
        assert becomes_so(lambda chosen=chosen, position=ticket.position: chosen.durable_position >= position)  # type: ignore[misc]
