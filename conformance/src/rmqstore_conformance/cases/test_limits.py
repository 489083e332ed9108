"""Names, keys and counts at every limit at once (P3, P7, P9, P12): what is legal alone is legal together."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rmqstore import Message, Store
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.stores import Stores, ids, message, pop_all

(T,) = topics(__name__.rpartition(".")[2], 1)
(G,) = groups(__name__.rpartition(".")[2], 1)
TOPIC, OTHER = "t" * 127, "t" * 126 + "u"
GROUP, LIKE_IT = "g" * 127, "g" * 126 + "h"
SECOND = timedelta(seconds=1)


def _live(store: Store, stores: Stores) -> None:
    """Let messages be retried and die in the longest topics, for the longest groups."""
    store.send_batch([message(f"{topic[-1]}{number}", topic) for topic in (TOPIC, OTHER) for number in range(3)])
    for topic in (TOPIC, OTHER):
        for group in (GROUP, LIKE_IT):
            assert len(store.pop(topic, group, invisible=SECOND)) == 3
    assert stores.tick_after(store, 1000).retried == 12


@pytest.mark.clause("P3", "R1")
def test_p7_the_longest_names_have_retry_topics_and_dead_letters(durable_stores: Stores) -> None:
    """P7: topic and group of 127 bytes each: retries, dead letters and leases keep apart what differs in the last byte, over opens."""
    store = durable_stores.open(max_retries=1, default_queues=1)
    _live(store, durable_stores)
    for _ in range(2):
        assert store.verify() == []
        store = durable_stores.reopen(store, max_retries=1)
    for topic in (TOPIC, OTHER):
        for group in (GROUP, LIKE_IT):
            assert store.lag(topic, group).retry == 3
            popped = store.pop(topic, group, invisible=SECOND)
            assert sorted(ids(popped)) == [f"m{topic[-1]}{number}" for number in range(3)]
            assert {each.attempt for each in popped} == {2}
            store.ack(popped[0])
    assert durable_stores.tick_after(store, 1000).dead == 8
    store = durable_stores.reopen(store, max_retries=1)
    for group in (GROUP, LIKE_IT):
        letters = store.dead_letters.list(group)
        assert sorted(each.origin_topic for each in letters) == [TOPIC] * 2 + [OTHER] * 2
    assert store.dead_letters.resend(store.dead_letters.list(GROUP)) == 4
    assert len(pop_all(store, TOPIC, GROUP)) == 2
    store.topics.delete(TOPIC)
    store.groups.delete(LIKE_IT)
    store = durable_stores.reopen(store)
    assert {each.name for each in store.topics.list()} == {OTHER}


@pytest.mark.clause("P13", "P14", "R1")
def test_p12_a_topic_of_the_most_queues(stores: Stores) -> None:
    """P12: 1024 queues, each used, retried, counted and there after an open."""
    store = stores.open(flush="async")
    store.topics.create("wide", 1024)
    store.send_batch([message(queue, "wide", queue_id=queue) for queue in range(1024)])
    for queue in (0, 11, 1023):
        assert [each.queue_id for each in store.pop("wide", "g", queue=queue, invisible=SECOND)] == [queue]
    assert len(store.pop("wide", "g", max_messages=1024, invisible=SECOND)) == 1021
    assert [each.queue_id for each in store.groups.offsets("g")] == list(range(1024))
    stores.tick_after(store, 1000)
    if stores.pair.durable:
        store = stores.reopen(store)
    assert store.lag("wide", "g").retry == 1024
    assert len(pop_all(store, "wide", "g")) == 1024
    store.tick()
    assert store.lag("wide", "g") == type(store.lag("wide", "g"))(0, 0, 0, 0)


@pytest.mark.clause("R1")
def test_p14_many_topics(stores: Stores) -> None:
    """R1: a thousand topics with a few messages and groups each: sends, pops, counts, deletions and an open."""
    names = [f"topic-{number}" for number in range(1000)]
    store = stores.open(flush="async", default_queues=1)
    store.send_batch([Message(name, b"x", message_id=f"m-{name}") for name in names for _ in range(2)])
    for name in names:
        store.ack(store.pop(name, "g", max_messages=1))
    store.tick()
    for name in names[::10]:
        store.topics.delete(name)
    if stores.pair.durable:
        store = stores.reopen(store)
    assert len(store.topics.list()) == 900
    assert all((store.lag(name, "g").ready == 1) == (number % 10 != 0) for number, name in enumerate(names))
