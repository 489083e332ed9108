"""K1, K2: the clock goes back, and forward."""

from __future__ import annotations

import random

import pytest

from rmqstore import CancelOutcome, ClockStepError
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.stores import DAY_MS, START_MS, Stores, ids, message, pop_all, read_ids

(T,) = topics(__name__.rpartition(".")[2], 1)
(G,) = groups(__name__.rpartition(".")[2], 1)


def test_k1_a_day_ahead_and_back(stores: Stores) -> None:
    """K1: "+1 day, tick, back, send in 5 min" arrives after 5 min, not a day later and not at once."""
    store = stores.open()
    store.send(message(0), delay_ms=3 * DAY_MS)
    stores.clock.advance(DAY_MS)
    store.send(message(1), delay_ms=1000)
    assert stores.tick_after(store, 1000).handed_over == 1
    stores.clock.set(START_MS)
    store.send(message(2), delay_ms=300_000)
    open_still = [store.send(message(f"cancelled{delay_ms}"), delay_ms=delay_ms) for delay_ms in (300_000, 600_000)]
    assert stores.tick_at(store, START_MS + 299_999).handed_over == 0
    assert store.cancel(open_still[0]) is CancelOutcome.CANCELLED, "no tick has reached it since it was put"
    assert stores.tick_at(store, START_MS + 300_000).handed_over == 1
    assert store.cancel(open_still[1]) is CancelOutcome.CANCELLED, "nor this one"
    assert read_ids(store) == ["m1", "m2"]


def test_k1_back_gives_nothing_twice_and_nothing_early(stores: Stores) -> None:
    """K1: a clock that goes to and fro; each timer comes out once, by a tick at or after its time."""
    store = stores.open(hand_over_limit=2)
    rng = random.Random(1)
    due: dict[str, int] = {}
    seen: set[str] = set()
    for step in range(80):
        now = stores.clock.now_ms()
        delay = rng.choice((500, 3000, 30_000, 90_000))
        store.send(message(step), delay_ms=delay)
        due[f"m{step}"] = now + delay
        stores.tick_at(store, now + rng.choice((-60_000, -2000, -1, 0, 700, 2000, 5000, 61_000)))
        lying = read_ids(store)
        assert len(lying) == len(set(lying)), "twice"
        fresh = set(lying) - seen
        assert all(due[name] <= stores.clock.now_ms() for name in fresh), "early"
        overdue = {name for name, at in due.items() if -(-at // 1000) * 1000 <= stores.clock.now_ms()}
        assert overdue <= set(lying), "late"
        seen = set(lying)
    assert len(seen) > 20


@pytest.mark.parametrize("far", [False, True], ids=["nothing between", "a timer between any two"])
def test_k1_many_steps_back_keep_the_cursor_small(stores: Stores, far: bool) -> None:
    """K1: each step back adds a corner to the cursor; beyond 15 it is made shorter, and nothing is lost or doubled."""
    store = stores.open(retention_ms=0)
    start = START_MS + 10 * DAY_MS
    for step in range(60):
        stores.clock.set(start - step * 10_000)
        if far:
            # So that no corner is there for nothing.
            store.send(message(f"far{step}"), delay_ms=20 * DAY_MS)
        store.send(message(step), delay_ms=1000)
        assert stores.tick_after(store, 1000).handed_over == 1
        assert len(store.engine.pops.timer_cursor().corners) <= 15
        assert len(store.engine.timers.stats().sealed.corners) <= 15
    assert read_ids(store) == [f"m{n}" for n in range(60)]
    assert stores.tick_at(store, start + 50 * DAY_MS).handed_over == 60 * far
    assert len(set(read_ids(store))) == 60 + 60 * far


def test_k1_a_lease_that_is_given_after_a_step_back_lasts_its_time(stores: Stores) -> None:
    """K1: the clock was a day ahead when a tick ran; a lease that is given once it is right again ends by the new clock, not at once."""
    store = stores.open()
    store.send(message(1))
    stores.tick_after(store, DAY_MS)
    stores.clock.set(START_MS)
    assert ids(store.pop(T, G, invisible_ms=10_000)) == ["m1"]
    assert stores.tick_after(store, 9999).retried == 0
    assert store.pop(T, G) == []
    assert stores.tick_after(store, 1).retried == 1


def test_k2_forward_delivers_all_due_in_order(stores: Stores) -> None:
    """K2: after a jump everything due is delivered by one tick, in order."""
    store = stores.open(hand_over_limit=7)
    rng = random.Random(2)
    delays = [rng.randrange(1, 40 * DAY_MS) for _ in range(50)]
    for n, delay in enumerate(delays):
        store.send(message(n), delay_ms=delay)
    stores.clock.advance(30 * DAY_MS)
    due = sorted((-(-(START_MS + d) // 1000), n) for n, d in enumerate(delays) if d <= 30 * DAY_MS - 1000)
    store.tick()
    assert ids(pop_all(store))[: len(due)] == [f"m{n}" for _, n in due]


def test_k2_a_large_step_waits_for_confirmation(stores: Stores) -> None:
    """K2: a step above ``clock.max_step_ms`` stops the hand-over and the revive until confirmed, or until the clock is right again."""
    store = stores.open(clock__max_step_ms=60_000)
    store.send(message(1), delay_ms=1000)
    store.send(message(2))
    store.pop(T, G, invisible_ms=1000)
    store.tick()
    stores.clock.advance(60_001)
    for _ in range(3):
        with pytest.raises(ClockStepError):
            store.tick()
    assert store.lag(T, G).in_flight == 1
    assert store.pending().total == 1
    assert stores.tick_at(store, START_MS + 500).moved == 0
    stores.clock.advance(60_001)
    with pytest.raises(ClockStepError):
        store.tick()
    store.confirm_clock_step()
    report = store.tick()
    assert (report.handed_over, report.retried) == (1, 1)


def test_k2_a_step_of_just_the_limit_goes_on(engine_stores: Stores) -> None:
    """K2: only a step *above* the limit stops; by default no step does."""
    limited = engine_stores.open("limited", clock__max_step_ms=60_000)
    free = engine_stores.open("free")
    for store in (limited, free):
        store.send(message(1), delay_ms=1000)
        store.tick()
    assert engine_stores.tick_after(limited, 60_000).handed_over == 1
    assert engine_stores.tick_after(free, 1000 * DAY_MS).handed_over == 1
