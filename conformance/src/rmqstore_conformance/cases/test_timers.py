"""T1–T5, T8, T11: when timers come out, and in which order."""

from __future__ import annotations

import itertools
import random
import threading
from datetime import UTC, datetime, timedelta
from unittest.mock import patch

import pytest

import rmqstore
from rmqstore import CancelOutcome, DelayTooLongError, MessageBatch, PoppedMessage
from rmqstore.contract import EMPTY_CURSOR, DueBatch, MessageState, TimerCursor, TimerHandle
from rmqstore.message import MAX_TIME_MS
from rmqstore_conformance.data import topics
from rmqstore_conformance.fidelity import check
from rmqstore_conformance.stores import DAY_MS, HOUR_MS, START_MS, WIRED, Stores, id_of, ids, key_of, message, pop_all, read_ids

(T,) = topics(__name__, 1)


@pytest.mark.clause("T2")
@pytest.mark.parametrize("precision", [1000, 500, 200, 100])
def test_t1_t2_never_early_and_by_the_first_tick(engine_stores: Stores, precision: int) -> None:
    """T1, T2: not before the deliver time rounded up to the precision, and at the first tick from there on."""
    clock = engine_stores.clock
    store = engine_stores.open(precision_ms=precision)
    delays = sorted({1, precision - 1, precision, precision + 1, 2 * precision, 2 * precision + 7, 60_000, HOUR_MS})
    for delay in delays:
        store.send(message(delay), delay_ms=delay)
    for delay in delays:
        tick = START_MS + -(-delay // precision) * precision
        for moment in (START_MS + delay - 1, tick - 1):
            if moment > clock.now_ms():
                clock.set(moment)
                store.tick()
        expected = [f"m{d}" for d in delays if START_MS + -(-d // precision) * precision <= clock.now_ms()]
        assert read_ids(store) == expected, "early"
        clock.set(tick)
        store.tick()
        assert f"m{delay}" in read_ids(store), "late"
    for lying in store.read(T, 0, 0, 1000).messages:
        assert isinstance(lying, PoppedMessage)
        assert lying.store_ms >= (lying.deliver_at_ms or 0)


def test_t1_a_deliver_time_within_the_present_tick_waits(stores: Stores) -> None:
    """T1: at 12:00:00.400, what is due at .900 does not go out with a tick at .899, nor before its tick ends."""
    store = stores.open()
    stores.clock.set(START_MS + 400)
    store.send(message(1), deliver_at_ms=START_MS + 900)
    for moment in (400, 899, 900, 999):
        assert stores.tick_at(store, START_MS + moment).handed_over == 0
    assert stores.tick_at(store, START_MS + 1000).handed_over == 1


@pytest.mark.parametrize("parts", [1, 999])
def test_t1_parts_of_a_millisecond_are_rounded_up(stores: Stores, parts: int) -> None:
    """T1: a time, and a delay, of a second and some microseconds is not over when the second is."""
    store = stores.open(precision_ms=1000)
    begin = datetime.fromtimestamp(START_MS // 1000, UTC)
    wanted = timedelta(seconds=1, microseconds=parts)
    store.send(message(1), deliver_at=begin + wanted)
    store.send_batch([message(2), message(3)], delay=wanted)
    assert [each.deliver_at_ms for each in store.scan().timers] == [START_MS + 1001] * 3
    assert stores.tick_at(store, START_MS + 1000).handed_over == 0
    assert stores.tick_at(store, START_MS + 2000).handed_over == 3


@pytest.mark.clause("T1", "K1", "H1")
@pytest.mark.parametrize("due_sooner", [0, 1])
def test_t2_a_broken_off_tick_does_not_hide_what_it_closed(engine_stores: Stores, due_sooner: int) -> None:
    """T2: a tick fails after the seal, the clock is set back: the store still wants to be woken for what it closed, and gives it then."""
    store = engine_stores.open()
    store.send(message(1), delay_ms=3000)
    if due_sooner:
        store.send(message("sooner"), delay_ms=1000)
    engine_stores.clock.advance(5000)
    with patch.object(store.engine.pops, "apply", side_effect=rmqstore.StoreFullError("no room")), pytest.raises(rmqstore.StoreFullError):
        store.tick()
    assert engine_stores.tick_at(store, START_MS + 1000).handed_over == due_sooner
    wake = store.next_wake_ms()
    assert wake is not None
    assert wake <= 2000
    assert engine_stores.tick_at(store, START_MS + 3000).handed_over == 1


@pytest.mark.clause("F3")
def test_t2_a_store_wants_to_be_woken_until_a_tick_gave_what_is_due(engine_stores: Stores) -> None:
    """T2: also when ticks fail one after the other, and the store was opened anew between them."""
    store = engine_stores.open()
    store.send(message(1), delay_ms=3000)
    engine_stores.clock.advance(5000)
    no_room = rmqstore.StoreFullError("no room")
    for _ in range(3):
        with patch.object(store.engine.pops, "apply", side_effect=no_room), pytest.raises(rmqstore.StoreFullError):
            store.tick()
        wake = store.next_wake_ms()
        assert wake is not None
        assert wake <= 0
        if engine_stores.pair.durable:
            store = engine_stores.reopen(store)
    assert store.tick().handed_over == 1
    assert store.next_wake_ms() is None


@pytest.mark.parametrize("limit", [1, 3, 4096])
def test_t3_by_tick_then_by_put(stores: Stores, limit: int) -> None:
    """T3: whatever the order and the batches of the puts, one tick gives them by tick, then in the order of the puts."""
    store = stores.open(hand_over_limit=limit)
    rng = random.Random(3)
    delays = [rng.choice((500, 1000, 1500, 2000, 2001, 5000)) for _ in range(60)]
    expected = sorted(range(60), key=lambda n: (-(-delays[n] // 1000), n))
    taken = 0
    while taken < 60:
        step = rng.randint(1, 9)
        rows = range(taken, min(taken + step, 60))
        store.send_batch([message(n, deliver_at_ms=START_MS + delays[n]) for n in rows])
        taken += step
    assert stores.tick_after(store, 10_000).handed_over == 60
    assert read_ids(store) == [f"m{n}" for n in expected]


def test_t4_null_or_past_is_in_the_topic_at_the_next_tick(stores: Stores) -> None:
    """T4: alone such messages are there at once; in a batch with a future row they come with the next tick, at the same time even."""
    store = stores.open()
    stores.clock.advance(345)
    now = stores.clock.now_ms()
    store.send_batch([message(1), message(2, deliver_at_ms=0), message(3, deliver_at_ms=now)])
    assert read_ids(store) == ["m1", "m2", "m3"]
    mixed = [message(4), message(5, deliver_at_ms=now - 400), message(6, deliver_at_ms=now), message(7, deliver_at_ms=now + 60_000)]
    store.send_batch([*mixed, message(8, deliver_at_ms=1)])
    assert read_ids(store) == ["m1", "m2", "m3"]
    assert store.tick().handed_over == 4
    assert sorted(read_ids(store)) == sorted(f"m{n}" for n in (1, 2, 3, 4, 5, 6, 8))


def test_t4_the_tick_of_a_past_row(stores: Stores) -> None:
    """T4: its tick is its deliver time (or now) rounded up, but at most now."""
    store = stores.open()
    stores.clock.advance(345)
    now = stores.clock.now_ms()
    rows = [message(1), message(2, deliver_at_ms=now - 1), message(3, deliver_at_ms=now - 5500), message(4, deliver_at_ms=now + 1)]
    receipts, _ = store.engine.timers.put(MessageBatch(messages=rows), now)
    assert list(receipts.ticks) == [now, now, START_MS - 5000, START_MS + 1000]
    columns = [message(f"c{n}", deliver_at_ms=row.deliver_at_ms, born_ms=1) for n, row in enumerate(rows * 40)]
    receipts, _ = store.engine.timers.put(MessageBatch(columns=MessageBatch.of(columns).columns), now)
    assert list(receipts.ticks) == [now, now, START_MS - 5000, START_MS + 1000] * 40


@pytest.mark.clause("F3")
def test_t5_above_the_set_horizon_nothing_is_stored(stores: Stores) -> None:
    """T5: one row beyond ``max_delay_ms`` refuses the batch, whose other rows leave nothing behind."""
    store = stores.open(max_delay_ms=60_000)
    for past_ms in (1, 500, 999, 0):
        # Between two ticks, too, the limit is what is asked for, not the tick that it is rounded to.
        stores.clock.set(START_MS + past_ms)
        store.cancel(store.send(message("at the limit"), delay_ms=60_000))
        with pytest.raises(DelayTooLongError):
            store.send(message(1), delay_ms=60_001)
    store.send(message(0), delay_ms=60_000)
    with pytest.raises(DelayTooLongError, match="row 1"):
        store.send_batch([message(2, deliver_at_ms=START_MS + 5), message(3, deliver_at_ms=START_MS + 60_001), message(4)])
    assert store.pending().total == 1
    assert ids(each.message for each in store.scan().timers) == ["m0"]
    stores.tick_after(store, 2 * 60_000)
    assert read_ids(store) == ["m0"]


def test_t8_one_tick_goes_out_in_bounded_batches(engine_stores: Stores) -> None:
    """T8: no batch of a crowded tick holds more than the limit, and none is read twice."""
    store = engine_stores.open(hand_over_limit=100)
    store.send_batch([message(n, deliver_at_ms=START_MS + 1000) for n in range(1050)])
    engine_stores.clock.advance(1000)
    sizes = []
    due = store.engine.timers.due

    def counted(after: object, limit: int) -> object:
        batch = due(after, limit)  # type: ignore[arg-type]
        sizes.append(len(batch.messages))
        return batch

    with patch.object(store.engine.timers, "due", counted):
        assert store.tick().handed_over == 1050
    assert max(sizes) <= 100
    assert sum(sizes) == 1050
    assert read_ids(store) == [f"m{n}" for n in range(1050)]


def test_t8_the_batches_behind_a_call_are_small(engine_stores: Stores) -> None:
    """T8: when somebody else calls during the tick, the next eight batches have at most 512 messages, and all come once, in order."""
    if WIRED:
        pytest.skip("over a connection nobody calls between two steps that are within a call")
    store = engine_stores.open(hand_over_limit=600)
    store.send_batch([message(n, deliver_at_ms=START_MS + 1000) for n in range(5600)])
    engine_stores.clock.advance(1000)
    sizes: list[int] = []
    due = store.engine.timers.due

    def disturbed(after: TimerCursor, limit: int) -> DueBatch:
        batch = due(after, limit)
        sizes.append(len(batch.messages))
        if len(sizes) == 2:
            other = threading.Thread(target=store.lag, args=(T, "g"), daemon=True)
            other.start()
            other.join(60)
            assert not other.is_alive(), "a tick holds up another call between its batches"
        return batch

    with patch.object(store.engine.timers, "due", disturbed):
        assert store.tick().handed_over == 5600
    assert sizes[0] > 512
    assert len(sizes) >= 10
    assert max(sizes[2:10]) <= 512
    assert read_ids(store) == [f"m{n}" for n in range(5600)]


def test_t8_a_batch_of_large_messages_is_bounded_in_bytes(engine_stores: Stores) -> None:
    """T8: forty bodies of 4 MiB in one tick do not become one batch of 160 MiB."""
    store = engine_stores.open(hand_over_limit=1000)
    body = bytes(4 * 1024 * 1024)
    for n in range(40):
        store.send(rmqstore.Message(T, body, message_id=f"m{n}"), deliver_at_ms=START_MS + 1000)
    engine_stores.clock.advance(1000)
    store.engine.timers.seal(engine_stores.clock.now_ms())
    batch = store.engine.timers.due(EMPTY_CURSOR, 1000)
    assert 0 < len(batch.messages) < 40
    assert store.engine.timers.due(EMPTY_CURSOR, 1000).cursor == batch.cursor, "a pure read"


@pytest.mark.parametrize("closed_ms", [1, 10_000, DAY_MS, 400 * DAY_MS])
def test_t11_overdue_after_any_time_closed(durable_stores: Stores, closed_ms: int) -> None:
    """T11: what became due while the store was closed comes out in order, whatever the memories of answers are."""
    store = durable_stores.open()
    for n, delay in enumerate((5000, 1000, HOUR_MS, 1000)):
        store.send(message(n), delay_ms=delay)
    store.close()
    durable_stores.clock.advance(closed_ms)
    store = durable_stores.open()
    store.tick()
    due = [n for n, delay in ((1, 1000), (3, 1000), (0, 5000), (2, HOUR_MS)) if delay <= closed_ms]
    assert ids(pop_all(store)) == [f"m{n}" for n in due]


FAR_MS = (
    START_MS + 400 * DAY_MS,
    *(2**41 + at for at in (-1, 7)),
    2**42 + 1,
    2**48 + 1,
    *(2**53 + at for at in range(4)),
    2**61,
    MAX_TIME_MS,
)
"""Times on both sides of the numbers of bits that an index may have for one, and one ms apart."""


@pytest.mark.clause("T10", "T6")
def test_t5_times_beyond_2_53_are_kept_to_the_ms(stores: Stores) -> None:
    """T5: timers beyond 2^53 ms, up to the limit, that differ by a ms are counted, listed and found by their own times."""
    store = stores.open(precision_ms=100)
    sent = [message(at, deliver_at_ms=due_ms, born_ms=at) for at, due_ms in enumerate(FAR_MS)]
    handles = [str(each.handle) for each in (store.send(sent[0]), *store.send_batch(MessageBatch.of(sent[1:]).columns))]
    for _ in range(2):
        assert stores.tick_after(store, 60_000).handed_over == 0
        for each, pending in zip(sent, store.scan().timers, strict=True):
            check(each, pending.message, "far ahead")
            assert pending.deliver_at_ms == each.deliver_at_ms
        counts = store.pending(FAR_MS)
        assert (counts.total, counts.earliest_ms, counts.latest_ms) == (len(sent), FAR_MS[0], FAR_MS[-1])
        assert list(counts.counts) == [1] * (len(FAR_MS) - 1)
        assert [len(store.scan(from_ms=at, to_ms=min(at + 1, MAX_TIME_MS)).timers) for at in FAR_MS[:-1]] == [1] * (len(FAR_MS) - 1)
        for at in (3, len(FAR_MS) - 1):
            (found,) = store.where(id=id_of(f"m{at}"))
            assert (found.state, found.until_ms, found.handle) == (MessageState.PENDING, FAR_MS[at], handles[at])
        if stores.pair.durable:
            store = stores.reopen(store, precision_ms=100)
    for _ in range(2):
        assert store.cancel(handles) == [CancelOutcome.CANCELLED] * len(handles)
    assert store.pending().total == 0


@pytest.mark.clause("T5")
@pytest.mark.needs("cancel_by_key")
def test_c6_far_timers_are_cancelled_by_key(stores: Stores) -> None:
    """C6: a cancel by key finds what is due in a second and beyond 2^53 ms alike, of one topic and one key alone."""
    store = stores.open()
    times = [START_MS + 1000, *FAR_MS]
    for topic, key in ((T, "k"), (T, "l"), (None, "k")):
        keys = (key_of(key),)
        store.send_batch([message(f"{key}{at}", topic or "u", keys=keys, deliver_at_ms=due_ms) for at, due_ms in enumerate(times)])
    if stores.pair.durable:
        store = stores.reopen(store)
    assert store.cancel_key(T, key_of("k")) == [CancelOutcome.CANCELLED] * len(times)
    assert store.cancel_key(T, key_of("k")) == []
    assert [(each.message.topic, each.message.keys) for each in store.scan().timers].count((T, (key_of("l"),))) == len(times)
    assert store.pending().total == 2 * len(times)


# ---------------------------------------------------------------- what is pending


def test_t10_exact_between_any_two_steps_of_the_hand_over(stores: Stores) -> None:
    """T10: a message is pending or in its topic, at every step in between, never both and never neither."""
    store = stores.open(hand_over_limit=2)
    store.send_batch([message(n, deliver_at_ms=START_MS + 1000) for n in range(5)])
    stores.clock.advance(1000)
    for step in store._hand_over.steps(stores.clock.now_ms()):
        assert store.pending().total + len(read_ids(store)) == 5, f"after {step}"


def test_t10_buckets_pages_and_ends_are_exact(stores: Stores) -> None:
    """T10: every bucket, the total, both ends and each page, while timers come, are cancelled and go; histories try it at random."""
    store = stores.open(precision_ms=1000)
    due = {n: START_MS + at for n, at in enumerate((1, 999, 60_000, 61_234, HOUR_MS, HOUR_MS + 1, HOUR_MS + 2, DAY_MS))}
    sent = store.send_batch([message(n, deliver_at_ms=at) for n, at in due.items()])
    handles = [TimerHandle.parse(each.handle or "") for each in sent]
    for gone, act in (((), store.tick), ((3, 6, 7), lambda: store.cancel([sent[3], sent[6], sent[7]])), ((0, 1), store.tick)):
        stores.clock.advance(500)
        act()
        due = {n: at for n, at in due.items() if n not in gone}
        edges = [START_MS, *(START_MS + at for at in (1, 500, 60_000, 60_001, 61_000, 61_234, HOUR_MS, DAY_MS)), 2**50]
        assert [n for n, handle in enumerate(handles) if handle and store.engine.timers.get(handle)] == list(due)
        counts = store.pending(edges)
        assert counts.total == len(due)
        buckets = {(a, b): sum(a <= at < b for at in due.values()) for a, b in itertools.pairwise(edges)}
        assert list(counts.counts) == list(buckets.values())
        assert [store.pending(bucket).counts for bucket in buckets] == [(count,) for count in buckets.values()]
        assert (counts.earliest_ms, counts.latest_ms) == (min(due.values()), max(due.values()))
        seen, after = list[str](), None
        while seen == [] or after is not None:
            page = store.scan(from_ms=START_MS + 1, to_ms=START_MS + DAY_MS, after=after, limit=2)
            seen, after = seen + ids(each.message for each in page.timers), page.next_after
        assert seen == [f"m{n}" for n, at in due.items() if at < START_MS + DAY_MS]
    # A second begins with one that is due soon; at its end comes one for now, in a call whose others are then cancelled.
    begin_ms = START_MS + 2 * DAY_MS
    stores.tick_at(store, begin_ms)
    store.send(message("soon", deliver_at_ms=begin_ms + 1))
    stores.clock.advance(999)
    _, *others = store.send_batch([message("now"), *(message(f"later{n}", deliver_at_ms=begin_ms + 2000) for n in range(2))])
    assert store.cancel(others) == [CancelOutcome.CANCELLED] * 2
    counts = store.pending()
    assert (counts.total, counts.earliest_ms, counts.latest_ms) == (2, begin_ms + 1, begin_ms + 999)
