"""H1–H3, R1: the hand-over, exactly once, with everything that belongs to a message; a ticket covers what its answer rests on.

The script of answers makes calls on the lower interface that no call waits for, each followed by a public call whose answer rests on it.
Behind that answer the side must say that the earlier call is durable. Whether it is true that it is, the crash cases see.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from unittest.mock import patch

import pytest

import rmqstore
from rmqstore import MessageBatch, Store
from rmqstore.contract import EMPTY_CURSOR, MAX_CORNERS, InitMode, PopRequest, PopTxn, Receipt, Side, Ticket, TimerCursor, WriteStatus
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.faults.answers import UNSYNCED, Answers
from rmqstore_conformance.faults.interrupting import Interrupted, interrupted
from rmqstore_conformance.faults.script import SETTINGS
from rmqstore_conformance.stores import START_MS, Pair, Stores, label, message, pop_all, read_ids, stores_of

(T,) = topics(__name__, 1)
G, H = groups(__name__, 2)

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
    for steps in itertools.count(1):
        name = f"s{steps}"
        durable_stores.clock.set(START_MS)
        store = durable_stores.open(name, hand_over_limit=limit)
        store.send_batch([message(n, deliver_at_ms=START_MS + 1000 + n % 2) for n in range(4)])
        store.send(message("later"), delay_ms=60_000)
        durable_stores.clock.set(START_MS + 2000)
        has_more = broken_off(store, START_MS + 2000, steps)
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
        if not has_more:
            break


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


# ---------------------------------------------------------------- what an answer and a hand-over rest on, without a disk


LATER_MS = START_MS + 60_000


def sides_of(store: Store) -> dict[str, Side]:
    return {"timers": store.engine.timers, "pops": store.engine.pops}


def positions_of(store: Store) -> dict[str, int]:
    return {"timers": store.engine.timers.stats().position, "pops": store.engine.pops.stats().position}


@pytest.mark.needs("retention")
@pytest.mark.clause("I1", "C2", "C4", "P1", "P4", "P5", "P6", "P7", "P11")
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_r1_an_answer_waits_for_what_it_rests_on(stores: Stores, flush: str) -> None:
    """R1: what an answer rests on is durable when it is given, and under flush = async when flush returns."""
    store = stores.open(**{**SETTINGS, "flush": flush})
    owed: dict[str, int] = {}
    rested = 0
    for name, call in Answers(store, stores.clock).calls.items():
        before = positions_of(store)
        call()
        if not call.is_promised:
            owed.update({side: position for side, position in positions_of(store).items() if position > before[side]})
            continue
        if flush == "async":
            store.flush()
        for side, position in owed.items() if call.rests_on.startswith(UNSYNCED) else ():
            durable = sides_of(store)[side].durable_position
            assert durable >= position, f"{name} was answered, rests on position {position} of the {side}, and durable is {durable}"
            rested += 1
    assert rested >= 40, "few answers rest on what was not waited for, so little is proved"


@pytest.mark.clause("C4", "H1")
def test_r1_leases_wait_for_what_they_rest_on(stores: Stores) -> None:
    """R1: under pop.flush = async a pop that waits for no lease waits for what its messages are from, though nobody else does."""
    store = stores.open(pop__flush="async")
    timers, pops, now_ms = store.engine.timers, store.engine.pops, stores.clock.now_ms()
    store.topics.create(T)
    assert not store.pop(T, group=G)

    def handed_over() -> Ticket:
        timers.put(batch(2, due_ms=now_ms + 1000), now_ms)
        timers.seal(now_ms + 1000)
        timers.sync()
        found = timers.due(pops.timer_cursor(), 10)
        return pops.apply(PopTxn(appends=found.messages, timer_cursor=found.cursor), now_ms)[1]

    def freed() -> Ticket:
        held = pops.pop(PopRequest(T, G, 10), now_ms)[0].messages.receipts()
        pops.sync()
        return pops.release(held, now_ms)[1]

    rests_on: dict[str, Callable[[], Ticket]] = {
        "an append": lambda: pops.append(batch(1), now_ms)[1],
        "a hand-over": handed_over,
        "a release": freed,
        "a reset": lambda: pops.reset_offset(T, G, None, InitMode.MIN, now_ms),
    }
    for name, call in rests_on.items():
        ticket = call()
        attempt = name.replace(" ", "-")
        first = store.pop(T, group=G, max_messages=10, invisible_ms=60_000, attempt_id=attempt)
        assert first, name
        assert pops.durable_position >= ticket.position, f"a pop was answered, rests on {name} that is not durable"
        later = pops.append(batch(3), now_ms)[1]
        assert store.pop(T, group=G, max_messages=10, invisible_ms=60_000, attempt_id=attempt) == first
        assert pops.durable_position >= ticket.position
        store.flush()
        assert pops.durable_position >= later.position
        store.release(first)
        store.tick()


def batch(*numbers: int, due_ms: int | None = None) -> MessageBatch:
    """Return messages as the store completes them."""
    return MessageBatch.of([message(number, born_ms=START_MS, queue_id=0, deliver_at_ms=due_ms) for number in numbers])


def test_r1_tickets_rise_and_a_sync_reaches_them(stores: Stores) -> None:
    """R1: each call that changes something has a ticket above all before it, and a sync of it makes all of them durable."""
    store = stores.open()
    timers, pops = store.engine.timers, store.engine.pops

    def popped() -> Ticket:
        result, ticket = pops.pop(PopRequest(T, G, 2, attempt_id="a"), START_MS)
        held[:] = result.messages.receipts()
        return ticket

    held: list[Receipt] = []
    calls: dict[str, list[Callable[[], Ticket]]] = {
        "timers": [
            lambda: timers.put(batch(1, 2, due_ms=LATER_MS), START_MS, [b"t"])[1],
            lambda: timers.cancel([timers.scan(0, 2**62).timers[0].handle], START_MS)[1],
        ],
        "pops": [
            lambda: pops.append(batch(3, 4), START_MS, [b"p"])[1],
            popped,
            lambda: pops.ack(held[:1], START_MS)[1],
            lambda: pops.release(held[1:], START_MS)[1],
        ],
    }
    for name, side in sides_of(store).items():
        last = positions_of(store)[name]
        for number, call in enumerate(calls[name]):
            ticket = call()
            assert ticket.position > last, f"call {number} of the {name}"
            last = ticket.position
            assert positions_of(store)[name] >= last
        side.sync(Ticket(last))
        assert side.durable_position >= last
        side.sync(Ticket(0))


def test_i1_a_repeat_says_the_position_of_the_first_call(stores: Stores) -> None:
    """I1: a repeat on the lower interface gives the first call's position, and a ticket that covers it, whatever came between."""
    pops = stores.open().engine.pops
    first, ticket = pops.append(batch(1), START_MS, [b"a", b"b"])
    pops.append(batch(2), START_MS)
    again, covering = pops.append(batch(1), START_MS, [b"b"])
    assert again.status is WriteStatus.REPEATED
    assert again.position == first.position
    assert covering.position >= ticket.position
    pops.sync(covering)
    assert pops.durable_position >= ticket.position
    # Durable long since, it costs no further wait.
    assert pops.append(batch(1), START_MS, [b"a"])[0] == again


