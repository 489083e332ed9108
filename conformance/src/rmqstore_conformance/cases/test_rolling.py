"""T6, T7: far timers, through the days in which an engine may move them and remove what is old."""

from __future__ import annotations

import random

import pytest

from rmqstore import CancelOutcome, PoppedMessage, Store
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.stores import DAY_MS, HOUR_MS, START_MS, Stores, key_of, label, message, read_ids
from rmqstore_conformance.targets import Target

(T,) = topics(__name__, 1)
(G,) = groups(__name__, 1)

DAYS = (0.5, 1, 1.9, 2, 2.1, 3, 4.5, 6, 8, 15, 40, 400)
"""How far ahead timers are due. RocketMQ moves what is over two days ahead, again and again."""

_JUMPY = 12
"""So many stores whose clock goes back and forth."""


def _days_to_look(days: float) -> list[float]:
    """Return moments on the way, closer together where more is due."""
    near = [hours / 24 for hours in range(12, 10 * 24, 12)]
    return [each for each in [*near, *range(10, 60, 2), 399.99, 400.01] if each <= days + 0.02]


def _timers(store: Store, offset_ms: int) -> dict[str, tuple[int, str]]:
    """Send a timer for each distance; returns (due, handle) by id."""
    found = {}
    for days in DAYS:
        due = START_MS + round(days * DAY_MS) + offset_ms
        sent = store.send(message(f"{days}-{offset_ms}", keys=(key_of(f"k{days}"),), properties={"far": str(days)}), deliver_at_ms=due)
        found[label(sent)] = (due, sent.handle or "")
    return found


