"""Mutants that mistake a rule: what a bound bounds, from when a time counts, what is counted, what is kept, for whom and how long.

Those made from ``lmdb`` show when the store is opened again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from rmqstore.contract import CancelOutcome, Lag, PopRequest, PopTxn, TimerHandle
from rmqstore.engine.pops.administration import Administration
from rmqstore.engine.pops.kv_queue_log import RunQueueLog
from rmqstore.engine.pops.lease import Popping
from rmqstore.engine.pops.retention import Retention
from rmqstore.engine.pops.settle import Leasing
from rmqstore.engine.pops.state import GroupQueue, Progress
from rmqstore.engine.pops.store import OrderedPops
from rmqstore.engine.pops.transaction import Transaction
from rmqstore.engine.timers.rows import TimerRuns
from rmqstore.engine.timers.store import OrderedTimers
from rmqstore.engine.timers.ticks import Congestion
from rmqstore_conformance.proving.kinds import but, edit, instead
from rmqstore_conformance.proving.planting import ANY_HISTORY, CORE_HISTORY, LMDB, Applied, Apply, Cancel, Cancelled, Pops, Timers, mutant

# ---------------------------------------------------------------- timers

_PLACE = "(found[-1].tick, found[-1].seq) if is_more else None"
large_pages_end_scans = mutant("T10", "X3.a_page_holds_a_bounded_number_of_bytes")(
    "A page of a scan that its bytes end, and not its limit, says that nothing follows.",
    edit(OrderedTimers.scan, _PLACE, _PLACE.replace("is_more", "is_more and len(found) == limit")),
)
get_sees_cancelled = mutant("T10", CORE_HISTORY)(
    "A look-up by handle gives a cancelled timer as long as others of its call and tick are pending.",
    edit(OrderedTimers.get, "kv.get(TRACES, tombstones.hole_key(tick, seq)) is not None", "False"),
)
_OUTCOMES = "done.cancel_all(places)"
_ONCE = f"CancelOutcome.UNKNOWN if place in places[:at] else outcome for at, (place, outcome) in enumerate(zip(places, {_OUTCOMES}))"
cancels_twice_in_a_call = mutant("C4", CORE_HISTORY)(
    "A handle that is twice in a call that cancels is CANCELLED and then UNKNOWN.", edit(OrderedTimers._cancel, _OUTCOMES, f"[{_ONCE}]")
)


@mutant("T2", CORE_HISTORY, at=instead(Timers, "next_tick_ms"))
def sleeps_through_puts(self: Timers, next_tick_ms: Callable[[], int | None]) -> int | None:
    """The time of the next tick is worked out once and kept until the next seal, whatever is put meanwhile."""
    if self.noted.get(self._until_ms) is None:
        self.noted[self._until_ms] = next_tick_ms()
    return self.noted[self._until_ms]  # type: ignore[no-any-return]


calls_do_not_count = mutant("T9", "T9.refusals_follow_the_formula")(
    "A put is held against the limit of its slot by what is in there already, without its own timers.",
    edit(Congestion.check, "count = added[tick] + self._count(tick)", "count = self._count(tick)"),
)
looks_back_a_week = mutant("T11", "T11.overdue_after_any_time_closed", base=LMDB)(
    "Timers that fell due more than a week before a tick are taken for done.",
    edit(OrderedTimers.due, "self._low_tick", "max(BEFORE, self._until_ms - 7 * 86_400_000)"),
)


# ---------------------------------------------------------------- pops

zero_retries_are_default = mutant("P7", CORE_HISTORY)(
    "A group that is set to no retries at all has as many as the store.",
    edit(Leasing._give_back, "own is None or own.max_retries is None", "own is None or not own.max_retries"),
)
_FIRST = "self._shared.floors.before(LEASES, EXPIRY, after_prefix(EXPIRY), 1)"
expiry_without_waits = mutant("P14", CORE_HISTORY)(
    "When the first lease ends is worked out without the leases that back off, so nothing wakes for them.",
    edit(OrderedPops.next_expiry_ms, _FIRST, f"[each for each in {_FIRST.replace('1)', '1000)')} if not each[1]]"),
)
ready_without_retries = mutant("P13", CORE_HISTORY)(
    "Whether a pop could return something is told by the topic alone, without the retry topic.",
    edit(OrderedPops.ready, "state.topics_of_group(topic, group)", "[state.topics[topic]] if topic in state.topics else []"),
)
marks_of_sends_age_early = mutant("I1", CORE_HISTORY)(
    "Marks of sends for now are kept as long as outcomes of acks, and not as long as marks.",
    edit(OrderedPops.maintain, "self._options.mark_memory_ms", "self._options.outcome_memory_ms"),
)
outcomes_age_from_ack = mutant("P5", CORE_HISTORY)(
    "What became of a lease is remembered from its ack on, so that of a long lease is forgotten before it would have expired.",
    edit(Transaction._write_leases, "max(lease.expiry_ms, self.now_ms)", "self.now_ms"),
)
expired_of_one_group = mutant("Q1", ANY_HISTORY)(
    "What retention takes is counted for one of the groups that had not popped it.",
    edit(Retention._count_expired, "expired[group_id, topic.id] = messages", "if not expired:\n    BEFORE"),
)
empty_pops_are_idle = mutant("Q3", ANY_HISTORY)(
    "A group that finds nothing when it pops counts as one that does not pop.",
    edit(Popping._register, "self._options.group_expiry_ms", "BEFORE if self._state.waiting(topic, group_id) else 0"),
)
reset_to_the_end_forgets_queues = mutant("P11", ANY_HISTORY)(
    "A reset to the next message moves the group to the end of queue 0 on each queue that has as much.",
    edit(
        Administration.reset,
        "first if offset is InitMode.MIN else end",
        "first if offset is InitMode.MIN else max(min(end, topic.next_offsets[0]), first)",
    ),
)


@mutant("P14", "P7.dropped_letters_are_gone", at=instead(Pops, "apply"))
def removed_twice_counts_twice(self: Pops, apply: Apply, txn: PopTxn, now_ms: int) -> Applied:
    """A dead letter that was dropped already is counted off once more when it is dropped again."""
    with self._lock:
        result, ticket = apply(txn, now_ms)
        asked = {self._state.groups.get(each.topic.removeprefix("%DLQ%")) for each in txn.removals}
        for place, dead in list(self._state.dead.items()):
            if not all(result.removals) and place[0] in asked:
                self._state.dead[place] = dead._replace(letters=max(dead.letters - 1, 0))
        return result, ticket


# ---------------------------------------------------------------- other stores, other clocks, damage

handles_of_any_store = mutant("C3", "C3.never_put_is_unknown")(
    "A handle of another store cancels the timer that has its numbers here.",
    instead(Timers, "_place_of")(lambda self, place_of, handle: place_of(but(handle, store_tag=self._options.store_tag))),
)
receipts_of_any_store = mutant("P5", "P5.garbage_or_forged_is_unknown")(
    "A receipt of another store ends the lease that has its numbers here.",
    edit(Leasing._check_point, "receipt.broker != self._options.broker", "False"),
)


@mutant("C4", "C4.a_repeat_stays_cancelled_within_the_memory", at=instead(Timers, "cancel"))
def traces_age_from_cancel(self: Timers, cancel: Cancel, handles: Sequence[TimerHandle], now_ms: int) -> Cancelled:
    """A cancel is remembered for some time from the call on, so that of a far timer is forgotten long before the timer would be due."""
    outcomes, ticket = cancel(handles, now_ms)
    for at, handle in enumerate(handles):
        is_cancelled = outcomes[at] is CancelOutcome.CANCELLED
        if is_cancelled and self.noted.setdefault(handle, now_ms) + self._options.cancel_memory_ms < now_ms:
            outcomes[at] = CancelOutcome.UNKNOWN
    return outcomes, ticket


leases_end_by_pop_time = mutant("K1", CORE_HISTORY, kind="pairs")(
    "A lease ends some time after its pop time, which stays ahead of a clock that was set back.",
    edit(Transaction.grant, "self.now_ms + invisible_ms", "pop_ms + invisible_ms"),
)
skips_damage = mutant("T12", "T12.a_damaged_queue_entry_is_parked_by_the_pop", base=LMDB)(
    "A pop passes over messages that cannot be read, and parks nothing.",
    edit(Popping._read_on, "transaction.park_run(source, queue, run)", ""),
)
counts_of_damaged_runs_are_trusted = mutant(
    "T12", "T12.a_run_that_went_bad_behind_a_first_pop_is_parked", "T12.a_run_that_went_bad_while_it_waited_in_its_place_is_parked"
)(
    "Whether a run holds the message that is looked for is told by its count, though it may be damaged.",
    edit(RunQueueLog.runs_from, "is_damaged(value)", "False"),
)


# ---------------------------------------------------------------- what is closed or cancelled (C1, C5, H1)

cancelled_rows_of_a_kept_call_go_out = mutant("C1", "C1.cancelled_before_its_tick_is_sealed_never_comes")(
    "The hand-over does not look which rows of a call were cancelled.",
    edit(TimerRuns._live_of, "(tick, first_seq + step) not in holes", "True"),
)
seals_in_memory_only = mutant("C5", "C5.a_sealed_tick_is_too_late_also_after_a_reopen", base=LMDB)(
    "What was closed is not written down.", edit(OrderedTimers.seal, "write.put(META, SEAL_KEY, sealed.to_bytes())", "")
)
cursors_in_memory_only = mutant("H1", "H1.closing_after_any_step", base=LMDB)(
    "What a tick hands over is written down without the cursor that says so.",
    edit(OrderedPops.apply, "transaction.write.put(META, CURSOR_KEY, txn.timer_cursor.to_bytes())", ""),
)


# ---------------------------------------------------------------- leases and runs (P1, P5, P9)

offsets_without_leases = mutant("P1", "P1.leased_messages_are_not_given_again")(
    "A pop moves the group's offset behind one message more than it leases.",
    edit(Popping._take, "taken.next_offset", "min(BEFORE + 1, source.next_offsets[reader.queue])"),
)
revived_receipts_go_on = mutant("P5", "P5.outcomes_are_true")(
    "An expired message goes to the retry topic, and its old receipt goes on working.",
    edit(Leasing._give_back, "transaction.end(lease, [index], MOVED)", "lease.expiry_ms <= transaction.now_ms or BEFORE"),
)
the_mode_is_not_fixed = mutant("P9", ANY_HISTORY, base=LMDB)(
    "A group that began to pop in order may pop otherwise, and the other way round.",
    edit(Popping._register, "registered is not None and registered.is_ordered != request.order", "False"),
)
the_whole_run_dies_with_its_head = mutant("P9", "P9.at_the_last_attempt_the_head_goes_to_the_dead_letters_and_the_rest_moves_up")(
    "Each message of a run goes to the dead letters when its own attempts are used up.", edit(Leasing._give_back, "may_die", "True")
)
each_death_makes_a_head = mutant(
    "P9",
    "P9.a_head_within_its_run_is_buried_alone_wherever_a_revive_ends",
    "P9.a_head_behind_leases_of_a_deleted_topic_is_buried_alone",
    "P9.the_rest_of_a_run_does_not_die_with_its_head_when_it_ends_later",
)(
    "What was leased behind a message that dies is the head then, and dies as well when its own lease ends.",
    edit(Leasing._spare_rest, "one._replace(is_spared=True)", "one"),
)


# ---------------------------------------------------------------- retention (Q1-Q3)

leases_do_not_pin = mutant("Q1", ANY_HISTORY, "Q2.consumed_messages_go_once_every_group_has_them", base=LMDB)(
    "What is leased goes when it is old, or when every group has popped it, acked or not.",
    edit(Retention._pinned, "running.get(reader)", "None"),
)
one_old_message_takes_all = mutant("Q1", "Q1.kept_until_older_than_the_retention")(
    "When the head of a queue is too old, all of the queue goes.",
    edit(Retention._aged, "max(aged.behind, first)", "topic.next_offsets[queue] if aged.behind > first else first"),
)
retry_topics_go_by_age = mutant("Q1", ANY_HISTORY, base=LMDB)(
    "What waits to be given again goes when it is old.", edit(Retention._wanted, "topic.name.startswith(RETRY_PREFIX)", "False")
)
without_a_group_all_is_consumed = mutant("Q2", "Q2.consumed_messages_go_once_every_group_has_them", base=LMDB)(
    "Where no group counts, nobody is waited for.", edit(Retention._consumed, "0", "topic.next_offsets[queue]")
)
one_group_is_enough = mutant("Q2", "Q2.consumed_messages_go_once_every_group_has_them", base=LMDB)(
    "What one group has consumed goes.", edit(Retention._consumed, "min", "max")
)
idle_groups_count = mutant("Q3", ANY_HISTORY, base=LMDB)(
    "A group that was registered once holds messages back for ever.", lambda options: but(options, group_expiry_ms=0)
)


@mutant("Q3", "Q3.an_idle_group_goes_on_where_it_stood", at=instead(Popping, "_register"))
def idle_groups_forget_their_position(self: Any, register: Any, transaction: Any, topic: Any, group_id: int, request: PopRequest) -> Any:
    """A group that comes back after its expiry starts like a new one."""
    known, expiry_ms = transaction.registered(group_id, topic.id), self._options.group_expiry_ms
    if known is not None and expiry_ms and transaction.now_ms - known.active_ms > expiry_ms:
        for queue in range(topic.queues):
            transaction.set_progress(GroupQueue(group_id, topic.id, queue), Progress(0, transaction.now_ms))
    return register(transaction, topic, group_id, request)


# ---------------------------------------------------------------- what is there still (P11, P14, P7)

late_groups_start_at0 = mutant("P11", "P11.a_late_group_starts_within_a_call_that_was_half_consumed")(
    "A pop begins at offset 0, and finds what of a run was reclaimed but lies there still.",
    edit(Popping._read_on, "transaction.first_kept(source.id, queue)", "0"),
)
resets_go_back_to0 = mutant("P11", "P11.late_groups_start_with_the_first_kept_message")(
    "A reset takes offset 0 for the first kept one.", edit(Administration.reset, "transaction.first_kept(topic.id, number)", "0")
)
_BEHIND = "sum(end - state.progress(group_id, known.id, at).next_offset for at, end in enumerate(known.next_offsets))"
lag_counts_what_was_reclaimed = mutant("Q1", "Q1.kept_until_older_than_the_retention")(
    "A group's lag goes by its position alone.", edit(OrderedPops.lag, "state.waiting(known, group_id)", _BEHIND)
)
resent_letters_stay = mutant("P7", ANY_HISTORY, base=LMDB)(
    "What was sent back or dropped lies among the dead letters still.",
    edit(Administration._remove_from, "transaction.write", "type(BEFORE)()"),
)
dropped_letters_are_counted = mutant("P7", "P7.dropped_letters_are_gone")(
    "What leaves the dead letters stays in the count of them.",
    edit(Administration._count_off, "transaction.count_off_dead(group_id, topic.id, offsets)", ""),
)
letters_of_a_deleted_topic_count = mutant("P14", "P14.dead_letters_of_a_topic_that_was_made_anew_are_counted_right")(
    "Every letter that goes is taken off the count of the topic that has its topic's name now.",
    edit(Transaction.count_off_dead, "at >= known.since", "True"),
)
upkeep_is_slower_than_the_load = mutant("P5", "P5.what_is_remembered_does_not_grow_with_the_load")(
    "A step of upkeep removes ten things, and says that there is nothing more.",
    instead(Pops, "maintain")(lambda self, maintain, now_ms, budget: but(maintain(now_ms, min(budget, 10)), more=False)),
)


@mutant("X3", "X3.a_call_does_no_work_for_pairs_of_other_topics_and_groups", at=instead(Pops, "lag"))
def each_count_looks_at_each_pair(self: Pops, lag: Callable[[str, str], Lag], topic: str, group: str) -> Any:
    """A count of what waits for one group in one topic looks through every topic for every group."""
    for each, other in product(self.topics(), self.groups()):
        self.noted[each.name] = other
    return lag(topic, group)


pops_of_any_size = mutant("X3", "X3.a_pop_holds_a_bounded_number_of_bytes")(
    "A pop gives as many messages as were asked for, however large they are.",
    edit(Popping.pop, "_Want(request, picker, request.max_messages)", "_Want(request, picker, request.max_messages, room=2**62)"),
)
pages_of_any_size = mutant("X3", "X3.a_page_holds_a_bounded_number_of_bytes")(
    "A page of a queue has as many messages as were asked for, however large they are.", edit(OrderedPops.read, "PAGE_BYTES", "2**62")
)
filters_go_on_to_the_end = mutant("X3", "X3.a_pop_that_passes_over_everything_lets_others_in_between")(
    "A pop whose filter passes over everything looks at all of a topic in one call.",
    edit(Popping.pop, "_Want(request, picker, request.max_messages)", "_Want(request, picker, request.max_messages, looks=2**62)"),
)
