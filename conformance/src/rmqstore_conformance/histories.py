"""Recorded histories of threads, checked thing by thing: some order of the calls must explain all answers.

Every call is noted with the moments of its begin and its end, on one counter that all threads share. The calls that touch one thing, a
message, a mark or a queue, make up its history, and each history is checked by itself, which is enough, since what becomes of one thing
does not depend on others. An order is looked for as Wing and Gong did ("Testing and Verifying Concurrent Objects", 1993): a call may come
next when no other call that is left had ended before it began. What a thing may do is written down in its :class:`State`.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, Self, TypeVar

T = TypeVar("T")

FOR_EVER_MS = 2**60


class Event(NamedTuple):
    """What one call did with one thing.

    Attributes:
        call: its name; a state says which there are.
        answer: the name of the outcome, or what was seen.
        receipt: the lease that it is about, or that it gave.
        new: the receipt that holds the lease from then on.
        attempt: the number of the delivery that it gave.
        low_ms, high_ms: what the clock said when it began, and when it ended; or a time that it names.
        found: numbers that it gave.
    """

    call: str
    answer: str
    receipt: str
    begin: int
    end: int
    thread: int
    new: str = ""
    attempt: int = 0
    low_ms: int = 0
    high_ms: int = 0
    found: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        receipt = "".join(f" {each[-8:]}" for each in (self.receipt, self.new) if each)
        found = f" {', '.join(f'{at} {what[-8:]}'.strip() for at, what in self.found)}" if self.found else ""
        attempt = f", attempt {self.attempt}" if self.attempt else ""
        when = f", at {self.low_ms} to {self.high_ms} ms" if self.high_ms else ""
        return f"{self.begin:>6} to {self.end:>6}, thread {self.thread:>2}: {self.call}{receipt}: {self.answer}{found}{attempt}{when}"


class State(Protocol):
    """Where a thing stands."""

    def after(self, event: Event) -> Iterable[Self]:
        """Return where it may stand after a call, nothing when the call cannot have given that answer here."""
        ...


class History:
    """Takes down calls of many threads."""

    def __init__(self) -> None:
        self._counter = itertools.count()
        self._events: dict[str, list[Event]] = defaultdict(list)
        self._lock = threading.Lock()
        self._threads: dict[int, int] = {}

    def call(self, act: Callable[[], T], told: Callable[[T], Iterable[tuple[str | None, Event]]]) -> T:
        """Make a call; ``told`` says of its result what it did with which thing, in events whose moments and thread are put in here."""
        begin = next(self._counter)
        result = act()
        end = next(self._counter)
        with self._lock:
            thread = self._threads.setdefault(threading.get_ident(), len(self._threads))
            for name, event in told(result):
                self._events[name or ""].append(event._replace(begin=begin, end=end, thread=thread))
        return result

    def now(self) -> int:
        """Return a moment behind all calls that have ended."""
        return next(self._counter)

    def note(self, name: str, event: Event) -> None:
        """Take down what was found out afterwards."""
        self._events[name].append(event)

    def of(self, name: str) -> list[Event]:
        return self._events[name]

    @property
    def names(self) -> list[str]:
        return sorted(self._events)

    def faults(self, begin: State, names: Iterable[str] | None = None) -> list[str]:
        """Return, for each thing without an order that explains it, its history; all of them begin alike."""
        chosen = self.names if names is None else names
        return [f"{name}:\n{_shown(self._events[name])}" for name in chosen if not explained(self._events[name], begin)]

    @property
    def size(self) -> int:
        return sum(map(len, self._events.values()))


def event(call: str, answer: str, receipt: str = "", **more: Any) -> Event:
    """Return an event whose moments are not known yet."""
    return Event(call, answer, receipt, 0, 0, -1)._replace(**more)


def _shown(events: Sequence[Event]) -> str:
    return "\n".join(f"    {event}" for event in sorted(events, key=lambda event: event.begin))


def explained(events: Sequence[Event], begin: State) -> bool:
    """Say whether some order of the calls on one thing, each within its span, leads from its begin to answers like these."""
    ordered = sorted(events, key=lambda event: event.begin)
    seen: set[tuple[int, State]] = set()
    # What is left is kept as the first event that is left, and which ones of those behind it are done.
    stack: list[tuple[int, State]] = [((1 << len(ordered)) - 1, begin)]
    while stack:
        left, state = stack.pop()
        if not left:
            return True
        if (left, state) in seen:
            continue
        seen.add((left, state))
        for at in _next(ordered, left):
            stack += [(left & ~(1 << at), after) for after in state.after(ordered[at])]
    return False


def _next(ordered: Sequence[Event], left: int) -> list[int]:
    """Return which events may come next: those that began before the first end of all that are left."""
    found: list[int] = []
    first_end = sys.maxsize
    at = (left & -left).bit_length() - 1
    while at < len(ordered) and ordered[at].begin <= first_end:
        if left >> at & 1:
            found.append(at)
            first_end = min(first_end, ordered[at].end)
        at += 1
    return [each for each in found if ordered[each].begin <= first_end]


@contextmanager
def restless(interval_s: float = 1e-5) -> Iterator[None]:
    """Have the interpreter switch between threads as often as it can, so that calls that take less than its usual turn meet."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval_s)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
