"""The one way of repeating and of statistics: random order, shards put together, repeats as a median, intervals of ratios, percentiles.

Everything is a long table of pandas with a row for each figure: the columns of its cell, ``phase`` and ``metric`` (of latencies
``operation`` and ``share``), ``median``, ``low``, ``high``, ``repeats``, and ``values``, what each repeat gave. docs/method.md has the
reasons.

Rates, messages and bytes of shards add up; the longest time is the run's. Bytes of the device are counted on the whole device, so what each
shard saw is the same, and the largest counts. A figure that any shard does not tell is none of the run's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rmqstore_benchmarks.grid.tables import Results, bounds_of

_Item = TypeVar("_Item")

POINT: Final = ["workload", "body_bytes", "backlog", "durability", "shards"]
"""The coordinates of a cell but for its engine."""

CELL: Final = ["cell_id", "engine", "variant", "settings", "kind", *POINT]
SPREAD: Final = ["median", "low", "high", "repeats"]
DRAIN: Final = "drain"
COLD_DRAIN: Final = "cold_drain"
DRAINS: Final = {DRAIN: ("hand_over", "pop_ack"), COLD_DRAIN: ("cold_hand_over", "cold_pop_ack")}
"""Phases made of two: hand-over, then pop and ack, of the same message."""

LARGEST: Final = 1.0
SHARES: Final = (0.5, 0.9, 0.99, 0.999, LARGEST)
"""Percentiles of a table; the last is the largest value."""

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
    "store_cpu_us_per_message": _Metric("sum", "store_cpu_s", "messages", 1e6),
    "load_share": _Metric("max", "load_share"),
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
    "offered": _Metric("sum", "offered_per_s"),
    "done_of_offered": _Metric("sum", "rate", "offered_per_s"),
}
"""The figures of a phase."""

_OF_DRAIN: Final = ["wall_s", "cpu_us_per_message", "wchar_per_user_byte", "device_write_per_user_byte", "device_read_per_user_byte"]


def in_random_order(items: Sequence[_Item], round_: int, seed: int = 0) -> list[_Item]:
    """Return the order of one round, another one in each, so that what drifts, and what runs before, meets all alike."""
    return random.Random(f"{seed}-{round_}").sample(items, len(items))


def spreads(values: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return :data:`SPREAD` of the column ``value`` for each of ``keys``, and its ``values``, in the order of the rows."""
    of_keys = values.groupby(list(keys), sort=False).value
    return of_keys.agg(median="median", low="min", high="max", repeats="count", values=tuple).reset_index()


# ---------------------------------------------------------------- intervals of ratios

Formula = Callable[..., Any]
"""Makes a ratio of medians, one for each sample, in their order; numbers or arrays of them."""

CONFIDENCE: Final = 0.95
_RESAMPLES: Final = 4000


def interval(samples: Sequence[Sequence[float]], formula: Formula) -> tuple[float, float, float]:
    """Return a ratio that is made of medians, and where it lies with 95 % confidence: the percentile bootstrap of all samples.

    Each sample is drawn anew from its own repeats, and the ratio made of the medians of what was drawn. With five repeats the interval
    is nearly as wide as all that they allow; it is NaN where nothing may be divided by nothing. The draws begin with the same seed, so
    a report that is made again says the same.
    """
    rng = np.random.default_rng(1)
    drawn: list[NDArray[np.float64]] = [
        np.median(rng.choice(np.asarray(sample, float), (_RESAMPLES, len(sample))), axis=1) for sample in samples
    ]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = formula(*drawn)
        low, high = np.quantile(ratios, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2), method="closest_observation")
        return float(formula(*(np.median(sample) for sample in samples))), float(low), float(high)


# ---------------------------------------------------------------- figures


