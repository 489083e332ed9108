"""``Store``: one directory in which messages wait for their time and for their consumers.

The store joins a ``TimerStore`` and a ``PopStore`` by the hand-over, asks the clock, waits for the disk under ``flush = sync``, and turns
what users write (datetimes, texts, lists) into what the contract takes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Self, overload

import pyarrow as pa

from rmqstore.batch import MessageBatch
from rmqstore.clock import Clock, SystemClock
from rmqstore.contract import (
    AckOutcome,
    CancelOutcome,
    Change,
    ChangeOutcome,
    ChangeResult,
    Flush,
    InitMode,
    PopRequest,
    PopResult,
    PopStore,
    PopTxn,
    ReleaseOutcome,
    Removal,
    Side,
    Support,
    Ticket,
    TimerHandle,
    TimerStore,
    TopicInfo,
    WriteStatus,
)
from rmqstore.deadletters import DeadLetter, removal_of
from rmqstore.delays import RETRY_BACKOFF_MS, backoff_ms, batch_without_requests, level_ms, without_requests
from rmqstore.errors import (
    IllegalArgumentError,
    IllegalArgumentTypeError,
    IllegalMessageError,
    IllegalMessageTypeError,
    UnsupportedOperationError,
)
from rmqstore.filters import TagFilter, parse_filter
from rmqstore.handover import HandOver
from rmqstore.leased import Leased, LeasedMany, receipts_of
from rmqstore.message import (
    MAX_ID_BYTES,
    MAX_PROPERTIES_BYTES,
    Message,
    PoppedMessage,
    check_count,
    check_group,
    check_marks,
    check_message,
    check_readable_topic,
    check_time_ms,
    check_topic,
    check_word,
)
from rmqstore.opening import Opened, checked_clock, checked_path
from rmqstore.plugins import get_plugins
from rmqstore.reading import Reading
from rmqstore.readstore import ReadStore
from rmqstore.sending import Completer, SendReceipt, SendReceipts, has_message_group, ids_of, latest_deliver_ms
from rmqstore.services.signals import Signal
from rmqstore.services.ticker import Ticker
from rmqstore.snapshots import write_snapshot
from rmqstore.ticking import Ticking, TickReport
from rmqstore.when import Duration, When, duration_ms, time_ms


@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    mode: Literal["own"] = "own",
    engine: str | None = None,
    timer_engine: str | None = None,
    pop_engine: str | None = None,
    clock: Clock | None = None,
    services: bool = True,
    **settings: Any,
) -> Store: ...
@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    mode: Literal["read"],
    engine: str | None = None,
    timer_engine: str | None = None,
    pop_engine: str | None = None,
    clock: Clock | None = None,
    services: bool = True,
    **settings: Any,
) -> ReadStore: ...
def open(  # noqa: A001 - a store opens like a file
    path: str | os.PathLike[str],
    *,
    mode: Literal["own", "read"] = "own",
    engine: str | None = None,
    timer_engine: str | None = None,
    pop_engine: str | None = None,
    clock: Clock | None = None,
    services: bool = True,
    **settings: Any,
) -> Store | ReadStore:
    """Open the store in the directory ``path``, made as needed; its parent must exist.

    Args:
        mode: "own" the store, or "read" one state of it while somebody else owns it, or nobody does (X1). A reader makes nothing, takes no
            lock and runs no services, so ``clock`` and ``services`` mean nothing to it.
        engine: the storage engine; ``timer_engine`` and ``pop_engine`` choose one for each side.
        clock: where time comes from; the machine's by default.
        services: run a background thread that hands over, revives and flushes. Without it the store moves only by :meth:`Store.tick`.
        settings: any setting of docs/configuration.md; a dot in its key is written ``__``.

    Raises:
        ConfigError: a setting is wrong, or differs from what the store was made with.
        UnknownEngineError, EngineNotInstalledError, BrokenEngineError: the engine cannot be used.
        StorePathError: the directory cannot be used.
        StoreLockedError: the store is open elsewhere.
        FormatVersionError, CorruptStoreError: what is there cannot be read.
        UnsupportedOperationError: the engine cannot be opened for reading (S1).
    """
    if mode not in ("own", "read"):
        raise IllegalArgumentError(f"mode must be 'own' or 'read', not {mode!r}")
    names = {"engine": engine, "timer_engine": timer_engine, "pop_engine": pop_engine}
    if not isinstance(services, bool):
        raise IllegalArgumentTypeError(f"services must be True or False, not {services!r}")
    clock = checked_clock(clock)
    if mode == "read":
        return ReadStore(checked_path(path), {**names, **settings})
    store = Store(Opened(checked_path(path), {**names, **settings}), clock, services=services)
    get_plugins().notify_opened(store)
    return store


class Store(Reading):
    """An open store; made by :func:`rmqstore.open`, closed by :meth:`close` or a ``with`` statement. Safe to share between threads.

    Every call raises :class:`StoreClosedError` after ``close``, :class:`StoreForkedError` in a forked child, :class:`StoreFullError` when
    the disk has no room (then the call has changed nothing), and :class:`StorePoisonedError` after the disk failed.
    """

    def __init__(self, opened: Opened, clock: Clock, *, services: bool) -> None:
        super().__init__(opened.directory.path, opened.config, opened.timers, opened.pops)
        self._opened = opened
        self._clock = clock
        self._sync_calls = opened.config.flush is Flush.SYNC
        self._tick_lock = threading.RLock()
        self._arrivals = Signal()
        self._ticker_wake = Signal()
        self._completer = Completer(self._queues_of)
        config = opened.config
        self._hand_over = HandOver(opened.timers, opened.pops, one_log=opened.one_log, limit=config.hand_over_limit, sync=self._sync_calls)
        self._ticking = Ticking(opened, self._hand_over, lambda side, ticket: self._settle(side, ticket))
        self._unsubscribe: Callable[[], None] | None = None
        if (subscribe := getattr(clock, "subscribe", None)) is not None:
            self._unsubscribe = subscribe(self._clock_moved)
        self._ticker: Ticker | None = None
        if services:
            flush_ms = None if self._sync_calls else config.flush_interval_ms
            self._ticker = Ticker(self, self._ticker_wake, config.precision_ms, flush_ms)
            self._ticker.start()

    # ------------------------------------------------------------ sending

    def send(
        self,
        message: Message,
        *,
        deliver_at: When | None = None,
        delay: Duration | None = None,
        delay_level: int | None = None,
        marks: Sequence[bytes] = (),
    ) -> SendReceipt:
        """Store one message, now or for later.

        Args:
            deliver_at: when it is due: an aware ``datetime`` or ms since the epoch; past means now.
            delay: how long from now: a ``timedelta`` or ms.
            delay_level: how long from now, as one of RocketMQ's levels: 1 (1 s) to 18 (2 h). One of the three, or
                ``message.deliver_at_ms``, or a property ``DELAY``, ``TIMER_DELAY_SEC``, ``TIMER_DELAY_MS``, ``TIMER_DELIVER_MS``.
            marks: names of this call; when one is stored already, nothing is stored and the first answer comes back (I1).

        Raises:
            IllegalMessageError: the message breaks a limit; the error names the field.
            DelayTooLongError: the deliver time is beyond ``max_delay_ms``.
            FlowControlError: the tick is congested.
        """
        self._check_open()
        check_marks(marks)
        if not isinstance(message, Message):
            raise IllegalMessageTypeError(f"send takes a Message, not {type(message).__name__}; send_batch takes many")
        check_message(message)
        now_ms = self._clock.now_ms()
        message = without_requests(message, now_ms)
        deliver_ms = self._deliver_ms(message.deliver_at_ms, deliver_at, delay, delay_level, now_ms)
        if deliver_ms is not None and message.message_group is not None:
            raise IllegalMessageError("message_group and a deliver time exclude each other: a FIFO group has no place for a later message")
        row = self._completer.message(message, deliver_ms, now_ms, marks)
        timers, repeated = self._store(MessageBatch(messages=(row,)), deliver_ms, now_ms, marks)
        return SendReceipt(row.message_id or "", repeated, timers, 0)

    def send_batch(
        self,
        batch: MessageBatch | pa.RecordBatch | pa.Table | Sequence[Message],
        *,
        deliver_at: When | None = None,
        delay: Duration | None = None,
        delay_level: int | None = None,
        marks: Sequence[bytes] = (),
    ) -> SendReceipts:
        """Store many messages, all or nothing; a time given here holds for all, in place of the messages' own deliver times.

        Raises:
            IllegalMessageError: a row breaks a limit; the error names the row or the column, and nothing was stored.
        """
        self._check_open()
        check_marks(marks)
        if isinstance(batch, MessageBatch) and batch.source is not None:
            # What was popped or read goes on as new messages; its receipts and offsets stay behind.
            batch = MessageBatch.from_arrow(batch.columns)
        elif isinstance(batch, pa.RecordBatch | pa.Table):
            batch = MessageBatch.from_arrow(batch)
        elif not isinstance(batch, MessageBatch):
            batch = MessageBatch.of(batch)
        now_ms = self._clock.now_ms()
        batch = batch_without_requests(batch, now_ms)
        deliver_ms = self._deliver_ms(None, deliver_at, delay, delay_level, now_ms)
        if deliver_ms is not None and has_message_group(batch):
            raise IllegalMessageError("message_group and a deliver time exclude each other: a FIFO group has no place for a later message")
        rows = self._completer.batch(batch, deliver_ms, now_ms, marks)
        if not len(rows):
            return SendReceipts((), None, repeated=False)
        timers, repeated = self._store(rows, latest_deliver_ms(rows), now_ms, marks)
        return SendReceipts(ids_of(rows), timers, repeated)

    @staticmethod
    def _deliver_ms(
        own_ms: int | None, deliver_at: When | None, delay: Duration | None, delay_level: int | None, now_ms: int
    ) -> int | None:
        if sum(given is not None for given in (own_ms, deliver_at, delay, delay_level)) > 1:
            raise IllegalArgumentError("deliver_at, delay, delay_level and the message's own deliver time exclude each other; give one")
        if deliver_at is not None:
            return time_ms("deliver_at", deliver_at)
        if delay is not None or delay_level is not None:
            deliver_ms = now_ms + (duration_ms("delay", delay) if delay is not None else level_ms(delay_level or 0))
            check_time_ms("now + delay", deliver_ms)
            return deliver_ms
        return own_ms

    def _store(self, batch: MessageBatch, latest_ms: int | None, now_ms: int, marks: Sequence[bytes]) -> tuple[Any, bool]:
        """Put a batch that has any future row, append one that has none.

        A call with marks goes by whether it asks for a time at all: repeated after that time, it must meet its mark on the same side.
        """
        if latest_ms is not None and (latest_ms > now_ms or marks):
            receipts, ticket = self._timers.put(batch, now_ms, marks)
            self._settle(self._timers, ticket)
            return receipts, receipts.status is WriteStatus.REPEATED
        result, ticket = self._pops.append(batch, now_ms, marks)
        self._settle(self._pops, ticket)
        self._arrivals.notify()
        return None, result.status is WriteStatus.REPEATED

    def _queues_of(self, topic: str) -> int:
        known = self._pops.topic(topic)
        # An unknown one is made when its first message arrives, so that a refused send leaves nothing behind.
        return self._opened.config.default_queues if known is None else known.queues

    # ------------------------------------------------------------ cancelling

    @overload
    def cancel(self, handle: str | TimerHandle) -> CancelOutcome: ...  # type: ignore[overload-overlap] # a str is a sequence of str
    @overload
    def cancel(self, handle: Sequence[str | TimerHandle]) -> list[CancelOutcome]: ...
    def cancel(self, handle: str | TimerHandle | Sequence[str | TimerHandle]) -> CancelOutcome | list[CancelOutcome]:
        """Cancel a timer by its handle, or a list of them: one given, one outcome back.

        CANCELLED: it will never be delivered. ALREADY_DELIVERED: too late. UNKNOWN: no such timer was ever stored here, or the text is
        no handle of this store.
        """
        self._check_open()
        given = [handle] if isinstance(handle, str | TimerHandle) else handle
        if not isinstance(given, Sequence):
            raise IllegalArgumentTypeError(f"cancel takes a handle (str) or a list of them, not {type(handle).__name__}")
        parsed = [_parsed_handle(each) for each in given]
        outcomes, ticket = self._timers.cancel([each for each in parsed if each is not None], self._clock.now_ms())
        self._settle(self._timers, ticket)
        found = iter(outcomes)
        answers = [CancelOutcome.UNKNOWN if each is None else next(found) for each in parsed]
        return answers[0] if isinstance(handle, str | TimerHandle) else answers

    def cancel_key(self, topic: str, key: str) -> list[CancelOutcome]:
        """Cancel every pending timer of ``topic`` that carries ``key``: one outcome for each that was found, in order of sending."""
        self._check_open()
        check_topic(topic)
        check_word("a key", key, MAX_PROPERTIES_BYTES)
        outcomes, ticket = self._timers.cancel_key(topic, key, self._clock.now_ms())
        self._settle(self._timers, ticket)
        return outcomes

    # ------------------------------------------------------------ popping

    def pop(
        self,
        topic: str,
        group: str,
        *,
        max_messages: int = 32,
        invisible: Duration = 60_000,
        wait: Duration = 0,
        order: bool = False,
        filter: str = "*",
        attempt_id: str | None = None,
        queue: int | None = None,
    ) -> list[PoppedMessage]:
        """Lease up to ``max_messages`` messages to ``group``: until acked they are hidden from it for ``invisible``, then they come back.

        Args:
            invisible: length of the lease, a ``timedelta`` or ms.
            wait: how long to wait for the first message when there is none.
            order: pop in order (P9): nothing more of a queue before what was popped of it is acked. A group's first pop of a topic decides.
            filter: ``*``, a tag expression ``a || b``, or an SQL92 expression over properties (docs/filters.md).
            attempt_id: a repeat with the same id within the invisible time returns the same leases.
            queue: one queue of the topic; any by default.
        """
        result = self._pop(topic, group, max_messages, invisible, wait, order, filter, attempt_id, queue)
        return result.messages.messages()

    def pop_batch(
        self,
        topic: str,
        group: str,
        *,
        max_messages: int = 1024,
        invisible: Duration = 60_000,
        wait: Duration = 0,
        order: bool = False,
        filter: str = "*",
        attempt_id: str | None = None,
        queue: int | None = None,
    ) -> MessageBatch:
        """Like :meth:`pop`, as columns; give the batch to :meth:`ack` as it is."""
        return self._pop(topic, group, max_messages, invisible, wait, order, filter, attempt_id, queue).messages.columns()

    def _pop(
        self,
        topic: str,
        group: str,
        max_messages: int,
        invisible: Duration,
        wait: Duration,
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
            duration_ms("invisible", invisible, minimum=1),
            queue,
            order,
            attempt_id,
            filter,
            self._opened.config.init,
        )
        wait_ms = duration_ms("wait", wait)
        now_ms = self._clock.now_ms()
        until_ms, until_s = now_ms + wait_ms, time.monotonic() + wait_ms / 1000
        is_manual = not isinstance(self._clock, SystemClock)
        while True:
            # Count first, then look: what arrives in between moves the count, so the wait ends at once.
            seen = self._arrivals.count
            result, ticket = self._pops.pop(request, self._clock.now_ms())
            if len(result.messages):
                self._settle(self._pops, ticket)
                return result
            left_s = until_s - time.monotonic()
            if left_s <= 0 or (is_manual and self._clock.now_ms() >= until_ms):
                self._settle(self._pops, ticket)
                return result
            self._arrivals.wait_beyond(seen, min(left_s, threading.TIMEOUT_MAX))
            self._check_open()

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
        answers = given.spread(outcomes, AckOutcome.UNKNOWN)
        return answers[0] if given.is_single else answers

    @overload
    def change_invisible(self, leased: Leased, invisible: Duration) -> ChangeResult: ...  # type: ignore[overload-overlap] # as above
    @overload
    def change_invisible(self, leased: LeasedMany, invisible: Duration) -> list[ChangeResult]: ...
    def change_invisible(self, leased: Leased | LeasedMany, invisible: Duration) -> ChangeResult | list[ChangeResult]:
        """Let leases end ``invisible`` from now, longer or shorter; the result holds the receipt that counts from then on."""
        self._check_open()
        given = receipts_of(leased)
        invisible_ms = duration_ms("invisible", invisible, minimum=1)
        changes = [Change(each, invisible_ms) for each in given.receipts]
        results, ticket = self._pops.change_invisible(changes, self._clock.now_ms())
        self._settle(self._pops, ticket)
        answers = given.spread(results, ChangeResult(ChangeOutcome.UNKNOWN))
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
        self._arrivals.notify()
        answers = given.spread(outcomes, ReleaseOutcome.UNKNOWN)
        return answers[0] if given.is_single else answers

    @overload
    def retry_later(self, leased: PoppedMessage, backoff: Sequence[Duration] = RETRY_BACKOFF_MS) -> ChangeResult: ...
    @overload
    def retry_later(self, leased: Sequence[PoppedMessage], backoff: Sequence[Duration] = RETRY_BACKOFF_MS) -> list[ChangeResult]: ...
    def retry_later(
        self, leased: PoppedMessage | Sequence[PoppedMessage], backoff: Sequence[Duration] = RETRY_BACKOFF_MS
    ) -> ChangeResult | list[ChangeResult]:
        """Say that work on messages failed: each comes again after the entry of ``backoff`` for its attempt, and the attempt counts.

        The default is RocketMQ's table: 10 s, 30 s, 1 min … 2 h; the last entry holds for all further attempts.
        """
        self._check_open()
        given = [leased] if isinstance(leased, PoppedMessage) else leased
        if not isinstance(given, Sequence) or not all(isinstance(each, PoppedMessage) for each in given):
            raise IllegalArgumentTypeError(f"retry_later takes a popped message or a list of them, not {type(leased).__name__}")
        if not isinstance(backoff, Sequence) or isinstance(backoff, str | bytes) or not backoff:
            raise IllegalArgumentTypeError(f"backoff must be a list of durations, not {backoff!r}")
        table = [duration_ms("a duration of backoff", each, minimum=1) for each in backoff]
        receipts = receipts_of(given).receipts
        changes = [Change(receipt, backoff_ms(each.attempt, table)) for receipt, each in zip(receipts, given, strict=True)]
        results, ticket = self._pops.change_invisible(changes, self._clock.now_ms())
        self._settle(self._pops, ticket)
        return results[0] if isinstance(leased, PoppedMessage) else results

    # ------------------------------------------------------------ dead letters

    def resend_dead(self, letters: Sequence[DeadLetter]) -> int:
        """Give dead letters back to the group that did not ack them, as if never delivered; returns how many were still there.

        They go to the group's retry topic, so that no other group sees them; those of a group that pops in order go to the end of the
        topic itself. Each goes exactly once, also when two operators resend it at the same time.
        """
        ordered = {(each.group, each.topic): each.is_ordered for group in {x.group for x in letters} for each in self.subscriptions(group)}
        queues = {topic.name: topic.queues for topic in self.topics()}
        return self._remove_dead([removal_of(each, ordered, queues) for each in _checked_letters(letters)])

    def drop_dead(self, letters: Sequence[DeadLetter]) -> int:
        """Remove dead letters, or parked entries, for good; returns how many were still there."""
        return self._remove_dead([removal_of(each) for each in _checked_letters(letters)])

    def _remove_dead(self, removals: Sequence[Removal]) -> int:
        self._check_open()
        result, ticket = self._pops.apply(PopTxn(removals=removals), self._clock.now_ms())
        self._settle(self._pops, ticket)
        self._arrivals.notify()
        return sum(result.removals)

    # ------------------------------------------------------------ moving on

    def tick(self) -> TickReport:
        """Do what is due by the clock: hand over timers, revive expired leases, some upkeep.

        With ``services`` the store does this by itself.

        Raises:
            ClockStepError: the clock went forward by more than ``clock.max_step_ms`` (K2).
        """
        return self._tick(always=True)

    def service_tick(self) -> TickReport:
        """Do a tick of the background thread: revive and upkeep take their turns at their intervals."""
        return self._tick(always=False)

    def _tick(self, *, always: bool) -> TickReport:
        self._check_open()
        with self._tick_lock:
            report = self._ticking.run(self._clock.now_ms(), always=always)
        if report.moved:
            self._arrivals.notify()
        return report

    def confirm_clock_step(self) -> None:
        """Accept the present time although the clock jumped by more than ``clock.max_step_ms`` (K2)."""
        self._check_open()
        with self._tick_lock:
            self._ticking.confirm(self._clock.now_ms())
        self._ticker_wake.notify()

    def next_wake_ms(self) -> int | None:
        """Return in how many ms something may be due, 0 or less when it is; None when nothing is waiting."""
        due = [at for at in (self._timers.next_tick_ms(), self._pops.next_expiry_ms()) if at is not None]
        return min(due) - self._clock.now_ms() if due else None

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

    def delete_group(self, name: str) -> None:
        """Remove a group with its leases, positions and retry topics; its dead letter queue stays."""
        self._check_open()
        check_group(name)
        self._settle(self._pops, self._pops.delete_group(name))

    def reset_offset(self, topic: str, group: str, to: int | InitMode, *, queue: int | None = None) -> None:
        """Move a group to an offset, to the first kept message or to the next one; its leases there turn STALE (P11)."""
        self._check_open()
        check_readable_topic(topic)
        if not isinstance(to, InitMode):
            check_count("offset", to)
        if queue is not None:
            check_count("queue", queue)
        self._settle(self._pops, self._pops.reset_offset(topic, group, queue, to, self._clock.now_ms()))
        self._arrivals.notify()

    # ------------------------------------------------------------ keeping

    def snapshot(self, path: str | os.PathLike[str]) -> Path:
        """Write a consistent copy of the store, which must not exist yet, while it runs; it opens like any store. Returns its path."""
        self._check_open()
        with self._tick_lock:
            # No hand-over runs meanwhile, so nothing is forgotten between the two sides; the timers go first.
            return write_snapshot(self._opened, checked_path(path))

    def flush(self) -> None:
        """Make everything durable that was answered so far; only needed under ``flush = async``."""
        self._check_open()
        self._timers.sync()
        self._pops.sync()

    def close(self) -> None:
        """Make everything durable and let go of the directory; idempotent."""
        if self._closed:
            return
        if os.getpid() != self._pid:
            self._check_open()
        if self._ticker is not None:
            self._ticker.stop()
        if self._unsubscribe is not None:
            self._unsubscribe()
        with self._tick_lock:
            self._closed = True
            self._opened.close()
        self._arrivals.notify()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<rmqstore.Store {self._path} ({'closed' if self._closed else 'open'})>"

    # ------------------------------------------------------------ underneath

    @property
    def timers(self) -> TimerStore:
        """The timer side, for tools that speak the contract."""
        return self._timers

    @property
    def pops(self) -> PopStore:
        """The pop side, for tools that speak the contract."""
        return self._pops

    def _require(self, capability: str, what: str) -> None:
        """Refuse a call that needs what the pop engine does not declare (S1)."""
        engine = self._opened.config.pop_engine
        if getattr(self._opened.infos[engine].capabilities, capability) is not Support.FULL:
            raise UnsupportedOperationError(f"engine {engine!r} does not {what}; `rmqstore engines` lists what each engine can do")

    def _settle(self, side: Side, ticket: Ticket) -> None:
        """Wait for the disk where the setting asks for it."""
        if self._sync_calls and ticket.position:
            side.sync(ticket)

    def _clock_moved(self) -> None:
        self._ticker_wake.notify()
        self._arrivals.notify()


def _checked_letters(letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
    if not isinstance(letters, Sequence) or not all(isinstance(each, DeadLetter) for each in letters):
        raise IllegalArgumentTypeError(f"expected a list of what dead_letters() or parked() gave, not {type(letters).__name__}")
    return letters


def _parsed_handle(handle: str | TimerHandle) -> TimerHandle | None:
    if isinstance(handle, TimerHandle):
        return handle if handle.is_sound else None
    if not isinstance(handle, str):
        raise IllegalArgumentTypeError(
            f"a handle is a str, not {type(handle).__name__}; SendReceipt.handle is None for what was sent for now"
        )
    return TimerHandle.parse(handle)
