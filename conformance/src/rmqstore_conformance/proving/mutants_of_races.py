"""Mutants of races: each call is right by itself, and wrong when another one comes at the wrong moment (X3, P, C, I1)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
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
    PopTxn,
    PopTxnResult,
    Ticket,
    TimerCursor,
    TimerHandle,
    TimerReceipts,
    WriteStatus,
)
from rmqstore.engine.pops.state import Progress
from rmqstore.engine.pops.store import OrderedPops
from rmqstore_conformance.proving.kinds import but, instead, of_rows
from rmqstore_conformance.proving.planting import Applied, Apply, Cancel, Cancelled, Placed, Pop, Popped, Pops, Put, Timers, mutant

_LEASES: Final = "X3.races_for_leases"
_TIMERS: Final = "X3.races_for_timers_and_marks"
_LETTERS: Final = "X3.races_for_dead_letters"
_DISK: Final = "X3.no_answer_before_its_sync"

# ---------------------------------------------------------------- looked at first, done later


@mutant("X3", _LEASES, at=instead(Pops, "apply"))
def acks_are_decided_beforehand(self: Pops, apply: Apply, txn: PopTxn, now_ms: int) -> Applied:
    """An ack looks whether its lease runs, and answers by that, whatever has become of the lease when it is done."""
    running = {each.receipt for each in self.leases()} if txn.only_acks else set()
    result, ticket = apply(txn, now_ms)
    texts = [each.text() for each in txn.acks]
    first = [text in running and text not in texts[:at] for at, text in enumerate(texts)]
    decided = [AckOutcome.ACKED if is_first else outcome for is_first, outcome in zip(first, result.acks, strict=True)]
    return but(result, acks=tuple(decided)), ticket


@mutant("X3", _LEASES, at=instead(Pops, "pop"))
def attempts_are_noted_late(self: Pops, pop: Pop, request: PopRequest, now_ms: int) -> Popped:
    """A pop notes its attempt id when it has its messages, so two of one id that come together get different ones."""
    attempt = (request.topic, request.group, request.attempt_id)
    if request.attempt_id is None:
        return pop(request, now_ms)
    if (noted := self.noted.get(attempt)) is not None:
        held = {each.receipt for each in self.leases(request.topic, request.group)}
        return noted if {each.text() for each in noted[0].messages.receipts()} <= held else pop(request, now_ms)
    popped = pop(but(request, attempt_id=None), now_ms)
    if len(popped[0].messages):
        self.noted[attempt] = popped
    return popped


@mutant("P12", _LEASES, at=instead(Pops, "pop"))
def the_limit_is_looked_at_beforehand(self: Pops, pop: Pop, request: PopRequest, now_ms: int) -> Popped:
    """A pop works out how many leases there may be, and takes them when others may have taken theirs."""
    limit = self._options.max_in_flight
    held = sum(each.in_flight for each in self.offsets(request.group) if each.topic == request.topic)
    room = min(request.max_messages, limit - held)
    with self._lock:
        self._popping._options = but(self._options, max_in_flight=0 if limit and room > 0 else limit)
        return pop(but(request, max_messages=room) if limit and room > 0 else request, now_ms)


@mutant("I1", _TIMERS, at=instead(Pops, "apply"))
def marks_of_sends_are_looked_up_beforehand(self: Pops, apply: Apply, txn: PopTxn, now_ms: int) -> Applied:
    """A send looks for its marks before it is let in, and stores them when it is through."""
    known = next((self.noted[mark] for mark in txn.marks if mark in self.noted), None)
    if known is not None:
        return PopTxnResult(WriteStatus.REPEATED, known), Ticket(known)
    result, ticket = apply(but(txn, marks=()), now_ms)
    self.noted.update(dict.fromkeys(txn.marks, ticket.position))
    return result, ticket


@mutant("I1", _TIMERS, at=instead(Timers, "put"))
def marks_of_timers_are_looked_up_beforehand(
    self: Timers, put: Put, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()
) -> Placed:
    """A put looks for its marks before it is let in, and stores them when it is through."""
    known = next((self.noted[mark] for mark in marks if mark in self.noted), None)
    if known is not None:
        return but(known[0], status=WriteStatus.REPEATED), known[1]
    answer = put(batch, now_ms)
    self.noted.update(dict.fromkeys(marks, answer))
    return answer


@mutant("C1", _TIMERS, at=instead(Timers, "cancel"))
def cancels_are_decided_beforehand(self: Timers, cancel: Cancel, handles: Sequence[TimerHandle], now_ms: int) -> Cancelled:
    """A cancel looks whether its timer is open, and answers by that, though a tick may have sealed it meanwhile."""
    is_open = [self.get(each) is not None and not self._sealed.covers(each.tick, each.seq) for each in handles]
    outcomes, ticket = cancel(handles, now_ms)
    return [CancelOutcome.CANCELLED if first else outcome for first, outcome in zip(is_open, outcomes, strict=True)], ticket


@mutant("P7", _LETTERS, at=instead(Pops, "apply"))
def letters_are_looked_up_beforehand(self: Pops, apply: Apply, txn: PopTxn, now_ms: int) -> Applied:
    """A removal looks whether its letter is there, and says so, though another operator may have taken it meanwhile."""
    there = [bool(len(self.read(each.topic, each.queue_id, each.queue_offset, 1))) for each in txn.removals]
    result, ticket = apply(txn, now_ms)
    return but(result, removals=tuple(there)), ticket


# ---------------------------------------------------------------- in two steps


@mutant("P8", _LEASES, at=instead(Pops, "apply"))
def a_batch_is_acked_one_by_one(self: Pops, apply: Apply, txn: PopTxn, now_ms: int) -> Applied:
    """A batch of acks is as many calls as it has receipts."""
    if not txn.only_acks or len(txn.acks) < 2:
        return apply(txn, now_ms)
    parts = [apply(PopTxn(acks=[each]), now_ms) for each in txn.acks]
    return but(parts[-1][0], acks=tuple(each for part, _ in parts for each in part.acks)), parts[-1][1]


@mutant("X3", _LEASES, at=instead(Pops, "apply"))
def a_batch_arrives_row_by_row(self: Pops, apply: Apply, txn: PopTxn, now_ms: int) -> Applied:
    """A batch of messages is stored row by row, and others see a part of it."""
    if txn.appends is None or len(txn.appends) < 2 or txn.marks or txn.timer_cursor is not None:
        return apply(txn, now_ms)
    return [apply(but(txn, appends=of_rows(txn.appends, [row])), now_ms) for row in range(len(txn.appends))][-1]


@mutant("X3", _LEASES, at=instead(Pops, "delete_topic"))
def a_topic_goes_in_two_steps(self: Pops, delete_topic: Callable[..., Ticket], name: str) -> Ticket:
    """The groups of a topic go before the topic, and others see it without them."""
    if self.topic(name) is not None:
        for group in {each.group for each in self.subscriptions() if each.topic == name}:
            self.reset_offset(name, group, None, 0, 0)
    return delete_topic(name)


@mutant("P14", _LEASES, at=instead(Pops, "lag"))
def lag_is_read_in_two_steps(self: Pops, lag: Callable[[str, str], Lag], topic: str, group: str) -> Lag:
    """What is ready is counted, and what is held is counted then."""
    ready = lag(topic, group).ready
    return but(lag(topic, group), ready=ready)


def _forgetting(call: str) -> Any:
    def forgotten(side: Any, *args: Any) -> Any:
        side.noted.clear()
        return getattr(OrderedPops, call)(side, *args)

    return forgotten


@mutant("P14", _LEASES)
class CountsAreForgottenTooEarly(Pops):
    """A count is kept until a call begins that changes it, so one that is made during that call stays wrong."""

    apply, pop, revive, maintain = map(_forgetting, ("apply", "pop", "revive", "maintain"))

    def lag(self, topic: str, group: str) -> Lag:
        if (kept := self.noted.get((topic, group))) is None:
            kept = self.noted[topic, group] = super().lag(topic, group)
        return kept


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

    def pop(self, request: PopRequest, now_ms: int) -> Popped:
        with self._own:
            return super().pop(request, now_ms)

    def lag(self, topic: str, group: str) -> Lag:
        with self.held(), self._own:
            return super().lag(topic, group)


@mutant("P1", _LEASES, kind="concurrency", at=instead(Pops, "pop"))
def pops_from_what_they_saw(self: Pops, pop: Pop, request: PopRequest, now_ms: int) -> Popped:
    """A pop reads where its group stands before it takes the lock, so two at once may be given the same messages."""
    seen = dict(self._state.all_progress) if not request.order else {}
    group_id = self._state.groups.get(request.group)
    with self._lock:
        for reader, early in seen.items():
            now = self._state.all_progress.get(reader)
            if reader.group_id == group_id and now is not None and now.next_offset > early.next_offset:
                self._state.all_progress[reader] = Progress(early.next_offset, now.last_pop_ms, now.in_flight)
        return pop(request, now_ms)


@mutant("P14", _LEASES, kind="concurrency", at=instead(Pops, "apply"))
def ack_counts_lost(self: Pops, apply: Apply, txn: PopTxn, now_ms: int) -> Applied:
    """An ack counts down from the number of leases that it read before it took the lock, so of two at once one is lost."""
    if not txn.acks:
        return apply(txn, now_ms)
    seen = dict(self._state.all_progress)
    with self._lock:
        before = dict(self._state.all_progress)
        answer = apply(txn, now_ms)
        for reader, progress in list(self._state.all_progress.items()):
            early, late = seen.get(reader), before.get(reader)
            if early is not None and late is not None and early.in_flight > late.in_flight and progress != late:
                lost = early.in_flight - late.in_flight
                self._state.all_progress[reader] = Progress(progress.next_offset, progress.last_pop_ms, progress.in_flight + lost)
        return answer


@mutant("X3", _TIMERS, kind="concurrency", at=instead(Pops, "apply"))
def topics_made_twice(self: Pops, apply: Apply, txn: PopTxn, now_ms: int) -> Applied:
    """Whether a topic exists is looked up before the lock is taken, so of two first sends at once the second makes it anew, empty."""
    if txn.appends is None or txn.timer_cursor is not None:
        return apply(txn, now_ms)
    missing = set(topics_in(txn.appends) if len(txn.appends) else ()) - self._state.topics.keys()
    with self._lock:
        for name in missing:
            self._state.topics.pop(name, None)
        return apply(txn, now_ms)


@mutant("P7", kind="concurrency", at=instead(Pops, "set_group"))
def settings_read_before_they_are_set(self: Pops, set_group: Callable[..., Ticket], name: str, settings: Any) -> Ticket:
    """Two changes of settings of two groups at once: each writes all settings as it read them before, and one is lost."""
    seen = dict(self._state.group_settings)
    with self._lock:
        ticket = set_group(name, settings)
        seen.pop(name, None)
        seen.update({each: own for each, own in self._state.group_settings.items() if each == name})
        self._state.group_settings.clear()
        self._state.group_settings.update(seen)
        return ticket
