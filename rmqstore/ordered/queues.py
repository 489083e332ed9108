"""The topics of a pop store: how many queues each has, and where the next message of each goes."""

from __future__ import annotations

import struct

import msgspec
from msgspec import structs

from rmqstore.ordered.kv import OrderedKV
from rmqstore.ordered.layout import META, TOPIC, after_prefix

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
