"""Mutants of filters, offsets, limits, shares and counts, of retention, and of what an engine declares (P10–P14, Q, S1)."""

from __future__ import annotations

from rmqstore.contract import (
    AckOutcome,
    EngineOptions,
    InitMode,
    Lag,
    LeaseInfo,
    PopRequest,
    PopResult,
    PopTxn,
    PopTxnResult,
    Receipt,
    Reclaim,
    Support,
    Ticket,
)
from rmqstore.errors import UnsupportedOperationError
from rmqstore.message import retry_topic
from rmqstore_conformance.proving.kinds import answers, asks, but
from rmqstore_conformance.proving.planting import Pops, mutant

_Applied = tuple[PopTxnResult, Ticket]
_Popped = tuple[PopResult, Ticket]


# ---------------------------------------------------------------- filters (P10)


@mutant("P10", "P10.tag_expressions", "P10.many_left_out_messages_do_not_stall", at=asks(Pops, "pop"))
def filters_are_ignored(request: PopRequest) -> PopRequest:
    """A pop with a filter gives every message."""
    return but(request, filter="*")


@mutant("P10", "P10.tag_expressions", at=asks(Pops, "pop"))
def one_tag_of_all(request: PopRequest) -> PopRequest:
    """Of several tags of a filter only the first counts."""
    return but(request, filter=request.filter.split("||")[0])


@mutant("P10", "P10.tag_expressions")
class WhatIsLeftOutStalls(Pops):
    """A pop whose filter leaves out all that it saw begins at the same place again."""

    def pop(self, request: PopRequest, now_ms: int) -> _Popped:
        before = {each.queue_id: each.next_offset for each in self.offsets(request.group) if each.topic == request.topic}
        result, ticket = super().pop(request, now_ms)
        if not len(result.messages) and request.filter.strip() != "*" and self.topic(request.topic) is not None:
            for each in self.offsets(request.group):
                if each.topic == request.topic and not each.in_flight:
                    self.reset_offset(request.topic, request.group, each.queue_id, before.get(each.queue_id, 0), now_ms)
        return result, ticket


@mutant("P10", "P10.retries_are_not_filtered")
class RetriesAreFiltered(Pops):
    """What comes back and does not pass the filter of the pop is dropped."""

    def pop(self, request: PopRequest, now_ms: int) -> _Popped:
        result, ticket = super().pop(request, now_ms)
        wanted = request.filter.replace(" ", "").split("||")
        unwanted = [each for each in result.messages.messages() if each.attempt > 1 and wanted != ["*"] and each.tag not in wanted]
        if not unwanted:
            return result, ticket
        self.ack([each.proof for each in unwanted if isinstance(each.proof, Receipt)], now_ms)
        return super().pop(request, now_ms)


# ---------------------------------------------------------------- offsets (P11)


@mutant("P11", "P11.where_a_new_group_starts", "P11.reset_of_one_queue_leaves_the_others", at=asks(Pops, "pop"))
def every_group_starts_at_the_beginning(request: PopRequest) -> PopRequest:
    """A new group that asks for the next message gets all that are there."""
    return but(request, init=InitMode.MIN)


@mutant("P11", "P11.reset_of_one_queue_leaves_the_others")
class ResetsReachEveryQueue(Pops):
    """A reset of one queue resets the others too."""

    def reset_offset(self, topic: str, group: str, queue: int | None, offset: int | InitMode, now_ms: int) -> Ticket:
        return super().reset_offset(topic, group, None, offset, now_ms)


@mutant("P11", "P11.reset_voids_the_leases_and_keeps_the_retries", "P9.a_reset_voids_a_run")
class ResetsKeepLeases(Pops):
    """A receipt from before a reset is answered ACKED still."""

    def reset_offset(self, topic: str, group: str, queue: int | None, offset: int | InitMode, now_ms: int) -> Ticket:
        self.noted.update(dict.fromkeys(each.receipt for each in self.leases(topic, group)))
        return super().reset_offset(topic, group, queue, offset, now_ms)

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        result, ticket = super().apply(txn, now_ms)
        pairs = zip(result.acks, txn.acks, strict=False)
        acks = tuple(AckOutcome.ACKED if each is AckOutcome.STALE and at.text() in self.noted else each for each, at in pairs)
        return but(result, acks=acks), ticket


@mutant("P11", "P11.reset_voids_the_leases_and_keeps_the_retries")
class ResetsDropRetries(Pops):
    """A reset takes what waits in the retry topic of the group with it."""

    def reset_offset(self, topic: str, group: str, queue: int | None, offset: int | InitMode, now_ms: int) -> Ticket:
        if self.topic(retry_topic(group, topic)) is not None:
            super().reset_offset(retry_topic(group, topic), group, None, InitMode.MAX, now_ms)
        return super().reset_offset(topic, group, queue, offset, now_ms)


# ---------------------------------------------------------------- limits and shares (P12, P13)


@mutant("P12", "P12.in_flight_limit_per_group_topic_and_queue")
def leases_have_no_limit(options: EngineOptions) -> EngineOptions:
    """A group may hold any number of leases, whatever the limit."""
    return but(options, max_in_flight=0)


