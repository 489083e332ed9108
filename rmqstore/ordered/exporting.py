"""``export_state``: the records of a key-ordered database as the engine-neutral tables of ``rmqstore.contract.state``.

The two tables that may be large, timers and messages, are read run by run and turned into columns a page at a time; nothing else is read
row by row that could be long. What cannot be read is an error here and never left out: who moves a store must not lose anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from rmqstore.contract.state import CANCELLED, DELIVERED, POP_TABLES, TIMER_TABLES, StatePage
from rmqstore.errors import CorruptStoreError, UnsupportedOperationError
from rmqstore.ordered import layout, traces
from rmqstore.ordered.adopting import stored_adopted
from rmqstore.ordered.kv import OrderedKV
from rmqstore.ordered.layout import (
    ATTEMPT,
    CURSOR_KEY,
    EPOCH_KEY,
    EXPIRY,
    LEASE,
    LEASE_KEY,
    LEASES,
    MARK,
    MARK_AGE,
    META,
    PAIR,
    PURGE,
    QUEUE,
    QUEUES,
    SEAL_KEY,
    SEQ_KEY,
    TICK_SEQ,
    TIMERS,
    TRACES,
    U64,
    after_prefix,
)
from rmqstore.ordered.leases import Lease
from rmqstore.ordered.marks import POP_SIDE, TIMER_SIDE, decode_ticks
from rmqstore.ordered.popstate import PopState
from rmqstore.ordered.records import decode_columns
from rmqstore.ordered.runs import DamagedRunError, Run, decode_run
from rmqstore.ordered.standings import Dead, Seat

Rows: TypeAlias = Iterable[Mapping[str, Any]]
_MARK_AT = len(MARK_AGE) + 1 + U64.size


def export_timers(kv: OrderedKV, table: str, after: bytes | None, limit: int, precision_ms: int) -> StatePage:
    """Answer ``export_state`` of a timer side."""
    schema = _schema(TIMER_TABLES, table)
    if table == "timers":
        return _timers(kv, after, limit)
    if table == "timer_traces":
        return _scanned(kv, TRACES, _traces, schema, after, limit, (layout.CANCELLED, layout.DELIVERED))
    if table == "timer_marks":
        return _scanned(kv, META, lambda key, _: [_timer_mark(kv, key)], schema, after, limit, (MARK_AGE + TIMER_SIDE,))
    if table == "timer_adopted":
        return _listed(_adopted(kv, TIMER_SIDE), schema, after, limit)
    last_seq = PAIR.unpack(kv.get(META, SEQ_KEY) or bytes(PAIR.size))[0]
    head = {"last_seq": last_seq, "epoch": _epoch(kv), "precision_ms": precision_ms, "sealed": kv.get(META, SEAL_KEY) or b""}
    return _listed([head], schema, after, limit)


def export_pops(kv: OrderedKV, state: PopState, table: str, after: bytes | None, limit: int) -> StatePage:
    """Answer ``export_state`` of a pop side."""
    schema = _schema(POP_TABLES, table)
    if table == "messages":
        return _messages(kv, state, after, limit)
    topics, groups = state.names_by_id(), state.group_names()
    if table == "leases":
        return _scanned(kv, LEASES, lambda key, _: _lease(kv, topics, groups, key), schema, after, limit, (EXPIRY, PURGE))
    if table == "attempts":
        return _scanned(kv, LEASES, lambda key, value: _attempt(topics, groups, key, value), schema, after, limit, (ATTEMPT,))
    if table == "pop_marks":
        return _scanned(kv, META, lambda key, _: [_pop_mark(kv, key)], schema, after, limit, (MARK_AGE + POP_SIDE,))
    if table == "pop_adopted":
        return _listed(_adopted(kv, POP_SIDE), schema, after, limit)
    if table == "pop_head":
        head = {"cursor": kv.get(META, CURSOR_KEY) or b"", "epoch": _epoch(kv), "pop_floor_ms": state.pop_floor_ms}
        return _listed([head], schema, after, limit)
    rows = {"topics": _topics, "gaps": _gaps, "standings": _standings, "subscriptions": _subscriptions, "fifo": _fifo}[table]
    return _listed(rows(state, topics, groups), schema, after, limit)


def _schema(tables: Mapping[str, pa.Schema], table: str) -> pa.Schema:
    if table not in tables:
        raise UnsupportedOperationError(f"there is no table {table!r}; there are {', '.join(tables)}")
    return tables[table]


def _epoch(kv: OrderedKV) -> int:
    return int.from_bytes(kv.get(META, EPOCH_KEY) or b"", "big")


# ---------------------------------------------------------------- paging


def _listed(rows: Rows, schema: pa.Schema, after: bytes | None, limit: int) -> StatePage:
    """Return a page of rows that are all in memory; the token is the number of rows given so far."""
    found = list(rows)
    start = 0 if after is None else U64.unpack(after)[0]
    page = found[start : start + limit]
    behind = start + len(page)
    return StatePage(pa.RecordBatch.from_pylist(page, schema=schema), U64.pack(behind) if behind < len(found) else None)


def _scanned(
    kv: OrderedKV,
    space: int,
    rows_of: Callable[[bytes, bytes], Rows],
    schema: pa.Schema,
    after: bytes | None,
    limit: int,
    prefixes: Sequence[bytes],
) -> StatePage:
    """Return a page of the rows that the entries with these prefixes stand for; the token is the last key."""
    rows: list[Mapping[str, Any]] = []
    for prefix in prefixes:
        if after is not None and after >= after_prefix(prefix):
            continue
        start = prefix if after is None or after < prefix else after + b"\x00"
        while entries := kv.scan(space, start, after_prefix(prefix), limit):
            for key, value in entries:
                rows += rows_of(key, value)
                if len(rows) >= limit:
                    return StatePage(pa.RecordBatch.from_pylist(rows, schema=schema), key)
            start = entries[-1][0] + b"\x00"
    return StatePage(pa.RecordBatch.from_pylist(rows, schema=schema), None)


def _runs(kv: OrderedKV, space: int, after: bytes | None, limit: int) -> Iterator[tuple[bytes, Run]]:
    """Yield (key, run) behind ``after`` until they hold ``limit`` records.

    Raises:
        CorruptStoreError: a run is damaged.
    """
    rows = 0
    for key, value in kv.scan(space, b"" if after is None else after + b"\x00", None, limit):
        try:
            run = decode_run(value)
        except DamagedRunError as error:
            where = "/".join(map(str, (PAIR if space == TIMERS else QUEUE).unpack(key)))
            raise CorruptStoreError(
                f"the run at {where} of {layout.SPACES[space]} is damaged ({error}); deliver or pop it first, which parks it", offset=where
            ) from error
        yield key, run
        rows += len(run.records)
        if rows >= limit:
            return


def _columns(records: list[bytes], schema: pa.Schema, extra: Mapping[str, pa.Array]) -> pa.RecordBatch:
    columns = {**decode_columns(records), **extra}
    return pa.RecordBatch.from_arrays([columns[field.name].cast(field.type) for field in schema], schema=schema)


# ---------------------------------------------------------------- the timer side


def _timers(kv: OrderedKV, after: bytes | None, limit: int) -> StatePage:
    records: list[bytes] = []
    heads: list[tuple[int, int, int, int]] = []
    steps: list[int] = []
    counts: list[int] = []
    first_key, key = None, None
    for key, run in _runs(kv, TIMERS, after, limit):
        first_key = first_key or key
        counts.append(len(run.records))
        tick, first_seq = TICK_SEQ.unpack(key)
        heads.append((tick, first_seq, run.epoch, run.store_ms))
        steps += run.deltas
        records += run.records
    numbers = np.repeat(np.asarray(heads, np.int64).reshape(-1, 4), counts, axis=0)
    seqs = numbers[:, 1] + np.asarray(steps, np.int64)
    extra = {"tick": numbers[:, 0], "seq": seqs, "epoch": numbers[:, 2], "store_ms": numbers[:, 3]}
    rows = _columns(records, TIMER_TABLES["timers"], {name: pa.array(values) for name, values in extra.items()})
    if first_key is not None and key is not None:
        holes = traces.holes_between(kv, first_key, U64.unpack_from(key)[0])
        if holes:
            places = zip(numbers[:, 0].tolist(), seqs.tolist(), strict=True)
            rows = rows.filter(pa.array([place not in holes for place in places]))
    return StatePage(rows, key)


def _traces(key: bytes, value: bytes) -> Rows:
    tick, seq = TICK_SEQ.unpack_from(key, 1)
    if key[:1] == layout.CANCELLED:
        return [{"kind": CANCELLED, "tick": tick, "seq": seq, "epoch": int.from_bytes(value, "big")}]
    epoch, steps = traces.delivered_of(value)
    return [{"kind": DELIVERED, "tick": tick, "seq": seq + step, "epoch": epoch} for step in steps]


def _timer_mark(kv: OrderedKV, key: bytes) -> Mapping[str, Any]:
    mark, time_ms = key[_MARK_AT:], U64.unpack_from(key, 2)[0]
    answer = kv.get(META, MARK + TIMER_SIDE + mark) or bytes(PAIR.size)
    epoch, first_seq = PAIR.unpack_from(answer)
    return {"mark": mark, "time_ms": time_ms, "epoch": epoch, "first_seq": first_seq, "ticks": decode_ticks(answer)}


# ---------------------------------------------------------------- the pop side


def _messages(kv: OrderedKV, state: PopState, after: bytes | None, limit: int) -> StatePage:
    names = state.names_by_id()
    records: list[bytes] = []
    topics: list[str] = []
    numbers: list[tuple[int, int, int]] = []
    counts: list[int] = []
    key = None
    for key, run in _runs(kv, QUEUES, after, limit):
        topic_id, queue, first = QUEUE.unpack(key)
        if topic_id not in names:
            raise CorruptStoreError(f"the run at offset {first} belongs to no topic (number {topic_id})", offset=first)
        kept = min(max(state.first_kept(topic_id, queue) - first, 0), len(run.records))
        records += run.records[kept:]
        topics.append(names[topic_id])
        numbers.append((queue, first + kept, run.store_ms))
        counts.append(len(run.records) - kept)
    repeated = np.repeat(np.asarray(numbers, np.int64).reshape(-1, 3), counts, axis=0)
    starts = np.cumsum(counts) - counts if counts else np.zeros(0, np.int64)
    steps = np.arange(len(records)) - np.repeat(starts, counts) if counts else np.zeros(0, np.int64)
    extra = {
        "topic": pa.array(topics, pa.string()).take(pa.array(np.repeat(np.arange(len(topics)), counts))),
        "queue_id": pa.array(repeated[:, 0]),
        "queue_offset": pa.array(repeated[:, 1] + steps),
        "store_ms": pa.array(repeated[:, 2]),
    }
    return StatePage(_columns(records, POP_TABLES["messages"], extra), key)


def _topics(state: PopState, topics: Mapping[int, str], groups: Mapping[int, str]) -> Rows:
    for topic in sorted(state.topics.values(), key=lambda topic: topic.name):
        for queue, behind in enumerate(topic.next_offsets):
            first = state.first_kept(topic.id, queue)
            yield {"topic": topic.name, "queue_id": queue, "min_offset": first, "next_offset": behind}


def _gaps(state: PopState, topics: Mapping[int, str], groups: Mapping[int, str]) -> Rows:
    for (topic_id, queue), gaps in sorted(state.gaps.items(), key=lambda entry: (topics[entry[0][0]], entry[0][1])):
        for gap in gaps:
            yield {"topic": topics[topic_id], "queue_id": queue, "first": gap.first, "behind": gap.behind, "is_removal": gap.is_removal}


def _seat(seat: Seat, topics: Mapping[int, str], groups: Mapping[int, str]) -> dict[str, Any]:
    return {"group": groups[seat.group_id], "topic": topics[seat.topic_id], "queue_id": seat.queue}


def _standings(state: PopState, topics: Mapping[int, str], groups: Mapping[int, str]) -> Rows:
    rows = [
        {**_seat(seat, topics, groups), "next_offset": standing.next_offset, "last_pop_ms": standing.last_pop_ms}
        for seat, standing in state.standings.items()
    ]
    return sorted(rows, key=lambda row: (row["group"], row["topic"], row["queue_id"]))


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
            }
        )
    return sorted(rows, key=lambda row: (row["group"], row["topic"]))


def _fifo(state: PopState, topics: Mapping[int, str], groups: Mapping[int, str]) -> Rows:
    rows = [
        {
            **_seat(seat, topics, groups),
            "queue_offset": offset,
            "delivered": one.delivered,
            "first_pop_ms": one.first_pop_ms,
            "waits": one.waits,
        }
        for seat, run in state.fifo.items()
        for offset, one in run.items()
    ]
    return sorted(rows, key=lambda row: (row["group"], row["topic"], row["queue_id"], row["queue_offset"]))


def _lease(kv: OrderedKV, topics: Mapping[int, str], groups: Mapping[int, str], key: bytes) -> Rows:
    """Return the check point that an entry by expiry or by purge time names; the other entries by purge time name attempts."""
    is_running = key[:1] == EXPIRY
    named = key[1 + U64.size :] if is_running else key[1 + U64.size + 1 :]
    if not is_running and key[1 + U64.size :][:1] != LEASE:
        return []
    value = kv.get(LEASES, LEASE + named)
    if value is None:
        return []
    lease = Lease.decode(named, value)
    *place, ck_start, pop_time_ms = lease.place
    seat = Seat(*place)
    return [
        {
            **_seat(seat, topics, groups),
            "ck_start": ck_start,
            "pop_time_ms": pop_time_ms,
            "invisible_ms": lease.invisible_ms,
            "expiry_ms": lease.expiry_ms,
            "first_pop_ms": lease.first_pop_ms,
            "epoch": lease.epoch,
            "store_tag": lease.granter,
            "retry_flag": lease.retry_flag,
            "keep_until_ms": -1 if is_running else U64.unpack_from(key, 1)[0],
            "offsets": lease.offsets,
            "states": list(lease.states),
        }
    ]


def _attempt(topics: Mapping[int, str], groups: Mapping[int, str], key: bytes, value: bytes) -> Rows:
    places = [LEASE_KEY.unpack_from(value, at) for at in range(U64.size, len(value), LEASE_KEY.size)]
    # A check point whose topic or group was deleted gives nothing any more.
    places = [place for place in places if place[0] in groups and place[1] in topics]
    if not places:
        return []
    return [
        {
            "attempt": key[1:],
            "expiry_ms": U64.unpack_from(value)[0],
            "group": groups[places[0][0]],
            "topics": [topics[place[1]] for place in places],
            "queue_ids": [place[2] for place in places],
            "ck_starts": [place[3] for place in places],
            "pop_times_ms": [place[4] for place in places],
        }
    ]


def _pop_mark(kv: OrderedKV, key: bytes) -> Mapping[str, Any]:
    mark, time_ms = key[_MARK_AT:], U64.unpack_from(key, 2)[0]
    answer = kv.get(META, MARK + POP_SIDE + mark) or bytes(U64.size)
    return {"mark": mark, "time_ms": time_ms, "position": U64.unpack(answer)[0]}


def _adopted(kv: OrderedKV, side: bytes) -> Rows:
    return [{"store_tag": tag, "record": record.to_bytes()} for tag, record in sorted(stored_adopted(kv, side).items())]
