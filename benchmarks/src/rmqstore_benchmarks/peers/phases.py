"""The phases, which are the same for every system: schedule all timers, cancel a tenth, hand over the others, pop and ack half of them by
32 and the other half by 1024. Every body that was not cancelled must come back exactly once, or there is no figure.
"""

from __future__ import annotations

import random
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from rmqstore_benchmarks.peers.peer import Figures, Peer, PeerError, Task, rows
from rmqstore_benchmarks.workloads import LONGEST_DELAY_MS, Workload

CANCELLED_SHARE: Final = 0.1
SMALL_POP, LARGE_POP = 32, 1024


class TimerPeer(Peer):
    """A system with timers that takes the simulated time as an argument."""

    def prepare(self, work: Workload, number: int) -> Any:
        """Return what ``schedule`` takes for batch ``number``; not timed."""
        return rows(work, number)

    @abstractmethod
    def schedule(self, batch: Any) -> None:
        """Store one batch, as one transaction where there are such."""

    @abstractmethod
    def handles(self, batch: Any) -> list[Any]:
        """Return what cancels each timer of a batch that was scheduled; not timed."""

    @abstractmethod
    def cancel(self, handles: list[Any]) -> int:
        """Cancel timers; returns how many were cancelled."""

    @abstractmethod
    def drain(self, now_ms: int) -> int:
        """Hand over everything that is due; returns how many."""

    @abstractmethod
    def pop_ack(self, count: int) -> list[bytes]:
        """Take up to ``count`` messages under a lease of ``LEASE_MS``, then delete them; returns their bodies, none when none is ready."""

    def measure(self, task: Task) -> Figures:
        figures, expected = scheduled(self, task)
        now_ms = task.work.now_ms(task.batches) + 2 * LONGEST_DELAY_MS
        moved: list[int] = []
        figures["drain"] = expected.total() / timed(lambda at_ms: moved.append(self.drain(at_ms)), [now_ms])
        expect(moved[0], expected.total(), "handed over")
        return figures | popped(self.pop_ack, expected)


def scheduled(peer: TimerPeer, task: Task) -> tuple[Figures, Counter[bytes]]:
    """Schedule all timers and cancel some; returns the rates and the bodies that are left."""
    work = task.work
    batches = [peer.prepare(work, number) for number in range(task.batches)]
    figures = {"schedule": task.timers / timed(peer.schedule, batches)}
    chosen = random.Random(task.seed).sample(range(task.timers), int(task.timers * CANCELLED_SHARE))
    by_batch = [peer.handles(batch) for batch in batches]
    picked = [by_batch[row // task.batch][row % task.batch] for row in chosen]
    groups = [picked[first : first + task.batch] for first in range(0, len(picked), task.batch)]
    counts: list[int] = []
    spent_s = timed(lambda group: counts.append(peer.cancel(group)), groups)
    expect(sum(counts), len(chosen), "cancelled")
    figures["cancel"] = len(chosen) / spent_s
    gone = set(chosen)
    bodies = (timer.body for number in range(task.batches) for timer in rows(work, number) if timer.number not in gone)
    return figures, Counter(bodies)


def popped(pop_ack: Callable[[int], list[bytes]], expected: Counter[bytes]) -> Figures:
    """Pop and ack everything that is ready, and compare it with what is expected."""
    found: list[bytes] = []
    figures = {}
    total = expected.total()
    for size, upto in ((SMALL_POP, total // 2), (LARGE_POP, total)):
        before, start_s = len(found), time.perf_counter()
        while len(found) < upto:
            got = pop_ack(size)
            if not got:
                break
            found += got
        figures[f"pop_{size}"] = (len(found) - before) / (time.perf_counter() - start_s)
    found += pop_ack(LARGE_POP)
    compare(found, expected)
    return figures


def timed(call: Callable[[Any], object], values: Iterable[Any]) -> float:
    """Call with each value; returns the seconds of all."""
    start_s = time.perf_counter()
    for value in values:
        call(value)
    return time.perf_counter() - start_s


def expect(found: int, expected: int, what: str) -> None:
    """Refuse a count that is not as it must be."""
    if found != expected:
        raise PeerError(f"{expected:,} timers should be {what}, {found:,} are")


def compare(found: list[bytes], expected: Counter[bytes]) -> None:
    """Refuse a run in which a message was lost, changed, invented or came twice."""
    counts = Counter(found)
    lost, more = (expected - counts).total(), (counts - expected).total()
    if lost or more:
        raise PeerError(f"{lost:,} of {expected.total():,} messages did not come, {more:,} came twice or were never sent")
