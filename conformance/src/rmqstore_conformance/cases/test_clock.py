"""K1, K2: the clock goes back, and forward."""

from __future__ import annotations

import random
from datetime import timedelta
from functools import partial

import pytest

from rmqstore import AckOutcome, CancelOutcome, ChangeOutcome, ClockStepError, Store
from rmqstore_conformance.cases.scenes import told
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.fidelity import came_out
from rmqstore_conformance.stores import DAY_MS, HOUR_MS, START_MS, Stores, ids, key_of, message, pop_all, read_ids

(T,) = topics(__name__, 1)
(G,) = groups(__name__, 1)


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


def test_k1_back_does_not_end_or_stretch_leases_wrongly(stores: Stores) -> None:
    """K1: a lease made before the clock went back is not given again while it runs by the clock."""
    store = stores.open()
    store.send(message(1))
    stores.clock.advance(DAY_MS)
    assert len(store.pop(T, G, invisible_ms=1000)) == 1
    assert stores.tick_at(store, START_MS).retried == 0
    assert store.pop(T, G) == []
    store.send(message(2))
    again = store.pop(T, G, invisible_ms=1000)
    assert ids(again) == ["m2"]
    assert stores.tick_after(store, 1000).retried == 1
    assert ids(store.pop(T, G, invisible_ms=10 * DAY_MS)) == ["m2"]
    assert stores.tick_at(store, START_MS + DAY_MS + 1000).retried == 1
    assert ids(store.pop(T, G)) == ["m1"]


@pytest.mark.clause("P3")
@pytest.mark.parametrize("how", ["expired", "released", "changed"])
def test_k1_pops_are_told_by_the_clock(stores: Stores, how: str) -> None:
    """K1: pops in one ms, and behind a clock that was set back, are of the clock's ms, though the pop times of receipts rise (P2)."""
    store = stores.open()
    store.send_batch([message(n) for n in range(6)])
    for at_ms in (START_MS + HOUR_MS, START_MS):
        stores.clock.set(at_ms)
        pop = partial(store.pop, T, G, max_messages=1, invisible_ms=1000)
        popped = [*pop(), *pop(), *came_out(store.pop_batch(T, G, max_messages=1))]
        assert [each.first_pop_ms for each in popped] == [at_ms] * 3
        leases = [each for each in store.leases(T, G) if each.receipt in {message.receipt for message in popped}]
        assert [(each.pop_time_ms, each.first_pop_ms) for each in leases] == [(at_ms, at_ms)] * 3
    stores.clock.advance(10)
    if how == "released":
        store.release(popped[1])
    elif how == "changed":
        store.change_invisible(popped[1], invisible_ms=500)
        (lease,) = [each for each in store.leases(T, G) if each.message_id == popped[1].message_id]
        assert (lease.pop_time_ms, lease.first_pop_ms) == (START_MS + 10, START_MS)
    if how != "released":
        assert stores.tick_after(store, 1000).retried >= 1
    assert {(each.message_id, each.first_pop_ms) for each in store.pop(T, G, max_messages=10)} >= {(popped[1].message_id, START_MS)}


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


def test_k2_a_step_behind_one_back_is_measured_from_there(stores: Stores) -> None:
    """K2: a clock that went back a day and comes forward again makes a step like any other."""
    store = stores.open(clock__max_step_ms=HOUR_MS)
    store.tick()
    stores.tick_at(store, START_MS - DAY_MS)
    stores.clock.set(START_MS)
    with pytest.raises(ClockStepError):
        store.tick()


def test_k2_a_schedule_is_not_put_by_a_clock_that_may_be_wrong(stores: Stores) -> None:
    """K2: it would count from there; so it waits for the confirmation like the hand-over."""
    store = stores.open(clock__max_step_ms=HOUR_MS)
    store.tick()
    stores.clock.advance(DAY_MS)
    with pytest.raises(ClockStepError):
        store.schedules.put("hourly", timedelta(hours=1), message(1, message_id=None))
    assert store.schedules.list() == []
    store.confirm_clock_step()
    store.schedules.put("hourly", timedelta(hours=1), message(1, message_id=None))


def test_k2_a_step_of_just_the_limit_goes_on(engine_stores: Stores) -> None:
    """K2: only a step *above* the limit stops; by default no step does."""
    limited = engine_stores.open("limited", clock__max_step_ms=60_000)
    free = engine_stores.open("free")
    for store in (limited, free):
        store.send(message(1), delay_ms=1000)
        store.tick()
    assert engine_stores.tick_after(limited, 60_000).handed_over == 1
    assert engine_stores.tick_after(free, 1000 * DAY_MS).handed_over == 1


@pytest.mark.clause("Q1")
@pytest.mark.needs("retention")
def test_k1_age_goes_by_the_clock_that_is_right_again(stores: Stores) -> None:
    """K1: what was too old by a clock that was ahead, and was pinned then, is young when the pin goes."""
    store = stores.open(retention_ms=HOUR_MS, reclaim="age", default_queues=1)
    store.send(message(0))
    pin = store.pop(T, G, invisible_ms=100 * HOUR_MS)
    store.send(message(1))
    stores.tick_after(store, 2 * HOUR_MS)
    stores.clock.set(START_MS)
    store.ack(pin)
    store.tick()
    assert store.lag(T, "late").ready == 2


