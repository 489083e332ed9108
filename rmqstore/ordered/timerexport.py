"""``export_state`` of the timer side: its records as the engine-neutral tables of ``rmqstore.contract.state``."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rmqstore.contract.state import CANCELLED, DELIVERED, TIMER_TABLES, StatePage
from rmqstore.ordered import layout as tables
from rmqstore.ordered import traces
from rmqstore.ordered.exporting import Rows, adopted_rows, as_batch, epoch_of, listed, mark_of, scanned, schema_of
from rmqstore.ordered.kv import OrderedKV
from rmqstore.ordered.layout import MARK_AGE, META, PAIR, SEAL_KEY, SEQ_KEY, TICK_SEQ, TIMERS, TRACES, U64
from rmqstore.ordered.marks import TIMER_SIDE, decode_ticks
from rmqstore.ordered.records import decode_columns
from rmqstore.ordered.runpages import runs_behind


def export_timers(kv: OrderedKV, table: str, after: bytes | None, limit: int, precision_ms: int) -> StatePage:
    """Answer ``export_state`` of a timer side."""
    if table == "timers":
        return _puts(kv, after, limit)
    schema = schema_of(TIMER_TABLES, table)
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
        holes = traces.holes_between(kv, runs[0][0], U64.unpack_from(token)[0])
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
    epoch, steps = traces.delivered_of(value)
    return [{"kind": DELIVERED, "tick": tick, "seq": seq + step, "epoch": epoch} for step in steps]


def _timer_mark(kv: OrderedKV, key: bytes) -> Rows:
    row, answer = mark_of(kv, TIMER_SIDE, key)
    epoch, first_seq = PAIR.unpack_from(answer)
    return [{**row, "epoch": epoch, "first_seq": first_seq, "ticks": decode_ticks(answer)}]