@pytest.mark.clause("H3", "R1")
def test_h1_the_durable_cursor_is_what_is_durable(stores: Stores) -> None:
    """H1: a cursor is called durable when its call is, never sooner, as the timers forget what it covers."""
    pops = stores.open().engine.pops
    before = pops.durable_cursor()
    tickets = []
    cursors = [TimerCursor(((START_MS + number, number),)) for number in range(1, MAX_CORNERS)]
    for number, cursor in enumerate(cursors):
        _, ticket = pops.apply(PopTxn(appends=batch(number), timer_cursor=cursor), START_MS)
        tickets.append(ticket)
        assert pops.timer_cursor() == cursor
        reached = [each for each, waits in zip(cursors, tickets, strict=False) if waits.position <= pops.durable_position]
        assert pops.durable_cursor() == ([before, *reached][-1])
    pops.sync(tickets[4])
    assert pops.durable_position >= tickets[4].position
    assert cursors.index(pops.durable_cursor()) >= 4
    pops.sync()
    assert pops.durable_cursor() == cursors[-1]


@pytest.mark.clause("H3", "I1")
@pytest.mark.needs("import_state")
def test_h1_what_a_store_in_use_takes_in_makes_no_cursor_durable(stores: Stores) -> None:
    """H1: rows that are taken in between a hand-over and its sync, as a witness is, make nothing durable that was there before."""
    pops = stores.open().engine.pops
    rows = pops.export_state("pop_marks", None, 1).rows
    cursor = TimerCursor(((START_MS, 1),))
    _, ticket = pops.apply(PopTxn(appends=batch(1), timer_cursor=cursor), START_MS)
    pops.import_state([("pop_marks", rows)], START_MS)
    assert pops.timer_cursor() == cursor
    assert pops.durable_cursor() != cursor or pops.durable_position >= ticket.position, "what the cursor is from is not durable"
    pops.sync(ticket)
    assert pops.durable_cursor() == cursor


