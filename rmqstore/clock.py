"""Where time comes from: the store asks a clock, an engine never does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Protocol, cast, runtime_checkable

from rmqstore.errors import IllegalArgumentTypeError
from rmqstore.message import check_time_ms
from rmqstore.when import time_ms, timedelta_ms


@runtime_checkable
class Clock(Protocol):
    """Anything that tells the time in milliseconds since the epoch."""

    def now_ms(self) -> int:
        """Return the current time in ms since the epoch; it may be set back (K1) or jump (K2)."""


class SystemClock:
    """The wall clock of the machine."""

    def now_ms(self) -> int:
        """Return the wall-clock time in ms."""
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that stands still until it is told to move, for tests and simulations. Safe to share between threads.

    A ``pop`` that waits under it ends when the clock has passed the wait, and at the latest after as much real time: a program of one
    thread, whose clock is not moved, would else wait for ever.

    Args:
        start: its first time, an aware ``datetime`` or an int of ms since the epoch.
    """

    def __init__(self, start: datetime | int = 0) -> None:
        self._lock = threading.Lock()
        self._now_ms = _time_ms("start", start)
        self._listeners: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        """Return the time that was set last, in ms."""
        return self._now_ms

    def advance(self, by: timedelta | int) -> int:
        """Move forward by a ``timedelta`` or an int of ms, and return the new time in ms; use :meth:`set` to go back."""
        step_ms = by if isinstance(by, int) else timedelta_ms("the step", by, way_out=", or an int of ms")
        check_time_ms("the step", step_ms)
        with self._lock:
            now_ms = self._now_ms + step_ms
            check_time_ms("the time", now_ms)
            self._now_ms = now_ms
        self._notify()
        return now_ms

    def set(self, to: datetime | int) -> int:
        """Jump to an aware ``datetime`` or an int of ms since the epoch, forwards or back, and return it in ms."""
        now_ms = _time_ms("the time", to)
        with self._lock:
            self._now_ms = now_ms
        self._notify()
        return now_ms

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` after every move; returns the function that ends the subscription."""
        with self._lock:
            self._listeners.append(listener)

        def unsubscribe() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return unsubscribe

    def _notify(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def __repr__(self) -> str:
        return f"ManualClock({self._now_ms})"


def _time_ms(what: str, given: datetime | int) -> int:
    if isinstance(given, bool) or not isinstance(given, datetime | int):
        raise IllegalArgumentTypeError(f"{what} must be an aware datetime or an int of ms since the epoch, not {given!r}")
    if isinstance(given, datetime):
        given = cast(int, time_ms(what, given, None))  # there is a datetime, so there is a time
    check_time_ms(what, given)
    return given
