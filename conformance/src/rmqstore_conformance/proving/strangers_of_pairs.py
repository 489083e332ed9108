"""Strangers in which two features do not know of each other: order and leases, deletion and names, marks and hand-over, time and more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rmqstore.batch import MessageBatch, topics_in
from rmqstore.contract import (
    CancelOutcome,
    InitMode,
    PendingCounts,
    PopRequest,
    PopTxn,
    PopTxnResult,
    Ticket,
    TimerCursor,
    TimerReceipts,
)
from rmqstore.contract.timers import EMPTY_CURSOR
from rmqstore.engine.kv.base import WriteBatch
from rmqstore.engine.marks import TIMER_SIDE
from rmqstore.engine.pops.administration import Administration, Deleting
from rmqstore.engine.pops.checkpoint import LEASED
from rmqstore.engine.pops.fifo import Unacked, as_delivered
from rmqstore.engine.pops.lease import Popping, _Taken
from rmqstore.engine.pops.offsets import GroupQueue, Progress
from rmqstore.engine.pops.retention import Retention
from rmqstore.engine.pops.settle import Leasing, NoLease
from rmqstore.engine.pops.transaction import Transaction
from rmqstore.engine.records import decode_message
from rmqstore.engine.schema import MARK, META
from rmqstore.engine.timers.ticks import Place
from rmqstore.message import DLQ_PREFIX
from rmqstore_conformance.proving.planting import Pops, Timers, stranger

# ---------------------------------------------------------------- timers with the clock, with marks, with cancels by key


@stranger("C2", "pairs")
class SealEndsWithTheClock(Timers):
    """Once the clock is set back, a timer that was sealed under the later clock can be cancelled again."""

    def _cancel(self, places: Sequence[Place | None], now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        kept = self._sealed
        self._sealed = TimerCursor.of([(min(tick, self._until_ms), seq) for tick, seq in kept.corners])
        try:
            return super()._cancel(places, now_ms)
        finally:
            self._sealed = kept


@stranger("I1", "pairs")
class MarksEndWithTimers(Timers):
    """The marks of a put are forgotten with the last of its timers, so a repeat after the hand-over stores them again."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        receipts, ticket = super().put(batch, now_ms, marks)
        for mark in marks:
            self.noted[mark] = max(receipts.ticks, default=0)
        return receipts, ticket

    def forget(self, upto: TimerCursor) -> None:
        super().forget(upto)
        with self._lock:
            over = [mark for mark, tick in self.noted.items() if tick <= upto.highest_tick]
            write = WriteBatch()
            write.delete_many(META, [MARK + TIMER_SIDE + mark for mark in over])
            if over:
                self._shared.write(write)
            for mark in over:
                del self.noted[mark]


