"""Mutants whose answers rest on what is not durable yet, or on what a crash or a reopen takes away."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rmqstore.batch import MessageBatch
from rmqstore.contract import (
    AckOutcome,
    CancelOutcome,
    DueBatch,
    Engine,
    EngineOptions,
    EngineSession,
    Flush,
    PopRequest,
    PopResult,
    PopTxn,
    PopTxnResult,
    Receipt,
    Ticket,
    TimerCursor,
    TimerHandle,
    TimerReceipts,
    WriteStatus,
)
from rmqstore.engine.marks import TIMER_SIDE, find_mark
from rmqstore.engine.pops.checkpoint import Lease
from rmqstore.engine.pops.settle import Leasing, NoLease
from rmqstore.engine.pops.transaction import Transaction
from rmqstore.engine.schema import LEASE_KEY, SPACES
from rmqstore.engine.session import open_session
from rmqstore.engine.timers.ticks import Place
from rmqstore_conformance.proving.kinds import answers, at_once, but
from rmqstore_conformance.proving.planting import LMDB, Pops, Timers, Whole, mutant

# ---------------------------------------------------------------- timers


@mutant("C4", "R1.an_answer_waits_for_what_it_rests_on", kind="durability", base=LMDB)
class RepeatedCancelsAtOnce(Timers):
    """The ticket of a repeated cancel does not cover the first one."""

    def _cancel(self, places: Sequence[Place | None], now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        before = self._shared.kv.position
        outcomes, ticket = super()._cancel(places, now_ms)
        return outcomes, ticket if ticket.position > before else Ticket(self._seal_position)


@mutant("I1", "R1.an_answer_waits_for_what_it_rests_on", kind="durability", base=LMDB, at=at_once(Timers, "put"))
def repeated_puts_at_once(batch: MessageBatch, receipts: TimerReceipts) -> bool:
    """The ticket of a repeated put does not cover the first one."""
    return receipts.status is WriteStatus.REPEATED


@mutant("H3", "H3.a_batch_says_that_it_rests_on_what_is_not_durable", kind="durability", base=LMDB, at=answers(Timers, "due"))
def never_soft(found: DueBatch) -> DueBatch:
    """A batch of due timers never says that it rests on a put or a cancel that is not durable."""
    return but(found, soft=False)


@mutant("C6", "C6.what_a_crash_took_is_named_by_nothing_that_came_later", kind="durability", base=LMDB)
class HandlesByPlace(Timers):
    """A handle is looked up by tick and seq, without its epoch, so after a crash it may name another put."""

    def _place_of(self, handle: TimerHandle) -> Place | None:
        place = super()._place_of(handle)
        found = None if place is None else self._runs.locate(place[0], place[1])
        return place if found is None else (found.put.tick, found.put.seq, found.put.epoch)


@mutant("I1", "I1.marks_by_the_thousand_survive_a_reopen", kind="durability", base=LMDB)
class MarksOfThisOpen(Timers):
    """The marks of puts are looked up among those of this open, so a repeat after a reopen stores its timers again."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        is_of_before = find_mark(self._shared.kv, TIMER_SIDE, marks) is not None and not self.noted.keys() & set(marks)
        self.noted.update(dict.fromkeys(marks))
        return super().put(batch, now_ms, () if is_of_before else marks)


@mutant("R1", kind="durability", base=LMDB)
class LargePutsWaitForLess(Timers):
    """The ticket of a put of more than a thousand timers is that of the call before it."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        receipts, ticket = super().put(batch, now_ms, marks)
        return receipts, Ticket(max(ticket.position - 1, 0)) if len(batch) > 1000 else ticket


# ---------------------------------------------------------------- pops


@mutant("P5", "R1.an_answer_waits_for_what_it_rests_on", kind="durability", base=LMDB, at=at_once(Pops, "apply"))
def stale_at_once(txn: PopTxn, result: PopTxnResult) -> bool:
    """The ticket of an ack that says STALE does not cover what ended the lease."""
    return txn.only_acks and set(result.acks) == {AckOutcome.STALE}


@mutant("R1", "R1.an_answer_waits_for_what_it_rests_on", kind="durability", base=LMDB, at=at_once(Pops, "apply"))
def waits_at_once(txn: PopTxn, result: PopTxnResult) -> bool:
    """A lease that is made a wait for the next attempt is answered before it is durable."""
    return bool(txn.changes) and all(each.is_backing_off for each in txn.changes) and txn.appends is None


@mutant("P7", "R1.an_answer_waits_for_what_it_rests_on", kind="durability", base=LMDB, at=at_once(Pops, "apply"))
def letters_gone_at_once(txn: PopTxn, result: PopTxnResult) -> bool:
    """The answer that a dead letter is gone already does not wait for the removal."""
    return bool(txn.removals) and not any(result.removals)


@mutant("P11", "R1.each_answer_is_durable", kind="durability", base=LMDB, at=at_once(Pops, "pop"))
def empty_pops_register_at_once(request: PopRequest, result: PopResult) -> bool:
    """A first pop that gives nothing is answered before the group's start is durable."""
    return not len(result.messages)


