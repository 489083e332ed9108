"""``Consuming``: popping messages, saying what became of them, and arranging topics, groups and dead letters."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TypeAlias, overload

from rmqstore.batch import MessageBatch
from rmqstore.clock import SystemClock
from rmqstore.contract import (
    AckOutcome,
    Change,
    ChangeOutcome,
    ChangeResult,
    GroupSettings,
    InitMode,
    PopRequest,
    PopResult,
    PopTxn,
    Reject,
    RejectOutcome,
    ReleaseOutcome,
    Removal,
    Ticket,
    TopicInfo,
)
from rmqstore.deadletters import DeadLetter, removal_of
from rmqstore.delays import RETRY_BACKOFF_MS, backoff_ms
from rmqstore.errors import (
    IllegalArgumentTypeError,
)
from rmqstore.filters import TagFilter, parse_filter
from rmqstore.leased import Leased, LeasedMany, receipts_of, renewed
from rmqstore.message import (
    MAX_ID_BYTES,
    PoppedMessage,
    check_count,
    check_group,
    check_readable_topic,
    check_topic,
    check_word,
    dlq_topic,
    reason_text,
)
from rmqstore.owning import Owning
from rmqstore.when import duration_ms, timedelta_ms

_INVISIBLE_MS = 60_000
"""Length of a lease when the pop names none."""

_MAX_BACKOFF = 100
"""Entries of a table of back-offs."""


Popped: TypeAlias = PoppedMessage | ChangeResult
"""A popped message, or what ``change_invisible`` made of it."""


class Consuming(Owning):
    """The calls of those who consume."""

    # ------------------------------------------------------------ popping

    def pop(
        self,
        topic: str,
        group: str,
        *,
        max_messages: int = 32,
        invisible: timedelta | None = None,
        invisible_ms: int | None = None,
        wait: timedelta | None = None,
        wait_ms: int | None = None,
        order: bool = False,
        filter: str = "*",
        attempt_id: str | None = None,
        queue: int | None = None,
    ) -> list[PoppedMessage]:
        """Lease up to ``max_messages`` messages to ``group``: until acked they are hidden from it for ``invisible``, then they come back.

        Args:
            invisible: length of the lease, a ``timedelta`` of at least 1 ms; 60 s by default.
            invisible_ms: the same in ms.
            wait: how long to wait for the first message when there is none, a ``timedelta``; by default it does not.
            wait_ms: the same in ms.
            order: pop in order (P9): nothing more of a queue before what was popped of it is acked. A group's first pop of a topic decides.
            filter: ``*``, a tag expression ``a || b``, or an SQL92 expression over properties (docs/filters.md).
            attempt_id: a repeat with the same id within the invisible time returns the same leases.
            queue: one queue of the topic; any by default.
        """
        leased_ms = duration_ms("invisible", invisible, invisible_ms, minimum=1)
        patience_ms = duration_ms("wait", wait, wait_ms)
        result = self._pop(topic, group, max_messages, leased_ms, patience_ms, order, filter, attempt_id, queue)
        return result.messages.messages()

    def pop_batch(
        self,
        topic: str,
        group: str,
        *,
        max_messages: int = 1024,
        invisible: timedelta | None = None,
        invisible_ms: int | None = None,
        wait: timedelta | None = None,
        wait_ms: int | None = None,
        order: bool = False,
        filter: str = "*",
        attempt_id: str | None = None,
        queue: int | None = None,
    ) -> MessageBatch:
        """Like :meth:`pop`, as columns; give the batch to :meth:`ack` as it is."""
        leased_ms = duration_ms("invisible", invisible, invisible_ms, minimum=1)
        patience_ms = duration_ms("wait", wait, wait_ms)
        return self._pop(topic, group, max_messages, leased_ms, patience_ms, order, filter, attempt_id, queue).messages.columns()

    def _pop(
        self,
        topic: str,
        group: str,
        max_messages: int,
        invisible_ms: int | None,
        wait_ms: int | None,
        order: bool,
        filter: str,
        attempt_id: str | None,
        queue: int | None,
    ) -> PopResult:
        self._check_open()
        check_readable_topic(topic)
        check_group(group)
        if attempt_id is not None:
            check_word("attempt_id", attempt_id, MAX_ID_BYTES)
        if queue is not None:
            check_count("queue", queue)
        if not isinstance(order, bool):
            raise IllegalArgumentTypeError(f"order must be True or False, not {order!r}")
        if order:
            self._require("fifo", "pop in order (order=True)")
        if not isinstance(parse_filter(filter), TagFilter):
            self._require("sql92_filter", "take SQL92 filters")
        request = PopRequest(
            topic,
            group,
            max_messages,
            _INVISIBLE_MS if invisible_ms is None else invisible_ms,
            queue,
            order,
            attempt_id,
            filter,
            self._opened.config.init,
        )
        if not wait_ms:
            result, ticket = self._look(request)
            self._settle(self._pops, ticket)
            return result
        until_ms, until_s = self._clock.now_ms() + wait_ms, time.monotonic() + wait_ms / 1000
        is_manual = not isinstance(self._clock, SystemClock)
        with self._waits.on(topic, for_acks=order or bool(self._opened.config.max_in_flight)) as waiting:
            while True:
                # Count first, then look: what arrives in between moves the count, so the wait ends at once.
                seen, waiting.ends = waiting.count, self._ends_of(topic)
                result, ticket = self._look(request)
                left_s = until_s - time.monotonic()
                if len(result.messages) or left_s <= 0 or (is_manual and self._clock.now_ms() >= until_ms):
                    self._settle(self._pops, ticket)
                    return result
                waiting.wait_beyond(seen, min(left_s, threading.TIMEOUT_MAX))
                self._check_open()

    def _look(self, request: PopRequest) -> tuple[PopResult, Ticket]:
        """Pop until something passes the filter or nothing is left, so that in between other calls have their turn (X3)."""
        result, ticket = self._pops.pop(request, self._clock.now_ms())
        if len(result.messages) or not result.more:
            return result, ticket
        me = threading.get_ident()
        try:
            self._in_steps.add(me)
            while result.more and not len(result.messages):
                self._check_open()
                result, ticket = self._pops.pop(request, self._clock.now_ms())
        finally:
            self._in_steps.discard(me)
        return result, ticket

    @overload
    def ack(self, leased: Leased) -> AckOutcome: ...  # type: ignore[overload-overlap] # a str is a sequence of str
    @overload
    def ack(self, leased: LeasedMany) -> list[AckOutcome]: ...
    def ack(self, leased: Leased | LeasedMany) -> AckOutcome | list[AckOutcome]:
        """Say that messages are done: they never come back to the group.

        Takes a message, a receipt, its text, a list of these, or what ``pop_batch`` returned. ACKED also after the lease ended, as long
        as it was not revived; STALE when the message is somebody else's by now; UNKNOWN for a text that is no receipt of this store.
        """
        self._check_open()
        given = receipts_of(leased)
        outcomes, ticket = self._pops.ack(given.receipts, self._clock.now_ms())
        self._settle(self._pops, ticket)
        self._waits.acked(receipt.topic for receipt in given.receipts)
        answers = given.spread(outcomes, AckOutcome.UNKNOWN)
        return answers[0] if given.is_single else answers

    @overload
    def change_invisible(  # type: ignore[overload-overlap] # as above
        self, leased: Leased, invisible: timedelta | None = None, *, invisible_ms: int | None = None
    ) -> ChangeResult: ...
    @overload
    def change_invisible(
        self, leased: LeasedMany, invisible: timedelta | None = None, *, invisible_ms: int | None = None
    ) -> list[ChangeResult]: ...
    def change_invisible(
        self, leased: Leased | LeasedMany, invisible: timedelta | None = None, *, invisible_ms: int | None = None
    ) -> ChangeResult | list[ChangeResult]:
        """Let leases end ``invisible`` (or ``invisible_ms``) from now, longer or shorter.

        The result holds the receipt that counts from then on. It can be given in place of the message to every call that takes one.
        """
        self._check_open()
        given = receipts_of(leased)
        wanted_ms = duration_ms("invisible", invisible, invisible_ms, minimum=1)
        if wanted_ms is None:
            raise IllegalArgumentTypeError("change_invisible needs to know for how long; give invisible=timedelta(…) or invisible_ms=…")
        changes = [Change(each, wanted_ms) for each in given.receipts]
        results, ticket = self._pops.change_invisible(changes, self._clock.now_ms())
        self._settle(self._pops, ticket)
        answers = renewed(leased, given.spread(results, ChangeResult(ChangeOutcome.UNKNOWN)))
        return answers[0] if given.is_single else answers

    @overload
    def release(self, leased: Leased) -> ReleaseOutcome: ...  # type: ignore[overload-overlap] # as above
    @overload
    def release(self, leased: LeasedMany) -> list[ReleaseOutcome]: ...
    def release(self, leased: Leased | LeasedMany) -> ReleaseOutcome | list[ReleaseOutcome]:
        """Give leases back at once; the attempt is not counted."""
        self._check_open()
        given = receipts_of(leased)
        outcomes, ticket = self._pops.release(given.receipts, self._clock.now_ms())
        self._settle(self._pops, ticket)
        self._waits.arrived(receipt.topic for receipt in given.receipts)
        answers = given.spread(outcomes, ReleaseOutcome.UNKNOWN)
        return answers[0] if given.is_single else answers

    @overload
    def retry_later(
        self,
        leased: Popped,
        delay: timedelta | None = None,
        *,
        delay_ms: int | None = None,
        reason: str = "",
        backoff: Sequence[timedelta] | None = None,
    ) -> ChangeResult: ...
    @overload
    def retry_later(
        self,
        leased: Sequence[Popped],
        delay: timedelta | None = None,
        *,
        delay_ms: int | None = None,
        reason: str = "",
        backoff: Sequence[timedelta] | None = None,
    ) -> list[ChangeResult]: ...
    def retry_later(
        self,
        leased: Popped | Sequence[Popped],
        delay: timedelta | None = None,
        *,
        delay_ms: int | None = None,
        reason: str = "",
        backoff: Sequence[timedelta] | None = None,
    ) -> ChangeResult | list[ChangeResult]:
        """Say that work on messages failed: each comes again after ``delay``, and the attempt counts.

        Args:
            delay: how long to wait, a ``timedelta`` of at least 1 ms; by default the entry of ``backoff`` for the attempt.
            delay_ms: the same in ms.
            reason: why it failed; ``leases`` lists it, and the dead letter if this was the last attempt. What is beyond 1024 bytes is cut.
            backoff: a table by attempt, whose last entry repeats; by default that of the group (``set_group``), or else RocketMQ's: 10 s,
                30 s, 1 min … 2 h.
        """
        self._check_open()
        given = [each.message if isinstance(each, ChangeResult) else each for each in _listed(leased)]
        messages = [each for each in given if isinstance(each, PoppedMessage)]
        if len(messages) < len(given):
            raise IllegalArgumentTypeError("retry_later takes popped messages, or what change_invisible gave for them")
        table: Sequence[int] = () if backoff is None else _backoff_table(backoff)
        wait_ms = duration_ms("delay", delay, delay_ms, minimum=1)
        if wait_ms is not None:
            table = [wait_ms]
        why = reason_text(reason)
        receipts = receipts_of(messages).receipts
        own = {} if table else {name: each.backoff_ms for name, each in self._pops.group_settings().items()}
        changes = [
            Change(receipt, backoff_ms(each.attempt, table or own.get(receipt.group) or RETRY_BACKOFF_MS), True, why)
            for receipt, each in zip(receipts, messages, strict=True)
        ]
        results, ticket = self._pops.change_invisible(changes, self._clock.now_ms())
        self._settle(self._pops, ticket)
        answers = renewed(messages, results)
        return answers[0] if isinstance(leased, PoppedMessage | ChangeResult) else answers

    @overload
    def reject(self, leased: Leased, *, reason: str = "") -> RejectOutcome: ...  # type: ignore[overload-overlap] # as above
    @overload
    def reject(self, leased: LeasedMany, *, reason: str = "") -> list[RejectOutcome]: ...
    def reject(self, leased: Leased | LeasedMany, *, reason: str = "") -> RejectOutcome | list[RejectOutcome]:
        """Give messages up: they go to the dead letter queue of their group at once, with ``reason``, however many attempts are left.

        Of a reason, what is beyond 1024 bytes is cut. ``dead_letters`` lists it, and ``resend_dead`` gives the message back.
        """
        self._check_open()
        given = receipts_of(leased)
        why = reason_text(reason)
        result, ticket = self._pops.apply(PopTxn(rejects=[Reject(each, why) for each in given.receipts]), self._clock.now_ms())
        self._settle(self._pops, ticket)
        self._waits.acked(receipt.topic for receipt in given.receipts)
        self._waits.arrived(dlq_topic(receipt.group) for receipt in given.receipts)
        answers = given.spread(result.rejects, RejectOutcome.UNKNOWN)
        return answers[0] if given.is_single else answers

    # ------------------------------------------------------------ dead letters

    def resend_dead(self, letters: Sequence[DeadLetter]) -> int:
        """Give dead letters back to the group that did not ack them, as if never delivered; returns how many were still there.

        They go to the group's retry topic, so that no other group sees them; those of a group that pops in order go to the end of the
        topic itself. Each goes exactly once, also when two operators resend it at the same time.
        """
        letters = _checked_letters(letters)
        ordered = {(each.group, each.topic): each.is_ordered for group in {x.group for x in letters} for each in self.subscriptions(group)}
        queues = {topic.name: topic.group_queues or topic.queues for topic in self.topics()}
        return self._remove_dead([removal_of(each, ordered, queues) for each in letters])

    def drop_dead(self, letters: Sequence[DeadLetter]) -> int:
        """Remove dead letters, or parked entries, for good; returns how many were still there."""
        return self._remove_dead([removal_of(each) for each in _checked_letters(letters)])

    def _remove_dead(self, removals: Sequence[Removal]) -> int:
        self._check_open()
        result, ticket = self._pops.apply(PopTxn(removals=removals), self._clock.now_ms())
        self._settle(self._pops, ticket)
        self._waits.anything()
        return sum(result.removals)

    # ------------------------------------------------------------ arranging

    def create_topic(self, name: str, queues: int = 1) -> TopicInfo:
        """Make a topic with ``queues`` queues, or widen it; sends make topics by themselves, with ``default_queues``."""
        self._check_open()
        check_topic(name)
        info, ticket = self._pops.create_topic(name, queues)
        self._settle(self._pops, ticket)
        return info

    def delete_topic(self, name: str) -> None:
        """Remove a topic with its messages, leases, positions and retry topics. Pending timers stay, and make it anew when they are due."""
        self._check_open()
        check_readable_topic(name)
        self._settle(self._pops, self._pops.delete_topic(name))
        self._waits.anything()

    def set_group(self, name: str, *, max_retries: int | None = None, backoff: Sequence[timedelta] = ()) -> None:
        """Set how often and when a group tries again; the settings are kept in the store and replace those that the group had.

        Args:
            max_retries: redeliveries before the dead letter queue; None: as the store has it. It counts from the next lease that ends.
            backoff: what ``retry_later`` waits after the 1st, 2nd … failed attempt; empty: RocketMQ's table.
        """
        self._check_open()
        if max_retries is not None:
            check_count("max_retries", max_retries)
        table = () if backoff in ((), []) else tuple(_backoff_table(backoff))
        check_group(name)
        self._settle(self._pops, self._pops.set_group(name, GroupSettings(max_retries=max_retries, backoff_ms=table)))

    def delete_group(self, name: str) -> None:
        """Remove a group with its leases, positions and retry topics; its dead letter queue stays."""
        self._check_open()
        check_group(name)
        self._settle(self._pops, self._pops.delete_group(name))
        self._waits.anything()

    def reset_offset(self, topic: str, group: str, to: int | InitMode, *, queue: int | None = None) -> None:
        """Move a group to an offset, to the first kept message or to the next one; its leases there turn STALE (P11)."""
        self._check_open()
        check_readable_topic(topic)
        if isinstance(to, str):
            raise IllegalArgumentTypeError(f"to must be an offset, InitMode.MIN or InitMode.MAX, not {to!r}")
        if not isinstance(to, InitMode):
            check_count("offset", to)
        if queue is not None:
            check_count("queue", queue)
        self._settle(self._pops, self._pops.reset_offset(topic, group, queue, to, self._clock.now_ms()))
        self._waits.arrived((topic,))


def _backoff_table(backoff: Sequence[timedelta]) -> list[int]:
    if not isinstance(backoff, Sequence) or isinstance(backoff, str | bytes) or not 1 <= len(backoff) <= _MAX_BACKOFF:
        raise IllegalArgumentTypeError(f"backoff must be a list of 1 to {_MAX_BACKOFF} durations, not {backoff!r}")
    return [timedelta_ms("each of backoff", each, minimum=1) for each in backoff]


def _listed(leased: Popped | Sequence[Popped]) -> Sequence[Popped]:
    if isinstance(leased, PoppedMessage | ChangeResult):
        return [leased]
    if not isinstance(leased, Sequence) or isinstance(leased, str | bytes):
        raise IllegalArgumentTypeError(f"retry_later takes a popped message or a list of them, not {type(leased).__name__}")
    return leased


def _checked_letters(letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
    expected = "expected a list of what dead_letters() or parked() gave"
    if not isinstance(letters, Sequence) or isinstance(letters, str | bytes):
        raise IllegalArgumentTypeError(f"{expected}, not {type(letters).__name__}")
    for row, each in enumerate(letters):
        if not isinstance(each, DeadLetter):
            raise IllegalArgumentTypeError(f"{expected}; row {row} is of type {type(each).__name__}")
    return letters
