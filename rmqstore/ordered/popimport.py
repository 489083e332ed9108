"""``import_state`` of the pop side: engine-neutral tables become queues and leases, beside those that earlier calls took in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from rmqstore.contract import GroupSettings
from rmqstore.contract.state import POP_TABLES
from rmqstore.errors import CorruptStoreError
from rmqstore.ordered.fifo import FifoRun, Unacked, encode_fifo, fifo_key
from rmqstore.ordered.importing import messages_in, numbers, put_all_adopted, raise_epoch, stretches, taker
from rmqstore.ordered.kv import OrderedKV, WriteBatch
from rmqstore.ordered.layout import (
    ATTEMPT,
    CURSOR_KEY,
    DEAD,
    EXPIRY,
    GROUP,
    KEPT,
    LEASE,
    LEASE_KEY,
    LEASES,
    META,
    NEXT_ID_KEY,
    POP_FLOOR_KEY,
    PURGE,
    QUEUE_PREFIX,
    U64,
)
from rmqstore.ordered.leases import LEASED, Lease
from rmqstore.ordered.marks import POP_SIDE, put_marks
from rmqstore.ordered.popstate import PopState
from rmqstore.ordered.queuelog import PlacedRun, QueueLog, Run
from rmqstore.ordered.queues import Topic
from rmqstore.ordered.recordformat import NONE
from rmqstore.ordered.standings import Dead, Gap, Registered, Seat, Standing, group_settings_entry


class PopImport:
    """One call's rows of a pop side, on their way into a write."""

    def __init__(self, kv: OrderedKV, write: WriteBatch, state: PopState, log: QueueLog) -> None:
        self._kv = kv
        self._write = write
        self._state = state
        self._log = log
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
            "group_queues": self._group_queues,
            "gaps": self._gaps,
            "messages": self._messages,
            "standings": self._take_standings,
            "subscriptions": self._subscriptions,
            "group_settings": self._group_settings,
            "leases": self._leases,
            "fifo": self._take_fifo,
            "attempts": self._attempts,
            "pop_marks": self._marks,
            "pop_adopted": lambda found: put_all_adopted(self._write, POP_SIDE, found),
        }
        taker(takers, table, POP_TABLES)(rows)

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
            raise_epoch(self._kv, self._write, row["epoch"])
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
                topic = Topic(self._next_id, name, (), is_on_demand=row["is_on_demand"])
                self._next_id += 1
            self._topics[name] = topic = topic.widened(queue + 1).moved(queue, row["next_offset"])
            if row["min_offset"]:
                self._write.put(META, KEPT + QUEUE_PREFIX.pack(topic.id, queue), U64.pack(row["min_offset"]))

    def _group_queues(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            self._topics[row["topic"]] = structs.replace(self._topic(row["topic"]), group_queues=row["queues"])

    def _gaps(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            gap = Gap(row["first"], row["behind"], row["is_removal"])
            self._write.put(META, *gap.entry(self._topic(row["topic"]).id, row["queue_id"]))

    def _messages(self, rows: pa.RecordBatch) -> None:
        if not len(rows):
            return
        queues, offsets, stores = (numbers(rows, name) for name in ("queue_id", "queue_offset", "store_ms"))
        named = rows.column("topic").dictionary_encode()
        topics = [self._topic(name) for name in named.dictionary.to_pylist()]
        places = named.indices.to_numpy()
        record_format = self._log.format
        records = record_format.encode_columns(messages_in(rows))
        attempts = numbers(rows, "attempt")
        first_pops = pc.fill_null(rows.column("first_pop_ms"), NONE).to_numpy(zero_copy_only=False)
        for at in np.flatnonzero((attempts != 0) | (first_pops != NONE)).tolist():
            records[at] = record_format.with_delivery(records[at], int(attempts[at]), int(first_pops[at]))
        changes = [np.diff(column, prepend=column[:1]) != 0 for column in (places, queues, stores)]
        runs = [
            PlacedRun(topics[places[at]], int(queues[at]), Run(int(offsets[at]), int(stores[at]), records[at:stop]))
            for at, stop in stretches(*changes, np.diff(offsets, prepend=offsets[:1]) != 1)
        ]
        self._log.place(self._write, runs)

    # ------------------------------------------------------------ groups

    def _take_standings(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            seat = self._seat(row)
            self._standings[seat] = Standing(row["next_offset"], row["last_pop_ms"], self._standing(seat).in_flight)

    def _subscriptions(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            place = (self._group(row["group"]), self._topic(row["topic"]).id)
            if row["dead"]:
                self._write.put(META, DEAD + QUEUE_PREFIX.pack(*place), Dead(row["dead"], row["dead_since"]).encode())
            if row["active_ms"] is not None:
                how = Registered(row["is_ordered"], row["active_ms"], row["expired"])
                self._write.put(META, Registered.key(*place), how.encode())

    def _group_settings(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            settings = GroupSettings(max_retries=row["max_retries"], backoff_ms=tuple(row["backoff_ms"]))
            self._write.put(META, *group_settings_entry(row["group"], settings))

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
            lease.is_backing_off, lease.reason = row["is_backing_off"], row["reason"]
            self._write.put(LEASES, LEASE + key, lease.encode())
            if LEASED in lease.states:
                self._write.put(LEASES, EXPIRY + U64.pack(lease.expiry_ms) + key, b"\1" if lease.is_backing_off else b"")
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
            group_id = self._group(row["group"]) if row["topics"] else 0
            places = zip(row["topics"], row["queue_ids"], row["ck_starts"], row["pop_times_ms"], strict=True)
            keys = [LEASE_KEY.pack(group_id, self._topic(name).id, *place) for name, *place in places]
            expiry, key = U64.pack(row["expiry_ms"]), ATTEMPT + row["attempt"]
            self._write.put(LEASES, key, expiry + b"".join(keys))
            self._write.put(LEASES, PURGE + expiry + key, b"")

    def _marks(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            put_marks(self._write, POP_SIDE, [row["mark"]], U64.pack(row["position"]), row["time_ms"])
