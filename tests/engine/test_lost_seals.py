"""C2, C4, F1: what cancels answer behind a full disk that took what they rest on: seals, and calls that nobody can wait for any more."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from rmqstore import CancelOutcome, MessageBatch, StoreFullError
from rmqstore.contract import EMPTY_CURSOR, EngineOptions, PopStore, PopTxn, Ticket, TimerHandle, TimerStore
from rmqstore.engine.kv.buffered import BufferedKV
from rmqstore.engine.schema import SPACES
from rmqstore.engine.session import open_session
from rmqstore_conformance.stores import START_MS, ids, plain
from tests.engine.databases import FakeBase

DUE_MS = START_MS + 1000


class Opened(NamedTuple):
    """A session over a database that commits when it is told to; what it has committed a crash leaves."""

    base: FakeBase
    timers: TimerStore
    pops: PopStore

    def put(self, name: str, due_ms: int = DUE_MS) -> TimerHandle:
        """Store a timer durably."""
        receipts, ticket = self.timers.put(MessageBatch.of([plain(name, "t", queue_id=0, deliver_at_ms=due_ms)]), START_MS)
        self.timers.sync(ticket)
        return receipts.handle(0)

    def cancel(self, handle: TimerHandle) -> CancelOutcome:
        """Cancel a timer; the answer is given when it is durable."""
        (outcome,), ticket = self.timers.cancel([handle], START_MS)
        self.timers.sync(ticket)
        return outcome

    def hand_over(self) -> Ticket:
        """Seal what is due and move it to its topic; nobody waits for that."""
        self.timers.seal(DUE_MS)
        found = self.timers.due(self.pops.timer_cursor(), 10)
        return self.pops.apply(PopTxn(appends=found.messages, timer_cursor=found.cursor), DUE_MS)[1]

    def lose(self, ticket: Ticket | None = None) -> None:
        """Wait for the disk, which is full, and then has room again."""
        self.base.fill()
        with pytest.raises(StoreFullError):
            self.timers.sync(ticket)
        self.base.free()


def _opened(base: FakeBase) -> Opened:
    session = open_session(BufferedKV(base, len(SPACES)), EngineOptions(store_tag=1, broker="b"))
    session.timers().recover(session.pops().durable_cursor())
    return Opened(base, session.timers(), session.pops())


@pytest.fixture
def opened() -> Opened:
    return _opened(FakeBase())


@pytest.mark.clause("C2", "C4", "F1")
@pytest.mark.parametrize("again", ["at once", "behind another put", "lost twice", "behind another seal"])
def test_c2_no_answer_rests_on_a_seal_that_a_full_disk_took(opened: Opened, again: str) -> None:
    """C2: what a lost seal closed stays too late for a cancel, and is so behind a crash when that was the answer."""
    handle = opened.put("a")
    opened.lose(opened.hand_over())
    if again == "behind another put":
        opened.put("b", START_MS + 3_600_000)
    elif again == "lost twice":
        _, ticket = opened.timers.cancel([handle], START_MS)
        opened.lose(ticket)
    elif again == "behind another seal":
        opened.put("b")
        opened.lose(opened.hand_over())
    assert opened.cancel(handle) is CancelOutcome.ALREADY_DELIVERED
    crashed = _opened(opened.base)
    assert crashed.cancel(handle) is CancelOutcome.ALREADY_DELIVERED
    crashed.pops.sync(crashed.hand_over())
    assert "ma" in ids(crashed.pops.read("t", 0, 0, 10).messages)
    assert crashed.timers.verify() == []


@pytest.mark.clause("C1", "F1")
def test_c1_a_seal_that_a_full_disk_took_and_no_answer_rests_on_is_gone_with_the_session(opened: Opened) -> None:
    """C1: nobody was told that it is too late, so behind a crash it is not."""
    handle = opened.put("a")
    opened.lose(opened.hand_over())
    other = opened.put("b", START_MS + 3_600_000)
    assert opened.cancel(other) is CancelOutcome.CANCELLED
    crashed = _opened(opened.base)
    assert crashed.cancel(handle) is CancelOutcome.CANCELLED
    crashed.hand_over()
    assert crashed.pops.topic("t") is None


@pytest.mark.clause("C1", "H3", "F1")
def test_c2_what_went_into_another_log_cannot_be_cancelled_though_its_seal_is_lost(opened: Opened) -> None:
    """C2: the pops have a log of their own, and hold the message; the full disk of the timers took their seal."""
    handle = opened.put("a")
    opened.timers.seal(DUE_MS)
    assert len(opened.timers.due(EMPTY_CURSOR, 10).messages) == 1
    opened.lose()
    assert opened.cancel(handle) is CancelOutcome.ALREADY_DELIVERED


@pytest.mark.clause("F1")
def test_f1_cancels_wait_for_nothing_that_a_full_disk_took(opened: Opened) -> None:
    """F1: with room again each of them succeeds, also one that ends nothing."""
    handle = opened.put("a")
    _, ticket = opened.timers.put(MessageBatch.of([plain("b", "t", deliver_at_ms=DUE_MS)]), START_MS)
    opened.lose(ticket)
    ((none,), ticket) = opened.timers.cancel_keys("t", ["none"], START_MS)
    opened.timers.sync(ticket)
    assert none == []
    opened.lose(opened.hand_over())
    opened.pops.sync(opened.hand_over())
    opened.timers.forget(opened.pops.durable_cursor())
    assert opened.cancel(handle) is CancelOutcome.ALREADY_DELIVERED
    _, ticket = opened.timers.cancel_keys("t", ["none"], START_MS)
    opened.timers.sync(ticket)
