"""What a pop store knows of topics, groups and queues: what it is made of, how it is stored, and the memory of it.

The memory, :class:`PopState`, is small, loaded at open, and changed only after the write that changes it on disk.

**FIFO runs**: per (group, topic, queue) the popped messages that are not acked yet, in their order (P9)::

    key    group u32, topic u32, queue u32   (big-endian)
    value  n × (u64 queue offset, i64 first pop ms, u32 deliveries counted, u8 flags)   (little-endian)
           flags: 1 = waits to be given again, 2 = one before it died since it was leased

A message is in the run from its first pop until it is acked, dead-lettered or parked. While its lease runs it does not wait; the lease
itself is an ordinary check point, so receipts, outcomes and expiry are those of any pop. When a lease ends otherwise than by an ack, the
message waits in its place: the next pop of the queue takes the waiting ones first, in order, then new ones. No pop of the queue gives
anything while any lease of the run goes on. RocketMQ (``ConsumerOrderInfoManager``) keeps the same facts in memory and writes them every
10 s, and forgets at the next pop which messages behind the first un-acked one were acked; here they are part of every call's write.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import structs

from rmqstore.contract import GroupSettings, TopicInfo
from rmqstore.engine.kv.base import OrderedKV
from rmqstore.engine.records import NONE, RecordFormat
from rmqstore.engine.schema import (
    DEAD,
    EXPIRY,
    FIFO,
    GAP,
    GONE,
    GROUP,
    GROUP_QUEUE_KEY,
    GROUP_SETTINGS,
    KEPT,
    LEASE_KEY,
    LEASES,
    META,
    NEXT_ID_KEY,
    NOTE,
    POP_FLOOR_KEY,
    PROGRESS,
    QUEUE,
    QUEUE_PREFIX,
    REGISTERED,
    TOPIC,
    U64,
    after_prefix,
)
from rmqstore.message import retry_topic

_K = TypeVar("_K")
_V = TypeVar("_V")

_HEAD = struct.Struct(">IH?")
_OFFSET = struct.Struct(">Q")
_VALUE = struct.Struct(">QQI")
_REGISTERED = struct.Struct(">?QQ")
_GAP = struct.Struct(">Q?")
_DEAD = struct.Struct(">QQ")
_ENTRY = struct.Struct("<QqIB")


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

    def moved(self, queue: int, next_offset: int) -> Topic:
        """Return the topic with one queue's next offset changed."""
        offsets = list(self.next_offsets)
        offsets[queue] = next_offset
        return Topic(self.id, self.name, tuple(offsets), self.group_queues, self.is_on_demand)


class GroupQueue(msgspec.Struct, frozen=True, order=True, gc=False):
    """Names one queue of one topic for one group that reads it, by ids."""

    group_id: int
    topic_id: int
    queue: int

    def key(self) -> bytes:
        """Return the key of its progress, in the space ``meta``."""
        return PROGRESS + GROUP_QUEUE_KEY.pack(self.group_id, self.topic_id, self.queue)

    def fifo_key(self) -> bytes:
        """Return the key of its FIFO run, in the space ``leases``."""
        return FIFO + GROUP_QUEUE_KEY.pack(self.group_id, self.topic_id, self.queue)


class Progress(msgspec.Struct, frozen=True):
    """Where the group stands: ``next_offset`` to pop, the last pop time given (ms), and how many messages are leased."""

    next_offset: int
    last_pop_ms: int = 0
    in_flight: int = 0

    def entry(self, reader: GroupQueue) -> tuple[bytes, bytes]:
        """Return the (key, value) in the space ``meta``."""
        key = PROGRESS + GROUP_QUEUE_KEY.pack(reader.group_id, reader.topic_id, reader.queue)
        return key, _VALUE.pack(self.next_offset, self.last_pop_ms, self.in_flight)


def group_settings_entry(name: str, settings: GroupSettings) -> tuple[bytes, bytes]:
    """Return the (key, value) of a group's settings in the space ``meta``."""
    return GROUP_SETTINGS + name.encode(), msgspec.json.encode(settings)


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


