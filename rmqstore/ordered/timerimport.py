"""``import_state`` of the timer side: engine-neutral tables become records, beside those that earlier calls took in.

Runs are cut where a tick, a call or a stretch of consecutive seqs ends, so that no two runs of a tick overlap, and where the sealed set
ends, so that one record of a run speaks for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.contract import TimerCursor
from rmqstore.contract.state import CANCELLED, TIMER_TABLES
from rmqstore.ordered import traces
from rmqstore.ordered.counts import MINUTE_MS
from rmqstore.ordered.importing import messages_in, numbers, put_all_adopted, raise_epoch, stretches, taker
from rmqstore.ordered.kv import OrderedKV, WriteBatch
from rmqstore.ordered.layout import META, PAIR, SEAL_KEY, TIMERS, TRACES
from rmqstore.ordered.marks import TIMER_SIDE, encode_ticks, put_marks
from rmqstore.ordered.records import encode_columns, has_keys
from rmqstore.ordered.runs import encode_run, run_lengths


class TimerImport:
    """One call's rows of a timer side, on their way into a write.

    Args:
        sealed: what is sealed already.

    Attributes:
        sealed: what is sealed, with what the rows say of it.
        by_minute: how many timers became pending, by the minute of their due time.
        last_seq: the largest seq among the rows.
        added: number of timers.
    """

    def __init__(self, kv: OrderedKV, write: WriteBatch, sealed: TimerCursor) -> None:
        self.kv = kv
        self.write = write
        self.sealed = sealed
        self.by_minute: Counter[int] = Counter()
        self.last_seq = 0
        self.added = 0

    def take(self, table: str, rows: pa.RecordBatch) -> None:
        """Stage the rows of one table.

        Raises:
            UnsupportedOperationError: there is no such table.
        """
        takers: dict[str, Callable[[pa.RecordBatch], None]] = {
            "timers": self.take_timers,
            "timer_traces": self._traces,
            "timer_marks": self._marks,
            "timer_head": self._head,
            "timer_adopted": lambda found: put_all_adopted(self.write, TIMER_SIDE, found),
        }
        taker(takers, table, TIMER_TABLES)(rows)

    def take_timers(self, rows: pa.RecordBatch) -> None:
        """Stage rows of the table of timers."""
        ticks, seqs = numbers(rows, "tick"), numbers(rows, "seq")
        order = np.lexsort((seqs, ticks))
        rows = rows.take(pa.array(order))
        ticks, seqs, epochs, stores = (numbers(rows, name) for name in ("tick", "seq", "epoch", "store_ms"))
        if not len(rows):
            return
        records = encode_columns(messages_in(rows))
        sealed = self.sealed.covers_each(ticks, seqs)
        changes = [np.diff(column, prepend=column[:1]) != 0 for column in (ticks, epochs, stores, sealed.astype(np.int8))]
        entries = []
        for start, stop in stretches(*changes, np.diff(seqs, prepend=seqs[:1]) != 1):
            for begin, end in run_lengths([len(record) for record in records[start:stop]]):
                at = start + begin
                run = encode_run(int(epochs[at]), int(stores[at]), records[at : start + end])
                entries.append((PAIR.pack(int(ticks[at]), int(seqs[at])), run))
        self.write.put_many(TIMERS, entries)
        dues = pc.coalesce(rows.column("deliver_at_ms"), rows.column("tick")).to_numpy()
        minutes, counts = np.unique(dues // MINUTE_MS, return_counts=True)
        self.by_minute.update(dict(zip(minutes.tolist(), counts.tolist(), strict=True)))
        index = [
            (key, b"")
            for record, tick, seq in zip(records, ticks.tolist(), seqs.tolist(), strict=True)
            if has_keys(record)
            for key in traces.index_keys(record, tick, seq)
        ]
        self.write.put_many(TRACES, sorted(index))
        self.added += len(records)
        self.last_seq = max(self.last_seq, int(seqs.max()))

    def _traces(self, rows: pa.RecordBatch) -> None:
        delivered = []
        for row in rows.to_pylist():
            place = (row["tick"], row["seq"], row["epoch"])
            self.last_seq = max(self.last_seq, row["seq"])
            if row["kind"] == CANCELLED:
                traces.put_cancelled(self.write, [place])
            else:
                delivered.append(place)
        traces.put_delivered(self.write, sorted(delivered))

    def _marks(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            answer = encode_ticks(row["epoch"], row["first_seq"], row["ticks"])
            put_marks(self.write, TIMER_SIDE, [row["mark"]], answer, row["time_ms"])

    def _head(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            self.last_seq = max(self.last_seq, row["last_seq"])
            raise_epoch(self.kv, self.write, row["epoch"])
            if row["sealed"]:
                self.sealed = self.sealed.join(TimerCursor.from_bytes(row["sealed"]).corners)
                self.write.put(META, SEAL_KEY, self.sealed.to_bytes())
