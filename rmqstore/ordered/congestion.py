"""Flow control of a crowded tick (T9): RocketMQ's test the right way round, once a batch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from rmqstore.errors import FlowControlError

_KNOWN_SLOTS = 131_072


class Congestion:
    """Counts the timers of the slots that puts go to; off, and free, when ``limit`` is 0.

    Args:
        count: tells how many timers a tick holds.
        limit: timers a slot above which puts are refused with rising probability.
        generator: where the draws come from.
    """

    def __init__(self, count: Callable[[int], int], limit: int, generator: random.Random) -> None:
        self._count_anew = count
        self._limit = limit
        self._random = generator
        self._slots: dict[int, int] = {}

    def check(self, ticks: Sequence[int]) -> None:
        """Refuse a batch with p = clamp((n - limit) / limit), n being its fullest slot with the batch in it.

        Raises:
            FlowControlError: naming the slot.
        """
        if not self._limit or not ticks:
            return
        added = Counter(ticks)
        tick = max(added, key=lambda slot: added[slot] + self._count(slot))
        count = added[tick] + self._count(tick)
        if self._random.random() < min(max((count - self._limit) / self._limit, 0.0), 1.0):
            raise FlowControlError(
                f"slot {tick} ms would hold {count} timers, congestion_limit is {self._limit}; nothing was stored, try again later or "
                "spread the deliver times"
            )

    def _count(self, tick: int) -> int:
        if tick not in self._slots:
            if len(self._slots) >= _KNOWN_SLOTS:
                self._slots.clear()
            self._slots[tick] = self._count_anew(tick)
        return self._slots[tick]

    def note(self, ticks: Iterable[int], change: int) -> None:
        """Take over that every tick of ``ticks`` got (1) or lost (-1) a timer."""
        if self._slots:
            for tick, count in Counter(ticks).items():
                if tick in self._slots:
                    self._slots[tick] += change * count

    def lose(self, ticks: Iterable[int]) -> None:
        """Count these ticks anew when they are asked for."""
        for tick in self._slots.keys() & set(ticks):
            del self._slots[tick]