class Dead(NamedTuple):
    """How many messages of a topic are in a group's dead letter queue, and from which offset on.

    What is before ``since`` is of a topic of the same name that was deleted.
    """

    letters: int
    since: int = 0

    def encode(self) -> bytes:
        """Return the stored form."""
        return _DEAD.pack(*self)


# ---------------------------------------------------------------- FIFO runs


class Unacked(NamedTuple):
    """One message of a run.

    Attributes:
        delivered: how often it was before.
        first_pop_ms: when first; -1: with the lease that runs.
        waits: it has no lease.
        is_spared: since it was leased, one before it died.
    """

    delivered: int = 0
    first_pop_ms: int = NONE
    waits: bool = False
    is_spared: bool = False


FifoRun: TypeAlias = dict[int, Unacked]
"""The un-acked messages of a queue by their offset."""


def encode_fifo(run: FifoRun) -> bytes:
    """Return the stored form, by offset."""
    return b"".join(_ENTRY.pack(at, one.first_pop_ms, one.delivered, one.waits | one.is_spared << 1) for at, one in sorted(run.items()))


def decode_fifo(value: bytes) -> FifoRun:
    """Read a stored form."""
    return {at: Unacked(delivered, first_ms, bool(how & 1), bool(how & 2)) for at, first_ms, delivered, how in _ENTRY.iter_unpack(value)}


def waiting_in(run: FifoRun) -> list[int]:
    """Return the offsets that wait to be given again, in order."""
    return sorted(at for at, one in run.items() if one.waits)


def as_delivered(record: bytes, one: Unacked | None, record_format: RecordFormat) -> bytes:
    """Return the record with the deliveries that the run counted; queue logs are never rewritten."""
    if one is None or (not one.delivered and one.first_pop_ms < 0):
        return record
    first_pop_ms = record_format.first_pop_of(record)
    return record_format.with_delivery(
        record, record_format.attempt_of(record) + one.delivered, one.first_pop_ms if first_pop_ms < 0 else first_pop_ms
    )


# ---------------------------------------------------------------- reading the tables


def _table(kv: OrderedKV, table: bytes, key_of: Callable[[bytes], _K], value_of: Callable[[bytes], _V], space: int = META) -> dict[_K, _V]:
    """Read a table: what its keys name, and what it holds of that."""
    return {key_of(key[1:]): value_of(value) for key, value in kv.scan_all(space, table, after_prefix(table))}


def _reader_of(key: bytes) -> GroupQueue:
    return GroupQueue(*GROUP_QUEUE_KEY.unpack(key))


def _number_of(value: bytes) -> int:
    return int.from_bytes(value, "big")


def load_topics(kv: OrderedKV) -> dict[str, Topic]:
    """Read every topic."""
    topics = {}
    for name, value in _table(kv, TOPIC, bytes.decode, bytes).items():
        topic_id, group_queues, is_on_demand = _HEAD.unpack_from(value)
        offsets = tuple(offset for (offset,) in _OFFSET.iter_unpack(value[_HEAD.size :]))
        topics[name] = Topic(topic_id, name, offsets, group_queues, is_on_demand)
    return topics


def load_groups(kv: OrderedKV) -> dict[str, int]:
    """Read every group: name → id."""
    return _table(kv, GROUP, bytes.decode, _number_of)


def load_progress(kv: OrderedKV) -> dict[GroupQueue, Progress]:
    """Read where every group stands."""
    return _table(kv, PROGRESS, _reader_of, lambda value: Progress(*_VALUE.unpack(value)))


def load_kept(kv: OrderedKV) -> dict[tuple[int, int], int]:
    """Read the first kept offset of every queue that lost messages to retention: by (topic id, queue)."""
    return _table(kv, KEPT, QUEUE_PREFIX.unpack, _number_of)


def load_fifo(kv: OrderedKV) -> dict[GroupQueue, FifoRun]:
    """Read every FIFO run."""
    return _table(kv, FIFO, _reader_of, decode_fifo, LEASES)


def _load_gaps(kv: OrderedKV) -> dict[tuple[int, int], list[Gap]]:
    """Read the gaps in queues by (topic id, queue), each queue's by their first offset."""
    gaps: dict[tuple[int, int], list[Gap]] = {}
    for (topic_id, queue, first), (behind, is_removal) in _table(kv, GAP, QUEUE.unpack, _GAP.unpack).items():
        gaps.setdefault((topic_id, queue), []).append(Gap(first, behind, is_removal))
    return gaps


