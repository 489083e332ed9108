"""Q1–Q3 and P11: how long messages are kept, what pins them, which groups count, and where late groups start."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rmqstore import IllegalArgumentError, InitMode, Lag, Store
from rmqstore.message import PARKED_TOPIC, dlq_topic
from rmqstore_conformance.cases.scenes import filled
from rmqstore_conformance.damaging import damage_messages
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.stores import DAY_MS, HOUR_MS, Stores, id_of, ids, message, plain, pop_all, read_ids

(T,) = topics(__name__, 1)
G, H = groups(__name__, 2)


def kept(store: Store, topic: str = T) -> tuple[int, ...]:
    return next(each.min_offsets for each in store.topics.list(system=True) if each.name == topic)


@pytest.mark.needs("retention")
def test_q1_kept_until_older_than_the_retention(stores: Stores) -> None:
    """Q1: to the millisecond, consumed or not; offsets, lag and reads begin at the first kept message; timers are not touched."""
    store = filled(stores, 3, retention_ms=HOUR_MS, reclaim="age")
    store.send(message("timer"), delay_ms=30 * DAY_MS)
    stores.clock.advance(1000)
    store.send_batch([message(n) for n in range(3, 5)])
    assert len(store.pop(T, G, max_messages=2)) == 2
    store.ack(store.pop(T, G, max_messages=1))
    stores.tick_after(store, HOUR_MS - 1000)
    assert kept(store) == (0,), "not older than the retention yet"
    stores.tick_after(store, 1)
    assert kept(store) == (3,)
    assert read_ids(store) == ["m3", "m4"]
    assert store.lag(T, "new") == Lag(2, 0, 0, 0)
    assert store.get(id_of("m0")) is not None, "it is in the retry topic"
    assert store.get(id_of("m2")) is None
    stores.tick_after(store, 1000)
    assert kept(store) == (5,)
    assert read_ids(store) == []
    assert store.pending().total == 1
    assert store.stats().pops.messages == 2
    store.send(message(5))
    assert ids(pop_all(store, group="new")) == ["m5"]


@pytest.mark.clause("Q2", "Q3")
@pytest.mark.needs("retention")
def test_q1_by_default_nothing_goes_unconsumed(stores: Stores) -> None:
    """Q1: however old it is and however long its group was away; what every group has consumed makes room."""
    store = filled(stores, 10)
    store.send(message("unread", topic="nobody"))
    store.ack(store.pop(T, G, max_messages=1))
    store.pop(T, G, max_messages=1, invisible=timedelta(days=2))
    assert stores.tick_after(store, 1000 * DAY_MS).expired == 0
    store.tick()
    assert kept(store) == (2,)
    assert kept(store, "nobody") == (0,), "without a group nothing is consumed"
    assert store.lag(T, G) == Lag(8, 0, 1, 0)
    assert sorted(ids(pop_all(store))) == [f"m{n}" for n in range(1, 10)]
    store.tick()
    assert kept(store) == (10,)
    assert store.stats().pops.messages == 1


@pytest.mark.clause("P7", "T12")
@pytest.mark.needs("retention")
def test_q1_dead_letters_and_parked_entries_stay(stores: Stores) -> None:
    """Q1: whatever their age; a damaged run is parked before it goes, not dropped unseen."""
    store = stores.open(retention_ms=HOUR_MS, reclaim="age", max_retries=0)
    for n in range(3):
        store.send(plain(n))
    store.pop(T, G, max_messages=1, invisible_ms=1000)
    assert stores.tick_after(store, 1000).dead == 1
    damage_messages(store, b"body 1")
    stores.tick_after(store, DAY_MS)
    assert kept(store) == (3,)
    assert len(store.read(dlq_topic(G)).messages) == 1
    assert id_of("m1").encode() in store.read(PARKED_TOPIC).messages[0].body
    for topic in (dlq_topic(G), PARKED_TOPIC):
        store.ack(store.pop(topic, H))
    stores.tick_after(store, DAY_MS)
    assert len(store.dead_letters.list(G)) == len(store.dead_letters.parked()) == 1, "consumed or not"


@pytest.mark.needs("retention")
def test_q2_consumed_messages_go_once_every_group_has_them(durable_stores: Stores) -> None:
    """Q2: without a group nothing goes; with two, what both have acked; un-acked holes hold; exact to the message."""
    store = durable_stores.open(retention_ms=0, reclaim="consumed")
    store.topics.create(T, 2)
    store.send_batch([message(n, queue_id=n % 2) for n in range(10)])
    durable_stores.tick_after(store, DAY_MS)
    assert kept(store) == (0, 0)
    one = store.pop(T, G, max_messages=6)
    store.tick()
    assert kept(store) == (0, 0), "leased"
    store.ack([m for m in one if (m.queue_id, m.queue_offset) != (0, 1)])
    store.tick()
    assert kept(store) == (1, 3) or kept(store) == (1, sum(m.queue_id == 1 for m in one))
    store.ack(one)
    pop_all(store)
    assert store.pop(T, H, max_messages=1, queue=0)
    before = kept(store)
    store.tick()
    assert kept(store) == before, "the second group counts from its first pop on"
    store = durable_stores.reopen(store, retention_ms=0, reclaim="consumed")
    pop_all(store, group=H)
    assert store.lag(T, H).in_flight == 1
    store.tick()
    assert kept(store)[1] == 5
    assert kept(store)[0] < 5


@pytest.mark.clause("R1")
@pytest.mark.needs("retention")
def test_q1_the_leases_of_every_group_pin_behind_an_open(durable_stores: Stores) -> None:
    """Q1: two groups hold different messages of a queue; neither hides the other's."""
    store = durable_stores.open(default_queues=1)
    for number in range(10):
        store.send(message(number))
    one, other = (store.pop(T, group, max_messages=10, invisible_ms=60_000) for group in (G, H))
    store.ack(one[:9])
    store.ack([*other[:3], *other[4:]])
    store = durable_stores.reopen(store)
    store.tick()
    assert kept(store) == (3,)
    durable_stores.tick_after(store, 60_000)
    assert ids(store.pop(T, H)) == ["m3"]


