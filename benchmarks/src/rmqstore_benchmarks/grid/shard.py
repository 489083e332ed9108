"""One shard of one run: its phases in their order, then the account of every message; its tables go back to the driver as Arrow.

The open after ``kill -9`` and the drain with little memory need a process of their own. That process is this module as a program, which is
given a pickled call and gives what it returns.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

import rmqstore
from rmqstore_benchmarks.grid import phases
from rmqstore_benchmarks.grid.calls import Calls, are, flushing
from rmqstore_benchmarks.grid.load import Ids, Load, Made, ticks_of
from rmqstore_benchmarks.grid.named import ROLL_SPAN_MS, START_MS, NamedWorkload, workload_named
from rmqstore_benchmarks.grid.recording import FLOOR_BYTES, NoLimitError, Phase, Tables, limit_for, limited_group, measured, sync_files
from rmqstore_benchmarks.grid.stores import HOLLOW, NULL_ENGINE, NULL_PHASES, RAW_PHASES, ShardTask, open_store
from rmqstore_benchmarks.grid.tables import PHASE_NAMES, TABLES

OPEN_SHARES: Final = {"open_50": 0.50, "open_80": 0.80, "open_95": 0.95}
_PRODUCERS: Final = {"produce_1": 1, "produce_16": 16, "produce_64": 64}
_CONSUMERS: Final = {"consume_1": 1, "consume_8": 8, "consume_64": 64}
_ORDER: Final = ("fill", "roll", *(name for name in PHASE_NAMES if name not in ("fill", "roll", "cold_drain", "recover")))
_FILL_PATIENCE_S: Final = 900.0

StoreOpener = Callable[[ShardTask, rmqstore.ManualClock], Any]


class Outcome(NamedTuple):
    """What a shard gives back.

    Attributes:
        parts: the tables of each phase.
        wrong: what the account found; empty when every message is where it should be. Else the tables mean nothing.
        failed: why there is nothing; empty when the phases ran to their end.
        notes: phases that could not be done, and why.
    """

    parts: Sequence[Tables] = ()
    wrong: str = ""
    failed: str = ""
    notes: Sequence[str] = ()

    def table(self, name: str) -> pa.Table:
        """Return a table of all phases."""
        return pa.concat_tables([TABLES[name].empty_table(), *(part[name] for part in self.parts)])


class _Shard:
    """The state between the phases."""

    def __init__(self, task: ShardTask, workload: NamedWorkload, opener: StoreOpener) -> None:
        self.task = task
        self.workload = workload
        self.clock = rmqstore.ManualClock(START_MS)
        load_of(task).found(START_MS)  # whatever is loaded at the first use, is
        self.load = load_of(task)
        self.directory = Path(task.directory)
        self.parts: list[Tables] = []
        self.notes: list[str] = []
        self.sustainable_rate: float | None = None
        self.calls = Calls(opener(task, self.clock), self.clock, self.load, task.seed)
        self.wanted = [name for name in task.cell.phases if name in workload.phases]
        if task.engine in HOLLOW:
            self.wanted = [name for name in self.wanted if name in (NULL_PHASES if task.engine == NULL_ENGINE else RAW_PHASES)]

    def aside(self) -> Phase:
        """Return a phase that nobody reads."""
        return Phase(self.task.run_id, self.task.shard, "aside")

    def measured(self, name: str, run: Callable[[Phase], int], after: Callable[[Phase], dict[str, Any]] = lambda phase: {}) -> float:
        """Run a phase and keep its tables; returns messages a second. ``after`` is not measured, and gives more columns of ``phases``."""
        phase = Phase(self.task.run_id, self.task.shard, name)
        columns = measured(phase, self.directory, run) | after(phase)
        columns["user_bytes"] = columns["messages"] * self.load.message_bytes
        if self.task.engine not in HOLLOW:
            columns["live_bytes"] = self.calls.account.kept * self.load.message_bytes
        self.parts.append(phase.tables(columns))
        return float(columns["messages"] / columns["wall_s"])


def load_of(task: ShardTask) -> Load:
    """Return the load of a shard, of which nothing is made yet."""
    return Load(workload_named(task.cell.workload), task.cell.body_bytes, task.seed, task.shard)


def run_shard(task: ShardTask, opener: StoreOpener = open_store) -> Outcome:
    """Run the phases of ``task``; the directory of its store is made, and removed whatever happens.

    Args:
        opener: opens the store; tests give one that loses messages.
    """
    workload = workload_named(task.cell.workload)
    directory = Path(task.directory)
    shutil.rmtree(directory, ignore_errors=True)  # what an attempt left that was killed
    directory.mkdir(parents=True)
    try:
        return _run(_Shard(task, workload, opener))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run(shard: _Shard) -> Outcome:
    calls, task = shard.calls, shard.task
    is_hollow = task.engine in HOLLOW
    try:
        with flushing(calls.store, task.cell.flush):
            for name in _ORDER:
                if name in shard.wanted:
                    _run_phase(shard, name)
            if not is_hollow:
                calls.settle(shard.aside())
    finally:
        calls.store.close()
    if not is_hollow and not calls.account.verdict():
        if "recover" in shard.wanted:
            recover(shard)
        if "cold_drain" in shard.wanted:
            cold_drain(shard)
    return Outcome(shard.parts, calls.account.verdict(), notes=shard.notes)


def _run_phase(shard: _Shard, name: str) -> None:
    calls, seconds, backlog = shard.calls, shard.task.cell.seconds, shard.task.backlog
    if name in ("warm_up", "mixed", *OPEN_SHARES):
        _run_steady(shard, name)
    elif name == "fill":
        origin_ms = START_MS + (ROLL_SPAN_MS if "roll" in shard.wanted else 0)
        shard.measured(name, lambda phase: calls.fill(phase, backlog, origin_ms, _FILL_PATIENCE_S))
    elif name in _PRODUCERS:
        producers = phases.Producers(calls, _PRODUCERS[name])
        shard.measured(name, producers.run, producers.entered)
    elif name in _CONSUMERS:
        calls.make_ready(shard.aside(), backlog)
        consumers = phases.Consumers(calls, _CONSUMERS[name])
        shard.measured(name, consumers.run, consumers.entered)
    else:
        loop = phases.hand_over_at_once if name == "hand_over" and shard.workload.at_once else phases.LOOPS[name]
        shard.measured(name, lambda phase: loop(calls, phase, seconds, backlog))


def _run_steady(shard: _Shard, name: str) -> None:
    """Run the closed loop of everything, or the open loop at a share of its rate, on a backlog that has its size again."""
    calls, seconds, backlog = shard.calls, shard.task.cell.seconds, shard.task.backlog
    if shard.task.engine not in HOLLOW:
        calls.drain_ready(shard.aside())
        calls.ready = 0
    # What was to be cancelled while time passed in phases that cancel nothing, and what is beyond the backlog.
    calls.cancel_all(shard.aside(), calls.calendar.take(calls.clock.now_ms()))
    phases.cancel_random(calls, shard.aside(), calls.pending - backlog)
    calls.fill(shard.aside(), backlog, calls.clock.now_ms(), _FILL_PATIENCE_S)
    if name not in OPEN_SHARES:
        shard.sustainable_rate = shard.measured(name, lambda phase: phases.mixed(calls, phase, seconds, backlog))
        return
    if not shard.sustainable_rate:
        shard.notes.append(f"{name} was not run: its rate is a share of what the phase mixed reaches")
        return
    rate = shard.sustainable_rate * OPEN_SHARES[name]
    offered = {"offered_per_s": phases.offered_per_s(calls.load, seconds, rate)}
    shard.measured(name, lambda phase: phases.at_rate(calls, phase, seconds, backlog, rate), lambda phase: offered)


# ---------------------------------------------------------------- in a process of their own

_TAIL_MESSAGES: Final = 20_000
_TAIL_BYTES: Final = 64 * 1024 * 1024
_CHILD_PATIENCE_S: Final = 300.0
_STEPS: Final = 256
_NO_MEMORY: Final = ("MemoryError", "Cannot allocate memory", "std::bad_alloc")


def recover(shard: _Shard) -> None:
    """Let a child add timers and be killed; then time the open, and compare what is there with what was acknowledged."""
    calls, load = shard.calls, shard.load
    count = max(min(_TAIL_MESSAGES, _TAIL_BYTES // load.message_bytes), 1)
    ended = _child(partial(die, shard.task, shard.clock.now_ms(), load.made, load.batches, count))
    if ended.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the child that was to be killed ended with {ended.returncode}: {ended.stderr.decode()[-500:]}")
    acknowledged = int(ended.stdout.split()[-1]) if ended.stdout.split() else 0
    for made in tail_batches(load, shard.clock.now_ms(), acknowledged):
        calls.account.make(made.ids, ticks_of(made.due_ms), 0)

    def open_again(_: object) -> int:
        calls.store = open_store(shard.task, shard.clock)
        return calls.pending

    shard.measured("recover", open_again)
    try:
        held = calls.held()
    finally:
        calls.store.close()
    # The call in which the child died may have been stored; it was never acknowledged, so both is right.
    calls.account.settle(held[held < calls.account.made], shard.clock.now_ms())
    if unacknowledged := int((held >= calls.account.made).sum()):
        shard.notes.append(f"{unacknowledged} timers of the call that the kill cut short were stored")


def cold_drain(shard: _Shard) -> None:
    """Drop the store's files from the page cache, and let a child with little memory hand over everything, then pop and ack it."""
    calls = shard.calls
    expected = calls.account.open_ids()
    backlog_bytes = len(expected) * shard.load.message_bytes
    limit = limit_for(backlog_bytes)
    sync_files(shard.directory, forget=True)
    try:
        with limited_group(shard.task.directory, limit) as group:
            ended = _child(partial(drain, shard.task, shard.clock.now_ms(), len(expected), limit), group)
    except NoLimitError as error:
        shard.notes.append(f"cold_drain was not run: {error}")
        return
    except subprocess.TimeoutExpired:
        shard.notes.append(f"cold_drain was not done after {_CHILD_PATIENCE_S:.0f} s in {limit:,} bytes of memory")
        return
    if ended.returncode or not ended.stdout:
        said = ended.stderr.decode(errors="replace")
        failure = f"cold_drain ended with {ended.returncode} in {limit:,} bytes of memory: {said.strip()[-300:]}"
        # Killed by the kernel, or refused an allocation: that says nothing of the engine.
        if ended.returncode == -signal.SIGKILL or any(words in said for words in _NO_MEMORY):
            shard.notes.append(failure)
        else:
            calls.account.fail(failure)
        return
    parts, popped, acked = pickle.loads(ended.stdout)
    calls.note_pops(*popped.T)
    calls.account.ack(acked)
    calls.account.settle(np.zeros(0, np.int64), shard.clock.now_ms())
    shard.parts += parts
    if limit == FLOOR_BYTES:
        shard.notes.append(f"cold_drain: a quarter of {backlog_bytes:,} bytes is less than a process needs, so it had {limit:,} bytes")


