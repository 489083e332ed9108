"""Offsets: where the next message of each queue of a topic goes, and where groups stand.

Of a group, per topic and queue: the next offset to pop, the last pop time and the number of leases, exact and stored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from msgspec import structs

from rmqstore.contract import GroupSettings
from rmqstore.engine.kv.base import OrderedKV
from rmqstore.engine.schema import (
    DEAD,
    GAP,
    GONE,
    GROUP,
    GROUP_QUEUE_KEY,
    GROUP_SETTINGS,
    KEPT,
    META,
    PROGRESS,
    QUEUE,
    QUEUE_PREFIX,
    REGISTERED,
    TOPIC,
    after_prefix,
)

_HEAD = struct.Struct(">IH?")
_OFFSET = struct.Struct(">Q")


class Topic(msgspec.Struct, frozen=True, gc=False):
    """A topic as it is kept: ``next_offsets[q]`` is where the next message of queue ``q`` goes; the last two are as in ``TopicInfo``."""

    id: int
    name: str
    next_offsets: tuple[int, ...]
    group_queues: int = 0
    is_on_demand: bool = False

    @property
    def queues(self) -> int:
        """Number of queues."""
        return len(self.next_offsets)

    def entry(self) -> tuple[bytes, bytes]:
        """Return its (key, value) in the space ``meta``."""
        return TOPIC + self.name.encode(), _HEAD.pack(self.id, self.group_queues, self.is_on_demand) + b"".join(
            map(_OFFSET.pack, self.next_offsets)
        )

    def widened(self, queues: int) -> Topic:
        """Return the topic with at least ``queues`` queues."""
        missing = queues - self.queues
        return self if missing <= 0 else structs.replace(self, next_offsets=self.next_offsets + (0,) * missing)

    def moved(self, queue: int, next_offset: int) -> Topic:
        """Return the topic with one queue's next offset changed."""
        offsets = list(self.next_offsets)
        offsets[queue] = next_offset
        return Topic(self.id, self.name, tuple(offsets), self.group_queues, self.is_on_demand)


def load_topics(kv: OrderedKV) -> dict[str, Topic]:
    """Read every topic."""
    topics = {}
    for key, value in kv.scan_all(META, TOPIC, after_prefix(TOPIC)):
        offsets = tuple(offset for (offset,) in _OFFSET.iter_unpack(value[_HEAD.size :]))
        topic_id, group_queues, is_on_demand = _HEAD.unpack_from(value)
        topic = Topic(topic_id, key[1:].decode(), offsets, group_queues, is_on_demand)
        topics[topic.name] = topic
    return topics


_VALUE = struct.Struct(">QQI")
_REGISTERED = struct.Struct(">?QQ")
_GAP = struct.Struct(">Q?")
_DEAD = struct.Struct(">QQ")


class GroupQueue(msgspec.Struct, frozen=True, order=True, gc=False):
    """Names one queue of one topic for one group that reads it, by ids."""

    group_id: int
    topic_id: int
    queue: int

    def key(self) -> bytes:
        """Return the key in the space ``meta``."""
        return PROGRESS + GROUP_QUEUE_KEY.pack(self.group_id, self.topic_id, self.queue)


class Progress(msgspec.Struct, frozen=True):
    """Where the group stands: ``next_offset`` to pop, the last pop time given (ms), and how many messages are leased."""

    next_offset: int
    last_pop_ms: int = 0
    in_flight: int = 0

    def entry(self, reader: GroupQueue) -> tuple[bytes, bytes]:
        """Return the (key, value) in the space ``meta``."""
        key = PROGRESS + GROUP_QUEUE_KEY.pack(reader.group_id, reader.topic_id, reader.queue)
        return key, _VALUE.pack(self.next_offset, self.last_pop_ms, self.in_flight)


def load_groups(kv: OrderedKV) -> dict[str, int]:
    """Read every group: name → id."""
    return {key[1:].decode(): int.from_bytes(value, "big") for key, value in kv.scan_all(META, GROUP, after_prefix(GROUP))}


def group_settings_entry(name: str, settings: GroupSettings) -> tuple[bytes, bytes]:
    """Return the (key, value) of a group's settings in the space ``meta``."""
    return GROUP_SETTINGS + name.encode(), msgspec.json.encode(settings)


