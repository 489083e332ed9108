"""``TimerParts``: what puts and cancels append to the log, with what the caches will hold of it.

Of one message or one timer it goes without arrays, which gives the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from rmqstore.batch import MessageBatch
from rmqstore.message import Message
from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.log.call import Messages, One
from rmqstore_wheel.timers.fetching import Fetcher
from rmqstore_wheel.timers.index import TimerIndex
from rmqstore_wheel.timers.records import encode_cancel, encode_cancels, encode_timer, encode_timers


class TimerParts:
    """Messages of the wheel's topic; the seq of the first is given, its queue offset is one less."""

    def __init__(self, index: TimerIndex, fetcher: Fetcher) -> None:
        self._index = index
        self._fetcher = fetcher

    # ------------------------------------------------------------ puts

    def put(self, batch: MessageBatch, first_seq: int, epoch: int, now_ms: int) -> tuple[Messages | One, list[int]]:
        """Return what a put of one message or more appends, and the ticks of its timers, ms."""
        alone = batch.messages[0] if len(batch) == 1 and not batch.has_columns else None
        if isinstance(alone, Message):
            return self._put_one(alone, first_seq, epoch, now_ms)
        found = encode_timers(batch, now_ms, self._index.precision_ms)
        seqs = np.arange(first_seq, first_seq + len(found.ticks))
        prepare = partial(self._index.prepare_put, found, seqs, epoch, now_ms)
        return Messages(WHEEL_TOPIC, 0, first_seq - 1, found.records, now_ms, prepare=prepare), found.ticks.tolist()

    def _put_one(self, message: Message, seq: int, epoch: int, now_ms: int) -> tuple[One, list[int]]:
        found = encode_timer(message, now_ms, self._index.precision_ms, seq - 1)
        prepare = partial(self._index.prepare_put_one, found, seq, epoch, now_ms)
        return One(WHEEL_TOPIC, 0, seq - 1, found.record, now_ms, prepare=prepare), [found.tick]

    # ------------------------------------------------------------ cancels

    def cancel(self, targets: Ints, ticks: Ints, first_seq: int, epoch: int, now_ms: int) -> Messages | One:
        """Return what a cancel of pending timers appends, one at least.

        Args:
            targets, ticks: their seqs and ticks.
        """
        store_ms = max(now_ms, 0)
        if len(targets) == 1:
            return self._cancel_one(targets, int(ticks[0]), first_seq, epoch, store_ms)
        found = encode_cancels(self._fetcher.timer_columns(targets), targets, ticks, store_ms, self._index.precision_ms)

        def prepare(offsets: Ints, sizes: Ints) -> Callable[[], None]:
            return self._index.prepare_cancels(first_seq, targets, epoch, offsets, sizes)

        return Messages(WHEEL_TOPIC, 0, first_seq - 1, found, store_ms, prepare=prepare)

    def _cancel_one(self, targets: Ints, tick: int, seq: int, epoch: int, store_ms: int) -> One:
        target = int(targets[0])
        record = encode_cancel(self._fetcher.properties(target), target, tick, store_ms, self._index.precision_ms, seq - 1)

        def prepare(offset: int, size: int) -> Callable[[], None]:
            return self._index.prepare_cancels(seq, targets, epoch, np.array([offset]), np.array([size]))

        return One(WHEEL_TOPIC, 0, seq - 1, record, store_ms, prepare=prepare)
