"""The one way of statistics: histograms of latencies, shards of a run put together, repeats of a cell as a median with its spread.

Rates, messages and bytes of shards add up; the longest time is the run's. Bytes of the device are counted on the whole device, so what each
shard saw is the same, and the largest counts. A figure that any shard does not tell is none of the run's.

A histogram is log-linear: 64 buckets a power of two, so a bucket is at most 1/64 of its values wide. A bucket is an int that sorts like its
values, so histograms of shards and tasks merge by adding the counts of equal buckets.
"""

from __future__ import annotations

import statistics
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rmqstore_benchmarks.grid.results import Cell, Results

# ---------------------------------------------------------------- histograms

_SUB_BITS: Final = 6
_SUB_BUCKETS: Final = 1 << _SUB_BITS
_NS_PER_MS: Final = 1e6

LARGEST: Final = 1.0
SHARES: Final = (0.5, 0.9, 0.99, 0.999, LARGEST)
"""Percentiles of a table; the last is the largest value."""

CURVE: Final = tuple(1 - 10.0 ** -(step / 8) for step in range(41))
"""Percentiles of a curve: eight for each power of ten, to 99.999 %."""


def bucket_of(value: int) -> int:
    """Return the bucket of a value of at least 0; values below 128 have a bucket each."""
    shift = max(value.bit_length() - 1 - _SUB_BITS, 0)
    return shift * _SUB_BUCKETS + (value >> shift)


