"""Check points: the leases of one pop on one queue, as one value.

::

    key    group u32, topic u32, queue u32, start offset u64, pop time u64   (big-endian)
    value  i64 expiry ms, i64 invisible ms, i64 first pop ms (-1 = this pop), u32 open epoch, u16 n, u8 retry flag,
           u32 number of the store that gave it   (little-endian)
           n × u32 queue offset less the start offset, n × u8 state, the reason (UTF-8)

The highest bit of the retry flag says that the lease is a wait: its attempt failed, for the reason, and no consumer has the message.

RocketMQ's check point (``PopCheckPoint``) with 64-bit fields, up to 1024 messages, and a state a message in place of a 32-bit map of
acks; the key is structured, where the original's concatenated merge key can name two check points.
"""

from __future__ import annotations

import functools
import struct
from typing import Final

import msgspec

from rmqstore.contract import NO_RETRY, ORDERED_QID, Receipt, revive_qid_of
from rmqstore.engine.pops.state import GroupQueue
from rmqstore.engine.schema import LEASE_KEY

LEASED: Final = 0
ACKED: Final = 1
MOVED: Final = 2
"""The lease ended otherwise: revived, released, changed or reset; its receipts are STALE."""

_HEAD = struct.Struct("<qqqIHBI")
_COUNT_AT = 28
_BACKING_OFF = 0x80


@functools.lru_cache(64)
def _row_of(count: int) -> bytes:
    """Return the distances of so many offsets that follow one another."""
    return struct.pack(f"<{count}I", *range(count))


class Lease(msgspec.Struct):
    """One check point, decoded and changeable; ``states[i]`` belongs to queue offset ``offsets[i]``."""

    key: bytes
    expiry_ms: int
    invisible_ms: int
    epoch: int
    retry_flag: int
    offsets: list[int]
    states: bytearray
    first_pop_ms: int = -1
    granter: int = 0
    is_backing_off: bool = False
    reason: str = ""
    _places: dict[int, int] | None = None

    def encode(self) -> bytes:
        """Return the value."""
        start = self.offsets[0]
        flags = self.retry_flag | _BACKING_OFF * self.is_backing_off
        head = _HEAD.pack(self.expiry_ms, self.invisible_ms, self.first_pop_ms, self.epoch, len(self.offsets), flags, self.granter)
        count = len(self.offsets)
        # Mostly, they follow one another.
        follow = self.offsets == list(range(start, start + count))
        distances = _row_of(count) if follow else struct.pack(f"<{count}I", *[each - start for each in self.offsets])
        return b"".join((head, distances, self.states, self.reason.encode()))

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> Lease:
        """Read a value."""
        expiry_ms, invisible_ms, first_pop_ms, epoch, count, retry_flag, granter = _HEAD.unpack_from(value)
        start = LEASE_KEY.unpack(key)[3]
        end = _HEAD.size + 4 * count
        if value[_HEAD.size : end] == _row_of(count):
            offsets = list(range(start, start + count))
        else:
            offsets = [start + distance for distance in struct.unpack_from(f"<{count}I", value, _HEAD.size)]
        return cls(
            key,
            expiry_ms,
            invisible_ms,
            epoch,
            retry_flag & ~_BACKING_OFF,
            offsets,
            bytearray(value[end : end + count]),
            first_pop_ms,
            granter,
            bool(retry_flag & _BACKING_OFF),
            value[end + count :].decode(),
        )

    @staticmethod
    def expiry_of(value: bytes) -> int:
        """Return when the lease in a value ends, ms, without decoding the rest."""
        return int.from_bytes(value[:8], "little", signed=True)

    @staticmethod
    def states_of(value: bytes) -> bytes:
        """Return the states in a value, without decoding the rest."""
        count = int.from_bytes(value[_COUNT_AT : _COUNT_AT + 2], "little")
        first = _HEAD.size + 4 * count
        return value[first : first + count]

    @property
    def place(self) -> tuple[int, int, int, int, int]:
        """(group id, topic id, queue, start offset, pop time ms)."""
        return LEASE_KEY.unpack(self.key)

    def receipt(self, offset: int, topic: str, group: str, broker: str, *, in_order: bool) -> Receipt:
        """Return the receipt of one of its messages; ``topic`` is the one that was popped, also when the message is of a retry topic."""
        _, _, queue, ck_start, pop_ms = LEASE_KEY.unpack(self.key)
        revive_qid = ORDERED_QID if in_order and self.retry_flag == NO_RETRY else revive_qid_of(pop_ms)
        return Receipt(topic, group, queue, offset, ck_start, pop_ms, self.invisible_ms, self.retry_flag, broker, self.epoch, revive_qid)

    @property
    def reader(self) -> GroupQueue:
        """Whose it is: the group, on a queue."""
        return GroupQueue(*LEASE_KEY.unpack(self.key)[:3])

    @property
    def granted_ms(self) -> int:
        """When it was given, by the clock, which pop times may be ahead of."""
        return self.expiry_ms - self.invisible_ms

    @property
    def popped_ms(self) -> int:
        """When its messages were popped first, unless their records say so."""
        return self.expiry_ms - self.invisible_ms if self.first_pop_ms < 0 else self.first_pop_ms

    @property
    def live(self) -> int:
        """How many messages are still leased."""
        return self.states.count(LEASED)

    @property
    def leased(self) -> list[int]:
        """Which messages are still leased."""
        return [index for index, state in enumerate(self.states) if state == LEASED]

    @property
    def first_leased(self) -> int | None:
        """The offset of the first message that is still leased; None when none is."""
        at = self.states.find(LEASED)
        return None if at < 0 else self.offsets[at]

    def index_of(self, offset: int) -> int | None:
        """Return which message is at ``offset``, or None."""
        at = offset - self.offsets[0]
        if 0 <= at < len(self.offsets) and self.offsets[at] == offset:
            return at
        if self._places is None:
            self._places = {known: index for index, known in enumerate(self.offsets)}
        return self._places.get(offset)
