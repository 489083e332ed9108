"""Mutants that mistake a rule: what a bound bounds, what a page leaves, from when a time counts, what is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rmqstore.contract import (
    AckOutcome,
    CancelOutcome,
    PendingTimer,
    PopTxn,
    PopTxnResult,
    ScanPage,
    Ticket,
    TimerCursor,
    TimerHandle,
    UpkeepReport,
)
from rmqstore.contract.timers import EMPTY_CURSOR
from rmqstore.engine.pops.kv_queue_log import RunQueueLog
from rmqstore.engine.pops.lease import Popping
from rmqstore.engine.pops.queue_log import DamagedRun
from rmqstore.engine.pops.retention import Retention
from rmqstore.engine.pops.settle import Leasing
from rmqstore.engine.pops.transaction import Transaction
from rmqstore.engine.timers.ticks import Place
from rmqstore_conformance.proving.kinds import but
from rmqstore_conformance.proving.planting import LMDB, Pops, Timers, mutant, with_options

# ---------------------------------------------------------------- timers


@mutant("T10", "X3.a_page_holds_a_bounded_number_of_bytes")
class LargePagesEndScans(Timers):
    """A page of a scan that its bytes end, and not its limit, says that nothing follows."""

    def scan(
        self, from_ms: int, to_ms: int, after: tuple[int, int] | None = None, limit: int = 1000, handed: TimerCursor = EMPTY_CURSOR
    ) -> ScanPage:
        page = super().scan(from_ms, to_ms, after, limit, handed)
        return page if len(page.timers) >= limit else but(page, next_after=None)


@mutant("T10")
class GetSeesCancelled(Timers):
    """A look-up by handle gives a cancelled timer as long as others of its call and tick are pending."""

    def get(self, handle: TimerHandle) -> PendingTimer | None:
        with self._lock, self._call:
            place = self._place_of(handle)
            found = None if place is None else self._runs.locate(place[0], place[1])
            return None if found is None or place is None or found.put.epoch != place[2] else self._pending_timer(found.put)


@mutant("C4", "C4.a_list_is_answered_handle_by_handle")
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


@mutant("T2")
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


@mutant("T9", "T9.refusals_follow_the_formula")
class CallsDoNotCount(Timers):
    """A put is held against the limit of its slot by what is in there already, without its own timers."""

    def planted(self) -> None:
        congestion: Any = self._congestion
        plain = congestion.check

        def check(ticks: Sequence[int]) -> None:
            plain(list(ticks[:1]) if len(set(ticks)) == 1 else ticks)

        congestion.check = check


@mutant("T11", "T11.overdue_after_any_time_closed", base=LMDB)
class LooksBackAWeek(Timers):
    """After an open, timers that fell due more than a week before the first tick are taken for done."""

    def seal(self, until_ms: int) -> None:
        if not self.noted:
            self.noted["first"] = until_ms
            with self._lock:
                self._low_tick = max(self._low_tick, until_ms - 7 * 86_400_000)
        super().seal(until_ms)


# ---------------------------------------------------------------- pops


@mutant("P7")
class ZeroRetriesAreDefault(Leasing):
    """A group that is set to no retries at all has as many as the store."""

    def _give_back(self, transaction: Transaction, lease: Any, index: int, group: str, topic: str, **how: Any) -> str:
        settings = self._state.group_settings
        own = settings.get(group)
        if own is None or own.max_retries != 0:
            return super()._give_back(transaction, lease, index, group, topic, **how)
        settings[group] = but(own, max_retries=None)
        try:
            return super()._give_back(transaction, lease, index, group, topic, **how)
        finally:
            settings[group] = own


@mutant("P14")
class ExpiryWithoutWaits(Pops):
    """When the first lease ends is worked out without the leases that back off, so nothing wakes for them."""

    def next_expiry_ms(self) -> int | None:
        ends = [each.expiry_ms for each in self.leases() if not each.is_backing_off]
        return min(ends, default=None)


@mutant("P13")
class ReadyWithoutRetries(Pops):
    """Whether a pop could return something is told by the topic alone, without the retry topic."""

    def ready(self, topic: str, group: str, filter: str, now_ms: int) -> bool | int | None:
        found = super().ready(topic, group, filter, now_ms)
        lag = self.lag(topic, group)
        return None if found is True and not lag.ready and not self._is_ordered(topic, group) else found

    def _is_ordered(self, topic: str, group: str) -> bool:
        return any(each.is_ordered for each in self.subscriptions(group) if each.topic == topic)


@mutant("I1")
class MarksOfSendsAgeEarly(Pops):
    """Marks of sends for now are kept as long as outcomes of acks, and not as long as marks."""

    def maintain(self, now_ms: int, budget: int) -> UpkeepReport:
        options = self._options
        with self._lock, with_options(self, mark_memory_ms=min(options.mark_memory_ms, options.outcome_memory_ms)):
            return super().maintain(now_ms, budget)


@mutant("P5")
class OutcomesAgeFromAck(Pops):
    """What became of a lease is remembered from its ack on, so that of a long lease is forgotten before it would have expired."""

    def apply(self, txn: PopTxn, now_ms: int) -> tuple[PopTxnResult, Ticket]:
        result, ticket = super().apply(txn, now_ms)
        acks = list(result.acks)
        for at, receipt in enumerate(txn.acks):
            is_acked = acks[at] in (AckOutcome.ACKED, AckOutcome.ALREADY_ACKED)
            if is_acked and self.noted.setdefault(receipt, now_ms) + self._options.outcome_memory_ms < now_ms:
                acks[at] = AckOutcome.UNKNOWN
        return but(result, acks=tuple(acks)), ticket


@mutant("Q1")
class ExpiredOfOneGroup(Retention):
    """What retention takes is counted for one of the groups that had not popped it."""

    def _count_expired(self, transaction: Transaction, topic: Any, queue: int, first: int, target: int) -> Counter[tuple[int, int]]:
        found = super()._count_expired(transaction, topic, queue, first, target)
        return Counter(dict(sorted(found.items())[:1]))


@mutant("Q3")
class EmptyPopsAreIdle(Popping):
    """A group that finds nothing when it pops counts as one that does not pop."""

    def _register(self, transaction: Transaction, topic: Any, group_id: int, request: Any) -> bool:
        how = transaction.registered(group_id, topic.id)
        must_wait = super()._register(transaction, topic, group_id, request)
        if how is not None and not self._state.waiting(topic, group_id):
            transaction.register(group_id, topic.id, how)
        return must_wait


@mutant("P11")
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


@mutant("P14", "P7.dropped_letters_are_gone")
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


# ---------------------------------------------------------------- other stores, other clocks, damage


@mutant("C3", "C3.never_put_is_unknown")
class HandlesOfAnyStore(Timers):
    """A handle of another store cancels the timer that has its numbers here."""

    def _place_of(self, handle: TimerHandle) -> Place | None:
        return super()._place_of(but(handle, store_tag=self._options.store_tag))


@mutant("P5", "P5.garbage_or_forged_is_unknown")
class ReceiptsOfAnyStore(Leasing):
    """A receipt of another store ends the lease that has its numbers here."""

    def _check_point(self, transaction: Transaction, receipt: Any) -> Any:
        return super()._check_point(transaction, but(receipt, broker=self._options.broker))


@mutant("C4", "C4.a_repeat_stays_cancelled_within_the_memory")
class TracesAgeFromCancel(Timers):
    """A cancel is remembered for some time from the call on, so that of a far timer is forgotten long before the timer would be due."""

    def cancel(self, handles: Sequence[TimerHandle], now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        outcomes, ticket = super().cancel(handles, now_ms)
        for at, handle in enumerate(handles):
            is_cancelled = outcomes[at] is CancelOutcome.CANCELLED
            if is_cancelled and self.noted.setdefault(handle, now_ms) + self._options.cancel_memory_ms < now_ms:
                outcomes[at] = CancelOutcome.UNKNOWN
        return outcomes, ticket


@mutant("K1", kind="pairs")
class LeasesEndByPopTime(Transaction):
    """A lease ends some time after its pop time, which stays ahead of a clock that was set back."""

    def grant(self, *lease_of: Any, **how: Any) -> Any:
        lease = super().grant(*lease_of, **how)
        lease.expiry_ms = lease.place[4] + lease.invisible_ms
        return lease


@mutant("T12", "T12.a_damaged_queue_entry_is_parked_by_the_pop", base=LMDB)
class SkipsDamage(RunQueueLog):
    """A pop passes over messages that cannot be read, and parks nothing."""

    def runs_from(self, topic: Any, queue: int, offset: int) -> Any:
        return (run for run in super().runs_from(topic, queue, offset) if not isinstance(run, DamagedRun))
