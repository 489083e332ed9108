"""``export_state`` and ``import_state`` of the wheel's timer side, by the tables of ``rmqstore.contract.tables``.

Timers come in the order of their hand-over, which is sorted once and kept as long as nothing changes. Traces come in two parts: those that
another store brought along, which are keys of the journal, then those that follow from the facts, by seq.

On the way in, timers become messages of the wheel's topic, all else becomes keys of the journal. A timer keeps its seq, so its message
keeps the queue offset that goes with it, and says which tick and epoch it had; so a replay of the log learns the same. Pages of another
store come by tick, so their seqs come in any order and leave gaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from rmqstore.contract import TimerCursor
from rmqstore.contract.state import StatePage
from rmqstore.contract.tables import CANCELLED, DELIVERED, TIMER_TABLES
from rmqstore.engine.kv.base import OrderedKV, WriteBatch
from rmqstore.engine.schema import META, PAIR, SEAL_KEY, U64
from rmqstore.engine.shared import epoch_of
from rmqstore.engine.state import as_batch, listed, numbers, of_table
from rmqstore.engine.timers.transfer import TimerImport, export_timers
from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.log.call import Messages, parts_of
from rmqstore_wheel.log.ledger import Ledger
from rmqstore_wheel.timers import table as timer_table
from rmqstore_wheel.timers.fetching import Fetcher
from rmqstore_wheel.timers.index import LAST_SEQ_KEY, TimerIndex, noted_last_seq
from rmqstore_wheel.timers.records import EncodedTimers, encode_timers_as_they_were
from rmqstore_wheel.timers.table import TIMER, Due, joined

_PAGE_BYTES: Final = 32 * 1024 * 1024
_FROM_FACTS: Final = b"f"
_BROUGHT: Final = b"k"


class TimerExport:
    """Pages of the timer side's tables; the caller serialises all calls."""

    def __init__(self, ledger: Ledger, index: TimerIndex, fetcher: Fetcher) -> None:
        self._ledger = ledger
        self._index = index
        self._fetcher = fetcher
        self._sorted: tuple[tuple[int, int, TimerCursor], Due] | None = None

    def page(self, table: str, after: bytes | None, limit: int, last_seq: int) -> StatePage:
        """Answer ``export_state``; ``last_seq`` is the largest seq given.

        Raises:
            UnsupportedOperationError: there is no such table.
            CorruptStoreError: a timer is damaged.
        """
        schema = of_table(TIMER_TABLES, table)
        if table == "timers":
            return self._timers(after, limit)
        if table == "timer_traces":
            return self._traces(after, limit)
        if table != "timer_head":
            return export_timers(self._ledger, table, after, limit, self._index.precision_ms)
        head = {
            "last_seq": last_seq,
            "epoch": epoch_of(self._ledger),
            "precision_ms": self._index.precision_ms,
            "sealed": self._ledger.get(META, SEAL_KEY) or b"",
        }
        return listed([head], schema, after, limit)

    # ------------------------------------------------------------ timers

    def _timers(self, after: bytes | None, limit: int) -> StatePage:
        order = self._in_order()
        begin = 0 if after is None else _behind(order, *PAIR.unpack(after))
        waiting = order.select(slice(begin, begin + limit))
        sizes = np.cumsum(self._fetcher.units(waiting.seqs)["size"], dtype=np.int64)
        count = max(int(np.searchsorted(sizes, _PAGE_BYTES, side="right")), 1)
        page = waiting.select(slice(0, count))
        columns = self._columns(page.seqs)
        rows = as_batch({**columns, "tick": pa.array(page.ticks), "seq": pa.array(page.seqs)}, TIMER_TABLES["timers"])
        if begin + len(page) < len(order):
            return StatePage(rows, PAIR.pack(int(page.ticks[-1]), int(page.seqs[-1])))
        self._sorted = None
        return StatePage(rows, None)

    def _in_order(self) -> Due:
        """Return all pending timers by tick and seq."""
        # A reader has no calls of its own: what it sees grows with the log.
        state = (self._ledger.position, self._ledger.log.tail, self._index.forgotten)
        if self._sorted is None or self._sorted[0] != state:
            self._sorted = (state, joined(list(self._index.live())).in_order())
        return self._sorted[1]

    def _columns(self, seqs: Ints) -> dict[str, pa.Array]:
        """Return what the log and the facts say of timers, in this order."""
        if not len(seqs):
            return {field.name: pa.nulls(0, field.type) for field in TIMER_TABLES["timers"]}
        try:
            columns = self._fetcher.columns(seqs)
        except CorruptStoreError as error:
            raise CorruptStoreError(f"{error}; a tick or a pop that meets it parks it", file=error.file, offset=error.offset) from error
        epochs = self._index.facts.gather(seqs - 1)["epoch"].astype(np.int64)
        return {**columns, "epoch": pa.array(epochs)}

    # ------------------------------------------------------------ traces

    def _traces(self, after: bytes | None, limit: int) -> StatePage:
        if after is None or after[:1] == _BROUGHT:
            page = export_timers(self._ledger, "timer_traces", after[1:] if after else None, limit, self._index.precision_ms)
            return StatePage(page.rows, _FROM_FACTS + U64.pack(0) if page.next is None else _BROUGHT + page.next)
        pieces: list[pa.RecordBatch] = []
        rows = 0
        for behind, piece in self._gone(U64.unpack(after[1:])[0]):
            pieces.append(piece[: limit - rows])
            rows += len(pieces[-1])
            if len(pieces[-1]) < len(piece):
                behind = pieces[-1].column("seq")[-1].as_py()
            if rows >= limit:
                return StatePage(_joined(pieces), _FROM_FACTS + U64.pack(behind))
        return StatePage(_joined(pieces), None)

    def _gone(self, first: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (number behind, rows) of the timers from a number on that are gone and still answered for."""
        index = self._index
        for number, facts in timer_table.pages(index.facts, max(first, index.first_kept)):
            seqs = np.arange(number + 1, number + 1 + len(facts))
            ticks = facts["tick"].astype(np.int64)
            rows = np.flatnonzero((facts["kind"] == TIMER) & (ticks >= index.answered_from) & index.is_gone(seqs, ticks))
            kinds = np.where(index.cancelled.get_many(seqs[rows]), CANCELLED, DELIVERED)
            columns = {"kind": kinds, "tick": ticks[rows], "seq": seqs[rows], "epoch": facts["epoch"][rows].astype(np.int64)}
            yield number + len(facts), as_batch({name: pa.array(each) for name, each in columns.items()}, TIMER_TABLES["timer_traces"])


def _joined(pieces: list[pa.RecordBatch]) -> pa.RecordBatch:
    schema = TIMER_TABLES["timer_traces"]
    whole = pa.Table.from_batches(pieces, schema=schema).combine_chunks().to_batches()
    return whole[0] if whole else pa.RecordBatch.from_pylist([], schema=schema)


def _behind(order: Due, tick: int, seq: int) -> int:
    """Return how many timers are up to a place, in the order of the hand-over."""
    low, high = np.searchsorted(order.ticks, [tick, tick + 1])
    return int(low + np.searchsorted(order.seqs[low:high], seq, side="right"))


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
            parts_of(self.write).append(self._messages(rows, found))
            ticks = found.ticks.tolist()
        self.write.put(META, LAST_SEQ_KEY, U64.pack(max(self.last_seq, noted_last_seq(self.kv))))
        return ticks

    def _messages(self, rows: pa.RecordBatch, found: EncodedTimers) -> Messages:
        seqs, epochs = numbers(rows, "seq"), numbers(rows, "epoch")
        store_ms = int(numbers(rows, "store_ms").max())
        self.last_seq = max(self.last_seq, int(seqs[-1]))
        puts = partial(self._index.put_many, found, seqs, epochs, store_ms)
        return Messages(WHEEL_TOPIC, 0, seqs - 1, found.records, store_ms, entries=puts)
