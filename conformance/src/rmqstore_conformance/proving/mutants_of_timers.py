"""Mutants of timers: when they come out and in which order, how they are put, handed over, cancelled and counted (T, H, C, K, F, I)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rmqstore import MessageBatch
from rmqstore.contract import EMPTY_CURSOR, CancelOutcome, DueBatch, PendingCounts, ScanPage, Support, TimerCursor, TimerHandle, WriteStatus
from rmqstore.engine.timers.rows import TimerRuns
from rmqstore.engine.timers.side import TimerSide
from rmqstore.engine.timers.store import OrderedTimers
from rmqstore.engine.timers.ticks import Congestion
from rmqstore.errors import DelayTooLongError, FlowControlError, UnsupportedOperationError
from rmqstore.message import PARKED_TOPIC
from rmqstore_conformance.proving.kinds import (
    answers,
    asks,
    but,
    by_the_latest_clock,
    cancels_by_key,
    edit,
    instead,
    of_rows,
    times_put,
    values_of,
    with_column,
)
from rmqstore_conformance.proving.planting import CORE_HISTORY, Cancel, Cancelled, Placed, Put, Timers, mutant

_HOUR_MS = 3_600_000
_FAR_MS = 2 * 24 * _HOUR_MS
_PRECISION_MS = 1000


# ---------------------------------------------------------------- when (T1, T2, T4, T5, K)

fires_early = mutant("T1", "T1.t2_never_early_and_by_the_first_tick", "T1.a_deliver_time_within_the_present_tick_waits")(
    "A tick closes what is due within the next second.", asks(Timers, "seal")(lambda until_ms: until_ms + 1000)
)
rounds_down = mutant("T1", "T1.t2_never_early_and_by_the_first_tick", "T1.a_deliver_time_within_the_present_tick_waits")(
    "A deliver time is rounded down to the precision, not up.", times_put(lambda at, now_ms: at and at // _PRECISION_MS * _PRECISION_MS)
)
fires_late = mutant("T2", "T1.t2_never_early_and_by_the_first_tick", "T2.a_broken_off_tick_does_not_hide_what_it_closed")(
    "A tick leaves what is due at its very time to the next one.", asks(Timers, "seal")(lambda until_ms: until_ms - 1)
)
nobody_is_woken_for_a_timer = mutant("T2", "T2.a_broken_off_tick_does_not_hide_what_it_closed")(
    "The time of the next tick is never told, so a service that sleeps until then sleeps on.",
    edit(TimerSide.next_tick_ms, "min(ticks) if ticks else None", "None"),
)
due_rows_wait = mutant("T4", "T4.null_or_past_is_in_the_topic_at_the_next_tick", "T4.the_tick_of_a_past_row")(
    "A row of a call for later that is due already gets a tick behind now, not one of now.",
    times_put(lambda at, now_ms: now_ms + 1 if at is None or at <= now_ms else at),
)
long_delays_wrap_round = mutant("T5", "T5.times_beyond_2_53_are_kept_to_the_ms")(
    "A delay is kept as a number of 32 bits, so a long one comes out as a short one.",
    times_put(lambda at, now_ms: at if at is None or at < now_ms else now_ms + (at - now_ms) % 2**32),
)
takes_any_delay = mutant("T5", "T5.above_the_set_horizon_nothing_is_stored")(
    "A delay beyond the horizon that was set is taken like any other.", edit(OrderedTimers.put, "self._options.max_delay_ms", "0")
)
timers_never_turn_back = mutant("K1", "K1.a_day_ahead_and_back")(
    "A tick closes what is due by the latest time that was ever seen, so after a step back all is early.",
    by_the_latest_clock(Timers, "seal"),
)
one_tick_is_the_cursor = mutant("K1", "K1.a_day_ahead_and_back")(
    "Whatever lies under the latest tick that was handed over counts as handed over, when it was put later too.",
    asks(Timers, "due")(lambda after: TimerCursor.of([(after.highest_tick, 2**62)])),
)


@mutant("K2", "K2.forward_delivers_all_due_in_order", at=instead(Timers, "seal"))
def an_hour_a_tick(self: Timers, seal: Callable[[int], None], until_ms: int) -> None:
    """A tick works off at most an hour of what is overdue."""
    first = self.next_tick_ms()
    seal(until_ms if first is None else min(until_ms, first + _HOUR_MS))


# ---------------------------------------------------------------- order and batches (T3, T8)


def _sorted(found: DueBatch, key: Callable[[int], Any]) -> DueBatch:
    """Return a batch with its rows in another order."""
    return but(found, messages=of_rows(found.messages, sorted(range(len(found.messages)), key=key)))


def _ticks(found: DueBatch) -> list[int]:
    return [-(-(at or 0) // _PRECISION_MS) for at in values_of(found.messages, "deliver_at_ms")]


@mutant("T3", "T3.by_tick_then_by_put", at=answers(Timers, "due"))
def order_within_a_tick_by_time(found: DueBatch) -> DueBatch:
    """Within a tick timers go by their exact deliver times, not in the order of their puts."""
    delivers = values_of(found.messages, "deliver_at_ms")
    return _sorted(found, lambda row: delivers[row] or 0)


@mutant("T3", "T3.by_tick_then_by_put", "T8.one_tick_goes_out_in_bounded_batches", at=answers(Timers, "due"))
def slots_are_turned_round(found: DueBatch) -> DueBatch:
    """What is due in one tick comes last put first."""
    ticks = _ticks(found)
    return _sorted(found, lambda row: (ticks[row], -row))


@mutant("T3", "T3.by_tick_then_by_put", at=answers(Timers, "due"))
def times_are_compared_as_text(found: DueBatch) -> DueBatch:
    """Timers go by their distance from the first one, compared as text."""
    ticks = _ticks(found)
    return _sorted(found, lambda row: str(8 + ticks[row] - ticks[0]))


batches_have_no_limit = mutant("T8", "T8.one_tick_goes_out_in_bounded_batches", "H1.due_is_a_pure_read_and_its_cursor_says_it_all")(
    "A tick goes out in one batch, whatever the limit.", edit(OrderedTimers.due, "len(records) == limit", "False")
)
batches_of_any_size = mutant("T8", "T8.a_batch_of_large_messages_is_bounded_in_bytes")(
    "A batch is as large as the bodies of its messages make it.", edit(OrderedTimers.due, "size >= _DUE_BYTES", "False")
)


# ---------------------------------------------------------------- far timers (T6, T7)

far_timers_come_back_sooner = mutant("T6", "T6.far_timers_come_once_at_their_time")(
    "A timer that lies further ahead than two days is taken for due when the two days are over.",
    times_put(lambda at, now_ms: at and min(at, now_ms + _FAR_MS)),
)


@mutant("T7", "T7.what_is_removed_by_age_is_never_a_pending_timer", at=instead(Timers, "maintain"))
def timers_go_by_age(self: Timers, maintain: Any, now_ms: int, budget: int) -> Any:
    """Upkeep drops pending timers that were made more than three days ago, as if they were old messages."""
    timers = self.scan(0, 2**62).timers
    self.cancel([each.handle for each in timers if now_ms - (each.message.born_ms or now_ms) > 3 * 24 * _HOUR_MS], now_ms)
    return maintain(now_ms, budget)


# ---------------------------------------------------------------- congestion (T9)

refused_puts_are_tried_again = mutant("T9", "T9.one_draw_a_batch_at_its_fullest_slot")(
    "A put that is refused for congestion draws a second time.",
    edit(
        Congestion.check, "self._random.random() < min(max((count - self._limit) / self._limit, 0.0), 1.0)", "all(BEFORE for _ in range(2))"
    ),
)


# ---------------------------------------------------------------- all or nothing (F3), marks (I1)


@mutant("F3", "T5.above_the_set_horizon_nothing_is_stored", at=instead(Timers, "put"))
def good_rows_of_a_refused_batch_stay(self: Timers, put: Put, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> Placed:
    """A batch with a row beyond the horizon is refused, and its other rows are stored."""
    try:
        return put(batch, now_ms, marks)
    except DelayTooLongError:
        delivers = values_of(batch, "deliver_at_ms")
        if good := [row for row, at in enumerate(delivers) if at != max(delivers, key=lambda at: at or 0)]:
            put(of_rows(batch, good), now_ms)
        raise


@mutant("F3", "T9.a_refused_send_leaves_no_topic_behind", at=instead(Timers, "put"))
def congested_rows_stay(self: Timers, put: Put, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> Placed:
    """A put that is refused for congestion leaves its first row behind."""
    try:
        return put(batch, now_ms, marks)
    except FlowControlError:
        put(of_rows(batch, [0]), now_ms)
        raise


_FOUND = "find_mark(kv, TIMER_SIDE, marks)"
timers_have_no_marks = mutant("I1", "I1.a_repeated_mark_stores_nothing", "I1.a_resend_after_its_time_is_still_a_repeat")(
    "A put with a mark is stored every time.", edit(OrderedTimers.put, _FOUND, "None")
)
one_mark_of_all = mutant("I1", "I1.a_repeated_mark_stores_nothing")(
    "Of the marks of a put only the first is looked up.", edit(OrderedTimers.put, _FOUND, "find_mark(kv, TIMER_SIDE, marks[:1])")
)
repeats_say_applied = mutant("I1", "I1.a_repeated_mark_stores_nothing")(
    "A repeated put stores nothing, and says that it did.",
    answers(Timers, "put")(lambda receipts: but(receipts, status=WriteStatus.APPLIED)),
)
repeats_get_handles_of_their_own = mutant("I1", "I1.a_repeated_mark_stores_nothing", "I1.a_resend_after_its_time_is_still_a_repeat")(
    "A repeated put stores nothing, and answers with handles that were never given.",
    edit(TimerSide._repeated, "first_seq", "(BEFORE + 1_000_000)"),
)


# ---------------------------------------------------------------- the hand-over (H, T12)


@mutant("H1", "H1.due_is_a_pure_read_and_its_cursor_says_it_all", "H1.a_failing_apply_is_tried_again", at=instead(Timers, "due"))
def the_cursor_lags_behind(self: Timers, due: Callable[[TimerCursor, int], DueBatch], after: TimerCursor, limit: int) -> DueBatch:
    """The cursor of a batch leaves out its last message, which is handed over twice."""
    found = due(after, limit)
    count = len(found.messages)
    return found if count < 2 else but(due(after, count - 1), messages=found.messages)


@mutant("H1", "H1.due_is_a_pure_read_and_its_cursor_says_it_all", "H1.a_failing_apply_is_tried_again", at=instead(Timers, "seal"))
def forgotten_before_it_is_handed_over(self: Timers, seal: Callable[[int], None], until_ms: int) -> None:
    """What a seal closes is reclaimed at once, before anybody has it."""
    seal(until_ms)
    self.forget(self.stats().sealed)


@mutant("H1", "H1.due_is_a_pure_read_and_its_cursor_says_it_all", "H1.a_failing_apply_is_tried_again", at=instead(Timers, "due"))
def read_only_once(self: Timers, due: Callable[[TimerCursor, int], DueBatch], after: TimerCursor, limit: int) -> DueBatch:
    """What ``due`` has given it does not give again, though the hand-over of it may have failed."""
    found = due(self.noted.get("given", after), limit)
    self.noted["given"] = found.cursor
    return found


properties_are_lost = mutant("H2", "H2.every_family_of_values_comes_as_it_was_sent")(
    "A message comes out of the hand-over without its properties.",
    answers(Timers, "due")(lambda found: but(found, messages=with_column(found.messages, "properties", [None] * len(found.messages)))),
)
the_queue_is_chosen_anew = mutant("H2", "H2.the_queue_is_chosen_when_it_is_sent")(
    "The hand-over puts all messages into the first queue of their topics.",
    answers(Timers, "due")(lambda found: but(found, messages=with_column(found.messages, "queue_id", [0] * len(found.messages)))),
)
the_first_batch_is_all = mutant("H1", "H1.due_is_a_pure_read_and_its_cursor_says_it_all", "T8.one_tick_goes_out_in_bounded_batches")(
    "The first batch of a tick says that nothing more is due, so the rest of a large tick waits for the next one.",
    answers(Timers, "due")(lambda found: DueBatch(found.messages, found.cursor, found.soft, more=False)),
)


@mutant("H2", CORE_HISTORY, at=answers(Timers, "due"))
def deliver_times_are_rounded(found: DueBatch) -> DueBatch:
    """A message comes out of the hand-over with its tick in place of its deliver time."""
    delivers = [at and -(-at // 1000) * 1000 for at in values_of(found.messages, "deliver_at_ms")]
    return but(found, messages=with_column(found.messages, "deliver_at_ms", delivers))


puts_during_a_tick_are_lost = mutant("H4", "H4.every_call_at_every_place")(
    "The cursor of a batch covers every put that was made until it is read, not only what the seal closed.",
    edit(
        OrderedTimers.due,
        "self._trimmed(reached_to, is_receivers=True) if len(reached_to.corners) > MAX_CORNERS else reached_to",
        "BEFORE.join([(reached_to.highest_tick, self._last_seq)] if records else [])",
    ),
)
keys_of_damaged_timers_are_of_none = mutant("T12", "T12.a_cancel_by_key_ends_no_timer_but_those_with_the_key")(
    "A cancel by key finds nothing where it cannot read a timer.",
    edit(OrderedTimers._places_of_keys, "self._runs.check_place(*at)", "None"),
)
handles_of_damaged_timers_are_unknown = mutant("T12", "T12.a_cancel_of_a_damaged_timer_ends_it_or_tells")(
    "A cancel by handle says UNKNOWN where it cannot read a timer.",
    edit(TimerRuns.check_place, "(entry := self._entry_at(tick, seq)) is not None", "False"),
)


@mutant("T12", "T12.a_damaged_timer_is_parked", at=answers(Timers, "due"))
def what_cannot_be_read_is_skipped(found: DueBatch) -> DueBatch:
    """A timer that cannot be read is stepped over without a word."""
    topics = values_of(found.messages, "topic")
    return but(found, messages=of_rows(found.messages, [row for row, topic in enumerate(topics) if topic != PARKED_TOPIC]))


_DAY_MS = 86_400_000
_CANCELLED, _LATE, _UNKNOWN = CancelOutcome.CANCELLED, CancelOutcome.ALREADY_DELIVERED, CancelOutcome.UNKNOWN


def _saying(outcomes: list[CancelOutcome], old: CancelOutcome, new: CancelOutcome) -> list[CancelOutcome]:
    """Return outcomes with one in place of another."""
    return [new if each is old else each for each in outcomes]


# ---------------------------------------------------------------- by handle (C1–C4, C6)

cancels_are_not_done = mutant("C1", "C1.cancelled_before_its_tick_is_sealed_never_comes", "C1.due_but_not_yet_sealed_can_be_cancelled")(
    "A cancel says CANCELLED, and the timer comes all the same.", edit(OrderedTimers._cancel, "done.ticks", "[]")
)
due_is_too_late = mutant("C1", "C1.due_but_not_yet_sealed_can_be_cancelled")(
    "A timer whose time has come is not cancelled any more, though no tick has sealed it.",
    edit(OrderedTimers._cancel, "self._sealed", "BEFORE.join([(now_ms, self._last_seq)])"),
)
late_cancels_say_success = mutant("C2", "C2.after_the_seal_it_is_too_late")(
    "Whatever was sealed is answered CANCELLED.", answers(Timers, "cancel")(lambda outcomes: _saying(outcomes, _LATE, _CANCELLED))
)
delivered_is_forgotten = mutant("C2", "C2.after_the_seal_it_is_too_late")(
    "What was delivered is UNKNOWN.", answers(Timers, "cancel")(lambda outcomes: _saying(outcomes, _LATE, _UNKNOWN))
)
any_cancel_says_success = mutant("C3", "C3.never_put_is_unknown")(
    "A cancel of what was never put says CANCELLED, since a wish was stored.",
    answers(Timers, "cancel")(lambda outcomes: _saying(outcomes, _UNKNOWN, _CANCELLED)),
)


@mutant("C3", "C3.never_put_is_unknown", "C4.beyond_the_memory_the_answer_is_never_a_lie", at=instead(Timers, "cancel"))
def the_handle_tells_the_answer(self: Timers, cancel: Cancel, handles: Sequence[TimerHandle], now_ms: int) -> Cancelled:
    """What is not found and lies back by its handle is called delivered, also when it was never put."""
    outcomes, ticket = cancel(handles, now_ms)
    pairs = zip(outcomes, handles, strict=True)
    return [_LATE if each is _UNKNOWN and handle.tick <= now_ms else each for each, handle in pairs], ticket


@mutant("C4", "C4.a_repeat_stays_cancelled_within_the_memory", at=instead(Timers, "cancel"))
def a_repeat_is_unknown(self: Timers, cancel: Cancel, handles: Sequence[TimerHandle], now_ms: int) -> Cancelled:
    """A second cancel of the same timer says UNKNOWN."""
    repeated = self.noted.keys() & set(handles)
    self.noted.update(dict.fromkeys(handles))
    outcomes, ticket = cancel(handles, now_ms)
    pairs = zip(outcomes, handles, strict=True)
    return [_UNKNOWN if each is _CANCELLED and handle in repeated else each for each, handle in pairs], ticket


memory_ends_with_the_timer = mutant("C4", "C4.a_repeat_stays_cancelled_within_the_memory")(
    "What was cancelled is remembered until the timer was due, and no longer.", asks(Timers, "maintain")(lambda now_ms: now_ms + _DAY_MS)
)
memory_goes_by_the_latest_clock = mutant("C4", "K1.every_call_after_a_leap")(
    "What was cancelled or delivered is forgotten by the latest time that was ever told, also when the clock was set back since.",
    by_the_latest_clock(Timers, "maintain"),
)


@mutant("C6", "C6.messages_of_one_id_share_no_cancel", at=instead(Timers, "cancel"))
def handles_name_messages(self: Timers, cancel: Cancel, handles: Sequence[TimerHandle], now_ms: int) -> Cancelled:
    """A cancel takes all timers with the message id of the one that the handle names."""
    named = {found.message.message_id for handle in handles if (found := self.get(handle)) is not None}
    same = [each.handle for each in self.scan(0, 2**62).timers if each.message.message_id in named]
    outcomes, ticket = cancel([*handles, *same], now_ms)
    return outcomes[: len(handles)], ticket


far_timers_escape = mutant("T6", "T6.a_timer_that_was_moved_can_be_cancelled")(
    "A cancel of what is more than two days ahead says CANCELLED and is lost.",
    edit(OrderedTimers._cancel, "done.ticks", "[tick for tick in BEFORE if tick <= now_ms + 2 * 86_400_000]"),
)


# ---------------------------------------------------------------- by key (C6)

a_key_takes_the_first = mutant("C6", "C6.by_key_cancels_all_pending_of_topic_and_key")(
    "A cancel by key takes the first timer that carries it, and no other.",
    edit(TimerSide.cancel_keys, "self._places_of_keys(topic, keys)", "[found[:1] for found in BEFORE]"),
)
_FIRST = "[[each for each in found if all(each not in before for before in places[:at])] for at, found in enumerate(places)]"
a_timer_belongs_to_its_first_key = mutant("C6", "C6.many_keys_are_cancelled_in_one_call")(
    "Of a cancel by many keys, a timer of two of them is found by the first one alone.",
    edit(TimerSide.cancel_keys, "self._places_of_keys(topic, keys)", f"(lambda places: {_FIRST})(BEFORE)"),
)
a_key_takes_what_begins_with_it = mutant("C6", "C6.by_key_cancels_all_pending_of_topic_and_key")(
    "A cancel by key takes timers whose keys only begin with it, too.",
    cancels_by_key(lambda topic, key, other_topic, other: topic == other_topic and other.startswith(key)),
)
a_key_reaches_other_topics = mutant("C6", "C6.by_key_cancels_all_pending_of_topic_and_key")(
    "A cancel by key takes timers of every topic.", cancels_by_key(lambda topic, key, other_topic, other: key == other)
)


@mutant("S1", "S1.declared_is_offered_and_absent_is_refused", cancel_by_key=Support.NOT_YET)
class KeysWorkUndeclared(Timers):
    """A cancel by key is not declared, and is done all the same."""


@mutant("S1", "S1.declared_is_offered_and_absent_is_refused", at=instead(Timers, "cancel_keys"), cancel_by_key=Support.NOT_YET)
def keys_are_refused_too_late(self: Timers, cancel_keys: Any, topic: str, keys: Sequence[str], now_ms: int) -> None:
    """A cancel by key is not declared, and is refused when it is done."""
    cancel_keys(topic, keys, now_ms)
    raise UnsupportedOperationError("this engine does not cancel by key")


# ---------------------------------------------------------------- what is pending (T10)

cancelled_stays_pending = mutant("T10", "T10.buckets_pages_and_ends_are_exact")(
    "What was cancelled is counted as pending still.", edit(OrderedTimers._cancel, "self._pending - len(done.ticks)", "self._pending")
)


@mutant("T10", "T10.buckets_pages_and_ends_are_exact", at=instead(Timers, "pending"))
def edges_are_counted_twice(
    self: Timers, pending: Callable[..., PendingCounts], edges_ms: Sequence[int] = (), handed: TimerCursor = EMPTY_CURSOR
) -> PendingCounts:
    """What is due at the very end of a bucket is counted in it, and in the next one too."""
    found = pending(edges_ms, handed)
    at_edges = [len(self.scan(edge, edge + 1, handed=handed).timers) for edge in edges_ms[1:]]
    return but(found, counts=tuple(a + b for a, b in zip(found.counts, at_edges, strict=True)))


handed_over_is_pending_until_reclaimed = mutant("T10", "T10.exact_between_any_two_steps_of_the_hand_over")(
    "A timer that was handed over is counted until its space is reclaimed.",
    edit(OrderedTimers.pending, "self._unforgotten(handed)", "EMPTY_CURSOR"),
)
pages_leave_one_out = mutant("T10", "T10.buckets_pages_and_ends_are_exact")(
    "A page of a scan that does not end it lacks its last timer, and the next page begins behind that.",
    answers(Timers, "scan")(lambda page: page if page.next_after is None else ScanPage(page.timers[:-1], page.next_after)),
)
