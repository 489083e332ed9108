"""Mutants of two features that meet: each is right as long as both keep apart (order, leases, deletion, names, marks, time, retention)."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from rmqstore.batch import MessageBatch
from rmqstore.contract import CancelOutcome, GroupSettings, InitMode, PendingCounts, PopRequest, PopTxn, Ticket, TimerCursor
from rmqstore.contract.timers import EMPTY_CURSOR
from rmqstore.engine.pops.administration import Administration
from rmqstore.engine.pops.lease import Popping
from rmqstore.engine.pops.retention import Retention
from rmqstore.engine.pops.settle import Leasing
from rmqstore.engine.pops.store import OrderedPops
from rmqstore.engine.pops.transaction import Transaction
from rmqstore.engine.records import decode_message
from rmqstore.engine.timers.side import TimerSide
from rmqstore.engine.timers.store import OrderedTimers
from rmqstore.errors import IllegalArgumentError
from rmqstore.message import Message
from rmqstore_conformance.proving.kinds import ROWS_POPPED, ROWS_PUT, asks, but, edit, instead
from rmqstore_conformance.proving.planting import ANY_HISTORY, CORE_HISTORY, LMDB, Applied, Placed, Pop, Popped, Pops, Put, Timers, mutant

_CANCELLED = CancelOutcome.CANCELLED

pairs_mutant = functools.partial(mutant, kind="pairs")


# ---------------------------------------------------------------- in order, and something else (P9)


_GIVEN = "new.is_backing_off, new.reason = change.is_backing_off, change.reason"


_BACK = "transaction.is_ordered(reader) and self._give_back(transaction, new, 0, receipt.group, receipt.topic, counted=False)"
changes_open_a_queue_in_order = mutant("P9", ANY_HISTORY)(
    "A lease of a run in order whose end was changed no longer keeps the queue closed; its message is given once more.",
    edit(Leasing.change, _GIVEN, f"{_GIVEN}\n{_BACK}"),
)
what_is_put_off_goes_behind = mutant("P9", "P9.whatever_is_given_back_keeps_its_place")(
    "A message of a run in order that is not acked comes again behind all that is in its queue.",
    edit(
        Leasing._give_back,
        "run[offset] = Unacked(one.delivered + counted, first_pop_ms, waits=True)",
        "transaction._append(transaction.topic(topic), queue, [self._format.with_delivery(record, attempts, first_pop_ms)])",
    ),
)


_REJECT = "self._give_back(transaction, *found, receipt.group, receipt.topic, counted=True, rejected=reject.reason or 'rejected')"
_OTHER = "receipt.revive_qid == ORDERED_QID and state == LEASED"


_REST = f"for at, state in enumerate(found[0].states) if at == found[1] or at > found[1] and {_OTHER}"
rejects_take_the_rest_along = mutant("P9", "P9.a_rejected_message_goes_alone")(
    "A message of a run in order that is rejected takes what was leased behind it along to the dead letters.",
    edit(Leasing.reject, _REJECT, f"[{_REJECT.replace('*found', 'found[0], at')} {_REST}]"),
)


@mutant("P9", ANY_HISTORY, at=instead(Pops, "pop"))
def deleted_topics_keep_their_order(self: Pops, pop: Pop, request: PopRequest, now_ms: int) -> Popped:
    """A group that popped a topic in order has to go on so when the topic was deleted and made anew."""
    if self.noted.setdefault((request.topic, request.group), request.order) != request.order:
        raise IllegalArgumentError("the group pops the topic the other way, as its first pop fixed")
    return pop(request, now_ms)


# ---------------------------------------------------------------- deleted and made anew (P7, P2)

deleted_groups_keep_their_settings = mutant("P7", CORE_HISTORY)(
    "The settings of a group outlive it.",
    edit(OrderedPops.delete_group, "self._administration.set_group(transaction, name, GroupSettings())", ""),
)


@mutant("P2", CORE_HISTORY, at=instead(Pops, "delete_group"))
def deletions_go_by_the_beginning_of_a_name_too(self: Pops, delete_group: Callable[..., Ticket], name: str) -> Ticket:
    """With a group go those whose names begin with its name."""
    for other in self.groups():
        if other.startswith(name) and other != name:
            delete_group(other)
    return delete_group(name)


@mutant("P2", "P2.groups_are_told_apart_by_case", at=instead(Pops, "set_group"))
def settings_of_groups_are_folded(self: Pops, set_group: Callable[..., Ticket], name: str, settings: GroupSettings) -> Ticket:
    """What is set for a group holds for the groups whose names differ in case only."""
    for other in self.groups():
        if other != name and other.casefold() == name.casefold():
            set_group(other, settings)
    return set_group(name, settings)


# ---------------------------------------------------------------- glued names (P1, P2)


@mutant("P1", "P1.attempts_with_glued_names_are_told_apart", at=instead(Pops, "pop"))
def attempts_are_glued(self: Pops, pop: Pop, request: PopRequest, now_ms: int) -> Popped:
    """Group and attempt id are joined by a bar, so two of them may be taken for one attempt, which gets nothing."""
    if request.attempt_id is not None:
        glued, place = f"{request.group}|{request.attempt_id}", (request.group, request.attempt_id)
        if self.noted.setdefault(glued, place) != place:
            return pop(but(request, topic=f"{request.topic}%", attempt_id=None, order=False), now_ms)
    return pop(request, now_ms)


@mutant("P2", "P2.places_with_glued_names_are_told_apart", at=instead(Pops, "reset_offset"))
def places_are_glued(self: Pops, reset_offset: Callable[..., Ticket], topic: str, group: str, *where: Any) -> Ticket:
    """Topic and group are joined by nothing, so a reset of one place moves another one along."""
    for each in self.subscriptions():
        if each.topic + each.group == topic + group and each.topic != topic:
            reset_offset(each.topic, each.group, None, InitMode.MIN, where[-1])
    return reset_offset(topic, group, *where)


# ---------------------------------------------------------------- marks, and something else (I1)


_MARK = "find_mark(kv, POP_SIDE, txn.marks)"
marks_of_both_sides_are_one = mutant("I1", CORE_HISTORY)(
    "A send for now with the mark of a send for later counts as a repeat.",
    edit(OrderedPops.apply, _MARK, f"{_MARK} or (find_mark(kv, b't', txn.marks) and U64.pack(1))"),
)
sends_know_their_first_mark_only = mutant("I1", CORE_HISTORY)(
    "A repeat of a send for now is looked up by the first of its marks.", asks(Pops, "apply")(lambda txn: but(txn, marks=txn.marks[:1]))
)


@mutant("I1", "I1.a_repeat_of_what_was_cancelled", at=instead(Timers, "put"))
def cancelled_calls_forget_their_marks(self: Timers, put: Put, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> Placed:
    """A send for later is no longer known by its marks when its first timer was cancelled."""
    known = next((self.noted[mark] for mark in marks if mark in self.noted), None)
    if known is not None and self.get(known.handle(0)) is None and self.cancel([known.handle(0)], now_ms)[0] == [_CANCELLED]:
        return put(batch, now_ms)
    receipts, ticket = put(batch, now_ms, marks)
    self.noted.update(dict.fromkeys(marks, receipts))
    return receipts, ticket


_THERE = "txn.appends is None or any(each.topic in self._state.topics for each in txn.appends.messages)"
deleted_topics_take_marks_along = mutant("I1", "I1.a_repeat_for_a_topic_that_was_deleted")(
    "A send for now to a topic that was deleted since is stored once more when it is repeated.",
    edit(OrderedPops.apply, _MARK, f"{_MARK} if {_THERE} else None"),
)


# ---------------------------------------------------------------- far timers, and something else (T5, C6)

times_are_floats = mutant("T5", "T5.times_beyond_2_53_are_kept_to_the_ms")(
    "A deliver time is kept as a float, so beyond 2^53 it is off by some ms.",
    ROWS_PUT(lambda message: message if message.deliver_at_ms is None else but(message, deliver_at_ms=int(float(message.deliver_at_ms)))),
)
far_timers_have_no_keys = mutant("C6", "C6.far_timers_are_cancelled_by_key")(
    "A cancel by key does not find what is due in more than a month.",
    edit(
        TimerSide.cancel_keys,
        "self._places_of_keys(topic, keys)",
        "[[each for each in found if each[0] <= now_ms + 30 * 86_400_000] for found in BEFORE]",
    ),
)


# ---------------------------------------------------------------- values that are hard to keep (H2, P3, P7)


@mutant("H2", "H2.every_family_of_values_comes_as_it_was_sent", at=ROWS_PUT)
def names_of_properties_are_composed(message: Message) -> Message:
    """Names of properties of a timer are kept in their composed form, so two of them may become one."""
    return but(message, properties={unicodedata.normalize("NFC", name): value for name, value in message.properties.items()})


bodies_lose_their_last_zeros = mutant("H2", "H2.every_family_of_values_comes_as_it_was_sent")(
    "The zeros at the end of a timer's body are cut off.", ROWS_PUT(lambda message: but(message, body=message.body.rstrip(b"\0") or b"\0"))
)
retries_are_born_anew = mutant("P3", "P3.every_copy_is_whole")(
    "A message of a retry topic says that it was made when it was first popped.",
    ROWS_POPPED(lambda message: but(message, born_ms=message.first_pop_ms) if message.attempt > 1 else message),
)
_ALONG = "new.is_backing_off, new.reason = change.is_backing_off or lease.is_backing_off, change.reason or lease.reason"
changes_take_reasons_along = mutant("P7", CORE_HISTORY)(
    "A lease that is lengthened after its attempt was put off keeps backing off.", edit(Leasing.change, _GIVEN, _ALONG)
)


# ---------------------------------------------------------------- timers with the clock, with marks, with cancels by key

_UP_TO_NOW = "TimerCursor.of([(min(tick, self._until_ms), seq) for tick, seq in self._sealed.corners])"
seal_ends_with_the_clock = pairs_mutant("C2", ANY_HISTORY)(
    "Once the clock is set back, a timer that was sealed under the later clock can be cancelled again.",
    edit(OrderedTimers._cancel, "self._sealed", _UP_TO_NOW),
)


@pairs_mutant("I1", "I1.a_resend_after_its_time_is_still_a_repeat", at=instead(Timers, "put"))
def marks_end_with_timers(self: Timers, put: Put, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> Placed:
    """The marks of a put are forgotten with the last of its timers, so a repeat after the hand-over stores them again."""
    is_over = any(self.noted.get(mark, 2**63) <= self._forgotten.highest_tick for mark in marks)
    receipts, ticket = put(batch, now_ms, () if is_over else marks)
    self.noted.update(dict.fromkeys(marks, max(receipts.ticks, default=0)))
    return receipts, ticket


@pairs_mutant("T10")
class LatestOutlivesCancelKey(Timers):
    """The latest due time is remembered, and a cancel by key does not make it be looked for again, as the next put does."""

    def pending(self, edges_ms: Sequence[int] = (), handed: TimerCursor = EMPTY_CURSOR) -> PendingCounts:
        found = super().pending(edges_ms, handed)
        return found if found.latest_ms is None else but(found, latest_ms=max(found.latest_ms, self.noted.get(self._last_seq, 0)))

    def cancel_keys(self, topic: str, keys: Sequence[str], now_ms: int) -> tuple[list[list[CancelOutcome]], Ticket]:
        self.noted[self._last_seq] = self.pending().latest_ms or 0
        return super().cancel_keys(topic, keys, now_ms)


cancels_stay_in_slots = pairs_mutant("T9", "T9.what_is_handed_over_makes_room")(
    "A cancelled timer still counts in its slot when the next puts are held against the limit.",
    edit(OrderedTimers._cancel, "self._congestion.note(done.ticks, -1)", ""),
)
keys_cancel_by_tick = mutant("C6", "C6.outcomes_by_key_go_by_the_puts")(
    "The outcomes of a cancel by key come in the order of the ticks, which shows when some of the timers are sealed.",
    edit(OrderedTimers._places_of_keys, "sorted(places, key=itemgetter(1))", "places"),
)


# ---------------------------------------------------------------- order with everything else

waits_in_order_of_ends = pairs_mutant("P9", "P9.whatever_is_given_back_keeps_its_place")(
    "The messages of a FIFO run come again in the order in which their leases ended.",
    edit(Popping._read_back, "waiting_in(run)", "[at for at, one in run.items() if one.waits]"),
)
waits_open_the_queue = pairs_mutant("P9", "P9.whatever_is_given_back_keeps_its_place")(
    "A FIFO queue gives new messages while the only leases of its run are waits for a next attempt.",
    edit(
        Popping._take_run,
        "if progress.in_flight:\n    return None",
        "if progress.in_flight > len(self._state.backing_off.get(reader, ())):\n    return None",
    ),
)
_DELIVERED = "one._replace(delivered=one.delivered + (at == receipt.queue_offset))"
_ONE_MORE = f"transaction.fifo(reader).update({{at: {_DELIVERED} for at, one in transaction.fifo(reader).items()}})"
changes_count_in_order = pairs_mutant("P9", ANY_HISTORY)(
    "Under FIFO a change of the invisible time counts as a delivery.",
    edit(Leasing.change, "reader = lease.reader", f"BEFORE\n{_ONE_MORE}"),
)
_GIVEN_BACK = "self._give_back(transaction, found[0], at, receipt.group, receipt.topic, counted=False)"
rejects_end_runs = pairs_mutant("P7", "P9.a_rejected_message_goes_alone")(
    "Under FIFO to reject one message gives all others of its pop back.",
    edit(Leasing.reject, _REJECT, f"({_REJECT}, [{_GIVEN_BACK} for at, state in enumerate(found[0].states) if {_OTHER}])"),
)
_KEPT = "[transaction.fifo(reader).pop(at) for at, one in list(transaction.fifo(reader).items()) if not one.waits]"
reset_keeps_runs = pairs_mutant("P11", "P9.a_reset_voids_a_run")(
    "A reset leaves the messages of a FIFO run that wait in their places, so they come before the offset that was asked for.",
    edit(Administration.reset, "transaction.fifo(reader).clear()", _KEPT),
)
reset_voids_first_queue = pairs_mutant("P11", CORE_HISTORY)(
    "A reset of all queues turns the leases of queue 0 STALE alone.",
    edit(Administration.reset, "self._running(transaction, reader)", "BEFORE if number == 0 else ()"),
)
runs_that_wait_go = pairs_mutant("Q1", "Q1.un_acked_messages_of_a_run_are_pinned")(
    "Upkeep takes the un-acked messages of a FIFO run while they wait to be given again.",
    edit(Retention._pinned, "min(run)", "min((at for at, one in run.items() if not one.waits), default=wanted)"),
)
limit_forgets_waits = pairs_mutant("P12", "P12.in_flight_limit_per_group_topic_and_queue")(
    "Messages that back off do not count for the limit of leases.",
    edit(Popping._take, "self._options.max_in_flight - progress.in_flight", "BEFORE + len(self._state.backing_off.get(reader, ()))"),
)


# ---------------------------------------------------------------- deleted and made anew

deleted_gives_receipts_again = pairs_mutant("P2", "P2.what_is_made_anew_is_as_new", base=LMDB)(
    "What is deleted and made anew within a millisecond gives the receipts of before.",
    edit(Transaction.raise_pop_floor, "max(last_pops_ms, default=0)", "0"),
)
retries_outlive_topics = pairs_mutant("P11", "P2.what_is_made_anew_is_as_new")(
    "What waits in the retry topics of a deleted topic comes when the topic is made anew.",
    edit(Administration.delete_topic, "other.startswith(RETRY_PREFIX)", "False"),
)


@pairs_mutant("P13", "P2.what_is_made_anew_is_as_new")
class QueuesOutliveTopics(Pops):
    """A topic that is deleted and made anew by a message has as many queues as before."""

    def delete_topic(self, name: str) -> Ticket:
        self.noted[name] = self.queues(name)
        return super().delete_topic(name)

    def apply(self, txn: PopTxn, now_ms: int) -> Applied:
        for each in txn.appends.messages if txn.appends is not None else ():
            if queues := self.noted.pop(each.topic, 0):
                self.create_topic(each.topic, queues)
        return super().apply(txn, now_ms)


# ---------------------------------------------------------------- retention with timers and with deletion


@pairs_mutant("Q1", "T7.what_is_removed_by_age_is_never_a_pending_timer", at=instead(Retention, "_aged"))
def age_from_birth(self: Any, aged: Any, transaction: Transaction, topic: Any, queue: int, first: int) -> int:
    """The age of a message counts from its birth, so a timer of long ahead is too old when it arrives."""
    offset: int = aged(transaction, topic, queue, first)
    before_ms = transaction.now_ms - self._options.retention_ms
    for run in self._log.runs_from(topic, queue, offset) if self._options.retention_ms else ():
        records = getattr(run, "records", ())
        if not records or max((decode_message(each).born_ms or 0) for each in records) >= before_ms:
            break
        offset = run.first + len(records)
    return offset


_LEFT = "sum(end - state.progress(group_id, topic.id, at).next_offset for at, end in enumerate(topic.next_offsets))"
rest_counts_dropped = pairs_mutant("P14", "P14.the_rest_of_a_dead_letter_queue_is_exact")(
    "The rest of a pop counts letters that were dropped.", edit(Popping._rest, "state.waiting(topic, group_id, request.queue)", _LEFT)
)
