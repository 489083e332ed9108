"""The tables of a store's state as Arrow schemas, the same for every engine (docs/transfer.md).

A row says all there is to know about one thing: names in place of an engine's own numbers, times in ms, offsets and seqs as users see them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from rmqstore.schemas import IN_SCHEMA

CANCELLED: Final = 0
DELIVERED: Final = 1
"""Values of ``timer_traces.kind``."""


def _schema(**fields: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields.items()])


_NAMES = pa.list_(pa.field("item", pa.string(), nullable=False))
_I64S = pa.list_(pa.field("item", pa.int64(), nullable=False))
_I32S = pa.list_(pa.field("item", pa.int32(), nullable=False))
_I8S = pa.list_(pa.field("item", pa.int8(), nullable=False))
_GROUP_QUEUE = {"group": pa.string(), "topic": pa.string(), "queue_id": pa.int32()}

TIMERS: Final = pa.schema([*IN_SCHEMA, *_schema(tick=pa.int64(), seq=pa.int64(), epoch=pa.int64(), store_ms=pa.int64())])
"""Kept puts that are not cancelled, by (tick, seq). What the receiver's cursor covers is among them until it is forgotten."""

TIMER_TRACES: Final = _schema(kind=pa.int8(), tick=pa.int64(), seq=pa.int64(), epoch=pa.int64())
"""Puts that are gone and still answered for (C1–C6)."""

TIMER_MARKS: Final = _schema(mark=pa.binary(), time_ms=pa.int64(), epoch=pa.int64(), first_seq=pa.int64(), ticks=_I64S)
"""Marks of puts with the first answer (I1)."""

TIMER_HEAD: Final = _schema(last_seq=pa.int64(), epoch=pa.int64(), precision_ms=pa.int64(), sealed=pa.binary())
"""One row: the largest seq and epoch given, and what is sealed, as ``TimerCursor.to_bytes``."""

MESSAGES: Final = pa.schema(
    [
        *IN_SCHEMA,
        *_schema(queue_offset=pa.int64(), store_ms=pa.int64(), attempt=pa.int32()),
        pa.field("first_pop_ms", pa.int64()),
    ]
)
"""Messages of all queues, system topics included: ``topic`` and ``queue_id`` say where they are; ``attempt`` counts past deliveries."""

TOPICS: Final = _schema(topic=pa.string(), queue_id=pa.int32(), min_offset=pa.int64(), next_offset=pa.int64(), is_on_demand=pa.bool_())
"""One row a queue; ``is_on_demand`` is said of the topic (``TopicInfo``)."""

GROUP_QUEUES: Final = _schema(topic=pa.string(), queues=pa.int32())
"""Topics that have had messages with a group: over how many queues groups are spread (P9)."""

GAPS: Final = _schema(topic=pa.string(), queue_id=pa.int32(), first=pa.int64(), behind=pa.int64(), is_removal=pa.bool_())
"""Offsets between ``min_offset`` and ``next_offset`` that hold nothing."""

STANDINGS: Final = _schema(**_GROUP_QUEUE, next_offset=pa.int64(), last_pop_ms=pa.int64())
"""Where groups stand; how many leases they hold follows from ``leases``."""

SUBSCRIPTIONS: Final = pa.schema(
    [
        *_schema(group=pa.string(), topic=pa.string(), is_ordered=pa.bool_(), dead=pa.int64(), dead_since=pa.int64(), expired=pa.int64()),
        pa.field("active_ms", pa.int64()),
    ]
)
"""Groups on topics; ``active_ms`` is null for one that has dead letters of the topic and no longer pops it. Letters before the offset
``dead_since`` of the dead letter queue are of a topic of the same name that was deleted. ``expired`` messages were taken by retention
before the group had popped them."""

GROUP_SETTINGS: Final = pa.schema([*_schema(group=pa.string(), backoff_ms=_I64S), pa.field("max_retries", pa.int64())])
"""Settings of groups (``GroupSettings``)."""

NOTES: Final = _schema(name=pa.string(), value=pa.binary())
"""What ``PopTxn.notes`` has kept."""

LEASES: Final = _schema(
    **_GROUP_QUEUE,
    ck_start=pa.int64(),
    pop_time_ms=pa.int64(),
    invisible_ms=pa.int64(),
    expiry_ms=pa.int64(),
    first_pop_ms=pa.int64(),
    epoch=pa.int64(),
    store_tag=pa.int64(),
    retry_flag=pa.int8(),
    is_backing_off=pa.bool_(),
    reason=pa.string(),
    keep_until_ms=pa.int64(),
    offsets=_I64S,
    states=_I8S,
)
"""One row a check point, with a state (0 leased, 1 acked, 2 moved) for each offset. ``topic`` is where the messages are, so for a retry
the retry topic. ``store_tag`` is the number of the store that gave it. ``keep_until_ms`` is -1 while a lease runs; ``first_pop_ms`` is -1
when this was the first pop. ``is_backing_off``: the lease is a wait for the next attempt, as the last one failed, for the ``reason``."""

FIFO: Final = _schema(
    **_GROUP_QUEUE, queue_offset=pa.int64(), delivered=pa.int32(), first_pop_ms=pa.int64(), waits=pa.bool_(), is_spared=pa.bool_()
)
"""Messages of FIFO runs that are not acked (P9)."""

ATTEMPTS: Final = _schema(
    attempt=pa.binary(), expiry_ms=pa.int64(), group=pa.string(), topics=_NAMES, queue_ids=_I32S, ck_starts=_I64S, pop_times_ms=_I64S
)
"""What each remembered attempt was given; ``attempt`` is BLAKE2b-128 of group, topic and attempt id, each behind its length as big-endian
u64."""

POP_MARKS: Final = _schema(mark=pa.binary(), time_ms=pa.int64(), position=pa.int64())
"""Marks of ``apply`` with the first answer (I1)."""

POP_HEAD: Final = _schema(cursor=pa.binary(), epoch=pa.int64(), pop_floor_ms=pa.int64())
"""One row: the timer cursor, as ``TimerCursor.to_bytes``, the largest epoch given, and the latest pop time of standings that are gone."""

ADOPTED: Final = _schema(store_tag=pa.int64(), record=pa.binary())
"""Stores whose state was loaded; ``record`` is :meth:`Adopted.to_bytes <rmqstore.contract.state.Adopted.to_bytes>`."""

TIMER_TABLES: Final[Mapping[str, pa.Schema]] = {
    "timer_head": TIMER_HEAD,
    "timers": TIMERS,
    "timer_traces": TIMER_TRACES,
    "timer_marks": TIMER_MARKS,
    "timer_adopted": ADOPTED,
}
"""The tables of a timer side, in the order in which they are taken in."""

POP_TABLES: Final[Mapping[str, pa.Schema]] = {
    "pop_head": POP_HEAD,
    "topics": TOPICS,
    "group_queues": GROUP_QUEUES,
    "gaps": GAPS,
    "messages": MESSAGES,
    "standings": STANDINGS,
    "subscriptions": SUBSCRIPTIONS,
    "group_settings": GROUP_SETTINGS,
    "notes": NOTES,
    "leases": LEASES,
    "fifo": FIFO,
    "attempts": ATTEMPTS,
    "pop_marks": POP_MARKS,
    "pop_adopted": ADOPTED,
}
"""The tables of a pop side, in the order in which they are taken in."""
