"""Mutants of two features that meet: each is right as long as both keep apart (order, leases, deletion, names, marks, time, retention)."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

from rmqstore.batch import MessageBatch, topics_in
from rmqstore.contract import (
    CancelOutcome,
    Change,
    ChangeOutcome,
    GroupSettings,
    InitMode,
    PendingCounts,
    PopRequest,
    PopResult,
    PopTxn,
    PopTxnResult,
    Receipt,
    Reject,
    Ticket,
    TimerCursor,
    TimerHandle,
    TimerReceipts,
    WriteStatus,
)
from rmqstore.contract.timers import EMPTY_CURSOR
from rmqstore.engine.marks import TIMER_SIDE, find_mark
from rmqstore.engine.pops.administration import Administration
from rmqstore.engine.pops.checkpoint import LEASED
from rmqstore.engine.pops.lease import Popping, _Taken
from rmqstore.engine.pops.retention import Retention
from rmqstore.engine.pops.settle import Leasing, NoLease
from rmqstore.engine.pops.state import GroupQueue, Progress, Unacked, as_delivered
from rmqstore.engine.pops.transaction import Transaction
from rmqstore.engine.records import decode_message
from rmqstore.engine.timers.ticks import Place
from rmqstore.errors import IllegalArgumentError
from rmqstore.message import DLQ_PREFIX, Message, PoppedMessage
from rmqstore_conformance.proving.kinds import ROWS_POPPED, ROWS_PUT, asks, but
from rmqstore_conformance.proving.planting import LMDB, Pops, Timers, mutant, with_options

_Applied = tuple[PopTxnResult, Ticket]
_Popped = tuple[PopResult, Ticket]
_Put = tuple[TimerReceipts, Ticket]
_MONTH_MS = 30 * 86_400_000
_ORDERED_QID = 999
_CANCELLED = CancelOutcome.CANCELLED


def _is_in_order(receipt: Receipt) -> bool:
    return receipt.revive_qid == _ORDERED_QID


# ---------------------------------------------------------------- in order, and something else (P9)


@mutant("P9", "P9.a_changed_lease_keeps_its_queue_closed")
class ChangesOpenAQueueInOrder(Pops):
    """A lease of a run in order whose end was changed no longer keeps the queue closed; its message is given once more."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        result, ticket = super().apply(txn, now_ms)
        for change in result.changes:
            if change.receipt is not None and _is_in_order(change.receipt):
                self.noted[change.receipt.text()] = change.receipt
        return result, ticket

    def pop(self, request: PopRequest, now_ms: int) -> _Popped:
        if request.order:
            asked = [text for text, each in self.noted.items() if (each.topic, each.group) == (request.topic, request.group)]
            super().apply(PopTxn(releases=[self.noted.pop(text) for text in asked]), now_ms)
        return super().pop(request, now_ms)


@mutant("P9", "P9.whatever_is_given_back_keeps_its_place")
class WhatIsPutOffGoesBehind(Pops):
    """A message of a run in order that is to be tried later comes again behind all that is in its queue."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        result, ticket = super().apply(txn, now_ms)
        for change, done in zip(txn.changes, result.changes, strict=False):
            if change.is_backing_off and done.receipt is not None and _is_in_order(done.receipt):
                at = done.receipt
                lying = self.read(at.topic, at.queue_id, at.queue_offset, 1).messages[0]
                again = Message(*(getattr(lying, name) for name in Message.__struct_fields__))
                super().apply(PopTxn(acks=[at], appends=MessageBatch(messages=[again])), now_ms)
        return result, ticket


@mutant("P9", "P9.a_rejected_message_goes_alone")
class RejectsTakeTheRestAlong(Pops):
    """A message of a run in order that is rejected takes what was leased behind it along to the dead letters."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        rejects = list(txn.rejects)
        for reject in txn.rejects:
            at = reject.receipt
            for lease in self.leases(at.topic, at.group) if _is_in_order(at) else ():
                behind = Receipt.parse(lease.receipt)
                if behind is not None and lease.queue_id == at.queue_id and lease.queue_offset > at.queue_offset:
                    rejects.append(Reject(behind, reject.reason))
        result, ticket = super().apply(but(txn, rejects=rejects), now_ms)
        return but(result, rejects=result.rejects[: len(txn.rejects)]), ticket


