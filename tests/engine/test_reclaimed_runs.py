"""Q1: what is left in a queue of reclaimed messages."""

from __future__ import annotations

import pytest

from rmqstore_conformance.cases.test_retention import kept
from rmqstore_conformance.stores import HOUR_MS, Stores, ids, message, pop_all


@pytest.mark.clause("Q1")
def test_q1_the_disk_gets_the_room_back(engine_stores: Stores) -> None:
    """Q1: no run of a reclaimed message is left in the queue, and big queues go in bounded steps."""
    store = engine_stores.open(retention_ms=HOUR_MS)
    for n in range(200):
        store.send_batch([message(f"{n}-{row}") for row in range(50)])
    engine_stores.clock.advance(HOUR_MS + 1)
    store.send(message("young"))
    store.tick()
    topic = store.engine.pops._state.topics["t"]  # type: ignore[attr-defined]
    assert [run.first for run in store.engine.pops._log.runs_from(topic, 0, 0)] == [10_000]  # type: ignore[attr-defined]
    assert kept(store) == (10_000,)
    assert ids(pop_all(store)) == ["myoung"]


def test_queues_of_topics_that_are_gone_are_forgotten(engine_stores: Stores) -> None:
    store = engine_stores.open(retention_ms=1000)
    for step in range(6):
        names = [f"t{step}-{number}" for number in range(20)]
        for name in names:
            store.send(message(name, name))
        engine_stores.clock.advance(500)
        store.tick()
        for name in names:
            store.topics.delete(name)
    retention = store.engine.pops._retention  # type: ignore[attr-defined]
    assert 0 < len(retention._looked) + len(retention._looked_before) <= 60