def tail_batches(load: Load, now_ms: int, count: int) -> Iterator[Made]:
    """Yield ``count`` timers in the batches that the child sends: the same in the child and in who looks for them afterwards."""
    while count > 0:
        made = load.fresh(now_ms, min(load.batch_rows, count))
        yield made
        count -= len(made.ids)


def _child(call: Callable[[], object], group: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "rmqstore_benchmarks.grid.shard"]
    if group is not None:  # entered before the child is, so that all of its memory counts
        command = ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"), *command]
    return subprocess.run(command, input=pickle.dumps(call), capture_output=True, check=False, timeout=_CHILD_PATIENCE_S)


def die(task: ShardTask, now_ms: int, made: int, batches: int, count: int) -> None:
    """Send so many timers more than its load has made, say after each call how many were acknowledged, and be killed."""
    load = load_of(task)
    load.made, load.batches = made, batches
    store = open_store(task, rmqstore.ManualClock(now_ms))
    sent = 0
    for each in tail_batches(load, now_ms, count):
        store.send_batch(each.columns)
        sent += len(each.ids)
        print(sent, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def drain(task: ShardTask, now_ms: int, count: int, limit_bytes: int) -> tuple[list[Tables], Ids, Ids]:
    """Let simulated time pass until all is handed over, then pop and ack all, so that what was written last is not read from the cache.

    Returns:
        The tables of both phases, what was popped (a row of five for each message, in order: number, attempt, length and last word of its
        body, and the simulated time, ms), and the numbers that were acked.
    """
    load = load_of(task)
    clock = rmqstore.ManualClock(now_ms)
    parts = []
    with open_store(task, clock) as store:
        calls = _Told(store, clock, load, task.seed)
        for name, act, kept in (("cold_hand_over", _hand_all_over, count), ("cold_pop_ack", _Told.drain_ready, 0)):
            phase = Phase(task.run_id, task.shard, name)
            columns = measured(phase, Path(task.directory), partial(act, calls)) | {
                "messages": count,
                "user_bytes": count * load.message_bytes,
                "live_bytes": kept * load.message_bytes,
                "memory_limit_bytes": limit_bytes,
            }
            parts.append(phase.tables(columns))
    return parts, np.concatenate([np.zeros((0, 5), np.int64), *calls.popped]), np.concatenate([np.zeros(0, np.int64), *calls.acked])


def _hand_all_over(calls: Calls, phase: Phase) -> None:
    step_ms = max(int(calls.load.mean_wait_ms / _STEPS), 1)
    while (ahead_ms := calls.store.next_wake_ms()) is not None:
        if moved := calls.tick(phase, calls.clock.now_ms() + max(ahead_ms, step_ms)):
            step_ms = phases.next_step_ms(step_ms, moved)


class _Told(Calls):
    """Keeps what the store said of pops and acks, for the account that the parent has."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.popped: list[Ids] = []
        self.acked: list[Ids] = []

    def note_pops(self, ids: Ids, attempts: Ids, lengths: Ids, tails: Ids, now_ms: Ids) -> Ids:
        self.popped.append(np.column_stack([ids, attempts, lengths, tails, now_ms]))
        return ids[:0]

    def note_acks(self, ids: Ids, outcomes: list[rmqstore.AckOutcome]) -> None:
        self.acked.append(ids[are(outcomes, rmqstore.AckOutcome.ACKED)])


# ---------------------------------------------------------------- as a task of Spark

RESULT_DDL: Final = "outcome binary"
"""An :class:`Outcome`, pickled."""

Batches = Iterator[pa.RecordBatch]


def runner(tasks: tuple[ShardTask, ...]) -> Callable[[Batches], Batches]:
    """Return the function that runs the shards that its rows name."""

    def run(batches: Batches) -> Batches:
        for batch in batches:
            found = [pickle.dumps(outcome_of(tasks[shard])) for shard in batch.column("shard").to_pylist()]
            yield pa.record_batch({"outcome": pa.array(found, pa.binary())})

    return run


def outcome_of(task: ShardTask) -> Outcome:
    """Run one shard; whatever happens there is an outcome, so that the rest of the grid goes on."""
    try:
        return run_shard(task)
    except Exception as error:  # a failing engine must not end the grid
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome(failed=f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})")


if __name__ == "__main__":
    sys.stdout.buffer.write(pickle.dumps(pickle.load(sys.stdin.buffer)()))
