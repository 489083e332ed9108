"""Timers and cancels as messages of the wheel's topic, and back (``HookUtils``, ``TimerMessageStore``, ``RecallMessageProcessor``).

A timer is its message in the topic ``rmq_sys_wheel_timer``, its last properties being ``REAL_TOPIC``, ``REAL_QID`` and, when it has a
deliver time, ``TIMER_OUT_MS``, the time of its slot. Its queue offset is its seq less one, and stays so when it is rolled or copied. A
cancel is RocketMQ's recall: a message with ``TIMER_DEL_UNIQKEY``. Properties of our own: ``RMQS_SEQ`` in a cancel, the seq of its timer;
``RMQS_TICK`` and ``RMQS_EPOCH`` in a timer that came from another store, where they do not follow from its times; and the sum (``sums``),
which is there at once, as the times are.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from rmqstore.batch import MessageBatch
from rmqstore.columns import constant_of
from rmqstore.engine.state import messages_in
from rmqstore.engine.timers.ticks import tick_and_due, ticks_and_dues
from rmqstore.late import pa, pc
from rmqstore.message import Message, PoppedMessage
from rmqstore_wheel.formats import index_file, log_columns, log_reading, messages, properties as texts
from rmqstore_wheel.formats.binary_columns import Ints, Piece
from rmqstore_wheel.formats.commit_log import Form
from rmqstore_wheel.formats.java_hash import java_hash, java_hashes
from rmqstore_wheel.formats.log_columns import Columns, Encoded
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.formats.properties import Properties, decode_column
from rmqstore_wheel.records import sums
from rmqstore_wheel.records.addressing import EPOCH, TICK
from rmqstore_wheel.timers.table import CANCEL, COPY, TIMER

SEQ: Final = "RMQS_SEQ"
RECALL_TAG: Final = "_RECALL_TAG_"
_RECALL_BODY: Final = b"0"

_FORM: Final = Form(WHEEL_TOPIC.encode())
_hash_of: Final = functools.lru_cache(4096)(java_hash)
_NO_INTS: Final = np.zeros(0, np.int64)


class EncodedTimers(msgspec.Struct):
    """The messages of a put.

    Attributes:
        records: their bytes.
        ticks, dues: when they are handed over, and when they are due, ms.
        hashes: hash of each one's real topic.
        key_hashes, key_rows: for every key of a message its hash in the index, and which message it belongs to.
    """

    records: Encoded
    ticks: Ints
    dues: Ints
    hashes: Ints | int
    key_hashes: Ints
    key_rows: Ints


def encode_timers(batch: MessageBatch, now_ms: int, precision_ms: int) -> EncodedTimers:
    """Return a batch as timers that are put at ``now_ms``."""
    columns = batch.columns
    delivers = deliver_times(batch)
    ticks, dues = ticks_and_dues(delivers, now_ms, precision_ms)
    slots = _slot_times(ticks, precision_ms)
    out_ms = pa.array(slots, mask=delivers < 0) if (delivers < 0).any() else pa.array(slots)
    return _encoded(columns, texts.property_part(texts.OUT_MS, out_ms), now_ms, ticks, dues)


def encode_timers_as_they_were(rows: pa.RecordBatch, precision_ms: int) -> EncodedTimers:
    """Return rows of the table of timers, which another store gave ticks, epochs and store times."""
    columns = messages_in(rows)
    ticks, delivers = rows.column("tick").to_numpy(), rows.column("deliver_at_ms")
    slots = pc.if_else(delivers.is_valid(), pa.array(_slot_times(ticks, precision_ms)), pa.scalar(None, pa.int64()))
    system = [
        *texts.property_part(texts.OUT_MS, slots),
        *texts.property_part(TICK, rows.column("tick")),
        *texts.property_part(EPOCH, rows.column("epoch")),
    ]
    dues = pc.coalesce(delivers, rows.column("tick")).to_numpy()
    return _encoded(columns, system, rows.column("store_ms").to_numpy(), ticks, dues)


def _encoded(columns: pa.RecordBatch, system: Sequence[Piece], store_ms: Ints | int, ticks: Ints, dues: Ints) -> EncodedTimers:
    """Return messages as timers, with further properties."""
    system = [*messages.timer_parts(columns), *system, sums.ROOM]
    encoded = _encode(messages.encode_batch(columns, store_ms=store_ms, topic=WHEEL_TOPIC, queue_id=0, system=system))
    topics = columns.column("topic")
    return EncodedTimers(encoded, ticks, dues, _topic_hashes(topics), *_keys_of(topics, columns.column("keys")))


def _encode(columns: Columns) -> Encoded:
    """Return records whose properties end with room for their sums, with the sums in it."""
    made = log_columns.encode_columns(columns)
    sums.fill(made)
    return made


def deliver_times(batch: MessageBatch) -> Ints:
    """Return the deliver time of each row, -1 for none."""
    if batch.has_columns:
        column = batch.columns.column("deliver_at_ms")
        found: Ints = (pc.fill_null(column, -1) if column.null_count else column).to_numpy()
        return found
    return np.array([-1 if each.deliver_at_ms is None else each.deliver_at_ms for each in batch.messages], np.int64)


def _slot_times(ticks: Ints, precision_ms: int) -> Ints:
    slots: Ints = (-(-ticks // precision_ms) - 1) * precision_ms
    return slots


def _topic_hashes(topics: pa.Array) -> Ints | int:
    alike = constant_of(topics)
    return java_hashes(topics) if alike is None else _hash_of(alike.decode())


def _keys_of(topics: pa.Array, keys: pa.ListArray) -> tuple[Ints, Ints]:
    """Return hash and row of every key."""
    if keys.null_count == len(keys):
        return _NO_INTS, _NO_INTS
    rows = pc.list_parent_indices(keys)
    joined = pc.binary_join_element_wise(topics.take(rows), keys.flatten(), index_file.KEY_SEPARATOR)
    return index_file.key_hashes(joined), rows.to_numpy().astype(np.int64)


class EncodedTimer(msgspec.Struct, frozen=True, gc=False):
    """The message of one timer; see :class:`EncodedTimers`. ``text_at`` is where in it the length of its properties is."""

    record: bytes
    tick: int
    due: int
    hash: int
    key_hashes: list[int]
    text_at: int


def encode_timer(message: Message | PoppedMessage, now_ms: int, precision_ms: int, queue_offset: int = 0) -> EncodedTimer:
    """Return one message as a timer that is put at ``now_ms``."""
    deliver = message.deliver_at_ms
    tick, due = tick_and_due(-1 if deliver is None else deliver, now_ms, precision_ms)
    queue = messages.NO_QUEUE if message.queue_id is None else message.queue_id
    system = f"REAL_TOPIC\x01{message.topic}\x02REAL_QID\x01{queue}\x02"
    if deliver is not None:
        system += f"TIMER_OUT_MS\x01{(-(-tick // precision_ms) - 1) * precision_ms}\x02"
    text = texts.encode_message(message) + system.encode() + sums.ROOM
    record = _FORM.encode(message.body, text, 0, queue_offset, now_ms, message.born_ms or 0)
    record = sums.sealed(record, len(record) - len(text))
    keys = [index_file.key_hash(index_file.index_key(message.topic, key)) for key in message.keys] if message.keys else []
    return EncodedTimer(record, tick, due, _hash_of(message.topic), keys, len(record) - len(text) - 2)


# ---------------------------------------------------------------- cancels


def encode_cancels(properties: pa.Array, seqs: Ints, ticks: Ints, now_ms: int, precision_ms: int) -> Encoded:
    """Return the cancels of timers, whose messages have these properties, with these seqs."""
    read = decode_column(properties)
    topics, ids = read.column(texts.REAL_TOPIC), read.column(texts.MESSAGE_ID)
    topics, ids = pc.fill_null(topics, ""), pc.fill_null(ids, "")
    slots = pa.array(_slot_times(ticks, precision_ms))
    parts: list[Piece] = [
        *texts.property_part(texts.TAG, pa.repeat(RECALL_TAG, len(seqs))),
        *texts.property_part(texts.DELETE_KEY, pc.binary_join_element_wise(topics, ids, "+")),
        *texts.property_part(texts.REAL_TOPIC, topics),
        *texts.property_part(texts.REAL_QUEUE_ID, pa.repeat(0, len(seqs))),
        *texts.property_part(texts.OUT_MS, slots),
        *texts.property_part(SEQ, pa.array(seqs)),
        sums.ROOM,
    ]
    columns = Columns(
        topic=WHEEL_TOPIC.encode(),
        body=pa.repeat(pa.scalar(_RECALL_BODY, pa.binary()), len(seqs)),
        properties=parts,
        born_ms=now_ms,
        store_ms=now_ms,
    )
    return _encode(columns)


def encode_cancel(properties: bytes, seq: int, tick: int, now_ms: int, precision_ms: int, queue_offset: int = 0) -> bytes:
    """Return the cancel of one timer, whose message has these properties; the same bytes as :func:`encode_cancels`."""
    found = texts.decode(properties)
    topic, message_id = found.get(texts.REAL_TOPIC, ""), found.get(texts.MESSAGE_ID, "")
    slot_ms = (-(-tick // precision_ms) - 1) * precision_ms
    parts = {
        texts.TAG: RECALL_TAG,
        texts.DELETE_KEY: f"{topic}+{message_id}",
        texts.REAL_TOPIC: topic,
        texts.REAL_QUEUE_ID: 0,
        texts.OUT_MS: slot_ms,
        SEQ: seq,
    }
    text = texts.encode(parts) + sums.ROOM
    record = _FORM.encode(_RECALL_BODY, text, 0, queue_offset, now_ms)
    return sums.sealed(record, len(record) - len(text))


# ---------------------------------------------------------------- reading


class ReadTimers(msgspec.Struct):
    """Messages of the wheel's topic as they are taken in again; ``targets`` are the seqs that cancels and copies name."""

    seqs: Ints
    ticks: Ints
    dues: Ints
    epochs: Ints
    kinds: Ints
    targets: Ints
    write_ms: Ints
    hashes: Ints
    key_hashes: Ints
    key_offsets: Ints
    key_times: Ints


