"""The driver of the grid: one Spark job a run, one run after the other, each kept as soon as it ends; so a grid that was ended goes on.

``DIR`` holds ``spec.json`` (what was asked for), ``environment.json``, ``parts/<run>/`` (Parquet files of one run, which are there when it
is finished) and, at the end, ``results/``: the tables of ``tables``, and ``summary`` and ``latencies``, which ``statistics`` makes of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from rmqstore.errors import ConfigError, IllegalArgumentError
from rmqstore.spark.dataset import write_json
from rmqstore.spark.sessions import session, why_not
from rmqstore_benchmarks.grid.shard import RESULT_DDL, Outcome, runner
from rmqstore_benchmarks.grid.spec import Spec
from rmqstore_benchmarks.grid.stores import Cell, Run, ShardTask
from rmqstore_benchmarks.grid.tables import PHASE_NAMES, RESULTS, TABLES, read
from rmqstore_benchmarks.machine import described
from rmqstore_benchmarks.statistics import figures, in_random_order, latencies

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STORED_FACTOR: Final = 8
"""Bytes on disk for a byte of the backlog that a run may take at its worst: timers, what is added, dead versions; half are messages."""

_HANDING_OVER: Final = frozenset(PHASE_NAMES) - {"fill", "roll", "schedule", "send_lists", "send_one", "cancel", "recover"}

_OVERHEAD_BYTES: Final = 256


class Told(msgspec.Struct, frozen=True):
    """What is told of progress: a run that begins, or that has ended in an outcome, and how many are done of how many."""

    run_id: str
    done: int
    runs: int
    outcome: str = ""
    reason: str = ""


def runs_of(spec: Spec) -> list[Run]:
    """Return all runs: every cell once, then all again for their repeats, each time in another random order."""
    return [
        Run(cell, repeat, spec.seed + repeat)
        for repeat in range(max(cell.repeats for cell in spec.cells))
        for cell in in_random_order(spec.cells, repeat, spec.seed)
        if repeat < cell.repeats
    ]


def run_grid(
    spec: Spec,
    out: Path,
    stores: Path,
    *,
    master: str | None = None,
    command: str = "",
    tell: Callable[[Told], None] = lambda told: None,
) -> dict[str, int]:
    """Run what is not finished yet and write the results.

    Args:
        out: the directory of parts and results; one that another specification began is refused.
        stores: where the stores go, on every machine that runs tasks: the disk that is measured.
        master: the Spark cluster; this machine by default.
        tell: is told of progress.

    Returns:
        The number of runs by outcome.

    Raises:
        ConfigError: ``out`` belongs to another specification.
        IllegalArgumentError: Spark cannot run, or the stores have no room.
    """
    if reason := why_not():
        raise IllegalArgumentError(f"the grid cannot run: {reason}")
    _claim(spec, out)
    require_space(spec, stores)
    runs = runs_of(spec)
    waiting = [run for run in runs if not _is_finished(out, run)]
    write_json(out / "environment.json", described(stores) | {"command": command, "master": master or "local"})
    settings = {"spark.python.worker.reuse": "false", "spark.task.maxFailures": "1"}
    if master is None:
        slots = max(cell.shards for cell in spec.cells)
        master = f"local[{slots}]"
    place = _stores_of(out, stores)
    try:
        with session(master, name="rmqstore-bench", quick=True, settings=settings) as spark:
            for number, run in enumerate(waiting, len(runs) - len(waiting)):
                tell(Told(run.run_id, number, len(runs)))
                outcome, reason = _one_run(spark, run, out, place)
                tell(Told(run.run_id, number + 1, len(runs), outcome, reason))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return write_results(out)


def _stores_of(out: Path, stores: Path) -> Path:
    """Return the directory of this grid's stores, always the same one, and remove what an earlier attempt left in it."""
    place = stores / f"rmqstore-bench-{hashlib.sha256(os.fsencode(out.resolve())).hexdigest()[:12]}"
    shutil.rmtree(place, ignore_errors=True)
    return place


def require_space(spec: Spec, stores: Path) -> None:
    """Refuse to fill the disk under ``stores``.

    Raises:
        IllegalArgumentError: the largest cell has no room; the message names it.
    """
    free = shutil.disk_usage(stores).free
    largest = max(spec.cells, key=_room)
    if free < _room(largest):
        raise IllegalArgumentError(
            f"cell {largest.cell_id} may take {_room(largest):,} bytes and {stores} has {free:,} left; give another --stores"
        )


def _room(cell: Cell) -> int:
    factor = _STORED_FACTOR if _HANDING_OVER.intersection(cell.phases) else _STORED_FACTOR // 2
    return cell.backlog * (cell.body_bytes + _OVERHEAD_BYTES) * factor + 2**30


