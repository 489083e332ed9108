"""What a pop store keeps in memory: small, loaded at open, and changed only after the write that changes it on disk."""

from __future__ import annotations

from collections.abc import Iterator

from rmqstore.message import RETRY_PREFIX, retry_topic
from rmqstore.ordered.kv import OrderedKV
from rmqstore.ordered.layout import META, NEXT_ID_KEY
from rmqstore.ordered.queues import Topic, load_topics
from rmqstore.ordered.standings import Seat, Standing, load_dead, load_gaps, load_groups, load_registered, load_standings


class PopState:
    """Topics, groups and standings by name and id; ``turn`` rotates the queue of messages that name none."""

    def __init__(self, kv: OrderedKV) -> None:
        self.topics: dict[str, Topic] = load_topics(kv)
        self.groups: dict[str, int] = load_groups(kv)
        self.standings: dict[Seat, Standing] = load_standings(kv)
        self.dead: dict[tuple[int, int], int] = load_dead(kv)
        self.registered: set[tuple[int, int]] = load_registered(kv)
        self.gaps: dict[tuple[int, int], list[tuple[int, int]]] = load_gaps(kv)
        stored = kv.get(META, NEXT_ID_KEY)
        self.next_id = int.from_bytes(stored, "big") if stored else 1
        self.turn = 0

    def topics_of_group(self, topic: str, group: str) -> Iterator[Topic]:
        """Yield the topic and the group's retry topic of it, as far as they exist."""
        for name in (topic, retry_topic(group, topic)):
            if name in self.topics:
                yield self.topics[name]

    def names_by_id(self) -> dict[int, str]:
        """Return topic names by id."""
        return {topic.id: name for name, topic in self.topics.items()}

    def group_names(self) -> dict[int, str]:
        """Return group names by id."""
        return {group_id: name for name, group_id in self.groups.items()}

    def waiting(self, topic: Topic, group_id: int | None, queue: int | None = None) -> int:
        """Return how many messages of a topic (of one queue) the group has not popped yet."""
        queues = range(topic.queues) if queue is None else (queue,)
        count = 0
        for number in queues:
            standing = None if group_id is None else self.standings.get(Seat(group_id, topic.id, number))
            start = standing.next_offset if standing is not None else 0
            count += topic.next_offsets[number] - start
            count -= sum(max(behind - max(first, start), 0) for first, behind in self.gaps.get((topic.id, number), ()))
        return count

    def in_flight(self, topic: Topic, group_id: int) -> int:
        """Return how many messages of a topic the group holds."""
        seats = (Seat(group_id, topic.id, queue) for queue in range(topic.queues))
        return sum(standing.in_flight for seat in seats if (standing := self.standings.get(seat)) is not None)


def is_retry_topic(name: str) -> bool:
    """Say whether a topic is a retry topic of some group."""
    return name.startswith(RETRY_PREFIX)
