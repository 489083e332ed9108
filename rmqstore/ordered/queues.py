"""The queues of a pop store: topics with their offsets, and the log of records behind each queue."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from rmqstore.ordered.kv import OrderedKV
from rmqstore.ordered.layout import META, QUEUE, QUEUE_PREFIX, QUEUES, TOPIC, after_prefix
from rmqstore.ordered.runs import DamagedRunError, Run, count_of, decode_run

_HEAD = struct.Struct(">I")
_OFFSET = struct.Struct(">Q")
_CACHED_QUEUES = 64
_CACHED_RUNS = 4


class Topic(msgspec.Struct, frozen=True):
    """A topic as it is kept: ``next_offsets[q]`` is where the next message of queue ``q`` goes."""

    id: int
    name: str
    next_offsets: tuple[int, ...]

    @property
    def queues(self) -> int:
        """Number of queues."""
        return len(self.next_offsets)

    def entry(self) -> tuple[bytes, bytes]:
        """Return its (key, value) in the space ``meta``."""
        return TOPIC + self.name.encode(), _HEAD.pack(self.id) + b"".join(map(_OFFSET.pack, self.next_offsets))

    def widened(self, queues: int) -> Topic:
        """Return the topic with at least ``queues`` queues."""
        missing = queues - self.queues
        return self if missing <= 0 else Topic(self.id, self.name, self.next_offsets + (0,) * missing)

    def moved(self, queue: int, next_offset: int) -> Topic:
        """Return the topic with one queue's next offset changed."""
        offsets = list(self.next_offsets)
        offsets[queue] = next_offset
        return Topic(self.id, self.name, tuple(offsets))


def load_topics(kv: OrderedKV) -> dict[str, Topic]:
    """Read every topic."""
    topics = {}
    for key, value in kv.scan_all(META, TOPIC, after_prefix(TOPIC)):
        offsets = tuple(offset for (offset,) in _OFFSET.iter_unpack(value[_HEAD.size :]))
        topic = Topic(_HEAD.unpack_from(value)[0], key[1:].decode(), offsets)
        topics[topic.name] = topic
    return topics


class DamagedRun(msgspec.Struct, frozen=True):
    """A run that cannot be read: where it is, what was found, and why."""

    key: bytes
    raw: bytes
    reason: str


class QueueLog:
    """Reads the runs of queues; the last runs of a queue are kept, since consumers take a run in several pops."""

    def __init__(self, kv: OrderedKV) -> None:
        self._kv = kv
        self._recent: dict[tuple[int, int], list[tuple[int, Run]]] = {}

    def runs_from(self, topic_id: int, queue: int, offset: int) -> Iterator[tuple[int, Run | DamagedRun]]:
        """Yield (first offset, run) from the run that holds ``offset`` on; a run that is gone leaves a gap."""
        prefix = QUEUE_PREFIX.pack(topic_id, queue)
        start = prefix + _OFFSET.pack(offset)
        cached = self._cached(topic_id, queue, offset)
        if cached is not None:
            yield cached
            start = prefix + _OFFSET.pack(cached[0] + len(cached[1].records))
        else:
            entry = self._kv.floor(QUEUES, start)
            if entry is not None and entry[0][:8] == prefix and offset < _OFFSET.unpack_from(entry[0], 8)[0] + count_of(entry[1]):
                yield self._decoded(topic_id, queue, *entry)
                start = entry[0] + b"\x00"
        stop = prefix + b"\xff" * 9
        page = 16
        while entries := self._kv.scan(QUEUES, start, stop, page):
            for key, value in entries:
                yield self._decoded(topic_id, queue, key, value)
            start = entries[-1][0] + b"\x00"
            page = min(2 * page, 1024)

    def record_at(self, topic_id: int, queue: int, offset: int) -> tuple[bytes, int] | DamagedRun | None:
        """Return (record, store time ms) at an offset; None when nothing lies there."""
        for first, run in self.runs_from(topic_id, queue, offset):
            if isinstance(run, DamagedRun):
                return run if first <= offset else None
            return (run.records[offset - first], run.store_ms) if first <= offset < first + len(run.records) else None
        return None

    def drop(self, topic_id: int, queue: int) -> None:
        """Keep nothing of a queue whose runs were rewritten or removed."""
        self._recent.pop((topic_id, queue), None)

    def _decoded(self, topic_id: int, queue: int, key: bytes, value: bytes) -> tuple[int, Run | DamagedRun]:
        first: int = QUEUE.unpack(key)[2]
        try:
            run = decode_run(value)
        except DamagedRunError as error:
            return first, DamagedRun(key, value, str(error))
        if len(run.records) > 1:
            if len(self._recent) >= _CACHED_QUEUES and (topic_id, queue) not in self._recent:
                self._recent.pop(next(iter(self._recent)))
            runs = self._recent.setdefault((topic_id, queue), [])
            runs.append((first, run))
            del runs[:-_CACHED_RUNS]
        return first, run

    def _cached(self, topic_id: int, queue: int, offset: int) -> tuple[int, Run] | None:
        for first, run in self._recent.get((topic_id, queue), ()):
            if first <= offset < first + len(run.records):
                return first, run
        return None