@mutant("P9", "P9.a_topic_made_anew_knows_no_run_of_the_old_one")
class DeletedTopicsKeepTheirOrder(Pops):
    """A group that popped a topic in order has to go on so when the topic was deleted and made anew."""

    def pop(self, request: PopRequest, now_ms: int) -> _Popped:
        if self.noted.setdefault((request.topic, request.group), request.order) != request.order:
            raise IllegalArgumentError("the group pops the topic the other way, as its first pop fixed")
        return super().pop(request, now_ms)

    def delete_group(self, name: str) -> Ticket:
        for place in [each for each in self.noted if each[1] == name]:
            del self.noted[place]
        return super().delete_group(name)


# ---------------------------------------------------------------- deleted and made anew (P7, P2)


@mutant("P7", "P7.a_group_made_anew_has_no_settings")
class DeletedGroupsKeepTheirSettings(Pops):
    """The settings of a group outlive it."""

    def delete_group(self, name: str) -> Ticket:
        kept = self.group_settings().get(name)
        ticket = super().delete_group(name)
        return ticket if kept is None else self.set_group(name, kept)


@mutant("P2", "P2.deletions_go_by_the_whole_name")
class DeletionsGoByTheBeginningOfANameToo(Pops):
    """With a group go those whose names begin with its name."""

    def delete_group(self, name: str) -> Ticket:
        for other in self.groups():
            if other.startswith(name) and other != name:
                super().delete_group(other)
        return super().delete_group(name)


@mutant("P2", "P2.groups_are_told_apart_by_case")
class SettingsOfGroupsAreFolded(Pops):
    """What is set for a group holds for the groups whose names differ in case only."""

    def set_group(self, name: str, settings: GroupSettings) -> Ticket:
        for other in self.groups():
            if other != name and other.casefold() == name.casefold():
                super().set_group(other, settings)
        return super().set_group(name, settings)


# ---------------------------------------------------------------- glued names (P1, P2)


@mutant("P1", "P1.attempts_with_glued_names_are_told_apart")
class AttemptsAreGlued(Pops):
    """Group and attempt id are joined by a bar, so two of them may be taken for one attempt, which gets nothing."""

    def pop(self, request: PopRequest, now_ms: int) -> _Popped:
        if request.attempt_id is not None:
            glued, place = f"{request.group}|{request.attempt_id}", (request.group, request.attempt_id)
            if self.noted.setdefault(glued, place) != place:
                return super().pop(but(request, topic=f"{request.topic}%", attempt_id=None, order=False), now_ms)
        return super().pop(request, now_ms)


@mutant("P2", "P2.places_with_glued_names_are_told_apart")
class PlacesAreGlued(Pops):
    """Topic and group are joined by nothing, so a reset of one place moves another one along."""

    def reset_offset(self, topic: str, group: str, queue: int | None, offset: int | InitMode, now_ms: int) -> Ticket:
        for each in self.subscriptions():
            if each.topic + each.group == topic + group and each.topic != topic:
                super().reset_offset(each.topic, each.group, None, InitMode.MIN, now_ms)
        return super().reset_offset(topic, group, queue, offset, now_ms)


# ---------------------------------------------------------------- marks, and something else (I1)


