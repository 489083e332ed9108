"""``python -m rmqstore_benchmarks.grid.child '<JSON of a ChildJob>'``: owns a store to be killed, or to drain it with little memory."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

import rmqstore
from rmqstore.message import MAX_POP
from rmqstore_benchmarks.grid.aside import ChildJob, Drained, tail_batches, tail_load
from rmqstore_benchmarks.grid.calls import GROUP
from rmqstore_benchmarks.grid.load import Ids, Load, ends_of, ids_in
from rmqstore_benchmarks.grid.named import workload_named
from rmqstore_benchmarks.grid.probes import Probes
from rmqstore_benchmarks.grid.recording import Phase, Spent, looking
from rmqstore_benchmarks.grid.stores import open_store, page_messages
from rmqstore_benchmarks.workloads import TOPIC

_STEPS: Final = 256
_TICK_MESSAGES: Final = 4096
_LEASE_MS: Final = 3_600_000_000


def die(job: ChildJob) -> None:
    """Send timers, say after each call how many were acknowledged, and be killed."""
    load = tail_load(job.task, job.first_id)
    store = open_store(job.task, rmqstore.ManualClock(job.now_ms))
    sent = 0
    for made in tail_batches(load, job.now_ms, job.count):
        store.send_batch(made.columns)
        sent += len(made.ids)
        print(sent, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def drain(job: ChildJob) -> None:
    """Let simulated time pass until nothing is pending; hand over, pop and ack; leave the rows and the numbers in a file."""
    load = Load(workload_named(job.task.workload), job.task.body_bytes, job.task.seed, job.task.shard)
    clock = rmqstore.ManualClock(job.now_ms)
    probes = Probes(Path(job.task.directory))
    drained = _Drained(job.count, page_messages(load.body_bytes, MAX_POP))
    with open_store(job.task, clock) as store:
        phase = Phase(job.task.run_id, job.task.shard, "cold_drain", probes, lambda: drained.left)
        spent = Spent(probes)
        with looking(phase):
            drained.all_of(store, clock, phase, max(int(load.mean_wait_ms / _STEPS), 1))
        spent.stop()
    acked = sum(map(len, drained.acked))
    columns = spent.columns() | {
        "messages": acked,
        "user_bytes": acked * load.message_bytes,
        "live_bytes": (job.count - acked) * load.message_bytes,
        "memory_limit_bytes": job.limit_bytes,
    }
    answer = Drained(
        phase.rows(columns), b"".join(part.tobytes() for part in drained.popped), b"".join(part.tobytes() for part in drained.acked)
    )
    Path(job.answer).write_bytes(msgspec.msgpack.encode(answer))


class _Drained:
    """How far a drain is: how many timers are left, and what was popped (as ``Drained`` has it) and the numbers that were acked."""

    def __init__(self, count: int, page: int) -> None:
        self.left = count
        self._page = page
        self.popped: list[Ids] = []
        self.acked: list[Ids] = []

    def all_of(self, store: rmqstore.Store, clock: rmqstore.ManualClock, phase: Phase, step_ms: int) -> None:
        """Drain a store; simulated time moves by steps in which some thousand messages are due."""
        while (ahead_ms := store.next_wake_ms()) is not None:
            clock.advance(max(ahead_ms, step_ms))
            begin_ns = time.perf_counter_ns()
            moved = store.tick().handed_over
            if not moved:
                continue
            phase.call("hand_over", begin_ns, time.perf_counter_ns(), moved)
            self.left -= moved
            if moved < _TICK_MESSAGES // 2:
                step_ms *= 2
            elif moved > 2 * _TICK_MESSAGES:
                step_ms = max(step_ms // 2, 1)
            while self._popped(store, phase, clock.now_ms()):
                pass

    def _popped(self, store: rmqstore.Store, phase: Phase, now_ms: int) -> int:
        begin_ns = time.perf_counter_ns()
        batch = store.pop_batch(TOPIC, GROUP, max_messages=self._page, invisible_ms=_LEASE_MS)
        if not len(batch):
            return 0
        phase.call("pop", begin_ns, time.perf_counter_ns(), len(batch))
        bodies, attempts = batch.columns.column("body"), batch.columns.column("attempt").to_numpy()
        ids = ids_in(bodies)
        begin_ns = time.perf_counter_ns()
        outcomes = store.ack(batch)
        phase.call("ack", begin_ns, time.perf_counter_ns(), len(batch))
        self.popped.append(np.column_stack([ids, attempts.astype(np.int64), *ends_of(bodies), np.full(len(ids), now_ms)]))
        self.acked.append(ids[np.fromiter((each is rmqstore.AckOutcome.ACKED for each in outcomes), bool, len(outcomes))])
        return len(batch)


if __name__ == "__main__":
    given = msgspec.json.decode(sys.argv[1], type=ChildJob)
    {"die": die, "drain": drain}[given.what](given)
