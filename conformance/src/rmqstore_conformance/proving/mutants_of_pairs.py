"""Mutants of two features that meet, and of values that are hard to keep: each is right as long as both keep apart, or values are tame."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from rmqstore.batch import MessageBatch
from rmqstore.contract import (
    AckOutcome,
    CancelOutcome,
    Change,
    ChangeOutcome,
    GroupSettings,
    InitMode,
    PopRequest,
    PopResult,
    PopTxn,
    PopTxnResult,
    Receipt,
    Reject,
    Ticket,
    TimerHandle,
    TimerReceipts,
    WriteStatus,
)
from rmqstore.engine.marks import TIMER_SIDE, find_mark
from rmqstore.errors import IllegalArgumentError
from rmqstore.message import Message, PoppedMessage
from rmqstore_conformance.proving.mutants_of_attempts import edited
from rmqstore_conformance.proving.planting import Pops, Timers, mutant

_Applied = tuple[PopTxnResult, Ticket]
_Popped = tuple[PopResult, Ticket]
_Put = tuple[TimerReceipts, Ticket]
_but = msgspec.structs.replace
_MONTH_MS = 30 * 86_400_000
_ORDERED_QID = 999
_CANCELLED = CancelOutcome.CANCELLED


def _edited_rows(batch: MessageBatch, edit: Callable[[Message], Message]) -> MessageBatch:
    return MessageBatch(messages=[edit(cast("Message", each)) for each in batch.messages])


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
class ReleasesInOrderCount(Pops):
    """A message of a run in order that is released comes back as one attempt more."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        for receipt in (each for each in txn.releases if _is_in_order(each)):
            for lease in self.leases(receipt.topic, receipt.group):
                if lease.receipt == receipt.text():
                    place = (lease.topic, lease.group, lease.message_id)
                    self.noted[place] = self.noted.get(place, 0) + 1
        return super().apply(txn, now_ms)

    def pop(self, request: PopRequest, now_ms: int) -> _Popped:
        def later(message: PoppedMessage) -> PoppedMessage:
            return _but(message, attempt=message.attempt + self.noted.get((request.topic, request.group, message.message_id), 0))

        return edited(super().pop(request, now_ms), later)


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
        result, ticket = super().apply(_but(txn, rejects=rejects), now_ms)
        return _but(result, rejects=result.rejects[: len(txn.rejects)]), ticket


@mutant("P9", "P9.a_reset_voids_a_run")
class ResetsLeaveRuns(Pops):
    """The leases of a run in order that was left by a reset are acked as if they were there."""

    def reset_offset(self, topic: str, group: str, queue: int | None, offset: int | InitMode, now_ms: int) -> Ticket:
        for lease in self.leases(topic, group):
            if queue in (None, lease.queue_id):
                self.noted[lease.receipt] = True
        return super().reset_offset(topic, group, queue, offset, now_ms)

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        result, ticket = super().apply(txn, now_ms)
        acks = [
            AckOutcome.ACKED if _is_in_order(receipt) and self.noted.pop(receipt.text(), False) else outcome
            for receipt, outcome in zip(txn.acks, result.acks, strict=False)
        ]
        return _but(result, acks=tuple(acks)), ticket


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
                return super().pop(_but(request, topic=f"{request.topic}%", attempt_id=None, order=False), now_ms)
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


@mutant("I1", "I1.a_repeat_with_other_marks_in_front")
class SendsKnowTheirFirstMarkOnly(Pops):
    """A repeat of a send for now is looked up by the first of its marks."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        return super().apply(_but(txn, marks=txn.marks[:1]), now_ms)


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
            return super().apply(_but(txn, marks=()), now_ms)
        self.noted.update(dict.fromkeys(txn.marks, True))
        return super().apply(txn, now_ms)


# ---------------------------------------------------------------- far timers, and something else (T5, C6)


@mutant("T5", "T5.times_beyond_2_53_are_kept_to_the_ms")
class TimesAreFloats(Timers):
    """A deliver time is kept as a float, so beyond 2^53 it is off by some ms."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> _Put:
        def rounded(message: Message) -> Message:
            return message if message.deliver_at_ms is None else _but(message, deliver_at_ms=int(float(message.deliver_at_ms)))

        return super().put(_edited_rows(batch, rounded), now_ms, marks)


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


def _normal(message: Message) -> Message:
    properties = {unicodedata.normalize("NFC", name): value for name, value in message.properties.items()}
    return _but(message, properties=properties)


@mutant("H2", "H2.every_family_of_values_comes_as_it_was_sent")
class NamesOfPropertiesAreComposed(Timers):
    """Names of properties of a timer are kept in their composed form, so two of them may become one."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> _Put:
        return super().put(_edited_rows(batch, _normal), now_ms, marks)


@mutant("H2", "H2.every_family_of_values_comes_as_it_was_sent")
class BodiesLoseTheirLastZeros(Timers):
    """The zeros at the end of a timer's body are cut off."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> _Put:
        return super().put(_edited_rows(batch, lambda each: _but(each, body=each.body.rstrip(b"\0") or b"\0")), now_ms, marks)


@mutant("P3", "P3.every_copy_is_whole")
class RetriesAreBornAnew(Pops):
    """A message of a retry topic says that it was made when it was first popped."""

    def pop(self, request: PopRequest, now_ms: int) -> _Popped:
        return edited(super().pop(request, now_ms), lambda each: _but(each, born_ms=each.first_pop_ms) if each.attempt > 1 else each)


@mutant("P7", "P7.a_change_does_not_take_the_reason")
class ChangesTakeReasonsAlong(Pops):
    """A lease that is lengthened after its attempt was put off keeps backing off."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        backing_off = {each.receipt: each for each in self.leases() if each.is_backing_off} if txn.changes else {}
        changes = [
            each if (old := backing_off.get(each.receipt.text())) is None else Change(each.receipt, each.invisible_ms, True, old.reason)
            for each in txn.changes
        ]
        result, ticket = super().apply(_but(txn, changes=changes), now_ms)
        assert all(each.receipt is None or each.outcome is ChangeOutcome.CHANGED for each in result.changes)
        return result, ticket
