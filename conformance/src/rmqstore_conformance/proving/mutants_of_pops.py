"""Mutants of the pops, and of what an engine declares (P, K1, I1, F4, Q, S1).

First of leases, receipts and their outcomes, of attempts, dead letters and pops in order, then of filters, offsets, limits and retention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rmqstore.contract import (
    AckOutcome,
    Change,
    ChangeResult,
    InitMode,
    PopRequest,
    PopTxn,
    PopTxnResult,
    Receipt,
    Reclaim,
    Support,
    Ticket,
    WriteStatus,
)
from rmqstore.engine.pops.administration import Administration
from rmqstore.engine.pops.lease import Popping
from rmqstore.engine.pops.settle import Leasing
from rmqstore.engine.pops.store import OrderedPops
from rmqstore.engine.shared import Call
from rmqstore.errors import UnsupportedOperationError
from rmqstore.message import PROPERTY_ORIGIN_TOPIC, PoppedMessage, retry_topic
from rmqstore_conformance.proving.kinds import ROWS_POPPED, answers, asks, but, by_the_latest_clock, edit, instead
from rmqstore_conformance.proving.planting import ANY_HISTORY, CORE_HISTORY, Applied, Apply, Pop, Popped, Pops, mutant

_ACKED, _AGAIN, _STALE, _UNKNOWN = AckOutcome.ACKED, AckOutcome.ALREADY_ACKED, AckOutcome.STALE, AckOutcome.UNKNOWN


def _saying(result: PopTxnResult, old: AckOutcome, new: AckOutcome) -> PopTxnResult:
    """Return an answer with one outcome of acks in place of another."""
    return but(result, acks=tuple(new if each is old else each for each in result.acks))


# ---------------------------------------------------------------- interrupts (F4)


def _running(side: Any, topic: str | None = None, group: str | None = None) -> list[Receipt]:
    """Return the receipts of running leases."""
    return [found for each in side.leases(topic, group) if (found := Receipt.parse(each.receipt)) is not None]


def _place(receipt: Receipt) -> tuple[str, int, int]:
    return receipt.topic, receipt.queue_id, receipt.queue_offset


memory_is_trusted_after_an_interrupt = mutant("F4", "F4.an_interrupted_call_happened_or_did_not")(
    "An interrupted call is not noticed: what memory took over of it stays, and what it did not take over is missing.",
    edit(Call.__exit__, "kind is None or issubclass(kind, RmqstoreError)", "True"),
)


# ---------------------------------------------------------------- leases (P1, P2, P3, K1)


@mutant("P1", "P1.leased_messages_are_not_given_again", at=instead(Pops, "pop"))
def leased_is_given_again(self: Pops, pop: Pop, request: PopRequest, now_ms: int) -> Popped:
    """A pop that finds nothing takes what others of its group hold."""
    result, ticket = pop(request, now_ms)
    if len(result.messages) or request.order or not (held := _running(self, request.topic, request.group)):
        return result, ticket
    self.release(held, now_ms)
    return pop(request, now_ms)


leases_end_early = mutant("P1", "P1.leased_messages_are_not_given_again")(
    "A lease ends one ms before its time.", asks(Pops, "revive")(lambda now_ms: now_ms + 1)
)
attempts_have_no_ids = mutant("P1", "P1.a_repeated_attempt_gets_the_same_leases")(
    "A pop that is repeated with its attempt id takes new messages.", asks(Pops, "pop")(lambda request: but(request, attempt_id=None))
)
attempts_end_with_their_leases = mutant("P1", "P1.a_repeated_attempt_gets_nothing_new_once_all_of_it_is_acked")(
    "An attempt id of which all is acked is taken for a new one.", edit(Popping.pop, "again is not None", "again")
)


@mutant("P2", "P2.groups_do_not_disturb_each_other", at=instead(Pops, "apply"))
def an_ack_ends_the_leases_of_all(self: Pops, apply: Apply, txn: PopTxn, now_ms: int) -> Applied:
    """An ack ends the leases of all groups on the message."""
    answer = apply(txn, now_ms)
    places = set(map(_place, txn.acks))
    if others := [each for each in _running(self) if _place(each) in places]:
        apply(PopTxn(acks=others), now_ms)
    return answer


@mutant("P2", "P2.groups_do_not_disturb_each_other", at=instead(Pops, "pop"))
def groups_share_messages(self: Pops, pop: Pop, request: PopRequest, now_ms: int) -> Popped:
    """What one group holds, no other group gets."""
    taken = {_place(each) for each in _running(self, request.topic) if each.group != request.group}
    result, ticket = pop(request, now_ms)
    if both := [each for each in result.messages.receipts() if _place(each) in taken]:
        self.ack(both, now_ms)
        return pop(request, now_ms)
    return result, ticket


leases_never_end = mutant("P3", "P3.an_expired_lease_comes_back_through_the_retry_topic", "P7.after_the_last_retry_the_dead_letter_queue")(
    "A lease whose time has ended goes on until it is acked.", asks(Pops, "revive")(lambda now_ms: 0)
)
leases_end_late = mutant("P3", "P3.an_expired_lease_comes_back_through_the_retry_topic")(
    "A lease ends one ms behind its time.", asks(Pops, "revive")(lambda now_ms: now_ms - 1)
)


@mutant("P3", "P3.an_expired_lease_comes_back_through_the_retry_topic", at=instead(Pops, "revive"))
def a_long_lease_holds_back_others(self: Pops, revive: Any, now_ms: int, limit: int) -> Any:
    """Leases end in the order in which they were given, so that a long one keeps shorter ones from ending."""
    oldest = min(self.leases(), key=lambda lease: lease.pop_time_ms, default=None)
    return revive(now_ms if oldest is None or oldest.expiry_ms <= now_ms else 0, limit)


@mutant(
    "P3",
    "P3.all_of_many_expired_leases_come_back_in_one_tick",
    "P3.an_expired_lease_comes_back_through_the_retry_topic",
    at=instead(Pops, "revive"),
)
def one_revive_a_tick(self: Any, revive: Any, now_ms: int, limit: int) -> Any:
    """A revive gives back one message, and says that there are no more."""
    report, ticket = revive(now_ms, 1)
    return but(report, more=False), ticket


nobody_is_woken_for_a_lease = mutant("P3", CORE_HISTORY)(
    "The time at which the first lease ends is never told, so a service that sleeps until then sleeps on.",
    edit(OrderedPops.next_expiry_ms, "U64.unpack_from(first[0][0], 1)[0] if first else None", "None"),
)
leases_never_turn_back = mutant("K1", CORE_HISTORY)(
    "A lease ends by the latest time that was ever seen, so after a step back it ends at once.", by_the_latest_clock(Pops, "revive")
)


# ---------------------------------------------------------------- acks and outcomes (P4, P5, P8)

acks_are_not_written = mutant("P4", "P4.acked_is_final", "P1.a_repeated_attempt_gets_the_same_leases")(
    "An ack of a running lease is answered, and forgotten.",
    edit(OrderedPops.apply, "leasing.ack(transaction, txn.acks)", "leasing.ack(self._begin(now_ms), txn.acks)"),
)
stale_receipts_say_acked = mutant("P5", "P5.outcomes_are_true")(
    "A receipt of a lease that is gone is answered ACKED.", answers(Pops, "apply")(lambda result: _saying(result, _STALE, _ACKED))
)
forged_receipts_say_acked = mutant("P5", "P5.garbage_or_forged_is_unknown")(
    "A receipt that names no lease is answered ACKED.", answers(Pops, "apply")(lambda result: _saying(result, _UNKNOWN, _ACKED))
)


@mutant("P5", "P5.garbage_or_forged_is_unknown", at=instead(Pops, "apply"))
def receipts_are_found_by_place(self: Pops, apply: Apply, txn: PopTxn, now_ms: int) -> Applied:
    """A receipt ends the lease at its place in the queue, whoever's it is and whenever it was given."""
    places = {_place(each): each for each in _running(self)} if txn.acks else {}
    return apply(but(txn, acks=[places.get(_place(each), each) for each in txn.acks]), now_ms)


