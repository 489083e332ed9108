"""F3: a call whose write is refused changes nothing, whatever the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from rmqstore import MessageBatch, StoreFullError
from rmqstore.contract import PopTxn, TimerCursor
from rmqstore.engine.shared import Shared
from rmqstore_conformance.stores import START_MS, Stores, ids, message, pop_all, state_of


@pytest.mark.clause("F3")
def test_f3_a_call_that_finds_no_room_changes_nothing(stores: Stores) -> None:
    """F3: every mutating call, failing at its write, leaves the store as it was, in memory too; then it works."""
    store = stores.open()
    store.topics.create("t", 2)
    sent = store.send_batch([message(n, deliver_at_ms=START_MS + 1000 * n, keys=("k",) if n > 3 else ()) for n in range(1, 6)])
    store.send_batch([message(f"q{n}", queue_id=n % 2) for n in range(8)])
    popped = store.pop("t", "g", max_messages=4, invisible_ms=1000)
    stores.clock.advance(2000)
    calls: dict[str, Callable[[], Any]] = {
        "put": lambda: store.send(message("new"), delay_ms=5000),
        "append": lambda: store.send(message("new2")),
        "batch": lambda: store.send_batch([message(f"n{n}", "fresh", deliver_at_ms=START_MS + 9000) for n in range(3)]),
        "cancel": lambda: store.cancel(sent[4].handle or ""),
        "cancel key": lambda: store.cancel_key("t", "k"),
        "pop": lambda: store.pop("t", "g", attempt_id="a"),
        "pop of a new group": lambda: store.pop("t", "h"),
        "pop of a new topic": lambda: store.pop("u", "g"),
        "ack": lambda: store.ack(popped[0]),
        "change": lambda: store.change_invisible(popped[1], invisible_ms=5000),
        "release": lambda: store.release(popped[2]),
        "tick": lambda: store.tick(),
        "reset": lambda: store.groups.reset_offset("t", "g", 0),
        "create": lambda: store.topics.create("v", 3),
    }
    for name, call in calls.items():
        before = state_of(store)
        with patch.object(Shared, "write", side_effect=StoreFullError("no room")), pytest.raises(StoreFullError):
            call()
        assert state_of(store) == before, f"{name} left something behind"
        call()
        assert name == "change" or state_of(store) != before, f"{name} did nothing the second time"


@pytest.mark.clause("I1", "F3")
def test_i1_a_call_that_finds_no_room_stores_no_mark(engine_stores: Stores) -> None:
    """I1: a mark belongs to the same atomic step as the rows."""
    store = engine_stores.open()
    with patch.object(Shared, "write", side_effect=StoreFullError("no room")), pytest.raises(StoreFullError):
        store.send(message(2), marks=[b"b"])
    assert not store.send(message(2), marks=[b"b"]).repeated
    assert ids(pop_all(store)) == ["m2"]


@pytest.mark.clause("H1", "H3", "F1")
def test_h1_a_write_that_finds_no_room_makes_no_cursor_durable(engine_stores: Stores) -> None:
    """H1: the state is read again behind it, and with it the cursor of a hand-over whose sync another thread still waits for."""
    pops = engine_stores.open().engine.pops
    cursor = TimerCursor(((START_MS, 1),))
    _, ticket = pops.apply(PopTxn(appends=MessageBatch.of([message(1)]), timer_cursor=cursor), START_MS)
    kv = pops._shared.kv  # type: ignore[attr-defined]
    with patch.object(type(kv), "write", side_effect=StoreFullError("no room")), pytest.raises(StoreFullError):
        pops.append(MessageBatch.of([message(2)]), START_MS)
    assert pops.timer_cursor() == cursor
    assert pops.durable_cursor() != cursor or pops.durable_position >= ticket.position, "what the cursor is from is not durable"
    pops.sync(ticket)
    assert pops.durable_cursor() == cursor
