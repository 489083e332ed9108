"""How quick sends and pops stay while a tick hands over very many timers of one slot: ``python -m rmqstore_benchmarks.burst``.

One thread ticks; another one sends a message and pops one, again and again, a millisecond apart. docs/rip43.md has a run of it.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import rmqstore
from rmqstore import ManualClock, Message, MessageBatch, Store
from rmqstore_benchmarks.machine import described, sentence

_BODY = b"x" * 256
_BATCH = 10_000


def calls_beside(store: Store, work: Callable[[], object]) -> tuple[list[float], list[float]]:
    """Return how long sends and pops took while ``work`` was done, seconds."""
    sends: list[float] = []
    pops: list[float] = []
    over = threading.Event()

    def call() -> None:
        while not over.is_set():
            begun_s = time.perf_counter()
            store.send(Message("other", _BODY))
            sent_s = time.perf_counter()
            store.pop("other", "g", max_messages=1)
            sends.append(sent_s - begun_s)
            pops.append(time.perf_counter() - sent_s)
            time.sleep(0.001)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        work()
    finally:
        over.set()
        thread.join()
    return sends, pops


def measure(engine: str, root: Path, timers: int) -> str:
    """Return a line about one engine."""
    clock = ManualClock(1_800_000_000_000)
    with rmqstore.open(root / engine, engine=engine, clock=clock, services=False) as store:
        columns = MessageBatch.of([Message("burst", _BODY)] * _BATCH).columns
        for _ in range(timers // _BATCH):
            store.send_batch(columns, delay_ms=60_000)
        quiet, _ = calls_beside(store, lambda: time.sleep(2))
        clock.advance(61_000)
        begun_s = time.perf_counter()
        sends, pops = calls_beside(store, store.tick)
        rate = timers / (time.perf_counter() - begun_s)
        assert store.pending().total == 0
    told = ["{:.1f}, {:.1f}".format(*1000 * np.quantile(taken, (0.5, 0.99))) for taken in (quiet, sends, pops)]
    return f"| {engine} | {rate / 1000:.0f} k | {' | '.join(told)} |"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="+", default=["wheel", "rocksdb", "lmdb"])
    parser.add_argument("--timers", type=int, default=10_000_000)
    parser.add_argument("--stores", type=Path, default=Path("/var/tmp"), help="the disk to measure")
    arguments = parser.parse_args()
    print("| | handed over, msgs/s | a send before it, p50, p99, ms | a send meanwhile | a pop meanwhile |\n|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(dir=arguments.stores) as root:
        for engine in arguments.engines:
            print(measure(engine, Path(root), arguments.timers), flush=True)
        print(sentence(described(Path(root))))


if __name__ == "__main__":
    main()