a_second_ack_says_acked = mutant(
    "P5", "P5.outcomes_are_true", "P8.acks_in_any_order_with_holes", "X3.an_order_of_the_calls_explains_every_answer"
)("A second ack of the same lease is answered like the first.", answers(Pops, "apply")(lambda result: _saying(result, _AGAIN, _ACKED)))


_LEASE = "self._check_point(transaction, receipt)"


_IN_TIME = f"found if getattr(found := {_LEASE}, 'expiry_ms', 2**63) > transaction.now_ms else AckOutcome.STALE"
ended_leases_cannot_be_acked = mutant("P5", "P5.outcomes_are_true")(
    "An ack that comes when the time of its lease has ended is STALE, though nobody has revived it.",
    edit(Leasing._ack_run, _LEASE, _IN_TIME),
)
outcomes_are_forgotten_at_once = mutant("P5", CORE_HISTORY)(
    "What became of a lease is forgotten with the next upkeep.", asks(Pops, "maintain")(lambda now_ms: now_ms + 600_000)
)
a_batch_ends_at_an_unknown_receipt = mutant("P8", CORE_HISTORY)(
    "What stands behind an unknown receipt in a batch of acks of one pop is left alone, and answered UNKNOWN.",
    edit(Leasing._ack_run, "index is None", "BEFORE or AckOutcome.UNKNOWN in outcomes"),
)
a_batch_ends_at_a_duplicate = mutant("P8", CORE_HISTORY)(
    "A receipt that was acked before ends a batch of acks of one pop; what stands behind it is left alone.",
    edit(Leasing._ack_run, "index is None", "BEFORE or AckOutcome.ALREADY_ACKED in outcomes"),
)
outcomes_are_sorted = mutant("P8", "P8.acks_in_any_order_with_holes", "P5.outcomes_are_true")(
    "The outcomes of a batch of acks come sorted, not in the order of the receipts.",
    answers(Pops, "apply")(lambda result: but(result, acks=tuple(sorted(result.acks, key=lambda each: each.value, reverse=True)))),
)


