"""S1: a store whose state another one takes in goes on there as if nothing had happened: for what it holds, and for what callers hold."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from rmqstore import AckOutcome, CancelOutcome, ChangeOutcome, ReleaseOutcome, Store
from rmqstore.message import dlq_topic
from rmqstore.transfer import load_into
from rmqstore_conformance.cases.scenes import told
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.stores import DAY_MS, Stores, attempt_of, ids, key_of, mark_of, message, pop_all

CANCELLED = CancelOutcome.CANCELLED
(T,) = topics(__name__, 1)
(G,) = groups(__name__, 1)

pytestmark = pytest.mark.needs("import_state")


class Past(NamedTuple):
    """A store that was used, and what its callers hold."""

    store: Store
    handles: list[str]
    receipts: list[str]


def used(stores: Stores) -> Past:
    """Return a store with something of all that a store remembers, but for what is popped in order."""
    store = stores.open("old", max_retries=1, default_queues=2)
    timers = [message(f"later{n}", tag="red", keys=(key_of("k"), key_of(f"k{n}")), properties={"a": "1"}) for n in range(4)]
    later = [str(each.handle) for each in store.send_batch(timers, delay_ms=DAY_MS, marks=[mark_of("later")])]
    due = store.send(message("due"), delay_ms=1000)
    assert len(store.cancel([later[1]])) == 1
    store.send_batch([message(n, tag="blue") for n in range(12)], marks=[mark_of("now")])
    held = store.pop(T, G, max_messages=6, attempt_id=attempt_of("again"), invisible_ms=DAY_MS)
    store.ack(held[:2])
    changed = store.change_invisible(held[2], invisible_ms=2 * DAY_MS).receipt
    assert changed is not None
    assert store.release(held[3]) is ReleaseOutcome.RELEASED
    assert store.retry_later(held[4], delay_ms=3 * DAY_MS, reason="no answer").outcome is ChangeOutcome.CHANGED
    for _ in range(2):
        store.pop(T, "dying", max_messages=32, invisible_ms=1000)
        stores.tick_after(store, 1000)
    assert store.dead_letters.drop(store.dead_letters.list("dying")[1:2]) == 1
    for group in (G, "never-popped"):
        store.groups.set(group, max_retries=3, backoff=[timedelta(seconds=5), timedelta(hours=9)])
    store.schedules.put("monthly", timedelta(days=30), message("monthly", message_id=None))
    return Past(store, [*later, str(due.handle)], [*(str(each.receipt) for each in held), changed.text()])


def shown(store: Store) -> dict[str, Any]:
    """Return what a user sees."""
    topics = [(topic.name, queue) for topic in store.topics.list(system=True) for queue in range(topic.queues)]
    return {
        "timers": [(each.deliver_at_ms, each.message) for each in store.scan().timers],
        "pending": store.pending([0, 2**50]),
        "messages": {place: store.engine.pops.read(*place, 0, 100).columns.drop_columns(["receipt"]).to_pylist() for place in topics},
        "groups": [(group, store.groups.offsets(group), store.groups.subscriptions(group)) for group in store.groups.list()],
        "settings": [store.groups.settings(group) for group in (*store.groups.list(), "never-popped")],
        "lags": [store.lag(T, group) for group in store.groups.list()],
        "schedules": store.schedules.list(),
        "notes": dict(store.engine.pops.notes()),
        "leases": [(each.group, each.topic, each.message_id, each.expiry_ms, each.attempt, each.reason) for each in store.leases()],
        "letters": [(each.origin_message_id, each.reason, each.attempts) for each in store.dead_letters.list("dying")],
        "differences": store.verify(),
    }


def moved(stores: Stores, store: Store) -> Store:
    """Return a new store that took in the state of another one."""
    store.transfer.dump(stores.root / "dump")
    # What is moved later is not younger.
    stores.clock.advance(1)
    new = stores.open("new", max_retries=1, default_queues=2)
    load_into(stores.root / "dump", new)
    return new


@pytest.mark.clause("I1", "I2", "C4", "P1", "P5", "P7", "P14", "Q1", "T10", "H2")
def test_s1_what_is_moved_goes_on_as_if_nothing_had_happened(stores: Stores) -> None:
    """S1: state is exported and taken in whole: what is seen, the answers to handles, receipts, attempts and marks, and what comes next."""
    old, handles, receipts = used(stores)
    new = moved(stores, old)
    assert shown(new) == shown(old)
    assert shown(new)["differences"] == []
    again = [ids(each.pop(T, G, attempt_id=attempt_of("again"), max_messages=6, invisible_ms=DAY_MS)) for each in (new, old)]
    assert again[0] == again[1] != []
    assert new.ack(receipts) == old.ack(receipts)
    for store in (new, old):
        assert store.cancel([handles[0], handles[1], handles[4]]) == [CANCELLED, CANCELLED, CancelOutcome.ALREADY_DELIVERED]
    for store in (new, old):
        assert store.send(message("x"), delay_ms=DAY_MS, marks=[mark_of("fresh")]).repeated is False
        assert store.send_batch([message(n) for n in range(12)], marks=[mark_of("now")]).repeated
    assert new.dead_letters.resend(new.dead_letters.list("dying")) == old.dead_letters.resend(old.dead_letters.list("dying")) > 1
    stores.tick_after(new, 2 * DAY_MS)
    old.tick()
    for group in (G, "dying", "new"):
        assert sorted(ids(pop_all(new, group=group))) == sorted(ids(pop_all(old, group=group)))
    assert pop_all(new, dlq_topic("dying")) == []
    assert shown(new)["differences"] == shown(old)["differences"] == []


@pytest.mark.clause("S1")
@pytest.mark.needs("cancel_by_key")
def test_c6_each_key_finds_what_was_moved(stores: Stores) -> None:
    """C6: alone in its call or among others, a timer that was taken in is cancelled by any of its keys."""
    old = stores.open("old", max_retries=1, default_queues=2)
    keys = [key_of(str(n)) for n in range(5)]
    old.send(message(0, keys=keys[:2]), delay_ms=DAY_MS)
    old.send_batch([message(1, keys=keys[2:4]), message(2, keys=keys[:1:-1])], delay_ms=DAY_MS)
    new = moved(stores, old)
    assert [new.cancel_key(T, keys[at]) for at in (1, 2, 4)] == [[CANCELLED], [CANCELLED] * 2, []]
    assert new.pending().total == 0


@pytest.mark.clause("S1")
@pytest.mark.needs("fifo")
def test_p9_a_topic_that_a_pop_made_is_so_where_its_store_is_moved(stores: Stores) -> None:
    """P9: its first message with a group makes it ``fifo_queues`` wide there, too, and one that was asked for stays as it is."""
    old = stores.open("old", max_retries=1, default_queues=2)
    old.topics.create("asked", 3)
    for topic in (T, "asked"):
        assert old.pop(topic, G, order=True) == []
    new = moved(stores, old)
    for store in (old, new):
        for topic in (T, "asked"):
            store.send(message(f"first-{topic}", topic, message_group="a"))
        assert {each.name: each.group_queues for each in store.topics.list()} == {T: 16, "asked": 3}


@pytest.mark.clause("S1")
@pytest.mark.needs("fifo")
def test_p9_a_run_goes_on_where_its_store_is_moved(stores: Stores) -> None:
    """P9: what is un-acked of a run stays held, and comes back in place, in the store that took it in."""
    old = stores.open("old", max_retries=1, default_queues=2)
    old.topics.create(T, queues=1)
    old.send_batch([message(n) for n in range(6)])
    held = old.pop(T, G, order=True, max_messages=4, invisible_ms=1000)
    old.ack(held[1])
    new = moved(stores, old)
    assert shown(new) == shown(old)
    for store in (old, new):
        assert store.pop(T, G, order=True, max_messages=4) == []
    stores.clock.advance(1000)
    for store in (old, new):
        store.tick()
        popped = store.pop(T, G, order=True, max_messages=4, invisible_ms=1000)
        assert told(popped) == [("m0", 2), ("m2", 2), ("m3", 2), ("m4", 1)]
        assert set(store.ack(popped)) == {AckOutcome.ACKED}
        assert store.verify() == []


@pytest.mark.clause("S1")
def test_i1_a_part_of_a_load_is_taken_in_once(stores: Stores) -> None:
    """I1: a load that has no answer gives its part again with its mark: nothing of it is there, or counted, twice."""
    old = used(stores).store
    new = stores.open("new", max_retries=1, default_queues=2)
    for giver, taker, tables in (
        (old.engine.timers, new.engine.timers, ("timers",)),
        (old.engine.pops, new.engine.pops, ("topics", "messages")),
    ):
        for table in tables:
            part = [(table, giver.export_state(table, None, 10_000).rows)]
            for _ in range(2):
                taker.sync(taker.import_state(part, stores.clock.now_ms(), [mark_of(f"part {table}")]))
    assert new.pending().total == old.pending().total > 0
    assert [each.message for each in new.scan().timers] == [each.message for each in old.scan().timers]
    assert new.lag(T, "nobody").ready == old.lag(T, "nobody").ready > 0
    stores.clock.advance(DAY_MS)
    assert new.tick().handed_over == old.tick().handed_over > 0
    new.close()  # it has parts of a state alone, which do not agree with each other


@pytest.mark.clause("I1")
def test_s1_a_load_that_breaks_off_goes_on(stores: Stores) -> None:
    """S1: a load that breaks off behind one part after another, and is begun again each time, takes in every part once."""
    old = used(stores).store
    old.transfer.dump(stores.root / "dump")
    new = stores.open("new", max_retries=1, default_queues=2)
    told = begun = 0

    def progress(table: str, rows_done: int, rows_total: int) -> None:
        nonlocal told
        told += 1
        if told == begun:
            raise EOFError

    is_done = False
    while not is_done:
        begun, told = begun + 1, 0
        with contextlib.suppress(EOFError):
            load_into(stores.root / "dump", new, progress=progress)
            is_done = True
    assert begun > 10, "the load never broke off"
    assert shown(new) == shown(old)
    assert new.transfer.digest() == old.transfer.digest()


@pytest.mark.clause("S1")
def test_p1_a_remembered_attempt_of_a_deleted_topic_is_moved(stores: Stores) -> None:
    """P1: a repeat of an attempt whose topic was deleted gets nothing new within its time, also from a store that was dumped and loaded."""
    old = stores.open("old", max_retries=1, default_queues=2)
    old.send(message("old"))
    assert len(old.pop(T, G, attempt_id=attempt_of("a"))) == 1
    old.topics.delete(T)
    old.send(message("new"))
    for each in (old, moved(stores, old)):
        assert each.pop(T, G, attempt_id=attempt_of("a")) == []
        assert "" not in each.groups.list()
        assert ids(each.pop(T, G)) == ["mnew"]
