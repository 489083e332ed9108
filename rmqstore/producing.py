"""``Producing``: sending messages, now or for later, and cancelling them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, overload

import pyarrow as pa

from rmqstore.batch import MessageBatch, topics_in
from rmqstore.contract import (
    CancelOutcome,
    TimerHandle,
    WriteStatus,
)
from rmqstore.delays import batch_without_requests, level_ms, without_requests
from rmqstore.errors import (
    IllegalArgumentError,
    IllegalArgumentTypeError,
    IllegalMessageError,
    IllegalMessageTypeError,
)
from rmqstore.message import (
    MAX_PROPERTIES_BYTES,
    Message,
    check_marks,
    check_message,
    check_time_ms,
    check_topic,
    check_word,
)
from rmqstore.owning import Owning
from rmqstore.sending import SendReceipt, SendReceipts, grouped_topics, ids_of, latest_deliver_ms
from rmqstore.when import duration_ms, time_ms

_NO_PLACE = "message_group and a deliver time exclude each other: a FIFO group has no place for a later message"
_NO_GROUPS: Mapping[str, int] = {}
_ONE_TIME = "deliver_at, delay, delay_level and the message's own deliver time exclude each other; give one"


class Producing(Owning):
    """The calls of those who send."""

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

        Raises:
            IllegalMessageError: the message breaks a limit; the error names the field.
            DelayTooLongError: the deliver time is beyond ``max_delay_ms``.
            FlowControlError: the tick is congested.
            IllegalArgumentError: a mark is that of a call with more messages, which are timers.
        """
        self._check_open()
        check_marks(marks)
        if not isinstance(message, Message):
            raise IllegalMessageTypeError(f"send takes a Message, not {type(message).__name__}; send_batch takes many")
        check_message(message)
        now_ms = self._clock.now_ms()
        message = without_requests(message, now_ms)
        asked_ms = self._asked_ms(deliver_at, deliver_at_ms, delay, delay_ms, delay_level, now_ms)
        if asked_ms is not None and message.deliver_at_ms is not None:
            raise IllegalArgumentError(f"{_ONE_TIME}; the message has a deliver time of its own")
        deliver_ms = message.deliver_at_ms if asked_ms is None else asked_ms
        if deliver_ms is not None and message.message_group is not None:
            raise IllegalMessageError(_NO_PLACE)
        groups = () if message.message_group is None else (message.topic,)
        rows, timers, repeated = self._store(MessageBatch(messages=(message,)), groups, deliver_ms, deliver_ms, now_ms, marks)
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
    ) -> SendReceipts:
        """Store many messages, all or nothing; a time given here holds for all, in place of the messages' own deliver times.

        Raises:
            IllegalMessageError: a row breaks a limit, and the error names the row or the column; or some rows have a message group and
                others a deliver time (P9; :func:`~rmqstore.sending.calls_of` parts them). Nothing was stored.
            IllegalArgumentError: a mark is that of a call with more or fewer messages, which are timers.
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
        deliver_ms = self._asked_ms(deliver_at, deliver_at_ms, delay, delay_ms, delay_level, now_ms)
        if not len(batch):
            return SendReceipts((), None, repeated=False)
        groups = grouped_topics(batch)
        latest_ms = latest_deliver_ms(batch) if deliver_ms is None else deliver_ms
        if groups and latest_ms is not None:
            # A call with later messages waits as a whole, and what is sent next would overtake the group's.
            raise IllegalMessageError(f"{_NO_PLACE}; send messages with a group and messages with a time in calls of their own")
        rows, timers, repeated = self._store(batch, groups, deliver_ms, latest_ms, now_ms, marks)
        return SendReceipts(ids_of(rows), timers, repeated)

    @staticmethod
    def _asked_ms(
        deliver_at: datetime | None,
        deliver_at_ms: int | None,
        delay: timedelta | None,
        delay_ms: int | None,
        delay_level: int | None,
        now_ms: int,
    ) -> int | None:
        due_ms = None if deliver_at is None and deliver_at_ms is None else time_ms("deliver_at", deliver_at, deliver_at_ms)
        later_ms = None if delay is None and delay_ms is None else duration_ms("delay", delay, delay_ms)
        if (due_ms, later_ms, delay_level).count(None) < 2:
            raise IllegalArgumentError(_ONE_TIME)
        if delay_level is not None:
            later_ms = level_ms(delay_level)
        if later_ms is not None:
            due_ms = now_ms + later_ms
            check_time_ms("now + delay", due_ms)
        return due_ms

    def _store(
        self,
        given: MessageBatch,
        groups: Iterable[str],
        deliver_ms: int | None,
        latest_ms: int | None,
        now_ms: int,
        marks: Sequence[bytes],
    ) -> tuple[MessageBatch, Any, bool]:
        """Complete a batch; put it if it has a future row, else append it; returns it, its handles, and whether it is a repeat.

        A call with marks goes by whether it asks for a time at all: repeated after that time, it must meet its mark on the same side.
        ``groups``: the topics of messages with a message group.
        """
        group_queues = {topic: self._group_queues_of(topic) for topic in groups} if groups else _NO_GROUPS
        batch = self._completer.batch(given, deliver_ms, now_ms, marks, group_queues)
        if latest_ms is not None and (latest_ms > now_ms or marks):
            receipts, ticket = self._timers.put(batch, now_ms, marks)
            self._settle(self._timers, ticket)
            repeated = receipts.status is WriteStatus.REPEATED
            if repeated and len(receipts) != len(batch):
                raise IllegalArgumentError(
                    f"the marks {list(marks)} are those of a call of {len(receipts)} messages, and this one has {len(batch)}: a repeat "
                    "carries the same messages; give another call other marks"
                )
            return batch, receipts, repeated
        result, ticket = self._pops.append(batch, now_ms, marks, group_queues)
        if result.status is WriteStatus.MOVED:
            # Another first message with a group came in between: its number of queues holds.
            return self._store(given, groups, deliver_ms, latest_ms, now_ms, marks)
        self._settle(self._pops, ticket)
        self._waits.arrived(topics_in(batch))
        return batch, None, result.status is WriteStatus.REPEATED

    # ------------------------------------------------------------ cancelling

    @overload
    def cancel(self, handle: SendReceipt | str | TimerHandle) -> CancelOutcome: ...  # type: ignore[overload-overlap] # a str is a sequence of str
    @overload
    def cancel(self, handle: Sequence[SendReceipt | str | TimerHandle]) -> list[CancelOutcome]: ...
    def cancel(
        self, handle: SendReceipt | str | TimerHandle | Sequence[SendReceipt | str | TimerHandle]
    ) -> CancelOutcome | list[CancelOutcome]:
        """Cancel a timer by what its send returned, by its handle, or a list of them: one given, one outcome back.

        CANCELLED: it will never be delivered. ALREADY_DELIVERED: too late. UNKNOWN: no such timer was ever stored here, the text is
        no handle of this store, or the message was sent for now and never was a timer.
        """
        self._check_open()
        is_single = isinstance(handle, SendReceipt | str | TimerHandle)
        given = [handle] if isinstance(handle, SendReceipt | str | TimerHandle) else handle
        if not isinstance(given, Sequence):
            raise IllegalArgumentTypeError(
                f"cancel takes a receipt of a send, a handle (str) or a list of them, not {type(handle).__name__}"
            )
        parsed = [_parsed_handle(each) for each in given]
        outcomes, ticket = self._timers.cancel([each for each in parsed if each is not None], self._clock.now_ms())
        self._settle(self._timers, ticket)
        found = iter(outcomes)
        answers = [CancelOutcome.UNKNOWN if each is None else next(found) for each in parsed]
        return answers[0] if is_single else answers

    def cancel_key(self, topic: str, key: str) -> list[CancelOutcome]:
        """Cancel every pending timer of ``topic`` that carries ``key``: one outcome for each that was found, in order of sending."""
        self._check_open()
        check_topic(topic)
        check_word("a key", key, MAX_PROPERTIES_BYTES)
        outcomes, ticket = self._timers.cancel_key(topic, key, self._clock.now_ms())
        self._settle(self._timers, ticket)
        return outcomes


def _parsed_handle(handle: SendReceipt | str | TimerHandle) -> TimerHandle | None:
    if isinstance(handle, SendReceipt):
        return handle.timer
    if isinstance(handle, TimerHandle):
        return handle if handle.is_sound else None
    if not isinstance(handle, str):
        raise IllegalArgumentTypeError(
            f"a handle is a str, not {type(handle).__name__}; SendReceipt.handle is None for what was sent for now"
        )
    return TimerHandle.parse(handle)