# ---------------------------------------------------------------- changes (P6)

old_receipts_still_ack = mutant("P6", "P6.change_longer_and_shorter")(
    "After a change of the invisible time the old receipt acks, as its lease goes on.",
    edit(Leasing.change, "transaction.end(lease, [index], MOVED)", ""),
)


@mutant("P6", "P6.change_longer_and_shorter", at=instead(Leasing, "change"))
def changes_give_no_receipt(self: Any, change: Any, transaction: Any, asked: Change) -> ChangeResult:
    """A change of the invisible time is answered with the old receipt."""
    done: ChangeResult = change(transaction, asked)
    return but(done, receipt=done.receipt and asked.receipt)


leases_only_get_longer = mutant("P6", "P6.change_longer_and_shorter")(
    "A change never ends a lease before it would have ended without.",
    edit(Leasing.change, "change.invisible_ms", "max(BEFORE, lease.expiry_ms - transaction.now_ms)"),
)
_ENDED = "isinstance(found := self._find(transaction, receipt), tuple) and found[0].expiry_ms <= transaction.now_ms"
ended_leases_cannot_change = mutant("P6", CORE_HISTORY)(
    "A change of a lease whose time has ended is STALE, though nobody has revived it.",
    edit(Leasing.change, "self._find(transaction, receipt)", f"AckOutcome.STALE if {_ENDED} else found"),
)
sends_have_no_marks = mutant("I1", "I1.a_repeated_mark_stores_nothing")(
    "A send for now with a mark is stored every time.", asks(Pops, "apply")(lambda txn: but(txn, marks=()))
)


# ---------------------------------------------------------------- attempts and dead letters (P7)

one_delivery_too_many = mutant("P7", "P7.after_the_last_retry_the_dead_letter_queue")(
    "The dead letter queue gets a message one delivery late.", lambda options: but(options, max_retries=options.max_retries + 1)
)
attempts_are_not_told = mutant(
    "P7", "P7.after_the_last_retry_the_dead_letter_queue", "P3.an_expired_lease_comes_back_through_the_retry_topic"
)("Every delivery says that it is the first.", ROWS_POPPED(lambda message: but(message, attempt=1)))


_RELEASE = "self._give_back(transaction, *found, receipt.group, receipt.topic, counted=False)"
releases_count = mutant("P7", "P9.whatever_is_given_back_keeps_its_place")(
    "A released message comes back with the next attempt number.", edit(Leasing.release, _RELEASE, _RELEASE.replace("False", "True"))
)


