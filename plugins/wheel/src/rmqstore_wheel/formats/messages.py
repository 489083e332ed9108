"""Messages as records of the commit log: which field is where, for one message and for columns.

======================  ==========================================================================================
field of a message      place in the record
======================  ==========================================================================================
topic, queue_id         topic and queue id; while it waits in a timer topic, the properties ``REAL_TOPIC`` and ``REAL_QID``
body, born_ms           body, born time
queue_offset, store_ms  queue offset, store time
message_id              property ``UNIQ_KEY``
tag, keys               properties ``TAGS``, ``KEYS`` (joined by a blank)
message_group           property ``__SHARDINGKEY``
deliver_at_ms           property ``TIMER_DELIVER_MS``; of another producer's timer, ``TIMER_OUT_MS`` + 1
first_pop_ms            property ``1ST_POP_TIME``
properties              all other properties, save those that belong to the system
======================  ==========================================================================================

A queue id of -1 stands for one that was not chosen. The reconsume times of a record count the deliveries so far, ``attempt``.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from rmqstore.late import pa, pc, schemas
from rmqstore_wheel.formats import properties as texts
from rmqstore_wheel.formats.binary_columns import Ints, Piece
from rmqstore_wheel.formats.log_columns import Columns
from rmqstore_wheel.formats.properties import (
    DELIVER_MS,
    FIRST_POP_MS,
    HIDDEN,
    KEYS,
    MESSAGE_GROUP,
    MESSAGE_ID,
    OUT_MS,
    OWN_PREFIX,
    TAG,
    Properties,
    decode_column,
)

WHEEL_TOPIC: Final = "rmq_sys_wheel_timer"
"""Where timers wait (``TimerMessageStore.TIMER_TOPIC``)."""

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""Where messages of the 18 delay levels wait (``TopicValidator.RMQ_SYS_SCHEDULE_TOPIC``)."""

WAITING_TOPICS: Final = (WHEEL_TOPIC, SCHEDULE_TOPIC)
NO_QUEUE: Final = -1


def encode_batch(
    columns: pa.RecordBatch,
    *,
    store_ms: Ints | int,
    topic: str | None = None,
    queue_id: Ints | int | None = None,
    system: bytes | list[Piece] = b"",
) -> Columns:
    """Return a batch of ``IN_SCHEMA`` as the columns of records; offsets are given when they are placed.

    ``topic`` and ``queue_id`` replace those of the batch, ``system`` is the text of further properties: for all rows, or as columns.
    """
    parts = texts.encode_parts(columns)
    parts += system if isinstance(system, list) else [system] if len(system) else []
    return Columns(
        topic=columns.column("topic").cast(pa.binary()) if topic is None else topic.encode(),
        body=columns.column("body"),
        properties=parts,
        queue_id=_filled(columns.column("queue_id"), NO_QUEUE) if queue_id is None else queue_id,
        born_ms=_filled(columns.column("born_ms"), 0),
        store_ms=store_ms,
    )


def _filled(column: pa.Array, absent: int) -> Ints:
    if column.null_count:
        column = pc.fill_null(column, absent)
    return column.to_numpy()  # type: ignore[no-any-return]


def timer_parts(columns: pa.RecordBatch) -> list[Piece]:
    """Return the properties that let a timer find home: ``REAL_TOPIC`` and ``REAL_QID`` of every row."""
    queue = pc.fill_null(columns.column("queue_id"), NO_QUEUE)
    return [*texts.property_part(texts.REAL_TOPIC, columns.column("topic")), *texts.property_part(texts.REAL_QUEUE_ID, queue)]


# ---------------------------------------------------------------- reading


class Told(msgspec.Struct, frozen=True, gc=False):
    """The fields of a message that are among its properties."""

    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    message_group: str | None
    deliver_at_ms: int | None
    message_id: str | None
    first_pop_ms: int | None


def told_by(found: dict[str, str]) -> Told:
    """Return what the properties of a record tell; they are used up."""
    take = found.pop
    deliver, out = texts.integer(take(DELIVER_MS, None)), take(OUT_MS, None)
    if deliver is None and out is not None:
        # RocketMQ rounds to one precision before the time that it delivers at; a ms later is the same slot again, and never early.
        out_ms = texts.integer(out)
        deliver = None if out_ms is None else out_ms + 1
    keys, first_pop_ms = take(KEYS, None), take(FIRST_POP_MS, None)
    tag, group, message_id = take(TAG, None), take(MESSAGE_GROUP, None), take(MESSAGE_ID, None)
    shown = {}
    for name, value in found.items():
        if name not in HIDDEN and not name.startswith(OWN_PREFIX):
            shown[name] = value
    return Told(
        tag,
        () if keys is None else texts.split_keys(keys),
        shown,
        group,
        deliver,
        message_id,
        None if first_pop_ms is None else texts.integer(first_pop_ms),
    )


def decode_batch(records: Columns) -> dict[str, pa.Array]:
    """Return the columns of ``IN_SCHEMA``, and ``attempt`` and ``first_pop_ms``, of records that were read."""
    found = decode_column(records.text)
    topic, queue_id = _home(records, found)
    deliver = texts.integers(found.column(DELIVER_MS))
    if OUT_MS in found.names and deliver.null_count:
        deliver = pc.coalesce(deliver, pc.add(texts.integers(found.column(OUT_MS)), 1))
    return {
        "topic": topic,
        "body": records.body,
        "tag": found.column(TAG),
        "keys": _keys(found.column(KEYS)),
        "properties": found.visible(),
        "message_group": found.column(MESSAGE_GROUP),
        "deliver_at_ms": deliver,
        "message_id": found.column(MESSAGE_ID),
        "born_ms": pa.array(records.born_ms, pa.int64()),
        "queue_id": pa.array(queue_id, pa.int32(), mask=queue_id < 0),
        "first_pop_ms": texts.integers(found.column(FIRST_POP_MS)),
        "attempt": pa.array(records.reconsume_times, pa.int32()),
    }


def _home(records: Columns, found: Properties) -> tuple[pa.Array, Ints]:
    """Return topic and queue id, of a message that waits those that it waits for."""
    topic = records.topic.cast(pa.string()) if isinstance(records.topic, pa.Array) else pa.repeat(records.topic.decode(), len(records))
    queue_id: Ints = np.asarray(records.queue_id)
    if texts.REAL_TOPIC not in found.names:
        return topic, queue_id
    real = found.column(texts.REAL_TOPIC)
    waits = pc.and_(pc.is_in(topic, value_set=pa.array(WAITING_TOPICS)), real.is_valid())
    mask = waits.to_numpy(zero_copy_only=False)
    if not mask.any():
        return topic, queue_id
    real_queue = _filled(texts.integers(found.column(texts.REAL_QUEUE_ID)), NO_QUEUE)
    if mask.all():
        return real, real_queue
    return pc.if_else(waits, real, topic), np.where(mask, real_queue, queue_id)


def _keys(joined: pa.Array) -> pa.Array:
    kind = schemas.IN_SCHEMA.field("keys").type
    if joined.null_count == len(joined):
        return pa.nulls(len(joined), kind)
    keys = pc.split_pattern(joined, " ")
    if pc.any(pc.equal(pc.binary_length(keys.flatten()), 0)).as_py():  # two blanks side by side, which RocketMQ passes over
        split = [texts.split_keys(text) for text in joined.to_pylist()]
        return pa.array([list(row) or None for row in split], kind)
    return keys.cast(kind)
