"""Records: the bytes in which one message is stored, with where it goes, how often it was delivered, and since when.

Only its format reads a record. :class:`RecordFormat` is what the pop side has to know of one; that of key-ordered engines is this (all
integers little-endian).

::

    0   u32  bytes of the record, this field included
    4   i32  queue id, -1 = not chosen
    8   u16  bytes of topic           10  u16  bytes of message id
    12  u16  bytes of tag             14  u16  bytes of message group
    16  u16  bytes of keys            18  u16  bytes of properties, see below
    20  i32  deliveries counted so far
    24  i64  deliver time, ms, -1 = none
    32  i64  born time, ms
    40  i64  first pop time, ms, -1 = never popped
    48  topic, message id, tag, message group, keys joined by a blank, properties as RocketMQ writes them
        (name U+0001 value U+0002 …), body: the rest

A length of 0 is "none". Records are made row by row for small calls and column by column for big ones; both give the same bytes.
A record that an engine made from a dead letter may have longer properties than a user may send, still below 65 536 bytes.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from rmqstore.batch import MessageBatch, map_parts
from rmqstore.columns import pieces_of
from rmqstore.late import np, pa, pc, schemas
from rmqstore.message import Message, PoppedMessage, Proof

NONE: Final = -1


class Delivery(msgspec.Struct, frozen=True):
    """What messages that are handed out together share, whatever their records say of where they were before.

    Attributes:
        counted: deliveries, to be added to those that a record counts.
        first_pop_ms: when they were popped first, unless their records say so.
    """

    topic: str
    queue_id: int
    counted: int
    first_pop_ms: int | None


class RecordFormat(Protocol):
    """Makes and reads records; a module of functions will do, and this one says of each what it gives."""

    def encode_batch(self, batch: MessageBatch) -> list[bytes]: ...
    def encode_columns(self, columns: pa.RecordBatch) -> list[bytes]: ...
    def encode_message(self, message: Message | PoppedMessage, attempt: int = 0, first_pop_ms: int = NONE) -> bytes: ...
    def with_delivery(self, record: bytes, attempt: int, first_pop_ms: int) -> bytes: ...
    def route_of(self, record: bytes) -> tuple[bytes, int]: ...
    def attempt_of(self, record: bytes) -> int: ...
    def first_pop_of(self, record: bytes) -> int: ...
    def tag_of(self, record: bytes) -> bytes: ...
    def message_id_of(self, record: bytes) -> bytes: ...
    def decode_message(self, record: bytes) -> Message: ...
    def popped_message(self, record: bytes, delivery: Delivery, queue_offset: int, store_ms: int, proof: Proof | None) -> PoppedMessage: ...
    def decode_columns(self, records: Sequence[bytes]) -> dict[str, pa.Array]: ...
    def property_texts(self, record: bytes, names: Iterable[str]) -> dict[str, str]: ...


HEADER: Final = struct.Struct("<IiHHHHHHiqqq")
HEADER_BYTES: Final = HEADER.size
ROUTE: Final = struct.Struct("<iH")
_ATTEMPT_AT: Final = 20
_FIRST_POP_AT: Final = 40
_I64: Final = struct.Struct("<q")
DELIVER_AT: Final = 24
_I32: Final = struct.Struct("<i")
_LENGTHS: Final = struct.Struct("<HHHHHH")
KEYS_AT: Final = 16

_LAYOUT = [  # of a header, as numpy takes it
    ("size", "<u4"),
    ("queue_id", "<i4"),
    ("topic", "<u2"),
    ("message_id", "<u2"),
    ("tag", "<u2"),
    ("message_group", "<u2"),
    ("keys", "<u2"),
    ("properties", "<u2"),
    ("attempt", "<i4"),
    ("deliver_at_ms", "<i8"),
    ("born_ms", "<i8"),
    ("first_pop_ms", "<i8"),
]
_TEXTS = ("topic", "message_id", "tag", "message_group", "keys", "properties")
_OPTIONAL = _TEXTS[2:]

Bytes: TypeAlias = bytes | memoryview


# ---------------------------------------------------------------- writing


def encode_batch(batch: MessageBatch) -> list[bytes]:
    """Return one record per message, by the way that is quicker for this batch.

    The messages must have an id and a born time already: the store fills them in.
    """
    source = batch.source
    if isinstance(source, Records):
        return source.records
    if batch.has_columns:
        return encode_columns(batch.columns)
    return [*map(encode_message, batch.messages)]


def encode_message(message: Message | PoppedMessage, attempt: int = 0, first_pop_ms: int = NONE) -> bytes:
    """Return the record of one message that was counted as delivered ``attempt`` times."""
    topic = message.topic.encode()
    message_id = (message.message_id or "").encode()
    tag = message.tag.encode() if message.tag else b""
    group = message.message_group.encode() if message.message_group else b""
    keys = " ".join(message.keys).encode() if message.keys else b""
    properties = encode_properties(message.properties) if message.properties else b""
    size = HEADER_BYTES + len(topic) + len(message_id) + len(tag) + len(group) + len(keys) + len(properties) + len(message.body)
    header = HEADER.pack(
        size,
        NONE if message.queue_id is None else message.queue_id,
        len(topic),
        len(message_id),
        len(tag),
        len(group),
        len(keys),
        len(properties),
        attempt,
        NONE if message.deliver_at_ms is None else message.deliver_at_ms,
        message.born_ms or 0,
        first_pop_ms,
    )
    return b"".join((header, topic, message_id, tag, group, keys, properties, message.body))


def encode_properties(properties: Any) -> bytes:
    """Return properties as RocketMQ's text form."""
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()