def read_timers(view: memoryview, file_start: int, starts: Ints, sizes: Ints, epochs: Ints, precision_ms: int) -> ReadTimers:
    """Read records that are sound."""
    found = log_reading.decode_columns(view, starts, sizes, log_offset=file_start, verify=False)
    read = decode_column(found.text)
    write_ms = np.asarray(found.store_ms)
    delivers = _numbers(read.column(texts.DELIVER_MS), -1)
    ticks, dues = ticks_and_dues(delivers, write_ms, precision_ms)
    if TICK in read.names:
        given = _numbers(read.column(TICK), -1)
        ticks = np.where(given >= 0, given, ticks)
        dues = np.where(delivers < 0, ticks, delivers)
        given = _numbers(read.column(EPOCH), -1)
        epochs = np.where(given >= 0, given, epochs)
    targets = _numbers(read.column(SEQ), 0)
    is_cancel = read.column(texts.DELETE_KEY).is_valid().to_numpy(zero_copy_only=False)
    kinds = np.where(is_cancel, CANCEL, np.where(targets > 0, COPY, TIMER))
    topics, key_hashes, key_rows = _keys_in(read)
    return ReadTimers(
        np.asarray(found.queue_offset) + 1,
        ticks,
        dues,
        epochs,
        kinds,
        targets,
        write_ms,
        java_hashes(topics).astype(np.int64),
        key_hashes,
        starts[key_rows] + file_start,
        write_ms[key_rows],
    )


def _numbers(column: pa.Array, absent: int) -> Ints:
    return pc.fill_null(texts.integers(column), absent).to_numpy()  # type: ignore[no-any-return]


def read_keys(found: Columns) -> tuple[Ints, Ints]:
    """Return hash and row of every key of records of the wheel's topic."""
    _, key_hashes, key_rows = _keys_in(decode_column(found.text))
    return key_hashes, key_rows


def _keys_in(read: Properties) -> tuple[pa.Array, Ints, Ints]:
    """Return the topic of each row, and hash and row of every key."""
    topics = pc.fill_null(read.column(texts.REAL_TOPIC), "")
    return topics, *_keys_of(topics, pc.split_pattern(read.column(texts.KEYS), texts.KEY_SEPARATOR))
