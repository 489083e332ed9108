"""FIFO runs: per (group, topic, queue) the popped messages that are not acked yet, in their order (P9).

::

    key    group u32, topic u32, queue u32   (big-endian)
    value  n × (u64 queue offset, i64 first pop ms, u32 deliveries counted, u8 1 = waits to be given again)   (little-endian)

A message is in the run from its first pop until it is acked, dead-lettered or parked. While its lease runs it does not wait; the lease
itself is an ordinary check point, so receipts, outcomes and expiry are those of any pop. When a lease ends otherwise than by an ack, the
message waits in its place: the next pop of the queue takes the waiting ones first, in order, then new ones. No pop of the queue gives
anything while any lease of the run goes on. RocketMQ (``ConsumerOrderInfoManager``) keeps the same facts in memory and writes them every
10 s, and forgets at the next pop which messages behind the first un-acked one were acked; here they are part of every call's write.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

from rmqstore.engine.kv.base import OrderedKV
from rmqstore.engine.pops.offsets import GroupQueue
from rmqstore.engine.records import NONE, RecordFormat
from rmqstore.engine.schema import FIFO, GROUP_QUEUE_KEY, LEASES, after_prefix

_ENTRY = struct.Struct("<QqIB")


class Unacked(NamedTuple):
    """One message of a run: how often it was delivered before, when first (ms, -1 = with the lease that runs), and whether it waits."""

    delivered: int = 0
    first_pop_ms: int = NONE
    waits: bool = False


FifoRun: TypeAlias = dict[int, Unacked]
"""The un-acked messages of a queue by their offset."""


def fifo_key(reader: GroupQueue) -> bytes:
    """Return the key in the space ``leases``."""
    return FIFO + GROUP_QUEUE_KEY.pack(reader.group_id, reader.topic_id, reader.queue)


def encode_fifo(run: FifoRun) -> bytes:
    """Return the stored form, by offset."""
    return b"".join(_ENTRY.pack(at, one.first_pop_ms, one.delivered, one.waits) for at, one in sorted(run.items()))


def decode_fifo(value: bytes) -> FifoRun:
    """Read a stored form."""
    return {at: Unacked(delivered, first_pop_ms, bool(waits)) for at, first_pop_ms, delivered, waits in _ENTRY.iter_unpack(value)}


def load_fifo(kv: OrderedKV) -> dict[GroupQueue, FifoRun]:
    """Read every run."""
    entries = kv.scan_all(LEASES, FIFO, after_prefix(FIFO))
    return {GroupQueue(*GROUP_QUEUE_KEY.unpack_from(key, 1)): decode_fifo(value) for key, value in entries}


def waiting_in(run: FifoRun) -> list[int]:
    """Return the offsets that wait to be given again, in order."""
    return sorted(at for at, one in run.items() if one.waits)


def as_delivered(record: bytes, one: Unacked | None, record_format: RecordFormat) -> bytes:
    """Return the record with the deliveries that the run counted; queue logs are never rewritten."""
    if one is None or (not one.delivered and one.first_pop_ms < 0):
        return record
    first_pop_ms = record_format.first_pop_of(record)
    return record_format.with_delivery(
        record, record_format.attempt_of(record) + one.delivered, one.first_pop_ms if first_pop_ms < 0 else first_pop_ms
    )