@pytest.mark.clause("T2", "T5")
@pytest.mark.parametrize("precision", [1000, 500, 200, 100])
def test_t6_far_timers_come_once_at_their_time(engine_stores: Stores, precision: int) -> None:
    """T6: timers from half a day to 400 days ahead, looked at on the way, come once each, in their ticks, as they were sent."""
    store = engine_stores.open(precision_ms=precision, retention_ms=0)
    sent = {**_timers(store, 0), **_timers(store, precision + 1)}
    ticks = {name: -(-due // precision) * precision for name, (due, _) in sent.items()}
    for days in sorted({*_days_to_look(DAYS[-1]), *DAYS}):
        for moment in (START_MS + round(days * DAY_MS), START_MS + round(days * DAY_MS) + 2 * precision):
            engine_stores.tick_at(store, moment)
            assert set(read_ids(store)) == {name for name, tick in ticks.items() if tick <= moment}
            assert store.pending().total == sum(tick > moment for tick in ticks.values())
    lying = store.read(T, 0, 0, 100).messages
    assert [label(each) for each in lying] == sorted(ticks, key=lambda name: (ticks[name], list(sent).index(name)))
    for each in lying:
        assert isinstance(each, PoppedMessage)
        assert each.properties["far"] == label(each)[1:].split("-")[0]
        assert each.store_ms >= (each.deliver_at_ms or 0) == sent[label(each)][0]


@pytest.mark.clause("K1", "H1", "T2")
def test_t6_far_timers_come_once_whatever_the_clock_does(engine_stores: Stores, seed: int, target: Target) -> None:
    """T6: the clock goes hours ahead and back between puts of far and near timers: each comes once, by the first tick from its own on."""
    for number in range(target.times(_JUMPY)):
        chance = random.Random(f"{engine_stores.pair} {seed} {number}")
        store = engine_stores.open(f"jumpy{number}", precision_ms=100, retention_ms=0, outcome_memory_ms=0)
        waiting: dict[str, int] = {}
        came: list[str] = []
        for step in range(24):
            hours = chance.choice((chance.randrange(12), chance.randrange(48, 120)))
            engine_stores.clock.set(START_MS + hours * HOUR_MS + chance.choice((0, 0, 50, 99)))
            now = engine_stores.clock.now_ms()
            for row in range(chance.randrange(4)):
                name = label(message(f"{step}-{row}"))
                ahead = chance.choice((1, chance.randrange(100, 3000), chance.randrange(2, 30) * HOUR_MS, chance.randrange(5 * DAY_MS)))
                store.send(message(f"{step}-{row}"), deliver_at_ms=now + ahead)
                waiting[name] = -(-(now + ahead) // 100) * 100
            if engine_stores.pair.durable and chance.random() < 0.3:
                store = engine_stores.reopen(store)
            if chance.random() < 0.8:
                store.tick()
                due = sorted(name for name, tick in waiting.items() if tick <= now)
                assert sorted(set(read_ids(store)) - set(came)) == due, f"history {number}, step {step}"
                came += due
                waiting = {name: tick for name, tick in waiting.items() if tick > now}
        engine_stores.clock.set(START_MS + 40 * DAY_MS)
        store.tick()
        assert sorted(read_ids(store)) == sorted([*came, *waiting])
        assert store.pending().total == 0
        assert store.verify() == []
        store.close()


@pytest.mark.clause("T11", "R1")
@pytest.mark.parametrize(("away_days", "precision"), [(1, 100), (2.5, 1000), (9, 100), (45, 1000)])
def test_t6_a_store_that_was_closed_while_timers_had_to_move(durable_stores: Stores, precision: int, away_days: float) -> None:
    """T6: closed across several moments at which a far timer is moved; each comes at its time, or at once when that has passed."""
    store = durable_stores.open(precision_ms=precision, retention_ms=0)
    sent = _timers(store, 7)
    ticks = {name: -(-due // precision) * precision for name, (due, _) in sent.items()}
    days = 0.0
    while days < DAYS[-1]:
        days += away_days
        store.close()
        durable_stores.clock.set(START_MS + round(days * DAY_MS))
        store = durable_stores.open(retention_ms=0)
        store.tick()
        now = durable_stores.clock.now_ms()
        assert sorted(read_ids(store)) == sorted(name for name, tick in ticks.items() if tick <= now)
        # What is behind them is further apart than that.
        away_days = max(away_days, 120 if days > 40 else 9 if days > 8 else 0)
    assert store.pending().total == 0


@pytest.mark.clause("C1", "C5", "C6")
@pytest.mark.parametrize("after_days", [0, 1, 3, 7, 30])
def test_t6_a_timer_that_was_moved_can_be_cancelled(engine_stores: Stores, after_days: int) -> None:
    """T6: by the handle that was given when it was sent, after any number of moves; the others come."""
    store = engine_stores.open(retention_ms=0)
    sent = _timers(store, 0)
    for days in [each for each in _days_to_look(after_days) if each <= after_days]:
        engine_stores.tick_at(store, START_MS + round(days * DAY_MS))
    pending = [name for name, (due, _) in sent.items() if due > engine_stores.clock.now_ms()]
    cancelled = pending[::2]
    for name in cancelled:
        assert store.cancel(sent[name][1]) is CancelOutcome.CANCELLED
        assert store.cancel(sent[name][1]) is CancelOutcome.CANCELLED
    for days in [*_days_to_look(59), 399.99, 401]:
        if START_MS + round(days * DAY_MS) > engine_stores.clock.now_ms():
            engine_stores.tick_at(store, START_MS + round(days * DAY_MS))
    assert sorted(read_ids(store)) == sorted(set(sent) - set(cancelled))


@pytest.mark.clause("Q1")
@pytest.mark.needs("retention")
@pytest.mark.parametrize("reclaim", ["age", "consumed"])
def test_t7_what_is_removed_by_age_is_never_a_pending_timer(engine_stores: Stores, reclaim: str) -> None:
    """T7: messages older than the retention go, the timers that were sent with them stay until they are due."""
    store = engine_stores.open(retention_ms=HOUR_MS, reclaim=reclaim)
    sent = _timers(store, 0)
    for n in range(200):
        store.send_batch([message(f"{n}-{row}", "old", body=b"x" * 2000) for row in range(10)])
    for hours in (2, 13, 25, 49, 100, 24 * 16):
        engine_stores.tick_at(store, START_MS + hours * HOUR_MS)
        now = engine_stores.clock.now_ms()
        assert store.pending().total == sum(due > now for due, _ in sent.values())
        assert store.verify() == []
    for name, (due, _) in sent.items():
        if due > engine_stores.clock.now_ms():
            engine_stores.tick_at(store, due)
            assert name in read_ids(store)[-1:] or name in [label(each) for each in store.pop(T, G, max_messages=1024)]
    assert store.pending().total == 0
