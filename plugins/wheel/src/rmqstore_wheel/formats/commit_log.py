"""Records of the commit log, one at a time; ``log_columns`` does many (``CommitLog``, ``MessageExtEncoder``, ``MessageDecoder``).

The log is a chain of files of one size, 1 GiB in RocketMQ, named by :func:`file_name`; no record crosses the end of a file. A message::

    0    i32  bytes of the record, this field included
    4    i32  magic: 0xDAA320A7 (V1) or 0xDAA320AB (V2)
    8    i32  CRC-32 of the body, its top bit cleared
    12   i32  queue id
    16   i32  flag, of the application
    20   i64  queue offset: the unit of the consume queue that points here
    28   i64  physical offset: where in the log this record is
    36   i32  system flag: 0x1 compressed, 0xC transaction type, 0x10 IPv6 born host, 0x20 IPv6 store host, 0x700 compressor
    40   i64  born time, ms
    48   4 address bytes + i32 port (IPv6: 16 + i32) of the born host
    56   i64  store time, ms                                           (12 more from here on with an IPv6 born host)
    64   4 address bytes + i32 port (IPv6: 16 + i32) of the store host
    72   i32  reconsume times                                          (12 more from here on with an IPv6 store host)
    76   i64  physical offset of the half message of a transaction, else 0
    84   i32  bytes of the body
    88   body
    +    i8 (V1) or i16 (V2)  bytes of the topic; V2 is for topics of more than 127 bytes
    +    topic, UTF-8
    +    i16  bytes of the properties
    +    properties, UTF-8 text (module ``properties``)

When a record and 8 bytes more do not fit into what is left of a file, a blank record fills it::

    0    i32  bytes left in the file, this field included
    4    i32  magic: 0xCBD43194
    8    anything
"""

from __future__ import annotations

import functools
import re
import struct
from typing import Final

import msgspec
from zlib_ng.zlib_ng import crc32

from rmqstore.errors import CorruptStoreError, IllegalArgumentError
from rmqstore_wheel.formats.binary_columns import Bytes

FILE_BYTES: Final = 1024**3
MAGIC_V1: Final = 0xDAA320A7 - 2**32
MAGIC_V2: Final = 0xDAA320AB - 2**32
MAGIC_BLANK: Final = 0xCBD43194 - 2**32
BLANK_BYTES: Final = 8
BODY_CRC_AT: Final = 8
QUEUE_OFFSET_AT: Final = 20
PHYSICAL_OFFSET_AT: Final = 28
STORE_MS_AT: Final = 56
"""Where the store time is in a record with an IPv4 born host."""

BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
HOST_V4_BYTES: Final = 8
HOST_V6_BYTES: Final = 20
LOCAL_HOST: Final = bytes((127, 0, 0, 1, 0, 0, 0, 0))
"""127.0.0.1, port 0: the host of messages that came over no network."""

FIXED_BYTES: Final = 88
"""Bytes before the body, with two IPv4 hosts."""

MIN_BYTES: Final = FIXED_BYTES + 1 + 2
MAX_V1_TOPIC_BYTES: Final = 127
MAX_TOPIC_BYTES: Final = 32_767
MAX_PROPERTIES_BYTES: Final = 32_767

_I32X2 = struct.Struct(">ii")
_I32 = struct.Struct(">i")


class Record(msgspec.Struct, kw_only=True):
    """One record, field by field; texts and hosts as the bytes that are in the file.

    The two IPv6 bits of ``sys_flag`` follow from the lengths of the hosts and need not be set.
    """

    topic: bytes
    body: bytes
    properties: bytes = b""
    queue_id: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    born_ms: int = 0
    store_ms: int = 0
    reconsume_times: int = 0
    flag: int = 0
    sys_flag: int = 0
    prepared_offset: int = 0
    born_host: bytes = LOCAL_HOST
    store_host: bytes = LOCAL_HOST


_KEPT_FIELDS: Final = [name for name in Record.__struct_fields__ if name not in ("topic", "body", "properties")]


def body_crc(body: Bytes) -> int:
    """Return the CRC-32 that a record holds for its body: 31 bits (``UtilAll.crc32``)."""
    return crc32(body) & 0x7FFFFFFF


@functools.lru_cache(4096)
def topic_field(topic: bytes) -> bytes:
    """Return the topic with its length before it, in the form of the version that the length asks for."""
    if len(topic) > MAX_TOPIC_BYTES:
        raise IllegalArgumentError(f"topic {topic[:40]!r}… has {len(topic)} bytes; a record holds at most {MAX_TOPIC_BYTES}")
    return len(topic).to_bytes(1 if len(topic) <= MAX_V1_TOPIC_BYTES else 2) + topic


def magic_of(topic: bytes) -> int:
    """Return the magic of a record with this topic."""
    return MAGIC_V1 if len(topic) <= MAX_V1_TOPIC_BYTES else MAGIC_V2


HEAD_FIELDS: Final = (
    "size magic crc queue_id flag queue_offset physical_offset sys_flag born_ms born_host store_ms store_host reconsume_times "
    "prepared_offset body_bytes"
).split()
"""What is before the body, in its order."""


@functools.cache
def _header(born_host_bytes: int, store_host_bytes: int) -> struct.Struct:
    return struct.Struct(f">iiiiiqqiq{born_host_bytes}sq{store_host_bytes}siqi")


