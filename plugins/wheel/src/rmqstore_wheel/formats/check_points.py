"""Check points and acks: the bodies of the messages of the revive topic (``PopCheckPoint``, ``AckMsg``, ``BatchAckMsg``).

JSON in one line, names in alphabetical order, null fields left out. A check point (tag ``ck``)::

    bm  acked messages as bits, i32     bn  broker name                   c   group
    d   distances of the offsets from so; missing in old ones: 0, 1, 2 …  it  invisible time, ms
    n   number of messages, i8; 0 = mock                                  pt  pop time, ms
    q   queue id     reviveTime  pt + it, not read     ro  offset in the revive topic     rp  times written again, as a text
    so  queue offset where the read began     t   topic, the retry topic included

An ack (tag ``ack``) has ao (the offset), bn, c, pt, q, so, t; a batch ack (tag ``bAck``) also aol (the offsets), and an ao without meaning.
Old brokers wrote an ack's names in full: ackOffset, ackOffsetList, brokerName, consumerGroup, popTime, queueId, startOffset, topic.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rmqstore.errors import IllegalArgumentError
from rmqstore_wheel.formats.binary_columns import Bytes
from rmqstore_wheel.formats.fastjson import Fields, quote

CK_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"
MAX_MESSAGES: Final = 32
"""Messages of one check point: the bits of ``bm``."""


class CheckPoint(msgspec.Struct):
    """What one pop took from one queue. Bit i of ``acked_bits`` (0 to 2**32 - 1) says that message i is acked.

    ``distances`` is None in a check point of an old broker, whose offsets have no gaps.
    """

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_ms: int
    invisible_ms: int
    count: int
    distances: list[int] | None = None
    acked_bits: int = 0
    revive_offset: int = 0
    broker: str | None = None
    rewrites: str | None = None

    @property
    def revive_ms(self) -> int:
        """When what is not acked is given again."""
        return self.pop_ms + self.invisible_ms

    def offsets(self) -> list[int]:
        """Return the queue offsets of its messages."""
        return [self.start_offset + distance for distance in self.distances or range(self.count)]

    def index_of(self, offset: int) -> int | None:
        """Return which of its messages has this queue offset; None when none has."""
        distance = offset - self.start_offset
        if not self.distances:
            return distance if 0 <= distance < self.count else None
        return self.distances.index(distance) if distance in self.distances else None

    def unique_key(self) -> str:
        """Return the ``UNIQ_KEY`` of its message (``PopMessageProcessor.genCkUniqueId``)."""
        return f"{self.topic}@{self.queue_id}@{self.start_offset}@{self.group}@{self.pop_ms}@{self.broker or 'null'}@{CK_TAG}"


class Ack(msgspec.Struct):
    """One acked message; ``start_offset`` and ``pop_ms`` say of which check point."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_ms: int
    ack_offset: int
    broker: str | None = None

    def unique_key(self) -> str:
        """Return the ``UNIQ_KEY`` of its message (``PopMessageProcessor.genAckUniqueId``)."""
        return f"{self.topic}@{self.queue_id}@{self.ack_offset}@{self.group}@{self.pop_ms}@{self.broker or 'null'}@{ACK_TAG}"


class BatchAck(msgspec.Struct):
    """Several acked messages of one check point."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_ms: int
    ack_offsets: list[int]
    broker: str | None = None

    def unique_key(self) -> str:
        """Return the ``UNIQ_KEY`` of its message (``PopMessageProcessor.genBatchAckUniqueId``)."""
        offsets = ", ".join(map(str, self.ack_offsets))
        return f"{self.topic}@{self.queue_id}@[{offsets}]@{self.group}@{self.pop_ms}@{BATCH_ACK_TAG}"


# ---------------------------------------------------------------- writing


def encode_check_point(point: CheckPoint) -> bytes:
    """Return the body of a check point.

    Raises:
        IllegalArgumentError: it counts more messages than it has bits.
    """
    if not 0 <= point.count <= MAX_MESSAGES:
        raise IllegalArgumentError(f"a check point holds up to {MAX_MESSAGES} messages, not {point.count}; write several")
    broker = "" if point.broker is None else f'"bn":{quote(point.broker)},'
    distances = "" if point.distances is None else f'"d":[{",".join(map(str, point.distances))}],'
    rewrites = "" if point.rewrites is None else f'"rp":{quote(point.rewrites)},'
    bits = point.acked_bits - (point.acked_bits >> 31 << 32)
    revive_ms = point.pop_ms + point.invisible_ms
    return (
        f'{{"bm":{bits},{broker}"c":{quote(point.group)},{distances}"it":{point.invisible_ms},"n":{point.count},"pt":{point.pop_ms},'
        f'"q":{point.queue_id},"reviveTime":{revive_ms},"ro":{point.revive_offset},{rewrites}"so":{point.start_offset},'
        f'"t":{quote(point.topic)}}}'
    ).encode()


def encode_ack(ack: Ack) -> bytes:
    """Return the body of an ack."""
    return f'{{"ao":{ack.ack_offset},{_common(ack)}}}'.encode()


def encode_batch_ack(ack: BatchAck) -> bytes:
    """Return the body of a batch ack."""
    return f'{{"ao":0,"aol":[{",".join(map(str, ack.ack_offsets))}],{_common(ack)}}}'.encode()


def _common(ack: Ack | BatchAck) -> str:
    broker = "" if ack.broker is None else f'"bn":{quote(ack.broker)},'
    return f'{broker}"c":{quote(ack.group)},"pt":{ack.pop_ms},"q":{ack.queue_id},"so":{ack.start_offset},"t":{quote(ack.topic)}'


# ---------------------------------------------------------------- reading


def decode_check_point(data: Bytes) -> CheckPoint:
    """Read the body of a check point; what is missing is 0, or none.

    Raises:
        CorruptStoreError: it is none.
    """
    fields = Fields.read(data, "a check point")
    return CheckPoint(
        topic=fields.text("t") or "",
        group=fields.text("c") or "",
        queue_id=fields.integer("q", bits=32),
        start_offset=fields.integer("so"),
        pop_ms=fields.integer("pt"),
        invisible_ms=fields.integer("it"),
        count=fields.integer("n", bits=8),
        distances=fields.integers("d"),
        acked_bits=fields.integer("bm", bits=32) & 0xFFFF_FFFF,
        revive_offset=fields.integer("ro"),
        broker=fields.text("bn"),
        rewrites=fields.text("rp"),
    )


def decode_ack(data: Bytes) -> Ack:
    """Read the body of an ack.

    Raises:
        CorruptStoreError: it is none.
    """
    fields = Fields.read(data, "an ack")
    return Ack(**_common_of(fields), ack_offset=fields.integer("ao", "ackOffset"))


def decode_batch_ack(data: Bytes) -> BatchAck:
    """Read the body of a batch ack.

    Raises:
        CorruptStoreError: it is none.
    """
    fields = Fields.read(data, "a batch ack")
    return BatchAck(**_common_of(fields), ack_offsets=fields.integers("aol", "ackOffsetList") or [])


def _common_of(fields: Fields) -> dict[str, Any]:
    """Return what acks of one and of many have in common."""
    return {
        "topic": fields.text("t", "topic") or "",
        "group": fields.text("c", "consumerGroup") or "",
        "queue_id": fields.integer("q", "queueId", bits=32),
        "start_offset": fields.integer("so", "startOffset"),
        "pop_ms": fields.integer("pt", "popTime"),
        "broker": fields.text("bn", "brokerName"),
    }
