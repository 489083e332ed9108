"""Marks in a dump: one that a merge left with two ages, of which the older was dropped, is left out."""

from __future__ import annotations

import pytest

from rmqstore import Message, MessageBatch
from rmqstore.contract import EngineOptions
from rmqstore.ordered.kv import WriteBatch
from rmqstore.ordered.layout import MARK_AGE, META, SPACES, U64
from rmqstore.ordered.marks import POP_SIDE, TIMER_SIDE
from rmqstore.ordered.session import open_session
from rmqstore_memory.kv import MemoryKV

NOW_MS, MEMORY_MS = 1_700_000_000_000, 60_000


@pytest.mark.parametrize(("side", "table"), [(TIMER_SIDE, "timer_marks"), (POP_SIDE, "pop_marks")])
def test_a_mark_whose_older_age_was_dropped_is_in_no_dump(side: bytes, table: str) -> None:
    kv = MemoryKV("marks", len(SPACES))
    session = open_session(kv, EngineOptions(store_tag=7, broker="b", precision_ms=1000, mark_memory_ms=MEMORY_MS))
    store = session.timers() if side == TIMER_SIDE else session.pops()
    due = NOW_MS + 10_000 if side == TIMER_SIDE else None
    batch = MessageBatch.of([Message("t", b"x", message_id="m", born_ms=1, deliver_at_ms=due)])
    (session.timers().put if side == TIMER_SIDE else session.pops().append)(batch, NOW_MS, [b"mark"])
    assert len(store.export_state(table, None, 9).rows) == 1
    write = WriteBatch()
    write.put(META, MARK_AGE + side + U64.pack(NOW_MS + 1000) + b"mark", b"")
    kv.write(write)
    store.maintain(NOW_MS + MEMORY_MS + 500, 100)
    assert len(store.export_state(table, None, 9).rows) == 0
