"""Q1: a queue whose head goes, run by run and within runs, whatever its log went through before."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from rmqstore.contract import EngineOptions
from rmqstore.engine.kv.base import WriteBatch
from rmqstore.engine.pops.kv_queue_log import RunQueueLog
from rmqstore.engine.pops.queue_log import Run
from rmqstore.engine.pops.state import Topic
from rmqstore.engine.schema import QUEUE, QUEUES, SPACES
from rmqstore.engine.shared import Shared
from rmqstore_memory.kv import MemoryKV

ENGINE = EngineOptions(store_tag=7, broker="b")


class Queue:
    """One queue and its log, which goes on whatever becomes of what was written."""

    def __init__(self) -> None:
        self.kv = MemoryKV("cutting", len(SPACES))
        self.log = RunQueueLog(Shared(self.kv, ENGINE))
        self.topic = Topic(1, "t", (0,))

    def append(self, *counts: int) -> None:
        """Append so many messages in each of some calls."""
        for count in counts:
            end, write = self.topic.next_offsets[0], WriteBatch()
            self.log.append(write, self.topic, 0, end, [b"x"] * count, 1)
            self.kv.write(write)
            self.topic = self.topic.moved(0, end + count)

    def cut(self, first: int, target: int) -> None:
        """Let the queue begin at ``target`` in place of ``first``."""
        write = WriteBatch()
        self.log.cut(write, self.topic, 0, first, target)
        self.kv.write(write)
        self.log.was_cut(self.topic, 0, target)

    def take_back(self) -> None:
        """Lose all that was written, as a full disk may."""
        write = WriteBatch()
        write.delete_range(QUEUES, b"", b"\xff")
        self.kv.write(write)
        self.topic = Topic(1, "t", (0,))

    def begins(self) -> list[int]:
        """Return where the runs on the disk begin."""
        return [QUEUE.unpack(key)[2] for key, _ in self.kv.scan_all(QUEUES)]

    def left(self, offset: int) -> list[int]:
        """Return the offsets of the messages from ``offset`` on."""
        found = [run for run in self.log.runs_from(self.topic, 0, offset) if isinstance(run, Run)]
        return [at for run in found for at in range(run.first, run.first + len(run.records)) if at >= offset]


def test_a_run_over_the_place_of_an_earlier_cut_goes_as_a_whole() -> None:
    """A queue was cut between two runs, then within one; all of that was lost, and one call wrote another run over the same offsets."""
    queue = Queue()
    queue.append(2, 2)
    queue.cut(0, 2)
    queue.cut(2, 3)
    queue.take_back()
    queue.append(4, 1)
    queue.cut(0, 2)
    queue.cut(2, 4)
    assert queue.begins() == [4]


@pytest.mark.parametrize("counts", [[1] * 40, [100, 100], [3, 1] * 20])
def test_what_is_cut_leaves_what_is_behind(counts: Sequence[int]) -> None:
    queue = Queue()
    queue.append(*counts)
    end = sum(counts)
    queue.cut(0, end - 5)
    assert queue.left(end - 5) == list(range(end - 5, end))
    queue.cut(end - 5, end)
    assert queue.begins() == []


@given(st.lists(st.integers(1, 4), min_size=1, max_size=30), st.lists(st.integers(0, 120), max_size=6))
def test_no_run_stays_that_is_below_the_beginning(counts: list[int], targets: list[int]) -> None:
    queue = Queue()
    queue.append(*counts)
    first, end = 0, sum(counts)
    for target in sorted({target for target in targets if target <= end} | {end // 2}):
        if target > first:
            queue.cut(first, target)
            first = target
        stops = [sum(counts[: at + 1]) for at in range(len(counts))]
        assert queue.begins() == [stop - count for stop, count in zip(stops, counts, strict=True) if stop > first]
        assert queue.left(first) == list(range(first, end))
