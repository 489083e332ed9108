"""Mutants of races: each call is right by itself, and wrong when another one comes at the wrong moment (X3, P, C, I1)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

from rmqstore import MessageBatch
from rmqstore.batch import topics_in
from rmqstore.contract import (
    EMPTY_CURSOR,
    AckOutcome,
    CancelOutcome,
    Lag,
    PendingCounts,
    PopRequest,
    PopResult,
    PopTxn,
    PopTxnResult,
    Ticket,
    TimerCursor,
    TimerHandle,
    TimerReceipts,
    WriteStatus,
)
from rmqstore.engine.pops.lease import Popping
from rmqstore.engine.pops.state import GroupQueue, Progress
from rmqstore.engine.pops.transaction import Transaction
from rmqstore_conformance.proving.kinds import but, of_rows
from rmqstore_conformance.proving.planting import Pops, Timers, mutant

_Applied = tuple[PopTxnResult, Ticket]
_Popped = tuple[PopResult, Ticket]

_LEASES: Final = "X3.races_for_leases"
_TIMERS: Final = "X3.races_for_timers_and_marks"
_LETTERS: Final = "X3.races_for_dead_letters"
_DISK: Final = "X3.no_answer_before_its_sync"

# ---------------------------------------------------------------- looked at first, done later


@mutant("X3", _LEASES)
class AcksAreDecidedBeforehand(Pops):
    """An ack looks whether its lease runs, and answers by that, whatever has become of the lease when it is done."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        running = {each.receipt for each in self.leases()} if txn.only_acks else set()
        result, ticket = super().apply(txn, now_ms)
        first = [receipt.text() not in {each.text() for each in txn.acks[:at]} for at, receipt in enumerate(txn.acks)]
        acks = zip(txn.acks, result.acks, first, strict=True)
        decided = [AckOutcome.ACKED if is_first and each.text() in running else outcome for each, outcome, is_first in acks]
        return but(result, acks=tuple(decided)), ticket


@mutant("X3", _LEASES)
class AttemptsAreNotedLate(Pops):
    """A pop notes its attempt id when it has its messages, so two of one id that come together get different ones."""

    def pop(self, request: PopRequest, now_ms: int) -> _Popped:
        attempt = (request.topic, request.group, request.attempt_id)
        if request.attempt_id is None:
            return super().pop(request, now_ms)
        if attempt in self.noted:
            held = {each.receipt for each in self.leases(request.topic, request.group)}
            noted: _Popped = self.noted[attempt]
            if {each.text() for each in noted[0].messages.receipts()} <= held:
                return noted
            return super().pop(request, now_ms)
        popped = super().pop(but(request, attempt_id=None), now_ms)
        if len(popped[0].messages):
            self.noted[attempt] = popped
        return popped


@mutant("P12", _LEASES)
class TheLimitIsLookedAtBeforehand(Pops):
    """A pop works out how many leases there may be, and takes them when others may have taken theirs."""

    def pop(self, request: PopRequest, now_ms: int) -> _Popped:
        limit = self._options.max_in_flight
        held = sum(each.in_flight for each in self.offsets(request.group) if each.topic == request.topic)
        room = min(request.max_messages, limit - held)
        with self._lock:
            self._popping._options = but(self._options, max_in_flight=0 if limit and room > 0 else limit)
            return super().pop(but(request, max_messages=room) if limit and room > 0 else request, now_ms)


@mutant("I1", _TIMERS)
class MarksOfSendsAreLookedUpBeforehand(Pops):
    """A send looks for its marks before it is let in, and stores them when it is through."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        known = next((self.noted[mark] for mark in txn.marks if mark in self.noted), None)
        if known is not None:
            return PopTxnResult(WriteStatus.REPEATED, known), Ticket(known)
        result, ticket = super().apply(but(txn, marks=()), now_ms)
        self.noted.update(dict.fromkeys(txn.marks, ticket.position))
        return result, ticket


@mutant("I1", _TIMERS)
class MarksOfTimersAreLookedUpBeforehand(Timers):
    """A put looks for its marks before it is let in, and stores them when it is through."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        known: tuple[TimerReceipts, Ticket] | None = next((self.noted[mark] for mark in marks if mark in self.noted), None)
        if known is not None:
            return but(known[0], status=WriteStatus.REPEATED), known[1]
        put = super().put(batch, now_ms)
        self.noted.update(dict.fromkeys(marks, put))
        return put