@pytest.mark.clause("C4", "P1", "P7")
def test_k2_spans_of_months_are_whole(stores: Stores) -> None:
    """K2: a lease, a back-off and the memory of a cancel of 60 days, more than 32 bits hold of ms."""
    days_ms = 60 * DAY_MS
    store = stores.open(cancel_memory_ms=days_ms, outcome_memory_ms=days_ms, default_queues=1)
    store.send_batch([message(0), message(1)])
    _, later = store.pop(T, G, max_messages=2, invisible_ms=days_ms)
    assert store.retry_later(later, timedelta(milliseconds=days_ms)).outcome is ChangeOutcome.CHANGED
    cancelled = store.send(message(2), delay_ms=1000)
    assert store.cancel(cancelled) is CANCELLED
    assert stores.tick_after(store, days_ms - 1).retried == 0
    assert store.lag(T, G).ready == 0
    assert store.cancel(cancelled) is CANCELLED
    assert stores.tick_after(store, 1).retried == 2


@pytest.mark.clause("Q1", "Q3")
@pytest.mark.needs("retention")
def test_k2_months_of_retention_are_whole(stores: Stores) -> None:
    """K2: so are the ages at which messages and groups count no more."""
    store = stores.open(retention_ms=90 * DAY_MS, reclaim="age", default_queues=1)
    store.send(message(0))
    stores.tick_after(store, 60 * DAY_MS)
    assert store.lag(T, G).ready == 1
    store = stores.open("groups", group_expiry_ms=90 * DAY_MS, retention_ms=0, reclaim="consumed", default_queues=1)
    store.send(message(0))
    store.pop(T, "idle", max_messages=1, invisible_ms=1)
    store.send(message(1))
    stores.clock.advance(60 * DAY_MS)
    store.ack(store.pop(T, G, max_messages=2))
    store.tick()
    assert store.lag(T, "idle").ready == 1


# ---------------------------------------------------------------- a leap, and every call after it


CANCELLED, LATE = CancelOutcome.CANCELLED, CancelOutcome.ALREADY_DELIVERED
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
YEAR_MS = 365 * DAY_MS


@pytest.mark.parametrize("closes", [False, True], ids=["open", "closed"])
@pytest.mark.parametrize("leap_ms", [YEAR_MS, -YEAR_MS, 3 * DAY_MS], ids=["a year ahead", "a year back", "three days ahead"])
@pytest.mark.clause("K2", "C2", "C4")
@pytest.mark.needs("cancel_by_key")
def test_k1_every_call_after_a_leap(stores: Stores, leap_ms: int, closes: bool) -> None:
    """K1: the clock leaps, the store is used, perhaps closed, the clock is set right: timers, cancels, pops, acks, marks are as ever."""
    if closes and not stores.pair.durable:
        pytest.skip("declared absent: what is acknowledged does not outlive a close")
    store = stores.open(retention_ms=0)
    every_call(store, stores, "before")
    stores.clock.set(START_MS + leap_ms)
    every_call(store, stores, "astray")
    if closes:
        store = stores.reopen(store, retention_ms=0)
    stores.tick_at(store, START_MS + DAY_MS // 2)
    every_call(store, stores, "after")


def every_call(store: Store, stores: Stores, name: str) -> None:
    """Make a call of each kind in topics of their own, and look at what it answers."""
    clock = stores.clock
    timers_keep_their_times_and_answers(store, stores, name)
    topic, group = f"p_{name}", f"g_{name}"
    store.send_batch([message(n, topic) for n in range(6)])
    popped = store.pop(topic, group, max_messages=6, invisible=MINUTE)
    assert ids(popped) == [f"m{n}" for n in range(6)]
    acked, changed, released, expired, *_ = popped
    assert store.ack(acked) is AckOutcome.ACKED
    assert store.ack(acked) is AckOutcome.ALREADY_ACKED
    longer = store.change_invisible(changed, 2 * MINUTE)
    assert store.ack(changed) is AckOutcome.STALE
    store.release(released)
    store.ack(popped[4:])
    store.tick()
    assert ids(store.pop(topic, group, invisible=5 * MINUTE)) == ["m2"]
    assert store.lag(topic, group).in_flight == 3
    clock.advance(60_000)
    store.tick()
    again = store.pop(topic, group, invisible=MINUTE)
    assert told(again) == [("m3", 2)]
    assert store.ack(expired) is AckOutcome.STALE
    assert longer.receipt is not None
    assert store.ack(longer.receipt) is AckOutcome.ACKED


def timers_keep_their_times_and_answers(store: Store, stores: Stores, name: str) -> None:
    """Send timers, cancel some by handle and by key, let the others come, and ask for all of them again."""
    clock, topic = stores.clock, f"t_{name}"
    sent = [store.send(message(n, topic, keys=(key_of(f"k{n % 2}"),)), delay=(n + 1) * SECOND).handle or "" for n in range(4)]
    far = store.send(message("far", topic), delay=timedelta(days=9)).handle or ""
    mark = f"mark {name}".encode()
    assert not store.send(message("marked", topic), delay=5 * SECOND, marks=[mark]).repeated
    assert store.send(message("marked", topic), delay=5 * SECOND, marks=[mark]).repeated
    assert store.cancel([sent[0], far]) == [CANCELLED, CANCELLED]
    assert store.cancel_key(topic, key_of("k1")) == [CANCELLED, CANCELLED]
    expected = [CANCELLED, CANCELLED, LATE, CANCELLED, CANCELLED]
    clock.advance(3000)
    store.tick()
    for _ in range(3):
        # Upkeep may forget what is over for long; this is not.
        store.tick()
        assert store.cancel([*sent, far]) == expected
    clock.advance(2000)
    store.tick()
    assert read_ids(store, topic) == ["m2", "mmarked"]
    assert ids(pop_all(store, topic)) == ["m2", "mmarked"]
    clock.advance(60_000)
    store.tick()
    assert store.cancel([*sent, far]) == expected
