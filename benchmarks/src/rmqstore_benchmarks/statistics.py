"""The one way of repeating and of statistics: rounds in turns, shards put together, repeats as a median with its spread, percentiles.

Everything is a long table of pandas with a row for each figure: the columns of its cell, ``phase`` and ``metric`` (of latencies
``operation`` and ``share``), and ``median``, ``low``, ``high``, ``repeats``.

Rates, messages and bytes of shards add up; the longest time is the run's. Bytes of the device are counted on the whole device, so what each
shard saw is the same, and the largest counts. A figure that any shard does not tell is none of the run's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from rmqstore_benchmarks.grid.tables import bounds_of

if TYPE_CHECKING:
    from rmqstore_benchmarks.grid.tables import Results

_Item = TypeVar("_Item")

POINT: Final = ["workload", "body_bytes", "backlog", "durability", "shards"]
"""The coordinates of a cell but for its engine."""

CELL: Final = ["cell_id", "engine", "variant", "kind", *POINT]
SPREAD: Final = ["median", "low", "high", "repeats"]
DRAIN: Final = "drain"
"""A phase made of two: hand-over, then pop and ack, of the same message."""

LARGEST: Final = 1.0
SHARES: Final = (0.5, 0.9, 0.99, 0.999, LARGEST)
"""Percentiles of a table; the last is the largest value."""

CURVE: Final = tuple(1 - 10.0 ** -(step / 8) for step in range(41))
"""Percentiles of a curve: eight for each power of ten, to 99.999 %."""

_RATES: Final = {"rate": ("messages", "wall_s"), "call_rate": ("messages", "call_s"), "user_bytes_per_s": ("user_bytes", "wall_s")}
"""What all shards do together in a second; of ``call_rate`` in calls of the store, what the load itself takes left out."""


class _Metric(NamedTuple):
    """The sum ("sum"), largest ("max") or least ("min") of a column over the shards, by the sum of another one."""

    fold: str
    of: str
    over: str = ""
    scale: float = 1.0


_METRICS: Final = {
    "rate": _Metric("sum", "rate"),
    "call_rate": _Metric("sum", "call_rate"),
    "user_bytes_per_s": _Metric("sum", "user_bytes_per_s"),
    "wall_s": _Metric("max", "wall_s"),
    "us_per_message": _Metric("max", "wall_s", "messages", 1e6),
    "cpu_us_per_message": _Metric("sum", "cpu_s", "messages", 1e6),
    "wchar_per_user_byte": _Metric("sum", "wchar_bytes", "user_bytes"),
    "device_write_per_user_byte": _Metric("max", "device_write_bytes", "user_bytes"),
    "device_read_per_user_byte": _Metric("max", "device_read_bytes", "user_bytes"),
    "compaction_per_user_byte": _Metric("sum", "compaction_bytes", "user_bytes"),
    "wchar_per_live_byte": _Metric("sum", "wchar_bytes", "live_bytes"),
    "device_write_per_live_byte": _Metric("max", "device_write_bytes", "live_bytes"),
    "disk_per_live_byte": _Metric("sum", "disk_bytes", "live_bytes"),
    "live_bytes": _Metric("sum", "live_bytes"),
    "memory_limit_per_user_byte": _Metric("sum", "memory_limit_bytes", "user_bytes"),
    "anon_peak_bytes": _Metric("sum", "anon_peak_bytes"),
    "slowest_thread": _Metric("min", "slowest_thread"),
    "first_queue_dry": _Metric("min", "first_queue_dry"),
}
"""The figures of a phase."""

_OF_DRAIN: Final = ["cpu_us_per_message", "wchar_per_user_byte", "device_write_per_user_byte", "device_read_per_user_byte"]


def in_turn(items: Sequence[_Item], round_: int) -> list[_Item]:
    """Return the order of one round: each begins one later than the round before, so that what drifts meets all alike."""
    first = round_ % len(items) if items else 0
    return [*items[first:], *items[:first]]


def spreads(values: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return median, lowest, highest and number of the column ``value`` for each of ``keys``, in the order of the rows."""
    return values.groupby(list(keys), sort=False).value.agg(median="median", low="min", high="max", repeats="count").reset_index()