@mutant("P1", "R1.an_answer_waits_for_what_it_rests_on", kind="durability", base=LMDB)
class RepeatedAttemptsAtOnce(Pops):
    """A pop that repeats an attempt is answered before the leases of the first one are durable."""

    def pop(self, request: PopRequest, now_ms: int) -> tuple[PopResult, Ticket]:
        with self._lock:
            before = self._shared.kv.position
            result, ticket = super().pop(request, now_ms)
            return result, Ticket(0) if self._shared.kv.position == before else ticket


@mutant("R1", kind="durability", base=LMDB)
class LargePopsWaitForLess(Pops):
    """The ticket of a pop of more than 32 messages is that of the call before it."""

    def pop(self, request: PopRequest, now_ms: int) -> tuple[PopResult, Ticket]:
        result, ticket = super().pop(request, now_ms)
        return result, Ticket(max(ticket.position - 1, 0)) if len(result.messages) > 32 else ticket


@mutant("H3", "H1.the_durable_cursor_is_what_is_durable", kind="durability", base=LMDB)
class CursorDurableTooEarly(Pops):
    """The cursor that would survive is said to be the one that was stored last."""

    def durable_cursor(self) -> TimerCursor:
        return self.timer_cursor()


@mutant("P11", kind="durability", base=LMDB)
class ResetsAtOnce(Pops):
    """A reset of a group is answered before it is durable."""

    def reset_offset(self, topic: str, group: str, queue: int | None, offset: Any, now_ms: int) -> Ticket:
        super().reset_offset(topic, group, queue, offset, now_ms)
        return Ticket(0)


@mutant("P7", kind="durability", base=LMDB)
class SettingsAtOnce(Pops):
    """The settings of a group are answered for before they are durable."""

    def set_group(self, name: str, settings: Any) -> Ticket:
        super().set_group(name, settings)
        return Ticket(0)


@mutant("P5", "C6.what_a_crash_took_is_named_by_nothing_that_came_later", kind="durability", base=LMDB)
class ReceiptsByPlace(Leasing):
    """A receipt is looked up without its epoch, so one of a lease that a crash took may end another one."""

    def _check_point(self, transaction: Transaction, receipt: Receipt) -> Lease | NoLease:
        found = super()._check_point(transaction, receipt)
        topic = self._state.topics.get(receipt.topic)
        group_id = self._state.groups.get(receipt.group)
        if found is not NoLease.STALE or topic is None or group_id is None or receipt.retry_flag or receipt.broker != self._options.broker:
            return found
        key = LEASE_KEY.pack(group_id, topic.id, receipt.queue_id, receipt.ck_start_offset, receipt.pop_time_ms)
        return transaction.lease(key) or found


# ---------------------------------------------------------------- sessions


@mutant("C6", "C6.what_the_power_took_names_nothing_that_comes_later", kind="durability", base=LMDB)
class EpochsNotSynced(Whole):
    """The epoch of an open becomes durable with the first call, so after a crash before that it is given again."""

    def open(self, engine: Engine, directory: Path, options: EngineOptions) -> EngineSession:
        from rmqstore_lmdb.kv import open_lmdb  # announcing an engine does not load LMDB

        kv = open_lmdb(directory, SPACES)
        vars(kv)["sync"] = lambda position=None: None
        try:
            session = open_session(kv, options)
        except BaseException:
            kv.close()
            raise
        del vars(kv)["sync"]
        return session


@mutant("R1", kind="durability", base=LMDB)
class ClosesWithoutSync(Whole):
    """Under flush = async a close lets go of the files without a last sync."""

    def open(self, engine: Engine, directory: Path, options: EngineOptions) -> EngineSession:
        session: Any = engine.open(directory, options)
        kv = session._shared.kv

        def close() -> None:
            if not kv.closed:
                kv.refuse_closed()
                kv._base.close()

        if options.flush is Flush.ASYNC:
            vars(kv)["close"] = close
        return session  # type: ignore[no-any-return]


@mutant("F1", "F1.no_room_at_a_call", kind="durability", base=LMDB)
class FullDisksLeaveCounts(Timers):
    """After a full disk the numbers of timers are those from before it, with what was refused."""

    def planted(self) -> None:
        reloads: list[Any] = self._shared._reloads
        reloads[:] = [each for each in reloads if each.__self__ is not self]


@mutant("X1", "X1.a_reader_sees_one_state_beside_its_owner", kind="durability", base=LMDB)
class RefreshesHalf(Whole):
    """A reader that is refreshed sees the queues as they are, and the numbers of timers as they were."""

    def open_for_reading(self, engine: Engine, directory: Path, options: EngineOptions) -> EngineSession:
        session: Any = engine.open_for_reading(directory, options)
        timers = session.timers()
        session._shared._reloads[:] = [each for each in session._shared._reloads if each.__self__ is not timers]
        return session  # type: ignore[no-any-return]
