"""P2, P7, P9, P14: faults that random histories and their authors found."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from rmqstore import AckOutcome, Store
from rmqstore.message import PARKED_TOPIC, dlq_topic
from rmqstore_conformance.damaging import damage_messages
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.stores import Stores, ids, label, message, plain, pop_all

(T,) = topics(__name__.rpartition(".")[2], 1)
G, H = groups(__name__.rpartition(".")[2], 2)


@pytest.mark.clause("P5")
@pytest.mark.parametrize("delete", [lambda store: store.groups.delete(G), lambda store: store.topics.delete(T)], ids=["group", "topic"])
def test_p2_what_is_deleted_and_made_anew_has_receipts_of_its_own(durable_stores: Stores, delete: Callable[[Store], None]) -> None:
    """P2: also when the clock stands still or goes back, and after a reopen: a receipt of before the deletion acks nothing."""
    store = durable_stores.open()
    store.send(message(1))
    (old,) = store.pop(T, G)
    delete(store)
    for step in ("same time", "reopened", "set back"):
        if step == "reopened":
            delete(store)
            store = durable_stores.reopen(store)
        if step == "set back":
            delete(store)
            durable_stores.clock.set(durable_stores.clock.now_ms() - 5)
        if not store.topics.list():
            store.send(message(1))
        (new,) = store.pop(T, G)
        assert new.receipt != old.receipt
        assert store.ack(old) in (AckOutcome.STALE, AckOutcome.UNKNOWN)
        assert store.lag(T, G).in_flight == 1, f"the old receipt acked the new lease: {step}"


@pytest.mark.clause("P2")
@pytest.mark.needs("import_state")
@pytest.mark.parametrize("anew", [False, True], ids=["gone", "made anew"])
def test_p5_what_was_done_to_a_deleted_topic_is_no_part_of_the_state(durable_stores: Stores, anew: bool) -> None:
    """P5: leases that run and leases that ended are gone with their topic, at once for callers, and with upkeep from the store."""
    store = durable_stores.open(outcome_memory_ms=10_000)
    store.send_batch([message(n) for n in range(3)])
    store.ack(acked := store.pop(T, G, max_messages=1))
    store.pop(T, G, max_messages=1, invisible=timedelta(seconds=5))
    store.topics.delete(T)
    if anew:
        store.send(message(1))
    assert store.ack(acked) == [AckOutcome.UNKNOWN]
    for step in ("at once", "reopened", "after upkeep"):
        if step == "reopened":
            store = durable_stores.reopen(store, outcome_memory_ms=10_000)
        if step == "after upkeep":
            durable_stores.tick_after(store, timedelta(seconds=11))
        found = {table: each.rows for table, each in store.transfer.digest().items()}
        assert (found["leases"], found["messages"]) == (0, anew), step
        assert store.verify() == [], step
    assert len(pop_all(store)) == anew


@pytest.mark.clause("X3")
@pytest.mark.parametrize("after", ["at once", "reopened", "after upkeep", "after their ends"])
def test_p5_nothing_comes_back_of_a_topic_that_many_groups_held(durable_stores: Stores, after: str) -> None:
    """P5: what groups had may go in steps, but from the first moment none of it shows, counts, comes back or meets a new topic."""
    store = durable_stores.open()
    groups = [f"g{number}" for number in range(300)]
    store.send_batch([message(0), message(1, "other")])
    held = {group: store.pop(T, group, invisible_ms=5000)[0] for group in groups}
    store.ack(held["g0"])
    store.pop("other", "g1")
    store.topics.delete(T)
    if after == "reopened":
        store = durable_stores.reopen(store)
    if after == "after upkeep":
        store.tick()
    if after == "after their ends":
        assert durable_stores.tick_after(store, 5000).retried == 0
    assert store.groups.list() == ["g1"]
    assert [each.topic for each in store.groups.subscriptions()] == ["other"]
    assert [each.topic for each in store.leases()] == ["other"]
    assert (store.stats().pops.in_flight, store.engine.pops.offsets("g2")) == (1, [])
    assert store.verify() == []
    store.groups.delete("g3")
    store.send(message(2))
    assert set(store.ack(list(held.values()))) <= {AckOutcome.STALE, AckOutcome.UNKNOWN}
    assert [ids(store.pop(T, group, invisible_ms=60_000)) for group in groups] == [["m2"]] * len(groups)
    assert durable_stores.tick_after(store, 5000).retried == 0, "a lease of the deleted topic gave its message back"
    assert store.lag(T, "g2").in_flight == 1
    assert store.verify() == []
    store = durable_stores.reopen(store)
    assert store.verify() == []
    assert len(store.leases(T)) == len(groups)


@pytest.mark.clause("P9")
@pytest.mark.needs("fifo")
def test_p7_letters_resent_to_a_deleted_group_reach_it_also_in_order(stores: Stores) -> None:
    """P7: a group that was deleted may begin again in order; what was sent back to it meanwhile comes too, and can be acked."""
    store = stores.open(max_retries=0, reclaim="age")
    store.send_batch([message(n) for n in range(2)])
    store.pop(T, G, max_messages=1, invisible_ms=1)
    assert stores.tick_after(store, 1).dead == 1
    store.groups.delete(G)
    assert store.dead_letters.resend(store.dead_letters.list(G)) == 1
    assert store.lag(T, G).retry == 1
    assert sorted(ids(pop_all(store, order=True))) == ["m0", "m0", "m1"]
    assert store.engine.pops.ready(T, G, "*", stores.clock.now_ms()) is None
    assert store.lag(T, G).retry == 0


@pytest.mark.clause("P7")
def test_p14_dead_letters_of_a_topic_that_was_made_anew_are_counted_right(stores: Stores) -> None:
    """P14: dropping a letter of the deleted topic takes nothing off the count of the new one."""
    store = stores.open(max_retries=0)
    for _ in range(2):
        store.send(message(1))
        store.pop(T, G, invisible_ms=1)
        assert stores.tick_after(store, 1).dead == 1
        first = store.dead_letters.list(G)[0]
        if len(store.dead_letters.list(G)) == 1:
            store.topics.delete(T)
    assert store.lag(T, G).dead == 1
    assert store.dead_letters.drop([first]) == 1
    assert store.lag(T, G).dead == 1


def test_p14_ready_names_the_end_of_a_lease_of_the_group(stores: Stores) -> None:
    """P14: when another group's lease ends first, no caller of this one is told to look then."""
    store = stores.open()
    store.send(message(1))
    store.pop(T, G, invisible_ms=5000)
    store.pop(T, H, invisible_ms=1000)
    now_ms = stores.clock.now_ms()
    assert store.engine.pops.ready(T, G, "*", now_ms) == now_ms + 5000


