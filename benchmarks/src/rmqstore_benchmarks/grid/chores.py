"""What the child process does, once it is where it should be."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

import rmqstore
from rmqstore_benchmarks.grid.aside import ChildJob, Drained
from rmqstore_benchmarks.grid.calls import DRAIN_MESSAGES, GROUP
from rmqstore_benchmarks.grid.load import Ids, Load, ids_in
from rmqstore_benchmarks.grid.named import workload_named
from rmqstore_benchmarks.grid.probes import Probes
from rmqstore_benchmarks.grid.recording import Phase, Spent, looking
from rmqstore_benchmarks.grid.task import open_store
from rmqstore_benchmarks.workloads import TOPIC

_STEPS: Final = 256
_TICK_MESSAGES: Final = 4096


def die(job: ChildJob) -> None:
    """Send timers, say after each call how many were acknowledged, and be killed."""
    load = Load(workload_named(job.task.workload), job.task.body_bytes, job.task.seed + 1_000_003, job.task.shard)
    load.skip_to(job.first_id)
    store = open_store(job.task, rmqstore.ManualClock(job.now_ms))
    sent = 0
    while sent < job.count:
        made = load.fresh(job.now_ms, min(load.batch_rows, job.count - sent))
        store.send_batch(made.columns)
        sent += len(made.ids)
        print(sent, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def drain(job: ChildJob) -> None:
    """Let simulated time pass until nothing is pending; hand over, pop and ack; leave the rows and the numbers in a file."""
    load = Load(workload_named(job.task.workload), job.task.body_bytes, job.task.seed, job.task.shard)
    clock = rmqstore.ManualClock(job.now_ms)
    directory = Path(job.task.directory)
    probes = Probes(directory)
    left = [job.count]
    phase = Phase(job.task.run_id, job.task.shard, "cold_drain", probes, lambda: left[0])
    spent = Spent(probes)
    popped: list[Ids] = []
    acked: list[Ids] = []
    step_ms = max(int(load.mean_wait_ms / _STEPS), 1)
    with looking(phase), open_store(job.task, clock) as store:
        while (ahead_ms := store.next_wake_ms()) is not None:
            clock.advance(max(ahead_ms, step_ms))
            begin_ns = time.perf_counter_ns()
            moved = store.tick().handed_over
            if not moved:
                continue
            phase.call("hand_over", begin_ns, time.perf_counter_ns(), moved)
            left[0] -= moved
            step_ms = step_ms * 2 if moved < _TICK_MESSAGES // 2 else max(step_ms // 2, 1) if moved > 2 * _TICK_MESSAGES else step_ms
            while len(batch := _popped(store, phase)):
                ids = ids_in(batch.columns.column("body"))
                begin_ns = time.perf_counter_ns()
                outcomes = store.ack(batch)
                phase.call("ack", begin_ns, time.perf_counter_ns(), len(batch))
                popped.append(ids)
                acked.append(ids[np.fromiter((each is rmqstore.AckOutcome.ACKED for each in outcomes), bool, len(outcomes))])
        spent.stop()
    done = int(sum(map(len, acked)))
    columns = spent.columns() | {
        "messages": done,
        "user_bytes": done * load.message_bytes,
        "live_bytes": (job.count - done) * load.message_bytes,
        "memory_limit_bytes": job.limit_bytes,
    }
    answer = Drained(phase.rows(columns), _listed(popped), _listed(acked))
    Path(job.answer).write_bytes(msgspec.msgpack.encode(answer))


def _popped(store: rmqstore.Store, phase: Phase) -> rmqstore.MessageBatch:
    begin_ns = time.perf_counter_ns()
    batch = store.pop_batch(TOPIC, GROUP, max_messages=DRAIN_MESSAGES, invisible=3_600_000_000)
    if len(batch):
        phase.call("pop", begin_ns, time.perf_counter_ns(), len(batch))
    return batch


def _listed(parts: list[Ids]) -> list[int]:
    ids: list[int] = np.concatenate([np.zeros(0, np.int64), *parts]).tolist()
    return ids
