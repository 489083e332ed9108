"""Waking those who wait for messages."""

from __future__ import annotations

import threading


class Signal:
    """A counter that threads can wait on: read it, look for messages, then wait for it to have moved on. So no wake-up is lost."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0

    @property
    def count(self) -> int:
        """How often :meth:`notify` was called."""
        return self._count

    def notify(self) -> None:
        """Wake everybody."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def wait_beyond(self, seen: int, timeout_s: float) -> None:
        """Return when the count has moved beyond ``seen``, or after ``timeout_s`` seconds."""
        with self._condition:
            self._condition.wait_for(lambda: self._count > seen, timeout_s)
