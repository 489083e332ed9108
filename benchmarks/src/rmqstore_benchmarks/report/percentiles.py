"""Percentiles of latencies, in ms: histograms of shards are merged by adding, those of repeats give a median with its spread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore_benchmarks.histogram import bounds_of
from rmqstore_benchmarks.report.aggregates import Spread, spread
from rmqstore_benchmarks.report.reading import Cell, Results

LARGEST: Final = 1.0
SHARES: Final = (0.5, 0.9, 0.99, 0.999, LARGEST)
"""Percentiles of a table; the last is the largest value."""

CURVE: Final = tuple(1 - 10.0 ** -(step / 8) for step in range(41))
"""Percentiles of a curve: eight for each power of ten, to 99.999 %."""

_NS_PER_MS: Final = 1e6
_KEYS: Final = ("run_id", "phase", "operation")


class Latency(NamedTuple):
    """How long one operation of one phase of a cell took.

    Attributes:
        total: values of all repeats.
        at_ms: by share, the percentile; a share that fewer than one value lies behind is not there.
    """

    cell: Cell
    phase: str
    operation: str
    total: int
    at_ms: dict[float, Spread]


def at_shares(buckets: Any, counts: Any, shares: tuple[float, ...]) -> dict[float, float]:
    """Return percentiles in ms of one histogram, given as arrays; :data:`LARGEST` gives the end of the last bucket."""
    order = np.argsort(buckets)
    buckets, seen = np.asarray(buckets)[order], np.cumsum(np.asarray(counts)[order])
    total = int(seen[-1]) if len(seen) else 0
    found = {}
    for share in shares:
        if not total or (share != LARGEST and total * (1 - share) < 1 - 1e-9):
            continue
        bucket = int(buckets[min(int(np.searchsorted(seen, share * total)), len(seen) - 1)])
        low, behind = bounds_of(bucket)
        found[share] = (behind - 1 if share == LARGEST else (low + behind - 1) / 2) / _NS_PER_MS
    return found


def latencies(
    results: Results,
    shares: tuple[float, ...] = SHARES,
    *,
    cells: Set[str] | None = None,
    phases: Set[str] | None = None,
    operations: Set[str] | None = None,
) -> list[Latency]:
    """Return the percentiles of every operation of every phase of every cell that has figures, or only of those that are named."""
    runs = {run.run_id: run.cell for run in results.good if cells is None or run.cell.cell_id in cells}
    table = results.histograms
    for key, names in (("run_id", runs.keys()), ("phase", phases), ("operation", operations)):
        if names is not None:
            table = table.filter(pc.is_in(table[key], pa.array(sorted(names), pa.string())))
    merged = table.group_by([*_KEYS, "bucket"]).aggregate([("n", "sum")]).sort_by([(key, "ascending") for key in _KEYS])
    repeats: dict[tuple[str, str, str], list[tuple[int, dict[float, float]]]] = defaultdict(list)
    by_id: dict[str, Cell] = {}
    for (run_id, phase, operation), buckets, counts in _histograms(merged):
        cell = runs[run_id]
        by_id[cell.cell_id] = cell
        if total := int(counts.sum()):
            repeats[cell.cell_id, phase, operation].append((total, at_shares(buckets, counts, shares)))
    found = []
    for (cell_id, phase, operation), each in repeats.items():
        spreads = {share: spread(at[share] for _, at in each if share in at) for share in shares}
        known = {share: value for share, value in spreads.items() if value is not None}
        found.append(Latency(by_id[cell_id], phase, operation, sum(total for total, _ in each), known))
    return found


def _histograms(merged: pa.Table) -> list[tuple[tuple[str, str, str], Any, Any]]:
    """Return (run, phase, operation), buckets and counts of each stretch of equal keys of a sorted table."""
    if not len(merged):
        return []
    changes = np.zeros(len(merged), bool)
    changes[0] = True
    for key in _KEYS:
        codes = merged[key].combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
        changes[1:] |= codes[1:] != codes[:-1]
    starts = np.flatnonzero(changes)
    ends = np.append(starts[1:], len(merged))
    buckets, counts = merged["bucket"].to_numpy(), merged["n_sum"].to_numpy()
    names = merged.select(list(_KEYS)).take(pa.array(starts)).to_pylist()
    keys = [(row["run_id"], row["phase"], row["operation"]) for row in names]
    return [(key, buckets[start:end], counts[start:end]) for key, start, end in zip(keys, starts, ends, strict=True)]
