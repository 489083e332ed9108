"""Everything at once, and how time runs meanwhile: simulated time by Little's law, a closed loop, an open loop on a fixed schedule.

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
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from rmqstore_benchmarks.grid.calls import Calls
from rmqstore_benchmarks.grid.load import Ids
from rmqstore_benchmarks.grid.named import MIXED_BATCH, POP_MESSAGES, NamedWorkload
from rmqstore_benchmarks.grid.recording import Phase

_SPIN_NS: Final = 200_000
"""Sleeping wakes late by about so much; the rest of a wait is spent looking at the clock."""


class MachineTime:
    """The clock of a loop; a test gives one of its own."""

    def now_ns(self) -> int:
        """Return a time that only grows, ns."""
        return time.perf_counter_ns()

    def wait_until(self, at_ns: int) -> None:
        """Return when the clock shows ``at_ns``."""
        left_ns = at_ns - time.perf_counter_ns()
        if left_ns > _SPIN_NS:
            time.sleep((left_ns - _SPIN_NS) / 1e9)
        while time.perf_counter_ns() < at_ns:
            pass


def speed_up(rate: float, mean_wait_ms: float, backlog: int) -> float:
    """Return simulated ms a real ms, f = λ·D/N."""
    return rate / 1000 * mean_wait_ms / max(backlog, 1)


class SimulatedTime(NamedTuple):
    """Simulated time that runs ``factor`` times as fast as real time, from ``start_ms`` at ``start_ns``."""

    start_ms: int
    start_ns: int
    factor: float

    def ms_at(self, at_ns: int) -> int:
        """Return the simulated time at a real time, ms."""
        return self.start_ms + int((at_ns - self.start_ns) / 1e6 * self.factor)

    def ns_at(self, at_ms: int) -> int:
        """Return the first real time at which simulated time has come to ``at_ms``, ns."""
        return self.start_ns + int(-(-(at_ms - self.start_ms) * 1e6 // self.factor))


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


def open_loop(streams: Sequence[Stream], clock: MachineTime, seconds: float, slipped: Callable[[int], None]) -> None:
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


# ---------------------------------------------------------------- everything at once

TICK_NS: Final = 100_000_000
"""Real time between two hand-overs: what the thread of a store takes at ticks of one second."""

_POLLS: Final = 1.25
"""Pops that are tried, for each that is needed: consumers that poll exactly as often as needed fall behind at the first empty answer."""


def mixed(calls: Calls, phase: Phase, seconds: float, backlog: int) -> int:
    """Send, cancel, hand over, pop and ack in the workload's shares, as fast as it goes; returns how many were sent.

    After each batch simulated time moves by what keeps the backlog the same (Little's law), and what then is to be cancelled, due and
    ready is worked off: cancels with every batch, a hand-over every 100 ms, pops a quarter more often than needed. So neither the backlog
    nor the ready messages grow, and the rate can be kept up for ever.
    """
    load = calls.load
    sent, polls = 0, 0.0
    now_ms = float(calls.clock.now_ms())
    until_s = time.perf_counter() + seconds
    next_tick_ns = time.perf_counter_ns()
    while time.perf_counter() < until_s:
        count = min(MIXED_BATCH, load.batch_rows)
        calls.send(phase, load.fresh(calls.clock.now_ms(), count))
        sent += count
        now_ms += count * load.mean_wait_ms / max(backlog, 1)
        calls.clock.set(int(now_ms))
        calls.cancel(phase, calls.calendar.take(int(now_ms)))
        if (real_ns := time.perf_counter_ns()) >= next_tick_ns:
            calls.tick(phase, int(now_ms))
            next_tick_ns = real_ns + TICK_NS
        polls += count / _sent_per_poll(load.workload)
        while polls >= 1:
            polls -= 1
            if calls.ready > 0:
                calls.pop(phase)
    return sent


def at_rate(calls: Calls, phase: Phase, seconds: float, backlog: int, rate: float, clock: MachineTime) -> int:
    """Do the same in an open loop at ``rate`` messages sent a second; returns how many were sent."""
    load, workload = calls.load, calls.load.workload
    made_before, first_tick = calls.account.made, len(calls.hand_over_ms)
    count = min(MIXED_BATCH, load.batch_rows)
    start_ms, start_ns = calls.clock.now_ms(), clock.now_ns()
    simulated = SimulatedTime(start_ms, start_ns, speed_up(rate, load.mean_wait_ms, backlog))

    def moved_on() -> int:
        now_ms = max(simulated.ms_at(clock.now_ns()), calls.clock.now_ms())
        calls.clock.set(now_ms)
        return now_ms

    def send(intended_ns: int) -> None:
        calls.send(phase, load.fresh(moved_on(), count), intended_ns)

    def cancel(intended_ns: int) -> None:
        calls.cancel(phase, calls.calendar.take(moved_on()), intended_ns)

    def tick(intended_ns: int) -> None:
        calls.tick(phase, moved_on(), intended_ns)

    def pop(intended_ns: int) -> None:
        if calls.ready <= 0:
            return  # a waiting consumer is not answered before there is something
        moved_on()
        _, ticks = calls.pop(phase, intended_ns)
        phase.late(_lateness_ns(calls, ticks[ticks > start_ms], simulated, first_tick))

    streams = [
        Stream("schedule", 1e9 * count / rate, send),
        Stream("hand_over", TICK_NS, tick),
        Stream("pop", 1e9 * _sent_per_poll(workload) / rate, pop),
    ]
    if workload.cancelled:
        streams.append(Stream("cancel", 1e9 * count / (rate * workload.cancelled), cancel))
    open_loop(streams, clock, seconds, phase.slip)
    return calls.account.made - made_before


def _sent_per_poll(workload: NamedWorkload) -> float:
    """Return how many messages are sent between two tries to pop."""
    return POP_MESSAGES * workload.acked / ((1 - workload.cancelled) * _POLLS)


def _lateness_ns(calls: Calls, ticks: Ids, simulated: SimulatedTime, first_tick: int) -> Ids:
    """Return how late messages of these ticks were handed over, real ns.

    A message is handed over by the first tick of the store at or behind its own tick (T2), so the times of the calls tell it.
    """
    late = []
    for tick in ticks.tolist():
        place = bisect_left(calls.hand_over_ms, tick, lo=first_tick)
        if place < len(calls.hand_over_ns):
            late.append(calls.hand_over_ns[place] - simulated.ns_at(tick))
    return np.asarray(late, np.int64)
