"""The oracle: what a store must show, given which of its calls are in it.

Calls are in the log wholly or not at all, and in their order. So a store that lost power shows what the first n of its calls make, where n
lies between the last call that somebody was told is durable, and the last one that was begun. :class:`Model` plays calls, and what a drain
(``draining``) will see of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

MAX_RETRIES: Final = 1

Popped = list[tuple[str, int]]
"""Names of messages, with the number of the attempt."""


@dataclass
class Seat:
    """Where a group stands on a topic."""

    behind: int = 0
    leases: dict[str, tuple[int, int]] = field(default_factory=dict)
    retry: dict[str, int] = field(default_factory=dict)
    acked: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)


class Model:
    """A store in a few dictionaries.

    Attributes:
        pending: tick of each timer.
        answers: what a cancel says in the end of every put, by name.
        topics: names of messages, in the order in which they came.
        kept: by topic, the first offset that retention has left.
        seats: by topic and group.
        marks: those that were given.
    """

    def __init__(self, groups: Sequence[tuple[str, str]]) -> None:
        self.pending: dict[str, int] = {}
        self.cancelled: set[str] = set()
        self.delivered: set[str] = set()
        self.topics: dict[str, list[str]] = {topic: [] for topic, _ in groups}
        self.kept: dict[str, int] = {}
        self.seats = {place: Seat() for place in groups}
        self.marks: set[bytes] = set()
        self.topic_of: dict[str, str] = {}

    # ------------------------------------------------------------ calls, as they were answered

    def put(self, topic: str, ticks: dict[str, int], marks: Sequence[bytes] = ()) -> None:
        self.pending.update(ticks)
        self.topic_of.update(dict.fromkeys(ticks, topic))
        self.marks.update(marks)

    def cancel(self, names: Sequence[str]) -> None:
        for name in names:
            self.pending.pop(name, None)
            self.cancelled.add(name)

    def append(self, topic: str, names: Sequence[str], marks: Sequence[bytes] = ()) -> None:
        self.topics[topic] += names
        self.marks.update(marks)

    def hand_over(self, names: Sequence[str]) -> None:
        for name in names:
            del self.pending[name]
            self.delivered.add(name)
            self.topics[self.topic_of[name]].append(name)

    def pop(self, place: tuple[str, str], popped: Popped, until_ms: int) -> None:
        seat = self.seats[place]
        for name, attempt in popped:
            if name in seat.retry:
                assert seat.retry.pop(name) == attempt
            else:
                assert attempt == 1
                seat.behind = self.topics[place[0]].index(name) + 1
            seat.leases[name] = (until_ms, attempt)

    def ack(self, place: tuple[str, str], names: Sequence[str]) -> None:
        seat = self.seats[place]
        for name in names:
            del seat.leases[name]
            seat.acked.add(name)

    def change(self, place: tuple[str, str], names: Sequence[str], until_ms: int) -> None:
        leases = self.seats[place].leases
        for name in names:
            leases[name] = (until_ms, leases[name][1])

    def release(self, place: tuple[str, str], names: Sequence[str]) -> None:
        seat = self.seats[place]
        for name in names:
            seat.retry[name] = seat.leases.pop(name)[1]

    def revive(self, now_ms: int) -> None:
        for seat in self.seats.values():
            for name, (until_ms, attempt) in list(seat.leases.items()):
                if until_ms <= now_ms:
                    del seat.leases[name]
                    if attempt > MAX_RETRIES:
                        seat.dead.add(name)
                    else:
                        seat.retry[name] = attempt + 1

    def reclaim(self, kept: dict[str, int]) -> None:
        self.kept.update(kept)

    def several(self, parts: Sequence[tuple[str, tuple[Any, ...]]]) -> None:
        for effect, arguments in parts:
            getattr(self, effect)(*arguments)

    def nothing(self) -> None:
        """A call that changes nothing that a drain sees."""

    # ------------------------------------------------------------ what a drain sees

    def due(self, now_ms: int) -> None:
        """Hand over what is due, in order: by tick, then by put."""
        self.hand_over([name for name, tick in sorted(self.pending.items(), key=lambda each: each[1]) if tick <= now_ms])

    def take(self, place: tuple[str, str]) -> Popped:
        """Pop and ack all that is ready; by name."""
        seat = self.seats[place]
        topic = self.topics[place[0]]
        ready = [(name, 1) for name in topic[max(seat.behind, self.kept.get(place[0], 0)) :]] + list(seat.retry.items())
        seat.behind = len(topic)
        seat.retry.clear()
        seat.acked.update(name for name, _ in ready)
        return sorted(ready)

    def answer(self, name: str) -> str:
        """Return what a cancel says in the end."""
        if name in self.cancelled:
            return "CANCELLED"
        return "ALREADY_DELIVERED" if name in self.delivered else "UNKNOWN"


@dataclass
class Event:
    """A call of the workload: what it was, its effect as a method of :class:`Model` with arguments, and when it was made.

    ``begin`` and ``end`` are numbers of calls to the disk; ``told``: from which on somebody relied on it, None when nobody ever did;
    ``now_ms``: the clock.
    """

    kind: str
    begin: int
    now_ms: int = 0
    effect: str = "nothing"
    arguments: tuple[Any, ...] = ()
    end: int = -1
    told: int | None = None

    def play(self, model: Model) -> None:
        """Do it."""
        getattr(model, self.effect)(*self.arguments)


def window(events: Sequence[Event], cut: int) -> tuple[int, int]:
    """Return (least, most) of the events that may be in the store when power is lost behind ``cut`` calls to the disk."""
    least = most = 0
    for number, event in enumerate(events, 1):
        if event.told is not None and event.told <= cut:
            least = number
        if event.begin < cut:
            most = number
    return least, max(least, most)
