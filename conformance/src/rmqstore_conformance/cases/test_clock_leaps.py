"""K1, K2: after a clock was far from the truth for a moment, every call does what it would have done without that."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rmqstore import AckOutcome, CancelOutcome, Store
from rmqstore_conformance.cases.scenes import told
from rmqstore_conformance.stores import DAY_MS, START_MS, Stores, ids, key_of, message, pop_all, read_ids

CANCELLED, LATE = CancelOutcome.CANCELLED, CancelOutcome.ALREADY_DELIVERED
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
YEAR_MS = 365 * DAY_MS


LEAPS = pytest.mark.parametrize("leap_ms", [YEAR_MS, -YEAR_MS, 3 * DAY_MS], ids=["a year ahead", "a year back", "three days ahead"])


@LEAPS
@pytest.mark.clause("K2", "C2", "C4")
@pytest.mark.needs("cancel_by_key")
def test_k1_every_call_after_a_leap(stores: Stores, leap_ms: int) -> None:
    """K1: the clock leaps, the store is used and maintained, the clock is set right: timers, cancels, pops, acks, marks are as ever."""
    store = stores.open(retention_ms=0)
    go_astray(store, stores, leap_ms)
    come_back(store, stores)


@LEAPS
@pytest.mark.clause("K2", "C2", "C4")
@pytest.mark.needs("cancel_by_key")
def test_k1_every_call_after_a_leap_and_a_close(durable_stores: Stores, leap_ms: int) -> None:
    """K1: as above, with the store closed while the clock is wrong."""
    store = durable_stores.open(retention_ms=0)
    go_astray(store, durable_stores, leap_ms)
    come_back(durable_stores.reopen(store, retention_ms=0), durable_stores)


def go_astray(store: Store, stores: Stores, leap_ms: int) -> None:
    """Use a store, then again by a clock that is wrong."""
    every_call(store, stores, "before")
    stores.clock.set(START_MS + leap_ms)
    every_call(store, stores, "astray")


def come_back(store: Store, stores: Stores) -> None:
    """Set the clock right, and use the store."""
    stores.tick_at(store, START_MS + DAY_MS // 2)
    every_call(store, stores, "after")
    assert store.verify() == []


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