def _claim(spec: Spec, out: Path) -> None:
    """Make ``out``, or take it up again when the same specification began it."""
    file = out / "spec.json"
    if file.exists():
        begun = json.loads(file.read_text(encoding="utf-8"))["digest"]
        if begun != spec.digest:
            raise ConfigError(f"{out} was begun with another specification; give a new directory, or the old specification to go on")
        return
    if out.is_dir() and any(out.iterdir()):
        raise ConfigError(f"{out} is not empty and was not made by this command; give a new directory")
    (out / "parts").mkdir(parents=True, exist_ok=True)
    write_json(file, {"digest": spec.digest, "spec": msgspec.to_builtins(spec)})


def _is_finished(out: Path, run: Run) -> bool:
    """Say whether a run is done; one that failed is tried again."""
    file = out / "parts" / run.run_id / "runs.parquet"
    return file.exists() and pq.read_table(file, schema=TABLES["runs"]).column("outcome")[0].as_py() != "failed"


def _one_run(spark: SparkSession, run: Run, out: Path, stores: Path) -> tuple[str, str]:
    started_ms, start_s = time.time_ns() // 1_000_000, time.perf_counter()
    tasks = tuple(ShardTask(run.cell, run.repeat, run.seed, shard, str(stores / f"shard-{shard:03d}")) for shard in range(run.cell.shards))
    shards = spark.range(0, len(tasks), 1, len(tasks)).selectExpr("cast(id as int) shard")
    outcomes: list[Outcome] = []
    failed: list[str] = []
    try:
        told = shards.mapInArrow(runner(tasks), RESULT_DDL).toArrow().column("outcome").to_pylist()
        outcomes += map(pickle.loads, told)
    except Exception as error:  # Spark's errors have many types; the grid goes on
        failed.append(f"Spark: {str(error).strip().splitlines()[0]}")
    said = [(f"shard {shard}: ", each) for shard, each in enumerate(outcomes)]
    failed += [shard + each.failed for shard, each in said if each.failed]
    wrong = [shard + each.wrong for shard, each in said if each.wrong]
    notes = [shard + note for shard, each in said for note in each.notes]
    outcome = "failed" if failed else "refused" if wrong else "ok"
    reason = "; ".join(failed + wrong + notes)
    row = pa.Table.from_pylist([run_row(run, outcome, reason, started_ms, time.perf_counter() - start_s)], TABLES["runs"])
    _keep(out, run, row, outcomes if outcome == "ok" else ())
    return outcome, reason


def run_row(run: Run, outcome: str, reason: str, started_ms: int, wall_s: float) -> dict[str, Any]:
    """Return the row of a run in the table ``runs``."""
    cell = run.cell
    return {
        **{name: getattr(cell, name) for name in ("cell_id", "workload", "body_bytes", "backlog", "durability", "shards")},
        "run_id": run.run_id,
        "engine": cell.variant.engine,
        "variant": cell.variant.name,
        "settings": [(key, str(value)) for key, value in ({"flush": cell.flush} | cell.variant.settings).items()],
        "repeat": run.repeat,
        "seed": run.seed,
        "outcome": outcome,
        "reason": reason,
        "started_ms": started_ms,
        "wall_s": wall_s,
    }


def _keep(out: Path, run: Run, row: pa.Table, outcomes: Sequence[Outcome]) -> None:
    """Write a run's files and let them appear at once."""
    place = out / "parts" / run.run_id
    beside = out / f"new-{run.run_id}"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    for name, schema in TABLES.items():
        parts = [row] if name == "runs" else [schema.empty_table(), *(each.table(name) for each in outcomes)]
        pq.write_table(pa.concat_tables(parts), beside / f"{name}.parquet")
    shutil.rmtree(place, ignore_errors=True)
    beside.replace(place)


def write_results(out: Path) -> dict[str, int]:
    """Write ``results/`` anew from the parts of all runs that are there; returns the number of runs by outcome."""
    place = out / RESULTS
    place.mkdir(exist_ok=True)
    for name, schema in TABLES.items():
        parts = [pq.read_table(part, schema=schema) for part in sorted(out.glob(f"parts/*/{name}.parquet"))]
        pq.write_table(pa.concat_tables(parts) if parts else schema.empty_table(), place / f"{name}.parquet")
    results = read(out)
    (summary := figures(results)).to_parquet(place / "summary.parquet", index=False)
    latencies(results, summary).to_parquet(place / "latencies.parquet", index=False)
    outcomes: dict[str, int] = results.runs.outcome.value_counts().to_dict()
    return outcomes
