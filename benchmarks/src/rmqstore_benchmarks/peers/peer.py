"""A system that is measured beside rmqstore: how it is found, started and ended, and what its calls survive."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import msgspec

from rmqstore_benchmarks.workloads import DISTRIBUTIONS, Workload

Figures = dict[str, float]

LEASE_MS = 3_600_000
HAND_OVER_BATCH = 1000
"""How many timers a system that is told to hand over moves in one transaction."""


class Durability(StrEnum):
    """What an acknowledged call survives."""

    POWER_LOSS = "power-loss"
    PROCESS_CRASH = "process-crash"


class PeerError(Exception):
    """A system lost a message, gave one twice, or did not run; it gets no figure."""


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
    def work(self) -> Workload:
        """Return the timers."""
        return Workload(self.distribution, self.batch, self.seed)

    @property
    def batches(self) -> int:
        """Return how many batches the timers are."""
        return self.timers // self.batch


class Timer(NamedTuple):
    """One timer as most clients take it: a number that the client gives, when it is due by the simulated clock, and the body."""

    number: int
    due_ms: int
    body: bytes


def rows(work: Workload, number: int) -> list[Timer]:
    """Return batch ``number`` row by row."""
    batch = work.arrow(number)
    numbers = range(number * work.batch, (number + 1) * work.batch)
    return [Timer(*row) for row in zip(numbers, batch["deliver_at_ms"].to_pylist(), batch["body"].to_pylist(), strict=True)]


class Peer(ABC):
    """A system in an empty directory; a context manager that starts and ends it.

    Every call returns when what it did survives what ``durability`` says.

    Attributes:
        name: for the command line and the table.
        settings: how each durability that it can give is set; a durability that is not there is not measured.
        how_to_get: one line.
        unwritten: phases in which it writes nothing, so that there is nothing to compare.
        distributions: what it is measured with; fewer when they make no difference to it.
    """

    name: ClassVar[str]
    settings: ClassVar[dict[Durability, str]]
    how_to_get: ClassVar[str]
    unwritten: ClassVar[frozenset[str]] = frozenset()
    distributions: ClassVar[tuple[str, ...]] = tuple(DISTRIBUTIONS)

    def __init__(self, directory: Path, durability: Durability) -> None:
        self.directory = directory
        self.durability = durability
        self._closing = contextlib.ExitStack()

    @classmethod
    @abstractmethod
    def version(cls) -> str | None:
        """Return the version of what is installed, or None when something is missing."""

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.start(stack)
            self._closing = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @abstractmethod
    def start(self, stack: contextlib.ExitStack) -> None:
        """Start it; what must be ended goes on the stack."""

    @abstractmethod
    def measure(self, task: Task) -> Figures:
        """Run the phases that it has; returns messages a second by phase.

        Raises:
            PeerError: a message was lost or came twice.
        """