def encode_columns(columns: pa.RecordBatch) -> list[bytes]:
    """Return one record per row of a batch of ``IN_SCHEMA``, column-wise."""
    texts = {name: _text_column(columns, name) for name in _TEXTS}
    body = columns.column("body")
    header = np.zeros(len(columns), _LAYOUT)
    size = np.full(len(columns), HEADER_BYTES, np.int64) + _lengths(body)
    for name, column in texts.items():
        lengths = _lengths(column)
        header[name] = lengths
        size += lengths
    header["size"] = size
    for name, absent in (("queue_id", NONE), ("deliver_at_ms", NONE), ("born_ms", 0)):
        header[name] = pc.fill_null(columns.column(name), absent).to_numpy(zero_copy_only=False)
    header["first_pop_ms"] = NONE
    heads = pa.FixedSizeBinaryArray.from_buffers(pa.binary(HEADER_BYTES), len(columns), [None, pa.py_buffer(header)]).cast(pa.binary())
    parts = [heads, *(column for column in texts.values() if column is not None), body]
    if int(size.sum()) >= 2**31 - 1:
        parts = [part.cast(pa.large_binary()) for part in parts]
        return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary())).to_pylist()  # type: ignore[no-any-return]
    return pc.binary_join_element_wise(*parts, b"").to_pylist()  # type: ignore[no-any-return]


def _text_column(columns: pa.RecordBatch, name: str) -> pa.Array | None:
    column = columns.column(name)
    if column.null_count == len(column):
        return None
    if name == "keys":
        column = pc.binary_join(column, " ")
    elif name == "properties":
        names, values, offsets = map_parts(column)
        entries = pc.binary_join_element_wise(names, "\x01", values, "\x02", "")
        column = pc.binary_join(pa.ListArray.from_arrays(offsets, entries), "")
    return pc.fill_null(column.cast(pa.binary()), b"")


def _lengths(column: pa.Array | None) -> Any:
    return 0 if column is None else pc.binary_length(column).to_numpy(zero_copy_only=False)


def with_delivery(record: Bytes, attempt: int, first_pop_ms: int) -> bytes:
    """Return a copy of ``record`` that counts ``attempt`` deliveries and was first popped at ``first_pop_ms``."""
    copy = bytearray(record)
    _I32.pack_into(copy, _ATTEMPT_AT, attempt)
    _I64.pack_into(copy, _FIRST_POP_AT, first_pop_ms)
    return bytes(copy)


# ---------------------------------------------------------------- reading


