"""What a store costs that is used through its owner, beside the same calls in the process: ``python -m rmqstore_benchmarks.served``.

In process and served take turns, so their ratio holds when the machine's speed drifts. docs/server.md has a run of it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pyarrow as pa

import rmqstore
from rmqstore import Message, MessageBatch, Store, aio
from rmqstore_benchmarks.machine import measure_engines

BODY = b"x" * 256
LATER = timedelta(hours=1)
ROUNDS = 12
CALLS = 300


def timed(call: Callable[[], object], count: int) -> float:
    """Return the median time of some calls, seconds."""
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return float(np.median(taken))


def sends(store: Store) -> Callable[[], object]:
    """Return a send of one message for later."""
    return partial(store.send, Message("t", BODY), delay=LATER)


def batches(store: Store) -> Callable[[], object]:
    """Return a send of 1000 messages for later, as Arrow."""
    return partial(store.send_batch, MessageBatch.of([Message("t", BODY)] * 1000).columns, delay=LATER)


_served: Store
_together: Barrier
"""Of another process: the store that it is connected to, and where it waits for the others."""


def connect(path: Path, together: Barrier) -> None:
    """Be another process, of several that begin their rounds together."""
    global _served, _together
    _served, _together = rmqstore.connect(path), together


def made(call_of: Callable[[Store], Callable[[], object]], count: int) -> float:
    """Make a round of calls in another process; returns the median of their times, seconds."""
    call = call_of(_served)
    _together.wait()
    return timed(call, count)


def woken() -> float:
    """Wait for a message in another process; returns how long ago it was sent, seconds."""
    (found,) = _served.pop("wake", "g", wait=timedelta(seconds=30))
    late_s = time.time() - float(found.body)
    _served.ack(found)
    return late_s


def clients(path: Path, number: int) -> ProcessPoolExecutor:
    """Return so many other processes."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(number, context, connect, (path, context.Barrier(number, timeout=60)))


def beside(store: Store, path: Path, call_of: Callable[[Store], Callable[[], object]], number: int) -> str:
    """Return the median time of a call in process, served, and their ratio."""
    call = call_of(store)
    timed(call, 20)
    with clients(path, 1) as other:
        other.submit(made, call_of, 20).result()
        pairs = [(timed(call, number), other.submit(made, call_of, number).result()) for _ in range(ROUNDS)]
    here, there = np.array(pairs).T
    return f"{np.median(here) * 1e6:.0f} µs | {np.median(there) * 1e6:.0f} µs | {np.median(there / here):.2f}"


def crowd(path: Path, number: int) -> float:
    """Return the sends a second of so many processes together."""
    with clients(path, number) as others:
        list(others.map(made, [sends] * number, [20] * number))
        begun = time.perf_counter()
        list(others.map(made, [sends] * number, [CALLS] * number))
        return number * CALLS / (time.perf_counter() - begun)


def wakes(store: Store, path: Path) -> list[float]:
    """Return how long after a send another process has the message that it waits for, seconds."""
    taken = []
    with clients(path, 1) as other:
        other.submit(made, sends, 1).result()
        for _ in range(CALLS):
            waiting = other.submit(woken)
            time.sleep(0.01)  # until it waits
            store.send(Message("wake", repr(time.time()).encode()))
            taken.append(waiting.result())
    return taken


def idle(path: Path, pops: int = 1000) -> float:
    """Return the share of a core that the owner takes while so many pops wait."""

    async def measured() -> float:
        async with aio.connect(path) as store:
            waiting = [asyncio.create_task(store.pop(f"idle-{number}", "g", wait=timedelta(minutes=5))) for number in range(pops)]
            await asyncio.sleep(2)
            cpu, begun = time.process_time(), time.perf_counter()
            await asyncio.sleep(3)
            share = (time.process_time() - cpu) / (time.perf_counter() - begun)
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            return share

    return asyncio.run(measured())


def consumed(store: Store, count: int = 50_000) -> float:
    """Return the messages a second of a worker whose handler does nothing."""
    columns = MessageBatch.of([Message("work", BODY)] * 1000).columns
    for _ in range(count // 1000):
        store.send_batch(columns)
    begun = time.perf_counter()
    with store.consume("work", "g", lambda message: None, batch=256) as worker:
        while worker.stats.done < count - 256:
            time.sleep(0.005)
        return worker.stats.done / (time.perf_counter() - begun)


OWNER = """
import sys, rmqstore
store = rmqstore.open(sys.argv[1], share=True, engine=sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""


def taken_over(path: Path, engine: str, pending: int) -> float:
    """Return how long after the kill of an owner, with so many timers pending, another process has its call answered, seconds."""
    columns = MessageBatch.of([Message("t", BODY)] * 10_000).columns
    with rmqstore.open(path, engine=engine, services=False) as store:
        for number in range(pending // 10_000):
            store.send_batch(columns.set_column(6, "deliver_at_ms", pa.array([2_000_000_000_000 + number * 100] * 10_000)))
    with subprocess.Popen([sys.executable, "-c", OWNER, str(path), engine], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        with rmqstore.open(path, share=True) as follower:
            follower.pending()
            owner.kill()
            owner.wait()
            begun = time.perf_counter()
            assert follower.pending().total == pending
            return time.perf_counter() - begun


def measure(engine: str, root: Path, pending: int) -> None:
    """Print the rows of one engine."""
    path = root / engine
    with rmqstore.open(path, share=True, engine=engine) as store:
        print(f"| {engine}: send one | {beside(store, path, sends, CALLS)} |")
        print(f"| {engine}: send 1000 as Arrow | {beside(store, path, batches, 30)} |")
        one, many = crowd(path, 1), crowd(path, 16)
        print(f"| {engine}: sends of one process, of 16 | {one:,.0f}/s | {many:,.0f}/s | {many / one:.1f} |")
        half, most = np.quantile(wakes(store, path), (0.5, 0.99)) * 1e3
        print(f"| {engine}: wake-up, p50, p99 | {half:.2f} ms | {most:.2f} ms | |")
        print(f"| {engine}: 1000 pops that wait, of a core | {idle(path):.1%} | | |")
        with rmqstore.connect(path) as served:
            here, there = consumed(store), consumed(served)
            print(f"| {engine}: consume, in process and served | {here:,.0f}/s | {there:,.0f}/s | {there / here:.2f} |")
    print(f"| {engine}: take-over with {pending:,} pending | {taken_over(root / f'{engine}-2', engine, pending):.2f} s | | |", flush=True)


if __name__ == "__main__":
    measure_engines(
        __doc__,
        "| | in process, or the first | served, or the second | ratio |\n| --- | ---: | ---: | ---: |",
        measure,
        pending=1_000_000,
    )
