"""Where time comes from: the store asks a clock, an engine never does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from rmqstore.errors import IllegalArgumentError, IllegalArgumentTypeError

_MAX_MS = 2**62


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

    Args:
        start_ms: the first value of :meth:`now_ms`, in ms since the epoch, at least 0.
    """

    def __init__(self, start_ms: int = 0) -> None:
        self._lock = threading.Lock()
        self._now_ms = _checked_ms("start_ms", start_ms)
        self._listeners: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        """Return the time that was set last, in ms."""
        return self._now_ms

    def advance(self, ms: int) -> int:
        """Move forward by ``ms`` (at least 0) and return the new time; use :meth:`set` to go back."""
        with self._lock:
            self._now_ms = _checked_ms("the time", self._now_ms + _checked_ms("ms", ms))
            now_ms = self._now_ms
        self._notify()
        return now_ms

    def set(self, ms: int) -> int:
        """Jump to ``ms`` since the epoch, forwards or back, and return it."""
        with self._lock:
            self._now_ms = _checked_ms("ms", ms)
        self._notify()
        return ms

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


def _checked_ms(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise IllegalArgumentTypeError(f"{name} must be an int of milliseconds, not {type(value).__name__}")
    if not 0 <= value <= _MAX_MS:
        raise IllegalArgumentError(f"{name} must be 0–2**62 ms, not {value}")
    return value
