"""Messages as whole records of the commit log, which is how the engine keeps and hands on every one of them.

``formats.commit_log`` draws a record, ``formats.messages`` says which field of a message is where in it. What pops count is there too:
the deliveries so far are the reconsume times, the first pop time is the property ``1ST_POP_TIME``. A queue id of -1 is one that was not
chosen. A record that is made here is not placed yet: queue offset, physical offset and store time are 0, and its sum is
room for one (``addressing`` fills them in). Records that are read must be sound; no CRC is looked at.

``parts`` says what gives way where the properties of a dead letter outgrow a record.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, overload

import msgspec
import numpy as np

from rmqstore.batch import MessageBatch
from rmqstore.columns import codes_of, pieces_of
from rmqstore.engine.records import Delivery
from rmqstore.errors import IllegalArgumentError
from rmqstore.late import pa, pc, schemas
from rmqstore.message import Message, PoppedMessage, Proof
from rmqstore_wheel.formats import commit_log as log, log_columns, log_reading, messages, properties as texts
from rmqstore_wheel.formats.binary_columns import Bytes, Ints, cells
from rmqstore_wheel.formats.log_columns import Encoded
from rmqstore_wheel.formats.properties import decode_column
from rmqstore_wheel.records import sums
from rmqstore_wheel.records.parts import (
    FIRST_POP,
    HOST_BITS,
    OF_DELIVERIES,
    OF_WAITING,
    OWN,
    V2_BYTE,
    V6_MORE,
    body_at,
    fitted,
    new_head,
    parts_of,
    text_of,
    topic_bounds,
    value_in,
    without,
)

NONE: Final = -1
TAGS: Final = f"{texts.TAG}\x01".encode()
"""How the property of a tag starts, and that of a longer name which ends alike."""

_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_ATTEMPT_AT: Final = log.FIXED_BYTES - 16
_NUMBERS: Final = {
    bits: (log.FIXED_BYTES + more, struct.Struct(f">40xq{24 + more}xi8xi"))
    for bits, more in ((bits, V6_MORE * bits.bit_count()) for bits in (0, log.BORN_HOST_V6, log.STORE_HOST_V6, HOST_BITS))
}
"""By the hosts that are IPv6: where the body is, and what reads born time, reconsume times and bytes of the body."""

_BY_COLUMN: Final = 8
"""Records of a queue, on average, from which on they are taken together."""

_WAITING: Final = tuple(topic.encode() for topic in messages.WAITING_TOPICS)
_END: Final = b"\x02"
_TIMES: Final = ("deliver_at_ms", "first_pop_ms")
_FIELD_NAMES: Final = (texts.MESSAGE_ID, texts.TAG, texts.MESSAGE_GROUP, texts.KEYS)
"""Fields of a message that a filter may name by RocketMQ's names for them; other names of the system's are null to it."""


# ---------------------------------------------------------------- writing


def encode_batch(batch: MessageBatch) -> list[bytes]:
    """Return one record per message, by the way that is quicker for this batch.

    The messages must have an id and a born time already: the store fills them in.
    """
    if isinstance(batch.source, LogRecords):
        return batch.source.records
    if batch.has_columns:
        return encode_columns(batch.columns)
    return [encode_message(message) for message in batch.messages]


def encode_message(message: Message | PoppedMessage, attempt: int = 0, first_pop_ms: int = NONE) -> bytes:
    """Return the record of one message that was counted as delivered ``attempt`` times.

    Raises:
        IllegalArgumentError: the properties are too long, and not by what the engine added.
    """
    text = texts.encode_message(message)
    if first_pop_ms >= 0:
        text += b"%b%d\x02" % (FIRST_POP, first_pop_ms)
    queue_id = NONE if message.queue_id is None else message.queue_id
    record = _form_of(message.topic).encode(message.body, _with_room(text), queue_id, 0, 0, message.born_ms or 0)
    return record if not attempt else b"".join((record[:_ATTEMPT_AT], _I32.pack(attempt), record[_ATTEMPT_AT + 4 :]))


@functools.lru_cache(1024)
def _form_of(topic: str) -> log.Form:
    return log.Form(topic.encode())


def encode_columns(columns: pa.RecordBatch) -> list[bytes]:
    """Return one record per row of a batch of ``IN_SCHEMA``, column-wise."""
    try:
        return LogRecords(log_columns.encode_columns(messages.encode_batch(columns, store_ms=0, system=sums.ROOM))).records
    except IllegalArgumentError:  # a row is too long for a record: one by one, what may give way does
        return [encode_message(message) for message in MessageBatch(columns=columns).messages]


def with_delivery(record: Bytes, attempt: int, first_pop_ms: int) -> bytes:
    """Return a copy of ``record`` that counts ``attempt`` deliveries and was first popped at ``first_pop_ms``; it is not placed yet."""
    body, _, _, end = parts_of(record)
    text = bytes(record[end + 2 : sums.text_end(record)])
    if FIRST_POP in text or OWN in text:
        text = without(text, OF_DELIVERIES)
    if first_pop_ms >= 0:
        text = b"%b%b%d\x02" % (text if text[-1:] in (b"", _END) else text + _END, FIRST_POP, first_pop_ms)
    text = _with_room(text)
    head = new_head(record, body, end + 2 + len(text))
    _I32.pack_into(head, body - 16, attempt)
    return b"".join((head, memoryview(record)[body:end], len(text).to_bytes(2), text))


def _with_room(text: bytes) -> bytes:
    """Return the properties of a record that is not placed yet, of which something may give way, with room for its sum."""
    if len(text) > sums.MAX_TEXT_BYTES:
        text = fitted(text, sums.MAX_TEXT_BYTES)
    return (text if text[-1:] in (b"", _END) else text + _END) + sums.ROOM


def as_delivered(record: Bytes) -> bytes:
    """Return a due timer, a record that waits in the wheel topic, as a record of the topic that it waits for; it is not placed yet.

    ``REAL_TOPIC``, ``REAL_QID``, ``TIMER_ROLL_TIMES`` and what the engine notes for itself go; all other properties stay as they are, byte
    by byte, and so do body and CRC. A record without ``REAL_TOPIC`` keeps its topic.
    """
    body, at, start, end = parts_of(record)
    text = bytes(record[end + 2 :])
    topic, queue_id = _home(bytes(record[start:end]), int(_I32.unpack_from(record, 12)[0]), text)
    text = _with_room(without(text, OF_WAITING))
    field = log.topic_field(topic)
    head = new_head(record, body, at + len(field) + 2 + len(text))
    _I32.pack_into(head, 4, log.magic_of(topic))
    _I32.pack_into(head, 12, queue_id)
    return b"".join((head, memoryview(record)[body:at], field, len(text).to_bytes(2), text))


# ---------------------------------------------------------------- reading one record


def route_of(record: Bytes) -> tuple[bytes, int]:
    """Return (topic, queue id) of a record, of one that waits those that it waits for; queue id -1 when the store has not chosen one."""
    _, _, start, end = parts_of(record)
    topic, queue_id = bytes(record[start:end]), int(_I32.unpack_from(record, 12)[0])
    return _home(topic, queue_id, bytes(record[end + 2 :])) if topic in _WAITING else (topic, queue_id)


def _home(topic: bytes, queue_id: int, text: bytes) -> tuple[bytes, int]:
    """Return where a record of this topic, this queue and these properties goes."""
    real = value_in(text, texts.REAL_TOPIC) if topic in _WAITING else b""
    if not real:
        return topic, queue_id
    number = texts.integer(value_in(text, texts.REAL_QUEUE_ID).decode(errors="replace"))
    return real, NONE if number is None or not 0 <= number < 2**31 else number


def attempt_of(record: Bytes) -> int:
    """Return how many deliveries were counted."""
    return int(_I32.unpack_from(record, body_at(record) - 16)[0])


def first_pop_of(record: Bytes) -> int:
    """Return when the message was first popped, ms, or -1."""
    value = value_in(text_of(record), texts.FIRST_POP_MS)
    number = texts.integer(value.decode(errors="replace")) if value else None
    return NONE if number is None or number < 0 else number


def tag_of(record: Bytes) -> bytes:
    """Return the tag, empty when there is none."""
    return value_in(text_of(record), texts.TAG)


def message_id_of(record: Bytes) -> bytes:
    """Return the message id, empty when there is none."""
    return value_in(text_of(record), texts.MESSAGE_ID)


def decode_message(record: Bytes) -> Message:
    """Return the record as a message on its way in."""
    fields = decode_fields(record)
    return Message(**{name: fields[name] for name in Message.__struct_fields__})


def decode_fields(record: Bytes) -> dict[str, Any]:
    """Return every field of a record by its column name."""
    body, at, _, end = parts_of(record)
    topic, queue_id = route_of(record)
    told = msgspec.structs.asdict(messages.told_by(texts.decode(bytes(record[end + 2 :]))))
    return {
        **told,
        **{name: None for name in _TIMES if (told[name] or 0) < 0},
        "topic": topic.decode(),
        "queue_id": None if queue_id < 0 else queue_id,
        "body": bytes(record[body:at]),
        "born_ms": _I64.unpack_from(record, 40)[0],
        "attempt": _I32.unpack_from(record, body - 16)[0],
        "message_id": told["message_id"] or "",
    }


def popped_message(record: Bytes, delivery: Delivery, queue_offset: int, store_ms: int, proof: Proof | None) -> PoppedMessage:
    """Return a record as a message on its way out."""
    body, numbers = _NUMBERS[record[39] & HOST_BITS]
    born_ms, attempt, body_bytes = numbers.unpack_from(record)
    at = body + body_bytes
    behind = at + 2 + int.from_bytes(record[at : at + 2]) if record[7] == V2_BYTE else at + 1 + record[at]
    told = messages.told_by(texts.decode(bytes(record[behind + 2 :])))
    recorded_ms, deliver_ms = told.first_pop_ms, told.deliver_at_ms
    return PoppedMessage(
        delivery.topic,
        bytes(record[body:at]),
        told.tag,
        told.keys,
        told.properties,
        told.message_group,
        None if deliver_ms is None or deliver_ms < 0 else deliver_ms,
        told.message_id or "",
        born_ms,
        delivery.queue_id,
        queue_offset,
        store_ms,
        attempt + delivery.counted,
        delivery.first_pop_ms if recorded_ms is None or recorded_ms < 0 else recorded_ms,
        proof,
    )


def property_texts(record: Bytes, names: Iterable[str]) -> dict[str, str]:
    """Return those of the named properties that a record has, fields that RocketMQ keeps as properties included."""
    found = texts.decode(text_of(record))
    return {name: found[name] for name in names if name in found and (name in _FIELD_NAMES or not texts.is_hidden(name))}


# ---------------------------------------------------------------- reading many records


class Routes(NamedTuple):
    """Where records go: row i to the topic ``topics[numbers[i]]`` and the queue ``queue_ids[i]``, -1 when it is not chosen."""

    topics: list[bytes]
    numbers: Ints
    queue_ids: Ints


def one_topic(topic: bytes, encoded: Encoded) -> Routes:
    """Return where records go that are all of one topic, and do not wait there for another."""
    return Routes([topic], np.zeros(len(encoded.starts), np.int64), _queue_ids(encoded))


def _queue_ids(encoded: Encoded) -> Ints:
    return cells(encoded.data, ">i4")[encoded.starts + 12].astype(np.int64)  # type: ignore[no-any-return]


class LogRecords(Sequence[bytes]):
    """Records one behind the other as a :class:`~rmqstore.batch.BatchSource`: decoded, or cut apart, only when that is asked for.

    Attributes:
        may_have_tags: False when none of them has one.
    """

    def __init__(self, encoded: Encoded | list[bytes], routes: Routes | None = None, *, may_have_tags: bool = True) -> None:
        """``routes`` are looked up when they are not given."""
        if isinstance(encoded, Encoded):
            self.encoded = encoded
        else:
            self.records = encoded
        self._count = len(encoded.starts if isinstance(encoded, Encoded) else encoded)
        self.may_have_tags = may_have_tags
        self._routes = routes

    @classmethod
    def merged(cls, parts: Sequence[LogRecords], places: Ints) -> LogRecords:
        """Return the records of some parts at the given places, which those of all of them fill."""
        held = [part.encoded for part in parts]
        sizes = np.concatenate([each.sizes for each in held])
        whole = Encoded(np.concatenate([each.data for each in held]), np.cumsum(sizes) - sizes, sizes)
        return cls(whole.take(np.argsort(places)), may_have_tags=any(part.may_have_tags for part in parts))

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        return self.records[at]

    @functools.cached_property
    def encoded(self) -> Encoded:
        """The records, one behind the other."""
        return log_columns.joined(self.records)

    @functools.cached_property
    def records(self) -> list[bytes]:
        """The records, each for itself."""
        data, starts, sizes = self.encoded.data, self.encoded.starts, self.encoded.sizes
        whole = data.tobytes()
        return [whole[start:end] for start, end in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)]

    def take(self, rows: Ints) -> LogRecords:
        """Return copies of some of them, in this order."""
        return LogRecords(self.encoded.take(rows), may_have_tags=self.may_have_tags)

    @property
    def routes(self) -> Routes:
        """Where the records go; those that wait, where they wait for."""
        if self._routes is None:
            self._routes = self._find_routes()
        return self._routes

    def by_route(self) -> list[tuple[bytes, int, Sequence[bytes]]]:
        """Return (topic, queue, its records in their order) of each queue that they go to, in the order in which the first ones stand."""
        count = self._count
        if not count:
            return []
        if count == 1:
            return [(*route_of(self.records[0]), self)]
        topics, numbers, queue_ids = self.routes
        keys = (numbers.astype(np.int64) << 32) + queue_ids
        if (keys == keys[0]).all():
            return [(topics[numbers[0]], int(queue_ids[0]), self)]
        firsts = np.sort(np.unique(keys, return_index=True)[1])
        groups: Iterable[Sequence[bytes]]
        if count >= _BY_COLUMN * len(firsts):
            groups = (self.take(np.flatnonzero(keys == keys[first])) for first in firsts.tolist())
        else:
            pieces: dict[int, list[bytes]] = {}
            for key, record in zip(keys.tolist(), self.records, strict=True):
                pieces.setdefault(key, []).append(record)
            groups = pieces.values()
        return [(topics[numbers[first]], int(queue_ids[first]), group) for first, group in zip(firsts.tolist(), groups, strict=True)]

    def messages(self) -> list[Message]:
        return [decode_message(record) for record in self.records]

    def columns(self) -> pa.RecordBatch:
        columns = columns_of(self._read())
        return pa.RecordBatch.from_arrays([columns[name] for name in schemas.IN_SCHEMA.names], schema=schemas.IN_SCHEMA)

    def _read(self) -> log_columns.Columns:
        data, starts, sizes = self.encoded.data, self.encoded.starts, self.encoded.sizes
        return log_reading.decode_columns(data.data, starts, sizes, verify=False)

    def _find_routes(self) -> Routes:
        data, starts = self.encoded.data, self.encoded.starts
        if not len(starts):
            return Routes([], starts, starts)
        first, last = topic_bounds(data, starts)
        coded = pieces_of(data, np.stack((first, last), axis=1).reshape(-1))[::2].dictionary_encode()
        topics = coded.dictionary.to_pylist()
        if not any(topic in _WAITING for topic in topics):
            return Routes(topics, codes_of(coded), _queue_ids(self.encoded))
        routes = [route_of(record) for record in self.records]
        places: dict[bytes, int] = {}
        numbers = [places.setdefault(topic, len(places)) for topic, _ in routes]
        return Routes(list(places), np.array(numbers), np.array([queue_id for _, queue_id in routes]))


def decode_columns(records: Sequence[Bytes]) -> dict[str, pa.Array]:
    """Return every column of the records, ``attempt`` and ``first_pop_ms`` included."""
    return columns_of(LogRecords(log_columns.joined(records))._read())


def columns_of(read: log_columns.Columns) -> dict[str, pa.Array]:
    """Return the columns of ``IN_SCHEMA``, ``attempt`` and ``first_pop_ms`` of records that were read."""
    columns = messages.decode_batch(read)
    if columns["message_id"].null_count:
        columns["message_id"] = pc.fill_null(columns["message_id"], "")
    for name in _TIMES:
        if (pc.min(columns[name]).as_py() or 0) < 0:
            columns[name] = pc.if_else(pc.less(columns[name], 0), pa.scalar(None, pa.int64()), columns[name])
    return columns


def tag_column(records: Sequence[Bytes]) -> pa.Array:
    """Return the tags of the records, null where there is none."""
    return decode_column(LogRecords(log_columns.joined(records))._read().text).column(texts.TAG)
