"""Timers that wait, by due time: the messages of the wheel's topic, less those that are delivered, rolled on or cancelled.

What a broker's files tell of it, and no more:

- delivered: the slot is before the read time of ``timercheck``, and the message before its queue offset;
- rolled on: its unit in the timer log is flagged so, in a slot before the read time. The message was put again behind it;
- cancelled: a tombstone with the same slot time names its id, alone or as ``topic+id``.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_wheel.formats import properties as texts
from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.formats.config_files import TimerCheck
from rmqstore_wheel.formats.property_columns import Properties, decode_column
from rmqstore_wheel.inspecting.log import Records
from rmqstore_wheel.inspecting.popped import REVIVE_PREFIX

MINUTE_MS: Final = 60_000
EDGES_MS: Final = (0, MINUTE_MS, 5 * MINUTE_MS, 15 * MINUTE_MS, 60 * MINUTE_MS, 240 * MINUTE_MS, 1440 * MINUTE_MS)
LABELS: Final = ("overdue", "within 1 min", "within 5 min", "within 15 min", "within 1 h", "within 4 h", "within 24 h", "later")
_NO_TIME: Final = -1


class Pending:
    """Counts timers while the records go by. ``timers`` are those of users, ``internal`` check points and acks that wait, by bucket."""

    def __init__(self, now_ms: int, check: TimerCheck | None, superseded: Ints) -> None:
        self.timers: Ints = np.zeros(len(LABELS), np.int64)
        self.internal: Ints = np.zeros(len(LABELS), np.int64)
        self.earliest_ms: int | None = None
        self.latest_ms: int | None = None
        self.cancels = 0
        self._now_ms = now_ms
        self._check = check
        self._superseded = superseded
        self._tombstones: set[tuple[int, str]] = set()

    def take(self, records: Records, rows: Ints) -> None:
        """Count the records of the wheel's topic among the next ones."""
        found = _Timers(records, rows)
        waits = self._waits(found)
        is_tombstone = found.delete_key.is_valid().to_numpy(zero_copy_only=False)
        for out_ms, key in zip(found.out_ms[waits & is_tombstone].tolist(), _picked(found.delete_key, waits & is_tombstone), strict=True):
            self._tombstones.add((out_ms, key))
        self.cancels = len(self._tombstones)
        timers = waits & ~is_tombstone
        self._count(found, timers, 1)
        due = found.due_ms[timers & ~found.is_internal]
        if len(due):
            self.earliest_ms = min(int(due.min()), int(due.min()) if self.earliest_ms is None else self.earliest_ms)
            self.latest_ms = max(int(due.max()), int(due.max()) if self.latest_ms is None else self.latest_ms)

    @property
    def needs_cancels(self) -> bool:
        """Whether the records must go by once more, for ``take_away``."""
        return bool(self._tombstones)

    def take_away(self, records: Records, rows: Ints) -> None:
        """Take what is cancelled away again; the tombstones are all known by now."""
        found = _Timers(records, rows)
        timers = np.flatnonzero(self._waits(found) & ~found.delete_key.is_valid().to_numpy(zero_copy_only=False))
        ids, topics = _picked(found.message_id, timers), _picked(found.real_topic, timers)
        keys = zip(found.out_ms[timers].tolist(), ids, topics, strict=True)
        cancelled = np.zeros(len(found.out_ms), bool)
        cancelled[timers] = [(out, id_) in self._tombstones or (out, f"{topic}+{id_}") in self._tombstones for out, id_, topic in keys]
        self._count(found, cancelled, -1)

    def _waits(self, found: _Timers) -> Any:
        if self._check is None:
            # Without a read time, those that are due may be delivered or not.
            return (found.out_ms >= self._now_ms) & ~np.isin(found.places, self._superseded)
        waits = (found.out_ms >= self._check.read_ms) | (found.queue_offsets >= self._check.queue_offset)
        return waits & (found.out_ms != _NO_TIME) & ~np.isin(found.places, self._superseded)

    def _count(self, found: _Timers, rows: Any, sign: int) -> None:
        for counts, mine in ((self.timers, rows & ~found.is_internal), (self.internal, rows & found.is_internal)):
            buckets = np.searchsorted(EDGES_MS, found.due_ms[mine] - self._now_ms, side="left")
            counts += sign * np.bincount(buckets, minlength=len(LABELS))


class _Timers:
    """What some records of the wheel's topic say. A time that a record does not tell is -1."""

    def __init__(self, records: Records, rows: Ints) -> None:
        properties: Properties = decode_column(records.texts.take(pa.array(rows)))
        out = texts.integers(properties.column(texts.OUT_MS))
        deliver = texts.integers(properties.column(texts.DELIVER_MS))
        self.out_ms = _filled(pc.coalesce(out, deliver))
        self.due_ms = _filled(pc.coalesce(deliver, pc.add(out, 1)))
        self.message_id = properties.column(texts.MESSAGE_ID)
        self.real_topic = properties.column(texts.REAL_TOPIC)
        self.delete_key = properties.column(texts.DELETE_KEY)
        internal = pc.fill_null(pc.starts_with(self.real_topic, REVIVE_PREFIX), False)
        self.is_internal = internal.to_numpy(zero_copy_only=False)
        self.places = np.asarray(records.columns.physical_offset)[rows]
        self.queue_offsets = np.asarray(records.columns.queue_offset)[rows]


def _filled(column: pa.Array) -> Ints:
    values: Ints = pc.fill_null(column, _NO_TIME).to_numpy()
    return values


def _picked(column: pa.Array, rows: Any) -> list[Any]:
    picked = np.flatnonzero(rows) if rows.dtype == bool else rows
    found: list[Any] = column.take(pa.array(picked)).to_pylist()
    return found
