"""A system that is measured beside rmqstore: how it is found, started and ended, what its calls survive, and the phases.

The phases are the same for every system: schedule all timers, cancel a tenth, hand over the others, pop and ack half of them by 32 and the
other half by 1024. Every body that was not cancelled must come back exactly once, or there is no figure.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
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

    def batches(self) -> list[Batch]:
        """Return the timers: always the same."""
        load = Load(DISTRIBUTIONS[self.distribution], BODY_BYTES, self.seed)
        batches = []
        for number in range(self.timers // self.batch):
            now_ms = START_MS + number * BATCH_GAP_MS
            made = load.fresh(now_ms, self.batch)
            rows = zip(made.ids.tolist(), made.due_ms.tolist(), made.columns["body"].to_pylist(), strict=True)
            batches.append(Batch(now_ms, made.columns, [Timer(*row) for row in rows]))
        return batches


class Peer(ABC):
    """A system in an empty directory.

    Every call returns when what it did survives what ``durability`` says.

    Attributes:
        setting: the last word of what is set for its durability.
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

    @abstractmethod
    def measure(self, task: Task) -> Figures:
        """Run the phases that it has.

        Raises:
            PeerError: a message was lost or came twice.
        """


class TimerPeer(Peer):
    """A system with timers that takes the simulated time as an argument.

    Attributes:
        now_ms: that time when everything is handed over, and popped.
    """

    now_ms = START_MS

    def prepare(self, batch: Batch) -> Batch:
        """Return a batch as ``schedule`` takes it; not timed."""
        return batch

    @abstractmethod
    def schedule(self, batch: Batch) -> None:
        """Store one batch, as one transaction where there are such."""

    def handles(self, batch: Batch) -> list[Any]:
        """Return what cancels each timer of a batch that was scheduled, by default its number; not timed."""
        return [timer.number for timer in batch.timers]

    @abstractmethod
    def cancel(self, handles: list[Any]) -> int:
        """Cancel timers; returns how many were cancelled."""

    def drain(self, now_ms: int) -> int:
        """Hand over everything that is due; returns how many."""
        moved = 0
        while found := self.hand_over(now_ms):
            moved += found
        return moved

    def hand_over(self, now_ms: int) -> int:
        """Hand over up to :data:`HAND_OVER_BATCH` of what is due; returns how many."""
        raise NotImplementedError

    @abstractmethod
    def pop_ack(self, count: int) -> list[bytes]:
        """Take up to ``count`` messages under a lease of ``LEASE_MS``, then delete them; returns their bodies, none when none is ready."""

    def measure(self, task: Task) -> Figures:
        figures, expected = scheduled(self, task)
        self.now_ms = START_MS + task.timers * BATCH_GAP_MS + 2 * LONGEST_DELAY_MS
        return figures | drained(lambda: self.drain(self.now_ms), expected.total()) | popped(self.pop_ack, expected)


# ---------------------------------------------------------------- the phases


def scheduled(peer: TimerPeer, task: Task) -> tuple[Figures, Counter[bytes]]:
    """Schedule all timers and cancel some; returns the rates and the bodies that are left."""
    batches = [peer.prepare(batch) for batch in task.batches()]
    figures = {"schedule": task.timers / timed(peer.schedule, batches)}
    chosen = random.Random(task.seed).sample(range(task.timers), int(task.timers * CANCELLED_SHARE))
    by_batch = [peer.handles(batch) for batch in batches]
    picked = [by_batch[row // task.batch][row % task.batch] for row in chosen]
    counts: list[int] = []
    groups = [picked[first : first + task.batch] for first in range(0, len(picked), task.batch)]
    figures["cancel"] = len(chosen) / timed(lambda group: counts.append(peer.cancel(group)), groups)
    expect(sum(counts), len(chosen), "cancelled")
    gone = set(chosen)
    return figures, Counter(timer.body for batch in batches for timer in batch.timers if timer.number not in gone)


def drained(drain: Callable[[], int], expected: int) -> Figures:
    """Hand over everything in one go, which must be as many as expected."""
    start_s = time.perf_counter()
    moved = drain()
    spent_s = time.perf_counter() - start_s
    expect(moved, expected, "handed over")
    return {"drain": expected / spent_s}


def popped(pop_ack: Callable[[int], list[bytes]], expected: Counter[bytes]) -> Figures:
    """Pop and ack everything that is ready, and compare it with what is expected."""
    found: list[bytes] = []
    figures = {}
    total = expected.total()
    for size, upto in ((SMALL_POP, total // 2), (LARGE_POP, total)):
        before, start_s = len(found), time.perf_counter()
        while len(found) < upto and (got := pop_ack(size)):
            found += got
        figures[f"pop_{size}"] = (len(found) - before) / (time.perf_counter() - start_s)
    compare(found + pop_ack(LARGE_POP), expected)
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
