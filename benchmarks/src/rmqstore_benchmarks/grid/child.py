"""``python -m rmqstore_benchmarks.grid.child '<JSON of a ChildJob>'``: owns a store to be killed, or to drain it with little memory."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

import rmqstore
from rmqstore_benchmarks.grid.aside import ChildJob, Drained, tail_batches, tail_load
from rmqstore_benchmarks.grid.calls import Calls
from rmqstore_benchmarks.grid.load import Ids, Load
from rmqstore_benchmarks.grid.named import workload_named
from rmqstore_benchmarks.grid.phases import next_step_ms
from rmqstore_benchmarks.grid.probes import Probes
from rmqstore_benchmarks.grid.recording import Phase, Spent, looking
from rmqstore_benchmarks.grid.stores import open_store

_STEPS: Final = 256


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
    with open_store(job.task, clock) as store:
        calls = _Told(store, clock, load, job.task.seed)
        phase = Phase(job.task.run_id, job.task.shard, "cold_drain", probes, lambda: job.count - calls.handed)
        spent = Spent(probes)
        with looking(phase):
            step_ms = max(int(load.mean_wait_ms / _STEPS), 1)
            while (ahead_ms := store.next_wake_ms()) is not None:
                moved = calls.tick(phase, clock.now_ms() + max(ahead_ms, step_ms))
                if moved:
                    step_ms = next_step_ms(step_ms, moved)
                    calls.drain_ready(phase)
        spent.stop()
    acked = sum(map(len, calls.acked))
    columns = spent.columns() | {
        "messages": acked,
        "user_bytes": acked * load.message_bytes,
        "live_bytes": (job.count - acked) * load.message_bytes,
        "memory_limit_bytes": job.limit_bytes,
    }
    answer = Drained(phase.rows(columns), b"".join(map(np.ndarray.tobytes, calls.popped)), b"".join(map(np.ndarray.tobytes, calls.acked)))
    Path(job.answer).write_bytes(msgspec.msgpack.encode(answer))


class _Told(Calls):
    """Keeps what the store said, for the account that the parent has: what was popped, as ``Drained`` has it, and the numbers acked."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.popped: list[Ids] = []
        self.acked: list[Ids] = []

    def note_pops(self, ids: Ids, attempts: Ids, lengths: Ids, tails: Ids, now_ms: Ids) -> Ids:
        self.popped.append(np.column_stack([ids, attempts, lengths, tails, now_ms]))
        return ids[:0]

    def note_acks(self, ids: Ids, outcomes: list[rmqstore.AckOutcome]) -> None:
        self.acked.append(ids[np.fromiter((each is rmqstore.AckOutcome.ACKED for each in outcomes), bool, len(outcomes))])


if __name__ == "__main__":
    given = msgspec.json.decode(sys.argv[1], type=ChildJob)
    {"die": die, "drain": drain}[given.what](given)
