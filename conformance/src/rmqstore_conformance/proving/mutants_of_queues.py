"""Mutants of filters, offsets, limits, shares and counts, of retention, and of what an engine declares (P10–P14, Q, S1)."""

from __future__ import annotations

from typing import Any

from rmqstore.contract import (
    InitMode,
    PopRequest,
    Reclaim,
    Support,
)
from rmqstore.engine.pops.administration import Administration
from rmqstore.engine.pops.lease import Popping
from rmqstore.engine.pops.store import OrderedPops
from rmqstore.errors import UnsupportedOperationError
from rmqstore.message import retry_topic
from rmqstore_conformance.proving.kinds import answers, asks, but, edit, instead
from rmqstore_conformance.proving.planting import Pops, mutant

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
retries_are_filtered = mutant("P10", "T1.any_history_agrees_with_the_oracle")(
    "What comes back and does not pass the filter of the pop is passed over.",
    edit(Popping._take, "None if retry_flag else want.picker", "want.picker"),
)


# ---------------------------------------------------------------- offsets (P11)

every_group_starts_at_the_beginning = mutant("P11", "P11.where_a_new_group_starts")(
    "A new group that asks for the next message gets all that are there.",
    asks(Pops, "pop")(lambda request: but(request, init=InitMode.MIN)),
)
resets_reach_every_queue = mutant("P11", "T1.any_history_of_core_calls_agrees_with_the_oracle")(
    "A reset of one queue resets the others too.",
    edit(OrderedPops.reset_offset, "range(known.queues) if queue is None else (queue,)", "range(known.queues)"),
)
resets_keep_leases = mutant("P11", "P11.reset_voids_the_leases_and_keeps_the_retries", "P9.a_reset_voids_a_run")(
    "A receipt from before a reset is answered ACKED still.",
    edit(Administration.reset, "transaction.end(lease, [index for index, state in enumerate(lease.states) if state == LEASED], MOVED)", ""),
)


@mutant("P11", "P11.reset_voids_the_leases_and_keeps_the_retries", at=instead(Pops, "reset_offset"))
def resets_drop_retries(self: Any, reset_offset: Any, topic: str, group: str, *where: Any) -> Any:
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
retries_wait_for_the_topic = mutant("P13", "T1.any_history_of_core_calls_agrees_with_the_oracle")(
    "A pop that finds anything in the topic does not look at the retry topic.",
    edit(Popping._sources, "not retry_first", "not retry_first and not self._state.waiting(topic, group_id)"),
)
the_first_queue_first = mutant("P13", "P13.the_start_queue_is_uniform")(
    "Every pop starts with queue 0.", edit(Popping._sources, "turn.queue = (start + 1) % queues", "")
)
one_queue_a_pop = mutant("P13", "T1.any_history_of_core_calls_agrees_with_the_oracle")(
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
any_lease_wakes_all = mutant("P14", "T1.any_history_of_core_calls_agrees_with_the_oracle")(
    "Who waits is told to look when the lease of any group ends.",
    instead(Pops, "ready")(lambda self, ready, *asked: True if ready(*asked) is True else self.next_expiry_ms()),
)
leases_tell_their_first_pop = mutant("P14", "T1.any_history_of_core_calls_agrees_with_the_oracle")(
    "The list of leases shows every delivery as the first one.",
    answers(Pops, "leases")(lambda found: [but(each, attempt=1) for each in found]),
)


# ---------------------------------------------------------------- retention (Q1, Q2)

retention_ends_early = mutant("Q1", "Q1.kept_until_older_than_the_retention")(
    "Messages go one ms before they are older than the retention time.",
    lambda options: but(options, retention_ms=options.retention_ms and options.retention_ms - 1),
)
none_is_a_day = mutant("Q1", "T1.any_history_agrees_with_the_oracle")(
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
