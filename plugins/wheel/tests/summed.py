"""Records with the sum that the engine's own have, reckoned here by what docs/formats.md says of it."""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

from plugins.wheel.tests.made_records import encode_record
from rmqstore_wheel.formats.commit_log import Record

ROOM: Final = b"RMQS_CRC\x0100000000\x02"
"""The sum of a record that has no place yet."""


def with_room(record: Record) -> Record:
    """Return a record whose properties end with room for its sum."""
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