def load_group_settings(kv: OrderedKV) -> dict[str, GroupSettings]:
    """Read the settings of groups: name → settings."""
    entries = kv.scan_all(META, GROUP_SETTINGS, after_prefix(GROUP_SETTINGS))
    return {key[1:].decode(): msgspec.json.decode(value, type=GroupSettings) for key, value in entries}


def load_progress(kv: OrderedKV) -> dict[GroupQueue, Progress]:
    """Read where every group stands."""
    entries = kv.scan_all(META, PROGRESS, after_prefix(PROGRESS))
    return {GroupQueue(*GROUP_QUEUE_KEY.unpack_from(key, 1)): Progress(*_VALUE.unpack(value)) for key, value in entries}


class Registered(msgspec.Struct, frozen=True, gc=False):
    """How a group pops a topic: in order or not, which its first pop fixed, when it did last (ms), and what retention took from it."""

    is_ordered: bool
    active_ms: int
    expired: int = 0

    @staticmethod
    def key(group_id: int, topic_id: int) -> bytes:
        """Return the key in the space ``meta``."""
        return REGISTERED + QUEUE_PREFIX.pack(group_id, topic_id)

    def encode(self) -> bytes:
        """Return the stored form."""
        return _REGISTERED.pack(self.is_ordered, self.active_ms, self.expired)


def load_registered(kv: OrderedKV) -> dict[tuple[int, int], Registered]:
    """Read which groups have popped which topics: by (group id, topic id); the first version did not count what expired."""
    found = {}
    for key, value in kv.scan_all(META, REGISTERED, after_prefix(REGISTERED)):
        found[QUEUE_PREFIX.unpack_from(key, 1)] = Registered(*_REGISTERED.unpack(value.ljust(_REGISTERED.size, b"\0")))
    return found


class Gap(NamedTuple):
    """Offsets ``first <= offset < behind`` hold nothing: a damaged run was parked, or messages were removed."""

    first: int
    behind: int
    is_removal: bool = False

    def entry(self, topic_id: int, queue: int) -> tuple[bytes, bytes]:
        """Return its (key, value) in the space ``meta``."""
        return GAP + QUEUE.pack(topic_id, queue, self.first), _GAP.pack(self.behind, self.is_removal)


def count_between(gaps: Iterable[Gap], first: int, behind: int) -> int:
    """Return how many messages are at ``first <= offset < behind`` of a queue with these gaps."""
    return max(behind - first, 0) - sum(max(min(gap.behind, behind) - max(gap.first, first), 0) for gap in gaps)


def load_gaps(kv: OrderedKV) -> dict[tuple[int, int], list[Gap]]:
    """Read the gaps in queues by (topic id, queue), each queue's by their first offset."""
    gaps: dict[tuple[int, int], list[Gap]] = {}
    for key, value in kv.scan_all(META, GAP, after_prefix(GAP)):
        topic_id, queue, first = QUEUE.unpack_from(key, 1)
        behind, is_removal = _GAP.unpack(value)
        gaps.setdefault((topic_id, queue), []).append(Gap(first, behind, is_removal))
    return gaps


def load_kept(kv: OrderedKV) -> dict[tuple[int, int], int]:
    """Read the first kept offset of every queue that lost messages to retention: by (topic id, queue)."""
    return {QUEUE_PREFIX.unpack_from(key, 1): int.from_bytes(value, "big") for key, value in kv.scan_all(META, KEPT, after_prefix(KEPT))}


def load_gone(kv: OrderedKV) -> dict[int, str]:
    """Read the names of deleted topics, of which something is left (``administration``), by the ids that they had."""
    return {int.from_bytes(value, "big"): key[1:].decode() for key, value in kv.scan_all(META, GONE, after_prefix(GONE))}


class Dead(NamedTuple):
    """How many messages of a topic are in a group's dead letter queue, and from which offset on.

    What is before ``since`` is of a topic of the same name that was deleted.
    """

    letters: int
    since: int = 0

    def encode(self) -> bytes:
        """Return the stored form."""
        return _DEAD.pack(*self)


def load_dead(kv: OrderedKV) -> dict[tuple[int, int], Dead]:
    """Read the counts of dead letters by (group id, topic id); the first version kept no ``since``."""
    entries = kv.scan_all(META, DEAD, after_prefix(DEAD))
    return {QUEUE_PREFIX.unpack_from(key, 1): Dead(*_DEAD.unpack(value.ljust(_DEAD.size, b"\0"))) for key, value in entries}
