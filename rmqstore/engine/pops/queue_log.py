"""``QueueLog``: the log of messages behind each queue, as the pop side reads and changes it.

A queue is named by its topic and its number; a log goes by the id or by the name of the topic, which belong together as long as it exists.
What a call changes goes into its ``WriteBatch``, and is seen by reads once that is written. Reads give *runs*: consecutive messages with
one store time. Offsets that hold nothing are left out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from rmqstore.batch import MessageBatch
from rmqstore.engine.kv.base import WriteBatch
from rmqstore.engine.pops.state import Topic
from rmqstore.engine.records import RecordFormat


class Run(msgspec.Struct, frozen=True):
    """Messages of one queue: ``records[i]`` is at the offset ``first + i``."""

    first: int
    store_ms: int
    records: list[bytes]


class DamagedRun(msgspec.Struct, frozen=True):
    """A run that cannot be read: where it begins, what was found, and why."""

    first: int
    raw: bytes
    reason: str


class PlacedRun(NamedTuple):
    """A run and the queue that it belongs to."""

    topic: Topic
    queue: int
    run: Run


class Aged(NamedTuple):
    """How far the old messages at the head of a queue reach.

    Attributes:
        behind: the offset behind them.
        store_ms: when what is there was stored; None when that was not looked at.
        damaged: what is among them and cannot be read.
    """

    behind: int
    store_ms: int | None
    damaged: list[DamagedRun]


class QueueLog(ABC):
    """The queues of every topic; called by one thread at a time.

    Attributes:
        format: how records hold messages.
    """

    format: RecordFormat

    # ------------------------------------------------------------ reading

    @abstractmethod
    def runs_from(self, topic: Topic, queue: int, offset: int) -> Iterator[Run | DamagedRun]:
        """Yield the runs from the one that holds ``offset`` on, or may hold it: how far a damaged one goes is not known."""

    def record_at(self, topic: Topic, queue: int, offset: int) -> tuple[bytes, int] | DamagedRun | None:
        """Return (record, store time ms) at an offset; None when nothing is there.

        A damaged run that begins before it is returned for an offset of a gap as well, if nothing that can be read lies between.
        """
        for run in self.runs_from(topic, queue, offset):
            if isinstance(run, DamagedRun):
                return run if run.first <= offset else None
            return (run.records[offset - run.first], run.store_ms) if run.first <= offset < run.first + len(run.records) else None
        return None

    @abstractmethod
    def aged(self, topic: Topic, queue: int, offset: int, before_ms: int, room_bytes: int) -> Aged:
        """Look from the run that holds ``offset`` on for the first one that was not stored before ``before_ms``.

        A damaged run has the age of what is behind it. Ends after ``room_bytes`` of old runs, or with the queue.
        """

    @abstractmethod
    def stored(self, topics: Iterable[Topic], after: bytes | None, limit: int) -> Iterator[tuple[bytes, PlacedRun]]:
        """Yield the runs of all queues in an order that stays, until they hold ``limit`` records or some MiB.

        Each comes with what ``after`` goes on behind.

        Raises:
            CorruptStoreError: a run is damaged, or belongs to none of ``topics``, which are all there are.
        """

    # ------------------------------------------------------------ adding

    def new_batch(self, consumes_at_ms: int | None) -> WriteBatch:
        """Return the batch of a call; with the time of one that only gives leases, or acks them: a pop buffer need not write it at once."""
        return WriteBatch()

    def encode(self, batch: MessageBatch) -> Sequence[bytes]:
        """Return the records of a batch."""
        return self.format.encode_batch(batch)

    def routed(self, records: Sequence[bytes]) -> Iterable[tuple[bytes, int, Sequence[bytes]]]:
        """Group records, in their order, by the topic and the queue that they name; queue -1 is none."""
        route_of = self.format.route_of
        if len(records) == 1:
            return [(*route_of(records[0]), records)]
        routes: dict[tuple[bytes, int], list[bytes]] = {}
        for record in records:
            routes.setdefault(route_of(record), []).append(record)
        return [(topic, queue, group) for (topic, queue), group in routes.items()]

    @abstractmethod
    def append(self, write: WriteBatch, topic: Topic, queue: int, offset: int, records: Sequence[bytes], now_ms: int) -> int:
        """Add the messages of one call at ``offset``, the end of the queue as the call sees it; returns how many bytes they take."""

    @abstractmethod
    def place(self, write: WriteBatch, runs: Iterable[PlacedRun]) -> None:
        """Add runs where they say, in any order; they may leave gaps."""

    # ------------------------------------------------------------ removing

    @abstractmethod
    def remove(
        self, write: WriteBatch, topic: Topic, queue: int, offsets: Sequence[int], is_wanted: Callable[[int, bytes], bool]
    ) -> list[int]:
        """Remove the readable messages at the rising ``offsets`` whose offset and record ``is_wanted``; returns where they were."""

    @abstractmethod
    def take_out(self, write: WriteBatch, topic: Topic, queue: int, damaged: DamagedRun) -> int:
        """Remove a damaged run; returns the offset behind it: where the next run begins, else ``topic.next_offsets[queue]``."""

    @abstractmethod
    def cut(self, write: WriteBatch, topic: Topic, queue: int, first: int, target: int) -> None:
        """Remove the runs that are below ``target`` as a whole; all below ``first`` was removed before."""

    @abstractmethod
    def was_cut(self, topic: Topic, queue: int, target: int) -> None:
        """Note, once the call is written, that a queue begins at ``target`` now."""

    @abstractmethod
    def delete(self, write: WriteBatch, topic: Topic) -> None:
        """Remove all queues of a topic."""
