"""``Store``: one directory in which messages wait for their time and for their consumers.

The store joins a ``TimerStore`` and a ``PopStore`` by the hand-over, asks the clock, waits for the disk under ``flush = sync``, and turns
what users write (datetimes, texts, lists) into what the contract takes.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar, overload

from rmqstore.batch import MessageBatch
from rmqstore.clock import Clock
from rmqstore.contract import (
    AckOutcome,
    CancelOutcome,
    Change,
    ChangeOutcome,
    ChangeResult,
    Flush,
    PopTxn,
    Reject,
    RejectOutcome,
    ReleaseOutcome,
    Side,
    Ticket,
)
from rmqstore.delays import RETRY_BACKOFF_MS, backoff_ms, backoff_table, batch_without_requests, without_requests
from rmqstore.errors import (
    IllegalArgumentError,
    IllegalArgumentTypeError,
    IllegalMessageError,
    IllegalMessageTypeError,
    LostCallsError,
    StorePoisonedError,
    TransferError,
)
from rmqstore.late import pa
from rmqstore.message import (
    MAX_PROPERTIES_BYTES,
    NO_PLACE,
    Message,
    PoppedMessage,
    check_marks,
    check_message,
    check_topic,
    check_word,
    dlq_topic,
    reason_text,
)
from rmqstore.store.handlers import refuse_within
from rmqstore.store.handover import HandOver
from rmqstore.store.health import Health, health_of
from rmqstore.store.opening import OwnedEngines, checked_path
from rmqstore.store.pauses import Held
from rmqstore.store.placing import Placing
from rmqstore.store.popping import Popping
from rmqstore.store.reader import Reader
from rmqstore.store.receipts import (
    NO_RECEIPTS,
    Leased,
    LeasedMany,
    Popped,
    PoppedMessages,
    Sent,
    handles_of,
    popped_in,
    receipts_of,
    renewed,
)
from rmqstore.store.rounds import Round
from rmqstore.store.schedules import Scheduler
from rmqstore.store.sending import (
    ONE_TIME,
    Completer,
    SendReceipt,
    SendReceipts,
    asked_ms,
    grouped_topics,
    ids_of,
    latest_deliver_ms,
    new_batch,
)
from rmqstore.store.snapshots import write_snapshot
from rmqstore.store.tick import Ticking, TickReport
from rmqstore.store.ticker import Duties, Ticker
from rmqstore.store.waits import Signal, Waits
from rmqstore.when import duration_ms

if TYPE_CHECKING:
    from rmqstore.services.worker import Handler, Worker

_topic_of = attrgetter("topic")  # of a receipt; no function of Python, which would be one call more each time

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Store(Reader):
    """An open store; made by :func:`rmqstore.open`, closed by :meth:`close` or a ``with`` statement. Safe to share between threads.

    Every call raises :class:`StoreClosedError` after ``close``, :class:`StoreForkedError` in a forked child, :class:`StoreFullError` when
    the disk has no room (then the call has changed nothing), and :class:`StorePoisonedError` after the disk failed.
    """

    engine: OwnedEngines

    @functools.cached_property
    def _workers(self) -> weakref.WeakSet[Worker]:
        return weakref.WeakSet()

    def __init__(self, engine: OwnedEngines, clock: Clock, *, services: bool) -> None:
        super().__init__(engine.directory.path, engine)
        config = engine.config
        self._clock = clock
        self._sync_calls = config.flush is Flush.SYNC
        self._waits = Waits()
        self._untold: LostCallsError | None = None
        self._in_steps: set[int] = set()
        self._waiting: set[int] = set()
        self._round: Round | None = None
        self._tick_lock = threading.RLock()
        self._snapshot_lock = threading.RLock()
        self._held = Held(self._pops)
        completer = Completer(self._pops, config)
        self._placing = Placing(self, completer)
        self._popping = Popping(self)
        # Wakes those who wait for messages that came to their topics from within the store.
        self._arrived = functools.partial(self._waits.moved, self._popping.ends_of)
        self._hand_over = HandOver(self)
        self._scheduler = Scheduler(self._pops, completer, self._held, config.hand_over_limit)
        self._ticking = Ticking(self)
        self._ticker_wake = Signal()
        self._unsubscribe: Callable[[], None] | None = None
        if (subscribe := getattr(clock, "subscribe", None)) is not None:
            self._unsubscribe = subscribe(self._clock_moved)
        self._ticker: Ticker | None = None
        self._look_at_loads()
        if services:
            flush_ms = config.flush_interval_ms if Flush.ASYNC in (config.flush, config.pop_flush) else None
            self._ticker = Ticker(Duties(self), self._ticker_wake, config.precision_ms, flush_ms)
            self._ticker.start()

    # ------------------------------------------------------------ sending

    def send(
        self,
        message: Message,
        *,
        deliver_at: datetime | None = None,
        deliver_at_ms: int | None = None,
        delay: timedelta | None = None,
        delay_ms: int | None = None,
        delay_level: int | None = None,
        marks: Sequence[bytes] = (),
        timeout: timedelta | None = None,
    ) -> SendReceipt:
        """Store one message, now or for later.

        Args:
            deliver_at: when it is due, an aware ``datetime``; past means now.
            deliver_at_ms: the same in ms since the epoch.
            delay: how long from now, a ``timedelta``; zero means now.
            delay_ms: the same in ms.
            delay_level: how long from now, as one of RocketMQ's levels: 1 (1 s) to 18 (2 h). One of the five, or
                ``message.deliver_at_ms``, or a property ``DELAY``, ``TIMER_DELAY_SEC``, ``TIMER_DELAY_MS``, ``TIMER_DELIVER_MS``.
            marks: names of this call; when one is stored already, nothing is stored and the first answer comes back (I1).
            timeout: how long to wait while flow control refuses it, a ``timedelta``; by default it does not. It is tried again when a
                pause ends, and when a tick or a cancel makes room. A ``delay`` counts from the call.

        Raises:
            IllegalMessageError: the message breaks a limit; the error names the field.
            DelayTooLongError: the deliver time is beyond ``max_delay_ms``.
            FlowControlError: the tick is congested, or sends are paused, and stay so for ``timeout``.
            IllegalArgumentError: a mark is that of a call with more messages, which are timers.
            StoreUnavailableError: another thread that was to store it was ended in the middle; it may be stored (F4).
        """
        self._check_open()
        if marks != ():
            check_marks(marks)
        if not isinstance(message, Message):
            raise IllegalMessageTypeError(f"send takes a Message, not {type(message).__name__}; send_batch takes many")
        check_message(message)
        now_ms = self._clock.now_ms()
        if message.properties:
            message = without_requests(message, now_ms)
        due_ms = asked_ms(deliver_at, deliver_at_ms, delay, delay_ms, delay_level, now_ms)
        if due_ms is not None and message.deliver_at_ms is not None:
            raise IllegalArgumentError(f"{ONE_TIME}; the message has a deliver time of its own")
        deliver_ms = message.deliver_at_ms if due_ms is None else due_ms
        if deliver_ms is not None and message.message_group is not None:
            raise IllegalMessageError(NO_PLACE)
        groups = () if message.message_group is None else (message.topic,)
        put = functools.partial(self._placing.put, message, groups, deliver_ms, deliver_ms, marks)
        rows, timers, repeated = put(now_ms) if timeout is None else self._placing.put_within(timeout, put, now_ms)
        return SendReceipt(rows.messages[0].message_id or "", repeated, timers, 0)

    def send_batch(
        self,
        batch: MessageBatch | pa.RecordBatch | pa.Table | Sequence[Message],
        *,
        deliver_at: datetime | None = None,
        deliver_at_ms: int | None = None,
        delay: timedelta | None = None,
        delay_ms: int | None = None,
        delay_level: int | None = None,
        marks: Sequence[bytes] = (),
        timeout: timedelta | None = None,
    ) -> SendReceipts:
        """Store many messages, all or nothing; a time given here holds for all, in place of the messages' own deliver times.

        It waits up to ``timeout`` as :meth:`send` does, until flow control lets in all of them.

        Raises:
            IllegalMessageError: a row breaks a limit, and the error names the row or the column; or some rows have a message group and
                others a deliver time (P9; :func:`~rmqstore.store.sending.calls_of` parts them). Nothing was stored.
            IllegalArgumentError: a mark is that of a call with more or fewer messages, which are timers.
        """
        self._check_open()
        check_marks(marks)
        batch = new_batch(batch)
        now_ms = self._clock.now_ms()
        batch = batch_without_requests(batch, now_ms)
        deliver_ms = asked_ms(deliver_at, deliver_at_ms, delay, delay_ms, delay_level, now_ms)
        if not len(batch) and not marks:
            return SendReceipts((), None, repeated=False)
        groups = grouped_topics(batch)
        latest_ms = latest_deliver_ms(batch) if deliver_ms is None else deliver_ms
        if groups and latest_ms is not None:
            # A call with later messages waits as a whole, and what is sent next would overtake the group's.
            raise IllegalMessageError(f"{NO_PLACE}; send messages with a group and messages with a time in calls of their own")
        put = functools.partial(self._placing.put, batch, groups, deliver_ms, latest_ms, marks)
        rows, timers, repeated = put(now_ms) if timeout is None else self._placing.put_within(timeout, put, now_ms)
        return SendReceipts(ids_of(rows), timers, repeated)

    # ------------------------------------------------------------ cancelling

    @overload
    def cancel(self, handle: Sent) -> CancelOutcome: ...  # type: ignore[overload-overlap] # a str is a sequence of str
    @overload
    def cancel(self, handle: Sequence[Sent]) -> list[CancelOutcome]: ...
    def cancel(self, handle: Sent | Sequence[Sent]) -> CancelOutcome | list[CancelOutcome]:
        """Cancel a timer by what its send returned, by its handle, or a list of them: one given, one outcome back.

        CANCELLED: it will never be delivered. ALREADY_DELIVERED: too late. UNKNOWN: no such timer was ever stored here, the text is
        no handle of this store, or the message was sent for now and never was a timer.

        Raises:
            CorruptStoreError: a timer that one may name cannot be read any more; nothing is cancelled.
        """
        self._check_open()
        given = handles_of(handle)
        outcomes, ticket = self._timers.cancel(given.names, self._clock.now_ms())
        self._settle(self._timers, ticket)
        self._waits.made_room()
        return given.answer(outcomes, CancelOutcome.UNKNOWN)

    def cancel_key(self, topic: str, key: str) -> list[CancelOutcome]:
        """Cancel every pending timer of ``topic`` that carries ``key``: one outcome for each that was found, in order of sending."""
        return self.cancel_keys(topic, [key])[0]

    def cancel_keys(self, topic: str, keys: Sequence[str]) -> list[list[CancelOutcome]]:
        """Cancel every pending timer of ``topic`` that carries one of ``keys``, in one atomic call.

        For each key the outcomes, as :meth:`cancel_key` gives them; a timer that carries two of the keys is in both lists.

        Raises:
            CorruptStoreError: a timer that may carry one cannot be read any more; nothing is cancelled.
        """
        self._check_open()
        check_topic(topic)
        if isinstance(keys, str) or not isinstance(keys, Sequence):
            raise IllegalArgumentTypeError(f"keys must be a list of texts, not {type(keys).__name__}; cancel_key takes one key")
        for key in keys:
            check_word("a key", key, MAX_PROPERTIES_BYTES)
        outcomes, ticket = self._timers.cancel_keys(topic, keys, self._clock.now_ms())
        self._settle(self._timers, ticket)
        self._waits.made_room()
        return outcomes

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
        acks: Leased | LeasedMany = (),
    ) -> PoppedMessages:
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
            acks: what is done, as :meth:`ack` takes it, of any topic and group. It is acked first, in the same atomic step, at once even
                when the pop then waits: a worker's loop needs one sync a round, not two. The outcomes are in ``.acks`` of the list.
        """
        given = receipts_of(acks) if acks != () else NO_RECEIPTS
        request, patience_ms = self._popping.asked(
            topic, group, max_messages, invisible, invisible_ms, wait, wait_ms, order, filter, attempt_id, queue, given.names
        )
        result = self._popping.wait(request, patience_ms) if patience_ms else self._popping.look(request)
        found = PoppedMessages(result.messages.messages())
        if given is not NO_RECEIPTS:
            found.acks = given.spread(result.acks, AckOutcome.UNKNOWN)
        return found

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
        request, patience_ms = self._popping.asked(
            topic, group, max_messages, invisible, invisible_ms, wait, wait_ms, order, filter, attempt_id, queue
        )
        return (self._popping.wait(request, patience_ms) if patience_ms else self._popping.look(request)).messages.columns()

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
        result, ticket = self._pops.apply(PopTxn(acks=given.names), self._clock.now_ms())
        self._settle(self._pops, ticket)
        self._waits.acked(map(_topic_of, given.names))
        return given.answer(result.acks, AckOutcome.UNKNOWN)

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
        changes = [Change(each, wanted_ms) for each in given.names]
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
        outcomes, ticket = self._pops.release(given.names, self._clock.now_ms())
        self._settle(self._pops, ticket)
        self._waits.arrived(map(_topic_of, given.names))
        return given.answer(outcomes, ReleaseOutcome.UNKNOWN)

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
            backoff: a table by attempt, whose last entry repeats; by default that of the group (``groups.set``), or else RocketMQ's: 10 s,
                30 s, 1 min … 2 h.
        """
        self._check_open()
        messages = popped_in(leased)
        table: Sequence[int] = () if backoff is None else backoff_table(backoff)
        wait_ms = duration_ms("delay", delay, delay_ms, minimum=1)
        if wait_ms is not None:
            table = [wait_ms]
        why = reason_text(reason)
        given = receipts_of(messages)
        known = [each for place, each in enumerate(messages) if place not in given.unknown]
        own = {} if table else {name: each.backoff_ms for name, each in self._pops.group_settings().items()}
        changes = [
            Change(receipt, backoff_ms(each.attempt, table or own.get(receipt.group) or RETRY_BACKOFF_MS), True, why)
            for receipt, each in zip(given.names, known, strict=True)
        ]
        results, ticket = self._pops.change_invisible(changes, self._clock.now_ms())
        self._settle(self._pops, ticket)
        answers = renewed(messages, given.spread(results, ChangeResult(ChangeOutcome.UNKNOWN)))
        return answers[0] if isinstance(leased, PoppedMessage | ChangeResult) else answers

    @overload
    def reject(self, leased: Leased, *, reason: str = "") -> RejectOutcome: ...  # type: ignore[overload-overlap] # as above
    @overload
    def reject(self, leased: LeasedMany, *, reason: str = "") -> list[RejectOutcome]: ...
    def reject(self, leased: Leased | LeasedMany, *, reason: str = "") -> RejectOutcome | list[RejectOutcome]:
        """Give messages up: they go to the dead letter queue of their group at once, with ``reason``, however many attempts are left.

        Of a reason, what is beyond 1024 bytes is cut. ``dead_letters.list`` shows it, and ``dead_letters.resend`` gives the message back.
        """
        self._check_open()
        given = receipts_of(leased)
        why = reason_text(reason)
        result, ticket = self._pops.apply(PopTxn(rejects=[Reject(each, why) for each in given.names]), self._clock.now_ms())
        self._settle(self._pops, ticket)
        self._waits.acked(map(_topic_of, given.names))
        self._waits.arrived(dlq_topic(receipt.group) for receipt in given.names)
        return given.answer(result.rejects, RejectOutcome.UNKNOWN)

    def consume(
        self,
        topics: str | Sequence[str],
        group: str,
        handler: Handler,
        *,
        threads: int = 1,
        batch: int = 32,
        invisible: timedelta = timedelta(seconds=60),
        timeout: timedelta | None = None,
        order: bool = False,
        filter: str = "*",
    ) -> Worker:
        """Start threads that give each message of ``topics`` to ``handler``; returns the worker, which goes on until its ``stop``.

        A message is acked when the handler returns. When it raises, the message comes again after the back-off of its group, and the
        error is kept as the reason; :class:`~rmqstore.Retry` says after which time, :class:`~rmqstore.Reject` that it shall not come again.
        The message has no receipt, since its lease is the worker's. A close of the store stops the worker first.

        Args:
            threads: for each topic.
            batch: how many messages a thread pops at a time.
            invisible: at least 1 s; so soon another worker gets what a dead one held. Leases are extended as long as a handler runs.
            timeout: so long; then its lease is left to end, and the message comes again. The handler itself is not stopped.
            order: as with :meth:`pop`; threads handle different queues side by side.
            filter: as with :meth:`pop`.
        """
        from rmqstore.services.worker import Worker  # few programs need it

        self._check_open()
        made = Worker(
            self, topics, group, handler, threads=threads, batch=batch, invisible=invisible, timeout=timeout, order=order, filter=filter
        )
        self._workers.add(made)
        return made

    def _stop_workers(self) -> None:
        if self._workers:
            from rmqstore.services.worker import end_all

            end_all(list(self._workers))

    # ------------------------------------------------------------ moving on

    def tick(self) -> TickReport:
        """Do what is due by the clock: hand over timers, revive expired leases, some upkeep.

        With ``services`` the store does this by itself.

        Raises:
            ClockStepError: the clock went forward by more than ``clock.max_step_ms`` (K2).
        """
        refuse_within(self)
        return self._tick(always=True)

    def _tick(self, *, always: bool) -> TickReport:
        self._check_open()
        with self._tick_lock:
            if self._refusal is not None:  # by a load, which holds the lock
                self._refuse()
            try:
                report = self._ticking.run(self._clock.now_ms(), always=always)
                made_room = self._ticking.made_room  # with the lock, as the next tick says it anew
            except BaseException as error:
                if isinstance(error, StorePoisonedError):
                    self._poisoned(error)
                self._waits.anything()  # what came before the step that failed is there
                raise
        if report.retried or report.dead or report.parked:
            self._waits.anything()  # a retry topic, or the place in a queue that comes free
        elif report.handed_over or report.scheduled:
            self._arrived()
        elif made_room:
            self._waits.made_room()
        return report

    def confirm_clock_step(self) -> None:
        """Accept the present time although the clock jumped by more than ``clock.max_step_ms`` (K2)."""
        self._as_owner("confirm_clock_step")
        with self._tick_lock:
            self._ticking.confirm(self._clock.now_ms())
        self._ticker_wake.notify()

    def next_wake_ms(self) -> int | None:
        """Return in how many ms something may be due, 0 or less when it is; None when nothing is waiting."""
        self._check_open()
        moving = () if self._held.hand_over else (self._timers.next_tick_ms(), self._scheduler.next_ms)
        due = [at for at in (*moving, self._pops.next_expiry_ms()) if at is not None]
        return min(due) - self._clock.now_ms() if due else None

    def health(self) -> Health:
        """Tell how the store does: whether it hands over in time, what waits, and how far each group is behind."""
        self._check_open()
        return health_of(self, self._clock.now_ms(), None if self._ticker is None else self._ticker.failure)

    # ------------------------------------------------------------ keeping

    def snapshot(self, path: str | os.PathLike[str]) -> Path:
        """Write a consistent copy of the store, which must not exist yet, while it runs; it opens like any store. Returns its path.

        It is the store of one moment of this call; other calls go on (R7). Where timers and messages are in two engines, each has its own
        moment, and ticks wait.
        """
        self._as_owner("snapshot")
        # No hand-over runs between two moments, so nothing is forgotten there; the timers go first.
        with self._snapshot_lock, nullcontext() if self.engine.one_log else self._tick_lock:
            self._check_open()  # a close may have been first
            return self._synced(write_snapshot, self.engine, checked_path(path))

    def flush(self) -> None:
        """Make everything durable that was answered so far; only ``flush = async``, ``pop.flush = async`` and ``pop.buffer`` need it."""
        self._check_open()
        self._synced(self._timers.sync)
        self._synced(self._pops.sync)

    def _end(self) -> None:
        """Make everything durable and let go of the directory."""
        self._stop_workers()
        self._held.close()
        if self._ticker is not None:
            self._ticker.stop()
        if self._unsubscribe is not None:
            self._unsubscribe()
        try:
            with self._snapshot_lock, self._tick_lock:
                super()._end()
        finally:
            self._waits.anything()
        if self._untold is not None:
            raise self._untold

    # ------------------------------------------------------------ what the calls share

    def _check_open(self) -> None:
        if self._in_steps:
            self._hand_over.meet()
        if self._refusal is not None or self._untold is not None or os.getpid() != self._pid or self.engine.directory.is_removed:
            self._refuse()
        if self._waiting and threading.get_ident() in self._waiting:
            refuse_within(self)
            self._waiting.discard(threading.get_ident())  # an interrupted call left it there

    def _refuse(self) -> None:
        super()._refuse()
        if self._untold is not None and not (self._ticker is not None and self._ticker.is_here):  # which goes on without being told
            untold, self._untold = self._untold, None
            if untold is not None:  # no other thread was told
                raise untold
        if self.engine.directory.is_removed:
            self._refusal = StorePoisonedError(
                f"the files of store {self._path}, or its lock file, were removed while it was open; close it, and if nothing is left, "
                "restore it from a snapshot"
            )
            raise self._refusal

    def _as_owner(self, call: str) -> Store:
        self._check_open()
        refuse_within(self)
        return self

    def _look_at_loads(self) -> None:
        """Refuse every call while a load is not complete, and let calls go on once it is.

        What a call or a tick puts beside a part, the rest of the load would write over; and it could not tell any more what is missing.
        """
        if self._refusal is not None and not isinstance(self._refusal, TransferError):
            return
        known = (record for side in (self._timers, self._pops) for record in side.adopted().values())
        found = next((record for record in known if not record.is_complete), None)
        self._refusal = None
        if found is not None:
            self._refusal = TransferError(
                f"store {self._path} is in the middle of a load of store {found.broker}; load the same dump again, and it goes on, or load "
                "it into an empty directory"
            )

    def _settle(self, side: Side, ticket: Ticket) -> None:
        """Wait for the disk where the setting asks for it; in a round, note only that the answer needs it."""
        if type(self._refusal) is TransferError:  # the call waited while a load failed, and is of no use beside the part
            self._refuse()
        if self._sync_calls and ticket.position:
            if (held := self._round) is not None and held.note(side, ticket):
                return
            waiting, me = self._waiting, threading.get_ident()
            try:
                waiting.add(me)
                side.sync(ticket)
            except StorePoisonedError as error:
                self._poisoned(error)
                raise
            finally:
                waiting.discard(me)

    def _synced(self, call: Callable[_P, _T], *arguments: _P.args, **options: _P.kwargs) -> _T:
        """Do what waits for the disk."""
        try:
            self._waiting.add(threading.get_ident())
            return call(*arguments, **options)
        except StorePoisonedError as error:
            self._poisoned(error)
            raise
        finally:
            self._waiting.discard(threading.get_ident())

    def _poisoned(self, error: StorePoisonedError) -> None:
        """Refuse all later calls, as a sync failed; also those that the engine of the other side would answer (F2)."""
        if not self._is_closed:
            self._refusal = error

    def _clock_moved(self) -> None:
        self._ticker_wake.notify()
        self._waits.anything()