@mutant("P7", "P7.after_the_last_retry_the_dead_letter_queue", at=ROWS_POPPED)
def dead_letters_do_not_tell_their_origin(message: PoppedMessage) -> PoppedMessage:
    """A message of a dead letter queue does not say which topic it comes from."""
    return but(message, properties={name: value for name, value in message.properties.items() if name != PROPERTY_ORIGIN_TOPIC})


_REMOVAL = "self._administration.remove(transaction, txn.removals)"
letters_are_not_dropped = mutant("P7", "P7.dropped_letters_are_gone")(
    "A dead letter that is dropped stays where it is.",
    edit(
        OrderedPops.apply,
        _REMOVAL,
        f"{_REMOVAL} if txn.removals[0].resend_to is not None else {_REMOVAL.replace('transaction', 'self._begin(now_ms)')}",
    ),
)
letters_are_found_by_place = mutant("P7", "P7.a_letter_of_a_deleted_queue_takes_no_other_with_it")(
    "A removal takes whatever lies at its place by now.",
    asks(Pops, "apply")(lambda txn: but(txn, removals=[but(each, message_id=None) for each in txn.removals])),
)
removals_always_say_success = mutant("P7", "P7.a_letter_of_a_deleted_queue_takes_no_other_with_it")(
    "A letter that is not there any more is answered as if it had gone just now.",
    answers(Pops, "apply")(lambda result: but(result, removals=(True,) * len(result.removals))),
)


@mutant("P7", "P7.removals_are_for_dead_letters_and_parked_entries_only", at=instead(Pops, "apply"))
def refused_removals_are_half_done(self: Pops, apply: Apply, txn: PopTxn, now_ms: int) -> Applied:
    """A call with a removal that is refused has done those before it."""
    done = [removed for each in txn.removals[:-1] for removed in apply(PopTxn(removals=[each]), now_ms)[0].removals]
    result, ticket = apply(but(txn, removals=txn.removals[-1:]), now_ms)
    return but(result, removals=(*done, *result.removals)), ticket


# ---------------------------------------------------------------- notes (I2)


@mutant("I2", "I2.a_step_that_does_nothing_keeps_no_note", at=instead(Pops, "apply"))
def repeats_keep_their_notes(self: Pops, apply: Apply, txn: PopTxn, now_ms: int) -> Applied:
    """A repeat does nothing but to keep its notes, in place of those of the first call and of all since."""
    result, ticket = apply(txn, now_ms)
    if result.status is WriteStatus.REPEATED and txn.notes:
        apply(PopTxn(notes=txn.notes), now_ms)
    return result, ticket


notes_are_never_let_go_of = mutant("I2", "I2.notes_are_kept_replaced_and_let_go_of")(
    "A note stays for ever.",
    asks(Pops, "apply")(lambda txn: but(txn, notes={name: value for name, value in txn.notes.items() if value is not None})),
)


# ---------------------------------------------------------------- acks of a pop (P8)


def _pop_and_ack(self: Pops, pop: Pop, request: PopRequest, now_ms: int, *, acks_first: bool) -> Popped:
    """Pop and ack in two steps."""
    if not request.acks:
        return pop(request, now_ms)
    acked, _ = self.apply(PopTxn(acks=request.acks), now_ms) if acks_first else (None, None)
    result, ticket = pop(but(request, acks=()), now_ms)
    if acked is None:
        acked, ticket = self.apply(PopTxn(acks=request.acks), now_ms)
    return but(result, acks=acked.acks), ticket


acks_come_behind_the_pop = mutant("P8", "P8.what_a_pop_acks_makes_room_for_it", "P9.a_pop_that_acks_the_run_gets_the_next_one")(
    "A pop looks for messages before it acks, so what that makes room for stays behind.",
    instead(Pops, "pop")(lambda self, pop, request, now_ms: _pop_and_ack(self, pop, request, now_ms, acks_first=False)),
)
refused_pops_ack = mutant("P8", "P8.a_pop_acks_what_it_is_given")(
    "The acks are a step of their own, which stands when the pop is refused.",
    instead(Pops, "pop")(lambda self, pop, request, now_ms: _pop_and_ack(self, pop, request, now_ms, acks_first=True)),
)


