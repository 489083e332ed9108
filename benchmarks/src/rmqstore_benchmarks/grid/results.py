"""What a run of the grid leaves: its tables as one file each, and reading them, checked against their schemas, without what went wrong."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from rmqstore.errors import StorePathError, TransferError
from rmqstore_benchmarks.grid.tables import TABLES
from rmqstore_benchmarks.statistics import figures, latencies

RESULTS: Final = "results"
ENVIRONMENT: Final = "environment.json"

_RUN_IT: Final = "`rmqstore bench run SPEC.toml` makes them"


class Results(NamedTuple):
    """What one directory holds, as tables of pandas.

    Attributes:
        runs: all of them, also those that have no figures; ``kind`` is the design of the engine, as :func:`kind_of` tells it.
        phases, seconds, histograms: rows of the good runs alone, with the columns of their schemas.
        environment: machine, versions and command, as the harness wrote them; empty when it wrote none.
    """

    directory: Path
    runs: pd.DataFrame
    phases: pd.DataFrame
    seconds: pd.DataFrame
    histograms: pd.DataFrame
    environment: dict[str, Any]

    @property
    def good(self) -> pd.DataFrame:
        """The runs that have figures."""
        return self.runs[self.runs.outcome == "ok"]


_KINDS: Final = {"wheel": ("roll", "reference"), "rocksdb": ("values", "inline")}
"""By engine, the setting that matters to a design, and its default."""


def kind_of(engine: str, settings: Iterable[tuple[str, str]]) -> str:
    """Return the design of an engine: "copy" or "reference" for the wheel, "inline" or "separated" for RocksDB, else empty."""
    name, default = _KINDS.get(engine, ("", ""))
    # ``roll`` is the last part of ``wheel.roll`` and of ``wheel__roll``.
    return next((value for key, value in settings if key.replace("__", ".").rpartition(".")[2] == name), default)


def write_results(out: Path) -> dict[str, int]:
    """Write ``results/`` anew from the parts of all runs that are there; returns the number of runs by outcome."""
    place = out / RESULTS
    place.mkdir(exist_ok=True)
    for name, schema in TABLES.items():
        parts = [pq.read_table(part, schema=schema) for part in sorted(out.glob(f"parts/*/{name}.parquet"))]
        pq.write_table(pa.concat_tables(parts) if parts else schema.empty_table(), place / f"{name}.parquet")
    results = read(out)
    figures(results).to_parquet(place / "summary.parquet", index=False)
    latencies(results).to_parquet(place / "latencies.parquet", index=False)
    outcomes: dict[str, int] = results.runs.outcome.value_counts().to_dict()
    return outcomes


def read(directory: Path) -> Results:
    """Return what a run of the grid left in ``directory``.

    Raises:
        StorePathError: there are no results.
        TransferError: a table is no Parquet or has other columns, or the environment is no JSON object.
    """
    place = directory / RESULTS
    if not place.is_dir():
        raise StorePathError(f"{directory} holds no results of a benchmark: {place} is missing; {_RUN_IT}")
    tables = {name: _table(place, name).to_pandas() for name in TABLES}
    runs = tables["runs"]
    if runs.empty:
        raise StorePathError(f"{place} names no run; {_RUN_IT}")
    settings = [tuple(sorted(pairs if pairs is not None else ())) for pairs in runs.settings]
    kinds = [kind_of(*each) for each in zip(runs.engine, settings, strict=True)]
    runs = runs.assign(settings=settings, kind=kinds, reason=runs.reason.fillna(""))
    good = runs.run_id[runs.outcome == "ok"]
    for name in ("phases", "seconds", "histograms"):
        tables[name] = tables[name][tables[name].run_id.isin(good)]
    return Results(directory, runs, tables["phases"], tables["seconds"], tables["histograms"], _environment(directory / ENVIRONMENT))


def _table(place: Path, name: str) -> pa.Table:
    """Return one table, checked against its schema."""
    schema, found = TABLES[name], place / f"{name}.parquet"
    if not found.exists():
        raise StorePathError(f"{place} holds no table {name}; {_RUN_IT}")
    try:
        return pq.read_table(found).select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError, OSError) as error:
        raise TransferError(f"{found} is not the table {name} of this version ({error}); run the benchmark again") from error


def _environment(file: Path) -> dict[str, Any]:
    """Return what the harness wrote of the machine."""
    if not file.exists():
        return {}
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise TransferError(f"{file} must hold a JSON object ({error}); remove it, or run the benchmark again") from error
