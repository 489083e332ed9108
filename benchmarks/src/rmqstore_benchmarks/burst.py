"""How quick sends and pops stay while a tick hands over very many timers of one slot: ``python -m rmqstore_benchmarks.burst``.

One thread ticks; another one sends a message and pops one, again and again, a millisecond apart. docs/rip43.md has a run of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

import rmqstore
from rmqstore import ManualClock, Message, MessageBatch, Store
from rmqstore_benchmarks.grid.recording import anon_bytes, every
from rmqstore_benchmarks.machine import measure_engines

_BODY = b"x" * 256
_BATCH = 10_000


class Beside(NamedTuple):
    """What another thread saw while some work was done.

    Attributes:
        sends, pops: the median and the p99 of its calls, in ms.
        first_ms: when a first message of the slot could be popped; empty when none could.
        memory_bytes: the most anonymous memory.
    """

    sends: str
    pops: str
    first_ms: str
    memory_bytes: int


def calls_beside(store: Store, work: Callable[[], object]) -> Beside:
    """Send and pop in another thread while ``work`` is done."""
    taken_s: list[tuple[float, float]] = []
    first_s: list[float] = []
    memory = [anon_bytes() or 0]
    started_s = time.perf_counter()

    def call() -> None:
        begun_s = time.perf_counter()
        store.send(Message("other", _BODY))
        sent_s = time.perf_counter()
        store.pop("other", "g", max_messages=1)
        taken_s.append((sent_s - begun_s, time.perf_counter() - sent_s))
        if not first_s and store.pop("burst", "g", max_messages=1):
            first_s.append(time.perf_counter() - started_s)
        memory.append(anon_bytes() or 0)

    with every(0.001, call, "bench-beside"):
        work()
    sends, pops = ("{:.1f}, {:.1f}".format(*each) for each in 1000 * np.quantile(taken_s, (0.5, 0.99), axis=0).T)
    return Beside(sends, pops, f"{1000 * first_s[0]:.0f}" if first_s else "", max(memory))


def measure(engine: str, root: Path, timers: int) -> None:
    """Print a line about one engine."""
    clock = ManualClock(1_800_000_000_000)
    with rmqstore.open(root / engine, engine=engine, clock=clock, services=False) as store:
        columns = MessageBatch.of([Message("burst", _BODY)] * _BATCH).columns
        for _ in range(timers // _BATCH):
            store.send_batch(columns, delay_ms=60_000)
        quiet = calls_beside(store, lambda: time.sleep(2))
        clock.advance(61_000)
        begun_s = time.perf_counter()
        told = calls_beside(store, store.tick)
        rate = timers / (time.perf_counter() - begun_s)
        assert store.pending().total == 0
    grown = (told.memory_bytes - quiet.memory_bytes) / 2**20
    print(
        f"| {engine} | {rate / 1000:.0f} k | {told.first_ms} | {grown:.0f} MiB | {quiet.sends} | {told.sends} | {told.pops} |", flush=True
    )


if __name__ == "__main__":
    measure_engines(
        __doc__,
        "| | handed over, msgs/s | the first one after, ms | memory | a send before, p50, p99, ms | a send meanwhile | a pop meanwhile |\n"
        "|---|---:|---:|---:|---:|---:|---:|",
        measure,
        timers=10_000_000,
    )
