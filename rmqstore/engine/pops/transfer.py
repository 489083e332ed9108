"""``export_state`` and ``import_state`` of the pop side: queues and leases as the engine-neutral tables of ``rmqstore.contract.tables``.

Columns of those tables are called what the fields are called here; of a row that has more, a table takes what it has columns for.

An import adds to what earlier calls took in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from rmqstore.columns import spread
from rmqstore.contract import GroupSettings
from rmqstore.contract.state import StatePage
from rmqstore.contract.tables import POP_TABLES
from rmqstore.engine.kv.base import OrderedKV
from rmqstore.engine.marks import POP_SIDE, put_marks
from rmqstore.engine.pops.checkpoint import LEASED, Lease
from rmqstore.engine.pops.queue_log import PlacedRun, QueueLog, Run
from rmqstore.engine.pops.state import Dead, Gap, GroupQueue, PopState, Progress, Registered, Topic, Unacked, group_settings_entry
from rmqstore.engine.pops.transaction import Transaction
from rmqstore.engine.records import NONE
from rmqstore.engine.schema import (
    ATTEMPT,
    CURSOR_KEY,
    DEAD,
    EXPIRY,
    LEASE,
    LEASE_KEY,
    LEASES,
    MARK_AGE,
    META,
    NOTE,
    PURGE,
    QUEUE_PREFIX,
    U64,
)
from rmqstore.engine.shared import epoch_of
from rmqstore.engine.state import (
    Rows,
    adopted_rows,
    as_batch,
    listed,
    mark_of,
    messages_in,
    numbers,
    of_table,
    put_adopted,
    raise_epoch,
    scanned,
    stretches,
)
from rmqstore.errors import CorruptStoreError

_BY_READER = itemgetter("group", "topic", "queue_id")


def export_pops(kv: OrderedKV, state: PopState, log: QueueLog, table: str, after: bytes | None, limit: int) -> StatePage:
    """Answer ``export_state`` of a pop side."""
    schema = of_table(POP_TABLES, table)
    if table == "messages":
        return _messages(state, log, after, limit)
    topics, groups = state.names_by_id(), state.group_names()
    if table == "leases":
        return scanned(kv, LEASES, lambda key, _: _lease(kv, topics, groups, key), schema, after, limit, (EXPIRY, PURGE))
    if table == "attempts":
        return scanned(kv, LEASES, lambda key, value: _attempt(topics, groups, key, value), schema, after, limit, (ATTEMPT,))
    if table == "pop_marks":
        return scanned(kv, META, lambda key, _: _pop_mark(kv, key), schema, after, limit, (MARK_AGE + POP_SIDE,))
    if table == "pop_adopted":
        return listed(adopted_rows(kv, POP_SIDE), schema, after, limit)
    if table == "pop_head":
        head = {"cursor": kv.get(META, CURSOR_KEY) or b"", "epoch": epoch_of(kv), "pop_floor_ms": state.pop_floor_ms}
        return listed([head], schema, after, limit)
    rows: dict[str, Callable[[], Rows]] = {
        "topics": lambda: _topics(state),
        "group_queues": lambda: [{"topic": each.name, "queues": each.group_queues} for each in _in_order(state) if each.group_queues],
        "gaps": lambda: _gaps(state, topics),
        "standings": lambda: _standings(state, topics, groups),
        "subscriptions": lambda: _subscriptions(state, topics, groups),
        "fifo": lambda: _fifo(state, topics, groups),
        "group_settings": lambda: [{"group": name, **structs.asdict(each)} for name, each in sorted(state.group_settings.items())],
        "notes": lambda: [{"name": name, "value": value} for name, value in sorted(state.notes.items())],
    }
    return listed(rows[table](), schema, after, limit)


def _messages(state: PopState, log: QueueLog, after: bytes | None, limit: int) -> StatePage:
    records: list[bytes] = []
    offsets: list[int] = []
    runs: list[tuple[str, int, int]] = []
    counts: list[int] = []
    behind: bytes | None = None
    for key, (topic, queue, run) in log.stored(state.topics.values(), after, limit):
        kept = min(max(state.first_kept(topic.id, queue) - run.first, 0), len(run.records))
        records += run.records[kept:]
        offsets += range(run.first + kept, run.first + len(run.records))
        runs.append((topic.name, queue, run.store_ms))
        counts.append(len(run.records) - kept)
        behind = key
    columns = {**log.format.decode_columns(records), "queue_offset": pa.array(offsets, pa.int64())}
    for at, name in enumerate(("topic", "queue_id", "store_ms")):
        columns[name] = spread([run[at] for run in runs], counts, POP_TABLES["messages"].field(name).type)
    return StatePage(as_batch(columns, POP_TABLES["messages"]), behind)


def _in_order(state: PopState) -> list[Topic]:
    return sorted(state.topics.values(), key=attrgetter("name"))


def _topics(state: PopState) -> Rows:
    for topic in _in_order(state):
        for queue, behind in enumerate(topic.next_offsets):
            yield {
                "topic": topic.name,
                "queue_id": queue,
                "min_offset": state.first_kept(topic.id, queue),
                "next_offset": behind,
                "is_on_demand": topic.is_on_demand,
            }


def _gaps(state: PopState, topics: Mapping[int, str]) -> Rows:
    for (topic_id, queue), gaps in sorted(state.gaps.items(), key=lambda entry: (topics[entry[0][0]], entry[0][1])):
        for gap in gaps:
            yield {"topic": topics[topic_id], "queue_id": queue, **gap._asdict()}


def _names_of(reader: GroupQueue, topics: Mapping[int, str], groups: Mapping[int, str]) -> dict[str, Any]:
    return {"group": groups[reader.group_id], "topic": topics[reader.topic_id], "queue_id": reader.queue}


def _standings(state: PopState, topics: Mapping[int, str], groups: Mapping[int, str]) -> Rows:
    rows = [{**_names_of(reader, topics, groups), **structs.asdict(progress)} for reader, progress in state.all_progress.items()]
    return sorted(rows, key=_BY_READER)


def _subscriptions(state: PopState, topics: Mapping[int, str], groups: Mapping[int, str]) -> Rows:
    rows = []
    for group_id, topic_id in state.registered.keys() | {place for place, dead in state.dead.items() if dead.letters}:
        how = state.registered.get((group_id, topic_id))
        dead = state.dead.get((group_id, topic_id), Dead(0))
        rows.append(
            {
                "group": groups[group_id],
                "topic": topics[topic_id],
                "is_ordered": how is not None and how.is_ordered,
                "dead": dead.letters,
                "dead_since": dead.since if dead.letters else 0,
                "active_ms": None if how is None else how.active_ms,
                "expired": 0 if how is None else how.expired,
            }
        )
    return sorted(rows, key=itemgetter("group", "topic"))


def _fifo(state: PopState, topics: Mapping[int, str], groups: Mapping[int, str]) -> Rows:
    rows = [
        {**_names_of(reader, topics, groups), "queue_offset": offset, **one._asdict()}
        for reader, run in state.fifo.items()
        for offset, one in sorted(run.items())
    ]
    return sorted(rows, key=_BY_READER)


def _lease(kv: OrderedKV, topics: Mapping[int, str], groups: Mapping[int, str], key: bytes) -> Rows:
    """Return the check point that an entry by expiry or by purge time names, unless its topic is gone; others name attempts."""
    is_running = key[:1] == EXPIRY
    named = key[1 + U64.size :] if is_running else key[1 + U64.size + 1 :]
    if not is_running and key[1 + U64.size :][:1] != LEASE:
        return []
    value = kv.get(LEASES, LEASE + named)
    if value is None:
        return []
    lease = Lease.decode(named, value)
    reader, (*_, ck_start, pop_time_ms) = lease.reader, lease.place
    if reader.topic_id not in topics:
        return []
    return [
        {
            **_names_of(reader, topics, groups),
            **structs.asdict(lease),
            "ck_start": ck_start,
            "pop_time_ms": pop_time_ms,
            "store_tag": lease.granter,
            "keep_until_ms": -1 if is_running else U64.unpack_from(key, 1)[0],
            "states": list(lease.states),
        }
    ]


def _attempt(topics: Mapping[int, str], groups: Mapping[int, str], key: bytes, value: bytes) -> Rows:
    places = [LEASE_KEY.unpack_from(value, at) for at in range(U64.size, len(value), LEASE_KEY.size)]
    # A check point whose topic or group was deleted gives nothing any more, and so does a repeat of its attempt (P1).
    places = [place for place in places if place[0] in groups and place[1] in topics]
    return [
        {
            "attempt": key[1:],
            "expiry_ms": U64.unpack_from(value)[0],
            "group": groups[places[0][0]] if places else "",
            "topics": [topics[place[1]] for place in places],
            "queue_ids": [place[2] for place in places],
            "ck_starts": [place[3] for place in places],
            "pop_times_ms": [place[4] for place in places],
        }
    ]


def _pop_mark(kv: OrderedKV, key: bytes) -> Rows:
    row, answer = mark_of(kv, POP_SIDE, key)
    return [{**row, "position": U64.unpack(answer)[0]}]


class PopImport:
    """One call's rows of a pop side, on their way into its transaction."""

    def __init__(self, kv: OrderedKV, transaction: Transaction, log: QueueLog) -> None:
        self._kv = kv
        self._transaction = transaction
        self._write = transaction.write
        self._log = log
        self.has_cursor = False

    def take(self, table: str, rows: pa.RecordBatch) -> None:
        """Take the rows of one table.

        Raises:
            UnsupportedOperationError: there is no such table.
            CorruptStoreError: a row names a topic that no row of ``topics`` made.
        """
        of_table(POP_TABLES, table)
        if table == "messages":
            self._messages(rows)
        elif table == "pop_adopted":
            put_adopted(self._write, POP_SIDE, rows)
        else:
            takers: dict[str, Callable[[dict[str, Any]], None]] = {
                "pop_head": self._head,
                "topics": self._queue,
                "group_queues": self._group_queues,
                "gaps": self._gap,
                "standings": self._progress,
                "subscriptions": self._subscription,
                "group_settings": self._group_settings,
                "notes": self._note,
                "leases": self._lease,
                "fifo": self._unacked,
                "attempts": self._attempt,
                "pop_marks": self._mark,
            }
            take = takers[table]
            for row in rows.to_pylist():
                take(row)

    # ------------------------------------------------------------ names

    def _topic(self, name: str) -> Topic:
        topic = self._transaction.topic(name)
        if topic is None:
            raise CorruptStoreError(f"a row names topic {name!r}, which no row of the table of topics makes")
        return topic

    def _reader(self, row: dict[str, Any]) -> GroupQueue:
        return GroupQueue(self._transaction.group_id(row["group"]), self._topic(row["topic"]).id, row["queue_id"])

    # ------------------------------------------------------------ queues

    def _head(self, row: dict[str, Any]) -> None:
        raise_epoch(self._kv, self._write, row["epoch"])
        self._transaction.raise_pop_floor([row["pop_floor_ms"]])
        if row["cursor"]:
            self._write.put(META, CURSOR_KEY, row["cursor"])
            self.has_cursor = True

    def _queue(self, row: dict[str, Any]) -> None:
        name, queue = row["topic"], row["queue_id"]
        is_new = self._transaction.topic(name) is None
        topic = self._transaction.topic_with(name, queue + 1).moved(queue, row["next_offset"])
        self._transaction.set_topic(structs.replace(topic, is_on_demand=row["is_on_demand"]) if is_new else topic)
        if row["min_offset"]:
            self._transaction.set_first_kept(topic.id, queue, row["min_offset"])

    def _group_queues(self, row: dict[str, Any]) -> None:
        self._transaction.set_topic(structs.replace(self._topic(row["topic"]), group_queues=row["queues"]))

    def _gap(self, row: dict[str, Any]) -> None:
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

    def _progress(self, row: dict[str, Any]) -> None:
        reader = self._reader(row)
        known = self._transaction.progress(reader) or Progress(0)
        self._transaction.set_progress(reader, Progress(row["next_offset"], row["last_pop_ms"], known.in_flight))

    def _subscription(self, row: dict[str, Any]) -> None:
        place = (self._transaction.group_id(row["group"]), self._topic(row["topic"]).id)
        if row["dead"]:
            self._write.put(META, DEAD + QUEUE_PREFIX.pack(*place), Dead(row["dead"], row["dead_since"]).encode())
        if row["active_ms"] is not None:
            self._transaction.register(*place, Registered(row["is_ordered"], row["active_ms"], row["expired"]))

    def _group_settings(self, row: dict[str, Any]) -> None:
        settings = GroupSettings(max_retries=row["max_retries"], backoff_ms=tuple(row["backoff_ms"]))
        self._write.put(META, *group_settings_entry(row["group"], settings))

    def _note(self, row: dict[str, Any]) -> None:
        self._write.put(META, NOTE + row["name"].encode(), row["value"])

    def _lease(self, row: dict[str, Any]) -> None:
        reader = self._reader(row)
        key = LEASE_KEY.pack(reader.group_id, reader.topic_id, reader.queue, row["ck_start"], row["pop_time_ms"])
        said = {name: row[name] for name in Lease.__struct_fields__ if name in row}
        lease = Lease(**{**said, "key": key, "states": bytearray(row["states"]), "granter": row["store_tag"]})
        self._write.put(LEASES, LEASE + key, lease.encode())
        if LEASED in lease.states:
            self._write.put(LEASES, EXPIRY + U64.pack(lease.expiry_ms) + key, b"\1" if lease.is_backing_off else b"")
            known = self._transaction.progress(reader) or Progress(0)
            in_flight = known.in_flight + lease.live
            self._transaction.set_progress(reader, Progress(known.next_offset, known.last_pop_ms, in_flight))
        else:
            self._write.put(LEASES, PURGE + U64.pack(row["keep_until_ms"]) + LEASE + key, b"")

    def _unacked(self, row: dict[str, Any]) -> None:
        reader = self._reader(row)
        self._transaction.fifo(reader)[row["queue_offset"]] = Unacked(**{name: row[name] for name in Unacked._fields})

    def _attempt(self, row: dict[str, Any]) -> None:
        group_id = self._transaction.group_id(row["group"]) if row["topics"] else 0
        places = zip(row["topics"], row["queue_ids"], row["ck_starts"], row["pop_times_ms"], strict=True)
        keys = [LEASE_KEY.pack(group_id, self._topic(name).id, *place) for name, *place in places]
        expiry, key = U64.pack(row["expiry_ms"]), ATTEMPT + row["attempt"]
        self._write.put(LEASES, key, expiry + b"".join(keys))
        self._write.put(LEASES, PURGE + expiry + key, b"")

    def _mark(self, row: dict[str, Any]) -> None:
        put_marks(self._kv, self._write, POP_SIDE, [row["mark"]], U64.pack(row["position"]), row["time_ms"])
