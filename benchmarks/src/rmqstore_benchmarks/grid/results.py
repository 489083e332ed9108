"""What a run of the grid leaves: its tables as one file each, and reading them, checked against their schemas, without what went wrong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from rmqstore.errors import StorePathError, TransferError
from rmqstore_benchmarks.grid.tables import TABLES
from rmqstore_benchmarks.statistics import cell_phases, latencies, latency_table, summary

RESULTS: Final = "results"
ENVIRONMENT: Final = "environment.json"

_NEEDED: Final = ("runs", "phases")
_RUN_IT: Final = "`rmqstore bench run SPEC.toml` makes them"


class Cell(NamedTuple):
    """One point of the grid.

    Attributes:
        settings: of the engine, as (name, value) pairs.
    """

    cell_id: str
    engine: str
    variant: str
    settings: tuple[tuple[str, str], ...]
    workload: str
    body_bytes: int
    backlog: int
    durability: str
    shards: int

    def setting(self, name: str) -> str | None:
        """Return an engine's setting by the last part of its name: ``roll`` of ``wheel.roll``."""
        for key, value in self.settings:
            if key.replace("__", ".").rpartition(".")[2] == name:
                return value
        return None


class Run(NamedTuple):
    """One repeat of a cell.

    Attributes:
        outcome: "ok", "refused" or "failed"; only "ok" has figures.
    """

    run_id: str
    cell: Cell
    repeat: int
    seed: int | None
    outcome: str
    reason: str
    wall_s: float | None


class Results(NamedTuple):
    """What one directory holds.

    Attributes:
        runs: all of them, also those that have no figures.
        phases, seconds, histograms: tables of the good runs alone, with the columns of their schemas.
        environment: machine, versions and command, as the harness wrote them; empty when it wrote none.
    """

    directory: Path
    runs: list[Run]
    phases: pa.Table
    seconds: pa.Table
    histograms: pa.Table
    environment: dict[str, Any]

    @property
    def good(self) -> list[Run]:
        """The runs that have figures."""
        return [run for run in self.runs if run.outcome == "ok"]


def write_results(out: Path) -> dict[str, int]:
    """Write ``results/`` anew from the parts of all runs that are there; returns the number of runs by outcome."""
    place = out / RESULTS
    place.mkdir(exist_ok=True)
    for name, schema in TABLES.items():
        parts = [pq.read_table(part, schema=schema) for part in sorted(out.glob(f"parts/*/{name}.parquet"))]
        pq.write_table(pa.concat_tables(parts) if parts else schema.empty_table(), place / f"{name}.parquet")
    results = read(out)
    pq.write_table(summary(cell_phases(results)), place / "summary.parquet")
    pq.write_table(latency_table(latencies(results)), place / "latencies.parquet")
    return dict(Counter(run.outcome for run in results.runs))


def read(directory: Path) -> Results:
    """Return what a run of the grid left in ``directory``.

    Raises:
        StorePathError: there are no results.
        TransferError: a table is no Parquet, lacks a column, has one of another type, or names a run that is not in ``runs``.
    """
    place = directory / RESULTS
    if not place.is_dir():
        raise StorePathError(f"{directory} holds no results of a benchmark: {place} is missing; {_RUN_IT}")
    tables = {name: _table(place, name) for name in TABLES}
    runs = [_run(row) for row in tables["runs"].to_pylist()]
    if not runs:
        raise StorePathError(f"{place} names no run; {_RUN_IT}")
    if len({run.run_id for run in runs}) < len(runs):
        raise TransferError(f"{place}: the table runs names a run twice; remove the results of one of them")
    known = pa.array([run.run_id for run in runs], pa.string())
    good = pa.array([run.run_id for run in runs if run.outcome == "ok"], pa.string())
    for name in ("phases", "seconds", "histograms"):
        ids = tables[name]["run_id"]
        strangers = pc.unique(ids.filter(pc.invert(pc.is_in(ids, known)))).to_pylist()
        if strangers:
            raise TransferError(f"{place}: the table {name} has rows of {strangers[0]!r}, a run that the table runs does not name")
        tables[name] = tables[name].filter(pc.is_in(ids, good))
    return Results(directory, runs, tables["phases"], tables["seconds"], tables["histograms"], _environment(directory / ENVIRONMENT))


def _table(place: Path, name: str) -> pa.Table:
    """Return one table, from a file or from a directory of files; an empty one where it may be missing."""
    schema = TABLES[name]
    found = next((path for path in (place / f"{name}.parquet", place / name) if path.exists()), None)
    if found is None:
        if name in _NEEDED:
            raise StorePathError(f"{place} holds no table {name}; {_RUN_IT}")
        return schema.empty_table()
    try:
        table = ds.dataset(found, format="parquet", exclude_invalid_files=False).to_table()
    except (pa.ArrowInvalid, pa.ArrowTypeError, OSError) as error:
        raise TransferError(f"{found} cannot be read as Parquet ({error}); {_RUN_IT} anew") from error
    if missing := [field.name for field in schema if field.name not in table.column_names]:
        raise TransferError(f"{found} has no column {', '.join(missing)}; it was written by another version, run the benchmark again")
    try:
        return table.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise TransferError(f"{found} has a column of another type than its schema ({error}); run the benchmark again") from error


def _run(row: dict[str, Any]) -> Run:
    cell = Cell(
        cell_id=row["cell_id"],
        engine=row["engine"],
        variant=row["variant"],
        settings=tuple(sorted(_pairs(row["settings"]))),
        workload=row["workload"],
        body_bytes=row["body_bytes"],
        backlog=row["backlog"],
        durability=row["durability"],
        shards=row["shards"],
    )
    return Run(row["run_id"], cell, row["repeat"], row["seed"], row["outcome"], row["reason"] or "", row["wall_s"])


def _pairs(settings: Sequence[tuple[str, str]] | dict[str, str] | None) -> list[tuple[str, str]]:
    if settings is None:
        return []
    return list(settings.items()) if isinstance(settings, dict) else list(settings)


def _environment(file: Path) -> dict[str, Any]:
    """Return what the harness wrote of the machine.

    Raises:
        TransferError: it is no JSON object.
    """
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TransferError(f"{file} is no JSON ({error}); remove it, or run the benchmark again") from error
    if not isinstance(found, dict):
        raise TransferError(f"{file} must hold a JSON object with the machine and the versions; remove it, or run the benchmark again")
    return found
