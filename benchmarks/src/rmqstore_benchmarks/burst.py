"""How quick sends and pops stay while a tick hands over very many timers of one slot: ``python -m rmqstore_benchmarks.burst``.

One thread ticks; another one sends a message and pops one, again and again, a millisecond apart. docs/rip43.md has a run of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import rmqstore
from rmqstore import ManualClock, Message, MessageBatch, Store
from rmqstore_benchmarks.grid.recording import every
from rmqstore_benchmarks.machine import measure_engines

_BODY = b"x" * 256
_BATCH = 10_000


def calls_beside(store: Store, work: Callable[[], object]) -> list[str]:
    """Return the median and p99 of sends, and those of pops, while ``work`` was done, in ms."""
    taken_s = []

    def call() -> None:
        begun_s = time.perf_counter()
        store.send(Message("other", _BODY))
        sent_s = time.perf_counter()
        store.pop("other", "g", max_messages=1)
        taken_s.append((sent_s - begun_s, time.perf_counter() - sent_s))

    with every(0.001, call, "bench-beside"):
        work()
    return ["{:.1f}, {:.1f}".format(*each) for each in 1000 * np.quantile(taken_s, (0.5, 0.99), axis=0).T]


def measure(engine: str, root: Path, timers: int) -> None:
    """Print a line about one engine."""
    clock = ManualClock(1_800_000_000_000)
    with rmqstore.open(root / engine, engine=engine, clock=clock, services=False) as store:
        columns = MessageBatch.of([Message("burst", _BODY)] * _BATCH).columns
        for _ in range(timers // _BATCH):
            store.send_batch(columns, delay_ms=60_000)
        quiet, _ = calls_beside(store, lambda: time.sleep(2))
        clock.advance(61_000)
        begun_s = time.perf_counter()
        told = calls_beside(store, store.tick)
        rate = timers / (time.perf_counter() - begun_s)
        assert store.pending().total == 0
    print(f"| {engine} | {rate / 1000:.0f} k | {' | '.join([quiet, *told])} |", flush=True)


if __name__ == "__main__":
    measure_engines(
        __doc__,
        "| | handed over, msgs/s | a send before it, p50, p99, ms | a send meanwhile | a pop meanwhile |\n|---|---:|---:|---:|---:|",
        measure,
        timers=10_000_000,
    )
