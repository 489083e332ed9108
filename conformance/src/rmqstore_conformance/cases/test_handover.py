"""H1–H3: the hand-over, exactly once, with everything that belongs to a message."""

from __future__ import annotations

from contextlib import suppress
from unittest.mock import patch

import pytest

import rmqstore
from rmqstore import Message, Store
from rmqstore.contract import PopTxn
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.faults.interrupting import Interrupted, interrupted
from rmqstore_conformance.stores import START_MS, Pair, Stores, label, message, pop_all, read_ids, stores_of

(T,) = topics(__name__.rpartition(".")[2], 1)
G, H = groups(__name__.rpartition(".")[2], 2)

STEPS = range(1, 14)


def broken_off(store: Store, now: int, steps: int) -> bool:
    """Do the first ``steps`` steps of a hand-over; False when it has no more of them."""
    generator = store._hand_over.steps(now)
    for _ in range(steps):
        if next(generator, None) is None:
            return False
    generator.close()
    return True


@pytest.mark.parametrize("limit", [1, 2])
def test_h1_closing_after_any_step(durable_stores: Stores, limit: int) -> None:
    """H1: the store closes between any two steps of a hand-over of several batches; the next one goes on, nothing lost, nothing twice."""
    for steps in STEPS:
        name = f"s{steps}"
        durable_stores.clock.set(START_MS)
        store = durable_stores.open(name, hand_over_limit=limit)
        store.send_batch([message(n, deliver_at_ms=START_MS + 1000 + n % 2) for n in range(4)])
        store.send(message("later"), delay_ms=60_000)
        durable_stores.clock.set(START_MS + 2000)
        broken_off(store, START_MS + 2000, steps)
        durable_stores.clock.set(START_MS + 1000)
        store.send(message("behind"), deliver_at_ms=START_MS + 1001)
        store = durable_stores.reopen(store, hand_over_limit=limit)
        durable_stores.tick_at(store, START_MS + 2000)
        lying = read_ids(store)
        assert sorted(lying) == ["m0", "m1", "m2", "m3", "mbehind"], f"closed after step {steps}"
        assert [each for each in lying if each != "mbehind"] == ["m0", "m2", "m1", "m3"]
        assert store.pending().total == 1
        assert store.verify() == []
        store.close()


@pytest.mark.clause("F3")
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_h1_a_failing_apply_is_tried_again(stores: Stores, flush: str) -> None:
    """H1: a hand-over that meets a full disk is retried for ever, never parked; nothing is half there in between."""
    store = stores.open(hand_over_limit=2, flush=flush)
    store.send_batch([message(n, deliver_at_ms=START_MS + 1000) for n in range(5)])
    stores.clock.advance(1000)
    apply = store.engine.pops.apply
    for fails_at in (1, 2, 1, 3):
        calls = 0

        def failing(txn: PopTxn, now_ms: int, fails_at: int = fails_at) -> object:
            nonlocal calls
            calls += 1
            if calls == fails_at:
                raise rmqstore.StoreFullError("no room")
            return apply(txn, now_ms)

        before = len(read_ids(store))
        with patch.object(store.engine.pops, "apply", failing):
            try:
                store.tick()
            except rmqstore.StoreFullError:
                assert len(read_ids(store)) == min(before + 2 * (fails_at - 1), 5)
    store.tick()
    assert read_ids(store) == [f"m{n}" for n in range(5)]


def test_h1_due_is_a_pure_read_and_its_cursor_says_it_all(stores: Stores) -> None:
    """H1: asked twice ``due`` answers alike; from its cursor on come the rest, each once, for any limit."""
    store = stores.open()
    for n in range(9):
        store.send(message(n), deliver_at_ms=START_MS + 1000 * (1 + n % 3))
    store.engine.timers.seal(START_MS + 2000)
    for limit in (1, 2, 4, 100):
        cursor, seen = store.engine.pops.timer_cursor(), []
        while True:
            batch = store.engine.timers.due(cursor, limit)
            again = store.engine.timers.due(cursor, limit)
            assert (again.cursor, again.more) == (batch.cursor, batch.more)
            assert batch.more or not len(store.engine.timers.due(batch.cursor, limit).messages), "more was due, and it said that was all"
            assert [label(m) for m in again.messages.messages] == [label(m) for m in batch.messages.messages]
            if not len(batch.messages):
                break
            assert len(batch.messages) <= limit
            seen += [label(m) for m in batch.messages.messages]
            cursor = batch.cursor
        assert seen == ["m0", "m3", "m6", "m1", "m4", "m7"]


@pytest.mark.clause("H3")
def test_f4_what_is_said_to_be_handed_over_durably_is(durable_stores: Stores) -> None:
    """F4: behind a call that was interrupted, a cursor that is not durable is not taken for one that is, by which timers are removed."""
    store = durable_stores.open(flush="async")
    store.send(message(1), delay_ms=1000)
    durable_stores.tick_after(store, 1000)
    pops, cursor = store.engine.pops, store.engine.pops.timer_cursor()
    _, ticket = pops.apply(PopTxn(), durable_stores.clock.now_ms())
    for step in range(1, 200):
        with suppress(Interrupted):
            interrupted(lambda: store.lag(T, G), step)
        assert pops.durable_cursor() != cursor or pops.durable_position >= ticket.position, "what the cursor is from is not durable"
    assert read_ids(store) == ["m1"]


