"""Everything at once: the closed loop that finds the sustainable rate, and the open loop at a share of it (the method: ``pacing``)."""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import Final

import numpy as np

from rmqstore_benchmarks.grid.calls import Calls
from rmqstore_benchmarks.grid.load import Ids
from rmqstore_benchmarks.grid.named import NamedWorkload
from rmqstore_benchmarks.grid.pacing import RealTime, SimulatedTime, Stream, open_loop, speed_up
from rmqstore_benchmarks.grid.recording import Phase

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
        count = min(load.workload.mixed_batch, load.batch_rows)
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


def at_rate(calls: Calls, phase: Phase, seconds: float, backlog: int, rate: float, clock: RealTime) -> int:
    """Do the same in an open loop at ``rate`` messages sent a second; returns how many were sent."""
    load, workload = calls.load, calls.load.workload
    made_before, first_tick = calls.ledger.made, len(calls.hand_over_ms)
    count = min(workload.mixed_batch, load.batch_rows)
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
        now_ns = clock.now_ns()
        phase.late(_lateness_ns(calls, ticks[ticks > start_ms], simulated, first_tick), now_ns)

    streams = [
        Stream("schedule", 1e9 * count / rate, send),
        Stream("hand_over", TICK_NS, tick),
        Stream("pop", 1e9 * _sent_per_poll(workload) / rate, pop),
    ]
    if workload.cancelled:
        streams.append(Stream("cancel", 1e9 * count / (rate * workload.cancelled), cancel))
    open_loop(streams, clock, seconds, phase.slip)
    return calls.ledger.made - made_before


def _sent_per_poll(workload: NamedWorkload) -> float:
    """Return how many messages are sent between two tries to pop."""
    return workload.pop_messages * workload.acked / ((1 - workload.cancelled) * _POLLS)


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