# ---------------------------------------------------------------- the memory


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

    Args:
        before: the memory of the same session up to now; no receipt is given again (P2), though what it knew of may be gone.
    """

    def __init__(self, kv: OrderedKV, before: PopState | None = None) -> None:
        self.topics: dict[str, Topic] = load_topics(kv)
        self._names: dict[int, str] = {}
        self.groups: dict[str, int] = load_groups(kv)
        self.group_settings: dict[str, GroupSettings] = _table(
            kv, GROUP_SETTINGS, bytes.decode, lambda value: msgspec.json.decode(value, type=GroupSettings)
        )
        self.notes: dict[str, bytes] = _table(kv, NOTE, bytes.decode, bytes)
        self.all_progress: dict[GroupQueue, Progress] = load_progress(kv)
        self.dead: dict[tuple[int, int], Dead] = _table(kv, DEAD, QUEUE_PREFIX.unpack, lambda value: Dead(*_DEAD.unpack(value)))
        registered: dict[tuple[int, int], Registered] = _table(
            kv, REGISTERED, QUEUE_PREFIX.unpack, lambda value: Registered(*_REGISTERED.unpack(value))
        )
        self.registered: dict[tuple[int, int], Registered] = {}
        # Dicts, as one of plain numbers is nothing to Python's garbage collector, which would walk thousands of sets while all calls wait.
        self.groups_of: dict[int, dict[int, None]] = {}
        for place, how in registered.items():
            self.register(*place, how)
        self.kept: dict[tuple[int, int], int] = load_kept(kv)
        self.gaps: dict[tuple[int, int], list[Gap]] = _load_gaps(kv)
        self.fifo: dict[GroupQueue, FifoRun] = load_fifo(kv)
        self.running: dict[GroupQueue, dict[bytes, int]] = {}
        self.backing_off: dict[GroupQueue, dict[bytes, int]] = {}
        for key, wait in kv.scan_all(LEASES, EXPIRY, after_prefix(EXPIRY)):
            lease_key = key[1 + U64.size :]
            self.note_running(lease_key, LEASE_KEY.unpack(lease_key)[3], waits=bool(wait))
        self.gone: dict[str, Left] = {}
        # The names of deleted topics, of which something is left (``administration``), by the ids that they had.
        self.set_aside({topic_id: name for name, topic_id in _table(kv, GONE, bytes.decode, _number_of).items()})
        self.next_id = int.from_bytes(kv.get(META, NEXT_ID_KEY) or b"\1", "big")
        self.pop_floor_ms = int.from_bytes(kv.get(META, POP_FLOOR_KEY) or b"", "big")
        if before is not None:
            self._pop_after(before)
        self.turn = 0

    def _pop_after(self, before: PopState) -> None:
        self.pop_floor_ms = max(self.pop_floor_ms, before.pop_floor_ms)
        for reader, progress in before.all_progress.items():
            known = self.all_progress.get(reader)
            if known is None:
                self.pop_floor_ms = max(self.pop_floor_ms, progress.last_pop_ms)
            elif known.last_pop_ms < progress.last_pop_ms:
                self.all_progress[reader] = structs.replace(known, last_pop_ms=progress.last_pop_ms)

    def note_running(self, lease_key: bytes, first: int | None, *, waits: bool = False) -> None:
        """Note that a check point has running leases from offset ``first`` on, one that is a wait if it ``waits``; None: it has none."""
        reader = GroupQueue(*LEASE_KEY.unpack(lease_key)[:3])
        for table in (self.running, self.backing_off) if waits or first is None else (self.running,):
            if first is not None:
                table.setdefault(reader, {})[lease_key] = first
            elif (firsts := table.get(reader)) is not None:
                firsts.pop(lease_key, None)
                if not firsts:
                    del table[reader]

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

    def take_notes(self, notes: Mapping[str, bytes | None]) -> None:
        """Keep notes, and let go of others."""
        self.notes = {name: value for name, value in {**self.notes, **notes}.items() if value is not None}

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
