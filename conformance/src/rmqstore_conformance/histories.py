"""Recorded histories of threads, checked message by message: some order of the calls must explain all answers.

Every call is noted with the moments of its begin and its end, on one counter that all threads share. The calls that touch one message
make up its history, and each history is checked by itself, which is enough, since what becomes of one message does not depend on others.
An order is looked for as Wing and Gong did ("Testing and Verifying Concurrent Objects", 1993): a call may come next when no other call that
is left had ended before it began. What a message may do is written down in :class:`State`.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from rmqstore import PoppedMessage
from rmqstore_conformance.stores import label

T = TypeVar("T")


class Event(NamedTuple):
    """What one call did with one message.

    Attributes:
        call: send, schedule, cancel, deliver (by a tick), pop, ack, release, left (what the store held at the end).
        answer: the name of the outcome; of ``left`` where the message was: ready, leased, gone.
        receipt: the lease that it is about, or that it gave.
    """

    call: str
    answer: str
    receipt: str
    begin: int
    end: int
    thread: int

    def __str__(self) -> str:
        receipt = f" {self.receipt[-8:]}" if self.receipt else ""
        return f"{self.begin:>6} to {self.end:>6}, thread {self.thread:>2}: {self.call}{receipt}: {self.answer}"


class State(NamedTuple):
    """Where a message stands for its one group.

    Attributes:
        place: absent, pending, cancelled, ready, leased, done.
        receipt: of the lease that holds it.
    """

    place: str = "absent"
    receipt: str = ""

    def after(self, event: Event) -> State | None:
        """Return where it stands after a call, None when the call cannot have given that answer here."""
        return _STEPS[event.call](self, event)


def _after_send(state: State, event: Event) -> State | None:
    return State("ready") if state.place == "absent" else None


def _after_schedule(state: State, event: Event) -> State | None:
    return State("pending") if state.place == "absent" else None


def _after_cancel(state: State, event: Event) -> State | None:
    if event.answer == "CANCELLED":
        return State("cancelled") if state.place in ("pending", "cancelled") else None
    if event.answer == "ALREADY_DELIVERED":
        # The tick is sealed before its messages are in their topic.
        return state if state.place not in ("absent", "cancelled") else None
    return state if state.place == "absent" else None


def _after_deliver(state: State, event: Event) -> State | None:
    return State("ready") if state.place == "pending" else None


def _after_pop(state: State, event: Event) -> State | None:
    return State("leased", event.receipt) if state.place == "ready" else None


def _after_end_of_lease(state: State, event: Event) -> State | None:
    holds = state.place == "leased" and state.receipt == event.receipt
    if event.answer in ("ACKED", "RELEASED"):
        if not holds:
            return None
        return State("done") if event.answer == "ACKED" else State("ready")
    if event.answer == "ALREADY_ACKED":
        return state if state.place == "done" else None
    return None if holds else state


def _after_left(state: State, event: Event) -> State | None:
    places = {"ready": ("ready",), "leased": ("leased",), "gone": ("done", "cancelled"), "pending": ("pending",)}
    return state if state.place in places[event.answer] else None


_STEPS: dict[str, Callable[[State, Event], State | None]] = {
    "send": _after_send,
    "schedule": _after_schedule,
    "cancel": _after_cancel,
    "deliver": _after_deliver,
    "pop": _after_pop,
    "ack": _after_end_of_lease,
    "release": _after_end_of_lease,
    "left": _after_left,
}


Told = tuple[str | None, str, str, str | None]
"""What a call did with a message: its id, the call, the answer, the receipt."""


class History:
    """Takes down calls of many threads."""

    def __init__(self) -> None:
        self._counter = itertools.count()
        self._events: dict[str, list[Event]] = defaultdict(list)
        self._lock = threading.Lock()
        self._threads: dict[int, int] = {}

    def call(self, act: Callable[[], T], told: Callable[[T], Iterable[Told]]) -> T:
        """Make a call; ``told`` says of its result what it did: (message id, call, answer, receipt) for each message."""
        begin = next(self._counter)
        result = act()
        end = next(self._counter)
        with self._lock:
            thread = self._threads.setdefault(threading.get_ident(), len(self._threads))
            for name, call, answer, receipt in told(result):
                self._events[name or ""].append(Event(call, answer, receipt or "", begin, end, thread))
        return result

    def now(self) -> int:
        """Return a moment behind all calls that have ended."""
        return next(self._counter)

    def note(self, name: str, call: str, answer: str, *, begin: int, end: int) -> None:
        """Take down what was found out afterwards."""
        self._events[name].append(Event(call, answer, "", begin, end, -1))

    @property
    def names(self) -> list[str]:
        """The messages that there are."""
        return sorted(self._events)

    def faults(self) -> list[str]:
        """Return, for each message without an order that explains it, its history."""
        return [f"message {name}:\n{_shown(events)}" for name, events in sorted(self._events.items()) if not explained(events)]

    @property
    def size(self) -> int:
        """How many events there are."""
        return sum(map(len, self._events.values()))


def _shown(events: Sequence[Event]) -> str:
    return "\n".join(f"    {event}" for event in sorted(events, key=lambda event: event.begin))


def explained(events: Sequence[Event]) -> bool:
    """Say whether some order of the calls on one message, each within its span, leads from absent to answers like these."""
    ordered = sorted(events, key=lambda event: event.begin)
    seen: set[tuple[frozenset[int], State]] = set()
    stack: list[tuple[frozenset[int], State]] = [(frozenset(range(len(ordered))), State())]
    while stack:
        left, state = stack.pop()
        if not left:
            return True
        if (left, state) in seen:
            continue
        seen.add((left, state))
        earliest_end = min(ordered[at].end for at in left)
        for at in left:
            if ordered[at].begin <= earliest_end and (after := state.after(ordered[at])) is not None:
                stack.append((left - {at}, after))
    return False


def told_of_pop(popped: Sequence[PoppedMessage]) -> list[Told]:
    """Say what a pop did."""
    return [(label(each), "pop", "given", each.receipt) for each in popped]
