"""``import_state``: engine-neutral tables become records of a key-ordered database, beside those that are there.

Each call is one write. Rows of the two large tables, timers and messages, are encoded by columns. Runs are cut where a tick, a call or a
stretch of consecutive seqs ends, so that no two runs of a tick overlap, and where the sealed set ends, so that one record of a run speaks
for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.batch import IN_SCHEMA
from rmqstore.contract import TimerCursor
from rmqstore.contract.state import CANCELLED, POP_TABLES, TIMER_TABLES, Adopted
from rmqstore.errors import CorruptStoreError, UnsupportedOperationError
from rmqstore.ordered import traces
from rmqstore.ordered.adopting import put_adopted
from rmqstore.ordered.counts import MINUTE_MS
from rmqstore.ordered.fifo import FifoRun, Unacked, encode_fifo, fifo_key
from rmqstore.ordered.kv import OrderedKV, WriteBatch
from rmqstore.ordered.layout import (
    ATTEMPT,
    CURSOR_KEY,
    DEAD,
    EPOCH_KEY,
    EXPIRY,
    GROUP,
    IMPORTED,
    KEPT,
    LEASE,
    LEASE_KEY,
    LEASES,
    META,
    NEXT_ID_KEY,
    PAIR,
    POP_FLOOR_KEY,
    PURGE,
    QUEUE,
    QUEUE_PREFIX,
    QUEUES,
    SEAL_KEY,
    TIMERS,
    TRACES,
    U64,
)
from rmqstore.ordered.leases import LEASED, Lease
from rmqstore.ordered.marks import POP_SIDE, TIMER_SIDE, encode_ticks, put_marks
from rmqstore.ordered.popstate import PopState
from rmqstore.ordered.queues import Topic
from rmqstore.ordered.records import NONE, encode_columns, has_keys, with_delivery
from rmqstore.ordered.runs import encode_run, run_lengths
from rmqstore.ordered.standings import Dead, Gap, Registered, Seat, Standing


def is_taken_in(kv: OrderedKV, side: bytes, marks: Sequence[bytes]) -> bool:
    """Say whether a call with one of these marks was taken in already."""
    return any(kv.get(META, IMPORTED + side + mark) is not None for mark in marks)


def note_taken_in(write: WriteBatch, side: bytes, marks: Sequence[bytes]) -> None:
    """Add the marks of a call to its write."""
    write.put_many(META, [(IMPORTED + side + mark, b"") for mark in marks])


def _raise_epoch(kv: OrderedKV, write: WriteBatch, epoch: int) -> None:
    """See to it that the next open gets an epoch above ``epoch``."""
    if epoch > int.from_bytes(kv.get(META, EPOCH_KEY) or b"", "big"):
        write.put(META, EPOCH_KEY, epoch.to_bytes(4, "big"))


def _stretches(*changes: Any) -> list[tuple[int, int]]:
    """Return (start, stop) of the stretches between the rows where any of the columns says that something new begins."""
    begins = np.logical_or.reduce(changes)
    begins[:1] = True
    starts = np.flatnonzero(begins)
    return list(zip(starts.tolist(), [*starts[1:].tolist(), len(begins)], strict=True))


def _numbers(rows: pa.RecordBatch, name: str) -> Any:
    return rows.column(name).to_numpy(zero_copy_only=False)


def _records(rows: pa.RecordBatch) -> list[bytes]:
    return encode_columns(pa.RecordBatch.from_arrays([rows.column(name) for name in IN_SCHEMA.names], schema=IN_SCHEMA))


class TimerImport:
    """One call's rows of a timer side, on their way into a write.

    Args:
        sealed: what is sealed already.

    Attributes:
        by_minute: how many timers became pending, by the minute of their due time.
        last_seq: the largest seq among the rows.
        added: number of timers.
    """

    def __init__(self, kv: OrderedKV, write: WriteBatch, sealed: TimerCursor) -> None:
        self._kv = kv
        self._write = write
        self._sealed = sealed
        self.by_minute: Counter[int] = Counter()
        self.last_seq = 0
        self.added = 0

    def take(self, table: str, rows: pa.RecordBatch) -> None:
        """Stage the rows of one table.

        Raises:
            UnsupportedOperationError: there is no such table.
        """
        takers: dict[str, Callable[[pa.RecordBatch], None]] = {
            "timers": self._timers,
            "timer_traces": self._traces,
            "timer_marks": self._marks,
            "timer_head": self._head,
            "timer_adopted": lambda found: _put_adopted(self._write, TIMER_SIDE, found),
        }
        _taker(takers, table, TIMER_TABLES)(rows)

    def _timers(self, rows: pa.RecordBatch) -> None:
        ticks, seqs = _numbers(rows, "tick"), _numbers(rows, "seq")
        order = np.lexsort((seqs, ticks))
        rows = rows.take(pa.array(order))
        ticks, seqs, epochs, stores = (_numbers(rows, name) for name in ("tick", "seq", "epoch", "store_ms"))
        if not len(rows):
            return
        records = _records(rows)
        sealed = self._sealed.covers_each(ticks, seqs)
        changes = [np.diff(column, prepend=column[:1]) != 0 for column in (ticks, epochs, stores, sealed.astype(np.int8))]
        entries = []
        for start, stop in _stretches(*changes, np.diff(seqs, prepend=seqs[:1]) != 1):
            for begin, end in run_lengths([len(record) for record in records[start:stop]]):
                at = start + begin
                run = encode_run(int(epochs[at]), int(stores[at]), records[at : start + end])
                entries.append((PAIR.pack(int(ticks[at]), int(seqs[at])), run))
        self._write.put_many(TIMERS, entries)
        dues = pc.coalesce(rows.column("deliver_at_ms"), rows.column("tick")).to_numpy()
        minutes, counts = np.unique(dues // MINUTE_MS, return_counts=True)
        self.by_minute.update(dict(zip(minutes.tolist(), counts.tolist(), strict=True)))
        index = [
            (key, b"")
            for record, tick, seq in zip(records, ticks.tolist(), seqs.tolist(), strict=True)
            if has_keys(record)
            for key in traces.index_keys(record, tick, seq)
        ]
        self._write.put_many(TRACES, sorted(index))
        self.added += len(records)
        self.last_seq = max(self.last_seq, int(seqs.max()))

    def _traces(self, rows: pa.RecordBatch) -> None:
        delivered = []
        for row in rows.to_pylist():
            place = (row["tick"], row["seq"], row["epoch"])
            self.last_seq = max(self.last_seq, row["seq"])
            if row["kind"] == CANCELLED:
                traces.put_cancelled(self._write, *place)
            else:
                delivered.append(place)
        traces.put_delivered(self._write, sorted(delivered))

    def _marks(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            answer = encode_ticks(row["epoch"], row["first_seq"], row["ticks"])
            put_marks(self._write, TIMER_SIDE, [row["mark"]], answer, row["time_ms"])

    def _head(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            self.last_seq = max(self.last_seq, row["last_seq"])
            _raise_epoch(self._kv, self._write, row["epoch"])
            if row["sealed"]:
                self._sealed = self._sealed.join(TimerCursor.from_bytes(row["sealed"]).corners)
                self._write.put(META, SEAL_KEY, self._sealed.to_bytes())


class PopImport:
    """One call's rows of a pop side, on their way into a write."""

    def __init__(self, kv: OrderedKV, write: WriteBatch, state: PopState, epoch: int) -> None:
        self._kv = kv
        self._write = write
        self._state = state
        self._epoch = epoch
        self._next_id = state.next_id
        self._topics: dict[str, Topic] = {}
        self._groups: dict[str, int] = {}
        self._standings: dict[Seat, Standing] = {}
        self._fifo: dict[Seat, FifoRun] = {}
        self.has_cursor = False

    def take(self, table: str, rows: pa.RecordBatch) -> None:
        """Stage the rows of one table.

        Raises:
            UnsupportedOperationError: there is no such table.
            CorruptStoreError: a row names a topic that no row of ``topics`` made.
        """
        takers: dict[str, Callable[[pa.RecordBatch], None]] = {
            "pop_head": self._head,
            "topics": self._take_topics,
            "gaps": self._gaps,
            "messages": self._messages,
            "standings": self._take_standings,
            "subscriptions": self._subscriptions,
            "leases": self._leases,
            "fifo": self._take_fifo,
            "attempts": self._attempts,
            "pop_marks": self._marks,
            "pop_adopted": lambda found: _put_adopted(self._write, POP_SIDE, found),
        }
        _taker(takers, table, POP_TABLES)(rows)

    def finish(self) -> None:
        """Stage what several tables changed."""
        for topic in self._topics.values():
            self._write.put(META, *topic.entry())
        for name, group_id in self._groups.items():
            self._write.put(META, GROUP + name.encode(), group_id.to_bytes(4, "big"))
        if self._next_id != self._state.next_id:
            self._write.put(META, NEXT_ID_KEY, self._next_id.to_bytes(4, "big"))
        self._write.put_many(META, [(seat.key(), standing.encode()) for seat, standing in self._standings.items()])
        self._write.put_many(LEASES, [(fifo_key(seat), encode_fifo(run)) for seat, run in self._fifo.items()])

    # ------------------------------------------------------------ names

    def _topic(self, name: str) -> Topic:
        topic = self._topics.get(name) or self._state.topics.get(name)
        if topic is None:
            raise CorruptStoreError(f"a row names topic {name!r}, which no row of the table of topics makes")
        return topic

    def _group(self, name: str) -> int:
        known = self._groups.get(name) or self._state.groups.get(name)
        if known is None:
            known = self._groups[name] = self._next_id
            self._next_id += 1
        return known

    def _seat(self, row: dict[str, Any]) -> Seat:
        return Seat(self._group(row["group"]), self._topic(row["topic"]).id, row["queue_id"])

    def _standing(self, seat: Seat) -> Standing:
        return self._standings.get(seat) or self._state.standings.get(seat) or Standing(0)

    # ------------------------------------------------------------ queues

    def _head(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            _raise_epoch(self._kv, self._write, row["epoch"])
            if row["pop_floor_ms"] > self._state.pop_floor_ms:
                self._write.put(META, POP_FLOOR_KEY, U64.pack(row["pop_floor_ms"]))
            if row["cursor"]:
                self._write.put(META, CURSOR_KEY, row["cursor"])
                self.has_cursor = True

    def _take_topics(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            name, queue = row["topic"], row["queue_id"]
            topic = self._topics.get(name) or self._state.topics.get(name)
            if topic is None:
                topic = Topic(self._next_id, name, ())
                self._next_id += 1
            self._topics[name] = topic = topic.widened(queue + 1).moved(queue, row["next_offset"])
            if row["min_offset"]:
                self._write.put(META, KEPT + QUEUE_PREFIX.pack(topic.id, queue), U64.pack(row["min_offset"]))

    def _gaps(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            gap = Gap(row["first"], row["behind"], row["is_removal"])
            self._write.put(META, *gap.entry(self._topic(row["topic"]).id, row["queue_id"]))

    def _messages(self, rows: pa.RecordBatch) -> None:
        if not len(rows):
            return
        queues, offsets, stores = (_numbers(rows, name) for name in ("queue_id", "queue_offset", "store_ms"))
        topics = rows.column("topic").dictionary_encode()
        ids = np.asarray([self._topic(name).id for name in topics.dictionary.to_pylist()])[topics.indices.to_numpy()]
        records = _records(rows)
        attempts = _numbers(rows, "attempt")
        first_pops = pc.fill_null(rows.column("first_pop_ms"), NONE).to_numpy(zero_copy_only=False)
        for at in np.flatnonzero((attempts != 0) | (first_pops != NONE)).tolist():
            records[at] = with_delivery(records[at], int(attempts[at]), int(first_pops[at]))
        changes = [np.diff(column, prepend=column[:1]) != 0 for column in (ids, queues, stores)]
        entries = []
        for start, stop in _stretches(*changes, np.diff(offsets, prepend=offsets[:1]) != 1):
            for begin, end in run_lengths([len(record) for record in records[start:stop]]):
                at = start + begin
                run = encode_run(self._epoch, int(stores[at]), records[at : start + end])
                entries.append((QUEUE.pack(int(ids[at]), int(queues[at]), int(offsets[at])), run))
        self._write.put_many(QUEUES, sorted(entries))

    # ------------------------------------------------------------ groups

    def _take_standings(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            seat = self._seat(row)
            self._standings[seat] = Standing(row["next_offset"], row["last_pop_ms"], self._standing(seat).in_flight)

    def _subscriptions(self, rows: pa.RecordBatch) -> None:
        """Take groups on topics in; of one that is here already, dead letters add up and the later activity counts."""
        for row in rows.to_pylist():
            place = (self._group(row["group"]), self._topic(row["topic"]).id)
            if row["dead"]:
                known_dead = self._state.dead.get(place)
                since = row["dead_since"] if known_dead is None or not known_dead.letters else min(row["dead_since"], known_dead.since)
                dead = Dead(row["dead"] + (known_dead.letters if known_dead is not None else 0), since)
                self._write.put(META, DEAD + QUEUE_PREFIX.pack(*place), dead.encode())
            if row["active_ms"] is not None:
                known = self._state.registered.get(place)
                active_ms = row["active_ms"] if known is None else max(row["active_ms"], known.active_ms)
                self._write.put(META, Registered.key(*place), Registered(row["is_ordered"], active_ms).encode())

    def _leases(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            seat = self._seat(row)
            key = LEASE_KEY.pack(*seat, row["ck_start"], row["pop_time_ms"])
            lease = Lease(
                key,
                row["expiry_ms"],
                row["invisible_ms"],
                row["epoch"],
                row["retry_flag"],
                row["offsets"],
                bytearray(row["states"]),
                row["first_pop_ms"],
                row["store_tag"],
            )
            self._write.put(LEASES, LEASE + key, lease.encode())
            if LEASED in lease.states:
                self._write.put(LEASES, EXPIRY + U64.pack(lease.expiry_ms) + key, b"")
                standing = self._standing(seat)
                self._standings[seat] = Standing(standing.next_offset, standing.last_pop_ms, standing.in_flight + lease.live)
            else:
                self._write.put(LEASES, PURGE + U64.pack(row["keep_until_ms"]) + LEASE + key, b"")

    def _take_fifo(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            seat = self._seat(row)
            run = self._fifo.setdefault(seat, dict(self._state.fifo.get(seat, {})))
            run[row["queue_offset"]] = Unacked(row["delivered"], row["first_pop_ms"], row["waits"])

    def _attempts(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            group_id = self._group(row["group"])
            places = zip(row["topics"], row["queue_ids"], row["ck_starts"], row["pop_times_ms"], strict=True)
            keys = [LEASE_KEY.pack(group_id, self._topic(name).id, *place) for name, *place in places]
            expiry, key = U64.pack(row["expiry_ms"]), ATTEMPT + row["attempt"]
            self._write.put(LEASES, key, expiry + b"".join(keys))
            self._write.put(LEASES, PURGE + expiry + key, b"")

    def _marks(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            put_marks(self._write, POP_SIDE, [row["mark"]], U64.pack(row["position"]), row["time_ms"])


def _taker(takers: dict[str, Callable[[pa.RecordBatch], None]], table: str, known: Any) -> Callable[[pa.RecordBatch], None]:
    if table not in takers:
        raise UnsupportedOperationError(f"there is no table {table!r}; there are {', '.join(known)}")
    return takers[table]


def _put_adopted(write: WriteBatch, side: bytes, rows: pa.RecordBatch) -> None:
    for record in rows.column("record").to_pylist():
        put_adopted(write, side, Adopted.from_bytes(record))
