"""Strangers that look before they take the lock, so that they are wrong only when calls of several threads meet."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from rmqstore.batch import MessageBatch, topics_in
from rmqstore.contract import (
    CancelOutcome,
    PopRequest,
    PopResult,
    PopTxn,
    PopTxnResult,
    Ticket,
    TimerHandle,
    TimerReceipts,
    WriteStatus,
)
from rmqstore.engine.kv.base import WriteBatch
from rmqstore.engine.marks import POP_SIDE, TIMER_SIDE, encode_ticks, find_mark, put_marks
from rmqstore.engine.pops.lease import Popping
from rmqstore.engine.pops.offsets import GroupQueue, Progress
from rmqstore.engine.pops.queue_log import DamagedRun
from rmqstore.engine.pops.transaction import Transaction
from rmqstore.engine.schema import U64
from rmqstore.message import GRAVE_PROPERTIES, Message
from rmqstore_conformance.proving.planting import LMDB, Pops, Timers, stranger


@stranger("I1", "concurrency")
class PutMarksLookedForEarly(Timers):
    """Whether the mark of a put is stored is looked up before the lock is taken, so two puts at once may both store their timers."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        if not marks or find_mark(self._shared.kv, TIMER_SIDE, marks) is not None:
            return super().put(batch, now_ms, marks)
        with self._lock:
            receipts, _ = super().put(batch, now_ms)
            write = WriteBatch()
            put_marks(write, TIMER_SIDE, marks, encode_ticks(receipts.epoch, receipts.first_seq, receipts.ticks), now_ms)
            return receipts, self._shared.write(write)


