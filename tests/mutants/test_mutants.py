"""Every planted fault is noticed by the test of the clause that it breaks, and by that fault alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import pytest

from rmqstore_conformance.cases import (
    test_anew,
    test_cancel,
    test_clock,
    test_delays,
    test_fifo,
    test_handover,
    test_interleavings,
    test_marks,
    test_pops,
    test_queues,
    test_retention,
    test_retries,
    test_timers,
)
from rmqstore_conformance.stores import Pair, Stores, stores_of
from tests.engine import test_unsynced
from tests.mutants import catalogue, consumption
from tests.pairs import DURABLE_PAIRS, MIXED, PAIRS


class Kill(NamedTuple):
    """A mutant, the body of the test that must fail under it, and the engines on which it is tried."""

    mutant: Callable[[], AbstractContextManager[None]]
    body: Callable[[Stores], Any]
    pairs: list[Pair]

    def __str__(self) -> str:
        return self.mutant.__name__

    def run(self, stores: Stores) -> None:
        """Run the test, and what comes behind each case."""
        self.body(stores)
        stores.verify()


def interleaved(stores: Stores) -> None:
    """A late put between the seal and the read of what it closed."""
    for place in (1, 2, 3):
        test_interleavings.play(stores, ("late",), (place,), 2, f"s{place}")


def asked_twice(stores: Stores) -> None:
    """A message with all four properties that ask for a time."""
    properties, due_ms = next(case for case in test_delays.CASES if len(case[0]) == 4)
    test_delays.test_t4_properties_ask_for_a_time_in_their_order(stores, "messages", properties, due_ms)


def unplugged(stores: Stores) -> None:
    """Power losses at every step."""
    test_unsynced.test_h1_power_loss_at_every_step(stores.pair, 1)


ANY, DURABLE = PAIRS[:1], DURABLE_PAIRS[:1]

KILLS = [
    Kill(catalogue.fires_early, lambda s: test_timers.test_t1_t2_never_early_and_by_the_first_tick(s, 1000), ANY),
    Kill(catalogue.fires_late, lambda s: test_timers.test_t1_t2_never_early_and_by_the_first_tick(s, 1000), ANY),
    Kill(catalogue.put_during_a_tick_is_lost, interleaved, ANY),
    Kill(catalogue.cancelled_after_the_seal, test_cancel.test_c2_after_the_seal_it_is_too_late, ANY),
    Kill(catalogue.tombstone_dropped, test_cancel.test_c4_a_repeat_stays_cancelled_within_the_memory, ANY),
    Kill(catalogue.cancelled_rows_of_a_kept_call_go_out, test_cancel.test_c1_cancelled_before_its_tick_is_sealed_never_comes, ANY),
    Kill(catalogue.one_cursor_pair_instead_of_a_staircase, test_clock.test_k1_a_day_ahead_and_back, ANY),
    Kill(catalogue.cursor_is_not_stored_with_the_messages, lambda s: test_handover.test_h1_closing_after_any_step(s, 1), DURABLE),
    Kill(catalogue.forget_before_durable, lambda s: test_handover.test_h3_across_two_engines_the_timers_are_synced_first(s.pair), MIXED),
    Kill(
        catalogue.apply_before_the_timers_sync,
        lambda s: test_handover.test_h3_across_two_engines_the_timers_are_synced_first(s.pair),
        MIXED,
    ),
    Kill(catalogue.forget_before_durable, unplugged, MIXED[:1]),
    Kill(catalogue.apply_before_the_timers_sync, unplugged, MIXED[:1]),
    Kill(catalogue.seal_in_memory_only, test_cancel.test_c5_a_sealed_tick_is_too_late_also_after_a_reopen, DURABLE),
    Kill(catalogue.stale_receipt_accepted, test_pops.test_p5_outcomes_are_true, ANY),
    Kill(catalogue.groups_share_a_receipt, test_pops.test_p5_garbage_or_forged_is_unknown, ANY),
    Kill(catalogue.ack_is_not_written, test_pops.test_p4_acked_is_final, ANY),
    Kill(catalogue.one_delivery_too_many, lambda s: test_pops.test_p7_after_the_last_retry_the_dead_letter_queue(s, 16), ANY),
    Kill(catalogue.release_counts_the_attempt, test_pops.test_p7_released_pops_do_not_count, ANY),
    Kill(catalogue.offset_without_lease, test_pops.test_p1_leased_messages_are_not_given_again, ANY),
    Kill(catalogue.revive_without_ending_the_lease, test_pops.test_p5_outcomes_are_true, ANY),
    Kill(catalogue.one_revive_at_a_time, test_pops.test_p3_an_expired_lease_comes_back_through_the_retry_topic, ANY),
    Kill(catalogue.marks_ignored, test_marks.test_i1_a_repeated_mark_stores_nothing, ANY),
    Kill(catalogue.repeated_answers_applied, test_marks.test_i1_a_repeated_mark_stores_nothing, ANY),
    Kill(catalogue.retries_starve, lambda s: test_queues.test_p13_retries_get_their_share_under_full_load(s, 0.2), ANY),
    Kill(catalogue.first_queue_only_once, test_queues.test_p13_the_start_queue_is_uniform, ANY),
    Kill(
        consumption.acked_messages_of_a_run_come_back,
        test_fifo.test_p9_un_acked_messages_come_back_in_place_and_acked_ones_do_not,
        DURABLE,
    ),
    Kill(consumption.a_second_run_while_one_is_leased, test_fifo.test_p9_nothing_more_before_the_run_is_acked, ANY),
    Kill(consumption.the_mode_is_not_fixed, test_fifo.test_p9_the_first_pop_fixes_the_mode, DURABLE),
    Kill(
        consumption.the_whole_run_dies_with_its_head,
        test_fifo.test_p9_at_the_last_attempt_the_head_goes_to_the_dead_letters_and_the_rest_moves_up,
        ANY,
    ),
    Kill(consumption.leases_do_not_pin, test_retention.test_q1_leased_messages_are_pinned, DURABLE),
    Kill(consumption.runs_do_not_pin, test_retention.test_q1_un_acked_messages_of_a_run_are_pinned, ANY),
    Kill(consumption.one_old_message_takes_all, test_retention.test_q1_kept_until_older_than_the_retention, ANY),
    Kill(consumption.no_retention_keeps_nothing, test_retention.test_q1_none_keeps_for_ever, ANY),
    Kill(consumption.retry_topics_go_by_age, test_retention.test_q1_leased_messages_are_pinned, DURABLE),
    Kill(consumption.leased_counts_as_consumed, test_retention.test_q2_consumed_messages_go_once_every_group_has_them, DURABLE),
    Kill(consumption.without_a_group_all_is_consumed, test_retention.test_q2_consumed_messages_go_once_every_group_has_them, DURABLE),
    Kill(consumption.one_group_is_enough, test_retention.test_q2_consumed_messages_go_once_every_group_has_them, DURABLE),
    Kill(consumption.idle_groups_count, test_retention.test_q3_idle_groups_stop_counting_and_keep_their_position, DURABLE),
    Kill(consumption.idle_groups_forget_their_position, test_retention.test_q3_an_idle_group_goes_on_where_it_stood, ANY),
    Kill(consumption.late_groups_start_at_0, test_retention.test_p11_a_late_group_starts_within_a_call_that_was_half_consumed, ANY),
    Kill(consumption.resets_go_back_to_0, test_retention.test_p11_late_groups_start_with_the_first_kept_message, ANY),
    Kill(consumption.lag_counts_what_was_reclaimed, test_retention.test_q1_kept_until_older_than_the_retention, ANY),
    Kill(consumption.resend_without_removing, test_retries.test_p7_resent_letters_go_to_their_group_alone_exactly_once, DURABLE),
    Kill(consumption.drop_without_counting, test_retries.test_p7_dropped_letters_are_gone, ANY),
    Kill(
        consumption.letters_of_a_deleted_topic_count,
        test_retries.test_p14_dead_letters_of_a_topic_that_was_made_anew_are_counted_right,
        ANY,
    ),
    Kill(
        consumption.pop_times_start_anew,
        lambda s: test_anew.test_p2_what_is_deleted_and_made_anew_has_receipts_of_its_own(s, lambda store: store.groups.delete("g")),
        DURABLE,
    ),
    Kill(consumption.requests_in_the_wrong_order, asked_twice, ANY),
]

CASES = [pytest.param(kill, pair, id=f"{kill}-{pair}") for kill in KILLS for pair in kill.pairs]


@pytest.mark.parametrize(("kill", "pair"), CASES)
def test_the_clause_notices_the_mutant(kill: Kill, pair: Pair) -> None:
    with stores_of(pair) as stores:
        kill.run(stores)
    with stores_of(pair) as stores, kill.mutant(), pytest.raises((AssertionError, pytest.fail.Exception)):
        kill.run(stores)


def test_every_mutant_is_tried() -> None:
    known = {
        name
        for module in (catalogue, consumption)
        for name, each in vars(module).items()
        if getattr(each, "__module__", "") == module.__name__ and hasattr(each, "__wrapped__") and not name.startswith("_")
    }
    assert known == {kill.mutant.__name__ for kill in KILLS}
    assert len(known) >= 40
