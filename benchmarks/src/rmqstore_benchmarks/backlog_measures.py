"""The measures of ``backlog``, each in a process of its own: ``python -m rmqstore_benchmarks.backlog_measures '<JSON>'`` prints JSON."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

import rmqstore
from rmqstore_benchmarks.measures import anonymous_mib
from rmqstore_benchmarks.workloads import HOUR_MS, START_MS, TOPIC, bodies

GROUP: Final = "workers"
DAY_MS: Final = 24 * HOUR_MS
_BATCH: Final = 1000
Figures = dict[str, Any]


def _open(directory: str, engine: str, **settings: Any) -> rmqstore.Store:
    path, clock = Path(directory, "store"), rmqstore.ManualClock(START_MS)
    store: rmqstore.Store = rmqstore.open(path, engine=engine, clock=clock, services=False, flush="sync", **settings)
    return store


def _batches(timers: int, spread_ms: int, *, batch: int = _BATCH, keyed: bool = False, first: int = 0) -> Iterator[pa.RecordBatch]:
    """Yield timers due at random times of the span that begins in an hour; ``spread_ms`` 0: all at one time."""
    for number in range(first, first + timers // batch):
        rng = np.random.default_rng((2, number))
        due = START_MS + HOUR_MS + (rng.integers(0, spread_ms, batch) if spread_ms else np.zeros(batch, np.int64))
        columns = {"topic": pa.array([TOPIC] * batch), "body": bodies(batch, rng), "deliver_at_ms": pa.array(due)}
        if keyed:
            columns["keys"] = pa.array([[f"order-{number * batch + row}"] for row in range(batch)])
        yield pa.record_batch(columns)


@contextmanager
def _timed(figures: Figures, count: int, rate: str = "rate", cpu: str = "cpu_us") -> Iterator[None]:
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    yield
    figures[rate] = count / (time.perf_counter() - start_s)
    figures[cpu] = (time.process_time() - start_cpu_s) / count * 1e6


def index(directory: str, engine: str, batch: int, timers: int) -> Figures:
    """Put timers into the wheel, without a log."""
    from rmqstore_wheel.disk import Disk
    from rmqstore_wheel.formats.wheel import SLOTS, Ring
    from rmqstore_wheel.ledger_ports import Sizes
    from rmqstore_wheel.wheel_index import WheelIndex

    wheel = WheelIndex(Disk(), Path(directory), Ring(1000, SLOTS), Sizes().timer_file_units, lambda why: None)
    wheel.start_empty()
    rng = np.random.default_rng(1)
    rounds = max(timers // batch, 1)
    ticks = START_MS + 1000 * rng.integers(1, 3600, (rounds, batch))
    offsets, sizes = np.arange(batch) * 500, np.full(batch, 500)
    figures: Figures = {}
    with _timed(figures, rounds * batch):
        for number in range(rounds):
            if batch == 1:
                wheel.prepare_one(number + 1, int(ticks[number, 0]), START_MS, 0, 500, 0).commit()
                continue
            seqs = np.arange(number * batch + 1, (number + 1) * batch + 1)
            wheel.prepare(seqs, ticks[number], START_MS, offsets, sizes).commit()
    wheel.close()
    return figures


def hand_over(directory: str, engine: str, spread: str, timers: int) -> Figures:
    """Hand over everything in one tick of the store."""
    figures: Figures = {}
    clock = rmqstore.ManualClock(START_MS)
    with rmqstore.open(Path(directory, "store"), engine=engine, clock=clock, services=False, flush="sync") as store:
        for batch in _batches(timers, HOUR_MS if spread == "hour" else 0):
            store.send_batch(batch)
        clock.advance(3 * HOUR_MS)
        with _timed(figures, timers):
            moved = store.tick().handed_over
        _check(moved, timers, "handed over")
    return figures


def cancel(directory: str, engine: str, by: str, timers: int, count: int) -> Figures:
    """Cancel some of the timers of one slot, picked at random."""
    figures: Figures = {}
    with _open(directory, engine) as store:
        receipts = [store.send_batch(batch) for batch in _batches(timers, 0, keyed=by == "key")]
        picked = random.Random(1).sample(range(timers), count)
        handles = [receipts[row // _BATCH][row % _BATCH].handle or "" for row in picked]
        with _timed(figures, count):
            if by == "key":
                for row in picked:
                    store.cancel_key(TOPIC, f"order-{row}")
            else:
                for first in range(0, count, _BATCH):
                    store.cancel(handles[first : first + _BATCH])
        _check(timers - store.pending().total, count, "cancelled")
    return figures


def pop(directory: str, engine: str, batch: int, timers: int, buffer: bool) -> Figures:
    """Pop and ack what lies in one queue."""
    figures: Figures = {}
    with _open(directory, engine, pop__buffer=buffer) as store:
        for columns in _batches(timers, 0):
            store.send_batch(columns.drop_columns(["deliver_at_ms"]))
        acked = 0
        with _timed(figures, timers):
            while len(popped := store.pop_batch(TOPIC, GROUP, max_messages=batch, invisible_ms=3_600_000)):
                acked += store.ack(popped).count(rmqstore.AckOutcome.ACKED)
        _check(acked, timers, "acked")
    return figures


def backlog(directory: str, engine: str, timers: int) -> Figures:
    """Schedule until so many are pending; the first and the last twentieth are timed."""
    figures: Figures = {}
    part = timers // 20 // _BATCH * _BATCH
    with _open(directory, engine) as store:
        for number in range(20):
            batches = list(_batches(min(part, 200_000), DAY_MS, first=number * part // _BATCH))
            with _timed(figures, min(part, 200_000), "full" if number else "empty", "full_cpu_us" if number else "empty_cpu_us"):
                for batch in batches:
                    store.send_batch(batch)
            del batches
            for batch in _batches(part - min(part, 200_000), DAY_MS, first=number * part // _BATCH + 200):
                store.send_batch(batch)
            print(f"{engine}: {(number + 1) * part:,} timers, {anonymous_mib():.0f} MiB", file=sys.stderr, flush=True)
        figures["anonymous_mib"] = anonymous_mib()
        _check(store.pending().total, 20 * part, "pending")
    return figures


def fill_and_die(directory: str, engine: str, timers: int, tail: int) -> Figures:
    """Store timers and close; then store more, and be killed."""
    with _open(directory, engine) as store:
        for batch in _batches(timers, DAY_MS):
            store.send_batch(batch)
    store = _open(directory, engine)
    for batch in _batches(tail, DAY_MS, first=timers // _BATCH):
        store.send_batch(batch)
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def open_again(directory: str, engine: str, timers: int) -> Figures:
    """Open what a kill left."""
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    store = _open(directory, engine)
    figures = {"ms": (time.perf_counter() - start_s) * 1000, "cpu_ms": (time.process_time() - start_cpu_s) * 1000}
    with store:
        _check(store.pending().total, timers, "pending")
    return figures


def _check(found: int, expected: int, what: str) -> None:
    if found != expected:
        raise SystemExit(f"{expected} timers should be {what}, {found} are")


MEASURES: Final[dict[str, Callable[..., Figures]]] = {
    "index": index,
    "hand_over": hand_over,
    "cancel": cancel,
    "pop": pop,
    "backlog": backlog,
    "fill_and_die": fill_and_die,
    "open": open_again,
}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(MEASURES[given.pop("what")](**given)))
