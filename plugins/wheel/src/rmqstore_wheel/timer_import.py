"""``import_state`` of the wheel's timer side: timers become messages of the wheel's topic, all else becomes keys of the journal.

A timer keeps its seq, so its message keeps the queue offset that goes with it, and says which tick and epoch it had; so whoever applies the
log again learns the same. Pages of another store come by tick, so their seqs come in any order and leave gaps.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from rmqstore.contract import TimerCursor
from rmqstore.ordered.importing import numbers
from rmqstore.ordered.kv import OrderedKV, WriteBatch
from rmqstore.ordered.layout import META, U64
from rmqstore.ordered.timerimport import TimerImport
from rmqstore_wheel.appending import Messages
from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.ledger import Ledger
from rmqstore_wheel.timer_index import TimerIndex
from rmqstore_wheel.timer_records import EncodedTimers, encode_timers_as_they_were

LAST_SEQ_KEY: Final = b"mlast_seq"


def imported_last_seq(kv: OrderedKV) -> int:
    """Return the largest seq that came with the state of other stores; timers that have it may be gone."""
    return int(U64.unpack(kv.get(META, LAST_SEQ_KEY) or bytes(U64.size))[0])


class _Batch:
    """Timers that go into one piece of the log, by seq."""

    def __init__(self, rows: pa.RecordBatch, precision_ms: int) -> None:
        rows = rows.take(pa.array(np.argsort(numbers(rows, "seq"), kind="stable")))
        self.seqs: Ints = numbers(rows, "seq")
        self.epochs: Ints = numbers(rows, "epoch")
        self.store_ms = int(numbers(rows, "store_ms").max())
        self.encoded: EncodedTimers = encode_timers_as_they_were(rows, precision_ms)
        self.messages = Messages(WHEEL_TOPIC, 0, self.seqs - 1, self.encoded.records, self.store_ms)


class WheelTimerImport(TimerImport):
    """One call's rows; timers are taken into the index once the call is in the log."""

    def __init__(self, kv: OrderedKV, write: WriteBatch, sealed: TimerCursor, precision_ms: int) -> None:
        super().__init__(kv, write, sealed)
        self._precision_ms = precision_ms
        self._batches: list[_Batch] = []

    @property
    def ticks(self) -> list[int]:
        """The ticks of all timers."""
        return [tick for batch in self._batches for tick in batch.encoded.ticks.tolist()]

    def take_timers(self, rows: pa.RecordBatch) -> None:
        if len(rows):
            batch = _Batch(rows, self._precision_ms)
            self._batches.append(batch)
            self.last_seq = max(self.last_seq, int(batch.seqs[-1]))

    def stage(self) -> None:
        """Put what all rows together come to into the write."""
        self.write.parts += [batch.messages for batch in self._batches]
        self.write.put(META, LAST_SEQ_KEY, U64.pack(max(self.last_seq, imported_last_seq(self.kv))))

    def index(self, ledger: Ledger, index: TimerIndex) -> None:
        """Take the timers into the index, after the write."""
        for batch, offsets in zip(self._batches, ledger.places, strict=True):
            found = batch.encoded
            index.put(batch.seqs, found.ticks, found.dues, batch.epochs, batch.store_ms, offsets, found.records.sizes, found.hashes)
            index.keys.add_many(found.key_hashes, offsets[found.key_rows])
