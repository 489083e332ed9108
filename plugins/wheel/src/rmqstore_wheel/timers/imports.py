"""``import_state`` of the wheel's timer side: timers become messages of the wheel's topic, all else becomes keys of the journal.

A timer keeps its seq, so its message keeps the queue offset that goes with it, and says which tick and epoch it had; so whoever applies the
log again learns the same. Pages of another store come by tick, so their seqs come in any order and leave gaps.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from rmqstore.contract import TimerCursor
from rmqstore.engine.kv.base import OrderedKV, WriteBatch
from rmqstore.engine.schema import META, U64
from rmqstore.engine.state.imports import numbers
from rmqstore.engine.timers.transfer import TimerImport
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.log.appending import Messages
from rmqstore_wheel.timers.index import LAST_SEQ_KEY, TimerIndex, noted_last_seq
from rmqstore_wheel.timers.records import EncodedTimers, encode_timers_as_they_were


class WheelTimerImport(TimerImport):
    """One call's rows; the timers among them are one piece of the log, by seq."""

    def __init__(self, kv: OrderedKV, write: WriteBatch, sealed: TimerCursor, index: TimerIndex) -> None:
        super().__init__(kv, write, sealed)
        self._index = index
        self._rows: list[pa.RecordBatch] = []

    def take_timers(self, rows: pa.RecordBatch) -> None:
        if len(rows):
            self._rows.append(rows)

    def stage(self) -> list[int]:
        """Put what all rows together come to into the write; returns the ticks of the timers."""
        ticks: list[int] = []
        if self._rows:
            rows = pa.Table.from_batches(self._rows).combine_chunks().to_batches()[0]
            rows = rows.take(pa.array(np.argsort(numbers(rows, "seq"), kind="stable")))
            found = encode_timers_as_they_were(rows, self._index.precision_ms)
            self.write.parts.append(self._messages(rows, found))
            ticks = found.ticks.tolist()
        self.write.put(META, LAST_SEQ_KEY, U64.pack(max(self.last_seq, noted_last_seq(self.kv))))
        return ticks

    def _messages(self, rows: pa.RecordBatch, found: EncodedTimers) -> Messages:
        seqs, epochs = numbers(rows, "seq"), numbers(rows, "epoch")
        store_ms = int(numbers(rows, "store_ms").max())
        self.last_seq = max(self.last_seq, int(seqs[-1]))
        prepare = partial(self._index.prepare_put, found, seqs, epochs, store_ms)
        return Messages(WHEEL_TOPIC, 0, seqs - 1, found.records, store_ms, prepare=prepare)
