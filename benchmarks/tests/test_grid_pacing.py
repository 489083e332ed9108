"""Simulated time by Little's law, and the open loop: a stalled call makes those behind it late, and the load's own delay is told apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from rmqstore_benchmarks.grid.phases import MachineTime, SimulatedTime, Stream, open_loop

MS = 1_000_000


class FakeTime(MachineTime):
    """A clock that moves when it is waited for, so much too late, or when a test says so."""

    def __init__(self, wakes_late_ms: int) -> None:
        self.ns = 1_000 * MS
        self._late_ns = wakes_late_ms * MS

    def now_ns(self) -> int:
        return self.ns

    def wait_until(self, at_ns: int) -> None:
        self.ns = max(self.ns, at_ns) + self._late_ns


def played(seconds: float, *every_ms: int, takes_ms: Callable[[int], int] = lambda call: 1, wakes_late_ms: int = 0) -> Played:
    """Play streams with calls at these intervals, of which the n-th of all takes ``takes_ms(n)``."""
    clock, found = FakeTime(wakes_late_ms), Played([], [], [])

    def call(every: int, intended_ns: int) -> None:
        clock.ns += takes_ms(len(found.calls)) * MS
        found.calls.append(every)
        found.latencies_ms.append((clock.ns - intended_ns) // MS)

    open_loop([Stream(every * MS, partial(call, every)) for every in every_ms], clock, seconds, lambda ns: found.slips_ms.append(ns // MS))
    return found


class Played(NamedTuple):
    """The interval of each call, and its latency; and the load's own delays."""

    calls: list[int]
    latencies_ms: list[int]
    slips_ms: list[int]


def test_a_stall_is_seen_by_the_calls_behind_it() -> None:
    found = played(0.2, 10, takes_ms=lambda call: 65 if call == 3 else 1)
    # Intended 10, 20, … ms behind the stalled one; each takes 1 ms, so the queue goes by 9 ms a call. All that were late are made up for.
    assert found.latencies_ms == [1, 1, 1, 65, 56, 47, 38, 29, 20, 11, 2] + [1] * 8
    assert found.slips_ms == [0] * 19, "the load itself was never late"


def test_the_delay_of_the_load_itself_is_slip() -> None:
    assert played(0.05, 10, takes_ms=lambda call: 0, wakes_late_ms=3).slips_ms == [3] * 4


def test_an_overloaded_loop_ends_at_twice_its_time_and_its_schedule_does_not_wait() -> None:
    found = played(1.0, 10, takes_ms=lambda call: 100)
    assert found.latencies_ms == [100 + 90 * call for call in range(20)]


def test_streams_run_by_their_own_schedules() -> None:
    assert played(0.1, 10, 25).calls == [10, 10, 25, 10, 10, 10, 25, 10, 10, 25, 10, 10]


def test_simulated_time_goes_and_comes_back() -> None:
    time = SimulatedTime(5_000, 1_000 * MS, 100.0)
    assert time.ms_at(1_000 * MS) == 5_000
    assert time.ms_at(1_020 * MS) == 7_000
    for at_ms in (5_001, 6_000, 7_777):
        assert time.ms_at(time.ns_at(at_ms)) >= at_ms
        assert time.ms_at(time.ns_at(at_ms) - 20_000) < at_ms


def test_the_machines_clock_waits_until_then() -> None:
    clock = MachineTime()
    until_ns = clock.now_ns() + 2 * MS
    clock.wait_until(until_ns)
    assert clock.now_ns() >= until_ns