@pytest.mark.needs("retention")
@pytest.mark.parametrize("is_reset", [False, True])
def test_q3_a_group_counts_up_to_its_expiry(stores: Stores, is_reset: bool) -> None:
    """Q3: from its last pop on, or the last time that its offset was set; then the others alone decide."""
    store = stores.open(group_expiry_ms=8 * HOUR_MS, retention_ms=0, reclaim="consumed", default_queues=1)
    store.send_batch([message(n) for n in range(4)])
    store.ack(store.pop(T, "idle", max_messages=2))
    if is_reset:
        stores.clock.advance(7 * HOUR_MS)
        store.groups.reset_offset(T, "idle", 2)
    stores.clock.advance(7 * HOUR_MS)
    store.ack(store.pop(T, G))
    store.tick()
    assert store.lag(T, "idle") == Lag(2, 0, 0, 0)
    stores.clock.advance(3 * HOUR_MS)
    store.ack(store.pop(T, G))
    store.tick()
    assert store.lag(T, "idle") == Lag(0, 0, 0, 0, expired=2)


@pytest.mark.needs("retention")
def test_q3_an_idle_group_goes_on_where_it_stood(stores: Stores) -> None:
    """Q3: when it comes back long after its expiry, and its messages are there still."""
    store = stores.open(retention_ms=0, reclaim="consumed", group_expiry_ms=8 * HOUR_MS)
    store.send_batch([message(n) for n in range(4)])
    store.ack(store.pop(T, "idle", max_messages=2))
    stores.tick_after(store, DAY_MS)
    assert store.lag(T, "idle") == Lag(2, 0, 0, 0)
    assert ids(store.pop(T, "idle")) == ["m2", "m3"]


@pytest.mark.clause("P9")
@pytest.mark.needs("fifo", "retention")
def test_q1_un_acked_messages_of_a_run_are_pinned(stores: Stores) -> None:
    """Q1: under FIFO what was popped and not acked stays in its place until it is."""
    store = filled(stores, 4, retention_ms=HOUR_MS, reclaim="age")
    run = store.pop(T, G, max_messages=3, invisible_ms=1000, order=True)
    store.ack(run[0])
    stores.tick_after(store, DAY_MS)
    store.tick()
    assert kept(store) == (1,)
    assert ids(pop_all(store, order=True)) == ["m1", "m2", "m3"]
    store.tick()
    assert kept(store) == (4,)


@pytest.mark.clause("Q2")
@pytest.mark.needs("retention")
def test_p11_a_late_group_starts_within_a_call_that_was_half_consumed(stores: Stores) -> None:
    """P11: messages of one call that were consumed are gone for a group that comes later, the others are not."""
    store = filled(stores, 4, retention_ms=0, reclaim="consumed")
    store.ack(store.pop(T, G, max_messages=2))
    store.tick()
    assert store.lag(T, "late") == Lag(2, 0, 0, 0)
    assert ids(pop_all(store, group="late")) == ["m2", "m3"]


@pytest.mark.clause("Q1")
@pytest.mark.needs("retention")
def test_p11_late_groups_start_with_the_first_kept_message(stores: Stores) -> None:
    """P11: MIN is the first kept message; a group that fell behind goes on there; resets go no further back."""
    store = filled(stores, 3, retention_ms=HOUR_MS, reclaim="age")
    store.ack(store.pop(T, "behind", max_messages=1))
    stores.clock.advance(HOUR_MS)
    store.send_batch([message(n) for n in range(3, 6)])
    stores.tick_after(store, 1)
    assert kept(store) == (3,)
    assert store.lag(T, "behind") == Lag(3, 0, 0, 0, expired=2)
    assert ids(pop_all(store, group="behind")) == ["m3", "m4", "m5"]
    assert ids(pop_all(store, group="late")) == ["m3", "m4", "m5"]
    with pytest.raises(IllegalArgumentError, match="which holds 3 to 6"):
        store.groups.reset_offset(T, "late", 2)
    store.groups.reset_offset(T, "late", InitMode.MIN)
    assert ids(store.pop(T, "late", max_messages=1)) == ["m3"]
    assert store.read(T, 0, 0).columns.column("queue_offset").to_pylist() == [3, 4, 5]