def route_of(record: Bytes) -> tuple[bytes, int]:
    """Return (topic, queue id) of a record; queue id -1 when the store has not chosen one."""
    queue_id, topic_bytes = ROUTE.unpack_from(record, 4)
    return bytes(record[HEADER_BYTES : HEADER_BYTES + topic_bytes]), queue_id


def deliver_at_of(record: Bytes) -> int:
    """Return the deliver time of a record, ms, or -1."""
    return int(_I64.unpack_from(record, DELIVER_AT)[0])


def attempt_of(record: Bytes) -> int:
    """Return how many deliveries were counted."""
    return int(_I32.unpack_from(record, _ATTEMPT_AT)[0])


def first_pop_of(record: Bytes) -> int:
    """Return when the message was first popped, ms, or -1."""
    return int(_I64.unpack_from(record, _FIRST_POP_AT)[0])


def tag_of(record: Bytes) -> bytes:
    """Return the tag, empty when there is none."""
    topic_bytes, id_bytes, tag_bytes = struct.unpack_from("<HHH", record, 8)
    start = HEADER_BYTES + topic_bytes + id_bytes
    return bytes(record[start : start + tag_bytes])


def has_keys(record: Bytes) -> bool:
    """Say whether a record has keys."""
    return bool(record[KEYS_AT] or record[KEYS_AT + 1])


def keys_of(record: Bytes) -> list[bytes]:
    """Return the keys of a record in UTF-8."""
    if not has_keys(record):
        return []
    topic_bytes, id_bytes, tag_bytes, group_bytes, keys_bytes, _ = _LENGTHS.unpack_from(record, 8)
    start = HEADER_BYTES + topic_bytes + id_bytes + tag_bytes + group_bytes
    return bytes(record[start : start + keys_bytes]).split(b" ")


def message_id_of(record: Bytes) -> bytes:
    """Return the message id."""
    topic_bytes, id_bytes = struct.unpack_from("<HH", record, 8)
    start = HEADER_BYTES + topic_bytes
    return bytes(record[start : start + id_bytes])


def decode_message(record: Bytes) -> Message:
    """Return the record as a message on its way in."""
    fields = decode_fields(bytes(record))
    return Message(**{name: fields[name] for name in Message.__struct_fields__})


def decode_fields(record: bytes) -> dict[str, Any]:
    """Return every field of a record by its column name."""
    size, queue_id, topic_n, id_n, tag_n, group_n, keys_n, properties_n, attempt, deliver, born, first_pop = HEADER.unpack_from(record)
    topic_end = HEADER_BYTES + topic_n
    id_end = topic_end + id_n
    tag_end = id_end + tag_n
    group_end = tag_end + group_n
    keys_end = group_end + keys_n
    body_at = keys_end + properties_n
    return {
        "topic": record[HEADER_BYTES:topic_end].decode(),
        "body": record[body_at:size],
        "tag": record[id_end:tag_end].decode() if tag_n else None,
        "keys": tuple(record[group_end:keys_end].decode().split(" ")) if keys_n else (),
        "properties": _decode_properties(record[keys_end:body_at]) if properties_n else {},
        "message_group": record[tag_end:group_end].decode() if group_n else None,
        "deliver_at_ms": None if deliver < 0 else deliver,
        "message_id": record[topic_end:id_end].decode(),
        "born_ms": born,
        "queue_id": None if queue_id < 0 else queue_id,
        "attempt": attempt,
        "first_pop_ms": None if first_pop < 0 else first_pop,
    }


def popped_message(record: bytes, delivery: Delivery, queue_offset: int, store_ms: int, proof: Proof | None) -> PoppedMessage:
    """Return a record as a message on its way out."""
    fields = decode_fields(record)
    recorded_ms = fields["first_pop_ms"]
    return PoppedMessage(
        delivery.topic,
        fields["body"],
        fields["tag"],
        fields["keys"],
        fields["properties"],
        fields["message_group"],
        fields["deliver_at_ms"],
        fields["message_id"],
        fields["born_ms"],
        delivery.queue_id,
        queue_offset,
        store_ms,
        fields["attempt"] + delivery.counted,
        delivery.first_pop_ms if recorded_ms is None else recorded_ms,
        proof,
    )