@mutant("I1", "I1.marks_of_both_sides_are_kept_apart")
class MarksOfBothSidesAreOne(Pops):
    """A send for now with the mark of a send for later counts as a repeat."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        if txn.marks and find_mark(self._shared.kv, TIMER_SIDE, txn.marks) is not None:
            return PopTxnResult(WriteStatus.REPEATED, 1), Ticket(0)
        return super().apply(txn, now_ms)


@mutant("I1", "I1.a_repeat_with_other_marks_in_front", at=asks(Pops, "apply"))
def sends_know_their_first_mark_only(txn: PopTxn) -> PopTxn:
    """A repeat of a send for now is looked up by the first of its marks."""
    return but(txn, marks=txn.marks[:1])


@mutant("I1", "I1.a_repeat_of_what_was_cancelled")
class CancelledCallsForgetTheirMarks(Timers):
    """A send for later is no longer known by its marks when its first timer was cancelled."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> _Put:
        known = next((self.noted[mark] for mark in marks if mark in self.noted), None)
        if known is not None and self.get(known.handle(0)) is None and super().cancel([known.handle(0)], now_ms)[0] == [_CANCELLED]:
            return super().put(batch, now_ms)
        receipts, ticket = super().put(batch, now_ms, marks)
        self.noted.update(dict.fromkeys(marks, receipts))
        return receipts, ticket


@mutant("I1", "I1.a_repeat_for_a_topic_that_was_deleted")
class DeletedTopicsTakeMarksAlong(Pops):
    """A send for now to a topic that was deleted since is stored once more when it is repeated."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        if (
            set(txn.marks) & set(self.noted)
            and txn.appends is not None
            and all(self.topic(each.topic) is None for each in txn.appends.messages)
        ):
            return super().apply(but(txn, marks=()), now_ms)
        self.noted.update(dict.fromkeys(txn.marks, True))
        return super().apply(txn, now_ms)


# ---------------------------------------------------------------- far timers, and something else (T5, C6)


@mutant("T5", "T5.times_beyond_2_53_are_kept_to_the_ms", at=ROWS_PUT)
def times_are_floats(message: Message) -> Message:
    """A deliver time is kept as a float, so beyond 2^53 it is off by some ms."""
    return message if message.deliver_at_ms is None else but(message, deliver_at_ms=int(float(message.deliver_at_ms)))


@mutant("C6", "C6.far_timers_are_cancelled_by_key")
class FarTimersHaveNoKeys(Timers):
    """A cancel by key does not find what is due in more than a month."""

    def cancel_key(self, topic: str, key: str, now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        near: list[TimerHandle] = [
            each.handle
            for each in self.scan(0, now_ms + _MONTH_MS, limit=100_000).timers
            if each.message.topic == topic and key in each.message.keys
        ]
        return super().cancel(near, now_ms)


# ---------------------------------------------------------------- values that are hard to keep (H2, P3, P7)


@mutant("H2", "H2.every_family_of_values_comes_as_it_was_sent", at=ROWS_PUT)
def names_of_properties_are_composed(message: Message) -> Message:
    """Names of properties of a timer are kept in their composed form, so two of them may become one."""
    return but(message, properties={unicodedata.normalize("NFC", name): value for name, value in message.properties.items()})


@mutant("H2", "H2.every_family_of_values_comes_as_it_was_sent", at=ROWS_PUT)
def bodies_lose_their_last_zeros(message: Message) -> Message:
    """The zeros at the end of a timer's body are cut off."""
    return but(message, body=message.body.rstrip(b"\0") or b"\0")


@mutant("P3", "P3.every_copy_is_whole", at=ROWS_POPPED)
def retries_are_born_anew(message: PoppedMessage) -> PoppedMessage:
    """A message of a retry topic says that it was made when it was first popped."""
    return but(message, born_ms=message.first_pop_ms) if message.attempt > 1 else message


