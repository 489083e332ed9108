"""Messages at random, and records of any producer, with the sum that the engine's own have, reckoned here by docs/formats.md."""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final

import msgspec
from hypothesis import strategies as st

from rmqstore.message import Message
from rmqstore_wheel.formats import commit_log as log, properties
from rmqstore_wheel.formats.commit_log import Record

V6 = bytes.fromhex("20010db800000000000000000000000100002a9f")
WHEEL = b"rmq_sys_wheel_timer"
FRAME = b"RMQS_FRAME\x01" + b"f" * 54 + b"\x02"

ROOM: Final = b"RMQS_CRC\x0100000000\x02"
"""The sum of a record that has no place yet."""

WORD = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Z"], exclude_characters="|"), min_size=1, max_size=12)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=12)
NAME = TEXT.filter(lambda name: not properties.is_hidden(name))
TOPIC = st.sampled_from(["a", "orders", "t" * 127]) | st.from_regex(r"[A-Za-z0-9_%|-]{1,127}", fullmatch=True)
MESSAGE = st.builds(
    Message,
    topic=TOPIC,
    body=st.binary(min_size=1, max_size=80),
    tag=st.none() | WORD,
    keys=st.lists(WORD, max_size=3).map(tuple),
    properties=st.dictionaries(st.sampled_from(["user", "é"]) | NAME, TEXT, max_size=3),
    message_group=st.none() | WORD,
    deliver_at_ms=st.none() | st.integers(0, 2**62),
    message_id=WORD,
    born_ms=st.integers(0, 2**62),
    queue_id=st.none() | st.integers(0, 1023),
)
I32, I64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
HOSTS = st.sampled_from([bytes.fromhex("c0a8000100002a9f"), V6, log.LOCAL_HOST, log.LOCAL_HOST])
ANY_RECORD = st.builds(
    Record,
    topic=st.binary(max_size=300),
    body=st.binary(max_size=300),
    properties=st.binary(max_size=300),
    queue_id=I32,
    queue_offset=I64,
    physical_offset=I64,
    born_ms=I64,
    store_ms=I64,
    reconsume_times=I32,
    flag=I32,
    sys_flag=st.integers(0, 15),
    prepared_offset=I64,
    born_host=HOSTS,
    store_host=HOSTS,
)


def encode_record(record: Record) -> bytes:
    """Return the bytes of a record, whatever its hosts and flags; the engine itself writes its own (``Form``, ``log_columns``)."""
    bits = (0x10 if len(record.born_host) == 20 else 0) | (0x20 if len(record.store_host) == 20 else 0)
    field, text = log.topic_field(record.topic), record.properties
    head = struct.Struct(f">iiiiiqqiq{len(record.born_host)}sq{len(record.store_host)}siqi")
    size = head.size + len(record.body) + len(field) + 2 + len(text)
    numbers = (size, log.magic_of(record.topic), log.body_crc(record.body), record.queue_id, record.flag, record.queue_offset)
    places = (record.physical_offset, record.sys_flag & ~0x30 | bits, record.born_ms, record.born_host, record.store_ms, record.store_host)
    rest = (record.reconsume_times, record.prepared_offset, len(record.body))
    return head.pack(*numbers, *places, *rest) + record.body + field + len(text).to_bytes(2) + text


def record_of(message: Message, *, topic: str | None = None, queue_id: int | None = None, system: bytes = b"", **fields: Any) -> Record:
    """Return a message as a record, field by field; ``system`` is the text of further properties."""
    queue = message.queue_id if queue_id is None else queue_id
    return Record(
        topic=(message.topic if topic is None else topic).encode(),
        body=message.body,
        properties=properties.encode_message(message) + system,
        queue_id=-1 if queue is None else queue,
        born_ms=message.born_ms or 0,
        **fields,
    )


def with_room(record: Record) -> Record:
    return msgspec.structs.replace(record, properties=record.properties + ROOM)


def summed(record: Record, behind: bytes = b"") -> Record:
    """Return a record whose properties end with its sum, and with ``behind`` after that."""
    head = encode_record(record)
    hosts = sum(len(host) - 8 for host in (record.born_host, record.store_host))
    crc = zlib.crc32(head[36 : 84 + hosts] + record.properties)
    return msgspec.structs.replace(record, properties=record.properties + b"RMQS_CRC\x01%08x\x02" % crc + behind)


def bare(record: Record) -> Record:
    """Return a record that is not placed yet without the room for its sum."""
    assert record.properties.endswith(ROOM)
    return msgspec.structs.replace(record, properties=record.properties.removesuffix(ROOM))
