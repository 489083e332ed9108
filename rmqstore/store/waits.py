"""Waking those who wait: for the ticker, for messages of a topic, and for room to send."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from rmqstore.clock import Clock, SystemClock

ROOM: Final = ""
"""Stands for a topic among those who wait: they wait until flow control may let a send in."""

_LOOK_S: Final = 1.0
"""So long a wake-up may be missed that a signal handler gives to its own thread between its look and its wait."""


class Signal:
    """A counter that threads can wait on: read it, look for messages, then wait for it to have moved on. So no wake-up is lost."""

    def __init__(self) -> None:
        # Taken itself, by what C does: a signal handler that raised in the condition's own ``__enter__`` would leave it held (F4).
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._count = 0

    @property
    def count(self) -> int:
        """How often :meth:`notify` was called."""
        return self._count

    def notify(self) -> None:
        """Wake everybody."""
        with self._lock:
            self._count += 1
            self._condition.notify_all()

    def wait_beyond(self, seen: int, timeout_s: float) -> None:
        """Return when the count has moved beyond ``seen``, or after ``timeout_s`` seconds."""
        until_s = time.monotonic() + timeout_s
        with self._lock:
            while self._count <= seen and (left_s := until_s - time.monotonic()) > 0:
                self._condition.wait(min(left_s, _LOOK_S))


class Patience:
    """How long a pop or a send still waits: until the clock has passed the wait, and at the latest after as much real time.

    A program of one thread, whose :class:`ManualClock` is not moved, would else wait for ever.
    """

    def __init__(self, clock: Clock, patience_ms: int) -> None:
        self._clock = None if isinstance(clock, SystemClock) else clock
        self._until_ms = clock.now_ms() + patience_ms
        self._until_s = time.monotonic() + patience_ms / 1000

    def left_s(self) -> float:
        """Return for how many seconds more; 0 or less at the end."""
        if self._clock is not None and self._clock.now_ms() >= self._until_ms:
            return 0.0
        return self._until_s - time.monotonic()


class TopicWait(Signal):
    """Somebody who waits for messages of a topic, or for room.

    Attributes:
        ends: the next offset of each queue of the topic, as it was before the last look.
        for_acks: an ack may be what is waited for: the pop is one in order, or under ``max_in_flight``.
    """

    def __init__(self, topic: str, *, for_acks: bool) -> None:
        super().__init__()
        self.topic = topic
        self.ends: tuple[int, ...] = ()
        self.for_acks = for_acks


class Waits:
    """Who waits for which topic, so that a message costs nothing to those who wait for others.

    No wake-up is lost: a thread is entered here before it looks for messages, and whatever could end its wait is looked up here after it
    happened. So either the look finds it, or the thread is found and its signal moves on before it waits.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may close the store, or pop, while its thread waits (F4)
        self._waits: dict[str, set[TopicWait]] = {}

    @contextmanager
    def on(self, wait: TopicWait) -> Iterator[TopicWait]:
        """Wait until the end of the block."""
        self.enter(wait)
        try:
            yield wait
        finally:
            self.leave(wait)

    def enter(self, wait: TopicWait) -> None:
        """Tell ``wait`` from now on what happens in its topic."""
        with self._lock:
            while wait not in self._waits.get(wait.topic, ()):  # a pop of a handler's may have come and gone in between
                self._waits.setdefault(wait.topic, set()).add(wait)

    def leave(self, wait: TopicWait) -> None:
        """Tell it nothing more."""
        with self._lock:
            others = self._waits.get(wait.topic, set())
            others.discard(wait)
            if not others:
                self._waits.pop(wait.topic, None)

    def arrived(self, topics: Iterable[str]) -> None:
        """Wake those who wait for these topics, which are looked at only when anybody waits at all."""
        if self._waits:
            for topic in set(topics):
                self._notify(topic)

    def acked(self, topics: Iterable[str]) -> None:
        """Wake those who may have waited for an ack in these topics."""
        if self._waits:
            for topic in set(topics):
                self._notify(topic, lambda wait: wait.for_acks)

    def moved(self, ends_of: Callable[[str], tuple[int, ...]]) -> None:
        """Wake those whose topics have other ends than when they looked; ``ends_of`` returns the next offset of each queue of a topic."""
        for topic in list(self._waits):
            ends = None if topic == ROOM else ends_of(topic)  # what went to its topic has made room
            self._notify(topic, lambda wait, ends=ends: wait.ends != ends)  # type: ignore[misc]

    def made_room(self) -> None:
        """Wake those who wait to send."""
        if ROOM in self._waits:
            self._notify(ROOM)

    def anything(self) -> None:
        """Wake everybody."""
        for topic in list(self._waits):
            self._notify(topic)

    def _notify(self, topic: str, concerned: Callable[[TopicWait], bool] = lambda _: True) -> None:
        with self._lock:
            waits = list(self._waits.get(topic, ()))
        for wait in waits:
            if concerned(wait):
                wait.notify()
