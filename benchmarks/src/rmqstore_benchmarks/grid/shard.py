"""One shard of one run: its phases in their order, then the account of every message; its tables go back to the driver as Arrow."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

import rmqstore
from rmqstore_benchmarks.grid import aside, pacing, phases
from rmqstore_benchmarks.grid.calls import Calls, Form, flushing
from rmqstore_benchmarks.grid.named import ROLL_SPAN_MS, START_MS, NamedWorkload, workload_named
from rmqstore_benchmarks.grid.recording import Phase, Probes, Rows, Spent, looking, merged, no_rows
from rmqstore_benchmarks.grid.stores import HOLLOW, NULL_ENGINE, NULL_PHASES, RAW_PHASES, ShardTask, open_store
from rmqstore_benchmarks.grid.tables import PHASE_NAMES

OPEN_SHARES: Final = {"open_50": 0.50, "open_80": 0.80, "open_95": 0.95}
_CONSUMERS: Final = {"consume_1": 1, "consume_8": 8, "consume_64": 64}
_ORDER: Final = ("fill", "roll", *(name for name in PHASE_NAMES if name not in ("fill", "roll", "cold_drain", "recover")))
_FILL_PATIENCE_S: Final = 900.0

StoreOpener = Callable[[ShardTask, rmqstore.ManualClock], Any]


class Outcome(msgspec.Struct, frozen=True):
    """What a shard gives back.

    Attributes:
        rows: rows of the tables, by name.
        wrong: what the account found; empty when every message is where it should be. Else the rows mean nothing.
        failed: why there is nothing; empty when the phases ran to their end.
        notes: phases that could not be done, and why.
    """

    rows: Rows
    wrong: str = ""
    failed: str = ""
    notes: tuple[str, ...] = ()


class _Shard:
    """The state between the phases."""

    def __init__(self, task: ShardTask, workload: NamedWorkload, opener: StoreOpener) -> None:
        self.task = task
        self.workload = workload
        self.clock = rmqstore.ManualClock(START_MS)
        aside.load_of(task).found(START_MS)  # whatever is loaded at the first use, is
        self.load = aside.load_of(task)
        self.directory = Path(task.directory)
        self.probes = Probes(self.directory)
        self.rows = no_rows()
        self.notes: list[str] = []
        self.sustainable_rate: float | None = None
        self.calls = Calls(opener(task, self.clock), self.clock, self.load, task.run.seed)
        self.wanted = [name for name in task.cell.phases if name in workload.phases]
        if task.engine in HOLLOW:
            self.wanted = [name for name in self.wanted if name in (NULL_PHASES if task.engine == NULL_ENGINE else RAW_PHASES)]

    def begin(self, name: str) -> Phase:
        """Return a phase that is noted."""
        return Phase(self.task.run.run_id, self.task.shard, name, lambda: self.calls.pending)

    def aside(self) -> Phase:
        """Return a phase that nobody reads."""
        return self.begin("aside")

    def measured(
        self,
        name: str,
        run: Callable[[Phase], int],
        offered_rate: float | None = None,
        after: Callable[[Phase], dict[str, Any]] = lambda phase: {},
    ) -> float:
        """Run a phase and keep its rows; returns messages a second. ``after`` is not measured, and gives more columns of ``phases``."""
        spent = Spent(self.probes)
        phase = self.begin(name)
        with looking(phase):
            messages = run(phase)
            spent.stop()
        columns = (
            spent.columns()
            | after(phase)
            | {
                "offered_rate": offered_rate,
                "messages": messages,
                "user_bytes": messages * self.load.message_bytes,
                "live_bytes": None if self.task.engine in HOLLOW else self.calls.account.kept * self.load.message_bytes,
            }
        )
        merged(self.rows, phase.rows(columns))
        return messages / spent.wall_s if spent.wall_s else 0.0


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
    return Outcome(shard.rows, calls.account.verdict(), notes=tuple(shard.notes))


def _run_phase(shard: _Shard, name: str) -> None:
    calls, task, workload = shard.calls, shard.task, shard.workload
    if name in _CLOSED_LOOPS:
        shard.measured(name, lambda phase: _CLOSED_LOOPS[name](calls, phase, task.cell.seconds, task.backlog))
    elif name == "fill":
        origin_ms = START_MS + (ROLL_SPAN_MS if "roll" in shard.wanted else 0)
        shard.measured(name, lambda phase: calls.fill(phase, task.backlog, origin_ms, _FILL_PATIENCE_S))
    elif name == "hand_over":
        hand_over = phases.hand_over_at_once if workload.at_once else phases.hand_over
        shard.measured(name, lambda phase: hand_over(calls, phase, task.cell.seconds))
    elif name in _CONSUMERS:
        calls.make_ready(shard.aside(), task.backlog)
        consumers = phases.Consumers(calls, _CONSUMERS[name])
        shard.measured(name, consumers.run, after=consumers.entered)
    else:
        _run_steady(shard, name)


_CLOSED_LOOPS: Final[dict[str, Callable[[Calls, Phase, float, int], int]]] = {
    "roll": lambda calls, phase, seconds, backlog: phases.roll(calls, phase),
    "schedule": phases.schedule,
    "send_lists": partial(phases.schedule, form=Form.LIST),
    "send_one": partial(phases.schedule, form=Form.ONE),
    "cancel": phases.cancel,
    "pop_one": lambda calls, phase, seconds, backlog: phases.pop_ack(calls, phase, seconds, 1),
    "pop_ack": lambda calls, phase, seconds, backlog: phases.pop_ack(calls, phase, seconds),
    "pop_many": lambda calls, phase, seconds, backlog: phases.pop_many(calls, phase, seconds),
}


def _run_steady(shard: _Shard, name: str) -> None:
    """Run the closed loop of everything, or the open loop at a share of its rate, on a backlog that has its size again."""
    calls, seconds, backlog = shard.calls, shard.task.cell.seconds, shard.task.backlog
    if shard.task.engine not in HOLLOW:
        calls.drain_ready(shard.aside())
        calls.ready = 0
    calls.cancel_overdue(shard.aside())
    phases.trim(calls, shard.aside(), backlog)
    calls.fill(shard.aside(), backlog, calls.clock.now_ms(), _FILL_PATIENCE_S)
    if name == "mixed":
        shard.sustainable_rate = shard.measured("mixed", lambda phase: pacing.mixed(calls, phase, seconds, backlog))
        return
    if not shard.sustainable_rate:
        shard.notes.append(f"{name} was not run: its rate is a share of what the phase mixed reaches")
        return
    rate = shard.sustainable_rate * OPEN_SHARES[name]
    shard.measured(name, lambda phase: pacing.at_rate(calls, phase, seconds, backlog, rate, pacing.MachineTime()), rate)


# ---------------------------------------------------------------- as a task of Spark

RESULT_DDL: Final = "outcome binary"
"""An :class:`Outcome` as MessagePack."""

Batches = Iterator[pa.RecordBatch]


def runner(tasks: tuple[ShardTask, ...]) -> Callable[[Batches], Batches]:
    """Return the function that runs the shards that its rows name."""

    def run(batches: Batches) -> Batches:
        for batch in batches:
            found = [msgspec.msgpack.encode(outcome_of(tasks[shard])) for shard in batch.column("shard").to_pylist()]
            yield pa.record_batch({"outcome": pa.array(found, pa.binary())})

    return run


def outcome_of(task: ShardTask) -> Outcome:
    """Run one shard; whatever happens there is an outcome, so that the rest of the grid goes on."""
    try:
        return run_shard(task)
    except Exception as error:  # a failing engine must not end the grid
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome(no_rows(), failed=f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})")
