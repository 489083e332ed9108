"""Figures of runs and of cells: the shards of a run put together, the repeats of a cell as a median with its spread.

Rates, messages and bytes of shards add up; the longest time is the run's. Bytes of the device are counted on the whole device, so what each
shard saw is the same, and the largest counts. A figure that any shard does not tell is none of the run's.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rmqstore_benchmarks.report.reading import Cell, Results

DRAIN: Final = "drain"
"""A phase made of two: hand-over, then pop and ack, of the same message."""


class Spread(NamedTuple):
    """Repeats of one figure."""

    median: float
    low: float
    high: float
    repeats: int

    def __truediv__(self, other: Spread) -> float:
        return self.median / other.median

    def is_apart_from(self, other: Spread) -> bool:
        """Return whether no repeat of one lies among those of the other."""
        return self.low > other.high or self.high < other.low


def spread(values: Iterable[float]) -> Spread | None:
    """Return the median with lowest and highest; None of nothing."""
    ordered = sorted(values)
    return Spread(statistics.median(ordered), ordered[0], ordered[-1], len(ordered)) if ordered else None


METRICS: Final = (
    "rate",  # messages a second
    "offered_rate",
    "user_bytes_per_s",
    "messages",
    "wall_s",
    "cpu_us_per_message",
    "wchar_per_user_byte",
    "device_write_per_user_byte",
    "device_read_per_user_byte",
    "compaction_per_user_byte",
    "wchar_per_live_byte",
    "device_write_per_live_byte",
    "disk_per_live_byte",
    "live_bytes",
    "memory_limit_per_user_byte",
    "anon_peak_bytes",
    "stalls",
    "longest_call_ms",
    "rolled",
)


class CellPhase(NamedTuple):
    """One phase of a cell: what is known of it, by the names in :data:`METRICS`."""

    cell: Cell
    phase: str
    metrics: dict[str, Spread]


def run_metrics(shards: list[dict[str, Any]]) -> dict[str, float]:
    """Return the figures of one phase of one run from the rows of its shards."""
    found: dict[str, float | None] = {
        "messages": _sum(shards, "messages"),
        "wall_s": _max(shards, "wall_s"),
        "offered_rate": _sum(shards, "offered_rate"),
        "live_bytes": _sum(shards, "live_bytes"),
        "anon_peak_bytes": _sum(shards, "anon_peak_bytes"),
        "stalls": _sum(shards, "stalls"),
        "longest_call_ms": _max(shards, "longest_call_ms"),
        "rolled": _sum(shards, "rolled"),
        "rate": _rate(shards, "messages"),
        "user_bytes_per_s": _rate(shards, "user_bytes"),
    }
    user, live = _sum(shards, "user_bytes"), found["live_bytes"]
    wchar, written = _sum(shards, "wchar_bytes"), _max(shards, "device_write_bytes")
    cpu_s = _sum(shards, "cpu_s")
    found["cpu_us_per_message"] = _ratio(None if cpu_s is None else cpu_s * 1e6, found["messages"])
    found["wchar_per_user_byte"] = _ratio(wchar, user)
    found["device_write_per_user_byte"] = _ratio(written, user)
    found["device_read_per_user_byte"] = _ratio(_max(shards, "device_read_bytes"), user)
    found["compaction_per_user_byte"] = _ratio(_sum(shards, "compaction_bytes"), user)
    found["wchar_per_live_byte"] = _ratio(wchar, live)
    found["device_write_per_live_byte"] = _ratio(written, live)
    found["memory_limit_per_user_byte"] = _ratio(_sum(shards, "memory_limit_bytes"), user)
    found["disk_per_live_byte"] = _ratio(_sum(shards, "disk_bytes"), live)
    return {name: value for name, value in found.items() if value is not None}


def drained(hand_over: Mapping[str, float], pop_ack: Mapping[str, float]) -> dict[str, float]:
    """Return the figures of messages that go through both phases, one after the other."""
    found = {}
    for name in ("rate", "user_bytes_per_s"):
        if hand_over.get(name) and pop_ack.get(name):
            found[name] = 1 / (1 / hand_over[name] + 1 / pop_ack[name])
    for name in ("cpu_us_per_message", "wchar_per_user_byte", "device_write_per_user_byte", "device_read_per_user_byte"):
        if name in hand_over and name in pop_ack:
            found[name] = hand_over[name] + pop_ack[name]
    return found


def cell_phases(results: Results) -> list[CellPhase]:
    """Return every phase of every cell that has figures, in the order of the runs, with :data:`DRAIN` where both its parts are there."""
    shards: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in results.phases.to_pylist():
        shards[row["run_id"]][row["phase"]].append(row)
    cells: dict[str, Cell] = {}
    repeats: dict[str, dict[str, list[dict[str, float]]]] = defaultdict(lambda: defaultdict(list))
    for run in results.good:
        cells.setdefault(run.cell.cell_id, run.cell)
        of_run = {phase: run_metrics(rows) for phase, rows in shards[run.run_id].items() if len(rows) == run.cell.shards}
        if "hand_over" in of_run and "pop_ack" in of_run:
            of_run[DRAIN] = drained(of_run["hand_over"], of_run["pop_ack"])
        for phase, metrics in of_run.items():
            repeats[run.cell.cell_id][phase].append(metrics)
    found = []
    for cell_id, phases in repeats.items():
        for phase, of_phase in phases.items():
            spreads = {name: spread(each[name] for each in of_phase if name in each) for name in METRICS}
            known = {name: value for name, value in spreads.items() if value is not None}
            if known:
                found.append(CellPhase(cells[cell_id], phase, known))
    return found


def summary(phases: list[CellPhase]) -> pa.Table:
    """Return a row for each phase of each cell; a figure is there as ``NAME``, its median, ``NAME_low``, ``NAME_high``, "
    "``NAME_repeats``.
    """
    columns: dict[str, pa.Array] = {}
    for name in ("cell_id", "engine", "variant", "workload", "durability"):
        columns[name] = pa.array([getattr(each.cell, name) for each in phases], pa.string())
    for name in ("body_bytes", "backlog", "shards"):
        columns[name] = pa.array([getattr(each.cell, name) for each in phases], pa.int64())
    columns["settings"] = pa.array([list(each.cell.settings) for each in phases], pa.map_(pa.string(), pa.string()))
    columns["phase"] = pa.array([each.phase for each in phases], pa.string())
    for name in METRICS:
        of_all = [each.metrics.get(name) for each in phases]
        columns[name] = pa.array([each and each.median for each in of_all], pa.float64())
        columns[f"{name}_low"] = pa.array([each and each.low for each in of_all], pa.float64())
        columns[f"{name}_high"] = pa.array([each and each.high for each in of_all], pa.float64())
        columns[f"{name}_repeats"] = pa.array([each and each.repeats for each in of_all], pa.int64())
    return pa.table(columns)


def _told(shards: list[dict[str, Any]], name: str) -> list[float] | None:
    values = [row[name] for row in shards]
    return None if not values or None in values else values


def _sum(shards: list[dict[str, Any]], name: str) -> float | None:
    values = _told(shards, name)
    return None if values is None else sum(values)


def _max(shards: list[dict[str, Any]], name: str) -> float | None:
    values = _told(shards, name)
    return None if values is None else max(values)


def _rate(shards: list[dict[str, Any]], name: str) -> float | None:
    amounts, times = _told(shards, name), _told(shards, "wall_s")
    if amounts is None or times is None or not all(times) or not any(amounts):
        return None
    return sum(amount / wall_s for amount, wall_s in zip(amounts, times, strict=True))


def _ratio(amount: float | None, of: float | None) -> float | None:
    return None if amount is None or not of else amount / of
