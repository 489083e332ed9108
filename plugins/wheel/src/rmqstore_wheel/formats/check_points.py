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

from typing import Final

import msgspec

from rmqstore.errors import IllegalArgumentError
from rmqstore_wheel.formats import fastjson
from rmqstore_wheel.formats.binary_columns import Bytes
from rmqstore_wheel.formats.fastjson import Byte, Int, Long, quote

REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
"""How the revive topic begins; the name of the broker follows."""

REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
CK_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"
MAX_MESSAGES: Final = 32
"""Messages of one check point: the bits of ``bm``."""


_NAMES: Final = {
    "topic": "t",
    "group": "c",
    "queue_id": "q",
    "start_offset": "so",
    "pop_ms": "pt",
    "broker": "bn",
    "invisible_ms": "it",
    "count": "n",
    "distances": "d",
    "acked_bits": "bm",
    "revive_offset": "ro",
    "rewrites": "rp",
    "ack_offset": "ao",
    "ack_offsets": "aol",
}
_OLD_NAMES: Final = {
    "topic": "t",
    "consumerGroup": "c",
    "queueId": "q",
    "startOffset": "so",
    "popTime": "pt",
    "brokerName": "bn",
    "ackOffset": "ao",
    "ackOffsetList": "aol",
}


class _OfPop(msgspec.Struct, rename=_NAMES):
    """What names a check point, but for its broker, which a batch ack may lack."""

    topic: str = ""
    group: str = ""
    queue_id: Int = 0
    start_offset: Long = 0
    pop_ms: Long = 0


class CheckPoint(_OfPop):
    """What one pop took from one queue. Bit i of ``acked_bits`` (0 to 2**32 - 1) says that message i is acked.

    ``distances`` is None in a check point of an old broker, whose offsets have no gaps.
    """

    invisible_ms: Long = 0
    count: Byte = 0
    distances: list[Long] | None = None
    acked_bits: Int = 0
    revive_offset: Long = 0
    broker: str | None = None
    rewrites: str | None = None

    @property
    def revive_ms(self) -> int:
        """When what is not acked is given again."""
        return self.pop_ms + self.invisible_ms

    def index_of(self, offset: int) -> int | None:
        """Return which of its messages has this queue offset; None when none has."""
        distance = offset - self.start_offset
        if not self.distances:
            return distance if 0 <= distance < self.count else None
        return self.distances.index(distance) if distance in self.distances else None

    def unique_key(self) -> str:
        """Return the ``UNIQ_KEY`` of its message (``PopMessageProcessor.genCkUniqueId``)."""
        return f"{self.topic}@{self.queue_id}@{self.start_offset}@{self.group}@{self.pop_ms}@{self.broker or 'null'}@{CK_TAG}"


class Ack(_OfPop):
    """One acked message; ``start_offset`` and ``pop_ms`` say of which check point."""

    ack_offset: Long = 0
    broker: str | None = None

    def unique_key(self) -> str:
        """Return the ``UNIQ_KEY`` of its message (``PopMessageProcessor.genAckUniqueId``)."""
        return f"{self.topic}@{self.queue_id}@{self.ack_offset}@{self.group}@{self.pop_ms}@{self.broker or 'null'}@{ACK_TAG}"


class BatchAck(_OfPop):
    """Several acked messages of one check point."""

    ack_offsets: list[Long] = []
    broker: str | None = None


# ---------------------------------------------------------------- writing

_encode: Final = msgspec.json.Encoder().encode


def _array(numbers: list[int]) -> str:
    return _encode(numbers).decode()


def encode_check_point(point: CheckPoint) -> bytes:
    """Return the body of a check point.

    Raises:
        IllegalArgumentError: it counts more messages than it has bits.
    """
    if not 0 <= point.count <= MAX_MESSAGES:
        raise IllegalArgumentError(f"a check point holds up to {MAX_MESSAGES} messages, not {point.count}; write several")
    broker = "" if point.broker is None else f'"bn":{quote(point.broker)},'
    distances = "" if point.distances is None else f'"d":{_array(point.distances)},'
    rewrites = "" if point.rewrites is None else f'"rp":{quote(point.rewrites)},'
    bits = point.acked_bits - (point.acked_bits >> 31 << 32)
    revive_ms = point.pop_ms + point.invisible_ms
    return (
        f'{{"bm":{bits},{broker}"c":{quote(point.group)},{distances}"it":{point.invisible_ms},"n":{point.count},"pt":{point.pop_ms},'
        f'"q":{point.queue_id},"reviveTime":{revive_ms},"ro":{point.revive_offset},{rewrites}"so":{point.start_offset},'
        f'"t":{quote(point.topic)}}}'
    ).encode()


def encode_ack(ack: Ack | BatchAck) -> bytes:
    """Return the body of an ack, or of a batch ack."""
    offsets = f'"ao":{ack.ack_offset}' if isinstance(ack, Ack) else f'"ao":0,"aol":{_array(ack.ack_offsets)}'
    broker = "" if ack.broker is None else f'"bn":{quote(ack.broker)},'
    return (
        f'{{{offsets},{broker}"c":{quote(ack.group)},"pt":{ack.pop_ms},"q":{ack.queue_id},"so":{ack.start_offset},"t":{quote(ack.topic)}}}'
    ).encode()


# ---------------------------------------------------------------- reading


def decode_check_point(data: Bytes) -> CheckPoint:
    """Read the body of a check point; what is missing is 0, or none."""
    point = fastjson.read(data, CheckPoint, "a check point")
    point.acked_bits &= 0xFFFF_FFFF
    return point


def decode_ack(data: Bytes) -> Ack:
    """Read the body of an ack."""
    return fastjson.read(data, Ack, "an ack", _OLD_NAMES)


def decode_batch_ack(data: Bytes) -> BatchAck:
    """Read the body of a batch ack."""
    return fastjson.read(data, BatchAck, "a batch ack", _OLD_NAMES)