def buckets_of(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return :func:`bucket_of` of each value; values are 0 to 2**53."""
    _, lengths = np.frexp(values.astype(np.float64))
    shifts = np.maximum(lengths.astype(np.int64) - 1 - _SUB_BITS, 0)
    buckets: NDArray[np.int64] = shifts * _SUB_BUCKETS + (values >> shifts)
    return buckets


def bounds_of(bucket: int) -> tuple[int, int]:
    """Return (lowest value, first value behind) of a bucket."""
    shift = max(bucket // _SUB_BUCKETS - 1, 0)
    low = (bucket - shift * _SUB_BUCKETS) << shift
    return low, low + (1 << shift)


def percentile(counts: Mapping[int, int], share: float) -> float:
    """Return the middle of the bucket below which ``share`` of the values are, the last value for :data:`LARGEST`; 0.0 for none."""
    if not counts:
        return 0.0
    buckets = sorted(counts)
    seen = np.cumsum([counts[bucket] for bucket in buckets])
    low, behind = bounds_of(buckets[min(int(np.searchsorted(seen, share * seen[-1])), len(buckets) - 1)])
    return float(behind - 1) if share == LARGEST else (low + behind - 1) / 2


def at_shares(counts: Mapping[int, int], shares: Iterable[float]) -> dict[float, float]:
    """Return percentiles of ns in ms; a share that fewer than one value lies behind is left out."""
    total = sum(counts.values())
    return {
        share: percentile(counts, share) / _NS_PER_MS for share in shares if total and (share == LARGEST or total * (1 - share) >= 1 - 1e-9)
    }


class CallSums(NamedTuple):
    """Calls of one kind whose latency fell into one bucket of ns; ``messages`` and ``ns`` are sums over them."""

    op: str
    bucket: int
    calls: int
    messages: int
    ns: int


class CallCounter:
    """Counts calls by kind and latency; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[tuple[str, int], tuple[int, int, int]] = {}

    def add(self, op: str, ns: int, messages: int) -> None:
        """Note one call."""
        with self._lock:
            key = (op, bucket_of(ns))
            calls, moved, spent_ns = self._sums.get(key, (0, 0, 0))
            self._sums[key] = (calls + 1, moved + messages, spent_ns + ns)

    def sums(self) -> list[CallSums]:
        """Return everything noted."""
        with self._lock:
            return [CallSums(*key, *numbers) for key, numbers in self._sums.items()]


# ---------------------------------------------------------------- figures of runs and cells


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


DRAIN: Final = "drain"
"""A phase made of two: hand-over, then pop and ack, of the same message."""


def _rate(amounts: Sequence[float], seconds: Sequence[float]) -> float | None:
    """Return how much a second all shards do together."""
    if not all(seconds) or not any(amounts):
        return None
    return sum(amount / each_s for amount, each_s in zip(amounts, seconds, strict=True))


def _over(amount: Callable[[Sequence[float]], float], scale: float = 1.0) -> Callable[[Sequence[float], Sequence[float]], float | None]:
    return lambda amounts, of: amount(amounts) * scale / sum(of) if sum(of) else None


_METRICS: Final[dict[str, tuple[Callable[..., float | None], tuple[str, ...]]]] = {
    "rate": (_rate, ("messages", "wall_s")),  # messages a second
    "call_rate": (_rate, ("messages", "call_s")),  # messages by second in calls of the store, what the load itself takes left out
    "offered_rate": (sum, ("offered_rate",)),
    "user_bytes_per_s": (_rate, ("user_bytes", "wall_s")),
    "messages": (sum, ("messages",)),
    "wall_s": (max, ("wall_s",)),
    "cpu_us_per_message": (_over(sum, 1e6), ("cpu_s", "messages")),
    "wchar_per_user_byte": (_over(sum), ("wchar_bytes", "user_bytes")),
    "device_write_per_user_byte": (_over(max), ("device_write_bytes", "user_bytes")),
    "device_read_per_user_byte": (_over(max), ("device_read_bytes", "user_bytes")),
    "compaction_per_user_byte": (_over(sum), ("compaction_bytes", "user_bytes")),
    "wchar_per_live_byte": (_over(sum), ("wchar_bytes", "live_bytes")),
    "device_write_per_live_byte": (_over(max), ("device_write_bytes", "live_bytes")),
    "disk_per_live_byte": (_over(sum), ("disk_bytes", "live_bytes")),
    "live_bytes": (sum, ("live_bytes",)),
    "memory_limit_per_user_byte": (_over(sum), ("memory_limit_bytes", "user_bytes")),
    "anon_peak_bytes": (sum, ("anon_peak_bytes",)),
    "stalls": (sum, ("stalls",)),
    "longest_call_ms": (max, ("longest_call_ms",)),
    "rolled": (sum, ("rolled",)),
    "slowest_thread": (min, ("slowest_thread",)),
    "first_queue_dry": (min, ("first_queue_dry",)),
}
METRICS: Final = tuple(_METRICS)


class CellPhase(NamedTuple):
    """One phase of a cell: what is known of it, by the names in :data:`METRICS`."""

    cell: Cell
    phase: str
    metrics: dict[str, Spread]


def run_metrics(shards: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the figures of one phase of one run from the rows of its shards."""
    found = {}
    for name, (figure, columns) in _METRICS.items():
        values = [[row[column] for row in shards] for column in columns]
        if all(None not in each for each in values) and (value := figure(*values)) is not None:
            found[name] = value
    return found


def drained(hand_over: Mapping[str, float], pop_ack: Mapping[str, float]) -> dict[str, float]:
    """Return the figures of messages that go through both phases, one after the other."""
    found = {}
    for name in ("rate", "call_rate", "user_bytes_per_s"):
        if hand_over.get(name) and pop_ack.get(name):
            found[name] = 1 / (1 / hand_over[name] + 1 / pop_ack[name])
    for name in ("cpu_us_per_message", "wchar_per_user_byte", "device_write_per_user_byte", "device_read_per_user_byte"):
        if name in hand_over and name in pop_ack:
            found[name] = hand_over[name] + pop_ack[name]
    return found


def _spreads(repeats: Sequence[Mapping[Any, float]], names: Iterable[Any]) -> dict[Any, Spread]:
    found = {name: spread(each[name] for each in repeats if name in each) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def cell_phases(results: Results) -> list[CellPhase]:
    """Return every phase of every cell that has figures, in the order of the runs, with :data:`DRAIN` where both its parts are there."""
    shards: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in results.phases.to_pylist():
        shards[row["run_id"]][row["phase"]].append(row)
    repeats: dict[Cell, dict[str, list[dict[str, float]]]] = defaultdict(lambda: defaultdict(list))
    for run in results.good:
        of_run = {phase: run_metrics(rows) for phase, rows in shards[run.run_id].items() if len(rows) == run.cell.shards}
        if "hand_over" in of_run and "pop_ack" in of_run:
            of_run[DRAIN] = drained(of_run["hand_over"], of_run["pop_ack"])
        for phase, metrics in of_run.items():
            repeats[run.cell][phase].append(metrics)
    found = [CellPhase(cell, phase, _spreads(each, METRICS)) for cell, phases in repeats.items() for phase, each in phases.items()]
    return [each for each in found if each.metrics]


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
    counts: dict[tuple[str, str, str], Counter[int]] = defaultdict(Counter)
    columns = (table[name].to_pylist() for name in ("run_id", "phase", "operation", "bucket", "n"))
    for run_id, phase, operation, bucket, count in zip(*columns, strict=True):
        counts[run_id, phase, operation][bucket] += count
    repeats: dict[tuple[Cell, str, str], list[Counter[int]]] = defaultdict(list)
    for (run_id, phase, operation), each in counts.items():
        repeats[runs[run_id], phase, operation].append(each)
    return [
        Latency(*key, sum(each.total() for each in of_key), _spreads([at_shares(each, shares) for each in of_key], shares))
        for key, of_key in repeats.items()
    ]


# ---------------------------------------------------------------- as tables

_CELL: Final = [
    *((name, pa.string()) for name in ("cell_id", "engine", "variant", "workload", "durability")),
    *((name, pa.int64()) for name in ("body_bytes", "backlog", "shards")),
    ("settings", pa.map_(pa.string(), pa.string())),
    ("phase", pa.string()),
]
_EDGES: Final = {"": "median", "_low": "low", "_high": "high", "_repeats": "repeats"}


def summary(phases: Iterable[CellPhase]) -> pa.Table:
    """Return a row for each phase of each cell, with each figure as ``NAME``, its median, ``NAME_low``, ``NAME_high``, ``NAME_repeats``."""
    kinds = [(name + edge, pa.int64() if edge == "_repeats" else pa.float64()) for name in METRICS for edge in _EDGES]
    rows = [
        {**each.cell._asdict(), "phase": each.phase}
        | {name + edge: getattr(value, field) for name, value in each.metrics.items() for edge, field in _EDGES.items()}
        for each in phases
    ]
    return pa.Table.from_pylist(rows, pa.schema([*_CELL, *kinds]))


def latency_table(found: Iterable[Latency]) -> pa.Table:
    """Return a row for each operation of each phase of each cell: medians over the repeats of its percentiles, ms."""
    names = {share: "max_ms" if share == LARGEST else f"p{str(share)[2:].ljust(2, '0')}_ms" for share in SHARES}
    rows = [
        {**each.cell._asdict(), "phase": each.phase, "operation": each.operation, "calls": each.total}
        | {name: each.at_ms[share].median for share, name in names.items() if share in each.at_ms}
        for each in found
    ]
    kinds = [("operation", pa.string()), ("calls", pa.int64()), *((name, pa.float64()) for name in names.values())]
    return pa.Table.from_pylist(rows, pa.schema([*_CELL, *kinds]))