def run_figures(shards: pd.DataFrame) -> pd.DataFrame:
    """Return the figures of each run and phase, a column each, from the rows of its shards; NaN is what is not told."""
    rates = {name: shards[amount] / shards[seconds].where(shards[seconds] > 0) for name, (amount, seconds) in _RATES.items()}
    columns = dict.fromkeys(name for each in _METRICS.values() for name in (each.of, each.over) if name)
    by_run = shards.assign(**rates).groupby(["run_id", "phase"], sort=False)[list(columns)]
    is_told = by_run.count().eq(by_run.size(), axis=0)
    folded = {fold: by_run.agg(fold).where(is_told) for fold in ("sum", "max", "min")}
    found = pd.DataFrame({name: folded[each.fold][each.of] * each.scale for name, each in _METRICS.items()})
    for name, each in _METRICS.items():
        if each.over:
            found[name] /= folded["sum"][each.over].where(lambda total: total > 0)
    return found.assign(**{name: found[name].where(found[name] > 0) for name in _RATES})


def _drained(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the figures of messages that go through hand-over and pop and ack, one after the other."""
    phases = runs.index.get_level_values("phase")
    first, second = (runs[phases == phase].droplevel("phase") for phase in ("hand_over", "pop_ack"))
    rates = list(_RATES)
    found = (1 / (1 / first[rates] + 1 / second[rates])).join(first[_OF_DRAIN] + second[_OF_DRAIN])
    return found.assign(phase=DRAIN).set_index("phase", append=True)


def figures(results: Results) -> pd.DataFrame:
    """Return a row for each figure of each phase of each cell, with :data:`DRAIN` where both its parts are."""
    shards = results.phases.merge(results.good[["run_id", "shards"]], on="run_id")
    of_phase = shards.groupby(["run_id", "phase"])["shard"].transform("size")
    runs = run_figures(shards[of_phase == shards.shards].drop(columns="shards"))
    runs = pd.concat([runs, _drained(runs)]).rename_axis(columns="metric")
    values = runs.stack(future_stack=True).dropna().rename("value").reset_index()
    values = results.good[["run_id", "cell_id"]].merge(values, on="run_id")
    return _of_cells(spreads(values, ["cell_id", "phase", "metric"]), results)


def known(figures: pd.DataFrame, metric: str, *phases: str) -> pd.DataFrame:
    """Return the rows of one figure in these phases."""
    return figures[(figures.metric == metric) & figures.phase.isin(phases)]


def _of_cells(found: pd.DataFrame, results: Results) -> pd.DataFrame:
    """Return rows with the columns of their cells, in the order of the cells."""
    return results.good[CELL].drop_duplicates("cell_id").merge(found, on="cell_id")


# ---------------------------------------------------------------- latencies


def percentiles(histograms: pd.DataFrame, keys: Sequence[str], shares: Iterable[float]) -> pd.DataFrame:
    """Return for each of ``keys`` and each share the middle of the bucket (ns) below which that share of the values is, in ms.

    For :data:`LARGEST` it is the last value of the last bucket. ``total`` is how many values there are.
    """
    counts = histograms.groupby([*keys, "bucket"]).n.sum().reset_index()
    counts = counts.assign(seen=counts.groupby(list(keys)).n.cumsum(), total=counts.groupby(list(keys)).n.transform("sum"))
    found = [counts[counts.seen >= share * counts.total].drop_duplicates(list(keys)).assign(share=share) for share in shares if len(counts)]
    rows = pd.concat(found) if found else counts.assign(share=0.0)
    low, behind = bounds_of(rows.bucket.to_numpy(np.int64))
    ns = np.where(rows.share == LARGEST, behind - 1.0, (low + behind - 1) / 2)
    return rows.assign(ms=ns / 1e6)[[*keys, "total", "share", "ms"]]


def latencies(results: Results, shares: Sequence[float] = SHARES) -> pd.DataFrame:
    """Return a row for each percentile, ms, of every operation of every phase of every cell that has figures.

    A percentile that fewer than one value of a run lies behind is none of its. ``total`` is how many values all repeats have.
    """
    table = results.good[["run_id", "cell_id"]].merge(results.histograms, on="run_id")
    keys = ["cell_id", "phase", "operation"]
    found = percentiles(table, ["run_id", *keys], shares)
    found = found[(found.share == LARGEST) | (found.total * (1 - found.share) >= 1 - 1e-9)].rename(columns={"ms": "value"})
    totals = table.groupby(keys, sort=False).n.sum().rename("total").reset_index()
    return _of_cells(totals.merge(spreads(found, [*keys, "share"]), on=keys), results)
