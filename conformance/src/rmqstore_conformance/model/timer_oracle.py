"""What a store must answer, modelled with lists and dicts; it shares nothing with any engine.

Timers and the hand-over are here, what becomes of the messages then in :mod:`rmqstore_conformance.model.pop_oracle`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from rmqstore import CancelOutcome, Message
from rmqstore_conformance.model.pop_oracle import PopOracle


@dataclass
class Timer:
    """One put: ``due`` is its deliver time, or its tick when it was sent without one; ``since`` is the open that took it."""

    seq: int
    tick: int
    due: int
    message: Message
    sealed: bool = False
    cancelled: bool = False
    delivered: bool = False
    handle: str = ""
    since: int = 0

    @property
    def pending(self) -> bool:
        return not (self.cancelled or self.delivered)


@dataclass
class MarkedCall:
    """A send with marks, as it was understood, and its first answer; ``form`` and ``sent`` are how it was made, ``life`` by which open."""

    marks: tuple[bytes, ...]
    is_timers: bool
    messages: Sequence[Message]
    handles: Sequence[str | None]
    made_ms: int
    form: dict[str, Any]
    sent: Sequence[Message]
    life: int


class Oracle(PopOracle):
    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self.marked: dict[tuple[bool, bytes], MarkedCall] = {}
        self.made_ids: set[str] = set()
        self.timers: list[Timer] = []
        self.until_ms = -1

    # ------------------------------------------------------------ marks

    def mark(self, call: MarkedCall) -> None:
        for mark in call.marks:
            self.marked[call.is_timers, mark] = call

    def may_be_forgotten(self, call: MarkedCall) -> bool:
        return self.latest_ms > call.made_ms + int(self.settings["mark_memory_ms"])

    def answers_to(self, marks: Sequence[bytes], *, is_timers: bool) -> list[MarkedCall | None]:
        """Return the calls that a call with these marks may repeat, and None when it may be a new one."""
        found: list[MarkedCall | None] = []
        for mark in marks:
            call = self.marked.get((is_timers, mark))
            if call is not None:
                found.append(call)
                if not self.may_be_forgotten(call):
                    return found
        return [*found, None]

    # ------------------------------------------------------------ timers

    def tick_of(self, deliver_at_ms: int | None, now: int) -> int:
        due = now if deliver_at_ms is None else deliver_at_ms
        precision_ms: int = self.settings["precision_ms"]
        rounded = -(-due // precision_ms) * precision_ms
        return min(rounded, now) if due <= now else rounded

    @staticmethod
    def are_timers(messages: Sequence[Message], now: int, *, marked: bool) -> bool:
        """Say whether a call is stored as timers: when any row is in the future, or any names a time and the call has marks (T4)."""
        times = [each.deliver_at_ms for each in messages if each.deliver_at_ms is not None]
        return bool(times) and (marked or max(times) > now)

    def send(self, messages: Sequence[Message], now: int, *, marked: bool = False) -> list[Timer] | None:
        """Take a batch: as timers, or straight into the queues (then None)."""
        if not self.are_timers(messages, now, marked=marked):
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
        forgettable = self.latest_ms >= timer.due + self.settings["cancel_memory_ms"]
        if timer.delivered or (timer.sealed and not timer.cancelled):
            answers = {CancelOutcome.ALREADY_DELIVERED}
            return answers | {CancelOutcome.UNKNOWN} if timer.delivered and forgettable else answers
        if timer.cancelled:
            return {CancelOutcome.CANCELLED, CancelOutcome.UNKNOWN} if forgettable else {CancelOutcome.CANCELLED}
        timer.cancelled = True
        return {CancelOutcome.CANCELLED}

    def cancel_keys(self, topic: str, keys: Sequence[str]) -> list[re.Pattern[str]]:
        """Cancel every pending timer of a topic and one of some keys that no tick has sealed; returns what the first letters of the
        outcomes of each key have to be.

        They go by the order of the puts. What was handed over is found as long as a store has not reclaimed it, which is not promised.
        """
        found = [[timer for timer in self.timers if timer.message.topic == topic and key in timer.message.keys] for key in keys]
        found = [[timer for timer in timers if not timer.cancelled] for timers in found]
        patterns = []
        for timers in found:
            letters = "".join("d" if timer.delivered else "A" if timer.sealed else "C" for timer in timers)
            patterns.append(re.compile("C".join(f"A{{{run.count('A')},{len(run)}}}" for run in letters.split("C"))))
        for timer in chain.from_iterable(found):
            timer.cancelled = not timer.delivered and not timer.sealed
        return patterns

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
