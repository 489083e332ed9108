"""The witness of calls that carry marks: a mark on each side of the store that is older than those of the calls.

A store drops marks oldest first on each side, whatever its owner and its clock. So as long as the witness of a side is there, no
mark of a call on that side was dropped, and a call without a mark was not made. It is a row of the state tables, and so goes along with
dumps and migrations; a store that was set back to an earlier state lacks it. Jobs of Spark go by it (``rmqstore.spark.jobs``).
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from rmqstore.contract import PopStore, Side, TimerStore
from rmqstore.contract.tables import POP_MARKS, TIMER_MARKS

_PAGE_ROWS: Final = 64
"""A mark of a large put has as many ticks as the put had timers."""


def plant(timers: TimerStore, pops: PopStore, prefix: bytes, begun_ms: int) -> None:
    """Store the witness of calls that are made at ``begun_ms`` or later, durably; done again, it changes nothing."""
    mark, time_ms = _witness(prefix, begun_ms)
    row = {"mark": mark, "time_ms": time_ms}
    timers.sync(timers.import_state([("timer_marks", _rows(TIMER_MARKS, {**row, "epoch": 0, "first_seq": 0, "ticks": []}))], begun_ms))
    pops.sync(pops.import_state([("pop_marks", _rows(POP_MARKS, {**row, "position": 0}))], begun_ms))


def stands(timers: TimerStore, pops: PopStore, prefix: bytes, begun_ms: int) -> bool:
    """Say whether both sides still have the witness that :func:`plant` left."""
    wanted = _witness(prefix, begun_ms)
    return _has(timers, "timer_marks", wanted) and _has(pops, "pop_marks", wanted)


def _witness(prefix: bytes, begun_ms: int) -> tuple[bytes, int]:
    """Return mark and age. A mark has one age, so each beginning has a mark of its own."""
    # At 0 the name decides, and b"…/0" comes before b"…/00000-".
    return prefix + str(begun_ms).encode(), max(begun_ms - 1, 0)


def _rows(schema: pa.Schema, row: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([row], schema=schema)


def _has(side: Side, table: str, wanted: tuple[bytes, int]) -> bool:
    after: bytes | None = None
    while True:
        page = side.export_state(table, after, _PAGE_ROWS)
        if wanted in zip(page.rows.column("mark").to_pylist(), page.rows.column("time_ms").to_pylist(), strict=True):
            return True
        if page.next is None:
            return False
        after = page.next
