"""Where the rows of a dump go in a store that has rows of its own.

The source's queue *i* of a topic becomes queue *q + i*, where *q* is how many there are already; so offsets, standings and leases keep
their numbers. That holds for retry topics, dead letter queues and parked entries too. Seqs are raised above those there are.
Ticks stay, unless the widths of ticks differ: then a put that waits for its own tick gets the one of the new width, and a put that was
late keeps its tick. Such a change of order, and a merge, leave the source's cursor and seal behind; the dump holds pending timers only.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.contract.state import Adopted

_BY_QUEUE = ("messages", "topics", "gaps", "standings", "leases", "fifo", "timers")


class Shift(msgspec.Struct, frozen=True, kw_only=True):
    """How rows change on their way in.

    Attributes:
        seq_shift, queue_shifts: see the module; topics that are not named do not move.
        from_precision_ms, to_precision_ms: widths of ticks in the dump and in the store.
        takes_over: the store is new and becomes the one that was dumped: the cursor and the seal come along.
    """

    seq_shift: int = 0
    queue_shifts: dict[str, int] = {}
    from_precision_ms: int
    to_precision_ms: int
    takes_over: bool = False

    @property
    def keeps_order(self) -> bool:
        """Whether cursor and seal mean the same in the new place."""
        return self.takes_over and self.from_precision_ms == self.to_precision_ms

    def rows(self, table: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows as they go into the store."""
        if table in _BY_QUEUE and self.queue_shifts:
            rows = self._queues(rows)
        if table in ("timers", "timer_traces") and self.seq_shift:
            rows = _with(rows, "seq", pc.add(rows.column("seq"), self.seq_shift))
        if table == "timers" and self.from_precision_ms != self.to_precision_ms:
            rows = _with(rows, "tick", self._ticks(rows))
        if table == "timer_marks" and self.seq_shift:
            rows = _with(rows, "first_seq", pc.add(rows.column("first_seq"), self.seq_shift))
        if table == "timer_head":
            rows = _with(rows, "last_seq", pc.add(rows.column("last_seq"), self.seq_shift))
            rows = rows if self.keeps_order else _with(rows, "sealed", pa.array([b""] * len(rows)))
        if table == "pop_head" and not self.keeps_order:
            rows = _with(rows, "cursor", pa.array([b""] * len(rows)))
        if table == "attempts" and self.queue_shifts:
            rows = self._attempts(rows)
        return rows

    def _queues(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        topics = rows.column("topic").dictionary_encode()
        by_topic = np.asarray([self.queue_shifts.get(name, 0) for name in topics.dictionary.to_pylist()], np.int32)
        if not len(rows) or not by_topic.any():
            return rows
        return _with(rows, "queue_id", pc.add(rows.column("queue_id"), pa.array(by_topic[topics.indices.to_numpy()], pa.int32())))

    def _ticks(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the ticks by the new width; a put without a deliver time, or a late one, keeps its own."""
        ticks = rows.column("tick").to_numpy()
        dues = pc.fill_null(rows.column("deliver_at_ms"), -1).to_numpy(zero_copy_only=False)
        own = (dues >= 0) & (ticks == -(-dues // self.from_precision_ms) * self.from_precision_ms)
        return pa.array(np.where(own, -(-dues // self.to_precision_ms) * self.to_precision_ms, ticks))

    def _attempts(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        moved = []
        for row in rows.to_pylist():
            queues = [queue + self.queue_shifts.get(topic, 0) for topic, queue in zip(row["topics"], row["queue_ids"], strict=True)]
            moved.append({**row, "queue_ids": queues})
        return pa.RecordBatch.from_pylist(moved, schema=rows.schema)

    def adopted(self, record: Adopted) -> Adopted:
        """Return how a store that the source had adopted lies in this one."""
        topics = record.queue_shifts.keys() | self.queue_shifts.keys()
        precisions = record.precisions
        if self.from_precision_ms != self.to_precision_ms:
            precisions = tuple(dict.fromkeys((*precisions, self.from_precision_ms)))
        return msgspec.structs.replace(
            record,
            seq_shift=record.seq_shift + self.seq_shift,
            queue_shifts={topic: record.queue_shifts.get(topic, 0) + self.queue_shifts.get(topic, 0) for topic in topics},
            precisions=precisions,
        )


def _with(rows: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    """Return the rows with one column replaced."""
    at = rows.schema.get_field_index(name)
    columns = [column.cast(rows.schema.field(at).type) if number == at else rows.column(number) for number in range(rows.num_columns)]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)
