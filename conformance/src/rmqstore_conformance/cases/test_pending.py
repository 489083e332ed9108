"""T10, T12: what is pending is counted exactly, and what cannot be read is parked."""

from __future__ import annotations

import random

import pytest

import rmqstore
from rmqstore import AckOutcome
from rmqstore.contract import EMPTY_CURSOR
from rmqstore.message import PARKED_TOPIC
from rmqstore_conformance.damaging import Spoiling, cut, damage_messages, damage_timers, flipped
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.stores import DAY_MS, HOUR_MS, START_MS, Stores, ids, label, message, plain, pop_all, read_ids

(T,) = topics(__name__.rpartition(".")[2], 1)
G, H = groups(__name__.rpartition(".")[2], 2)

BODIES = [b"%d" % n * 100 for n in range(3)]
"""Long enough to be cut short."""


def test_t10_counts_with_random_edges(stores: Stores) -> None:
    """T10: every bucket, the total and both ends agree with a list, while timers come, go and are cancelled."""
    store = stores.open()
    rng = random.Random(10)
    alive: dict[str, tuple[int, str]] = {}
    for step in range(12):
        rows = [
            message(f"{step}-{n}", deliver_at_ms=stores.clock.now_ms() + rng.choice((1, 999, 60_000, 61_234, HOUR_MS, DAY_MS)))
            for n in range(7)
        ]
        for sent, row in zip(store.send_batch(rows), rows, strict=True):
            assert sent.handle is not None
            assert row.deliver_at_ms is not None
            alive[label(sent)] = (row.deliver_at_ms, sent.handle)
        for name in rng.sample(sorted(alive), 2):
            assert store.cancel(alive.pop(name)[1]) is rmqstore.CancelOutcome.CANCELLED
        if step % 3 == 2:
            stores.tick_after(store, rng.choice((1000, 60_000, HOUR_MS)))
            alive = {name: each for name, each in alive.items() if -(-each[0] // 1000) * 1000 > stores.clock.now_ms()}
        due = sorted(at for at, _ in alive.values())
        edges = sorted(rng.sample(range(START_MS - 1000, START_MS + 2 * DAY_MS), 6) + rng.sample(due, 2))
        edges = sorted(set(edges))
        counts = store.pending(edges)
        assert counts.total == len(due)
        assert list(counts.counts) == [sum(a <= at < b for at in due) for a, b in zip(edges, edges[1:], strict=False)]
        assert (counts.earliest_ms, counts.latest_ms) == (due[0], due[-1])
        low, high = edges[1], edges[-2]
        seen: list[str] = []
        after = None
        while True:
            page = store.scan(from_ms=low, to_ms=high, after=after, limit=3)
            seen += [label(each.message) or "" for each in page.timers]
            if (after := page.next_after) is None:
                break
        assert sorted(seen) == sorted(name for name, (at, _) in alive.items() if low <= at < high)
        assert store.verify() == []


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_t10_what_is_handed_over_is_not_pending(stores: Stores, flush: str) -> None:
    """T10: pending = put, not cancelled, not handed over; also before the hand-over is durable."""
    store = stores.open(flush=flush)
    store.send_batch([message(n, deliver_at_ms=START_MS + 1000 * (n + 1)) for n in range(4)])
    assert stores.tick_after(store, 2000).handed_over == 2
    assert store.pending().total == 2
    assert ids(each.message for each in store.scan().timers) == ["m2", "m3"]
    assert store.stats().timers.pending == 2


def test_t10_exact_between_any_two_steps_of_the_hand_over(stores: Stores) -> None:
    """T10: a message is pending or in its topic, at every step in between, never both and never neither."""
    store = stores.open(hand_over_limit=2)
    store.send_batch([message(n, deliver_at_ms=START_MS + 1000) for n in range(5)])
    stores.clock.advance(1000)
    for step in store._hand_over.steps(stores.clock.now_ms()):
        assert store.pending().total + len(read_ids(store)) == 5, f"after {step}"


@pytest.mark.parametrize("spoil", [flipped, cut(0), cut(3), cut(10), cut(40)], ids=["flipped", "empty", "3 bytes", "10 bytes", "40 bytes"])
def test_t12_a_damaged_timer_is_parked(stores: Stores, spoil: Spoiling) -> None:
    """T12: it comes out as a message of ``%PARKED%`` with a reason; those before and behind it are delivered."""
    store = stores.open()
    for n in range(3):
        store.send(plain(n, body=BODIES[n]), deliver_at_ms=START_MS + 1000 * (n + 1))
    damage_timers(store, BODIES[1], spoil=spoil)
    stores.tick_after(store, 5000)
    assert read_ids(store) == ["m0", "m2"]
    parked = store.read(PARKED_TOPIC).messages
    assert len(parked) == 1
    assert parked[0].properties["PARKED_REASON"]
    assert parked[0].body, "a body has a byte at least, also when nothing was found"
    store.tick()
    assert len(store.read(PARKED_TOPIC)) == 1, "parked once"
    assert store.pending().total == 0
    assert store.verify() == []
    assert ids(store.pop(PARKED_TOPIC, "doctor")) == ids(parked)


def test_t12_a_damaged_run_of_many_timers_parks_and_the_rest_goes_on(stores: Stores) -> None:
    """T12: timers that are in one piece cannot be told apart any more: one parked entry a piece, no other touched, counters right."""
    store = stores.open(hand_over_limit=1)
    store.send_batch([plain(n, deliver_at_ms=START_MS + 1000) for n in range(5)])
    store.send_batch([plain(n, deliver_at_ms=START_MS + 1000) for n in range(5, 8)])
    pieces = damage_timers(store, *(f"body {n}".encode() for n in range(5)))
    stores.tick_after(store, 5000)
    assert read_ids(store) == ["m5", "m6", "m7"]
    assert len(store.read(PARKED_TOPIC)) == pieces
    assert store.pending().total == 0


@pytest.mark.clause("T10")
@pytest.mark.parametrize("step_ms", [1000, 20_000], ids=["tick by tick", "all at once"])
def test_t12_what_went_bad_of_one_call_stops_no_other(stores: Stores, step_ms: int) -> None:
    """T12: timers of one call that are due one after the other may be stored as one: each piece is parked once, and the others come."""
    store = stores.open()
    for call in (0, 1):
        store.send_batch([plain(n, deliver_at_ms=START_MS + 1000 * (n + 1)) for n in range(call, 10, 2)])
    pieces = damage_timers(store, b"body 2", b"body 6")
    for _ in range(0, 20_000, step_ms):
        stores.tick_after(store, step_ms)
    apart = ["m0", "m1", "m3", "m4", "m5", "m7", "m8", "m9"]
    assert read_ids(store) == (apart if pieces == 2 else ["m1", "m3", "m5", "m7", "m9"])
    assert len(store.dead_letters.parked()) == pieces
    assert store.pending().total == 0


@pytest.mark.clause("P14")
@pytest.mark.parametrize("spoil", [flipped, cut(0), cut(10)], ids=["flipped", "empty", "10 bytes"])
def test_t12_a_damaged_queue_entry_is_parked_by_the_pop(stores: Stores, spoil: Spoiling) -> None:
    """T12: the pop steps over it, parks it once, and gives the others to every group."""
    store = stores.open()
    for n in range(3):
        store.send(plain(n, body=BODIES[n]))
    damage_messages(store, BODIES[1], spoil=spoil)
    assert ids(pop_all(store, group=G)) == ["m0", "m2"]
    assert store.lag(T, H).ready == 2, "what was parked, no group has before it"
    assert ids(pop_all(store, group=H)) == ["m0", "m2"]
    assert [bool(each.body) for each in store.read(PARKED_TOPIC).messages] == [True], "a body has a byte at least"
    for group in (G, H):
        assert store.lag(T, group).ready == 0


def test_t12_a_leased_message_that_went_bad_is_parked_when_its_lease_ends(stores: Stores) -> None:
    """T12: the revive of others is not held up, and acking the bad one still works before."""
    store = stores.open()
    for n in range(4):
        store.send(plain(n))
    popped = store.pop(T, G, invisible_ms=1000)
    damage_messages(store, b"body 0", b"body 2")
    assert store.ack(popped[0]) is AckOutcome.ACKED
    report = stores.tick_after(store, 1000)
    assert (report.retried, report.parked) == (2, 1)
    assert sorted(ids(pop_all(store))) == ["m1", "m3"]
    parked = store.read(PARKED_TOPIC).messages
    assert len(parked) == 1
    assert G in parked[0].properties["PARKED_REASON"]
    assert b"bod" in parked[0].body, "the body is what was found"


def test_t12_due_reads_a_damaged_timer_alike_every_time(stores: Stores) -> None:
    """T12: ``due`` stays a pure read over damage."""
    store = stores.open()
    for n in range(2):
        store.send(plain(n), deliver_at_ms=START_MS + 1000)
    damage_timers(store, b"body 0")
    store.engine.timers.seal(START_MS + 1000)
    first, again = (store.engine.timers.due(EMPTY_CURSOR, 10) for _ in range(2))
    assert [m.topic for m in first.messages.messages] == [PARKED_TOPIC, T]
    assert first.cursor == again.cursor
    assert first.messages.columns.equals(again.messages.columns)
    assert stores.tick_after(store, 1000).handed_over == 2
