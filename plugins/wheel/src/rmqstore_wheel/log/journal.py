"""The journal: what a call changed beside the messages that it appended, as one record of the log.

A record of the topic :data:`TOPIC`, whose body is MessagePack: a list of changes, each a list that begins with its kind::

    [0, space, [[key, value], …]]     set keys                 spaces and keys are those of rmqstore.engine.schema
    [1, space, [key, …]]              remove keys
    [2, space, start, stop]           remove the keys from start to before stop
    [3, topic, queue]                 remove a queue with all its messages
    [4, topic, queue, [offset, …]]    remove messages from a queue
    [5]                               everything so far is void: a whole copy of the state follows
    [6, seqs, epochs, cancelled]      what the copies of timers in this frame do not say themselves

The leases of a pop, the outcomes of acks, offsets, groups, resets and FIFO runs are such keys; check points and acks are written in
RocketMQ's form beside them, for those who read the log with other eyes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from rmqstore.engine.kv.base import DeleteMany, DeleteRange, PutMany
from rmqstore_wheel.formats.commit_log import Form

TOPIC: Final = "rmq_sys_rmqstore_journal"
_FORM: Final = Form(TOPIC.encode())

PUT, DELETE, DELETE_RANGE, DROP_QUEUE, CLEAR, RESTART, COPIED = range(7)


class DropQueue(msgspec.Struct, frozen=True):
    """Remove a queue with all its messages."""

    topic: str
    queue: int


class ClearOffsets(msgspec.Struct, frozen=True):
    """Remove messages from a queue; nothing lies at their offsets then."""

    topic: str
    queue: int
    offsets: list[int]


class Restart(msgspec.Struct, frozen=True):
    """Everything so far is void: a whole copy of the state follows."""


class Copied(msgspec.Struct, frozen=True):
    """What copies of timers do not say themselves: seqs (``<i8``), epochs (``<u4``), whether each is cancelled (``u1``)."""

    seqs: bytes
    epochs: bytes
    cancelled: bytes


Change = PutMany | DeleteMany | DeleteRange | DropQueue | ClearOffsets | Restart | Copied

_KINDS: Final[dict[type, int]] = {
    PutMany: PUT,
    DeleteMany: DELETE,
    DeleteRange: DELETE_RANGE,
    DropQueue: DROP_QUEUE,
    ClearOffsets: CLEAR,
    Restart: RESTART,
    Copied: COPIED,
}
_TYPES: Final[dict[int, Any]] = {number: kind for kind, number in _KINDS.items()}
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()


def encode(changes: Sequence[Change]) -> bytes:
    """Return the body of a journal record."""
    found = []
    for change in changes:  # as a loop: every call comes by here
        found.append((_KINDS[type(change)], *msgspec.structs.astuple(change)))
    return _encoder.encode(found)


def decode(body: bytes) -> list[Change]:
    """Read the body of a journal record."""
    return [_TYPES[kind](*fields) for kind, *fields in _decoder.decode(body)]


def record(body: bytes, number: int, store_ms: int) -> bytes:
    """Return the ``number``-th journal record."""
    return _FORM.encode(body, b"", 0, number, store_ms)