@mutant("P8", "P8.a_pop_acks_what_it_is_given", at=instead(Pops, "pop"))
def a_pop_of_nothing_acks_nothing(self: Pops, pop: Pop, request: PopRequest, now_ms: int) -> Popped:
    """A pop that finds no message says that it acked, and has not."""
    if request.acks and not self.ready(request.topic, request.group, request.filter, now_ms):
        result, ticket = pop(but(request, acks=()), now_ms)
        return but(result, acks=(_ACKED,) * len(request.acks)), ticket
    return pop(request, now_ms)


# ---------------------------------------------------------------- in order (P9)

order_is_ignored = mutant("P9", "P9.nothing_more_before_the_run_is_acked", "P9.whatever_is_given_back_keeps_its_place")(
    "A pop in order is taken for any other, so a second run is given while one is leased.",
    asks(Pops, "pop")(lambda request: but(request, order=False)),
)


@mutant("P9", "P9.at_the_last_attempt_the_head_goes_to_the_dead_letters_and_the_rest_moves_up", at=instead(Pops, "apply"))
def runs_are_acked_as_a_whole(self: Pops, apply: Apply, txn: PopTxn, now_ms: int) -> Applied:
    """Acks of a run in order count when all of it is acked, so what was acked comes again when the rest was not."""
    acks: list[Receipt] = []
    for receipt in txn.acks:
        leased = {each.receipt for each in self.leases(receipt.topic, receipt.group) if each.queue_id == receipt.queue_id}
        waiting = self.noted.setdefault((receipt.topic, receipt.group, receipt.queue_id), {})
        waiting[receipt.text()] = receipt
        if leased <= set(waiting):
            acks += waiting.values()
            waiting.clear()
    result, ticket = apply(but(txn, acks=acks), now_ms)
    return but(result, acks=(AckOutcome.ACKED,) * len(txn.acks)), ticket


# ---------------------------------------------------------------- filters (P10)

filters_are_ignored = mutant("P10", "P10.tag_expressions", "P10.many_left_out_messages_do_not_stall")(
    "A pop with a filter gives every message.", asks(Pops, "pop")(lambda request: but(request, filter="*"))
)
one_tag_of_all = mutant("P10", "P10.tag_expressions")(
    "Of several tags of a filter only the first counts.",
    asks(Pops, "pop")(lambda request: but(request, filter=request.filter.split("||")[0])),
)
what_is_left_out_stalls = mutant("P10", "P10.tag_expressions")(
    "A pop whose filter leaves out all that it saw begins at the same place again.",
    edit(
        Popping._take,
        "transaction.set_progress(reader, Progress(taken.next_offset, progress.last_pop_ms, progress.in_flight))",
        "taken.records and BEFORE",
    ),
)
retries_are_filtered = mutant("P10", ANY_HISTORY)(
    "What comes back and does not pass the filter of the pop is passed over.",
    edit(Popping._take, "None if retry_flag else want.picker", "want.picker"),
)


# ---------------------------------------------------------------- offsets (P11)

every_group_starts_at_the_beginning = mutant("P11", "P11.where_a_new_group_starts")(
    "A new group that asks for the next message gets all that are there.",
    asks(Pops, "pop")(lambda request: but(request, init=InitMode.MIN)),
)
resets_reach_every_queue = mutant("P11", CORE_HISTORY)(
    "A reset of one queue resets the others too.",
    edit(OrderedPops.reset_offset, "range(known.queues) if queue is None else (queue,)", "range(known.queues)"),
)
resets_keep_leases = mutant("P11", "P11.reset_voids_the_leases_and_keeps_the_retries", "P9.a_reset_voids_a_run")(
    "A receipt from before a reset is answered ACKED still.",
    edit(Administration.reset, "transaction.end(lease, lease.leased, MOVED)", ""),
)


@mutant("P11", "P11.reset_voids_the_leases_and_keeps_the_retries", at=instead(Pops, "reset_offset"))
def resets_drop_retries(self: Pops, reset_offset: Callable[..., Ticket], topic: str, group: str, *where: Any) -> Ticket:
    """A reset takes what waits in the retry topic of the group with it."""
    if self.topic(retry_topic(group, topic)) is not None:
        reset_offset(retry_topic(group, topic), group, None, InitMode.MAX, where[-1])
    return reset_offset(topic, group, *where)


# ---------------------------------------------------------------- limits and shares (P12, P13)

