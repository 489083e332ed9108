"""Runs: how many records share one value (all integers little-endian).

::

    0   u32  CRC-32 of everything behind it
    4   u32  open epoch of the call that wrote the run
    8   u32  number of records n
    12  i64  store time, ms
    20  if n > 1: n × u32 bytes of each record, n × u32 seq of each record less that of the first
        then the records (``records``)

The timers of one call that fall into one tick make one run, as do the messages of one call for one queue, up to :data:`RUN_BYTES`. So a
burst costs one entry of the database and not thousands, while a lone message pays 20 bytes.

Reading the runs of a whole space in the order of their keys, a page at a time.

Parking: what cannot be read goes to the topic ``%PARKED%`` with its reason; it is never dropped and never blocks others (T12).
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final

import msgspec

from rmqstore.engine import schema
from rmqstore.engine.kv.base import OrderedKV
from rmqstore.engine.records import DELIVER_AT, KEYS_AT
from rmqstore.engine.schema import PAIR, QUEUE, TIMERS
from rmqstore.errors import CorruptStoreError
from rmqstore.message import MAX_BODY_BYTES, PARKED_TOPIC, PROPERTY_ORIGIN_ID, PROPERTY_ORIGIN_TOPIC, PROPERTY_PARKED_REASON, Message

RUN_BYTES: Final = 128 * 1024
"""A run ends with the record that makes it longer than this."""

HEAD: Final = struct.Struct("<IIq")
_CRC: Final = struct.Struct("<I")
HEAD_BYTES: Final = 4 + HEAD.size
ONE: Final = b"\x01\x00\x00\x00"
"""A run of one record has this at ``value[8:12]``."""

_PER_RECORD = 8
_ONLY_ONE = (0,)
_DELIVER = struct.Struct("<q")


class Run(msgspec.Struct, frozen=True):
    """A checked run: record i, of ``sizes[i]`` bytes, has the seq (or queue offset) ``first + deltas[i]``; the records are its end."""

    value: bytes
    epoch: int
    store_ms: int
    sizes: Sequence[int]
    deltas: Sequence[int]

    def record(self, at: int) -> bytes:
        """Return one record, without a copy of the others."""
        start = len(self.value) - sum(self.sizes[at:])
        return self.value[start : start + self.sizes[at]]

    @property
    def records(self) -> list[bytes]:
        """All records, copied."""
        if len(self.sizes) == 1:
            return [self.value[HEAD_BYTES:]]
        ends = [*accumulate(self.sizes, initial=len(self.value) - sum(self.sizes))]
        return [self.value[start:end] for start, end in pairwise(ends)]


_WRONG_SUM: Final = "the checksum of the run does not match"


class DamagedRunError(ValueError):
    """The bytes of a run are not what was written; the message says how."""


def encode_run(epoch: int, store_ms: int, records: Sequence[bytes], deltas: Sequence[int] | None = None) -> bytes:
    """Return a run of any number of records; ``deltas`` None stands for 0, 1, 2 …"""
    count = len(records)
    table = struct.pack(f"<{2 * count}I", *map(len, records), *(range(count) if deltas is None else deltas)) if count > 1 else b""
    payload = b"".join((HEAD.pack(epoch, count, store_ms), table, *records))
    return _CRC.pack(zlib.crc32(payload)) + payload


def encode_singles(epoch: int, store_ms: int, records: Sequence[bytes]) -> list[bytes]:
    """Return a run of one for every record."""
    head = HEAD.pack(epoch, 1, store_ms)
    start = zlib.crc32(head)
    crc, pack = zlib.crc32, _CRC.pack
    return [pack(crc(record, start)) + head + record for record in records]


def run_lengths(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut consecutive records of these sizes into runs: yields (start, stop)."""
    start, total = 0, 0
    for at, size in enumerate(sizes):
        total += size
        if total >= RUN_BYTES:
            yield start, at + 1
            start, total = at + 1, 0
    if start < len(sizes):
        yield start, len(sizes)


def single_of(value: bytes) -> bytes:
    """Check a run of one record and return it; :func:`decode_run` for the one that most runs are.

    Raises:
        DamagedRunError: the checksum is wrong.
    """
    if zlib.crc32(value[4:]) != int.from_bytes(value[:4], "little"):
        raise DamagedRunError(_WRONG_SUM)
    return value[HEAD_BYTES:]


def single_facts(value: bytes) -> tuple[int, int, bool]:
    """Return (epoch, deliver time ms or -1, has keys) of a run of one record, unchecked and without copying it."""
    return (
        int.from_bytes(value[4:8], "little"),
        _DELIVER.unpack_from(value, HEAD_BYTES + DELIVER_AT)[0],
        value[HEAD_BYTES + KEYS_AT : HEAD_BYTES + KEYS_AT + 2] != b"\x00\x00",
    )


def count_of(value: bytes) -> int:
    """Return the number of records without checking the run."""
    return int.from_bytes(value[8:12], "little")


def is_damaged(value: bytes) -> bool:
    """Say whether the checksum of a run is wrong."""
    return len(value) < HEAD_BYTES or zlib.crc32(memoryview(value)[4:]) != int.from_bytes(value[:4], "little")


def decode_run(value: bytes) -> Run:
    """Check and decode a run.

    Raises:
        DamagedRunError: the checksum or a length is wrong.
    """
    if len(value) < HEAD_BYTES or zlib.crc32(memoryview(value)[4:]) != int.from_bytes(value[:4], "little"):
        raise DamagedRunError(_WRONG_SUM)
    epoch, count, store_ms = HEAD.unpack_from(value, 4)
    if count == 1:
        return Run(value, epoch, store_ms, (len(value) - HEAD_BYTES,), _ONLY_ONE)
    tables_end = HEAD_BYTES + _PER_RECORD * count
    table = struct.unpack_from(f"<{2 * count}I", value, HEAD_BYTES) if tables_end <= len(value) else ()
    sizes = table[:count]
    if not table or len(value) != tables_end + sum(sizes):
        raise DamagedRunError("the lengths in the run do not match")
    return Run(value, epoch, store_ms, sizes, table[count:])


def runs_behind(kv: OrderedKV, space: int, after: bytes | None, limit: int) -> Iterator[tuple[bytes, Run]]:
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
                f"the run at {where} of {schema.SPACES[space]} is damaged ({error}); deliver or pop it first, which parks it", offset=where
            ) from error
        yield key, run
        rows += len(run.sizes)
        if rows >= limit:
            return


def parked_message(raw: bytes, reason: str, origin: str, origin_topic: str = "") -> Message:
    """Return a message for ``%PARKED%`` whose body is what was found, as far as a body can hold it."""
    properties = {PROPERTY_PARKED_REASON: reason, PROPERTY_ORIGIN_ID: origin}
    if origin_topic:
        properties[PROPERTY_ORIGIN_TOPIC] = origin_topic
    return Message(PARKED_TOPIC, raw[:MAX_BODY_BYTES] or b"\x00", properties=properties, message_id=origin.replace(" ", "-"), queue_id=0)


_ORIGIN: Final = re.compile(PROPERTY_ORIGIN_TOPIC.encode() + rb"\x01([^\x01\x02]+)\x02")
"""The property in RocketMQ's text form, which every format of records uses."""


def origins_in(raw: bytes) -> list[str]:
    """Return the topics that dead letters which cannot be read still name, one for each letter that does."""
    return [name.decode(errors="replace") for name in _ORIGIN.findall(raw)]