@mutant("P7", "P7.a_change_does_not_take_the_reason")
class ChangesTakeReasonsAlong(Pops):
    """A lease that is lengthened after its attempt was put off keeps backing off."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        backing_off = {each.receipt: each for each in self.leases() if each.is_backing_off} if txn.changes else {}
        changes = [
            each if (old := backing_off.get(each.receipt.text())) is None else Change(each.receipt, each.invisible_ms, True, old.reason)
            for each in txn.changes
        ]
        result, ticket = super().apply(but(txn, changes=changes), now_ms)
        assert all(each.receipt is None or each.outcome is ChangeOutcome.CHANGED for each in result.changes)
        return result, ticket


# ---------------------------------------------------------------- timers with the clock, with marks, with cancels by key


@mutant("C2", kind="pairs")
class SealEndsWithTheClock(Timers):
    """Once the clock is set back, a timer that was sealed under the later clock can be cancelled again."""

    def _cancel(self, places: Sequence[Place | None], now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        kept = self._sealed
        self._sealed = TimerCursor.of([(min(tick, self._until_ms), seq) for tick, seq in kept.corners])
        try:
            return super()._cancel(places, now_ms)
        finally:
            self._sealed = kept


@mutant("I1", "I1.a_resend_after_its_time_is_still_a_repeat", kind="pairs")
class MarksEndWithTimers(Timers):
    """The marks of a put are forgotten with the last of its timers, so a repeat after the hand-over stores them again."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        is_over = any(mark in self.noted and self.noted[mark] <= self.noted.get("upto", -1) for mark in marks)
        receipts, ticket = super().put(batch, now_ms, () if is_over else marks)
        self.noted.update(dict.fromkeys(marks, max(receipts.ticks, default=0)))
        return receipts, ticket

    def forget(self, upto: TimerCursor) -> None:
        super().forget(upto)
        self.noted["upto"] = upto.highest_tick


@mutant("T10", kind="pairs")
class LatestOutlivesCancelKey(Timers):
    """The latest due time is remembered, and a cancel by key does not make it be looked for again."""

    def pending(self, edges_ms: Sequence[int] = (), handed: TimerCursor = EMPTY_CURSOR) -> PendingCounts:
        found = super().pending(edges_ms, handed)
        if found.latest_ms is not None:
            found = but(found, latest_ms=max(found.latest_ms, self.noted.get("latest", 0)))
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