def _decode_properties(text: bytes) -> dict[str, str]:
    return dict([entry.split("\x01", 1) for entry in text[:-1].decode().split("\x02")])


def fitting(records: list[bytes], room_bytes: int) -> list[bytes]:
    """Return the first of some records, up to the one with which they exceed ``room_bytes``."""
    return records[: bisect_right(list(accumulate(map(len, records))), room_bytes) + 1]


class Records:
    """Records as a :class:`~rmqstore.batch.BatchSource`: decoded only when somebody looks inside."""

    def __init__(self, records: list[bytes]) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def messages(self) -> list[Message]:
        """Return one struct a record."""
        return [decode_message(record) for record in self.records]

    def columns(self) -> pa.RecordBatch:
        """Return the columns of ``IN_SCHEMA``."""
        columns = decode_columns(self.records)
        return pa.RecordBatch.from_arrays([columns[name] for name in schemas.IN_SCHEMA.names], schema=schemas.IN_SCHEMA)


def decode_columns(records: Sequence[Bytes]) -> dict[str, pa.Array]:
    """Return every column of the records, ``attempt`` and ``first_pop_ms`` included, by pieces of one buffer."""
    data = np.frombuffer(b"".join(records), np.uint8)
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    starts = np.cumsum(sizes) - sizes
    header = data[starts[:, None] + np.arange(HEADER_BYTES)].view(_LAYOUT).reshape(-1) if len(records) else np.zeros(0, _LAYOUT)
    # A row of bounds is where the parts of a record start: header, texts, body.
    widths = np.stack([np.full(len(records), HEADER_BYTES), *(header[name] for name in _TEXTS)], axis=1)
    bounds = starts[:, None] + np.cumsum(np.insert(widths, 0, 0, axis=1), axis=1)
    pieces = pieces_of(data, np.append(bounds, len(data)))
    columns: dict[str, pa.Array] = {}
    for part, name in enumerate((*_TEXTS, "body"), 1):
        places = np.arange(part, len(pieces), bounds.shape[1])
        found = pieces.take(pa.array(places, mask=header[name] == 0 if name in _OPTIONAL else None)).cast(pa.binary())
        columns[name] = found if name == "body" else found.view(pa.string())
    columns["keys"] = pc.split_pattern(columns["keys"], " ")
    columns["properties"] = _decode_property_column(columns["properties"])
    for name, kind in (("queue_id", pa.int32()), ("deliver_at_ms", pa.int64()), ("first_pop_ms", pa.int64())):
        values = header[name]
        columns[name] = pa.array(values, kind, mask=values < 0)
    columns["born_ms"] = pa.array(header["born_ms"], pa.int64())
    columns["attempt"] = pa.array(header["attempt"], pa.int32())
    return columns


_FIELDS = {"UNIQ_KEY": "message_id", "TAGS": "tag", "__SHARDINGKEY": "message_group", "KEYS": "keys"}
"""Fields of a message that RocketMQ keeps among its properties."""


def property_texts(record: bytes, names: Iterable[str]) -> dict[str, str]:
    """Return those of the named properties that a record has, fields that RocketMQ keeps as properties included."""
    lengths = _LENGTHS.unpack_from(record, 8)
    end = HEADER_BYTES + sum(lengths)
    properties = _decode_properties(record[end - lengths[5] : end]) if lengths[5] else {}
    found: dict[str, str] = {}
    for name in names:
        if name in _FIELDS:
            place = _TEXTS.index(_FIELDS[name])
            start = HEADER_BYTES + sum(lengths[:place])
            text = record[start : start + lengths[place]].decode()
        else:
            text = properties.get(name, "")
        if text:
            found[name] = text
    return found


def _decode_property_column(texts: pa.Array) -> pa.Array:
    kind = schemas.IN_SCHEMA.field("properties").type
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), kind)
    pairs = [None if text is None else list(_decode_properties(text.encode()).items()) for text in texts.to_pylist()]
    return pa.array(pairs, kind)
