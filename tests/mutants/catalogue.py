"""Mutants: faults planted into the hand-over, the timers, the pops and the store, one by one.

Each is a context manager that patches a class for its duration. A suite that does not notice one of them does not test its clause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

import rmqstore.engine.pops.store as pops_module
import rmqstore.engine.timers.store as timers_module
from rmqstore.contract import CancelOutcome, DueBatch, PopTxn, ReviveReport, Ticket, TimerCursor, TimerHandle, WriteStatus
from rmqstore.engine.kv.base import WriteBatch
from rmqstore.engine.pops.checkpoint import MOVED, Lease
from rmqstore.engine.pops.lease import Popping
from rmqstore.engine.pops.offsets import GroupQueue, Progress
from rmqstore.engine.pops.settle import Leasing, NoLease
from rmqstore.engine.pops.store import OrderedPops
from rmqstore.engine.pops.transaction import Transaction
from rmqstore.engine.schema import SEAL_KEY
from rmqstore.engine.timers import tombstones as traces
from rmqstore.engine.timers.rows import TimerRuns
from rmqstore.engine.timers.store import OrderedTimers
from rmqstore.message import RETRY_PREFIX
from rmqstore.store.handover import HandOver


@contextmanager
def fires_early() -> Iterator[None]:
    """A tick closes what is due within the next second."""
    seal = OrderedTimers.seal
    with patch.object(OrderedTimers, "seal", lambda self, until_ms: seal(self, until_ms + 1000)):
        yield


@contextmanager
def fires_late() -> Iterator[None]:
    """A tick leaves what is due at its very time to the next one."""
    seal = OrderedTimers.seal
    with patch.object(OrderedTimers, "seal", lambda self, until_ms: seal(self, until_ms - 1)):
        yield


@contextmanager
def put_during_a_tick_is_lost() -> Iterator[None]:
    """The cursor covers every seq given up to the moment it is made, not up to the seal."""
    due = OrderedTimers.due

    def mutated(self: OrderedTimers, after: TimerCursor, limit: int) -> DueBatch:
        batch = due(self, after, limit)
        if not len(batch.messages):
            return batch
        return DueBatch(batch.messages, batch.cursor.join([(batch.cursor.highest_tick, self._last_seq)]), batch.soft)

    with patch.object(OrderedTimers, "due", mutated):
        yield


@contextmanager
def cancelled_after_the_seal() -> Iterator[None]:
    """Whatever was found too late is answered CANCELLED."""
    cancel = OrderedTimers.cancel

    def mutated(self: OrderedTimers, handles: Sequence[TimerHandle], now_ms: int) -> Any:
        outcomes, ticket = cancel(self, handles, now_ms)
        return [CancelOutcome.CANCELLED if each is CancelOutcome.ALREADY_DELIVERED else each for each in outcomes], ticket

    with patch.object(OrderedTimers, "cancel", mutated):
        yield


@contextmanager
def forget_before_durable() -> Iterator[None]:
    """What the pops hold, but not durably, is reclaimed already."""
    with patch.object(OrderedPops, "durable_cursor", OrderedPops.timer_cursor):
        yield


@contextmanager
def seal_in_memory_only() -> Iterator[None]:
    """What was closed is not written down."""
    put = WriteBatch.put

    def mutated(self: WriteBatch, space: int, key: bytes, value: bytes) -> None:
        put(self, space, key, b"" if key == SEAL_KEY else value)

    with patch.object(WriteBatch, "put", mutated):
        yield


@contextmanager
def one_cursor_pair_instead_of_a_staircase() -> Iterator[None]:
    """A put is covered when (tick, seq) is not greater than one pair, compared as pairs."""

    def highest(self: TimerCursor) -> tuple[int, int]:
        return max(self.corners, default=(-1, 0))

    def bound(self: TimerCursor, tick: int) -> int:
        top = highest(self)
        return 2**62 if tick < top[0] else top[1] if tick == top[0] else 0

    with (
        patch.object(TimerCursor, "bound", bound),
        patch.object(TimerCursor, "covers", lambda self, tick, seq: (tick, seq) <= highest(self)),
    ):
        yield


@contextmanager
def apply_before_the_timers_sync() -> Iterator[None]:
    """The sync between the two engines is left out."""
    init = HandOver.__init__

    def mutated(self: HandOver, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **{**kwargs, "one_log": True})

    with patch.object(HandOver, "__init__", mutated):
        yield


@contextmanager
def cursor_is_not_stored_with_the_messages() -> Iterator[None]:
    """The messages are applied without the cursor that says so."""
    apply = OrderedPops.apply

    def mutated(self: OrderedPops, txn: PopTxn, now_ms: int) -> Any:
        result = apply(self, msgspec.structs.replace(txn, timer_cursor=None), now_ms)
        if txn.timer_cursor is not None:
            self._cursor = txn.timer_cursor
        return result

    with patch.object(OrderedPops, "apply", mutated):
        yield


@contextmanager
def stale_receipt_accepted() -> Iterator[None]:
    """A lease that has moved on can still be acked by its old receipt."""
    ack = OrderedPops.ack

    def mutated(self: OrderedPops, receipts: Any, now_ms: int) -> Any:
        outcomes, ticket = ack(self, receipts, now_ms)
        kind = type(outcomes[0]) if outcomes else None
        return [each if kind is None or each is not kind.STALE else kind.ACKED for each in outcomes], ticket

    with patch.object(OrderedPops, "ack", mutated):
        yield


@contextmanager
def groups_share_a_receipt() -> Iterator[None]:
    """A lease is found by queue, offset and time alone, whoever's it is."""
    find = Leasing._find

    def mutated(self: Leasing, transaction: Transaction, receipt: Any) -> Any:
        found = find(self, transaction, receipt)
        for group in self._state.groups:
            if isinstance(found, NoLease):
                found = find(self, transaction, msgspec.structs.replace(receipt, group=group))
        return found

    with patch.object(Leasing, "_find", mutated):
        yield


