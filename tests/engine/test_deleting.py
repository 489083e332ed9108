"""What groups had of a deleted topic: it goes in steps, wholly, wherever a crash falls between them (P5, X3)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmqstore import Message
from rmqstore.batch import MessageBatch
from rmqstore.contract import EngineOptions, PopRequest, PopStore, PopTxn
from rmqstore.contract.tables import POP_TABLES
from rmqstore.engine.schema import DEAD, EXPIRY, FIFO, GONE, LEASE, LEASES, META, PROGRESS, PURGE, REGISTERED, SPACES
from rmqstore.engine.session import open_session
from rmqstore.message import retry_topic
from rmqstore_memory.kv import MemoryKV

NOW_MS, LEASED_MS, MEMORY_MS = 1_700_000_000_000, 60_000, 600_000
GROUPS = [f"g{number}" for number in range(40)]
BUDGET = 16
"""Of one step: four groups of one queue."""


def opened(kv: MemoryKV) -> PopStore:
    """Open what is stored, as after a crash."""
    return open_session(kv, EngineOptions(store_tag=7, broker="b", outcome_memory_ms=MEMORY_MS, max_retries=0)).pops()


def send(pops: PopStore, topic: str, ids: list[str]) -> None:
    pops.apply(PopTxn(appends=MessageBatch.of([Message(topic, b"x", message_id=each, queue_id=0) for each in ids])), NOW_MS)


def take(pops: PopStore, group: str, now_ms: int = NOW_MS, *, order: bool = False, topic: str = "t") -> list[str]:
    found = pops.pop(PopRequest(topic, group, 1, LEASED_MS, order=order), now_ms)[0].messages
    return [each.message_id for each in found.messages()]


@pytest.fixture
def kv() -> MemoryKV:
    """Forty groups hold a message each of t, a part of them in order, one acked its own, of one group a message died and another waits."""
    kv = MemoryKV("deleting", len(SPACES))
    pops = opened(kv)
    send(pops, "t", ["a", "b", "c"])
    send(pops, "other", ["o"])
    take(pops, "dead", NOW_MS - 2 * LEASED_MS)
    pops.revive(NOW_MS, 10)
    for number, group in enumerate(GROUPS):
        take(pops, group, order=number % 3 == 0)
    request = PopRequest("t", "acked", 1, LEASED_MS)
    pops.apply(PopTxn(acks=list(pops.pop(request, NOW_MS)[0].messages.receipts())), NOW_MS)
    take(pops, "g1", topic="other")
    return kv


def left(kv: MemoryKV, topic_id: int) -> Iterator[bytes]:
    """Yield the keys of what groups have under a topic's id."""
    named = topic_id.to_bytes(4, "big")
    for table in (PROGRESS, REGISTERED, DEAD):
        yield from (key for key, _ in kv.scan_all(META, table, table + b"\xff") if key[5:9] == named)
    for table in (LEASE, FIFO):
        yield from (key for key, _ in kv.scan_all(LEASES, table, table + b"\xff") if key[5:9] == named)
    yield from (key for key, _ in kv.scan_all(LEASES, EXPIRY, EXPIRY + b"\xff") if key[13:17] == named)
    yield from (key for key, _ in kv.scan_all(LEASES, PURGE, PURGE + b"\xff") if key[14:18] == named)


def id_of(kv: MemoryKV, topic: str) -> int:
    found = kv.get(META, b"t" + topic.encode())
    assert found is not None
    return int.from_bytes(found[:4], "big")


def tables_of(pops: PopStore) -> dict[str, object]:
    return {table: pops.export_state(table, None, 1000).rows.to_pylist() for table in POP_TABLES if table != "pop_head"}


def seen_of(pops: PopStore) -> list[object]:
    """Return all that shows of groups."""
    in_flight = pops.stats().in_flight
    return [
        pops.groups(),
        pops.subscriptions(),
        pops.leases(),
        in_flight,
        pops.offsets("g1"),
        pops.topics(),
        pops.verify(),
        tables_of(pops),
    ]


def test_a_step_is_bounded_and_nothing_shows_between_any_two(kv: MemoryKV) -> None:
    topic_id = id_of(kv, "t")
    pops = opened(kv)
    pops.delete_topic("t")
    kept = len(list(left(kv, topic_id)))
    shown = seen_of(pops)
    assert [each.topic for each in pops.leases()] == ["other"]
    assert pops.groups() == ["g1"]
    steps = 0
    while kv.get(META, GONE + b"t") is not None:
        assert seen_of(opened(kv)) == shown, f"opened behind step {steps}"
        pops = opened(kv)
        assert pops.maintain(NOW_MS, BUDGET).more or steps >= 10
        assert seen_of(pops) == shown, f"behind step {steps}"
        now_kept = len(list(left(kv, topic_id)))
        assert kept - 5 * BUDGET // 4 <= now_kept < kept
        kept, steps = now_kept, steps + 1
    assert steps >= len(GROUPS) * 4 // BUDGET
    pops.maintain(NOW_MS + LEASED_MS + MEMORY_MS, 1000)
    assert list(left(kv, topic_id)) == [], "what had ended goes when it would have gone"
    assert not pops.maintain(NOW_MS + LEASED_MS + MEMORY_MS, BUDGET).more


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_leases_of_a_deleted_topic_that_end_give_nothing_and_keep_nothing_back(kv: MemoryKV, steps: int, limit: int) -> None:
    pops = opened(kv)
    assert len(pops.leases("t")) == len(GROUPS)
    pops.delete_topic("t")
    for _ in range(steps):
        pops.maintain(NOW_MS, BUDGET)
    rounds, report = 0, pops.revive(NOW_MS + LEASED_MS, limit)[0]
    while report.more:
        rounds += 1
        assert rounds <= len(GROUPS), "a revive goes round in circles"
        report = pops.revive(NOW_MS + LEASED_MS, limit)[0]
    assert pops.topic(retry_topic("g2", "t")) is None
    assert pops.verify() == opened(kv).verify() == []


def test_a_group_goes_with_what_it_had_of_deleted_topics(kv: MemoryKV) -> None:
    topic_id, group = id_of(kv, "t"), kv.get(META, b"gg2")
    assert group is not None
    pops = opened(kv)
    pops.delete_topic("t")
    pops.delete_group("g2")
    assert pops.verify() == opened(kv).verify() == []
    assert not [key for key in left(kv, topic_id) if group in (key[1:5], key[9:13])]


def test_what_is_taken_in_may_have_the_name_of_a_deleted_topic(kv: MemoryKV) -> None:
    topic_id = id_of(kv, "t")
    source = MemoryKV("source", len(SPACES))
    other = opened(source)
    send(other, "t", ["new"])
    take(other, "g1")
    pops = opened(kv)
    pops.delete_topic("t")
    for table in POP_TABLES:
        pops.import_state([(table, other.export_state(table, None, 1000).rows)], NOW_MS)
    pops = opened(kv)
    assert [(each.topic, each.group) for each in pops.leases("t")] == [("t", "g1")]
    assert pops.verify() == []
    assert take(pops, "g2") == ["new"]
    pops.delete_topic("t")
    pops = opened(kv)
    assert [each.topic for each in pops.leases()] == ["other"]
    pops.maintain(NOW_MS + LEASED_MS + MEMORY_MS, 1000)
    assert list(left(kv, topic_id)) == []
