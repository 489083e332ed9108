"""One shard of one run: its phases in their order, then the account of every message; its tables go back to the driver as Arrow."""

from __future__ import annotations

import pickle
import shutil
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

import rmqstore
from rmqstore_benchmarks.grid import aside, phases
from rmqstore_benchmarks.grid.calls import Calls, flushing
from rmqstore_benchmarks.grid.named import ROLL_SPAN_MS, START_MS, NamedWorkload, workload_named
from rmqstore_benchmarks.grid.recording import Phase, Tables, measured
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
        aside.load_of(task).found(START_MS)  # whatever is loaded at the first use, is
        self.load = aside.load_of(task)
        self.directory = Path(task.directory)
        self.parts: list[Tables] = []
        self.notes: list[str] = []
        self.sustainable_rate: float | None = None
        self.calls = Calls(opener(task, self.clock), self.clock, self.load, task.run.seed)
        self.wanted = [name for name in task.cell.phases if name in workload.phases]
        if task.engine in HOLLOW:
            self.wanted = [name for name in self.wanted if name in (NULL_PHASES if task.engine == NULL_ENGINE else RAW_PHASES)]

    def aside(self) -> Phase:
        """Return a phase that nobody reads."""
        return Phase(self.task.run.run_id, self.task.shard, "aside")

    def measured(self, name: str, run: Callable[[Phase], int], after: Callable[[Phase], dict[str, Any]] = lambda phase: {}) -> float:
        """Run a phase and keep its tables; returns messages a second. ``after`` is not measured, and gives more columns of ``phases``."""
        phase = Phase(self.task.run.run_id, self.task.shard, name)
        columns = measured(phase, self.directory, run) | after(phase)
        columns["user_bytes"] = columns["messages"] * self.load.message_bytes
        if self.task.engine not in HOLLOW:
            columns["live_bytes"] = self.calls.account.kept * self.load.message_bytes
        self.parts.append(phase.tables(columns))
        return float(columns["messages"] / columns["wall_s"])


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
            aside.recover(shard)
        if "cold_drain" in shard.wanted:
            aside.cold_drain(shard)
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