@mutant("T9", "T9.what_is_handed_over_makes_room", kind="pairs")
class CancelsStayInSlots(Timers):
    """A cancelled timer still counts in its slot when the next puts are held against the limit."""

    def _cancel(self, places: Sequence[Place | None], now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        outcomes, ticket = super()._cancel(places, now_ms)
        won = [
            place[0] for place, outcome in zip(places, outcomes, strict=True) if place is not None and outcome is CancelOutcome.CANCELLED
        ]
        self._congestion.note(won, 1)
        return outcomes, ticket


@mutant("C6", "C6.outcomes_by_key_go_by_the_puts")
class KeysCancelByTick(Timers):
    """The outcomes of a cancel by key come in the order of the ticks, which shows when some of the timers are sealed."""

    def cancel_key(self, topic: str, key: str, now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        with self._lock:
            outcomes, ticket = super().cancel_key(topic, key, now_ms)
            return sorted(outcomes, key=lambda each: each is not CancelOutcome.ALREADY_DELIVERED), ticket


# ---------------------------------------------------------------- order with everything else


@mutant("P9", "P9.whatever_is_given_back_keeps_its_place", kind="pairs")
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
            taken.add(offset, as_delivered(found[0], run[offset], self._log.format), found[1])
        return taken


@mutant("P9", "P9.whatever_is_given_back_keeps_its_place", kind="pairs")
class WaitsOpenTheQueue(Popping):
    """A FIFO queue gives new messages while the only leases of its run are waits for a next attempt."""

    def _take_run(self, transaction: Transaction, want: Any, source: Any, reader: GroupQueue, *rest: Any) -> Any:
        progress = transaction.progress_or_new(reader)
        waits = self._state.backing_off.get(reader, set())
        if progress.in_flight and waits and waits >= self._state.running.get(reader, {}).keys():
            transaction.set_progress(reader, Progress(progress.next_offset, progress.last_pop_ms, 0))
            part = super()._take_run(transaction, want, source, reader, *rest)
            now = transaction.progress_or_new(reader)
            transaction.set_progress(reader, Progress(now.next_offset, now.last_pop_ms, now.in_flight + progress.in_flight))
            return part
        return super()._take_run(transaction, want, source, reader, *rest)


@mutant("P9", "P9.a_changed_lease_keeps_its_queue_closed", kind="pairs")
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


@mutant("P7", "P9.a_rejected_message_goes_alone", kind="pairs")
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


@mutant("P11", "P9.a_reset_voids_a_run", kind="pairs")
class ResetKeepsRuns(Administration):
    """A reset leaves the messages of a FIFO run that wait in their places, so they come before the offset that was asked for."""

    def reset(self, transaction: Transaction, topic: Any, group: str, queues: Any, offset: int | InitMode) -> None:
        numbers = list(queues)
        readers = [GroupQueue(transaction.group_id(group), topic.id, number) for number in numbers]
        waits = {reader: {at: one for at, one in transaction.fifo(reader).items() if one.waits} for reader in readers}
        super().reset(transaction, topic, group, numbers, offset)
        for reader, run in waits.items():
            transaction.fifo(reader).update(run)


@mutant("P11", kind="pairs")
class ResetVoidsFirstQueue(Administration):
    """A reset of all queues turns the leases of queue 0 STALE alone."""

    def _running(self, transaction: Transaction, reader: GroupQueue) -> Any:
        return super()._running(transaction, reader) if reader.queue == 0 else iter(())


@mutant("Q1", "Q1.un_acked_messages_of_a_run_are_pinned", kind="pairs")
class RunsThatWaitGo(Retention):
    """Upkeep takes the un-acked messages of a FIFO run while they wait to be given again."""

    def _pinned(self, transaction: Transaction, holders: Any, first: int, wanted: int) -> int:
        kept = self._state.fifo
        self._state.fifo = {reader: {at: one for at, one in run.items() if not one.waits} for reader, run in kept.items()}
        try:
            return super()._pinned(transaction, holders, first, wanted)
        finally:
            self._state.fifo = kept


@mutant("P12", "P12.in_flight_limit_per_group_topic_and_queue", kind="pairs")
class LimitForgetsWaits(Popping):
    """Messages that back off do not count for the limit of leases."""

    def _take(self, transaction: Transaction, want: Any, source: Any, reader: GroupQueue, *rest: Any) -> Any:
        limit = self._options.max_in_flight
        waiting = sum(lease.live for key in self._state.backing_off.get(reader, ()) if (lease := transaction.lease(key)) is not None)
        with with_options(self, max_in_flight=limit and limit + waiting):
            return super()._take(transaction, want, source, reader, *rest)


# ---------------------------------------------------------------- deleted and made anew


@mutant("P2", "P2.what_is_deleted_and_made_anew_has_receipts_of_its_own", kind="pairs", base=LMDB)
class DeletedGivesReceiptsAgain(Transaction):
    """What is deleted and made anew within a millisecond gives the receipts of before."""

    def raise_pop_floor(self, last_pops_ms: Any) -> None:
        del last_pops_ms


@mutant("P11", "P2.what_is_made_anew_is_as_new", kind="pairs")
class RetriesOutliveTopics(Administration):
    """What waits in the retry topics of a deleted topic comes when the topic is made anew."""

    def delete_topic(self, transaction: Transaction, name: str) -> None:
        own = self._state.topics.get(name)
        if own is None or name.startswith(DLQ_PREFIX):
            super().delete_topic(transaction, name)
        else:
            self._delete_topics(transaction, [own])


@mutant("P13", "P2.what_is_made_anew_is_as_new", kind="pairs")
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


@mutant("Q1", "T7.what_is_removed_by_age_is_never_a_pending_timer", kind="pairs")
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


@mutant("P14", "P14.the_rest_of_a_dead_letter_queue_is_exact", kind="pairs")
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