leases_have_no_limit = mutant("P12", "P12.in_flight_limit_per_group_topic_and_queue")(
    "A group may hold any number of leases, whatever the limit.", lambda options: but(options, max_in_flight=0)
)
the_limit_is_for_the_group = mutant("P12", "P12.in_flight_limit_per_group_topic_and_queue")(
    "The limit of leases counts for all queues of a topic together.",
    edit(
        Popping._take,
        "self._options.max_in_flight - progress.in_flight",
        "self._options.max_in_flight - self._state.in_flight(source, reader.group_id)",
    ),
)
retries_starve = mutant("P13", "P13.retries_get_their_share_under_full_load")(
    "The retry topic is looked at only when there is room left.", lambda options: but(options, retry_share=0.0)
)
retries_wait_for_the_topic = mutant("P13", CORE_HISTORY)(
    "A pop that finds anything in the topic does not look at the retry topic.",
    edit(Popping._sources, "not retry_first", "BEFORE and not self._state.waiting(topic, group_id)"),
)
the_first_queue_first = mutant("P13", "P13.the_start_queue_is_uniform")(
    "Every pop starts with queue 0.", edit(Popping._sources, "turn.queue = (start + 1) % queues", "")
)
one_queue_a_pop = mutant("P13", CORE_HISTORY)(
    "A pop looks at one queue, each in its turn, and comes back empty when that is.", edit(Popping._sources, "range(queues)", "range(1)")
)


# ---------------------------------------------------------------- counts (P14)

lag_counts_the_acked = mutant("P14", "P14.lag_and_rest_are_exact")(
    "What was acked counts as waiting.",
    edit(OrderedPops.lag, "state.waiting(known, group_id)", "state.messages(known) - state.in_flight(known, group_id)"),
)
rest_is_that_of_all_queues = mutant("P14", "P14.lag_and_rest_are_exact")(
    "The rest of a pop of one queue counts what is ready in the others.",
    edit(Popping._rest, "state.waiting(topic, group_id, request.queue)", "state.waiting(topic, group_id)"),
)
any_lease_wakes_all = mutant("P14", CORE_HISTORY)(
    "Who waits is told to look when the lease of any group ends.",
    instead(Pops, "ready")(lambda self, ready, *asked: True if ready(*asked) is True else self.next_expiry_ms()),
)
leases_tell_their_first_pop = mutant("P14", CORE_HISTORY)(
    "The list of leases shows every delivery as the first one.",
    answers(Pops, "leases")(lambda found: [but(each, attempt=1) for each in found]),
)


# ---------------------------------------------------------------- retention (Q1, Q2)

retention_ends_early = mutant("Q1", "Q1.kept_until_older_than_the_retention")(
    "Messages go one ms before they are older than the retention time.",
    lambda options: but(options, retention_ms=options.retention_ms and options.retention_ms - 1),
)
none_is_a_day = mutant("Q1", ANY_HISTORY)(
    "A retention of 0 is taken for one of a day.", lambda options: but(options, retention_ms=options.retention_ms or 86_400_000)
)
nothing_goes_when_it_is_consumed = mutant("Q2", "P11.a_late_group_starts_within_a_call_that_was_half_consumed")(
    "Messages go by age alone, though they shall go when they are consumed.", lambda options: but(options, reclaim=Reclaim.AGE)
)


# ---------------------------------------------------------------- what is declared (S1)


@mutant("S1", "S1.declared_is_offered_and_absent_is_refused", "S1.declared_capabilities_are_there", snapshot=Support.FULL)
class SnapshotsAreNotThere(Pops):
    """Snapshots are declared, and refused when one is asked for."""


@mutant("S1", "S1.declared_is_offered_and_absent_is_refused", read_only_open=Support.FULL)
class ReadersAreNotThere(Pops):
    """Being read beside the owner is declared, and refused when a reader comes."""


@mutant("S1", "S1.declared_is_offered_and_absent_is_refused", "P10.sql92_expressions", at=asks(Pops, "pop"))
def no_sql92(request: PopRequest) -> PopRequest:
    """SQL92 filters are declared, and refused when one comes."""
    if any(sign in request.filter for sign in "<>=("):
        raise UnsupportedOperationError("this engine does not take SQL92 filters")
    return request
