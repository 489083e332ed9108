"""``export_state`` of the timer side: its records as the engine-neutral tables of ``rmqstore.contract.state``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from rmqstore.contract.state import CANCELLED, DELIVERED, TIMER_TABLES, StatePage
from rmqstore.ordered import layout, traces
from rmqstore.ordered.exporting import MARK_AT, Rows, adopted_rows, as_batch, epoch_of, listed, scanned, schema_of
from rmqstore.ordered.kv import OrderedKV
from rmqstore.ordered.layout import MARK, MARK_AGE, META, PAIR, SEAL_KEY, SEQ_KEY, TICK_SEQ, TIMERS, TRACES, U64
from rmqstore.ordered.marks import TIMER_SIDE, decode_ticks
from rmqstore.ordered.records import decode_columns
from rmqstore.ordered.runpages import runs_behind


def export_timers(kv: OrderedKV, table: str, after: bytes | None, limit: int, precision_ms: int) -> StatePage:
    """Answer ``export_state`` of a timer side."""
    schema = schema_of(TIMER_TABLES, table)
    if table == "timers":
        return _timers(kv, after, limit)
    if table == "timer_traces":
        return scanned(kv, TRACES, _traces, schema, after, limit, (layout.CANCELLED, layout.DELIVERED))
    if table == "timer_marks":
        return scanned(kv, META, lambda key, _: [_timer_mark(kv, key)], schema, after, limit, (MARK_AGE + TIMER_SIDE,))
    if table == "timer_adopted":
        return listed(adopted_rows(kv, TIMER_SIDE), schema, after, limit)
    last_seq = PAIR.unpack(kv.get(META, SEQ_KEY) or bytes(PAIR.size))[0]
    head = {"last_seq": last_seq, "epoch": epoch_of(kv), "precision_ms": precision_ms, "sealed": kv.get(META, SEAL_KEY) or b""}
    return listed([head], schema, after, limit)


def _timers(kv: OrderedKV, after: bytes | None, limit: int) -> StatePage:
    records: list[bytes] = []
    heads: list[tuple[int, int, int, int]] = []
    steps: list[int] = []
    counts: list[int] = []
    first_key, key = None, None
    for key, run in runs_behind(kv, TIMERS, after, limit):
        first_key = first_key or key
        counts.append(len(run.records))
        tick, first_seq = TICK_SEQ.unpack(key)
        heads.append((tick, first_seq, run.epoch, run.store_ms))
        steps += run.deltas
        records += run.records
    numbers = np.repeat(np.asarray(heads, np.int64).reshape(-1, 4), counts, axis=0)
    seqs = numbers[:, 1] + np.asarray(steps, np.int64)
    extra = {"tick": numbers[:, 0], "seq": seqs, "epoch": numbers[:, 2], "store_ms": numbers[:, 3]}
    columns = {**decode_columns(records), **{name: pa.array(values) for name, values in extra.items()}}
    rows = as_batch(columns, TIMER_TABLES["timers"])
    if first_key is not None and key is not None:
        holes = traces.holes_between(kv, first_key, U64.unpack_from(key)[0])
        if holes:
            places = zip(numbers[:, 0].tolist(), seqs.tolist(), strict=True)
            rows = rows.filter(pa.array([place not in holes for place in places]))
    return StatePage(rows, key)


def _traces(key: bytes, value: bytes) -> Rows:
    tick, seq = TICK_SEQ.unpack_from(key, 1)
    if key[:1] == layout.CANCELLED:
        return [{"kind": CANCELLED, "tick": tick, "seq": seq, "epoch": int.from_bytes(value, "big")}]
    epoch, steps = traces.delivered_of(value)
    return [{"kind": DELIVERED, "tick": tick, "seq": seq + step, "epoch": epoch} for step in steps]


def _timer_mark(kv: OrderedKV, key: bytes) -> Mapping[str, Any]:
    mark, time_ms = key[MARK_AT:], U64.unpack_from(key, 2)[0]
    answer = kv.get(META, MARK + TIMER_SIDE + mark) or bytes(PAIR.size)
    epoch, first_seq = PAIR.unpack_from(answer)
    return {"mark": mark, "time_ms": time_ms, "epoch": epoch, "first_seq": first_seq, "ticks": decode_ticks(answer)}
