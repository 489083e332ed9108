"""Mutants of the hand-over: what comes out twice, not at all, or in another shape (H, T12)."""

from __future__ import annotations

from rmqstore.contract import DueBatch, TimerCursor
from rmqstore.message import PARKED_TOPIC
from rmqstore_conformance.proving.kinds import answers, holding, of_rows, values_of, with_column
from rmqstore_conformance.proving.planting import Timers, mutant

# ---------------------------------------------------------------- the hand-over (H, T12)


@mutant("H1", "H1.due_is_a_pure_read_and_its_cursor_says_it_all", "H1.a_failing_apply_is_tried_again")
class TheCursorLagsBehind(Timers):
    """The cursor of a batch leaves out its last message, which is handed over twice."""

    def due(self, after: TimerCursor, limit: int) -> DueBatch:
        found = super().due(after, limit)
        count = len(found.messages)
        return found if count < 2 else holding(super().due(after, count - 1), found.messages)


@mutant("H1", "H1.due_is_a_pure_read_and_its_cursor_says_it_all", "H1.a_failing_apply_is_tried_again")
class ForgottenBeforeItIsHandedOver(Timers):
    """What a seal closes is reclaimed at once, before anybody has it."""

    def seal(self, until_ms: int) -> None:
        super().seal(until_ms)
        self.forget(self.stats().sealed)


@mutant("H1", "H1.due_is_a_pure_read_and_its_cursor_says_it_all", "H1.a_failing_apply_is_tried_again")
class ReadOnlyOnce(Timers):
    """What ``due`` has given it does not give again, though the hand-over of it may have failed."""

    def due(self, after: TimerCursor, limit: int) -> DueBatch:
        found = super().due(self.noted.get("given", after), limit)
        self.noted["given"] = found.cursor
        return found


@mutant("H2", "H2.everything_about_a_message_is_restored", at=answers(Timers, "due"))
def properties_are_lost(found: DueBatch) -> DueBatch:
    """A message comes out of the hand-over without its properties."""
    return holding(found, with_column(found.messages, "properties", [None] * len(found.messages)))


@mutant("H2", "H2.everything_about_a_message_is_restored", "H2.the_queue_is_chosen_when_it_is_sent", at=answers(Timers, "due"))
def the_queue_is_chosen_anew(found: DueBatch) -> DueBatch:
    """The hand-over puts all messages into the first queue of their topics."""
    return holding(found, with_column(found.messages, "queue_id", [0] * len(found.messages)))


@mutant("H1", "H1.due_is_a_pure_read_and_its_cursor_says_it_all", "T8.one_tick_goes_out_in_bounded_batches", at=answers(Timers, "due"))
def the_first_batch_is_all(found: DueBatch) -> DueBatch:
    """The first batch of a tick says that nothing more is due, so the rest of a large tick waits for the next one."""
    return DueBatch(found.messages, found.cursor, found.soft, more=False)


@mutant("H2", "H2.a_deliver_time_within_a_tick_is_kept")
class DeliverTimesAreRounded(Timers):
    """A message comes out of the hand-over with its tick in place of its deliver time."""

    def due(self, after: TimerCursor, limit: int) -> DueBatch:
        found = super().due(after, limit)
        width = self.precision_ms
        delivers = [at and -(-at // width) * width for at in values_of(found.messages, "deliver_at_ms")]
        return holding(found, with_column(found.messages, "deliver_at_ms", delivers))


@mutant("H4", "H4.every_call_at_every_place")
class PutsDuringATickAreLost(Timers):
    """The cursor of a batch covers every put that was made until it is read, not only what the seal closed."""

    def due(self, after: TimerCursor, limit: int) -> DueBatch:
        found = super().due(after, limit)
        if not len(found.messages):
            return found
        return DueBatch(found.messages, found.cursor.join([(found.cursor.highest_tick, self.stats().last_seq)]), found.soft)


@mutant("T12", "T12.a_damaged_timer_is_parked", at=answers(Timers, "due"))
def what_cannot_be_read_is_skipped(found: DueBatch) -> DueBatch:
    """A timer that cannot be read is stepped over without a word."""
    topics = values_of(found.messages, "topic")
    return holding(found, of_rows(found.messages, [row for row, topic in enumerate(topics) if topic != PARKED_TOPIC]))
