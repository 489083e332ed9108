"""Mutants of leases, receipts and their outcomes (P1–P6, P8, K1, I1), and of interrupted calls (F4)."""

from __future__ import annotations

from rmqstore.contract import (
    AckOutcome,
    Change,
    ChangeOutcome,
    ChangeResult,
    PopRequest,
    PopResult,
    PopTxn,
    PopTxnResult,
    Receipt,
    ReviveReport,
    Ticket,
)
from rmqstore_conformance.proving.kinds import answers, asks, but
from rmqstore_conformance.proving.planting import Pops, mutant

_ACKED, _AGAIN, _STALE, _UNKNOWN = AckOutcome.ACKED, AckOutcome.ALREADY_ACKED, AckOutcome.STALE, AckOutcome.UNKNOWN
_Applied = tuple[PopTxnResult, Ticket]
_Popped = tuple[PopResult, Ticket]


def _saying(result: PopTxnResult, old: AckOutcome, new: AckOutcome) -> PopTxnResult:
    """Return an answer with one outcome of acks in place of another."""
    return but(result, acks=tuple(new if each is old else each for each in result.acks))


def _end_of(receipt: Receipt) -> int:
    return receipt.pop_time_ms + receipt.invisible_ms


class _WithLeases(Pops):
    def running(self, topic: str | None = None, group: str | None = None) -> list[Receipt]:
        """Return the receipts of running leases."""
        found = (Receipt.parse(each.receipt) for each in self.leases(topic, group))
        return [each for each in found if each is not None]


# ---------------------------------------------------------------- interrupts (F4)


@mutant("F4", "F4.an_interrupted_call_happened_or_did_not")
class MemoryIsTrustedAfterAnInterrupt(Pops):
    """An interrupted call is not noticed: what memory took over of it stays, and what it did not take over is missing."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        try:
            return super().apply(txn, now_ms)
        except BaseException:
            self._call.__exit__(None, None, None)
            raise

    def pop(self, request: PopRequest, now_ms: int) -> _Popped:
        try:
            return super().pop(request, now_ms)
        except BaseException:
            self._call.__exit__(None, None, None)
            raise


# ---------------------------------------------------------------- leases (P1, P2, P3, K1)


@mutant("P1", "P1.leased_messages_are_not_given_again")
class LeasedIsGivenAgain(_WithLeases):
    """A pop that finds nothing takes what others of its group hold."""

    def pop(self, request: PopRequest, now_ms: int) -> _Popped:
        result, ticket = super().pop(request, now_ms)
        if len(result.messages) or request.order or not (held := self.running(request.topic, request.group)):
            return result, ticket
        self.release(held, now_ms)
        return super().pop(request, now_ms)


@mutant("P1", "P1.leased_messages_are_not_given_again", at=asks(Pops, "revive"))
def leases_end_early(now_ms: int) -> int:
    """A lease ends one ms before its time."""
    return now_ms + 1


@mutant("P1", "P1.a_repeated_attempt_gets_the_same_leases", "P9.a_repeated_attempt_gets_the_same_run", at=asks(Pops, "pop"))
def attempts_have_no_ids(request: PopRequest) -> PopRequest:
    """A pop that is repeated with its attempt id takes new messages."""
    return but(request, attempt_id=None)


@mutant("P1", "P1.a_repeated_attempt_gets_nothing_new_once_all_of_it_is_acked")
class AttemptsEndWithTheirLeases(Pops):
    """An attempt id of which all is acked is taken for a new one."""

    def pop(self, request: PopRequest, now_ms: int) -> _Popped:
        result, ticket = super().pop(request, now_ms)
        return (result, ticket) if len(result.messages) else super().pop(but(request, attempt_id=None), now_ms)


@mutant("P2", "P2.groups_do_not_disturb_each_other")
class AnAckEndsTheLeasesOfAll(_WithLeases):
    """An ack ends the leases of all groups on the message."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        answer = super().apply(txn, now_ms)
        places = {(each.topic, each.queue_id, each.queue_offset) for each in txn.acks}
        if others := [each for each in self.running() if (each.topic, each.queue_id, each.queue_offset) in places]:
            super().apply(PopTxn(acks=others), now_ms)
        return answer


@mutant("P2", "P2.groups_do_not_disturb_each_other")
class GroupsShareMessages(_WithLeases):
    """What one group holds, no other group gets."""

    def pop(self, request: PopRequest, now_ms: int) -> _Popped:
        taken = {(each.queue_id, each.queue_offset) for each in self.running(request.topic) if each.group != request.group}
        result, ticket = super().pop(request, now_ms)
        both = [each for each in result.messages.receipts() if (each.queue_id, each.queue_offset) in taken]
        if not both:
            return result, ticket
        self.ack(both, now_ms)
        return super().pop(request, now_ms)


