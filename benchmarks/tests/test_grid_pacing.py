"""Simulated time by Little's law, and the open loop: a stalled call makes those behind it late, and the load's own delay is told apart."""

from __future__ import annotations

from rmqstore_benchmarks.grid.phases import MachineTime, SimulatedTime, Stream, open_loop

MS = 1_000_000


class FakeTime(MachineTime):
    """A clock that moves when it is waited for, or when a test says so."""

    def __init__(self) -> None:
        self.ns = 1_000 * MS

    def now_ns(self) -> int:
        return self.ns

    def wait_until(self, at_ns: int) -> None:
        self.ns = max(self.ns, at_ns)


def latencies_ms(stall_at: int, clock: FakeTime, seconds: float = 0.2) -> tuple[list[int], list[int]]:
    """Do a call of 1 ms every 10 ms; call ``stall_at`` takes 65 ms. Returns latencies and slips, ms."""
    latencies: list[int] = []
    slips: list[int] = []

    def call(intended_ns: int) -> None:
        clock.ns += (65 if len(latencies) == stall_at else 1) * MS
        latencies.append((clock.ns - intended_ns) // MS)

    open_loop([Stream(10 * MS, call)], clock, seconds, lambda ns: slips.append(ns // MS))
    return latencies, slips


def test_a_stall_is_seen_by_the_calls_behind_it() -> None:
    latencies, slips = latencies_ms(stall_at=3, clock=FakeTime())
    assert latencies[:3] == [1, 1, 1]
    # Intended 10, 20, … ms behind the stalled one; each takes 1 ms, so the queue goes by 9 ms a call.
    assert latencies[3:11] == [65, 56, 47, 38, 29, 20, 11, 2]
    assert latencies[11:] == [1] * len(latencies[11:])
    assert len(latencies) == 19, "calls that were late are made up for"
    assert slips == [0] * 19, "the load itself was never late"


def test_the_delay_of_the_load_itself_is_slip() -> None:
    clock = FakeTime()
    slips: list[int] = []

    class Sleepy(FakeTime):
        def wait_until(self, at_ns: int) -> None:
            self.ns = max(self.ns, at_ns) + 3 * MS  # wakes 3 ms late

    clock = Sleepy()
    open_loop([Stream(10 * MS, lambda _: None)], clock, 0.05, lambda ns: slips.append(ns // MS))
    assert slips == [3] * len(slips)
    assert slips


def test_an_overloaded_loop_ends_at_twice_its_time() -> None:
    clock = FakeTime()
    calls: list[int] = []

    def slow(intended_ns: int) -> None:
        clock.ns += 100 * MS
        calls.append(intended_ns)

    open_loop([Stream(10 * MS, slow)], clock, 1.0, lambda _: None)
    assert 19 <= len(calls) <= 20
    assert calls[1] - calls[0] == 10 * MS, "the schedule did not wait"


def test_streams_run_by_their_own_schedules() -> None:
    clock = FakeTime()
    done: list[str] = []
    streams = [Stream(every * MS, lambda _, name=name: done.append(name)) for name, every in (("a", 10), ("b", 25))]  # type: ignore[misc]
    open_loop(streams, clock, 0.1, lambda _: None)
    assert done.count("a") == 9
    assert done.count("b") == 3
    assert done[:4] == ["a", "a", "b", "a"]


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
