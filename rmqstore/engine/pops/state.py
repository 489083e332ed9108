"""What a pop store keeps in memory: small, loaded at open, and changed only after the write that changes it on disk."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from rmqstore.contract import GroupSettings, TopicInfo
from rmqstore.engine.kv.base import OrderedKV
from rmqstore.engine.pops.fifo import FifoRun, load_fifo
from rmqstore.engine.pops.offsets import (
    Dead,
    Gap,
    GroupQueue,
    Progress,
    Registered,
    Topic,
    count_between,
    load_dead,
    load_gaps,
    load_gone,
    load_group_settings,
    load_groups,
    load_kept,
    load_progress,
    load_registered,
    load_topics,
)
from rmqstore.engine.schema import EXPIRY, LEASE_KEY, LEASES, META, NEXT_ID_KEY, POP_FLOOR_KEY, U64, after_prefix
from rmqstore.message import retry_topic

_NO_PROGRESS = Progress(0)


class Left(NamedTuple):
    """What groups had of a deleted topic and is left (``administration``): its readers in order, with the keys of leases that ran."""

    topic_id: int
    readers: dict[GroupQueue, Collection[bytes]]


class PopState:
    """Topics, groups and progress by name and id; ``turn`` rotates the queue of messages that name none.

    ``running`` holds, for each reader, its check points with running leases, each with an offset below which none of them is: retention
    must not pass the first one that is leased (Q1). It is that one itself once the lease was changed or read in this session.
    ``backing_off`` are those of them that are waits for the next attempt.
    ``groups_of`` holds the ids of the groups that pop a topic, by its id.
    ``gone`` is what is left of deleted topics, by their names.
    ``pop_floor_ms`` is the latest pop time of progress that was deleted: what is made again under its names pops later (P2).
    """

    def __init__(self, kv: OrderedKV) -> None:
        self.topics: dict[str, Topic] = load_topics(kv)
        self._names: dict[int, str] = {}
        self.groups: dict[str, int] = load_groups(kv)
        self.group_settings: dict[str, GroupSettings] = load_group_settings(kv)
        self.all_progress: dict[GroupQueue, Progress] = load_progress(kv)
        self.dead: dict[tuple[int, int], Dead] = load_dead(kv)
        self.registered: dict[tuple[int, int], Registered] = {}
        # Dicts, as one of plain numbers is nothing to Python's garbage collector, which would walk thousands of sets while all calls wait.
        self.groups_of: dict[int, dict[int, None]] = {}
        for place, how in load_registered(kv).items():
            self.register(*place, how)
        self.kept: dict[tuple[int, int], int] = load_kept(kv)
        self.gaps: dict[tuple[int, int], list[Gap]] = load_gaps(kv)
        self.fifo: dict[GroupQueue, FifoRun] = load_fifo(kv)
        self.running: dict[GroupQueue, dict[bytes, int]] = {}
        self.backing_off: dict[GroupQueue, set[bytes]] = {}
        for key, wait in kv.scan_all(LEASES, EXPIRY, after_prefix(EXPIRY)):
            lease_key = key[1 + U64.size :]
            self.note_running(lease_key, LEASE_KEY.unpack(lease_key)[3], waits=bool(wait))
        self.gone: dict[str, Left] = {}
        self.set_aside(load_gone(kv))
        stored = kv.get(META, NEXT_ID_KEY)
        self.next_id = int.from_bytes(stored, "big") if stored else 1
        self.pop_floor_ms = int.from_bytes(kv.get(META, POP_FLOOR_KEY) or b"", "big")
        self.turn = 0

    def note_running(self, lease_key: bytes, first: int | None, *, waits: bool = False) -> None:
        """Note that a check point has running leases from offset ``first`` on, one that is a wait if it ``waits``; None: it has none."""
        reader = GroupQueue(*LEASE_KEY.unpack(lease_key)[:3])
        if first is not None and waits:
            self.backing_off.setdefault(reader, set()).add(lease_key)
        elif first is None and (waiting := self.backing_off.get(reader)) is not None:
            waiting.discard(lease_key)
            if not waiting:
                del self.backing_off[reader]
        if first is not None:
            self.running.setdefault(reader, {})[lease_key] = first
        elif (firsts := self.running.get(reader)) is not None:
            firsts.pop(lease_key, None)
            if not firsts:
                del self.running[reader]

    def register(self, group_id: int, topic_id: int, how: Registered) -> None:
        """Note how a group pops a topic."""
        self.registered[group_id, topic_id] = how
        self.groups_of.setdefault(topic_id, {})[group_id] = None

    def forget_registered(self, places: Iterable[tuple[int, int]]) -> None:
        """Forget that groups pop topics."""
        for group_id, topic_id in places:
            if self.registered.pop((group_id, topic_id), None) is not None:
                self.groups_of[topic_id].pop(group_id, None)
                if not self.groups_of[topic_id]:
                    del self.groups_of[topic_id]

    def forget_settings(self, group: str) -> None:
        """Forget the settings of a group."""
        self.group_settings.pop(group, None)

    # ------------------------------------------------------------ deleted topics

    def set_aside(self, names: Mapping[int, str]) -> None:
        """Take what groups have of topics that are deleted, given by id, out of every table; it is in :attr:`gone` from then on."""
        if not names:
            return
        registered = [place for place in self.registered if place[1] in names]
        dead = [place for place in self.dead if place[1] in names]
        readers = {GroupQueue(*place, 0) for place in registered + dead}
        for table in (self.all_progress, self.fifo, self.running):
            readers.update(reader for reader in table if reader.topic_id in names)
        found = {topic_id: Left(topic_id, {}) for topic_id in names}
        for reader in sorted(readers):
            found[reader.topic_id].readers[reader] = self.running.pop(reader, ())
            self.all_progress.pop(reader, None)
            self.fifo.pop(reader, None)
            self.backing_off.pop(reader, None)
        self.forget_registered(registered)
        for place in dead:
            del self.dead[place]
        for topic_id, name in names.items():
            self.gone[name] = found[topic_id]
            self._names.pop(topic_id, None)

    def forget_left(self, name: str, readers: Iterable[GroupQueue]) -> None:
        """Forget what groups had of a deleted topic: it is removed, maybe twice in one call."""
        left = self.gone.get(name)
        if left is None:
            return
        for reader in readers:
            left.readers.pop(reader, None)
        if not left.readers:
            del self.gone[name]

    # ------------------------------------------------------------ names

    def topics_of_group(self, topic: str, group: str) -> Iterator[Topic]:
        """Yield the topic and the group's retry topic of it, as far as they exist."""
        for name in (topic, retry_topic(group, topic)):
            if name in self.topics:
                yield self.topics[name]

    def names_by_id(self) -> dict[int, str]:
        """Return topic names by id."""
        return {topic.id: name for name, topic in self.topics.items()}

    def topic_of(self, topic_id: int) -> Topic:
        """Return the topic with an id, which must exist; no id is ever used again."""
        if topic_id not in self._names:
            self._names = self.names_by_id()
        return self.topics[self._names[topic_id]]

    def has_topic(self, topic_id: int) -> bool:
        """Say whether a topic has this id, or it was deleted."""
        return topic_id in self._names or any(topic.id == topic_id for topic in self.topics.values())

    def group_names(self) -> dict[int, str]:
        """Return group names by id."""
        return {group_id: name for name, group_id in self.groups.items()}

    def info(self, topic: Topic) -> TopicInfo:
        """Return what users see of a topic."""
        kept = tuple(self.first_kept(topic.id, queue) for queue in range(topic.queues))
        return TopicInfo(topic.name, topic.queues, kept, topic.next_offsets, topic.group_queues, topic.is_on_demand)

    def is_ordered(self, group_id: int, topic_id: int) -> bool:
        """Say whether the group pops the topic in order."""
        registered = self.registered.get((group_id, topic_id))
        return registered is not None and registered.is_ordered

    # ------------------------------------------------------------ counts

    def expired(self, group_id: int, topic_id: int) -> int:
        """Return how many messages retention took before the group had popped them."""
        registered = self.registered.get((group_id, topic_id))
        return 0 if registered is None else registered.expired

    def first_kept(self, topic_id: int, queue: int) -> int:
        """Return the first offset that retention has left."""
        return self.kept.get((topic_id, queue), 0)

    def between(self, topic_id: int, queue: int, first: int, behind: int) -> int:
        """Return how many messages are at ``first <= offset < behind``, gaps taken off."""
        gaps = self.gaps.get((topic_id, queue))
        return count_between(gaps, first, behind) if gaps else max(behind - first, 0)

    def progress(self, group_id: int | None, topic_id: int, queue: int) -> Progress:
        """Return where a group stands on a queue; at its beginning when it has not popped it."""
        return _NO_PROGRESS if group_id is None else self.all_progress.get(GroupQueue(group_id, topic_id, queue), _NO_PROGRESS)

    def waiting(self, topic: Topic, group_id: int | None, queue: int | None = None) -> int:
        """Return how many messages of a topic (of one queue) the group has not popped yet."""
        count = 0
        for number in range(len(topic.next_offsets)) if queue is None else (queue,):
            start, end = self.kept.get((topic.id, number), 0), topic.next_offsets[number]
            if group_id is not None and (progress := self.all_progress.get(GroupQueue(group_id, topic.id, number))) is not None:
                start = max(progress.next_offset, start)
            if gaps := self.gaps.get((topic.id, number)):
                count += count_between(gaps, start, end)
            elif start < end:
                count += end - start
        return count

    def messages(self, topic: Topic) -> int:
        """Return how many messages a topic holds."""
        return sum(self.between(topic.id, q, self.first_kept(topic.id, q), behind) for q, behind in enumerate(topic.next_offsets))

    def in_flight(self, topic: Topic, group_id: int | None) -> int:
        """Return how many leases of messages of a topic the group has."""
        return sum(self.progress(group_id, topic.id, queue).in_flight for queue in range(topic.queues))

    def backs_off(self, topic: Topic, group_id: int) -> int:
        """Return how many of these are waits for the next attempt."""
        return sum(len(self.backing_off.get(GroupQueue(group_id, topic.id, queue), ())) for queue in range(topic.queues))

    def returned(self, topic: Topic, group_id: int | None, queue: int | None = None) -> int:
        """Return how many messages of a topic (of one queue) wait in their place to be given to the group again (P9)."""
        if group_id is None:
            return 0
        queues = range(topic.queues) if queue is None else (queue,)
        return sum(one.waits for number in queues for one in self.fifo.get(GroupQueue(group_id, topic.id, number), {}).values())
