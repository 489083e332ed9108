"""The state of a store as a stream of tables, and its digest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from rmqstore.contract import PopStore, Side, TimerCursor, TimerStore
from rmqstore.contract.tables import DELIVERED, POP_TABLES, TIMER_TABLES
from rmqstore.digests import TableDigest, digest_rows

PAGE_ROWS: Final = 8192

HEADS: Final = ("timer_head", "pop_head", "timer_adopted", "pop_adopted")
"""Tables about the store itself; they have no part in its digest."""

TABLES: Final = {**TIMER_TABLES, **POP_TABLES}
"""Every table and its schema, in the order in which they are taken in."""

DIGESTED: Final = tuple(table for table in TABLES if table not in HEADS)


class State:
    """The tables of a store that stands still.

    What the pops' cursor covers is no timer any more, though the timer side may not have forgotten it: such puts are given as traces of
    delivered ones. So the tables of a store do not depend on how far it has cleaned up behind itself.

    Attributes:
        epoch: the largest open epoch.
        last_seq: the largest seq that was given.
    """

    def __init__(self, timers: TimerStore, pops: PopStore) -> None:
        self._timers = timers
        self._pops = pops
        self._cursor = pops.timer_cursor()
        (head,) = self.rows("timer_head")
        (pop_head,) = self.rows("pop_head")
        self.precision_ms: int = head["precision_ms"]
        self.epoch: int = max(head["epoch"], pop_head["epoch"])
        self.last_seq: int = max(head["last_seq"], self._cursor.highest_seq, TimerCursor.from_bytes(head["sealed"]).highest_seq)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return all rows of a table that is never large."""
        return [row for _, page in self.pages(table) for row in page.to_pylist()]

    def pages(self, table: str, after: bytes | None = None) -> Iterator[tuple[bytes | None, pa.RecordBatch]]:
        """Yield (token, rows) from behind the page with the token ``after`` on; None is the token of the last page."""
        if table == "timers":
            yield from self._pending(after)
        elif table == "timer_traces":
            yield from self._traces(after)
        else:
            yield from _exported(self._timers if table in TIMER_TABLES else self._pops, table, after)

    def _pending(self, after: bytes | None) -> Iterator[tuple[bytes | None, pa.RecordBatch]]:
        for token, page in _exported(self._timers, "timers", after):
            covered = self._covered(page)
            yield token, page.filter(pa.array(~covered)) if covered.any() else page

    def _traces(self, after: bytes | None) -> Iterator[tuple[bytes | None, pa.RecordBatch]]:
        """Yield the traces, then what the cursor covers and the timers still keep."""
        if after is None or after[:1] == b"t":
            for token, page in _exported(self._timers, "timer_traces", after[1:] if after else None):
                yield (b"k" if token is None else b"t" + token), page
            after = b"k"
        for token, page in _exported(self._timers, "timers", after[1:] or None):
            kept = page.filter(pa.array(self._covered(page)))
            kind = pa.array([DELIVERED] * len(kept), pa.int8())
            columns = [kind, *(kept.column(name) for name in ("tick", "seq", "epoch"))]
            past = len(page) and page.column("tick")[len(page) - 1].as_py() > self._cursor.highest_tick
            yield (None if token is None or past else b"k" + token), pa.RecordBatch.from_arrays(columns, schema=TABLES["timer_traces"])
            if past:
                return

    def _covered(self, page: pa.RecordBatch) -> Any:
        ticks, seqs = (page.column(name).to_numpy(zero_copy_only=False) for name in ("tick", "seq"))
        return self._cursor.covers_each(ticks, seqs)

    def digest(self) -> dict[str, TableDigest]:
        """Return the digest of every table."""
        return {table: sum((digest_rows(page) for _, page in self.pages(table)), TableDigest()) for table in DIGESTED}


def _exported(side: Side, table: str, after: bytes | None) -> Iterator[tuple[bytes | None, pa.RecordBatch]]:
    while True:
        page = side.export_state(table, after, PAGE_ROWS)
        yield page.next, page.rows
        if page.next is None:
            return
        after = page.next
