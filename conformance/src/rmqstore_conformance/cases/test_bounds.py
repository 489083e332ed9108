"""What a store remembers is bounded by how long it remembers, and what a call costs by what the call is about (P5, I1, Q2, X3)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rmqstore import Store
from rmqstore_conformance.stores import Stores, message

PER_SECOND = 1200
"""Calls in a second of the clock: more than one step of upkeep takes."""

MEMORY_MS = 2_000


def _rows(store: Store) -> dict[str, int]:
    return {table: found.rows for table, found in store.digest().items()}


@pytest.mark.clause("P5", "C4", "I1")
@pytest.mark.needs("import_state")
def test_p5_what_is_remembered_does_not_grow_with_the_load(stores: Stores) -> None:
    """P5: pops, acks, cancels and marks at a rate above every step of upkeep: state is flat once the memory is full."""
    store = stores.open(flush="async", outcome_memory_ms=MEMORY_MS, mark_memory_ms=MEMORY_MS, cancel_memory_ms=MEMORY_MS, default_queues=1)
    half: dict[str, int] = {}
    for second in range(9):
        store.send_batch([message(f"{second}-{n}") for n in range(PER_SECOND)], marks=[b"%d-%d" % (second, n) for n in range(PER_SECOND)])
        timers = store.send_batch(
            [message(f"{second}-t{n}") for n in range(PER_SECOND)],
            delay=timedelta(milliseconds=500),
            marks=[b"t%d-%d" % (second, n) for n in range(PER_SECOND)],
        )
        store.cancel([each.handle or "" for each in timers])
        for _ in range(PER_SECOND):
            store.ack(store.pop("t", "g", max_messages=1, invisible=timedelta(milliseconds=800)))
        stores.clock.advance(1000)
        store.service_tick()
        if second == 4:
            half = _rows(store)
    full = _rows(store)
    grown = {table: (half[table], rows) for table, rows in full.items() if rows > half[table] + PER_SECOND // 8}
    assert not grown, f"rows of state that grew although the load was the same: {grown}"
    assert full["leases"], "it is looked at where outcomes are kept"
    assert store.verify() == []