def test_p7_a_letter_of_a_deleted_queue_takes_no_other_with_it(stores: Stores) -> None:
    """P7: a list of letters from before their queue was deleted names none of the new ones, though they are at the same offsets."""
    store = stores.open(max_retries=0)
    for number in (1, 2):
        store.send(message(number))
        store.pop(T, G, invisible_ms=1)
        assert stores.tick_after(store, 1).dead == 1
        if number == 1:
            old = store.dead_letters.list(G)
            store.topics.delete(dlq_topic(G))
    assert [each.message.queue_offset for each in store.dead_letters.list(G)] == [0]
    assert store.dead_letters.drop(old) == 0
    assert store.dead_letters.resend(old) == 0
    assert [label(each.origin_message_id) for each in store.dead_letters.list(G)] == ["m2"]


@pytest.mark.clause("Q1")
def test_t12_a_damaged_run_of_parked_entries_is_parked_for_good(stores: Stores) -> None:
    """T12: the entry that stands for it is behind it in the same queue, is counted, and outlives the upkeep."""
    store = stores.open()
    store.send(plain(1))
    damage_messages(store, b"body 1")
    assert store.pop(T, G) == []
    damage_messages(store, store.read(PARKED_TOPIC).messages[0].body[-8:])
    store.pop(PARKED_TOPIC, "operator")
    for _ in range(2):
        assert [label(each.origin_message_id) for each in store.dead_letters.parked()] == [f"{PARKED_TOPIC}/0/0"]
        store.tick()


@pytest.mark.clause("P14", "T12")
@pytest.mark.needs("fifo")
def test_p9_a_damaged_run_is_parked_once(stores: Stores) -> None:
    """P9: several un-acked messages of one damaged run: one entry, exact counts, and the pop goes on with what can be read."""
    store = stores.open()
    store.send_batch([plain(n) for n in range(5)])
    assert len(store.pop(T, G, order=True, max_messages=3, invisible_ms=1)) == 3
    stores.tick_after(store, 1)
    pieces = damage_messages(store, *(f"body {n}".encode() for n in range(5)))
    store.send(plain("sound"))
    assert ids(store.pop(T, G, order=True, max_messages=1)) == ["msound"]
    assert len(store.dead_letters.parked()) == pieces
    assert store.lag(T, "other").ready == 1


@pytest.mark.clause("P14", "P7")
@pytest.mark.needs("fifo")
def test_p9_letters_that_wait_in_a_run_can_be_dropped(stores: Stores) -> None:
    """P14: a dropped letter is not counted as waiting, and wakes no caller."""
    store = stores.open(max_retries=0)
    store.send(message(1))
    store.pop(T, G, invisible_ms=1)
    stores.tick_after(store, 1)
    letters = store.dead_letters.list(G)
    store.release(store.pop(dlq_topic(G), "repair", order=True))
    assert store.lag(dlq_topic(G), "repair").retry == 1
    assert store.dead_letters.drop(letters) == 1
    assert store.lag(dlq_topic(G), "repair").retry == 0
    assert store.engine.pops.ready(dlq_topic(G), "repair", "*", stores.clock.now_ms()) is None


@pytest.mark.clause("P9")
@pytest.mark.needs("fifo")
def test_p7_a_letter_of_a_dead_letter_queue_goes_back_to_its_own_group(stores: Stores) -> None:
    """P7: also when that group pops the queue in order; the letter of the first group stays what it is."""
    store = stores.open(max_retries=0)
    store.send(message(1))
    store.pop(T, G, invisible_ms=1)
    stores.tick_after(store, 1)
    store.pop(dlq_topic(G), "audit", order=True, invisible_ms=1)
    assert stores.tick_after(store, 1).dead == 1
    assert store.dead_letters.resend(store.dead_letters.list("audit")) == 1
    assert [each.origin_topic for each in store.dead_letters.list(G)] == [T]
    assert ids(store.pop(dlq_topic(G), "audit", order=True)) == ["m1"]
