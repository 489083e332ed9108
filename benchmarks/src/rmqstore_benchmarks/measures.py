"""The measurements, each run in a process of its own: ``python -m rmqstore_benchmarks.measures '<JSON of a Task>'`` prints JSON.

A fresh process and a fresh directory each time keep one measurement's memory, caches and background threads out of the next.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import rmqstore
from rmqstore_benchmarks.baseline import RAW
from rmqstore_benchmarks.workloads import LONGEST_DELAY_MS, TOPIC, Workload

GROUP = "workers"
_DRAIN_LIMIT = 1024
Figures = dict[str, Any]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement.

    Attributes:
        what: a key of :data:`MEASURES`.
        directory: where the data goes; empty.
        timers: how many are stored in all.
        sample_every: timers between two samples of memory.
    """

    what: str
    engine: str
    directory: str
    distribution: str = "uniform"
    timers: int = 100_000
    batch: int = 1000
    seed: int = 1
    sample_every: int = 250_000


def schedule_raw(task: Task) -> Figures:
    """Store the timers in what lies under the engine; returns the rate in timers a second."""
    work = Workload(task.distribution, task.batch, task.seed)
    raw = RAW[task.engine]
    batches = [raw.batch(work, number) for number in range(task.timers // task.batch)]
    database = raw(Path(task.directory, "raw"))
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    for batch in batches:
        database.put(batch)
    return _rate("schedule", task.timers, start_s, start_cpu_s)


def schedule_lists(task: Task) -> Figures:
    """Store the timers by ``Store.send_batch`` as lists of ``Message``."""
    return _schedule(task, Workload.messages)


def pipeline(task: Task) -> Figures:
    """Store the timers as Arrow batches, then hand over, pop and ack them all: the rate of each phase, and of the last three together."""
    return _schedule(task, Workload.arrow, drain=_drain)


def _rate(phase: str, count: int, start_s: float, start_cpu_s: float) -> Figures:
    """Return messages a second, and CPU µs of the whole process a message: what a slow disk or a busy machine changes least."""
    spent_s, spent_cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
    return {phase: count / spent_s, f"{phase}_cpu_us": spent_cpu_s / count * 1e6}


def _open(task: Task) -> tuple[rmqstore.Store, rmqstore.ManualClock]:
    clock = rmqstore.ManualClock(Workload.now_ms(0))
    return rmqstore.open(Path(task.directory, "store"), engine=task.engine, clock=clock, services=False, flush="sync"), clock


def _schedule(
    task: Task,
    make: Callable[[Workload, int], Any],
    drain: Callable[[rmqstore.Store, rmqstore.ManualClock, int], Figures] | None = None,
) -> Figures:
    work = Workload(task.distribution, task.batch, task.seed)
    batches = [make(work, number) for number in range(task.timers // task.batch)]
    store, clock = _open(task)
    with store:
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        for number, batch in enumerate(batches):
            clock.set(work.now_ms(number))
            store.send_batch(batch)
        figures = _rate("schedule", task.timers, start_s, start_cpu_s)
        if drain is not None:
            figures |= drain(store, clock, task.timers)
        return figures


def _drain(store: rmqstore.Store, clock: rmqstore.ManualClock, timers: int) -> Figures:
    clock.advance(2 * LONGEST_DELAY_MS)
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    moved = store.tick().handed_over
    hand_over_s = time.perf_counter() - start_s
    pop_s = read_s = read_cpu_s = ack_s = 0.0
    acked = 0
    while True:
        t0 = time.perf_counter()
        popped = store.pop_batch(TOPIC, GROUP, max_messages=_DRAIN_LIMIT, invisible_ms=3_600_000)
        t1 = time.perf_counter()
        if not len(popped):
            break
        outcomes = store.ack(popped)
        t2, cpu2 = time.perf_counter(), time.process_time()
        read = popped.columns.num_rows
        t3, cpu3 = time.perf_counter(), time.process_time()
        acked += outcomes.count(rmqstore.AckOutcome.ACKED)
        assert read == len(outcomes)
        pop_s, ack_s, read_s, read_cpu_s = pop_s + t1 - t0, ack_s + t2 - t1, read_s + t3 - t2, read_cpu_s + cpu3 - cpu2
    if not moved == acked == timers:
        raise SystemExit(f"{timers} timers were sent, {moved} handed over, {acked} acked")
    return _rate("drain", timers, start_s + read_s, start_cpu_s + read_cpu_s) | {
        "hand_over": timers / hand_over_s,
        "pop": timers / pop_s,
        "ack": timers / ack_s,
        "read": timers / read_s,
    }


def single_raw(task: Task) -> Figures:
    """Put one timer at a time into what lies under the engine; returns percentiles in ms."""
    raw = RAW[task.engine]
    entries = raw.singles(Workload(task.distribution, task.timers, task.seed))
    return _timed(raw(Path(task.directory, "raw")).put, entries)


def single_send(task: Task) -> Figures:
    """Send one message at a time by ``Store.send``."""
    messages = Workload(task.distribution, task.timers, task.seed).messages(0)
    store, _ = _open(task)
    with store:
        return _timed(store.send, messages)


def _timed(call: Callable[[Any], Any], values: list[Any]) -> Figures:
    times_ms = []
    for value in values:
        start_s = time.perf_counter()
        call(value)
        times_ms.append((time.perf_counter() - start_s) * 1000)
    cuts = statistics.quantiles(times_ms, n=100)
    return {"p50_ms": cuts[49], "p99_ms": cuts[98]}


def memory(task: Task) -> Figures:
    """Store the timers and sample anonymous memory on the way: [timers stored, RssAnon in MiB] pairs, and the rate."""
    work = Workload(task.distribution, task.batch, task.seed)
    store, clock = _open(task)
    samples: list[tuple[int, float]] = []
    busy_s = 0.0
    with store:
        for number in range(task.timers // task.batch):
            batch = work.arrow(number)
            clock.set(work.now_ms(number))
            start_s = time.perf_counter()
            store.send_batch(batch)
            busy_s += time.perf_counter() - start_s
            stored = (number + 1) * task.batch
            if stored % task.sample_every == 0:
                samples.append((stored, anonymous_mib()))
                print(f"{task.engine}: {stored:,} timers, {samples[-1][1]:.0f} MiB", file=sys.stderr, flush=True)
        pending = store.pending().total
    if pending != task.timers:
        raise SystemExit(f"{task.timers} timers were sent, {pending} are pending")
    return {"schedule": task.timers / busy_s, "samples": samples}


def anonymous_mib() -> float:
    """Return this process's RssAnon, MiB: memory of its own, without mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status has no RssAnon; this measurement needs Linux 4.5 or newer")


MEASURES: dict[str, Callable[[Task], Figures]] = {
    "schedule_raw": schedule_raw,
    "schedule_lists": schedule_lists,
    "pipeline": pipeline,
    "single_raw": single_raw,
    "single_send": single_send,
    "memory": memory,
}


if __name__ == "__main__":
    given = msgspec.json.decode(sys.argv[1], type=Task)
    print(json.dumps(MEASURES[given.what](given)))
