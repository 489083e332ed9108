"""What keeps upkeep from a queue's messages: the first one that is leased, found without reading the leases of every group (Q1, X3)."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from rmqstore import Message
from rmqstore.batch import MessageBatch
from rmqstore.contract import EngineOptions, PopRequest, PopStore, PopTxn, Receipt
from rmqstore.engine.kv.base import PAGE_BYTES
from rmqstore.engine.schema import LEASE, LEASES, QUEUES, SPACES
from rmqstore.engine.session import open_session
from rmqstore_memory.kv import MemoryKV

NOW_MS, LEASED_MS = 1_700_000_000_000, 60_000
GROUPS = [f"g{number}" for number in range(100)]


class CountingKV(MemoryKV):
    """Counts the leases that are read one by one, and the runs of queues that are read in order."""

    def __init__(self) -> None:
        super().__init__("pinning", len(SPACES))
        self.read: Counter[bytes] = Counter()
        self.runs = 0

    def get(self, space: int, key: bytes) -> bytes | None:
        if space == LEASES and key[:1] == LEASE:
            self.read[key] += 1
        return super().get(space, key)

    def scan(
        self, space: int, start: bytes, stop: bytes | None, limit: int, *, reverse: bool = False, page_bytes: int = PAGE_BYTES
    ) -> list[tuple[bytes, bytes]]:
        found = super().scan(space, start, stop, limit, reverse=reverse, page_bytes=page_bytes)
        self.runs += len(found) if space == QUEUES else 0
        return found


def opened(kv: MemoryKV, retention_ms: int = 0) -> PopStore:
    return open_session(kv, EngineOptions(store_tag=7, broker="b", retention_ms=retention_ms)).pops()


def send(pops: PopStore, count: int) -> None:
    pops.apply(PopTxn(appends=MessageBatch.of([Message("t", b"x", queue_id=0) for _ in range(count)])), NOW_MS)


def pop(pops: PopStore, group: str, count: int, topic: str = "t") -> list[Receipt]:
    return list(pops.pop(PopRequest(topic, group, count, LEASED_MS), NOW_MS)[0].messages.receipts())


def first_kept(pops: PopStore, topic: str = "t") -> int:
    info = pops.topic(topic)
    assert info is not None
    return info.min_offsets[0]


def read_by_upkeep(kv: CountingKV, pops: PopStore) -> int:
    kv.read.clear()
    pops.maintain(NOW_MS, 1024)
    return kv.read.total()


def test_upkeep_reads_one_lease_however_many_groups_hold_a_part_of_what_they_popped() -> None:
    kv = CountingKV()
    pops = opened(kv)
    send(pops, 6)
    held = {group: pop(pops, group, 5) for group in GROUPS}
    for acked in (0, 1):
        pops.apply(PopTxn(acks=[receipts[acked] for receipts in held.values()]), NOW_MS)
        assert read_by_upkeep(kv, pops) == 1
        assert first_kept(pops) == acked + 1


def test_after_an_open_upkeep_reads_each_lease_once() -> None:
    kv = CountingKV()
    pops = opened(kv)
    send(pops, 6)
    acked = [receipt for group in GROUPS for receipt in pop(pops, group, 5)[:2]]
    pops.apply(PopTxn(acks=acked), NOW_MS)
    pops = opened(kv)
    assert read_by_upkeep(kv, pops) == len(GROUPS)
    assert first_kept(pops) == 2
    assert read_by_upkeep(kv, pops) == 1


def test_topics_that_many_groups_pop_are_looked_at_in_more_steps_but_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group of a topic is work, so a step takes fewer of its queues, and at least one."""
    monkeypatch.setattr("rmqstore.engine.pops.retention._LOOKED_AT", 8)
    pops = opened(CountingKV())
    names = [f"t{number}" for number in range(12)]
    pops.apply(PopTxn(appends=MessageBatch.of([Message(name, b"x", queue_id=0) for name in names])), NOW_MS)
    for name in names:
        for group in GROUPS if name in ("t3", "t4") else GROUPS[:1]:
            pops.apply(PopTxn(acks=pop(pops, group, 1, name)), NOW_MS)
    steps = []
    for _ in range(8):
        pops.maintain(NOW_MS, 1024)
        steps.append(sum(first_kept(pops, name) for name in names))
    assert steps == [4, 6, 12, 12, 12, 12, 12, 12], "t3 ends the first step, and t4 leaves room for one more in the second"


@pytest.mark.parametrize("seed", range(20))
def test_upkeep_stops_at_the_first_message_that_any_group_leases(seed: int) -> None:
    kv, chance = CountingKV(), Random(seed)
    pops = opened(kv)
    send(pops, 40)
    held = {group: [(each.queue_offset, each) for _ in range(8) for each in pop(pops, group, chance.randint(1, 5))] for group in GROUPS[:5]}
    popped = {group: len(receipts) for group, receipts in held.items()}
    for _ in range(60):
        group = chance.choice(list(held))
        for receipt in chance.sample(held[group], min(len(held[group]), chance.randint(0, 3))):
            pops.apply(PopTxn(acks=[receipt[1]]), NOW_MS)
            held[group].remove(receipt)
        if chance.random() < 0.1:
            pops = opened(kv)
        pops.maintain(NOW_MS, 1024)
        assert first_kept(pops) == min(min([at for at, _ in receipts], default=popped[group]) for group, receipts in held.items())


def test_upkeep_looks_once_at_what_is_old_behind_a_leased_head() -> None:
    kv = CountingKV()
    pops = opened(kv, retention_ms=1000)
    for _ in range(20):
        send(pops, 1)
    (leased,) = pop(pops, "g", 1)
    runs = []
    for _ in range(3):
        kv.runs = 0
        pops.maintain(NOW_MS + 10_000, 1024)
        runs.append(kv.runs)
    assert runs[0] >= 20 > 3 >= max(runs[1:])
    assert first_kept(pops) == 0
    pops.apply(PopTxn(acks=[leased]), NOW_MS + 10_000)
    pops.maintain(NOW_MS + 10_000, 1024)
    assert first_kept(pops) == 20