@pytest.mark.clause("H1")
def test_h3_a_batch_says_that_it_rests_on_what_is_not_durable(stores: Stores) -> None:
    """H3: due timers are ``soft`` while their put, or the cancel of another one, is not durable: another engine must not outlive them."""
    timers = stores.open().engine.timers
    _, ticket = timers.put(batch(*range(4), due_ms=START_MS + 1000), START_MS)
    timers.seal(START_MS + 1000)
    if timers.durable_position < ticket.position:
        assert timers.due(EMPTY_CURSOR, 10).soft
    timers.sync()
    assert not timers.due(EMPTY_CURSOR, 10).soft
    timers.put(batch(*range(4, 8), due_ms=START_MS + 2000), START_MS)
    timers.sync()
    _, cancelled = timers.cancel([timers.scan(START_MS + 2000, 2**62).timers[0].handle], START_MS)
    timers.seal(START_MS + 2000)
    if timers.durable_position < cancelled.position:
        assert timers.due(EMPTY_CURSOR, 10).soft
    timers.sync()
    found = timers.due(EMPTY_CURSOR, 10)
    assert not found.soft
    assert len(found.messages) == 7


@pytest.mark.clause("H1", "T4")
@pytest.mark.parametrize(("precision", "slow_ms"), [(1000, 1), (1000, 400), (100, 1), (100, 500)])
def test_h4_a_put_by_an_earlier_clock_comes_between_any_two_steps(stores: Stores, precision: int, slow_ms: int) -> None:
    """H4: a thread that read its clock before a tick did puts what is due already between two steps of the tick: it comes, once."""
    for at in STEPS:
        stores.clock.set(START_MS)
        store = stores.open(f"s{at}", precision_ms=precision)
        store.send(message("due"), deliver_at_ms=START_MS + 1000)
        now = stores.clock.set(START_MS + 1000)
        number = 0
        for number, _ in enumerate(store._hand_over.steps(now), start=1):
            if number == at:
                stores.clock.set(now - slow_ms)
                store.send_batch([message("past", deliver_at_ms=START_MS + 500), message("later", deliver_at_ms=START_MS + 6000)])
                stores.clock.set(now)
        if number < at:
            assert number > 2
            break
        for passed in (1000, 1000, 3000):
            stores.tick_after(store, passed)
        assert sorted(read_ids(store)) == ["mdue", "mlater", "mpast"], f"put behind step {at}"
        assert store.pending().total == 0
        assert store.verify() == []
        store.close()