@stranger("T10", "pairs")
class LatestOutlivesCancelKey(Timers):
    """The latest due time is remembered, and a cancel by key does not make it be looked for again."""

    def pending(self, edges_ms: Sequence[int] = (), handed: TimerCursor = EMPTY_CURSOR) -> PendingCounts:
        found = super().pending(edges_ms, handed)
        if found.latest_ms is not None:
            found = msgspec.structs.replace(found, latest_ms=max(found.latest_ms, self.noted.get("latest", 0)))
        return found

    def cancel_key(self, topic: str, key: str, now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        with self._lock:
            before = super().pending().latest_ms or 0
            outcomes, ticket = super().cancel_key(topic, key, now_ms)
            if CancelOutcome.CANCELLED in outcomes:
                self.noted["latest"] = max(before, self.noted.get("latest", 0))
            return outcomes, ticket

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        self.noted.pop("latest", None)
        return super().put(batch, now_ms, marks)


@stranger("T9", "pairs")
class CancelsStayInSlots(Timers):
    """A cancelled timer still counts in its slot when the next puts are held against the limit."""

    def _cancel(self, places: Sequence[Place | None], now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        outcomes, ticket = super()._cancel(places, now_ms)
        won = [
            place[0] for place, outcome in zip(places, outcomes, strict=True) if place is not None and outcome is CancelOutcome.CANCELLED
        ]
        self._congestion.note(won, 1)
        return outcomes, ticket


@stranger("C6", "logic")
class KeysCancelByTick(Timers):
    """The outcomes of a cancel by key come in the order of the ticks, which shows when some of the timers are sealed."""

    def cancel_key(self, topic: str, key: str, now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        with self._lock:
            outcomes, ticket = super().cancel_key(topic, key, now_ms)
            return sorted(outcomes, key=lambda each: each is not CancelOutcome.ALREADY_DELIVERED), ticket


# ---------------------------------------------------------------- order with everything else


@stranger("P9", "pairs")
class WaitsInOrderOfEnds(Popping):
    """The messages of a FIFO run come again in the order in which their leases ended."""

    def _read_back(
        self, transaction: Transaction, source: Any, reader: GroupQueue, run: dict[int, Unacked], wanted: int, room: int
    ) -> _Taken:
        ends = [at for at, one in run.items() if one.waits]
        if ends == sorted(ends):
            return super()._read_back(transaction, source, reader, run, wanted, room)
        taken = _Taken([], [], [], 0)
        for offset in ends[:wanted]:
            found: Any = self._log.record_at(source, reader.queue, offset)
            run[offset] = run[offset]._replace(waits=False)
            taken.offsets.append(offset)
            taken.records.append(as_delivered(found[0], run[offset], self._log.format))
            taken.store_ms.append(found[1])
        return taken


@stranger("P9", "pairs")
class WaitsOpenTheQueue(Popping):
    """A FIFO queue gives new messages while the only leases of its run are waits for a next attempt."""

    def _take_run(self, transaction: Transaction, request: PopRequest, source: Any, reader: GroupQueue, *rest: Any) -> Any:
        progress = transaction.progress_or_new(reader)
        waits = self._state.backing_off.get(reader, set())
        if progress.in_flight and waits and waits >= self._state.running.get(reader, {}).keys():
            transaction.set_progress(reader, Progress(progress.next_offset, progress.last_pop_ms, 0))
            part = super()._take_run(transaction, request, source, reader, *rest)
            now = transaction.progress_or_new(reader)
            transaction.set_progress(reader, Progress(now.next_offset, now.last_pop_ms, now.in_flight + progress.in_flight))
            return part
        return super()._take_run(transaction, request, source, reader, *rest)


@stranger("P9", "pairs")
class ChangesCountInOrder(Leasing):
    """Under FIFO a change of the invisible time counts as a delivery."""

    def change(self, transaction: Transaction, change: Any) -> Any:
        result = super().change(transaction, change)
        if result.receipt is not None:
            group_id = self._state.groups[change.receipt.group]
            topic = self._state.topics.get(change.receipt.topic)
            reader = None if topic is None else GroupQueue(group_id, topic.id, change.receipt.queue_id)
            if reader is not None and transaction.is_ordered(reader) and change.receipt.queue_offset in (run := transaction.fifo(reader)):
                one = run[change.receipt.queue_offset]
                run[change.receipt.queue_offset] = one._replace(delivered=one.delivered + 1)
        return result


@stranger("P7", "pairs")
class RejectsEndRuns(Leasing):
    """Under FIFO to reject one message gives all others of its pop back."""

    def reject(self, transaction: Transaction, reject: Any) -> Any:
        found = self._find(transaction, reject.receipt)
        outcome = super().reject(transaction, reject)
        if not isinstance(found, NoLease):
            lease, _ = found
            reader = GroupQueue(*lease.place[:3])
            if transaction.is_ordered(reader):
                for index in [index for index, state in enumerate(lease.states) if state == LEASED]:
                    self._give_back(transaction, lease, index, reject.receipt.group, reject.receipt.topic, counted=False)
        return outcome


@stranger("P11", "pairs")
class ResetKeepsRuns(Administration):
    """A reset leaves the messages of a FIFO run that wait in their places, so they come before the offset that was asked for."""

    def reset(self, transaction: Transaction, topic: Any, group: str, queues: Any, offset: int | InitMode) -> None:
        numbers = list(queues)
        readers = [GroupQueue(transaction.group_id(group), topic.id, number) for number in numbers]
        waits = {reader: {at: one for at, one in transaction.fifo(reader).items() if one.waits} for reader in readers}
        super().reset(transaction, topic, group, numbers, offset)
        for reader, run in waits.items():
            transaction.fifo(reader).update(run)


@stranger("P11", "pairs")
class ResetVoidsFirstQueue(Administration):
    """A reset of all queues turns the leases of queue 0 STALE alone."""

    def _running(self, transaction: Transaction, reader: GroupQueue) -> Any:
        return super()._running(transaction, reader) if reader.queue == 0 else iter(())


@stranger("Q1", "pairs")
class RunsThatWaitGo(Retention):
    """Upkeep takes the un-acked messages of a FIFO run while they wait to be given again."""

    def _pinned(self, transaction: Transaction, holders: Any, first: int, wanted: int) -> int:
        kept = self._state.fifo
        self._state.fifo = {reader: {at: one for at, one in run.items() if not one.waits} for reader, run in kept.items()}
        try:
            return super()._pinned(transaction, holders, first, wanted)
        finally:
            self._state.fifo = kept


@stranger("P12", "pairs")
class LimitForgetsWaits(Popping):
    """Messages that back off do not count for the limit of leases."""

    def _take(self, transaction: Transaction, request: PopRequest, source: Any, reader: GroupQueue, *rest: Any) -> Any:
        limit = self._options.max_in_flight
        waiting = sum(lease.live for key in self._state.backing_off.get(reader, ()) if (lease := transaction.lease(key)) is not None)
        if not limit or not waiting:
            return super()._take(transaction, request, source, reader, *rest)
        kept = self._options
        self._options = msgspec.structs.replace(kept, max_in_flight=limit + waiting)
        try:
            return super()._take(transaction, request, source, reader, *rest)
        finally:
            self._options = kept


# ---------------------------------------------------------------- deleted and made anew


@stranger("P2", "pairs")
class DeletedGivesReceiptsAgain(Transaction):
    """What is deleted and made anew within a millisecond gives the receipts of before."""

    def raise_pop_floor(self, last_pops_ms: Any) -> None:
        del last_pops_ms


@stranger("P11", "pairs")
class RetriesOutliveTopics(Deleting):
    """What waits in the retry topics of a deleted topic comes when the topic is made anew."""

    def delete_topic(self, transaction: Transaction, name: str) -> None:
        own = self._state.topics.get(name)
        if own is None or name.startswith(DLQ_PREFIX):
            super().delete_topic(transaction, name)
        else:
            self._delete_topics(transaction, [own])


@stranger("P13", "pairs")
class QueuesOutliveTopics(Pops):
    """A topic that is deleted and made anew by a message has as many queues as before."""

    def delete_topic(self, name: str) -> Ticket:
        with self._lock:
            known = self.topic(name)
            if known is not None:
                self.noted[name] = known.queues
            return super().delete_topic(name)

    def apply(self, txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
        with self._lock:
            if txn.appends is not None:
                for name in self.noted.keys() & set(topics_in(txn.appends) if len(txn.appends) else ()):
                    queues = self.noted.pop(name)
                    if self.topic(name) is None and not txn.group_queues:
                        self.create_topic(name, queues)
            return super().apply(txn, now_ms)


# ---------------------------------------------------------------- retention with timers and with deletion


@stranger("Q1", "pairs")
class AgeFromBirth(Retention):
    """The age of a message counts from its birth, so a timer of long ahead is too old when it arrives."""

    def _aged(self, transaction: Transaction, topic: Any, queue: int, first: int) -> int:
        offset = super()._aged(transaction, topic, queue, first)
        before_ms = transaction.now_ms - self._options.retention_ms
        if not self._options.retention_ms or before_ms <= 0:
            return offset
        for run in self._log.runs_from(topic, queue, offset):
            records = getattr(run, "records", ())
            if not records or max((decode_message(each).born_ms or 0) for each in records) >= before_ms:
                return offset
            offset = run.first + len(records)
        return offset


@stranger("P14", "pairs")
class RestCountsDropped(Popping):
    """The rest of a pop of a dead letter queue counts letters that were dropped."""

    def _rest(self, transaction: Transaction, topic: Any, group_id: int, request: PopRequest) -> int:
        rest = super()._rest(transaction, topic, group_id, request)
        known = self._state.topics.get(topic.name, topic)
        if not topic.name.startswith(DLQ_PREFIX):
            return rest
        for queue in range(known.queues):
            start = max(self._state.progress(group_id, known.id, queue).next_offset, self._state.first_kept(known.id, queue))
            rest += sum(gap.behind - max(gap.first, start) for gap in self._state.gaps.get((known.id, queue), ()) if gap.behind > start)
        return rest