@contextmanager
def ack_is_not_written() -> Iterator[None]:
    """An ack is answered and forgotten."""
    apply = OrderedPops.apply

    def mutated(self: OrderedPops, txn: PopTxn, now_ms: int) -> Any:
        if not txn.acks:
            return apply(self, txn, now_ms)
        with patch.object(Transaction, "commit", lambda transaction: Ticket(0)):
            return apply(self, txn, now_ms)

    with patch.object(OrderedPops, "apply", mutated):
        yield


@contextmanager
def one_delivery_too_many() -> Iterator[None]:
    """The dead letter queue gets a message one delivery late."""
    give_back = Leasing._give_back

    def mutated(self: Leasing, *args: Any, **kwargs: Any) -> str:
        options = self._options
        self._options = msgspec.structs.replace(options, max_retries=options.max_retries + 1)
        try:
            return give_back(self, *args, **kwargs)
        finally:
            self._options = options

    with patch.object(Leasing, "_give_back", mutated):
        yield


@contextmanager
def release_counts_the_attempt() -> Iterator[None]:
    """A released message comes back with the next attempt number."""
    give_back = Leasing._give_back

    def mutated(self: Leasing, transaction: Transaction, lease: Lease, index: int, group: str, topic: str, *, counted: bool) -> str:
        return give_back(self, transaction, lease, index, group, topic, counted=True)

    with patch.object(Leasing, "_give_back", mutated):
        yield


@contextmanager
def tombstone_dropped() -> Iterator[None]:
    """A cancel leaves nothing that could answer for it later."""
    with patch.object(traces, "put_cancelled", lambda *args: None):
        yield


@contextmanager
def cancelled_rows_of_a_kept_call_go_out() -> Iterator[None]:
    """The hand-over does not look which rows of a call were cancelled."""
    live_of = TimerRuns._live_of
    with patch.object(TimerRuns, "_live_of", lambda self, page, seen, holes: live_of(self, page, seen, set())):
        yield


@contextmanager
def offset_without_lease() -> Iterator[None]:
    """A pop moves the group's offset behind one message more than it leases."""
    take = Popping._take

    def mutated(self: Popping, transaction: Transaction, request: Any, source: Any, reader: GroupQueue, *args: Any) -> Any:
        found = take(self, transaction, request, source, reader, *args)
        at = transaction.progress(reader)
        if found is not None and at is not None and at.next_offset < source.next_offsets[reader.queue]:
            transaction.set_progress(reader, Progress(at.next_offset + 1, at.last_pop_ms, at.in_flight))
        return found

    with patch.object(Popping, "_take", mutated):
        yield


@contextmanager
def revive_without_ending_the_lease() -> Iterator[None]:
    """An expired message goes to the retry topic, and its old receipt goes on working."""
    end = Transaction.end

    def mutated(self: Transaction, lease: Lease, index: int, state: int) -> None:
        if state != MOVED or lease.expiry_ms > self.now_ms:
            end(self, lease, index, state)

    with patch.object(Transaction, "end", mutated):
        yield


@contextmanager
def marks_ignored() -> Iterator[None]:
    """Every call with a mark does its work."""
    with patch.object(timers_module, "find_mark", lambda *args: None), patch.object(pops_module, "find_mark", lambda *args: None):
        yield


@contextmanager
def retries_starve() -> Iterator[None]:
    """The retry topic is looked at only when there is room left."""
    sources = Popping._sources

    def mutated(self: Popping, *args: Any) -> Any:
        return iter(sorted(sources(self, *args), key=lambda source: source[0].name.startswith(RETRY_PREFIX)))

    with patch.object(Popping, "_sources", mutated):
        yield


@contextmanager
def first_queue_only_once() -> Iterator[None]:
    """Every pop starts with queue 0."""
    sources = Popping._sources

    def mutated(self: Popping, *args: Any) -> Any:
        return iter(sorted(sources(self, *args), key=lambda source: (source[2], source[1])))

    with patch.object(Popping, "_sources", mutated):
        yield


@contextmanager
def one_revive_at_a_time() -> Iterator[None]:
    """A revive handles one lease and says that there are no more."""
    revive = OrderedPops.revive

    def mutated(self: OrderedPops, now_ms: int, limit: int) -> Any:
        report, ticket = revive(self, now_ms, 1)
        return ReviveReport(report.retried, report.dead, report.parked, False), ticket

    with patch.object(OrderedPops, "revive", mutated):
        yield


@contextmanager
def repeated_answers_applied() -> Iterator[None]:
    """A repeated put stores nothing, and says that it did."""
    repeated = OrderedTimers._repeated

    def mutated(self: OrderedTimers, answer: bytes) -> Any:
        first = repeated(self, answer)
        return type(first)(WriteStatus.APPLIED, first.store_tag, first.epoch, first.first_seq, first.ticks)

    with patch.object(OrderedTimers, "_repeated", mutated):
        yield
