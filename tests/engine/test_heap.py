"""What Python's garbage collector has to walk of a store with many topics and groups: a full collection keeps every thread out (X3)."""

from __future__ import annotations

import gc

from rmqstore import Message
from rmqstore.batch import MessageBatch
from rmqstore.contract import EngineOptions, PopRequest, PopTxn
from rmqstore.engine.schema import SPACES
from rmqstore.engine.session import open_session
from rmqstore_memory.kv import MemoryKV

NOW_MS, COUNT = 1_700_000_000_000, 500


def walked() -> int:
    gc.collect()
    return len(gc.get_objects())


def test_a_topic_costs_the_collector_nothing_and_a_lease_two_keys() -> None:
    pops = open_session(MemoryKV("heap", len(SPACES)), EngineOptions(store_tag=7, broker="b")).pops()
    names = [f"t{number}" for number in range(COUNT + 1)]

    def lease(topic: str, group: str) -> None:
        assert len(pops.pop(PopRequest(topic, group, 1, 60_000), NOW_MS)[0].messages) == 1

    pops.apply(PopTxn(appends=MessageBatch.of([Message(names[-1], b"x")])), NOW_MS)
    lease(names[-1], "g")
    before = walked()
    pops.apply(PopTxn(appends=MessageBatch.of([Message(name, b"x") for name in names[:-1]])), NOW_MS)
    topics = walked()
    assert topics - before < COUNT / 10
    for name in names[:-1]:
        lease(name, f"g{name}")
    assert walked() - topics < 2.1 * COUNT