@mutant(
    "P3", "P3.an_expired_lease_comes_back_through_the_retry_topic", "P7.after_the_last_retry_the_dead_letter_queue", at=asks(Pops, "revive")
)
def leases_never_end(now_ms: int) -> int:
    """A lease whose time has ended goes on until it is acked."""
    return 0


@mutant("P3", "P3.an_expired_lease_comes_back_through_the_retry_topic", "P6.changed_again_and_again", at=asks(Pops, "revive"))
def leases_end_late(now_ms: int) -> int:
    """A lease ends one ms behind its time."""
    return now_ms - 1


@mutant("P3", "P3.an_expired_lease_comes_back_through_the_retry_topic")
class ALongLeaseHoldsBackOthers(Pops):
    """Leases end in the order in which they were given, so that a long one keeps shorter ones from ending."""

    def revive(self, now_ms: int, limit: int) -> tuple[ReviveReport, Ticket]:
        oldest = min(self.leases(), key=lambda lease: lease.pop_time_ms, default=None)
        return super().revive(now_ms if oldest is None or oldest.expiry_ms <= now_ms else 0, limit)


@mutant("P3", "P3.all_of_many_expired_leases_come_back_in_one_tick", "P3.an_expired_lease_comes_back_through_the_retry_topic")
class OneReviveATick(Pops):
    """A revive gives back one message, and says that there are no more."""

    def revive(self, now_ms: int, limit: int) -> tuple[ReviveReport, Ticket]:
        report, ticket = super().revive(now_ms, 1)
        return but(report, more=False), ticket


@mutant("P3", "P3.the_store_wakes_for_the_end_of_a_lease")
class NobodyIsWokenForALease(Pops):
    """The time at which the first lease ends is never told, so a service that sleeps until then sleeps on."""

    def next_expiry_ms(self) -> int | None:
        return None


@mutant("K1", "K1.a_lease_that_is_given_after_a_step_back_lasts_its_time")
class LeasesNeverTurnBack(Pops):
    """A lease ends by the latest time that was ever seen, so after a step back it ends at once."""

    def revive(self, now_ms: int, limit: int) -> tuple[ReviveReport, Ticket]:
        self.noted["latest"] = max(now_ms, self.noted.get("latest", 0))
        return super().revive(self.noted["latest"], limit)


# ---------------------------------------------------------------- acks and outcomes (P4, P5, P8)


@mutant("P4", "P4.acked_is_final", "P1.a_repeated_attempt_gets_the_same_leases")
class AcksAreNotWritten(_WithLeases):
    """An ack of a running lease is answered, and forgotten."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        running = set(self.running()) if txn.acks else set()
        result, ticket = super().apply(but(txn, acks=[each for each in txn.acks if each not in running]), now_ms)
        others = iter(result.acks)
        return but(result, acks=tuple(_ACKED if each in running else next(others) for each in txn.acks)), ticket


@mutant("P5", "P5.outcomes_are_true", at=answers(Pops, "apply"))
def stale_receipts_say_acked(result: PopTxnResult) -> PopTxnResult:
    """A receipt of a lease that is gone is answered ACKED."""
    return _saying(result, _STALE, _ACKED)


@mutant("P5", "P5.garbage_or_forged_is_unknown", at=answers(Pops, "apply"))
def forged_receipts_say_acked(result: PopTxnResult) -> PopTxnResult:
    """A receipt that names no lease is answered ACKED."""
    return _saying(result, _UNKNOWN, _ACKED)


@mutant("P5", "P5.garbage_or_forged_is_unknown")
class ReceiptsAreFoundByPlace(_WithLeases):
    """A receipt ends the lease at its place in the queue, whoever's it is and whenever it was given."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        places = {(each.topic, each.queue_id, each.queue_offset): each for each in self.running()} if txn.acks else {}
        acks = [places.get((each.topic, each.queue_id, each.queue_offset), each) for each in txn.acks]
        return super().apply(but(txn, acks=acks), now_ms)


@mutant(
    "P5",
    "P5.outcomes_are_true",
    "P8.acks_in_any_order_with_holes",
    "X3.an_order_of_the_calls_explains_every_answer",
    at=answers(Pops, "apply"),
)
def a_second_ack_says_acked(result: PopTxnResult) -> PopTxnResult:
    """A second ack of the same lease is answered like the first."""
    return _saying(result, _AGAIN, _ACKED)