@mutant("C1", _TIMERS)
class CancelsAreDecidedBeforehand(Timers):
    """A cancel looks whether its timer is open, and answers by that, though a tick may have sealed it meanwhile."""

    def cancel(self, handles: Sequence[TimerHandle], now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        is_open = [self.get(each) is not None and not self._sealed.covers(each.tick, each.seq) for each in handles]
        outcomes, ticket = super().cancel(handles, now_ms)
        decided = [CancelOutcome.CANCELLED if first else outcome for first, outcome in zip(is_open, outcomes, strict=True)]
        return decided, ticket


@mutant("P7", _LETTERS)
class LettersAreLookedUpBeforehand(Pops):
    """A removal looks whether its letter is there, and says so, though another operator may have taken it meanwhile."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        there = [bool(len(self.read(each.topic, each.queue_id, each.queue_offset, 1))) for each in txn.removals]
        result, ticket = super().apply(txn, now_ms)
        return but(result, removals=tuple(there)), ticket


# ---------------------------------------------------------------- in two steps


@mutant("P8", _LEASES)
class ABatchIsAckedOneByOne(Pops):
    """A batch of acks is as many calls as it has receipts."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        if not txn.only_acks or len(txn.acks) < 2:
            return super().apply(txn, now_ms)
        one_by_one = super().apply
        parts = [one_by_one(PopTxn(acks=[each]), now_ms) for each in txn.acks]
        return but(parts[-1][0], acks=tuple(each for part, _ in parts for each in part.acks)), parts[-1][1]


@mutant("X3", _LEASES)
class ABatchArrivesRowByRow(Pops):
    """A batch of messages is stored row by row, and others see a part of it."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        if txn.appends is None or len(txn.appends) < 2 or txn.marks or txn.timer_cursor is not None:
            return super().apply(txn, now_ms)
        for row in range(len(txn.appends) - 1):
            super().apply(but(txn, appends=of_rows(txn.appends, [row])), now_ms)
        return super().apply(but(txn, appends=of_rows(txn.appends, [len(txn.appends) - 1])), now_ms)


@mutant("X3", _LEASES)
class ATopicGoesInTwoSteps(Pops):
    """The groups of a topic go before the topic, and others see it without them."""

    def delete_topic(self, name: str) -> Ticket:
        if self.topic(name) is not None:
            for group in {each.group for each in self.subscriptions() if each.topic == name}:
                self.reset_offset(name, group, None, 0, 0)
        return super().delete_topic(name)


@mutant("P14", _LEASES)
class LagIsReadInTwoSteps(Pops):
    """What is ready is counted, and what is held is counted then."""

    def lag(self, topic: str, group: str) -> Lag:
        ready = super().lag(topic, group).ready
        return but(super().lag(topic, group), ready=ready)


@mutant("P14", _LEASES)
class CountsAreForgottenTooEarly(Pops):
    """A count is kept until a call begins that changes it, so one that is made during that call stays wrong."""

    def lag(self, topic: str, group: str) -> Lag:
        kept: Lag | None = self.noted.get((topic, group))
        if kept is None:
            kept = self.noted[topic, group] = super().lag(topic, group)
        return kept

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        self.noted.clear()
        return super().apply(txn, now_ms)

    def pop(self, request: PopRequest, now_ms: int) -> _Popped:
        self.noted.clear()
        return super().pop(request, now_ms)

    def revive(self, now_ms: int, limit: int) -> tuple[Any, Ticket]:
        self.noted.clear()
        return super().revive(now_ms, limit)

    def maintain(self, now_ms: int, budget: int) -> Any:
        self.noted.clear()
        return super().maintain(now_ms, budget)


@mutant("T10", _TIMERS)
class PendingIsCountedBesideTheLock(Timers):
    """The number of pending timers is read before a put and written behind it, so one of two puts is not counted."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        before = self.noted.get("puts", 0)
        receipts, ticket = super().put(batch, now_ms, marks)
        self.noted["puts"] = before + (len(batch) if receipts.status is WriteStatus.APPLIED else 0)
        self.noted["more"] = self.noted["puts"] - self._last_seq
        return receipts, ticket

    def pending(self, edges_ms: Sequence[int] = (), handed: TimerCursor = EMPTY_CURSOR) -> PendingCounts:
        found = super().pending(edges_ms, handed)
        return but(found, total=found.total + self.noted.get("more", 0))


# ---------------------------------------------------------------- locks and syncs


@mutant("X3", _LEASES)
class LocksAreTakenInTwoOrders(Pops):
    """A pop takes a lock of its own and then that of the engine, a count of what waits takes them the other way round."""

    @property
    def _own(self) -> Any:
        return self.noted.setdefault("lock", threading.Lock())

    def pop(self, request: PopRequest, now_ms: int) -> _Popped:
        with self._own:
            return super().pop(request, now_ms)

    def lag(self, topic: str, group: str) -> Lag:
        with self.held(), self._own:
            return super().lag(topic, group)


@mutant("X3", _DISK)
class ASyncAnswersForAnotherTicket(Pops):
    """Who comes while another one syncs waits for the end of that, and takes it for a sync of its own."""

    def sync(self, ticket: Ticket | None = None) -> None:
        leading: Any = self.noted.setdefault("leading", threading.Lock())
        if not leading.acquire(blocking=False):
            with leading:
                return
        try:
            super().sync(ticket)
        finally:
            leading.release()


class _From(Popping):
    seen: dict[GroupQueue, int]

    def pop(self, transaction: Transaction, request: PopRequest, picker: Any) -> tuple[PopResult, Ticket]:
        for reader, offset in self.seen.items():
            progress = transaction.progress(reader)
            if progress is not None and progress.next_offset > offset:
                transaction.set_progress(reader, Progress(offset, progress.last_pop_ms, progress.in_flight))
        return super().pop(transaction, request, picker)


@mutant("P1", "X3.races_for_leases", kind="concurrency")
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


@mutant("P14", "X3.races_for_leases", kind="concurrency")
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


@mutant("X3", "X3.races_for_timers_and_marks", kind="concurrency")
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


@mutant("P7", kind="concurrency")
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
