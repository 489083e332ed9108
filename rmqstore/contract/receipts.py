"""The receipt of a lease: the caller's proof that a message was given to it (docs/contract.md).

Text form, blank-separated: RocketMQ's POP_CK handle (``ExtraInfoUtil``: ckStartOffset popTime invisibleTime reviveQid retryFlag
brokerName queueId msgQueueOffset, and the commit-log offset that the proxy appends), then topic, group, store epoch and CRC-32 of all
before it. RocketMQ's handle does not say whose lease it is and has no checksum; this one does.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable

import msgspec

NO_RETRY, RETRY_V1, RETRY_V2 = 0, 1, 2
"""Values of ``retry_flag``: the message comes from its own topic, from a ``group_topic`` or from a ``group+topic`` retry topic."""

ORDERED_QID = 999
"""Value of ``revive_qid`` in the receipt of a FIFO pop (RocketMQ ``KeyBuilder.POP_ORDER_REVIVE_QUEUE``)."""

REVIVE_QUEUES = 8
"""How many revive queues there are (RocketMQ ``reviveQueueNum``)."""

_INT = r"(-?\d{1,19})"
_TEXT = re.compile(rf"{_INT} {_INT} {_INT} {_INT} ([012]) (\S+) {_INT} {_INT} {_INT} (\S+) (\S+) {_INT} ([0-9a-f]{{8}})", re.ASCII)


def revive_qid_of(pop_time_ms: int) -> int:
    """Return the revive queue of a pop that is not a FIFO one.

    RocketMQ takes them in turn, and a receipt has to say which; here the pop time tells, which rises with every pop of a queue.
    """
    return pop_time_ms % REVIVE_QUEUES


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """One lease of one message by one group.

    ``topic`` is the topic that was popped, also when the message came from its retry topic (``retry_flag`` says so). The lease
    belongs to the check point that starts at ``ck_start_offset`` of the queue and was made at ``pop_time_ms``, which strictly
    rises per (group, topic, queue), so no two leases share a receipt (P2).
    """

    topic: str
    group: str
    queue_id: int
    queue_offset: int
    ck_start_offset: int
    pop_time_ms: int
    invisible_ms: int
    retry_flag: int
    broker: str
    epoch: int
    revive_qid: int = 0
    log_offset: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether every field has its type and is in its range; one that a caller put together may not."""
        texts = (self.topic, self.group, self.broker)
        numbers = (self.queue_id, self.queue_offset, self.ck_start_offset, self.pop_time_ms, self.invisible_ms, self.retry_flag, self.epoch)
        return all(type(text) is str and text.isascii() for text in texts) and all(
            type(number) is int and 0 <= number < 2**63 for number in numbers
        )

    def text(self) -> str:
        """Return the text form."""
        return self.texts((self.queue_offset,))[0]

    def texts(self, queue_offsets: Iterable[int]) -> list[str]:
        """Return the text forms of receipts that are like this one but for their queue offsets."""
        head = (
            f"{self.ck_start_offset} {self.pop_time_ms} {self.invisible_ms} {self.revive_qid} {self.retry_flag} {self.broker} "
            f"{self.queue_id} "
        )
        tail = f" {self.log_offset} {self.topic} {self.group} {self.epoch}"
        head_crc = zlib.crc32(head.encode())
        return [f"{head}{offset}{tail} {zlib.crc32(f'{offset}{tail}'.encode(), head_crc):08x}" for offset in queue_offsets]

    @classmethod
    def parse(cls, text: str) -> Receipt | None:
        """Read a text form; None when it is none (garbage, truncated, tampered with): its outcome is UNKNOWN (P5)."""
        match = _TEXT.fullmatch(text) if text.isascii() else None
        if match is None or zlib.crc32(text[:-9].encode()) != int(match[13], 16):
            return None
        return cls(
            topic=match[10],
            group=match[11],
            queue_id=int(match[7]),
            queue_offset=int(match[8]),
            ck_start_offset=int(match[1]),
            pop_time_ms=int(match[2]),
            invisible_ms=int(match[3]),
            retry_flag=int(match[5]),
            broker=match[6],
            epoch=int(match[12]),
            revive_qid=int(match[4]),
            log_offset=int(match[9]),
        )