@mutant("P5", "P5.outcomes_are_true")
class EndedLeasesCannotBeAcked(Pops):
    """An ack that comes when the time of its lease has ended is STALE, though nobody has revived it."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        in_time = [_end_of(each) > now_ms for each in txn.acks]
        result, ticket = super().apply(but(txn, acks=[each for each, good in zip(txn.acks, in_time, strict=True) if good]), now_ms)
        others = iter(result.acks)
        return but(result, acks=tuple(next(others) if good else _STALE for good in in_time)), ticket


@mutant("P5", "P5.outcomes_are_remembered_ten_minutes_past_expiry", at=asks(Pops, "maintain"))
def outcomes_are_forgotten_at_once(now_ms: int) -> int:
    """What became of a lease is forgotten with the next upkeep."""
    return now_ms + 600_000


class _BatchEnds(Pops):
    ends_at: AckOutcome

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        result, ticket = super().apply(but(txn, acks=txn.acks[:1]), now_ms)
        outcomes = list(result.acks)
        for each in txn.acks[1:]:
            goes_on = outcomes[-1] is not self.ends_at
            outcomes.append(super().apply(PopTxn(acks=[each]), now_ms)[0].acks[0] if goes_on else self.ends_at)
        return but(result, acks=tuple(outcomes)), ticket


@mutant("P8", "P8.an_unknown_receipt_stops_no_other")
class ABatchEndsAtAnUnknownReceipt(_BatchEnds):
    """What stands behind an unknown receipt in a batch of acks is left alone, and answered UNKNOWN."""

    ends_at = _UNKNOWN


@mutant("P8", "P8.batches_of_columns_are_acked_as_they_are")
class ABatchEndsAtADuplicate(_BatchEnds):
    """A receipt that was acked before ends a batch of acks; what stands behind it is left alone."""

    ends_at = _AGAIN


@mutant("P8", "P8.acks_in_any_order_with_holes", "P5.outcomes_are_true", at=answers(Pops, "apply"))
def outcomes_are_sorted(result: PopTxnResult) -> PopTxnResult:
    """The outcomes of a batch of acks come sorted, not in the order of the receipts."""
    return but(result, acks=tuple(sorted(result.acks, key=lambda each: each.value, reverse=True)))


# ---------------------------------------------------------------- changes (P6)


@mutant("P6", "P6.change_longer_and_shorter", "P6.changed_again_and_again")
class OldReceiptsStillAck(Pops):
    """After a change of the invisible time the old receipt acks the new lease."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        acks = []
        for receipt in txn.acks:
            latest = receipt
            while latest in self.noted:
                latest = self.noted[latest]
            acks.append(latest)
        result, ticket = super().apply(but(txn, acks=acks), now_ms)
        self.noted.update((asked.receipt, done.receipt) for asked, done in zip(txn.changes, result.changes, strict=False) if done.receipt)
        return result, ticket


@mutant("P6", "P6.change_longer_and_shorter", "P9.a_changed_lease_keeps_its_queue_closed")
class ChangesGiveNoReceipt(Pops):
    """A change of the invisible time is answered with the old receipt."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        result, ticket = super().apply(txn, now_ms)
        pairs = zip(txn.changes, result.changes, strict=False)
        return but(result, changes=tuple(but(done, receipt=done.receipt and asked.receipt) for asked, done in pairs)), ticket


@mutant("P6", "P6.change_longer_and_shorter")
class LeasesOnlyGetLonger(Pops):
    """A change never ends a lease before it would have ended without."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        changes = [Change(each.receipt, max(each.invisible_ms, _end_of(each.receipt) - now_ms)) for each in txn.changes]
        return super().apply(but(txn, changes=changes), now_ms)


@mutant("P6", "P6.changed_again_and_again")
class EndedLeasesCannotChange(Pops):
    """A change of a lease whose time has ended is STALE, though nobody has revived it."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        running = [_end_of(each.receipt) > now_ms for each in txn.changes]
        result, ticket = super().apply(but(txn, changes=[each for each, good in zip(txn.changes, running, strict=True) if good]), now_ms)
        others = iter(result.changes)
        return but(result, changes=tuple(next(others) if good else ChangeResult(ChangeOutcome.STALE) for good in running)), ticket


@mutant("I1", "I1.a_repeated_mark_stores_nothing", "I1.the_first_answer_holds_the_first_ids", at=asks(Pops, "apply"))
def sends_have_no_marks(txn: PopTxn) -> PopTxn:
    """A send for now with a mark is stored every time."""
    return but(txn, marks=())
