"""``export_state`` of the pop side: its queues and leases as the engine-neutral tables of ``rmqstore.contract.state``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from rmqstore.contract.state import POP_TABLES, StatePage
from rmqstore.ordered.exporting import Rows, adopted_rows, as_batch, epoch_of, listed, mark_of, scanned, schema_of
from rmqstore.ordered.kv import OrderedKV
from rmqstore.ordered.layout import ATTEMPT, CURSOR_KEY, EXPIRY, LEASE, LEASE_KEY, LEASES, MARK_AGE, META, PURGE, U64
from rmqstore.ordered.leases import Lease
from rmqstore.ordered.marks import POP_SIDE
from rmqstore.ordered.popstate import PopState
from rmqstore.ordered.queuelog import QueueLog
from rmqstore.ordered.standings import Dead, Seat


def export_pops(kv: OrderedKV, state: PopState, log: QueueLog, table: str, after: bytes | None, limit: int) -> StatePage:
    """Answer ``export_state`` of a pop side."""
    schema = schema_of(POP_TABLES, table)
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
    rows = {
        "topics": _topics,
        "group_queues": _group_queues,
        "gaps": _gaps,
        "standings": _standings,
        "subscriptions": _subscriptions,
        "fifo": _fifo,
        "group_settings": _group_settings,
    }[table]
    return listed(rows(state, topics, groups), schema, after, limit)


def _messages(state: PopState, log: QueueLog, after: bytes | None, limit: int) -> StatePage:
    records: list[bytes] = []
    topics: list[str] = []
    numbers: list[tuple[int, int, int]] = []
    counts: list[int] = []
    behind: bytes | None = None
    for key, (topic, queue, run) in log.stored(state.topics.values(), after, limit):
        kept = min(max(state.first_kept(topic.id, queue) - run.first, 0), len(run.records))
        records += run.records[kept:]
        topics.append(topic.name)
        numbers.append((queue, run.first + kept, run.store_ms))
        counts.append(len(run.records) - kept)
        behind = key
    repeated = np.repeat(np.asarray(numbers, np.int64).reshape(-1, 3), counts, axis=0)
    starts = np.cumsum(counts) - counts if counts else np.zeros(0, np.int64)
    steps = np.arange(len(records)) - np.repeat(starts, counts) if counts else np.zeros(0, np.int64)
    extra = {
        "topic": pa.array(topics, pa.string()).take(pa.array(np.repeat(np.arange(len(topics)), counts))),
        "queue_id": pa.array(repeated[:, 0]),
        "queue_offset": pa.array(repeated[:, 1] + steps),
        "store_ms": pa.array(repeated[:, 2]),
    }
    columns = {**log.format.decode_columns(records), **extra}
    return StatePage(as_batch(columns, POP_TABLES["messages"]), behind)


def _topics(state: PopState, topics: Mapping[int, str], groups: Mapping[int, str]) -> Rows:
    for topic in sorted(state.topics.values(), key=lambda topic: topic.name):
        for queue, behind in enumerate(topic.next_offsets):
            yield {
                "topic": topic.name,
                "queue_id": queue,
                "min_offset": state.first_kept(topic.id, queue),
                "next_offset": behind,
                "is_on_demand": topic.is_on_demand,
            }


def _gaps(state: PopState, topics: Mapping[int, str], groups: Mapping[int, str]) -> Rows:
    for (topic_id, queue), gaps in sorted(state.gaps.items(), key=lambda entry: (topics[entry[0][0]], entry[0][1])):
        for gap in gaps:
            yield {"topic": topics[topic_id], "queue_id": queue, "first": gap.first, "behind": gap.behind, "is_removal": gap.is_removal}


def _group_queues(state: PopState, topics: Mapping[int, str], groups: Mapping[int, str]) -> Rows:
    for topic in sorted(state.topics.values(), key=lambda topic: topic.name):
        if topic.group_queues:
            yield {"topic": topic.name, "queues": topic.group_queues}


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
                "expired": 0 if how is None else how.expired,
            }
        )
    return sorted(rows, key=lambda row: (row["group"], row["topic"]))


def _group_settings(state: PopState, topics: Mapping[int, str], groups: Mapping[int, str]) -> Rows:
    for group, settings in sorted(state.group_settings.items()):
        yield {"group": group, "backoff_ms": list(settings.backoff_ms), "max_retries": settings.max_retries}


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
    """Return the check point that an entry by expiry or by purge time names, unless its topic is gone; others name attempts."""
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
    if seat.topic_id not in topics:
        return []
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
            "is_backing_off": lease.is_backing_off,
            "reason": lease.reason,
            "keep_until_ms": -1 if is_running else U64.unpack_from(key, 1)[0],
            "offsets": lease.offsets,
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
