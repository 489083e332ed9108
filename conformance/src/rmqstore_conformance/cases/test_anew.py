"""What is deleted and made again under its name is as new: it acts as one that never was, whatever its past (P2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from rmqstore import AckOutcome, Lag, Message, Store
from rmqstore.contract import InitMode
from rmqstore_conformance.cases.scenes import filled
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.stores import Pair, Stores, ids, label, message, pop_all, stores_of

(T,) = topics(__name__, 1)
(G,) = groups(__name__, 1)

SECOND = timedelta(seconds=1)


@pytest.fixture
def durable_stores(durable_engine: Pair) -> Iterator[Stores]:
    """Stores of each engine: topics and groups are of the pops alone."""
    with stores_of(durable_engine) as factory:
        yield factory


class Life:
    """A topic and a group, and what comes of them."""

    def __init__(self, stores: Stores, store: Store, topic: str, group: str) -> None:
        self.stores, self.store, self.topic, self.group = stores, store, topic, group
        self.receipts: list[str] = []

    def send(self, count: int = 3, **fields: Any) -> None:
        self.store.send_batch([Message(self.topic, b"%d" % number, **fields) for number in range(count)])

    def pop(self, **options: Any) -> list[tuple[bytes, int]]:
        popped = self.store.pop(self.topic, self.group, **{"max_messages": 8, "invisible": SECOND, **options})
        self.receipts += [str(each.receipt) for each in popped]
        return [(each.body, each.attempt) for each in popped]

    def expire(self) -> tuple[int, int]:
        self.stores.clock.advance(SECOND)
        report = self.store.tick()
        return report.retried, report.dead

    def bury(self) -> None:
        """Have one letter of the topic, and take it away."""
        self.store.reject(self.receipts[-1], reason="no")
        self.store.dead_letters.drop(self.store.dead_letters.list(self.group))

    def shown(self) -> list[object]:
        """Return what can be seen of both."""
        store = self.store
        found = next((each for each in store.topics.list() if each.name == self.topic), None)
        return [
            None if found is None else (found.queues, sum(found.min_offsets), sum(found.max_offsets), found.group_queues),
            store.groups.settings(self.group),
            store.lag(self.topic, self.group),
            len(store.leases(self.topic, self.group)),
            sum(each.next_offset for each in store.groups.offsets(self.group)),
            [each.topic == self.topic for each in store.groups.subscriptions(self.group)],
        ]

    def lived(self) -> list[object]:
        """Live from the first message to the last letter, and tell all of it."""
        told: list[object] = [self.shown()]
        self.send(2)
        told += [self.shown(), sorted(self.pop()), self.shown(), self.expire(), self.shown(), sorted(self.pop())]
        told += [self.shown(), self.expire(), self.shown(), self.pop()]
        return told


def _wide(life: Life) -> None:
    life.store.topics.create(life.topic, 7)


def _in_order(life: Life) -> None:
    life.send(message_group="x")
    life.pop(order=True, max_messages=2)


def _not_in_order(life: Life) -> None:
    life.send()
    life.pop()


def _retried(life: Life) -> None:
    life.send()
    life.pop()
    life.expire()


def _settled(life: Life) -> None:
    life.send(1)
    life.pop()
    life.store.groups.set(life.group, max_retries=0, backoff=[SECOND])


def _buried(life: Life) -> None:
    life.send()
    life.pop()
    life.bury()


def _reset(life: Life) -> None:
    life.send()
    life.pop(max_messages=1)
    life.store.groups.reset_offset(life.topic, life.group, InitMode.MAX)


def _backing_off(life: Life) -> None:
    life.send()
    life.store.retry_later(life.store.pop(life.topic, life.group, max_messages=3), delay=timedelta(hours=1))


OF_BOTH = (_wide, _not_in_order, _retried, _buried, _reset, _backing_off)
PASTS = [
    *(
        pytest.param(past, is_kept, id=f"{past.__name__[1:]}{'-group_kept' if is_kept else ''}")
        for past in OF_BOTH
        for is_kept in (False, True)
    ),
    pytest.param(_settled, False, id="settled"),
    pytest.param(_in_order, False, id="in_order", marks=pytest.mark.needs("fifo")),
    pytest.param(_in_order, True, id="in_order-group_kept", marks=pytest.mark.needs("fifo")),
]


@pytest.mark.clause("P7", "P9", "P11", "P13", "P14")
@pytest.mark.parametrize(("past", "is_kept"), PASTS)
def test_p2_what_is_made_anew_is_as_new(engine_stores: Stores, past: Callable[[Life], None], is_kept: bool) -> None:
    """P2: a topic that had any past and was deleted, with its group or without, lives as one that never was; no receipt comes again."""
    store = engine_stores.open(default_queues=2, max_retries=1)
    old = Life(engine_stores, store, "old", "old-group")
    past(old)
    store.topics.delete("old")
    if not is_kept:
        store.groups.delete("old-group")
    before = set(old.receipts)
    new = Life(engine_stores, store, "new", "new-group")
    # One after the other: a tick is for all.
    assert old.lived() == new.lived()
    assert not before & set(old.receipts[len(before) :])
    assert len(set(old.receipts)) == len(old.receipts)


@pytest.mark.clause("P4", "P14")
def test_p2_what_is_made_behind_a_deletion_and_an_open_is_another_one(durable_stores: Stores) -> None:
    """P2: the last topic, or the last group, is deleted, the store opened again: what upkeep still has to remove belongs to no other."""
    store = durable_stores.open(reclaim="age")
    for number, is_topic in enumerate((True, False, True)):
        group = f"group-{number}"
        for topic in (f"kept-{number}", f"last-{number}"):
            store.send_batch([message(f"{topic}-{n}", topic) for n in range(2)])
            store.ack(store.pop(topic, group, max_messages=1))
            store.pop(topic, f"last-{number}", max_messages=1, invisible=timedelta(days=1))
        store.topics.delete(f"last-{number}") if is_topic else store.groups.delete(f"last-{number}")
        store = durable_stores.reopen(store, reclaim="age")
        new = f"new-{number}"
        store.send_batch([message(f"{new}-{n}", new) for n in range(2)])
        readers = (group, f"reader-{number}")
        acked = {reader: store.pop(new, reader, max_messages=1) for reader in readers}
        for popped in acked.values():
            assert store.ack(popped) == [AckOutcome.ACKED]
        for _ in range(3):
            durable_stores.tick_after(store, timedelta(seconds=10))
        store = durable_stores.reopen(store, reclaim="age")
        for reader in readers:
            assert store.lag(new, reader) == Lag(1, 0, 0, 0)
            assert label(store.pop(new, reader)[0]) != label(acked[reader][0]), "it was acked"
        assert store.verify() == []


@pytest.mark.clause("P2")
@pytest.mark.needs("import_state")
@pytest.mark.parametrize("anew", [False, True], ids=["gone", "made anew"])
def test_p5_what_was_done_to_a_deleted_topic_is_no_part_of_the_state(durable_stores: Stores, anew: bool) -> None:
    """P5: leases that run and leases that ended are gone with their topic, at once for callers, and with upkeep from the store."""
    store = filled(durable_stores, 3, outcome_memory_ms=10_000)
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
    groups = [f"g{number}" for number in range(270)]
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
