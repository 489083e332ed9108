"""Strangers that mistake a rule: what a bound bounds, what a page leaves, from when a time counts, what is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from rmqstore.batch import MessageBatch
from rmqstore.contract import (
    CancelOutcome,
    DueBatch,
    PendingTimer,
    PopTxn,
    PopTxnResult,
    ReviveReport,
    ScanPage,
    Ticket,
    TimerCursor,
    TimerHandle,
    TimerReceipts,
    UpkeepReport,
)
from rmqstore.contract.timers import EMPTY_CURSOR
from rmqstore.engine.kv.base import PutMany, WriteBatch
from rmqstore.engine.pops.kv_queue_log import RunQueueLog
from rmqstore.engine.pops.lease import Popping
from rmqstore.engine.pops.queue_log import DamagedRun
from rmqstore.engine.pops.retention import Retention
from rmqstore.engine.pops.settle import Leasing
from rmqstore.engine.pops.transaction import Transaction
from rmqstore.engine.schema import CANCELLED, LEASE, LEASES, PURGE, TICK_SEQ, TRACES, U64
from rmqstore.engine.timers.ticks import Place
from rmqstore.message import Message
from rmqstore_conformance.proving.planting import LMDB, Pops, Timers, stranger
from rmqstore_conformance.proving.strangers_of_data import with_rows

# ---------------------------------------------------------------- timers


@stranger("T10", "logic")
class LargePagesEndScans(Timers):
    """A page of a scan that its bytes end, and not its limit, says that nothing follows."""

    def scan(
        self, from_ms: int, to_ms: int, after: tuple[int, int] | None = None, limit: int = 1000, handed: TimerCursor = EMPTY_CURSOR
    ) -> ScanPage:
        page = super().scan(from_ms, to_ms, after, limit, handed)
        return page if len(page.timers) >= limit else msgspec.structs.replace(page, next_after=None)


@stranger("T10", "logic")
class GetSeesCancelled(Timers):
    """A look-up by handle gives a cancelled timer as long as others of its call and tick are pending."""

    def get(self, handle: TimerHandle) -> PendingTimer | None:
        with self._lock, self._call:
            place = self._place_of(handle)
            found = None if place is None else self._runs.locate(place[0], place[1])
            return None if found is None or place is None or found.put.epoch != place[2] else self._pending_timer(found.put)


@stranger("C4", "logic")
class CancelsTwiceInACall(Timers):
    """A handle that is twice in a call that cancels is CANCELLED and then UNKNOWN."""

    def _cancel(self, places: Sequence[Place | None], now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        outcomes, ticket = super()._cancel(places, now_ms)
        seen: set[Place | None] = set()
        for at, place in enumerate(places):
            if place in seen and outcomes[at] is CancelOutcome.CANCELLED:
                outcomes[at] = CancelOutcome.UNKNOWN
            seen.add(place)
        return outcomes, ticket


@stranger("I1", "logic")
class FirstMarkCounts(Timers):
    """Of the marks of a put the first one is stored."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        return super().put(batch, now_ms, marks[:1])


