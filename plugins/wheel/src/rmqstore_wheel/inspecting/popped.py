"""Pops in flight: check points of which not every message is acked, and that were not revived yet.

A broker writes check points and acks as timers and delivers them to the revive topic when they end; rmqstore's engine writes them there at
once. Both are read: whatever is written of one check point has one key. What the group of the revive topic has passed is revived.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.formats import check_points as codec
from rmqstore_wheel.formats import properties as texts
from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.formats.check_points import Ack, BatchAck, CheckPoint
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.formats.property_columns import decode_column
from rmqstore_wheel.inspecting.files import FileSet, Findings
from rmqstore_wheel.inspecting.log import QueueName, Records

REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
_TAGS: Final = (codec.CK_TAG, codec.ACK_TAG, codec.BATCH_ACK_TAG)

_Key = tuple[str, str, int, int, int]
# Without the broker's name, which a batch ack may lack: a store is one broker's.


class _Pop:
    """One check point. ``waits`` says that its copy in the revive topic was not seen yet, so the entry must stay to be told by it."""

    def __init__(self, point: CheckPoint, waits: bool) -> None:
        self.point = point
        self.waits = waits

    @property
    def unacked(self) -> int:
        everything = (1 << self.point.count) - 1
        return (everything & ~self.point.acked_bits).bit_count()


class InFlight(NamedTuple):
    """The pops in flight of one group and topic."""

    group: str
    topic: str
    pops: int
    messages: int
    earliest_ms: int
    latest_ms: int


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
        found = decode_column(records.texts.take(pa.array(rows)))
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

    def in_flight(self) -> list[InFlight]:
        """Return what is in flight, by group and topic."""
        by_name: dict[tuple[str, str], list[_Pop]] = {}
        for pop in self._pops.values():
            if pop.unacked:
                by_name.setdefault((pop.point.group, pop.point.topic), []).append(pop)
        found = []
        for (group, topic), pops in sorted(by_name.items()):
            ends = [pop.point.revive_ms for pop in pops]
            found.append(InFlight(group, topic, len(pops), sum(pop.unacked for pop in pops), min(ends), max(ends)))
        return found


def _key(each: CheckPoint | Ack | BatchAck) -> _Key:
    return each.topic, each.group, each.queue_id, each.start_offset, each.pop_ms


def _is_revive(topic: str | None) -> bool:
    return topic is not None and topic.startswith(REVIVE_PREFIX)