@mutant("P12", "P12.in_flight_limit_per_group_topic_and_queue")
class TheLimitIsForTheGroup(Pops):
    """The limit of leases counts for all queues of a topic together."""

    def pop(self, request: PopRequest, now_ms: int) -> _Popped:
        limit = self._options.max_in_flight
        if not limit:
            return super().pop(request, now_ms)
        left = limit - self.lag(request.topic, request.group).in_flight
        result, ticket = super().pop(but(request, max_messages=max(min(request.max_messages, left), 1)), now_ms)
        return result, ticket


@mutant("P13", "P13.retries_get_their_share_under_full_load")
def retries_starve(options: EngineOptions) -> EngineOptions:
    """The retry topic is looked at only when there is room left."""
    return but(options, retry_share=0.0)


@mutant("P13", "P13.retries_come_when_there_is_room")
class RetriesWaitForTheTopic(Pops):
    """A pop that found anything in the topic does not look at the retry topic."""

    def pop(self, request: PopRequest, now_ms: int) -> _Popped:
        ready = self.lag(request.topic, request.group).ready
        return super().pop(but(request, max_messages=min(request.max_messages, ready)) if ready else request, now_ms)


@mutant("P13", "P13.the_start_queue_is_uniform", "P13.two_topics_in_turn_do_not_fix_the_start_queue")
class TheFirstQueueFirst(Pops):
    """Every pop starts with queue 0."""

    def pop(self, request: PopRequest, now_ms: int) -> _Popped:
        known = self.topic(request.topic)
        for queue in range(known.queues) if known is not None and request.queue is None else ():
            answer = super().pop(but(request, queue=queue), now_ms)
            if len(answer[0].messages):
                return answer
        return super().pop(request, now_ms)


@mutant("P13", "P13.no_empty_answer_while_another_queue_has_messages")
class OneQueueAPop(Pops):
    """A pop looks at one queue, each in its turn, and comes back empty when that is."""

    def pop(self, request: PopRequest, now_ms: int) -> _Popped:
        known = self.topic(request.topic)
        if known is None or request.queue is not None:
            return super().pop(request, now_ms)
        at = self.noted[request.topic] = self.noted.get(request.topic, -1) + 1
        return super().pop(but(request, queue=at % known.queues), now_ms)


# ---------------------------------------------------------------- counts (P14)


@mutant("P14", "P14.lag_and_rest_are_exact")
class LagCountsTheAcked(Pops):
    """What was acked counts as waiting."""

    def apply(self, txn: PopTxn, now_ms: int) -> _Applied:
        result, ticket = super().apply(txn, now_ms)
        for each, receipt in zip(result.acks, txn.acks, strict=False):
            key = (receipt.topic, receipt.group)
            self.noted[key] = self.noted.get(key, 0) + (each is AckOutcome.ACKED)
        return result, ticket

    def lag(self, topic: str, group: str) -> Lag:
        lag = super().lag(topic, group)
        return but(lag, ready=lag.ready + self.noted.get((topic, group), 0))


@mutant("P14", "P14.lag_and_rest_are_exact")
class RestIsThatOfAllQueues(Pops):
    """The rest of a pop of one queue counts what is ready in the others."""

    def pop(self, request: PopRequest, now_ms: int) -> _Popped:
        result, ticket = super().pop(request, now_ms)
        lag = self.lag(request.topic, request.group)
        return PopResult(result.messages, lag.ready + lag.retry), ticket


@mutant("P14", "P14.ready_names_the_end_of_a_lease_of_the_group")
class AnyLeaseWakesAll(Pops):
    """Who waits is told to look when the lease of any group ends."""

    def ready(self, topic: str, group: str, filter: str, now_ms: int) -> bool | int | None:
        said = super().ready(topic, group, filter, now_ms)
        return said if said is True else self.next_expiry_ms()


@mutant("P14", "P14.leases_say_who_holds_what_until_when", at=answers(Pops, "leases"))
def leases_tell_their_first_pop(found: list[LeaseInfo]) -> list[LeaseInfo]:
    """The list of leases shows every delivery as the first one."""
    return [but(each, attempt=1) for each in found]


# ---------------------------------------------------------------- retention (Q1, Q2)


@mutant("Q1", "Q1.kept_until_older_than_the_retention")
def retention_ends_early(options: EngineOptions) -> EngineOptions:
    """Messages go one ms before they are older than the retention time."""
    return but(options, retention_ms=options.retention_ms and options.retention_ms - 1)


@mutant("Q1", "Q1.none_keeps_for_ever")
def none_is_a_day(options: EngineOptions) -> EngineOptions:
    """A retention of 0 is taken for one of a day."""
    return but(options, retention_ms=options.retention_ms or 86_400_000)


@mutant("Q2", "P11.a_late_group_starts_within_a_call_that_was_half_consumed")
def nothing_goes_when_it_is_consumed(options: EngineOptions) -> EngineOptions:
    """Messages go by age alone, though they shall go when they are consumed."""
    return but(options, reclaim=Reclaim.AGE)


# ---------------------------------------------------------------- what is declared (S1)


@mutant(
    "S1",
    "S1.declared_is_offered_and_absent_is_refused",
    "S1.declared_capabilities_are_there",
    snapshot=Support.FULL,
)
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