@stranger("T3", "logic")
class TicksSortByTime(Timers):
    """Within a tick timers are handed over by their deliver times, and not in the order of their puts."""

    def due(self, after: TimerCursor, limit: int) -> DueBatch:
        found = super().due(after, limit)
        rows = [each for each in found.messages.messages if isinstance(each, Message)]
        width = self.precision_ms
        times = [each.deliver_at_ms for each in rows]
        if None in times or len(rows) < 2:
            return found
        order = sorted(range(len(rows)), key=lambda at: (-(-(times[at] or 0) // width), times[at] or 0))
        if order == list(range(len(rows))):
            return found
        return msgspec.structs.replace(found, messages=MessageBatch(messages=[rows[at] for at in order]))


@stranger("T2", "logic")
class SleepsThroughPuts(Timers):
    """The time of the next tick is worked out once and kept until the next seal, whatever is put meanwhile."""

    def next_tick_ms(self) -> int | None:
        if self.noted.get("next") is None:
            self.noted["next"] = super().next_tick_ms()
        found: int | None = self.noted["next"]
        return found

    def seal(self, until_ms: int) -> None:
        self.noted.clear()
        super().seal(until_ms)


@stranger("T9", "logic")
class CallsDoNotCount(Timers):
    """A put is held against the limit of its slot by what is in there already, without its own timers."""

    def planted(self) -> None:
        congestion: Any = self._congestion
        plain = congestion.check

        def check(ticks: Sequence[int]) -> None:
            plain(list(ticks[:1]) if len(set(ticks)) == 1 else ticks)

        congestion.check = check


@stranger("T11", "logic", LMDB)
class LooksBackAWeek(Timers):
    """After an open, timers that fell due more than a week before the first tick are taken for done."""

    def seal(self, until_ms: int) -> None:
        if not self.noted:
            self.noted["first"] = until_ms
            with self._lock:
                self._low_tick = max(self._low_tick, until_ms - 7 * 86_400_000)
        super().seal(until_ms)


# ---------------------------------------------------------------- pops


@stranger("P3", "logic")
class RevivesOnePage(Pops):
    """A revive that its limit cuts short does not say that more is left, so a tick gives back one page of expired leases."""

    def revive(self, now_ms: int, limit: int) -> tuple[ReviveReport, Ticket]:
        report, ticket = super().revive(now_ms, limit)
        return msgspec.structs.replace(report, more=False), ticket


class _NoZero(Leasing):
    def _give_back(self, transaction: Transaction, lease: Any, index: int, group: str, topic: str, **how: Any) -> str:
        settings = self._state.group_settings
        own = settings.get(group)
        if own is None or own.max_retries != 0:
            return super()._give_back(transaction, lease, index, group, topic, **how)
        settings[group] = msgspec.structs.replace(own, max_retries=None)
        try:
            return super()._give_back(transaction, lease, index, group, topic, **how)
        finally:
            settings[group] = own


@stranger("P7", "logic")
class ZeroRetriesAreDefault(Pops):
    """A group that is set to no retries at all has as many as the store."""

    def planted(self) -> None:
        self._leasing.__class__ = _NoZero


@stranger("P14", "logic")
class ExpiryWithoutWaits(Pops):
    """When the first lease ends is worked out without the leases that back off, so nothing wakes for them."""

    def next_expiry_ms(self) -> int | None:
        ends = [each.expiry_ms for each in self.leases() if not each.is_backing_off]
        return min(ends, default=None)


@stranger("P13", "logic")
class ReadyWithoutRetries(Pops):
    """Whether a pop could return something is told by the topic alone, without the retry topic."""

    def ready(self, topic: str, group: str, filter: str, now_ms: int) -> bool | int | None:
        found = super().ready(topic, group, filter, now_ms)
        lag = self.lag(topic, group)
        return None if found is True and not lag.ready and not self._is_ordered(topic, group) else found

    def _is_ordered(self, topic: str, group: str) -> bool:
        return any(each.is_ordered for each in self.subscriptions(group) if each.topic == topic)


@stranger("I1", "logic")
class MarksOfSendsAgeEarly(Pops):
    """Marks of sends for now are kept as long as outcomes of acks, and not as long as marks."""

    def maintain(self, now_ms: int, budget: int) -> UpkeepReport:
        with self._lock:
            kept = self._options
            self._options = msgspec.structs.replace(kept, mark_memory_ms=min(kept.mark_memory_ms, kept.outcome_memory_ms))
            try:
                return super().maintain(now_ms, budget)
            finally:
                self._options = kept


class _PurgesByAck(Transaction):
    def _write_leases(self) -> None:
        super()._write_leases()
        keep_ms = U64.pack(self.now_ms + self.options.outcome_memory_ms)
        for at, op in enumerate(self.write.ops):
            if isinstance(op, PutMany) and op.space == LEASES:
                items = [
                    (PURGE + keep_ms + key[1 + U64.size :], value)
                    if key[:1] == PURGE and key[1 + U64.size :][:1] == LEASE
                    else (key, value)
                    for key, value in op.items
                ]
                self.write.ops[at] = PutMany(op.space, sorted(items))


@stranger("P5", "logic")
class OutcomesAgeFromAck(Pops):
    """What became of a lease is remembered from its ack on, so that of a long lease is forgotten before it would have expired."""

    def _stage(self, now_ms: int) -> Transaction:
        transaction = super()._stage(now_ms)
        transaction.__class__ = _PurgesByAck
        return transaction


class _OneGroup(Retention):
    def _count_expired(self, transaction: Transaction, topic: Any, queue: int, first: int, target: int) -> Counter[tuple[int, int]]:
        found = super()._count_expired(transaction, topic, queue, first, target)
        return Counter(dict(sorted(found.items())[:1]))


@stranger("Q1", "logic")
class ExpiredOfOneGroup(Pops):
    """What retention takes is counted for one of the groups that had not popped it."""

    def planted(self) -> None:
        self._retention.__class__ = _OneGroup


class _BusyGroups(Popping):
    def _register(self, transaction: Transaction, topic: Any, group_id: int, request: Any) -> bool:
        how = transaction.registered(group_id, topic.id)
        must_wait = super()._register(transaction, topic, group_id, request)
        if how is not None and not self._state.waiting(topic, group_id):
            transaction.register(group_id, topic.id, how)
        return must_wait


@stranger("Q3", "logic")
class EmptyPopsAreIdle(Pops):
    """A group that finds nothing when it pops counts as one that does not pop."""

    def planted(self) -> None:
        self._popping.__class__ = _BusyGroups


@stranger("P11", "logic")
class ResetToTheEndForgetsQueues(Pops):
    """A reset to the next message moves the group to the end of queue 0 on each queue that has as much."""

    def reset_offset(self, topic: str, group: str, queue: int | None, offset: Any, now_ms: int) -> Ticket:
        known = self.topic(topic)
        if queue is None and known is not None and not isinstance(offset, int) and offset.value == "max":
            ticket = Ticket(0)
            for number, end in enumerate(known.max_offsets):
                ticket = super().reset_offset(topic, group, number, max(min(end, known.max_offsets[0]), known.min_offsets[number]), now_ms)
            return ticket
        return super().reset_offset(topic, group, queue, offset, now_ms)


@stranger("P14", "logic")
class RemovedTwiceCountsTwice(Pops):
    """A dead letter that was dropped already is counted off once more when it is dropped again."""

    def apply(self, txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
        with self._lock:
            result, ticket = super().apply(txn, now_ms)
            if not all(result.removals):
                for place, dead in list(self._state.dead.items()):
                    if any(self._state.groups.get(each.topic.removeprefix("%DLQ%")) == place[0] for each in txn.removals):
                        self._state.dead[place] = dead._replace(letters=max(dead.letters - 1, 0))
            return result, ticket


@stranger("H2", "logic")
class QueuesChosenOnTheWay(Pops):
    """The queue of a timer's message is chosen at the hand-over, by its key, where the topic was widened since."""

    def create_topic(self, name: str, queues: int) -> Any:
        with self._lock:
            if self.topic(name) is not None:
                self.noted[name] = queues
            return super().create_topic(name, queues)

    def apply(self, txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
        if txn.appends is not None and txn.timer_cursor is not None and self.noted:
            rows = with_rows(
                txn.appends,
                lambda each: (
                    msgspec.structs.replace(each, queue_id=sum((each.message_id or "").encode()) % self.noted[each.topic])
                    if each.topic in self.noted
                    else each
                ),
            )
            txn = msgspec.structs.replace(txn, appends=rows)
        return super().apply(txn, now_ms)


# ---------------------------------------------------------------- other stores, other clocks, damage


@stranger("C3", "logic")
class HandlesOfAnyStore(Timers):
    """A handle of another store cancels the timer that has its numbers here."""

    def _place_of(self, handle: TimerHandle) -> Place | None:
        return super()._place_of(msgspec.structs.replace(handle, store_tag=self._options.store_tag))


class _AnyBroker(Leasing):
    def _check_point(self, transaction: Transaction, receipt: Any) -> Any:
        return super()._check_point(transaction, msgspec.structs.replace(receipt, broker=self._options.broker))


@stranger("P5", "logic")
class ReceiptsOfAnyStore(Pops):
    """A receipt of another store ends the lease that has its numbers here."""

    def planted(self) -> None:
        self._leasing.__class__ = _AnyBroker


@stranger("T8", "logic")
class BatchesOfAThousand(Timers):
    """A batch of due timers holds up to a thousand, however few were asked for."""

    def due(self, after: TimerCursor, limit: int) -> DueBatch:
        return super().due(after, max(limit, 1000) if limit > 0 else limit)


@stranger("C4", "logic")
class TracesAgeFromCancel(Timers):
    """A cancel is remembered for some time from the call on, so that of a far timer is forgotten long before the timer would be due."""

    def _cancel(self, places: Sequence[Place | None], now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        outcomes, ticket = super()._cancel(places, now_ms)
        for place, outcome in zip(places, outcomes, strict=True):
            if place is not None and outcome is CancelOutcome.CANCELLED:
                self.noted.setdefault(place[:2], now_ms)
        return outcomes, ticket

    def maintain(self, now_ms: int, budget: int) -> UpkeepReport:
        with self._lock:
            over = [place for place, at_ms in self.noted.items() if at_ms + self._options.cancel_memory_ms < now_ms]
            if over:
                write = WriteBatch()
                write.delete_many(TRACES, [CANCELLED + TICK_SEQ.pack(*place) for place in over])
                self._shared.write(write)
            for place in over:
                del self.noted[place]
            return super().maintain(now_ms, budget)


class _ByPopTime(Transaction):
    def grant(self, *lease_of: Any, **how: Any) -> Any:
        lease = super().grant(*lease_of, **how)
        lease.expiry_ms = lease.place[4] + lease.invisible_ms
        return lease


@stranger("K1", "pairs")
class LeasesEndByPopTime(Pops):
    """A lease ends some time after its pop time, which stays ahead of a clock that was set back."""

    def _stage(self, now_ms: int) -> Transaction:
        transaction = super()._stage(now_ms)
        transaction.__class__ = _ByPopTime
        return transaction


class _SkippingLog(RunQueueLog):
    def runs_from(self, topic: Any, queue: int, offset: int) -> Any:
        return (run for run in super().runs_from(topic, queue, offset) if not isinstance(run, DamagedRun))


@stranger("T12", "logic", LMDB)
class SkipsDamage(Pops):
    """A pop passes over messages that cannot be read, and parks nothing."""

    def planted(self) -> None:
        self._log.__class__ = _SkippingLog