def test_h2_everything_about_a_message_is_restored(stores: Stores) -> None:
    """H2: topic, queue, body, tag, keys, properties, id, born and deliver time, one by one and as columns."""
    store = stores.open()
    store.topics.create("orders", 4)
    sent = Message(
        "orders", bytes(range(256)), "réd", ("k1", "k2"), {"ü": "✓ value", "b": "2 = 3"}, None, START_MS + 5000, "id-1", START_MS - 77, 3
    )
    bare = Message("bare-topic", b"\x00", deliver_at_ms=START_MS + 5000)
    store.send(sent)
    store.send_batch(rmqstore.MessageBatch.of([sent, bare]).columns)
    generated = [label(each) for each in store.send_batch([sent, bare])][1]
    stores.tick_after(store, 5000)
    got = store.pop("orders", G)
    assert len(got) == 3
    for each in got:
        for field in ("topic", "body", "tag", "keys", "properties", "message_group", "deliver_at_ms", "message_id", "born_ms", "queue_id"):
            assert getattr(each, field) == getattr(sent, field), field
        assert each.store_ms == START_MS + 5000
    columns = store.pop_batch("orders", H).columns
    assert columns.column("body").to_pylist() == [sent.body] * 3
    assert [dict(pairs) for pairs in columns.column("properties").to_pylist()] == [dict(sent.properties)] * 3
    assert columns.column("keys").to_pylist() == [["k1", "k2"]] * 3
    assert columns.column("queue_id").to_pylist() == [3] * 3
    first, second = pop_all(store, "bare-topic")
    assert (first.body, first.tag, first.keys, dict(first.properties), first.born_ms) == (b"\x00", None, (), {}, START_MS)
    assert label(second) == generated
    assert len(generated) == 34


def test_h2_a_deliver_time_within_a_tick_is_kept(stores: Stores) -> None:
    """H2: a message that was due between two ticks comes with its own deliver time, not with that of its tick."""
    store = stores.open()
    delivers = [START_MS + at for at in (1, 999, 1000, 1001)]
    store.send_batch([message(n, deliver_at_ms=at) for n, at in enumerate(delivers)])
    assert stores.tick_after(store, 2000).handed_over == 4
    assert [each.deliver_at_ms for each in store.read(T).messages] == delivers
    assert [each.deliver_at_ms for each in pop_all(store)] == delivers


def test_h2_the_queue_is_chosen_when_it_is_sent(stores: Stores) -> None:
    """H2: a timer without a queue gets one of its topic's queues with the send, all of them in turn."""
    store = stores.open(default_queues=3)
    for n in range(9):
        store.send(message(n), delay_ms=1000)
    chosen = [timer.message.queue_id for timer in store.scan().timers]
    assert sorted(queue for queue in chosen if queue is not None) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    stores.tick_after(store, 1000)
    assert [m.queue_id for m in sorted(pop_all(store), key=lambda m: label(m))] == chosen


@pytest.mark.clause("H1")
def test_h3_across_two_engines_the_timers_are_synced_first(mixed_pair: Pair) -> None:
    """H3: with ``flush = async``, what ``apply`` relies on is durable before it is applied, and nothing is reclaimed too early."""
    with stores_of(mixed_pair) as stores:
        store = stores.open(flush="async", hand_over_limit=2)
        store.flush()
        sent = store.send_batch([message(n, deliver_at_ms=START_MS + 1000) for n in range(5)])
        store.cancel(sent[1].handle or "")
        stores.clock.advance(1000)
        changed = store.engine.timers.stats().position
        kept = store.pending().total
        applied = False
        for step in store._hand_over.steps(stores.clock.now_ms()):
            if isinstance(step, tuple):
                applied = True
                assert store.engine.timers.durable_position >= changed, "applied before the timers' sync"
                assert store.engine.pops.durable_cursor() != store.engine.pops.timer_cursor()
        assert applied
        assert kept == 4
        for n in (0, 2, 3, 4):
            parsed = rmqstore.contract.TimerHandle.parse(sent[n].handle or "")
            assert parsed is not None
            assert store.engine.timers.get(parsed) is not None, "reclaimed before it was durable"


def test_h3_two_engines_behave_as_one(mixed_pair: Pair) -> None:
    """H3: timers in one database, queues in another, through closes; the directories of both are there."""
    with stores_of(mixed_pair) as stores:
        store = stores.open()
        sent = store.send_batch([message(n, deliver_at_ms=START_MS + 1000 * n + 1) for n in range(6)])
        store.cancel(sent[5].handle or "")
        for moment in range(1000, 8000, 1000):
            stores.tick_at(store, START_MS + moment)
            store = stores.reopen(store)
        assert read_ids(store) == [f"m{n}" for n in range(5)]
        assert {entry.name for entry in (stores.root / "store").iterdir() if entry.is_dir()} == set(mixed_pair)
        assert store.stats().timer_engine == mixed_pair.timers
        assert store.stats().pop_engine == mixed_pair.pops