@stranger("I1", "concurrency")
class SendMarksLookedForEarly(Pops):
    """Whether the mark of a send for now is stored is looked up before the lock is taken, so two sends at once may both store it."""

    def apply(self, txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
        if not txn.marks or find_mark(self._shared.kv, POP_SIDE, txn.marks) is not None:
            return super().apply(txn, now_ms)
        with self._lock:
            result, ticket = super().apply(msgspec.structs.replace(txn, marks=()), now_ms)
            if result.status is not WriteStatus.APPLIED:
                return result, ticket
            write = WriteBatch()
            put_marks(write, POP_SIDE, txn.marks, U64.pack(result.position), now_ms)
            return result, self._shared.write(write)


class _From(Popping):
    seen: dict[GroupQueue, int]

    def pop(self, transaction: Transaction, request: PopRequest, picker: Any) -> tuple[PopResult, Ticket]:
        for reader, offset in self.seen.items():
            progress = transaction.progress(reader)
            if progress is not None and progress.next_offset > offset:
                transaction.set_progress(reader, Progress(offset, progress.last_pop_ms, progress.in_flight))
        return super().pop(transaction, request, picker)


@stranger("P1", "concurrency")
class PopsFromWhatTheySaw(Pops):
    """A pop reads where its group stands before it takes the lock, so two at once may be given the same messages."""

    def planted(self) -> None:
        self._popping.__class__ = _From
        vars(self._popping)["seen"] = {}

    def pop(self, request: PopRequest, now_ms: int) -> tuple[PopResult, Ticket]:
        topic = self._state.topics.get(request.topic)
        group_id = self._state.groups.get(request.group)
        seen: dict[GroupQueue, int] = {}
        if topic is not None and group_id is not None and not request.order:
            readers = [GroupQueue(group_id, topic.id, queue) for queue in range(topic.queues)]
            seen = {reader: known.next_offset for reader in readers if (known := self._state.all_progress.get(reader)) is not None}
        resets = self.noted.get("resets", 0)
        with self._lock:
            vars(self._popping)["seen"] = seen if resets == self.noted.get("resets", 0) else {}
            return super().pop(request, now_ms)

    def reset_offset(self, topic: str, group: str, queue: int | None, offset: Any, now_ms: int) -> Ticket:
        with self._lock:
            self.noted["resets"] = self.noted.get("resets", 0) + 1
            return super().reset_offset(topic, group, queue, offset, now_ms)


@stranger("P14", "concurrency")
class AckCountsLost(Pops):
    """An ack counts down from the number of leases that it read before it took the lock, so of two at once one is lost."""

    def apply(self, txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
        if not txn.acks:
            return super().apply(txn, now_ms)
        seen = dict(self._state.all_progress)
        with self._lock:
            before = dict(self._state.all_progress)
            result, ticket = super().apply(txn, now_ms)
            for reader, progress in list(self._state.all_progress.items()):
                early, late = seen.get(reader), before.get(reader)
                if early is not None and late is not None and early.in_flight > late.in_flight and progress != late:
                    lost = early.in_flight - late.in_flight
                    self._state.all_progress[reader] = Progress(progress.next_offset, progress.last_pop_ms, progress.in_flight + lost)
            return result, ticket


@stranger("H4", "concurrency")
class CancelsBySealTheySaw(Timers):
    """A cancel reads what is sealed before it takes the lock, so one that meets a seal may say CANCELLED of what is on its way."""

    def cancel(self, handles: Sequence[TimerHandle], now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        seen = self._sealed
        with self._lock:
            kept, self._sealed = self._sealed, seen
            try:
                return super().cancel(handles, now_ms)
            finally:
                self._sealed = kept


@stranger("X3", "concurrency")
class TopicsMadeTwice(Pops):
    """Whether a topic exists is looked up before the lock is taken, so of two first sends at once the second makes it anew, empty."""

    def apply(self, txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
        if txn.appends is None or txn.timer_cursor is not None:
            return super().apply(txn, now_ms)
        missing = set(topics_in(txn.appends) if len(txn.appends) else ()) - self._state.topics.keys()
        with self._lock:
            for name in missing:
                self._state.topics.pop(name, None)
            return super().apply(txn, now_ms)


@stranger("P7", "concurrency")
class LettersResentTwice(Pops):
    """Whether a dead letter is still there is looked up before the lock is taken, so two who send it back at once give it back twice."""

    def _letters(self, txn: PopTxn) -> dict[tuple[str, int, int], Message]:
        found: dict[tuple[str, int, int], Message] = {}
        for each in txn.removals:
            topic = self._state.topics.get(each.topic)
            there: Any = None if topic is None else self._log.record_at(topic, each.queue_id, each.queue_offset)
            if there is not None and not isinstance(there, DamagedRun):
                found[each.topic, each.queue_id, each.queue_offset] = self._log.format.decode_message(there[0])
        return found

    def apply(self, txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
        if not any(each.resend_to for each in txn.removals):
            return super().apply(txn, now_ms)
        seen = self._letters(txn)
        with self._lock:
            result, ticket = super().apply(txn, now_ms)
            again = []
            asked: set[tuple[str, int, int]] = set()
            for removal, was_there in zip(txn.removals, result.removals, strict=True):
                place = (removal.topic, removal.queue_id, removal.queue_offset)
                if not was_there and place in seen and place not in asked and removal.message_id in (None, seen[place].message_id):
                    letter = seen[place]
                    kept = {name: value for name, value in letter.properties.items() if name not in GRAVE_PROPERTIES}
                    copy = msgspec.structs.replace(letter, topic=removal.resend_to or "", queue_id=removal.resend_queue, properties=kept)
                    again.append(copy)
                asked.add(place)
            if again:
                _, ticket = super().apply(PopTxn(appends=MessageBatch(messages=again)), now_ms)
                result = msgspec.structs.replace(result, removals=(True,) * len(result.removals))
            return result, ticket


@stranger("R1", "concurrency", LMDB)
class SyncsShareTooMuch(Pops):
    """A call that comes while another one's sync is under way is answered when that ends, though what it wrote was not part of it."""

    def sync(self, ticket: Ticket | None = None) -> None:
        leading: threading.Lock = self.noted.setdefault("leading", threading.Lock())
        if ticket is None or ticket.position <= self.durable_position:
            super().sync(ticket)
        elif leading.acquire(blocking=False):
            try:
                super().sync(ticket)
            finally:
                leading.release()
        else:
            with leading:
                self._shared.kv.get(0, b"mformat")


@stranger("P7", "concurrency")
class SettingsReadBeforeTheyAreSet(Pops):
    """Two changes of settings of two groups at once: each writes all settings as it read them before, and one is lost."""

    def set_group(self, name: str, settings: Any) -> Ticket:
        seen = dict(self._state.group_settings)
        with self._lock:
            now = dict(self._state.group_settings)
            ticket = super().set_group(name, settings)
            for other in now.keys() | seen.keys():
                if other != name and now.get(other) != seen.get(other):
                    if other in seen:
                        self._state.group_settings[other] = seen[other]
                    else:
                        self._state.group_settings.pop(other, None)
            return ticket
