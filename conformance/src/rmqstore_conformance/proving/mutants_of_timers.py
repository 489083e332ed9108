"""Mutants of when timers come out and in which order, and of how they are put (T, K, F, I)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from rmqstore import MessageBatch
from rmqstore.contract import DueBatch, Ticket, TimerCursor, TimerReceipts, UpkeepReport, WriteStatus
from rmqstore.errors import DelayTooLongError, FlowControlError
from rmqstore_conformance.proving.kinds import answers, asks, but, holding, of_rows, times_put, values_of, with_column
from rmqstore_conformance.proving.planting import Timers, mutant

_HOUR_MS = 3_600_000
_FAR_MS = 2 * 24 * _HOUR_MS
_Put = tuple[TimerReceipts, Ticket]


# ---------------------------------------------------------------- when (T1, T2, T4, T5, K)


@mutant("T1", "T1.t2_never_early_and_by_the_first_tick", "T1.a_deliver_time_within_the_present_tick_waits", at=asks(Timers, "seal"))
def fires_early(until_ms: int) -> int:
    """A tick closes what is due within the next second."""
    return until_ms + 1000


@mutant("T1", "T1.t2_never_early_and_by_the_first_tick", "T1.a_deliver_time_within_the_present_tick_waits")
class RoundsDown(Timers):
    """A deliver time is rounded down to the precision, not up."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> _Put:
        width = self.precision_ms
        return super().put(
            with_column(batch, "deliver_at_ms", [at and at // width * width for at in values_of(batch, "deliver_at_ms")]), now_ms, marks
        )


@mutant("T2", "T1.t2_never_early_and_by_the_first_tick", "T2.a_broken_off_tick_does_not_hide_what_it_closed", at=asks(Timers, "seal"))
def fires_late(until_ms: int) -> int:
    """A tick leaves what is due at its very time to the next one."""
    return until_ms - 1


@mutant("T2", "T2.a_broken_off_tick_does_not_hide_what_it_closed")
class NobodyIsWokenForATimer(Timers):
    """The time of the next tick is never told, so a service that sleeps until then sleeps on."""

    def next_tick_ms(self) -> int | None:
        return None


@mutant("T4", "T4.null_or_past_is_in_the_topic_at_the_next_tick", "T4.the_tick_of_a_past_row", at=times_put)
def due_rows_wait(at: int | None, now_ms: int) -> int | None:
    """A row of a call for later that is due already gets a tick behind now, not one of now."""
    return now_ms + 1 if at is None or at <= now_ms else at


@mutant("T5", "T5.any_horizon", at=times_put)
def long_delays_wrap_round(at: int | None, now_ms: int) -> int | None:
    """A delay is kept as a number of 32 bits, so a long one comes out as a short one."""
    return at if at is None or at < now_ms else now_ms + (at - now_ms) % 2**32


@mutant("T5", "T5.above_the_set_horizon_nothing_is_stored")
class TakesAnyDelay(Timers):
    """A delay beyond the horizon that was set is taken like any other."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> _Put:
        try:
            return super().put(batch, now_ms, marks)
        except DelayTooLongError:
            return super().put(batch, max(values_of(batch, "deliver_at_ms")), marks)


@mutant("K1", "K1.a_day_ahead_and_back")
class TimersNeverTurnBack(Timers):
    """A tick closes what is due by the latest time that was ever seen, so after a step back all is early."""

    def seal(self, until_ms: int) -> None:
        self.noted["latest"] = max(until_ms, self.noted.get("latest", 0))
        super().seal(self.noted["latest"])


@mutant("K1", "K1.a_day_ahead_and_back", "T3.a_later_seal_may_bring_an_earlier_tick")
class OneTickIsTheCursor(Timers):
    """Whatever lies under the latest tick that was handed over counts as handed over, when it was put later too."""

    def due(self, after: TimerCursor, limit: int) -> DueBatch:
        return super().due(TimerCursor.of([(after.highest_tick, 2**62)]), limit)


@mutant("K2", "K2.forward_delivers_all_due_in_order")
class AnHourATick(Timers):
    """A tick works off at most an hour of what is overdue."""

    def seal(self, until_ms: int) -> None:
        first = self.next_tick_ms()
        super().seal(until_ms if first is None else min(until_ms, first + _HOUR_MS))


# ---------------------------------------------------------------- order and batches (T3, T8)


@mutant("T3", "T3.by_tick_then_by_put", at=answers(Timers, "due"))
def order_within_a_tick_by_time(found: DueBatch) -> DueBatch:
    """Within a tick timers go by their exact deliver times, not in the order of their puts."""
    delivers = values_of(found.messages, "deliver_at_ms")
    return holding(found, of_rows(found.messages, sorted(range(len(delivers)), key=lambda row: delivers[row] or 0)))


@mutant("T3", "T3.by_tick_then_by_put", "T8.one_tick_goes_out_in_bounded_batches")
class SlotsAreTurnedRound(Timers):
    """What is due in one tick comes last put first."""

    def due(self, after: TimerCursor, limit: int) -> DueBatch:
        found = super().due(after, limit)
        ticks = [-(-(at or 0) // self.precision_ms) for at in values_of(found.messages, "deliver_at_ms")]
        return holding(found, of_rows(found.messages, sorted(range(len(ticks)), key=lambda row: (ticks[row], -row))))


@mutant("T3", "T3.by_tick_then_by_put")
class TimesAreComparedAsText(Timers):
    """Timers go by their distance from the first one, compared as text."""

    def due(self, after: TimerCursor, limit: int) -> DueBatch:
        found = super().due(after, limit)
        ticks = [-(-(at or 0) // self.precision_ms) for at in values_of(found.messages, "deliver_at_ms")]
        return holding(found, of_rows(found.messages, sorted(range(len(ticks)), key=lambda row: str(8 + ticks[row] - ticks[0]))))


@mutant("T8", "T8.one_tick_goes_out_in_bounded_batches", "H1.due_is_a_pure_read_and_its_cursor_says_it_all")
class BatchesHaveNoLimit(Timers):
    """A tick goes out in one batch, whatever the limit."""

    def due(self, after: TimerCursor, limit: int) -> DueBatch:
        return super().due(after, 1_000_000)


@mutant("T8", "T8.a_batch_of_large_messages_is_bounded_in_bytes")
class BatchesOfAnySize(Timers):
    """A batch is as large as the bodies of its messages make it."""

    def due(self, after: TimerCursor, limit: int) -> DueBatch:
        found = super().due(after, limit)
        parts = [found.messages.columns]
        while len(found.messages) and (left := limit - sum(map(len, parts))) > 0:
            found = super().due(found.cursor, left)
            parts.append(found.messages.columns)
        table = pa.Table.from_batches(parts).combine_chunks()
        whole = next(iter(table.to_batches()), parts[0])
        return holding(found, MessageBatch(columns=whole))


# ---------------------------------------------------------------- far timers (T6, T7)


@mutant("T6", "T6.far_timers_come_once_at_their_time", at=times_put)
def far_timers_come_back_sooner(at: int | None, now_ms: int) -> int | None:
    """A timer that lies further ahead than two days is taken for due when the two days are over."""
    return at and min(at, now_ms + _FAR_MS)


@mutant("T7", "T7.what_is_removed_by_age_is_never_a_pending_timer")
class TimersGoByAge(Timers):
    """Upkeep drops pending timers that were put more than three days ago, as if they were old messages."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> _Put:
        receipts, ticket = super().put(batch, now_ms, marks)
        self.noted.update((receipts.handle(row), now_ms) for row in range(len(receipts)))
        return receipts, ticket

    def maintain(self, now_ms: int, budget: int) -> UpkeepReport:
        super().cancel([handle for handle, put_ms in self.noted.items() if now_ms - put_ms > 3 * 24 * _HOUR_MS], now_ms)
        return super().maintain(now_ms, budget)


# ---------------------------------------------------------------- congestion (T9)


@mutant("T9", "T9.one_draw_a_batch_at_its_fullest_slot")
class RefusedPutsAreTriedAgain(Timers):
    """A put that is refused for congestion draws a second time."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> _Put:
        try:
            return super().put(batch, now_ms, marks)
        except FlowControlError:
            return super().put(batch, now_ms, marks)


# ---------------------------------------------------------------- all or nothing (F3), marks (I1)


@mutant("F3", "T5.above_the_set_horizon_nothing_is_stored")
class GoodRowsOfARefusedBatchStay(Timers):
    """A batch with a row beyond the horizon is refused, and its other rows are stored."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> _Put:
        try:
            return super().put(batch, now_ms, marks)
        except DelayTooLongError:
            latest = max(values_of(batch, "deliver_at_ms"), key=lambda at: at or 0)
            if good := [row for row, at in enumerate(values_of(batch, "deliver_at_ms")) if at != latest]:
                super().put(of_rows(batch, good), now_ms)
            raise


@mutant("F3", "T9.a_refused_send_leaves_no_topic_behind")
class CongestedRowsStay(Timers):
    """A put that is refused for congestion leaves its first row behind."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> _Put:
        try:
            return super().put(batch, now_ms, marks)
        except FlowControlError:
            super().put(of_rows(batch, [0]), now_ms)
            raise


@mutant("I1", "I1.a_repeated_mark_stores_nothing", "I1.a_resend_after_its_time_is_still_a_repeat")
class TimersHaveNoMarks(Timers):
    """A put with a mark is stored every time."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> _Put:
        return super().put(batch, now_ms)


@mutant("I1", "I1.a_repeated_mark_stores_nothing")
class OneMarkOfAll(Timers):
    """Of the marks of a put only the first counts."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> _Put:
        return super().put(batch, now_ms, marks[:1])


@mutant("I1", "I1.a_repeated_mark_stores_nothing", at=answers(Timers, "put"))
def repeats_say_applied(receipts: TimerReceipts) -> TimerReceipts:
    """A repeated put stores nothing, and says that it did."""
    return but(receipts, status=WriteStatus.APPLIED)


@mutant("I1", "I1.a_repeated_mark_stores_nothing", "I1.a_resend_after_its_time_is_still_a_repeat")
class RepeatsGetHandlesOfTheirOwn(Timers):
    """A repeated put stores nothing, and answers with handles that were never given."""

    def put(self, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> _Put:
        receipts, ticket = super().put(batch, now_ms, marks)
        if receipts.status is WriteStatus.REPEATED:
            receipts = but(receipts, first_seq=self.stats().last_seq + 1)
        return receipts, ticket
