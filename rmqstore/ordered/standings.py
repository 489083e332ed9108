"""Where groups stand: per (group, topic, queue) the next offset, the last pop time and the number of leases, exact and stored."""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

from rmqstore.ordered.kv import OrderedKV
from rmqstore.ordered.layout import DEAD, GAP, GROUP, META, QUEUE, QUEUE_PREFIX, REGISTERED, STANDING, STANDING_KEY, after_prefix

_VALUE = struct.Struct(">QQI")


class Seat(NamedTuple):
    """Names one queue of one topic for one group, by ids."""

    group_id: int
    topic_id: int
    queue: int

    def key(self) -> bytes:
        """Return the key in the space ``meta``."""
        return STANDING + STANDING_KEY.pack(*self)


class Standing(msgspec.Struct, frozen=True):
    """Where the group stands: ``next_offset`` to pop, the last pop time given (ms), and how many messages are leased."""

    next_offset: int
    last_pop_ms: int = 0
    in_flight: int = 0

    def encode(self) -> bytes:
        """Return the stored form."""
        return _VALUE.pack(self.next_offset, self.last_pop_ms, self.in_flight)


def load_groups(kv: OrderedKV) -> dict[str, int]:
    """Read every group: name → id."""
    return {key[1:].decode(): int.from_bytes(value, "big") for key, value in kv.scan_all(META, GROUP, after_prefix(GROUP))}


def load_standings(kv: OrderedKV) -> dict[Seat, Standing]:
    """Read where every group stands."""
    entries = kv.scan_all(META, STANDING, after_prefix(STANDING))
    return {Seat(*STANDING_KEY.unpack_from(key, 1)): Standing(*_VALUE.unpack(value)) for key, value in entries}


def load_registered(kv: OrderedKV) -> set[tuple[int, int]]:
    """Read which groups have popped which topics: (group id, topic id)."""
    return {QUEUE_PREFIX.unpack_from(key, 1) for key, _ in kv.scan_all(META, REGISTERED, after_prefix(REGISTERED))}


def load_gaps(kv: OrderedKV) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Read the gaps that parked runs left: (topic id, queue) → (first offset, offset behind) each."""
    gaps: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for key, value in kv.scan_all(META, GAP, after_prefix(GAP)):
        topic_id, queue, first = QUEUE.unpack_from(key, 1)
        gaps.setdefault((topic_id, queue), []).append((first, int.from_bytes(value, "big")))
    return gaps


def load_dead(kv: OrderedKV) -> dict[tuple[int, int], int]:
    """Read how many messages of a topic went to a group's dead letter queue: (group id, topic id) → count."""
    entries = kv.scan_all(META, DEAD, after_prefix(DEAD))
    return {QUEUE_PREFIX.unpack_from(key, 1): int.from_bytes(value, "big") for key, value in entries}
