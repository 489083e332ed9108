"""``export_state`` and ``import_state`` of the timer side: records as the engine-neutral tables of ``rmqstore.contract.tables``.

An import adds to what earlier calls took in. Runs are cut where a tick, a call or a stretch of consecutive seqs ends, so that no two runs
of a tick overlap, and where the sealed set ends, so that one record of a run speaks for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.contract import TimerCursor
from rmqstore.contract.state import StatePage
from rmqstore.contract.tables import CANCELLED, DELIVERED, TIMER_TABLES
from rmqstore.engine import schema as tables
from rmqstore.engine.floors import Floors
from rmqstore.engine.kv.base import OrderedKV, WriteBatch
from rmqstore.engine.marks import TIMER_SIDE, decode_ticks, encode_ticks, put_marks
from rmqstore.engine.records import decode_columns, encode_columns
from rmqstore.engine.runs import encode_run, run_lengths, runs_behind
from rmqstore.engine.schema import MARK_AGE, META, PAIR, SEAL_KEY, SEQ_KEY, TICK_SEQ, TIMERS, TRACES
from rmqstore.engine.shared import epoch_of
from rmqstore.engine.state import (
    Rows,
    adopted_rows,
    as_batch,
    listed,
    mark_of,
    messages_in,
    numbers,
    of_table,
    put_adopted,
    raise_epoch,
    scanned,
    stretches,
)
from rmqstore.engine.timers import tombstones
from rmqstore.engine.timers.ticks import MINUTE_MS


def export_timers(kv: OrderedKV, table: str, after: bytes | None, limit: int, precision_ms: int) -> StatePage:
    """Answer ``export_state`` of a timer side."""
    if table == "timers":
        return _puts(kv, after, limit)
    schema = of_table(TIMER_TABLES, table)
    if table == "timer_traces":
        return scanned(kv, TRACES, _traces, schema, after, limit, (tables.CANCELLED, tables.DELIVERED))
    if table == "timer_marks":
        return scanned(kv, META, lambda key, _: _timer_mark(kv, key), schema, after, limit, (MARK_AGE + TIMER_SIDE,))
    if table == "timer_adopted":
        return listed(adopted_rows(kv, TIMER_SIDE), schema, after, limit)
    last_seq = PAIR.unpack(kv.get(META, SEQ_KEY) or bytes(PAIR.size))[0]
    head = {"last_seq": last_seq, "epoch": epoch_of(kv), "precision_ms": precision_ms, "sealed": kv.get(META, SEAL_KEY) or b""}
    return listed([head], schema, after, limit)


def _puts(kv: OrderedKV, after: bytes | None, limit: int) -> StatePage:
    places: list[tuple[int, int, int, int]] = []
    records: list[bytes] = []
    token: bytes | None = None
    runs = list(runs_behind(kv, TIMERS, after, limit))
    if runs:
        token = runs[-1][0]
        tick, first_seq = PAIR.unpack(token)
        behind = PAIR.pack(tick, first_seq + runs[-1][1].deltas[-1] + 1)
        holes = tombstones.holes_between(kv, Floors(kv), runs[0][0], behind)
        for key, run in runs:
            tick, first_seq = PAIR.unpack(key)
            for step, record in zip(run.deltas, run.records, strict=True):
                if (tick, first_seq + step) not in holes:
                    places.append((tick, first_seq + step, run.epoch, run.store_ms))
                    records.append(record)
    numbers = np.asarray(places, np.int64).reshape(-1, 4)
    extra = {name: pa.array(numbers[:, column]) for column, name in enumerate(("tick", "seq", "epoch", "store_ms"))}
    columns = {**decode_columns(records), **extra}
    return StatePage(as_batch(columns, TIMER_TABLES["timers"]), token)


def _traces(key: bytes, value: bytes) -> Rows:
    tick, seq = TICK_SEQ.unpack_from(key, 1)
    if key[:1] == tables.CANCELLED:
        return [{"kind": CANCELLED, "tick": tick, "seq": seq, "epoch": int.from_bytes(value, "big")}]
    epoch, steps = tombstones.delivered_of(value)
    return [{"kind": DELIVERED, "tick": tick, "seq": seq + step, "epoch": epoch} for step in steps]


def _timer_mark(kv: OrderedKV, key: bytes) -> Rows:
    row, answer = mark_of(kv, TIMER_SIDE, key)
    epoch, first_seq = PAIR.unpack_from(answer)
    return [{**row, "epoch": epoch, "first_seq": first_seq, "ticks": decode_ticks(answer)}]


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
        """Take the rows of one table.

        Raises:
            UnsupportedOperationError: there is no such table.
        """
        takers: dict[str, Callable[[pa.RecordBatch], None]] = {
            "timers": self.take_timers,
            "timer_traces": self._traces,
            "timer_marks": self._marks,
            "timer_head": self._head,
            "timer_adopted": lambda found: put_adopted(self.write, TIMER_SIDE, found),
        }
        of_table(takers, table)(rows)

    def take_timers(self, rows: pa.RecordBatch) -> None:
        """Take rows of the table of timers."""
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
        self.write.put_many(TRACES, tombstones.index_entries(records, ticks.tolist(), seqs.tolist()))
        self.added += len(records)
        self.last_seq = max(self.last_seq, int(seqs.max()))

    def _traces(self, rows: pa.RecordBatch) -> None:
        delivered = []
        for row in rows.to_pylist():
            place = (row["tick"], row["seq"], row["epoch"])
            self.last_seq = max(self.last_seq, row["seq"])
            if row["kind"] == CANCELLED:
                tombstones.put_cancelled(self.write, [place])
            else:
                delivered.append(place)
        tombstones.put_delivered(self.write, sorted(delivered))

    def _marks(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            answer = encode_ticks(row["epoch"], row["first_seq"], row["ticks"])
            put_marks(self.kv, self.write, TIMER_SIDE, [row["mark"]], answer, row["time_ms"])

    def _head(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            self.last_seq = max(self.last_seq, row["last_seq"])
            raise_epoch(self.kv, self.write, row["epoch"])
            if row["sealed"]:
                self.sealed = self.sealed.join(TimerCursor.from_bytes(row["sealed"]).corners)
                self.write.put(META, SEAL_KEY, self.sealed.to_bytes())
