"""One shard of one run: its phases in their order, then the account of every message."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

import rmqstore
from rmqstore_benchmarks.grid import aside, phases, steady
from rmqstore_benchmarks.grid.calls import Calls, flushing
from rmqstore_benchmarks.grid.load import Load
from rmqstore_benchmarks.grid.named import ROLL_SPAN_MS, NamedWorkload, workload_named
from rmqstore_benchmarks.grid.pacing import MachineTime
from rmqstore_benchmarks.grid.probes import Probes
from rmqstore_benchmarks.grid.recording import Phase, Rows, Spent, looking, merged, no_rows
from rmqstore_benchmarks.grid.tables import PHASE_NAMES
from rmqstore_benchmarks.grid.task import NULL_ENGINE, NULL_PHASES, ShardTask, open_store
from rmqstore_benchmarks.workloads import START_MS

OPEN_SHARES: Final = {"open_50": 0.50, "open_80": 0.80, "open_95": 0.95}
_ORDER: Final = ("fill", "roll", *(name for name in PHASE_NAMES if name not in ("fill", "roll", "cold_drain", "recover")))
_FILL_PATIENCE_S: Final = 900.0

StoreOpener = Callable[[ShardTask, rmqstore.ManualClock], Any]


class Outcome(msgspec.Struct, frozen=True):
    """What a shard gives back.

    Attributes:
        rows: rows of the tables, by name.
        wrong: what the account found; empty when every message is where it should be. Then the rows mean nothing.
        notes: phases that could not be done, and why.
    """

    rows: Rows
    wrong: str = ""
    notes: tuple[str, ...] = ()


class _Shard:
    """The state between the phases."""

    def __init__(self, task: ShardTask, workload: NamedWorkload, opener: StoreOpener) -> None:
        self.task = task
        self.workload = workload
        self.clock = rmqstore.ManualClock(START_MS)
        Load(workload, task.body_bytes, task.seed, task.shard).found(START_MS)  # whatever is loaded at the first use, is
        self.load = Load(workload, task.body_bytes, task.seed, task.shard)
        self.directory = Path(task.directory)
        self.probes = Probes(self.directory)
        self.rows = no_rows()
        self.notes: list[str] = []
        self.sustainable_rate: float | None = None
        self.calls = Calls(opener(task, self.clock), self.clock, self.load, task.seed)
        self.wanted = [name for name in task.phases if name in workload.phases]
        if task.engine == NULL_ENGINE:
            self.wanted = [name for name in self.wanted if name in NULL_PHASES]

    def begin(self, name: str) -> Phase:
        """Return a phase that is noted."""
        return Phase(self.task.run_id, self.task.shard, name, self.probes, lambda: self.calls.pending)

    def aside(self) -> Phase:
        """Return a phase that nobody reads."""
        return self.begin("aside")

    def measured(self, name: str, run: Callable[[Phase], int], offered_rate: float | None = None) -> float:
        """Run a phase and keep its rows; returns messages a second."""
        _tell(self.task, name)
        spent = Spent(self.probes)
        phase = self.begin(name)
        with looking(phase):
            messages = run(phase)
            spent.stop()
        columns = spent.columns() | {
            "offered_rate": offered_rate,
            "messages": messages,
            "user_bytes": messages * self.load.message_bytes,
            "live_bytes": None if self.task.engine == NULL_ENGINE else self.calls.ledger.kept * self.load.message_bytes,
        }
        merged(self.rows, phase.rows(columns))
        return messages / spent.wall_s if spent.wall_s else 0.0


def run_shard(task: ShardTask, opener: StoreOpener = open_store) -> Outcome:
    """Run the phases of ``task``; the directory of its store is made, and removed whatever happens.

    Args:
        opener: opens the store; tests give one that loses messages.
    """
    workload = workload_named(task.workload)
    directory = Path(task.directory)
    shutil.rmtree(directory, ignore_errors=True)  # what an attempt left that was killed
    directory.mkdir(parents=True)
    try:
        return _run(_Shard(task, workload, opener))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run(shard: _Shard) -> Outcome:
    calls, task = shard.calls, shard.task
    is_null = task.engine == NULL_ENGINE
    try:
        with flushing(calls.store, task.flush):
            for name in _ORDER:
                if name in shard.wanted:
                    _run_phase(shard, name)
            if not is_null:
                _tell(task, "verify")
                calls.settle(shard.aside())
    finally:
        calls.store.close()
    if not is_null and not calls.ledger.verdict():
        if "recover" in shard.wanted:
            _tell(task, "recover")
            aside.recover(shard)
        if "cold_drain" in shard.wanted:
            _tell(task, "cold_drain")
            aside.cold_drain(shard)
    return Outcome(shard.rows, calls.ledger.verdict(), tuple(shard.notes))


def _run_phase(shard: _Shard, name: str) -> None:
    calls, task, workload = shard.calls, shard.task, shard.workload
    seconds, backlog = task.seconds, task.backlog
    rolls = "roll" in shard.wanted
    if name == "fill":
        origin_ms = START_MS + (ROLL_SPAN_MS if rolls else 0)
        shard.measured("fill", lambda phase: _made(calls, lambda: calls.fill(phase, backlog, origin_ms, _FILL_PATIENCE_S)))
    elif name == "roll":
        shard.measured("roll", lambda phase: phases.roll(calls, phase))
    elif name == "schedule":
        shard.measured("schedule", lambda phase: phases.schedule(calls, phase, seconds, backlog))
    elif name == "cancel":
        shard.measured("cancel", lambda phase: phases.cancel(calls, phase, seconds, backlog))
    elif name == "hand_over" and workload.at_once:
        due_ms = calls.clock.now_ms() + int(shard.load.mean_wait_ms)
        shard.measured("hand_over", lambda phase: phases.hand_over_at_once(calls, phase, due_ms))
    elif name == "hand_over":
        shard.measured("hand_over", lambda phase: phases.hand_over(calls, phase, seconds))
    elif name == "pop_ack":
        shard.measured("pop_ack", lambda phase: phases.pop_ack(calls, phase, seconds))
    else:
        _run_steady(shard, name)


def _run_steady(shard: _Shard, name: str) -> None:
    """Run the closed loop of everything, or the open loop at a share of its rate, on a backlog that has its size again."""
    calls, seconds, backlog = shard.calls, shard.task.seconds, shard.task.backlog
    if shard.task.engine != NULL_ENGINE:
        calls.drain_ready(shard.aside())
        calls.ready = 0
    calls.cancel_overdue(shard.aside())
    phases.trim(calls, shard.aside(), backlog)
    calls.fill(shard.aside(), backlog, calls.clock.now_ms(), _FILL_PATIENCE_S)
    if name == "mixed":
        shard.sustainable_rate = shard.measured("mixed", lambda phase: steady.mixed(calls, phase, seconds, backlog))
        return
    if not shard.sustainable_rate:
        shard.notes.append(f"{name} was not run: its rate is a share of what the phase mixed reaches")
        return
    rate = shard.sustainable_rate * OPEN_SHARES[name]
    shard.measured(name, lambda phase: steady.at_rate(calls, phase, seconds, backlog, rate, MachineTime()), rate)


def _made(calls: Calls, run: Callable[[], None]) -> int:
    before = calls.ledger.made
    run()
    return calls.ledger.made - before


def _tell(task: ShardTask, phase: str) -> None:
    """Say where the task is, for whoever watches on the same machine."""
    if task.progress:
        with suppress(OSError):
            Path(task.progress).write_text(json.dumps({"phase": phase, "at_s": time.time()}), encoding="utf-8")
