"""T2, T9: what an operator pauses: the hand-over waits, and sends are refused, until the pause ends, whoever owns the store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from rmqstore import CancelOutcome, Flow, FlowControlError, MessageBatch, Pause, Store
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.stores import START_MS, Stores, ids, mark_of, message, read_ids

(T,) = topics(__name__, 1)
(G,) = groups(__name__, 1)


@pytest.mark.clause("C1", "T10", "I2")
def test_t2_a_paused_hand_over_hands_nothing_over(stores: Stores) -> None:
    """T2: what is due stays pending, and can be cancelled, under a later owner too, until the pause ends; then it comes, in order."""
    store = stores.open()
    sent = store.send_batch([message(n) for n in range(4)], delay_ms=1000)
    store.schedules.put("again", timedelta(seconds=1), message("again", message_id=None), catch_up=False)
    store.pauses.begin(Flow.HAND_OVER, reason="the bank is down")
    for gone in (1, 2):
        assert stores.tick_after(store, 10_000).moved == 0
        assert store.pending().total == 5 - gone
        assert store.cancel(sent[gone]) is CancelOutcome.CANCELLED
        assert store.pauses.list() == [Pause(Flow.HAND_OVER, START_MS, "the bank is down")]
        if stores.pair.durable:
            store = stores.reopen(store)
    store.pauses.end(Flow.HAND_OVER)
    report = store.tick()
    assert (report.handed_over, report.scheduled, store.pending().total) == (2, 1, 0)
    assert read_ids(store)[:2] == ["m0", "m3"]
    assert store.pauses.list() == []


@pytest.mark.clause("H1")
def test_t2_a_pause_within_a_hand_over_ends_it_between_two_batches(stores: Stores) -> None:
    """T2: a pause that begins while a tick is under way lets it begin no further batch; the rest comes once, behind the pause."""
    store = stores.open(hand_over_limit=3)
    store.send_batch([message(n) for n in range(10)], delay_ms=1000)
    stores.clock.advance(1000)
    for step in store._hand_over.steps(stores.clock.now_ms()):
        if step == "forget":
            store.pauses.begin(Flow.HAND_OVER)
    assert (store.pending().total, store.tick().handed_over) == (7, 0)
    store.pauses.end(Flow.HAND_OVER)
    assert store.tick().handed_over == 7
    assert read_ids(store) == [f"m{n}" for n in range(10)]


@pytest.mark.clause("P3")
def test_t2_pops_and_revives_go_on_in_a_pause(stores: Stores) -> None:
    """T2: a pause of both flows holds up neither pops nor acks, nor the revive of leases, which the store wants to be woken for."""
    store = stores.open()
    store.send_batch([message(n) for n in range(2)])
    store.send(message("later"), delay_ms=500)
    for flow in Flow:
        store.pauses.begin(flow)
    first, _ = store.pop(T, G, invisible_ms=1000)
    store.ack(first)
    wake = store.next_wake_ms()
    assert wake is not None
    assert wake <= 1000
    report = stores.tick_after(store, 1000)
    assert (report.retried, report.handed_over) == (1, 0)
    assert ids(store.pop(T, G)) == ["m1"]


SENDS: list[Callable[[Store], object]] = [
    lambda store: store.send(message(0)),
    lambda store: store.send(message(0), delay_ms=1000, marks=[mark_of("a")]),
    lambda store: store.send_batch([message(0), message(1)], marks=[mark_of("b")]),
    lambda store: store.send_batch(MessageBatch.of([message(0)]).columns),
]


@pytest.mark.clause("F3", "I1")
def test_t9_paused_sends_are_refused(stores: Stores) -> None:
    """T9: a send for now or later is refused with the reason, under a later owner too, and stores nothing, no mark either."""
    store = stores.open()
    store.pauses.begin(Flow.SENDS, reason="moving house")
    for _ in range(2):
        for send in SENDS:
            with pytest.raises(FlowControlError, match="moving house"):
                send(store)
        if stores.pair.durable:
            store = stores.reopen(store)
    assert (store.topics.list(), store.pending().total) == ([], 0)
    store.pauses.end(Flow.SENDS)
    assert not store.send(message(0), delay_ms=1000, marks=[mark_of("a")]).repeated
    assert not store.send_batch([message(1)], marks=[mark_of("b")]).repeated
    assert (store.pending().total, read_ids(store)) == (1, ["m1"])
