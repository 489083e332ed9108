"""Where a send goes: to the timers or to its topics; and how it waits while flow control refuses it (T9)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeAlias

from rmqstore.batch import MessageBatch, topics_in
from rmqstore.contract import PopTxnResult, TimerReceipts, WriteStatus
from rmqstore.errors import FlowControlError, IllegalArgumentError
from rmqstore.message import MAX_TIME_MS, Message
from rmqstore.store.sending import CallName, Completer
from rmqstore.store.shared_writes import SharedWrites
from rmqstore.store.waits import ROOM, Patience, TopicWait
from rmqstore.when import timedelta_ms

if TYPE_CHECKING:
    from rmqstore.store.store import Store

_NO_MESSAGES: Final = MessageBatch(messages=())
_NO_GROUPS: Final[Mapping[str, int]] = {}
_Placed: TypeAlias = tuple[MessageBatch, TimerReceipts | None, bool]
"""What was stored, its handles if it waits, and whether it is a repeat."""


class Placing:
    """Stores what callers send, on the side where it belongs."""

    def __init__(self, store: Store, completer: Completer) -> None:
        self._store = store
        self._completer = completer
        self._clock = store._clock
        self._timers = store.engine.timers
        self._pops = store.engine.pops
        self._held = store._held
        self._waits = store._waits
        config = store.engine.config
        # Timers so far ahead may go together: no draw of flow control is about one of them, and none is refused for its time.
        self._together_ms = 0 if config.congestion_limit else config.max_delay_ms or MAX_TIME_MS
        self._later = SharedWrites[TimerReceipts](store, self._timers)
        self._now = SharedWrites[PopTxnResult](store, self._pops)

    def put(
        self,
        given: Message | MessageBatch,
        groups: Iterable[str],
        deliver_ms: int | None,
        latest_ms: int | None,
        marks: Sequence[bytes],
        now_ms: int,
    ) -> _Placed:
        """Complete what is sent; put it if it has a future row, else append it.

        A call with marks goes by whether it asks for a time at all: repeated after that time, it must meet its mark on the same side. One
        that a connection names goes as if it had none. So with a time that has passed it first leaves its name, without a message, among
        the timers: either it is there already, from when the message was due later; or no copy of the call can store a timer any more.
        ``groups``: the topics of messages with a message group.
        """
        if self._held.sends is not None:
            raise FlowControlError(f"{self._held.sends}; pauses.end or `rmqstore resume` lets them in again")
        group_queues = {topic: self._completer.group_queues(topic) for topic in groups} if groups else _NO_GROUPS
        batch = self._completer.batch(given, deliver_ms, now_ms, marks, group_queues)
        is_later = latest_ms is not None and latest_ms > now_ms
        if marks == () and not groups and self._store._sync_calls and isinstance(given, Message):
            if not is_later:
                self._now.put(self._pops.append, batch, now_ms)
                self._waits.arrived(topics_in(batch))
                return batch, None, False
            if latest_ms is not None and latest_ms <= now_ms + self._together_ms:
                receipts, row = self._later.put(self._timers.put, batch, now_ms)
                return batch, receipts if len(receipts.ticks) == 1 else receipts.of_row(row), False
        is_named = isinstance(marks, CallName)
        if marks and latest_ms is not None and not is_later:
            is_later = True
            if is_named:
                receipts, ticket = self._timers.put(_NO_MESSAGES, now_ms, marks)
                self._store._settle(self._timers, ticket)
                is_later = len(receipts) > 0
        if is_later:
            receipts, ticket = self._timers.put(batch, now_ms, marks)
            self._store._settle(self._timers, ticket)
            repeated = receipts.status is WriteStatus.REPEATED
            if not repeated or len(receipts) == len(batch):
                return batch, receipts, repeated
            if not (is_named and not len(receipts)):  # else the call was for now, when the clock was later than it is
                raise IllegalArgumentError(
                    f"the marks {list(marks)} are those of a call of {len(receipts)} messages, and this one has {len(batch)}: a repeat "
                    "carries the same messages; give another call other marks"
                )
        result, ticket = self._pops.append(batch, now_ms, marks, group_queues)
        if result.status is WriteStatus.MOVED:
            # Another first message with a group came in between: its number of queues holds.
            return self.put(given, groups, deliver_ms, latest_ms, marks, now_ms)
        self._store._settle(self._pops, ticket)
        self._waits.arrived(topics_in(batch))
        return batch, None, result.status is WriteStatus.REPEATED

    def put_within(self, timeout: timedelta, put: Callable[[int], _Placed], now_ms: int) -> _Placed:
        """Put, and wait up to ``timeout`` while flow control refuses it; ``put`` takes the time of each try, the one asked for stays."""
        patience = Patience(self._clock, timedelta_ms("timeout", timeout))
        with self._waits.on(TopicWait(ROOM, for_acks=False)) as waiting:
            while True:
                seen = waiting.count  # before the try, as with a pop
                try:
                    return put(now_ms)
                except FlowControlError:
                    if (left_s := patience.left_s()) <= 0:
                        raise
                waiting.wait_beyond(seen, min(left_s, threading.TIMEOUT_MAX))
                self._store._check_open()
                now_ms = self._clock.now_ms()
