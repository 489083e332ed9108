"""What a store must answer, modelled with lists and dicts; it shares nothing with any engine.

Timers and the hand-over are here, what becomes of the messages then in :mod:`rmqstore_conformance.model.pop_oracle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rmqstore import CancelOutcome, Message
from rmqstore_conformance.model.pop_oracle import PopOracle


@dataclass
class Timer:
    """One put: ``due`` is its deliver time, or its tick when it was sent without one."""

    seq: int
    tick: int
    due: int
    message: Message
    sealed: bool = False
    cancelled: bool = False
    delivered: bool = False

    @property
    def pending(self) -> bool:
        return not (self.cancelled or self.delivered)


class Oracle(PopOracle):
    """The state of one store, as its users may see it."""

    def __init__(self, *, precision_ms: int = 1000, limit: int = 4096, cancel_memory_ms: int = 86_400_000, **pops: Any) -> None:
        super().__init__(**pops)
        self.precision_ms = precision_ms
        self.limit = limit
        self.cancel_memory_ms = cancel_memory_ms
        self.timers: list[Timer] = []
        self.until_ms = -1

    # ------------------------------------------------------------ timers

    def tick_of(self, deliver_at_ms: int | None, now: int) -> int:
        due = now if deliver_at_ms is None else deliver_at_ms
        rounded = -(-due // self.precision_ms) * self.precision_ms
        return min(rounded, now) if due <= now else rounded

    def send(self, messages: Sequence[Message], now: int) -> list[Timer] | None:
        """Take a batch: as timers when any row is in the future, else straight into the queues (then None)."""
        if not any(each.deliver_at_ms is not None and each.deliver_at_ms > now for each in messages):
            for each in messages:
                self.enqueue(each, now)
            return None
        made = []
        for each in messages:
            tick = self.tick_of(each.deliver_at_ms, now)
            due = tick if each.deliver_at_ms is None else each.deliver_at_ms
            made.append(Timer(len(self.timers), tick, due, each))
            self.timers.append(made[-1])
        return made

    def cancel(self, timer: Timer) -> set[CancelOutcome]:
        """Cancel, and return the answers that are true; more than one only when the store may have forgotten."""
        forgettable = self.latest_ms >= timer.due + self.cancel_memory_ms
        if timer.delivered or (timer.sealed and not timer.cancelled):
            answers = {CancelOutcome.ALREADY_DELIVERED}
            return answers | {CancelOutcome.UNKNOWN} if timer.delivered and forgettable else answers
        if timer.cancelled:
            return {CancelOutcome.CANCELLED, CancelOutcome.UNKNOWN} if forgettable else {CancelOutcome.CANCELLED}
        timer.cancelled = True
        return {CancelOutcome.CANCELLED}

    def cancel_key(self, topic: str, key: str) -> int:
        """Cancel every pending timer of (topic, key); returns how many can be."""
        found = [t for t in self.timers if t.pending and not t.sealed and t.message.topic == topic and key in t.message.keys]
        for timer in found:
            timer.cancelled = True
        return len(found)

    def seal(self, now: int) -> None:
        self.until_ms = now
        for timer in self.timers:
            if timer.pending and timer.tick <= now:
                timer.sealed = True

    def hand_over(self, limit: int, now: int) -> int:
        """Move the first ``limit`` sealed timers, by tick and put, to their queues."""
        due = [timer for timer in self.timers if timer.pending and timer.sealed and timer.tick <= self.until_ms]
        due.sort(key=lambda timer: (timer.tick, timer.seq))
        for timer in due[:limit]:
            timer.delivered = True
            self.enqueue(timer.message, now)
        return len(due[:limit])

    def pending(self) -> list[Timer]:
        """Return the pending timers in the order of ``scan``."""
        return sorted((timer for timer in self.timers if timer.pending), key=lambda timer: (timer.tick, timer.seq))

    def wake_ms(self) -> int | None:
        """Return when something happens at the earliest: the tick of an unsealed timer, a running lease's end."""
        times = [timer.tick for timer in self.timers if timer.pending and not timer.sealed]
        return min(times + [held.expiry for held in self.live.values()], default=None)