class Form:
    """How records of one topic begin and end that are of this machine and of one time: a short way to what :func:`encode_record` gives.

    Raises:
        IllegalArgumentError: the topic is too long.
    """

    def __init__(self, topic: bytes) -> None:
        self._field = topic_field(topic)
        self._magic = magic_of(topic)
        self._pack = _header(HOST_V4_BYTES, HOST_V4_BYTES).pack

    def encode(
        self, body: bytes, properties: bytes, queue_id: int, queue_offset: int, store_ms: int, born_ms: int | None = None
    ) -> bytes:  # fmt: skip
        """Return the bytes of one record, born when it is stored by default; the log learns its place when it is written.

        Raises:
            IllegalArgumentError: the properties are too long.
        """
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise IllegalArgumentError(f"the properties have {len(properties)} bytes; a record holds at most {MAX_PROPERTIES_BYTES}")
        size = FIXED_BYTES + len(body) + len(self._field) + 2 + len(properties)
        head = self._pack(
            size, self._magic, crc32(body) & 0x7FFFFFFF, queue_id, 0, queue_offset, 0, 0,
            store_ms if born_ms is None else born_ms, LOCAL_HOST, store_ms, LOCAL_HOST, 0, 0, len(body)
        )  # fmt: skip
        return b"".join((head, body, self._field, len(properties).to_bytes(2), properties))


def encode_blank(bytes_left: int) -> bytes:
    """Return the start of the blank record that fills what is left of a file; the bytes behind its 8 may be anything."""
    if bytes_left < BLANK_BYTES:
        raise IllegalArgumentError(f"{bytes_left} bytes are left in the file; a blank record needs {BLANK_BYTES}")
    return _I32X2.pack(bytes_left, MAGIC_BLANK)


def fits(record_bytes: int, bytes_left: int) -> bool:
    """Say whether a record goes into what is left of a file: room for a blank record must stay behind it."""
    return record_bytes + BLANK_BYTES <= bytes_left


def decode_record(buffer: Bytes, at: int = 0, *, log_offset: int | None = None) -> Record:
    """Read the record that starts at byte ``at`` of ``buffer``, all of it checked.

    ``log_offset`` is where byte 0 of the buffer is in the log; when it is given, the record must say that it is there.

    Raises:
        CorruptStoreError: no sound record is there; ``offset`` is its place in the log (in the buffer when ``log_offset`` is None).
    """
    try:
        return _decode(memoryview(buffer)[at:], None if log_offset is None else log_offset + at)
    except (ValueError, struct.error) as error:
        place = at + (log_offset or 0)
        raise CorruptStoreError(f"no sound record at offset {place}: {error}", offset=place) from None


def _decode(data: memoryview, physical_offset: int | None) -> Record:
    size, magic = _I32X2.unpack_from(data)
    if magic == MAGIC_BLANK:
        raise ValueError("a blank record, which ends its file, is no message")
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise ValueError(f"unknown magic {magic & 0xFFFFFFFF:#010x}")
    if not MIN_BYTES <= size <= len(data):
        raise ValueError(f"a size of {size} bytes where {MIN_BYTES} to {len(data)} are possible")
    data = data[:size]
    sys_flag = _I32.unpack_from(data, 36)[0]
    head = _header(
        HOST_V6_BYTES if sys_flag & BORN_HOST_V6 else HOST_V4_BYTES,
        HOST_V6_BYTES if sys_flag & STORE_HOST_V6 else HOST_V4_BYTES,
    )
    fields = dict(zip(HEAD_FIELDS, head.unpack_from(data), strict=True))
    body, at = _piece(data, head.size, fields["body_bytes"], "body")
    width = 1 if magic == MAGIC_V1 else 2
    topic, at = _piece(data, at + width, int.from_bytes(data[at : at + width], signed=True), "topic")
    properties, at = _piece(data, at + 2, int.from_bytes(data[at : at + 2], signed=True), "properties")
    if at != size:
        raise ValueError(f"a size of {size} bytes, but its parts take {at}")
    if fields["crc"] != body_crc(body):
        raise ValueError(f"a body whose CRC-32 is {body_crc(body):#010x} where {fields['crc'] & 0xFFFFFFFF:#010x} is stored")
    if physical_offset is not None and fields["physical_offset"] != physical_offset:
        raise ValueError(f"the record was written for offset {fields['physical_offset']}")
    return Record(topic=topic, body=body, properties=properties, **{name: fields[name] for name in _KEPT_FIELDS})


def _piece(data: memoryview, at: int, length: int, what: str) -> tuple[bytes, int]:
    """Return ``length`` bytes at ``at``, and where they end."""
    if length < 0 or at + length > len(data):
        raise ValueError(f"{length} bytes of {what} where {len(data) - at} are left")
    return bytes(data[at : at + length]), at + length


_NAME = re.compile(r"\d{20}", re.ASCII)
_MAX_OFFSET = 2**63 - 1


def file_name(start_offset: int) -> str:
    """Return the name of the file that starts at ``start_offset`` of the log, bytes."""
    if not 0 <= start_offset <= _MAX_OFFSET:
        raise IllegalArgumentError(f"a file of a log starts at 0 to 2**63-1, not at {start_offset}")
    return f"{start_offset:020d}"


def start_offset(name: str) -> int:
    """Return the offset at which a file starts, from its name.

    Raises:
        CorruptStoreError: the name is not 20 digits; the caller that lists a directory decides what else may be there.
    """
    if not _NAME.fullmatch(name) or int(name) > _MAX_OFFSET:
        raise CorruptStoreError(f"{name!r} is no name of a log file: 20 digits of a start offset are expected", file=name)
    return int(name)
