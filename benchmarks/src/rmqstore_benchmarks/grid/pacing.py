"""How time runs under load: simulated time by Little's law, and an open loop on a fixed schedule.

Timers wait for minutes or days, a run lasts seconds. So the store lives in simulated time, and what must be right is the proportion: with a
mean wait of D (simulated, from the send to the cancel or the due time), an arrival rate of λ (messages a real second) and N pending timers,
N stays the same when simulated time runs f = λ·D/N times as fast as real time (Little's law). Then as many timers leave a real second as
come, in the shares that the workload says, and the hand-over has the load that it has in a store in equilibrium. The latency of a call is
real time; how late a message is handed over is simulated time divided by f.

In the open loop every call has an intended begin on a fixed schedule, which does not wait for slow calls. Latencies count from the
intended begin, so a stalled call makes those behind it late as well, as it would with independent clients. The *slip* is the part of a
late begin that is the load's own: behind the intended time and behind the end of the call before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

_SPIN_NS: Final = 200_000
"""Sleeping wakes late by about so much; the rest of a wait is spent looking at the clock."""


class RealTime(Protocol):
    """The clock of a loop; a test gives one of its own."""

    def now_ns(self) -> int:
        """Return a time that only grows, ns."""

    def wait_until(self, at_ns: int) -> None:
        """Return when the clock shows ``at_ns``."""


class MachineTime:
    """The machine's own clock."""

    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def wait_until(self, at_ns: int) -> None:
        left_ns = at_ns - time.perf_counter_ns()
        if left_ns > _SPIN_NS:
            time.sleep((left_ns - _SPIN_NS) / 1e9)
        while time.perf_counter_ns() < at_ns:
            pass


def speed_up(rate: float, mean_wait_ms: float, backlog: int) -> float:
    """Return simulated ms a real ms, f = λ·D/N."""
    return rate / 1000 * mean_wait_ms / max(backlog, 1)


class SimulatedTime:
    """Simulated time that runs ``factor`` times as fast as real time, from ``start_ms`` at ``start_ns``."""

    def __init__(self, start_ms: int, start_ns: int, factor: float) -> None:
        self._start_ms = start_ms
        self._start_ns = start_ns
        self.factor = factor

    def ms_at(self, at_ns: int) -> int:
        """Return the simulated time at a real time, ms."""
        return self._start_ms + int((at_ns - self._start_ns) / 1e6 * self.factor)

    def ns_at(self, at_ms: int) -> int:
        """Return the first real time at which simulated time has come to ``at_ms``, ns."""
        return self._start_ns + int(-(-(at_ms - self._start_ms) * 1e6 // self.factor))


class Stream(msgspec.Struct):
    """Calls of one kind at fixed intervals.

    Attributes:
        operation: the kind, for the records.
        interval_ns: between two intended begins.
        call: does one, of which it knows the intended begin, ns.
        next_ns: the next intended begin.
    """

    operation: str
    interval_ns: float
    call: Callable[[int], None]
    next_ns: float = 0.0


def open_loop(streams: Sequence[Stream], clock: RealTime, seconds: float, slipped: Callable[[int], None]) -> None:
    """Run the streams for so long, one call after the other, the one with the earliest intended begin first.

    What was intended within the time is done even when it is late, but not later than twice the time.

    Args:
        slipped: is told the load's own delay before each call, ns.
    """
    begin_ns = clock.now_ns()
    end_ns = begin_ns + int(seconds * 1e9)
    for stream in streams:
        stream.next_ns = begin_ns + stream.interval_ns
    free_ns = begin_ns
    while True:
        stream = min(streams, key=lambda each: each.next_ns)
        intended_ns = int(stream.next_ns)
        if intended_ns >= end_ns or clock.now_ns() >= begin_ns + 2 * (end_ns - begin_ns):
            return
        clock.wait_until(intended_ns)
        slipped(clock.now_ns() - max(intended_ns, free_ns))
        stream.call(intended_ns)
        free_ns = clock.now_ns()
        stream.next_ns += stream.interval_ns