def run_figures(shards: pd.DataFrame) -> pd.DataFrame:
    """Return the figures of each run and phase, a column each, from the rows of its shards; NaN is what is not told.

    Outside of calls the load works, in one thread and without a wait. So its time there is its CPU time; the rest is the store's.
    """
    shards = shards.assign(store_cpu_s=shards.cpu_s - shards.wall_s + shards.call_s, load_share=1 - shards.call_s / shards.wall_s)
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
    phases, rates = runs.index.get_level_values("phase"), list(_RATES)
    found = []
    for drain, parts in DRAINS.items():
        first, second = (runs[phases == phase].droplevel("phase") for phase in parts)
        both = (1 / (1 / first[rates] + 1 / second[rates])).join(first[_OF_DRAIN] + second[_OF_DRAIN])
        found.append(both.assign(phase=drain).set_index("phase", append=True))
    return pd.concat(found)


_LEAST_SECONDS: Final = 4


def _later_halves(results: Results) -> pd.Series:
    """Return what the later half of the mixed load did over the earlier one, by run and phase; far from 1 nothing is steady yet."""
    keys = ["run_id", "phase"]
    whole_s = results.phases.groupby(keys).wall_s.min().floordiv(1).rename("whole_s")
    seconds = results.seconds[results.seconds.phase.isin(["warm_up", "mixed"])].join(whole_s, on=keys)
    seconds = seconds[(seconds.whole_s >= _LEAST_SECONDS) & (seconds.second < seconds.whole_s)]
    is_later = seconds.second >= seconds.whole_s / 2
    halves = seconds.assign(early=seconds.scheduled.mask(is_later), late=seconds.scheduled.where(is_later))
    means = halves.groupby(keys)[["early", "late"]].mean()
    return (means.late / means.early).rename("later_half")


def figures(results: Results) -> pd.DataFrame:
    """Return a row for each figure of each phase of each cell, with those of :data:`DRAINS` where both parts are."""
    shards = results.phases.merge(results.good[["run_id", "shards"]], on="run_id")
    of_phase = shards.groupby(["run_id", "phase"])["shard"].transform("size")
    runs = run_figures(shards[of_phase == shards.shards].drop(columns="shards"))
    runs = pd.concat([runs, _drained(runs)])
    runs = runs.join(_later_halves(results), how="left").rename_axis(columns="metric")
    values = runs.stack(future_stack=True).dropna().rename("value").reset_index()
    values = results.good[["run_id", "cell_id"]].merge(values, on="run_id")
    return _of_cells(spreads(values, ["cell_id", "phase", "metric"]), results)


def known(figures: pd.DataFrame, metric: str, *phases: str) -> pd.DataFrame:
    """Return the rows of one figure in these phases, or in all if none is named."""
    return figures[(figures.metric == metric) & figures.phase.isin(phases or figures.phase)]


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


KEPT_UP: Final = 0.99
"""An open loop of which less was done in its time than this share of what was offered was overloaded."""


def overloaded(figures: pd.DataFrame) -> pd.DataFrame:
    """Return ``cell_id`` and ``phase`` of the open loops of which any repeat was overloaded."""
    done = known(figures, "done_of_offered")
    return done.loc[done.low < KEPT_UP, ["cell_id", "phase"]]


def latencies(results: Results, figures: pd.DataFrame, shares: Sequence[float] = SHARES) -> pd.DataFrame:
    """Return a row for each percentile, ms, of every operation of every phase of every cell that has figures.

    A percentile that fewer than one value of a run lies behind is none of its. ``total`` is how many values all repeats have. An
    overloaded open loop has no latencies: they grow for as long as it lasts, and say nothing of an engine.
    """
    keys = ["cell_id", "phase", "operation"]
    table = results.good[["run_id", "cell_id"]].merge(results.histograms, on="run_id")
    table = table[~pd.MultiIndex.from_frame(table[keys[:2]]).isin(pd.MultiIndex.from_frame(overloaded(figures)))]
    found = percentiles(table, ["run_id", *keys], shares)
    found = found[(found.share == LARGEST) | (found.total * (1 - found.share) >= 1 - 1e-9)].rename(columns={"ms": "value"})
    totals = table.groupby(keys, sort=False).n.sum().rename("total").reset_index()
    return _of_cells(totals.merge(spreads(found, [*keys, "share"]), on=keys), results)
