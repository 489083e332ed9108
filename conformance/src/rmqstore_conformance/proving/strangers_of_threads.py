"""Strangers that look before they take the lock, so that they are wrong only when calls of several threads meet."""

from __future__ import annotations

from typing import Any

from rmqstore.batch import topics_in
from rmqstore.contract import (
    PopRequest,
    PopResult,
    PopTxn,
    PopTxnResult,
    Ticket,
)
from rmqstore.engine.pops.lease import Popping
from rmqstore.engine.pops.offsets import GroupQueue, Progress
from rmqstore.engine.pops.transaction import Transaction
from rmqstore_conformance.proving.planting import Pops, stranger


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
