"""Mutants of what a cancel does and says, and of what is told of pending timers (C, T6, T10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmqstore.contract import (
    EMPTY_CURSOR,
    CancelOutcome,
    PendingCounts,
    PendingTimer,
    ScanPage,
    Support,
    Ticket,
    TimerCursor,
    TimerHandle,
    UpkeepReport,
)
from rmqstore.errors import UnsupportedOperationError
from rmqstore_conformance.proving.kinds import answers, asks, but
from rmqstore_conformance.proving.planting import Timers, mutant

_DAY_MS = 86_400_000
_ALL_MS = 2**62 + 1
_CANCELLED, _LATE, _UNKNOWN = CancelOutcome.CANCELLED, CancelOutcome.ALREADY_DELIVERED, CancelOutcome.UNKNOWN
_Answer = tuple[list[CancelOutcome], Ticket]


def _saying(outcomes: list[CancelOutcome], old: CancelOutcome, new: CancelOutcome) -> list[CancelOutcome]:
    """Return outcomes with one in place of another."""
    return [new if each is old else each for each in outcomes]


# ---------------------------------------------------------------- by handle (C1–C4, C6)


@mutant("C1", "C1.cancelled_before_its_tick_is_sealed_never_comes", "C1.due_but_not_yet_sealed_can_be_cancelled")
class CancelsAreNotDone(Timers):
    """A cancel says CANCELLED, and the timer comes all the same."""

    def cancel(self, handles: Sequence[TimerHandle], now_ms: int) -> _Answer:
        pending = {handle for handle in handles if self.get(handle) is not None and not self.stats().sealed.covers(handle.tick, handle.seq)}
        outcomes, ticket = super().cancel([handle for handle in handles if handle not in pending], now_ms)
        others = iter(outcomes)
        return [_CANCELLED if handle in pending else next(others) for handle in handles], ticket


@mutant("C1", "C1.due_but_not_yet_sealed_can_be_cancelled")
class DueIsTooLate(Timers):
    """A timer whose time has come is not cancelled any more, though no tick has sealed it."""

    def cancel(self, handles: Sequence[TimerHandle], now_ms: int) -> _Answer:
        outcomes, ticket = super().cancel([handle for handle in handles if handle.tick > now_ms], now_ms)
        others = iter(outcomes)
        return [next(others) if handle.tick > now_ms else _LATE for handle in handles], ticket


@mutant("C2", "C2.after_the_seal_it_is_too_late", "C2.what_was_sealed_stays_so_when_the_clock_goes_back", at=answers(Timers, "cancel"))
def late_cancels_say_success(outcomes: list[CancelOutcome]) -> list[CancelOutcome]:
    """Whatever was sealed is answered CANCELLED."""
    return _saying(outcomes, _LATE, _CANCELLED)


@mutant("C2", "C2.after_the_seal_it_is_too_late", at=answers(Timers, "cancel"))
def delivered_is_forgotten(outcomes: list[CancelOutcome]) -> list[CancelOutcome]:
    """What was delivered is UNKNOWN."""
    return _saying(outcomes, _LATE, _UNKNOWN)


@mutant("C3", "C3.never_put_is_unknown", at=answers(Timers, "cancel"))
def any_cancel_says_success(outcomes: list[CancelOutcome]) -> list[CancelOutcome]:
    """A cancel of what was never put says CANCELLED, since a wish was stored."""
    return _saying(outcomes, _UNKNOWN, _CANCELLED)


@mutant("C3", "C3.never_put_is_unknown", "C4.beyond_the_memory_the_answer_is_never_a_lie")
class TheHandleTellsTheAnswer(Timers):
    """What is not found and lies back by its handle is called delivered, also when it was never put."""

    def cancel(self, handles: Sequence[TimerHandle], now_ms: int) -> _Answer:
        outcomes, ticket = super().cancel(handles, now_ms)
        pairs = zip(outcomes, handles, strict=True)
        return [_LATE if each is _UNKNOWN and handle.tick <= now_ms else each for each, handle in pairs], ticket


@mutant("C4", "C4.a_repeat_stays_cancelled_within_the_memory")
class ARepeatIsUnknown(Timers):
    """A second cancel of the same timer says UNKNOWN."""

    def cancel(self, handles: Sequence[TimerHandle], now_ms: int) -> _Answer:
        outcomes, ticket = super().cancel(handles, now_ms)
        said: list[CancelOutcome] = []
        for each, handle in zip(outcomes, handles, strict=True):
            said.append(_UNKNOWN if each is _CANCELLED and handle in self.noted else each)
            self.noted[handle] = True
        return said, ticket


@mutant("C4", "C4.a_repeat_stays_cancelled_within_the_memory", at=asks(Timers, "maintain"))
def memory_ends_with_the_timer(now_ms: int) -> int:
    """What was cancelled is remembered until the timer was due, and no longer."""
    return now_ms + _DAY_MS


@mutant("C4", "K1.every_call_after_a_leap")
class MemoryGoesByTheLatestClock(Timers):
    """What was cancelled or delivered is forgotten by the latest time that was ever told, also when the clock was set back since."""

    def maintain(self, now_ms: int, budget: int) -> UpkeepReport:
        self.noted["latest"] = max(now_ms, self.noted.get("latest", 0))
        return super().maintain(self.noted["latest"], budget)


@mutant("C6", "C6.messages_of_one_id_share_no_cancel")
class HandlesNameMessages(Timers):
    """A cancel takes all timers with the message id of the one that the handle names."""

    def cancel(self, handles: Sequence[TimerHandle], now_ms: int) -> _Answer:
        named = {found.message.message_id for handle in handles if (found := self.get(handle)) is not None}
        same = [each.handle for each in self.scan(0, _ALL_MS).timers if each.message.message_id in named]
        outcomes, ticket = super().cancel([*handles, *same], now_ms)
        return outcomes[: len(handles)], ticket


@mutant("T6", "T6.a_timer_that_was_moved_can_be_cancelled")
class FarTimersEscape(Timers):
    """A cancel of what is more than two days ahead says CANCELLED and is lost."""

    def cancel(self, handles: Sequence[TimerHandle], now_ms: int) -> _Answer:
        outcomes, ticket = super().cancel([handle for handle in handles if handle.tick <= now_ms + 2 * _DAY_MS], now_ms)
        others = iter(outcomes)
        return [next(others) if handle.tick <= now_ms + 2 * _DAY_MS else _CANCELLED for handle in handles], ticket


# ---------------------------------------------------------------- by key (C6)


class _ByKey(Timers):
    def cancel_where(self, fits: Callable[[PendingTimer], bool], now_ms: int, most: int | None = None) -> _Answer:
        found = [timer.handle for timer in self.scan(0, _ALL_MS).timers if fits(timer)]
        return self.cancel(sorted(found, key=lambda handle: handle.seq)[:most], now_ms)


@mutant("C6", "C6.by_key_cancels_all_pending_of_topic_and_key")
class AKeyTakesTheFirst(_ByKey):
    """A cancel by key takes the first timer that carries it, and no other."""

    def cancel_key(self, topic: str, key: str, now_ms: int) -> _Answer:
        return self.cancel_where(lambda timer: timer.message.topic == topic and key in timer.message.keys, now_ms, most=1)


@mutant("C6", "C6.by_key_cancels_all_pending_of_topic_and_key")
class AKeyTakesWhatBeginsWithIt(_ByKey):
    """A cancel by key takes timers whose keys only begin with it, too."""

    def cancel_key(self, topic: str, key: str, now_ms: int) -> _Answer:
        return self.cancel_where(
            lambda timer: timer.message.topic == topic and any(each.startswith(key) for each in timer.message.keys), now_ms
        )


@mutant("C6", "C6.by_key_cancels_all_pending_of_topic_and_key")
class AKeyReachesOtherTopics(_ByKey):
    """A cancel by key takes timers of every topic."""

    def cancel_key(self, topic: str, key: str, now_ms: int) -> _Answer:
        return self.cancel_where(lambda timer: key in timer.message.keys, now_ms)


@mutant("S1", "S1.declared_is_offered_and_absent_is_refused", cancel_by_key=Support.NOT_YET)
class KeysWorkUndeclared(Timers):
    """A cancel by key is not declared, and is done all the same."""


@mutant("S1", "S1.declared_is_offered_and_absent_is_refused", cancel_by_key=Support.NOT_YET)
class KeysAreRefusedTooLate(Timers):
    """A cancel by key is not declared, and is refused when it is done."""

    def cancel_key(self, topic: str, key: str, now_ms: int) -> _Answer:
        super().cancel_key(topic, key, now_ms)
        raise UnsupportedOperationError("this engine does not cancel by key")


# ---------------------------------------------------------------- what is pending (T10)


@mutant("T10", "T10.buckets_pages_and_ends_are_exact")
class CancelledStaysPending(Timers):
    """What was cancelled is counted as pending still."""

    def cancel(self, handles: Sequence[TimerHandle], now_ms: int) -> _Answer:
        before = self.stats().pending
        answer = super().cancel(handles, now_ms)
        self.noted["cancelled"] = self.noted.get("cancelled", 0) + before - self.stats().pending
        return answer

    def pending(self, edges_ms: Sequence[int] = (), handed: TimerCursor = EMPTY_CURSOR) -> PendingCounts:
        counts = super().pending(edges_ms, handed)
        return but(counts, total=counts.total + self.noted.get("cancelled", 0))


@mutant("T10", "T10.buckets_pages_and_ends_are_exact")
class EdgesAreCountedTwice(Timers):
    """What is due at the very end of a bucket is counted in it, and in the next one too."""

    def pending(self, edges_ms: Sequence[int] = (), handed: TimerCursor = EMPTY_CURSOR) -> PendingCounts:
        counts = super().pending(edges_ms, handed)
        at_edges = [len(self.scan(edge, edge + 1, handed=handed).timers) for edge in edges_ms[1:]]
        return but(counts, counts=tuple(a + b for a, b in zip(counts.counts, at_edges, strict=True)))


@mutant("T10", "T10.exact_between_any_two_steps_of_the_hand_over", "T10.what_is_handed_over_is_not_pending")
class HandedOverIsPendingUntilReclaimed(Timers):
    """A timer that was handed over is counted until its space is reclaimed."""

    def pending(self, edges_ms: Sequence[int] = (), handed: TimerCursor = EMPTY_CURSOR) -> PendingCounts:
        return super().pending(edges_ms)


@mutant("T10", "T10.buckets_pages_and_ends_are_exact", at=answers(Timers, "scan"))
def pages_leave_one_out(page: ScanPage) -> ScanPage:
    """A page of a scan that does not end it lacks its last timer, and the next page begins behind that."""
    return page if page.next_after is None else ScanPage(page.timers[:-1], page.next_after)
