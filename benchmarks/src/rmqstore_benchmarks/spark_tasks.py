"""What the Spark job does inside a task: write one store, and drain it again. Plain functions over Arrow batches; the context is Spark's.

A store is one shard and belongs to one task at a time: opened in it, closed in ``finally``, kept by nobody. A task that is tried again
sends the same batches with the same marks, so what its predecessor stored is not stored twice (I1).
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

import rmqstore
from rmqstore_benchmarks.histogram import bucket_of
from rmqstore_benchmarks.workloads import LONGEST_DELAY_MS, START_MS

GROUP: Final = "drainers"
SUMMARY: Final = "shard int, op string, second long, bucket int, calls long, messages long, ns long"
"""What tasks return: calls of one kind that ended in one second and took one bucket of ns; ``messages`` and ``ns`` are sums over them."""

CHECK_OPS: Final = ("lost", "twice", "foreign")
"""Operations of no call: rows in which a drain says how many ids did not come, came again, or belong to another shard."""

_ARROW_SUMMARY: Final = pa.schema(
    [("shard", pa.int32()), ("op", pa.string()), ("second", pa.int64()), ("bucket", pa.int32())]
    + [(name, pa.int64()) for name in ("calls", "messages", "ns")]
)
_STEP_MS: Final = 600_000
_POP: Final = 1024
_LOCK_PATIENCE_S: Final = 15.0

Batches = Iterator[pa.RecordBatch]
Task = Callable[[Batches], Batches]


class Job(msgspec.Struct, frozen=True):
    """One engine's part of a run.

    Attributes:
        root: directory of the shards.
        run: name of the run, part of every mark.
        rows: ids in all shards together, 0 to ``rows - 1``.
        fail_after: the first attempt on every shard fails after so many batches; -1 = never.
    """

    engine: str
    root: str
    run: str
    topic: str
    rows: int
    shards: int
    fail_after: int = -1


class Recorder:
    """Counts calls by kind, second and latency bucket."""

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self._cells: dict[tuple[str, int, int], list[int]] = {}

    def timed(self, op: str, call: Callable[[], Any], messages: Callable[[Any], int]) -> Any:
        """Call, note how long it took and how many messages it moved, and return its answer."""
        start_ns = time.perf_counter_ns()
        answer = call()
        self.add(op, time.perf_counter_ns() - start_ns, messages(answer))
        return answer

    def add(self, op: str, ns: int, messages: int) -> None:
        """Note one call."""
        cell = self._cells.setdefault((op, int(time.time()), bucket_of(ns)), [0, 0, 0])
        cell[0] += 1
        cell[1] += messages
        cell[2] += ns

    def batch(self) -> pa.RecordBatch:
        """Return everything noted, as rows of :data:`SUMMARY`."""
        rows = [(self._shard, *key, *cell) for key, cell in self._cells.items()]
        columns = zip(*rows, strict=True) if rows else [[] for _ in _ARROW_SUMMARY]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _ARROW_SUMMARY, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SUMMARY)


def shard_of(key: str, shards: int) -> int:
    """Return the shard of a key, as Spark's ``pmod(crc32(key), shards)``."""
    return zlib.crc32(key.encode()) % shards


def shard_path(job: Job, shard: int) -> Path:
    """Return the store directory of a shard."""
    return Path(job.root, f"shard-{shard:03d}")


def open_shard(job: Job, shard: int, now_ms: int) -> tuple[rmqstore.Store, rmqstore.ManualClock]:
    """Open the store of a shard; waits for a task that was given up and still holds it.

    Raises:
        StoreLockedError: it is still held after 15 s.
    """
    clock = rmqstore.ManualClock(now_ms)
    until_s = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            return rmqstore.open(shard_path(job, shard), engine=job.engine, clock=clock, services=False), clock
        except rmqstore.StoreLockedError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.1)


def writer(job: Job) -> Task:
    """Return the function that writes the rows of one partition, all of one shard, into its store."""

    def write(batches: Batches) -> Batches:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        shard, attempt = context.partitionId(), context.attemptNumber()
        yield write_shard(job, shard, batches, fails=attempt == 0)

    return write


def write_shard(job: Job, shard: int, batches: Batches, *, fails: bool = False) -> pa.RecordBatch:
    """Send ``batches`` (shard, key, topic, body, deliver_at_ms) and return the summary; the batches must be the same on every attempt."""
    recorder = Recorder(shard)
    store, _ = open_shard(job, shard, START_MS)
    try:
        for number, batch in enumerate(batches):
            if fails and number == job.fail_after:
                raise RuntimeError(f"shard {shard}: injected failure after {number} batches")
            if not np.all(batch.column("shard").to_numpy() == shard):
                raise ValueError(f"partition {shard} was given rows of another shard")
            mark = f"{job.run}/{shard}/{number}".encode()
            start_ns = time.perf_counter_ns()
            sent = store.send_batch(_messages(batch), marks=(mark,))
            recorder.add("repeated" if sent.repeated else "schedule", time.perf_counter_ns() - start_ns, len(sent))
    finally:
        store.close()
    return recorder.batch()


def _messages(batch: pa.RecordBatch) -> pa.RecordBatch:
    keys = pa.ListArray.from_arrays(np.arange(len(batch) + 1, dtype=np.int32), batch.column("key"))
    names = ("topic", "body", "deliver_at_ms")
    return pa.RecordBatch.from_arrays([*(batch.column(name) for name in names), keys], names=[*names, "keys"])


def drainer(job: Job) -> Task:
    """Return the function that drains the stores of the shards that its rows name."""

    def drain(batches: Batches) -> Batches:
        for batch in batches:
            for shard in batch.column("shard").to_pylist():
                yield drain_shard(job, shard)

    return drain


def drain_shard(job: Job, shard: int) -> pa.RecordBatch:
    """Let simulated time pass, ten minutes or more at a step; hand over, pop and ack what is due; check the ids; return the summary."""
    recorder = Recorder(shard)
    ids: list[int] = []
    store, clock = open_shard(job, shard, START_MS)
    try:
        while (ahead_ms := store.next_wake_ms()) is not None:
            if clock.now_ms() > START_MS + 2 * LONGEST_DELAY_MS:
                raise RuntimeError(f"shard {shard}: something is still waiting after every timer is due")
            clock.advance(max(ahead_ms, _STEP_MS))
            recorder.timed("hand_over", store.tick, lambda report: int(report.handed_over))
            while len(popped := recorder.timed("pop", partial(store.pop_batch, job.topic, GROUP, max_messages=_POP), len)):
                ids += map(int, popped.columns.column("keys").flatten().to_pylist())
                recorder.timed("ack", partial(store.ack, popped), lambda outcomes: outcomes.count(rmqstore.AckOutcome.ACKED))
    finally:
        store.close()
    expected = {number for number in range(job.rows) if shard_of(str(number), job.shards) == shard}
    seen = set(ids)
    for op, count in zip(CHECK_OPS, (len(expected - seen), len(ids) - len(seen), len(seen - expected)), strict=True):
        recorder.add(op, 0, count)
    return recorder.batch()
