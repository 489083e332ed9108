"""Mutants of attempts and dead letters, and of pops in order (P7, P9)."""

from __future__ import annotations

from typing import Final

from rmqstore.contract import (
    AckOutcome,
    Change,
    EngineOptions,
    PopRequest,
    PopResult,
    PopTxn,
    PopTxnResult,
    Receipt,
    ReleaseOutcome,
    Ticket,
)
from rmqstore.message import PROPERTY_ORIGIN_TOPIC, PoppedMessage
from rmqstore_conformance.proving.kinds import ROWS_POPPED, asks, but
from rmqstore_conformance.proving.planting import Pops, mutant

_Applied = tuple[PopTxnResult, Ticket]
_Popped = tuple[PopResult, Ticket]


# ---------------------------------------------------------------- attempts and dead letters (P7)


@mutant("P7", "P7.after_the_last_retry_the_dead_letter_queue")
def one_delivery_too_many(options: EngineOptions) -> EngineOptions:
    """The dead letter queue gets a message one delivery late."""
    return but(options, max_retries=options.max_retries + 1)


@mutant("P7", "P7.after_the_last_retry_the_dead_letter_queue", "P3.an_expired_lease_comes_back_through_the_retry_topic", at=ROWS_POPPED)
def attempts_are_not_told(message: PoppedMessage) -> PoppedMessage:
    """Every delivery says that it is the first."""
    return but(message, attempt=1)


@mutant("P7", "P7.released_pops_do_not_count", "P9.whatever_is_given_back_keeps_its_place")
class ReleasesCount(Pops):
    """A released message comes back with the next attempt number."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        if not txn.releases:
            return super().apply(txn, now_ms)
        ended, _ = super().apply(PopTxn(changes=[Change(each, 1) for each in txn.releases]), now_ms)
        result, ticket = super().apply(but(txn, releases=()), now_ms)
        self.revive(now_ms + 1, len(txn.releases))
        return but(result, releases=tuple(_RELEASES[each.outcome.name] for each in ended.changes)), ticket


_RELEASES: Final = {**{each.name: each for each in ReleaseOutcome}, "CHANGED": ReleaseOutcome.RELEASED}


@mutant("P7", "P7.after_the_last_retry_the_dead_letter_queue", at=ROWS_POPPED)
def dead_letters_do_not_tell_their_origin(message: PoppedMessage) -> PoppedMessage:
    """A message of a dead letter queue does not say which topic it comes from."""
    return but(message, properties={name: value for name, value in message.properties.items() if name != PROPERTY_ORIGIN_TOPIC})


@mutant("P7", "P7.dropped_letters_are_gone", "P7.a_letter_that_somebody_works_on_can_be_dropped")
class LettersAreNotDropped(Pops):
    """A dead letter that is dropped stays where it is."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        kept = [each for each in txn.removals if each.resend_to is not None]
        result, ticket = super().apply(but(txn, removals=kept), now_ms)
        others = iter(result.removals)
        return but(result, removals=tuple(True if each.resend_to is None else next(others) for each in txn.removals)), ticket


@mutant("P7", "P7.a_letter_of_a_deleted_queue_takes_no_other_with_it", at=asks(Pops, "apply"))
def letters_are_found_by_place(txn: PopTxn) -> PopTxn:
    """A removal takes whatever lies at its place by now."""
    return but(txn, removals=[but(each, message_id=None) for each in txn.removals])


@mutant("P7", "P7.a_letter_of_a_deleted_queue_takes_no_other_with_it")
class RemovalsAlwaysSaySuccess(Pops):
    """A letter that is not there any more is answered as if it had gone just now."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        result, ticket = super().apply(txn, now_ms)
        return but(result, removals=(True,) * len(txn.removals)), ticket


@mutant("P7", "P7.removals_are_for_dead_letters_and_parked_entries_only")
class RefusedRemovalsAreHalfDone(Pops):
    """A call with a removal that is refused has done those before it."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        done: list[bool] = []
        for each in txn.removals[:-1]:
            done += super().apply(PopTxn(removals=[each]), now_ms)[0].removals
        result, ticket = super().apply(but(txn, removals=txn.removals[-1:]), now_ms)
        return but(result, removals=(*done, *result.removals)), ticket


# ---------------------------------------------------------------- in order (P9)


@mutant("P9", "P9.nothing_more_before_the_run_is_acked", "P9.whatever_is_given_back_keeps_its_place", at=asks(Pops, "pop"))
def order_is_ignored(request: PopRequest) -> PopRequest:
    """A pop in order is taken for any other, so a second run is given while one is leased."""
    return but(request, order=False)


@mutant("P9", "P9.at_the_last_attempt_the_head_goes_to_the_dead_letters_and_the_rest_moves_up", "P9.a_repeated_attempt_gets_the_same_run")
class RunsAreAckedAsAWhole(Pops):
    """Acks of a run in order count when all of it is acked, so what was acked comes again when the rest was not."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        acks: list[Receipt] = []
        for receipt in txn.acks:
            in_order = [each for each in self.leases(receipt.topic, receipt.group) if each.queue_id == receipt.queue_id]
            waiting = self.noted.setdefault((receipt.topic, receipt.group, receipt.queue_id), {})
            waiting[receipt.text()] = receipt
            if {each.receipt for each in in_order} <= set(waiting):
                acks += waiting.values()
                waiting.clear()
        result, ticket = super().apply(but(txn, acks=acks), now_ms)
        return but(result, acks=tuple(AckOutcome.ACKED for _ in txn.acks)), ticket
