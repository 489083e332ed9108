"""The witness of a job in a shard: a mark on each side of the store that is older than those of the job's chunks.

A store drops marks oldest first on each side, whatever its owner and its clock. So as long as the witness of a side is there, no
mark of a chunk on that side was dropped, and a chunk without a mark was not sent. It is a row of the state tables, and so goes along with
dumps and migrations; a shard that was set back to an earlier state lacks it.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from rmqstore.contract import Side
from rmqstore.contract.tables import POP_MARKS, TIMER_MARKS
from rmqstore.store import Store

_PAGE_ROWS: Final = 64
"""A mark of a large put has as many ticks as the put had timers."""


def plant(store: Store, prefix: bytes, begun_ms: int) -> None:
    """Store the witness of a job whose first chunk is sent at ``begun_ms`` or later, durably; done again, it changes nothing."""
    mark, time_ms = _witness(prefix, begun_ms)
    row = {"mark": mark, "time_ms": time_ms}
    store.engine.timers.import_state([("timer_marks", _rows(TIMER_MARKS, {**row, "epoch": 0, "first_seq": 0, "ticks": []}))], begun_ms)
    store.engine.pops.import_state([("pop_marks", _rows(POP_MARKS, {**row, "position": 0}))], begun_ms)
    store.flush()


def stands(store: Store, prefix: bytes, begun_ms: int) -> bool:
    """Say whether both sides still have the witness that :func:`plant` left."""
    wanted = _witness(prefix, begun_ms)
    return _has(store.engine.timers, "timer_marks", wanted) and _has(store.engine.pops, "pop_marks", wanted)


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
