"""A system that is measured beside rmqstore: how it is found, started and ended, what its calls survive, and the phases.

The phases are the same for every system: schedule all timers, some of them one a call; cancel a tenth, and some one a call; hand over the
others; pop and ack some by 32 with an ack each, half by 32 and half by 1024. Every body that was not cancelled must come back exactly once,
or there is no figure.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self

import msgspec

from rmqstore_benchmarks.grid.load import Load
from rmqstore_benchmarks.grid.named import HALF_HOUR_MS, HOUR_MS, LONGEST_DELAY_MS, START_MS, NamedWorkload, always, lognormal, uniform

Figures = dict[str, float]
"""Messages a second by phase."""

BODY_BYTES: Final = 256
BATCH_GAP_MS: Final = 10
"""How far the simulated clock moves between two batches."""

DISTRIBUTIONS: Final = {
    "constant": NamedWorkload(name="constant", about="Always half an hour.", delays_ms=always(HALF_HOUR_MS)),
    "lognormal": NamedWorkload(name="lognormal", about="A median of half an hour, sigma 1.", delays_ms=lognormal(HALF_HOUR_MS, 1.0)),
    "uniform": NamedWorkload(name="uniform", about="Within one hour.", delays_ms=uniform(HOUR_MS)),
}
LEASE_MS: Final = HOUR_MS
HAND_OVER_BATCH: Final = 1000
"""How many timers a system that is told to hand over moves in one transaction."""

CANCELLED_SHARE: Final = 0.1
SMALL_POP, LARGE_POP = 32, 1024
SINGLES: Final = 1000
"""So many calls are about one message, of each kind; fewer when that were more than a tenth of all."""


class Durability(StrEnum):
    """What an acknowledged call survives."""

    POWER_LOSS = "power-loss"
    PROCESS_CRASH = "process-crash"


class PeerError(Exception):
    """A system lost a message, gave one twice, or did not run; it gets no figure."""


class Timer(NamedTuple):
    """One timer as most clients take it: a number that the client gives, when it is due by the simulated clock, and the body."""

    number: int
    due_ms: int
    body: bytes


class Batch(NamedTuple):
    """Timers that are sent at one time of the simulated clock, as columns and one by one."""

    now_ms: int
    columns: Any
    timers: list[Timer]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement: a system, what its calls survive, and the timers."""

    system: str
    durability: Durability
    directory: str
    distribution: str = "constant"
    timers: int = 100_000
    batch: int = 1000
    seed: int = 1

    @property
    def singles(self) -> int:
        """How many calls of a kind are about one message."""
        return min(SINGLES, self.timers // 10)

    def batches(self) -> list[Batch]:
        """Return the timers: always the same; those that are sent one a call are behind the others."""
        load = Load(DISTRIBUTIONS[self.distribution], BODY_BYTES, self.seed)
        batches = []
        for number, count in enumerate([self.batch] * (self.timers // self.batch) + [1] * self.singles):
            now_ms = START_MS + number * BATCH_GAP_MS
            made = load.fresh(now_ms, count)
            rows = zip(made.ids.tolist(), made.due_ms.tolist(), made.columns["body"].to_pylist(), strict=True)
            batches.append(Batch(now_ms, made.columns, [Timer(*row) for row in rows]))
        return batches


class Taken(NamedTuple):
    """What a pop gave: the bodies, and what acks each."""

    bodies: list[bytes]
    leases: Sequence[Any]


class Peer(ABC):
    """A system in an empty directory.

    Every call returns when what it did survives what ``durability`` says. One that lacks a call, or has a clock of its own, has its own
    :meth:`measure`.

    Attributes:
        setting: the last word of what is set for its durability.
        now_ms: the simulated time when everything is handed over, and popped.
        name: for the command line and the table.
        settings: how each durability that it can give is set; a durability that is not there is not measured.
        how_to_get: one line.
        unwritten: phases in which it writes nothing, so that there is nothing to compare.
        distributions: what it is measured with; fewer when they make no difference to it.
    """

    name: ClassVar[str]
    settings: ClassVar[dict[Durability, str]]
    how_to_get: ClassVar[str] = "pip install 'rmqstore-benchmarks[peers]'"
    unwritten: ClassVar[frozenset[str]] = frozenset()
    distributions: ClassVar[tuple[str, ...]] = tuple(DISTRIBUTIONS)

    def __init__(self, directory: Path, durability: Durability) -> None:
        self.directory = directory
        self.durability = durability
        self.setting = self.settings.get(durability, "").rpartition(" ")[2]
        self.now_ms = START_MS

    @classmethod
    @abstractmethod
    def version(cls) -> str | None:
        """Return the version of what is installed, or None when something is missing."""

    @contextmanager
    def started(self) -> Iterator[Self]:
        """Start it for the length of a block."""
        with ExitStack() as stack:
            self.start(stack)
            yield self

    @abstractmethod
    def start(self, stack: ExitStack) -> None:
        """Start it; what must be ended goes on the stack."""

    def prepare(self, batch: Batch) -> Batch:
        """Return a batch as ``schedule`` takes it; not timed."""
        return batch

    def schedule(self, batch: Batch) -> None:
        """Store one batch, as one transaction where there are such."""
        raise NotImplementedError

    def handles(self, batch: Batch) -> list[Any]:
        """Return what cancels each timer of a batch that was scheduled, by default its number; not timed."""
        return [timer.number for timer in batch.timers]

    def cancel(self, handles: list[Any]) -> int:
        """Cancel timers; returns how many were cancelled."""
        raise NotImplementedError

    def drain(self, now_ms: int) -> int:
        """Hand over everything that is due; returns how many."""
        moved = 0
        while found := self.hand_over(now_ms):
            moved += found
        return moved

    def hand_over(self, now_ms: int) -> int:
        """Hand over up to :data:`HAND_OVER_BATCH` of what is due; returns how many."""
        raise NotImplementedError

    def pop(self, count: int) -> Taken:
        """Take up to ``count`` messages under a lease of ``LEASE_MS``; none when none is ready."""
        raise NotImplementedError

    def ack(self, leases: Sequence[Any]) -> None:
        """Delete what was popped."""
        raise NotImplementedError

    def pop_ack(self, count: int) -> list[bytes]:
        """Pop, and ack in one more call; returns the bodies."""
        bodies, leases = self.pop(count)
        if bodies:
            self.ack(leases)
        return bodies

    def pop_ack_each(self, count: int) -> list[bytes]:
        """Pop, and ack one by one."""
        bodies, leases = self.pop(count)
        for lease in leases:
            self.ack([lease])
        return bodies

    def ways_to_pop(self) -> dict[str, Callable[[], list[bytes]]]:
        """Return the phases in which everything is popped, the one of single acks first."""
        return {
            "ack_one": partial(self.pop_ack_each, SMALL_POP),
            "pop_32": partial(self.pop_ack, SMALL_POP),
            "pop_1024": partial(self.pop_ack, LARGE_POP),
        }

    def measure(self, task: Task) -> Figures:
        """Run the phases that it has.

        Raises:
            PeerError: a message was lost or came twice.
        """
        figures, expected = scheduled(self, task)
        self.now_ms = START_MS + task.timers * BATCH_GAP_MS + 2 * LONGEST_DELAY_MS
        return figures | drained(self, expected)


# ---------------------------------------------------------------- the phases


def scheduled(peer: Peer, task: Task) -> tuple[Figures, Counter[bytes]]:
    """Schedule all timers and cancel some; returns the rates and the bodies that are left."""
    batches = [peer.prepare(batch) for batch in task.batches()]
    singles = len(batches) - task.singles
    figures = {
        "schedule": rate(peer.schedule, batches[:singles], task.timers),
        "schedule_one": rate(peer.schedule, batches[singles:], task.singles),
    }
    handles = [handle for batch in batches[:singles] for handle in peer.handles(batch)]
    cancelled = int(task.timers * CANCELLED_SHARE)
    chosen = random.Random(task.seed).sample(range(task.timers), cancelled + task.singles)
    groups = [chosen[first : min(first + task.batch, cancelled)] for first in range(0, cancelled, task.batch)]
    figures["cancel"] = rate(peer.cancel, [[handles[row] for row in group] for group in groups], cancelled, "cancelled")
    figures["cancel_one"] = rate(peer.cancel, [[handles[row]] for row in chosen[cancelled:]], task.singles, "cancelled")
    numbers = {batches[row // task.batch].timers[row % task.batch].number for row in chosen}
    return figures, Counter(timer.body for batch in batches for timer in batch.timers if timer.number not in numbers)


def drained(peer: Peer, expected: Counter[bytes]) -> Figures:
    """Hand over everything in one go, pop and ack it; ``done`` is the rate of a message from where it is due to where it is done."""
    figures = {"drain": rate(peer.drain, [peer.now_ms], expected.total(), "handed over")} | popped(peer, expected)
    return figures | {"done": 1 / (1 / figures["drain"] + 1 / figures["pop_1024"])}


def popped(peer: Peer, expected: Counter[bytes]) -> Figures:
    """Pop and ack everything that is ready, and compare it with what is expected."""
    found: list[bytes] = []
    figures = {}
    total, ways = expected.total(), peer.ways_to_pop()
    singles = min(SINGLES, total // 10)
    for number, (phase, pop_ack) in enumerate(ways.items()):
        upto = singles + number * (total - singles) // (len(ways) - 1)
        before, start_s = len(found), time.perf_counter()
        while len(found) < upto and (got := pop_ack()):
            found += got
        figures[phase] = (len(found) - before) / (time.perf_counter() - start_s)
    compare(found + peer.pop_ack(LARGE_POP), expected)
    return figures


def rate(call: Callable[[Any], Any], values: Iterable[Any], messages: int, what: str = "") -> float:
    """Call with each value; returns messages a second. With ``what`` the calls say how many were so, which must be all."""
    start_s = time.perf_counter()
    counts = [call(value) for value in values]
    spent_s = time.perf_counter() - start_s
    if what:
        expect(sum(counts), messages, what)
    return messages / spent_s


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
