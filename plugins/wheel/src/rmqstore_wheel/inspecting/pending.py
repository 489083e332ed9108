"""What waits: timers by due time, and pops in flight.

Timers are the messages of the wheel's topic, less those that are delivered, rolled on or cancelled. What a broker's files tell of it, and
no more:

- delivered: the slot is before the read time of ``timercheck``, and the message before its queue offset;
- rolled on: its unit in the timer log is flagged so, in a slot before the read time. The message was put again behind it;
- cancelled: a tombstone with the same slot time names its id, alone or as ``topic+id``.

Pops in flight are check points of which not every message is acked, and that were not revived yet. A broker writes check points and acks as
timers and delivers them to the revive topic when they end; rmqstore's engine writes them there at once. Both are read: whatever is written
of one check point has one key. What the group of the revive topic has passed is revived.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.formats import check_points as codec, properties as texts
from rmqstore_wheel.formats.binary_columns import Flags, Ints
from rmqstore_wheel.formats.check_points import REVIVE_PREFIX, Ack, BatchAck, CheckPoint
from rmqstore_wheel.formats.config_files import TimerCheck
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.formats.properties import decode_column
from rmqstore_wheel.inspecting.files import FileSet, Findings
from rmqstore_wheel.inspecting.log import QueueName, Records

MINUTE_MS: Final = 60_000
EDGES_MS: Final = (0, MINUTE_MS, 5 * MINUTE_MS, 15 * MINUTE_MS, 60 * MINUTE_MS, 240 * MINUTE_MS, 1440 * MINUTE_MS)
LABELS: Final = ("overdue", "within 1 min", "within 5 min", "within 15 min", "within 1 h", "within 4 h", "within 24 h", "later")
_NO_TIME: Final = -1


class Pending:
    """Counts timers while the records go by. ``timers`` are those of users, ``internal`` check points and acks that wait, by bucket."""

    def __init__(self, now_ms: int, check: TimerCheck | None, superseded: Ints) -> None:
        self.timers: Ints = np.zeros(len(LABELS), np.int64)
        self.internal: Ints = np.zeros(len(LABELS), np.int64)
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
        self._count(found, waits & ~is_tombstone, 1)

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

    def _count(self, found: _Timers, rows: Flags, sign: int) -> None:
        for counts, mine in ((self.timers, rows & ~found.is_internal), (self.internal, rows & found.is_internal)):
            buckets = np.searchsorted(EDGES_MS, found.due_ms[mine] - self._now_ms, side="left")
            counts += sign * np.bincount(buckets, minlength=len(LABELS))


class _Timers:
    """What some records of the wheel's topic say. A time that a record does not tell is -1."""

    def __init__(self, records: Records, rows: Ints) -> None:
        properties = decode_column(records.columns.text.take(pa.array(rows)))
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


def _picked(column: pa.Array, rows: Ints | Flags) -> list[Any]:
    picked = np.flatnonzero(rows) if rows.dtype == bool else rows
    found: list[Any] = column.take(pa.array(picked)).to_pylist()
    return found


# ---------------------------------------------------------------- pops in flight

_TAGS: Final = (codec.CK_TAG, codec.ACK_TAG, codec.BATCH_ACK_TAG)

_Key = tuple[str, str, int, int, int]
# Without the broker's name, which a batch ack may lack: a store is one broker's.


class _Pop(msgspec.Struct):
    """One check point. ``waits`` says that its copy in the revive topic was not seen yet, so the entry must stay to be told by it."""

    point: CheckPoint
    waits: bool

    @property
    def unacked(self) -> int:
        everything = (1 << self.point.count) - 1
        return (everything & ~self.point.acked_bits).bit_count()


class Popped:
    """Gathers check points and acks while the records go by.

    ``revived`` gives the last offset of each queue of a revive topic whose check point was revived, by topic and queue.
    """

    def __init__(self, revived: Mapping[QueueName, int], files: FileSet, findings: Findings) -> None:
        self._revived = revived
        self._files = files
        self._findings = findings
        self._pops: dict[_Key, _Pop] = {}

    def take(self, name: QueueName, records: Records, rows: Ints) -> None:
        """Look at records of the wheel's topic or of a revive topic."""
        found = decode_column(records.columns.text.take(pa.array(rows)))
        homes = found.column(texts.REAL_TOPIC).to_pylist() if name.topic == WHEEL_TOPIC else [name.topic] * len(rows)
        tags = found.column(texts.TAG).to_pylist()
        mine = [place for place, (home, tag) in enumerate(zip(homes, tags, strict=True)) if tag in _TAGS and _is_revive(home)]
        bodies = records.columns.body.take(pa.array(rows[mine])).to_pylist()
        offsets = np.asarray(records.columns.queue_offset)[rows[mine]].tolist()
        places = np.asarray(records.columns.physical_offset)[rows[mine]].tolist()
        for at, body, offset, place in zip(mine, bodies, offsets, places, strict=True):
            try:
                self._take(tags[at], body, None if name.topic == WHEEL_TOPIC else offset <= self._revived.get(name, -1))
            except CorruptStoreError as error:
                self._note(place, str(error))

    def _take(self, tag: str, body: bytes, is_revived: bool | None) -> None:
        """Take one body; ``is_revived`` is None while it waits as a timer."""
        if tag == codec.CK_TAG:
            self._point(codec.decode_check_point(body), is_revived)
        elif tag == codec.ACK_TAG:
            ack = codec.decode_ack(body)
            self._ack(ack, [ack.ack_offset])
        else:
            batch = codec.decode_batch_ack(body)
            self._ack(batch, batch.ack_offsets)

    def _point(self, point: CheckPoint, is_revived: bool | None) -> None:
        key = _key(point)
        if is_revived or point.count <= 0:
            self._pops.pop(key, None)
            return
        known = self._pops.get(key)
        if known is None:
            self._pops[key] = known = _Pop(point, waits=is_revived is None)
        elif is_revived is not None:
            known.waits = False
        self._drop_if_done(key, known)

    def _ack(self, ack: Ack | BatchAck, offsets: list[int]) -> None:
        key = _key(ack)
        pop = self._pops.get(key)
        if pop is None:
            return
        for offset in offsets:
            index = pop.point.index_of(offset)
            if index is not None:
                pop.point.acked_bits |= 1 << index
        self._drop_if_done(key, pop)

    def _drop_if_done(self, key: _Key, pop: _Pop) -> None:
        if not pop.waits and not pop.unacked:
            self._pops.pop(key, None)

    def _note(self, place: int, what: str) -> None:
        file = self._files.file_of(place)
        if file is not None:
            self._findings.add(file.name, place - file.start, f"the body of a check point or ack: {what}", kind="unreadable check points")

    def in_flight(self) -> list[tuple[str, str, int, int, int, int]]:
        """Return (group, topic, pops, messages, when the first one ends, and the last one, ms) of those with pops in flight."""
        by_name: dict[tuple[str, str], list[_Pop]] = {}
        for pop in self._pops.values():
            if pop.unacked:
                by_name.setdefault((pop.point.group, pop.point.topic), []).append(pop)
        found = []
        for (group, topic), pops in sorted(by_name.items()):
            ends = [pop.point.revive_ms for pop in pops]
            found.append((group, topic, len(pops), sum(pop.unacked for pop in pops), min(ends), max(ends)))
        return found


def _key(each: CheckPoint | Ack | BatchAck) -> _Key:
    return each.topic, each.group, each.queue_id, each.start_offset, each.pop_ms


def _is_revive(topic: str | None) -> bool:
    return topic is not None and topic.startswith(REVIVE_PREFIX)
