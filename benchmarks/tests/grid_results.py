"""Results of a grid as the harness leaves them, made up: rates, bytes and latencies follow simple laws with some noise."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rmqstore_benchmarks.grid.tables import TABLES
from rmqstore_benchmarks.histograms import buckets_of

LOADS = {"open_50": 0.5, "open_80": 0.8, "open_95": 0.95}


class Design(NamedTuple):
    """How a made-up engine behaves.

    Attributes:
        write, read: messages a second at 10 k pending and small bodies.
        falls: how much of the rate is lost for each factor of ten in the backlog.
        mib_per_s: at large bodies.
    """

    engine: str
    settings: dict[str, str]
    write: float
    read: float
    falls: float
    mib_per_s: float
    written: float
    roll: float
    late_ms: float


DESIGNS = {
    "wheel": Design("wheel", {"wheel.roll": "reference"}, 230e3, 90e3, 0.03, 420, 2.6, 0.22, 2.0),
    "wheel-copy": Design("wheel", {"wheel.roll": "copy"}, 226e3, 88e3, 0.03, 410, 2.6, 2.9, 2.2),
    "rocksdb": Design("rocksdb", {}, 120e3, 74e3, 0.12, 160, 4.4, 0.004, 3.5),
    "rocksdb-separated": Design("rocksdb", {"rocksdb.values": "separated"}, 128e3, 47e3, 0.06, 300, 3.1, 0.004, 5.0),
    "lmdb": Design("lmdb", {}, 61e3, 76e3, 0.3, 90, 9.8, 0.0, 9.0),
    "null": Design("null", {}, 900e3, 700e3, 0.0, 4000, 0.0, 0.0, 0.1),
}


class Point(NamedTuple):
    """A cell but for its variant."""

    workload: str = "order-timeout"
    body_bytes: int = 256
    backlog: int = 100_000
    durability: str = "power_loss"
    shards: int = 1


USUAL = Point()
STEADY = ("fill", "schedule", "cancel", "hand_over", "pop_ack", "mixed", *LOADS, "cold_drain", "recover")


class Grid:
    """Gathers rows of all tables and writes them."""

    def __init__(self, seed: int = 7) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
        self.environment: dict[str, Any] | None = {
            "command": "rmqstore bench run full.toml",
            "machine": {"kernel": "6.1.0", "cores": 2, "memory_gib": 24.0, "file_system": "ext4", "directory": "/var/tmp"},
            "versions": {"rmqstore": "0.1.0", "pyarrow": "26.0.1"},
        }
        self._rng = np.random.default_rng(seed)

    def run(
        self,
        variant: str,
        point: Point = USUAL,
        repeat: int = 0,
        phases: Sequence[str] = STEADY,
        outcome: str = "ok",
        reason: str | None = None,
        *,
        seconds: int = 8,
        design: Design | None = None,
    ) -> str:
        """Add one repeat of one cell; returns its run_id."""
        design = design or DESIGNS[variant]
        cell_id = f"{variant}/{'/'.join(map(str, point))}"
        run_id = f"{cell_id}/{repeat}"
        cell = {
            "cell_id": cell_id,
            "engine": design.engine,
            "variant": variant,
            "settings": list(design.settings.items()),
            **point._asdict(),
        }
        of_run = {"run_id": run_id, "repeat": repeat, "seed": 1, "outcome": outcome, "reason": reason}
        self.rows["runs"].append({**cell, **of_run, "started_ms": 1_700_000_000_000, "wall_s": 60.0})
        for phase in phases:
            for shard in range(point.shards):
                self._phase(run_id, shard, phase, design, point, seconds)
        return run_id

    def _rate(self, design: Design, phase: str, point: Point) -> float:
        per_s = design.read if phase in ("hand_over", "pop_ack", "cold_drain") else design.write
        per_s *= {"hand_over": 2.0, "pop_ack": 1.8, "cold_drain": 0.5, "mixed": 0.35, "cancel": 1.2}.get(phase, 1.0)
        per_s *= (1 - design.falls) ** math.log10(point.backlog / 10_000)
        if point.body_bytes >= 4096:
            per_s *= (1 - 2.5 * design.falls if design.falls < 0.3 else 0.4) ** math.log10(point.backlog / 10_000)
        per_s = 1 / (1 / per_s + point.body_bytes / (design.mib_per_s * 2**20))
        per_s /= 1 + 0.25 * (point.shards - 1)
        return float(per_s * LOADS.get(phase, 1.0) * (0.35 if phase in LOADS else 1) * self._rng.uniform(0.95, 1.05))

    def _phase(self, run_id: str, shard: int, phase: str, design: Design, point: Point, seconds: int) -> None:
        rate = self._rate(design, phase, point)
        wall_s = 0.02 * point.backlog / 1e4 * (1 + design.falls * 8) if phase == "recover" else seconds + 0.4
        messages = 0 if phase in ("recover", "roll") else round(rate * wall_s)
        user_bytes = messages * (point.body_bytes + 14)
        live_bytes = point.backlog * (point.body_bytes + 14)
        written = design.roll * live_bytes if phase == "roll" else design.written * user_bytes / (1 if phase == "schedule" else 2)
        is_null, is_cold, is_wheel = design.engine == "null", phase == "cold_drain", design.engine == "wheel"
        row: dict[str, Any] = {"run_id": run_id, "shard": shard, "phase": phase, "messages": messages, "calls": messages // 1000}
        row |= {"wall_s": wall_s, "call_s": 0.9 * wall_s, "cpu_s": 0.9 * wall_s, "offered_rate": rate if phase in LOADS else None}
        row |= {"user_bytes": user_bytes, "live_bytes": live_bytes, "wchar_bytes": round(written)}
        row |= {"device_write_bytes": None if is_null else round(written * 1.15)}
        row |= {"device_read_bytes": round(user_bytes * (2.4 if is_wheel else 1.3)) if is_cold else 0}
        row |= {"disk_bytes": 0 if is_null else round(live_bytes * design.written * 0.5), "anon_peak_bytes": 150 << 20}
        row |= {"memory_limit_bytes": live_bytes // 4 if is_cold else None, "stalls": 1, "longest_call_ms": 130.0}
        row |= {"compaction_bytes": round(1.4 * user_bytes) if design.engine == "rocksdb" and point.backlog > 50_000 else None}
        self.rows["phases"].append(row)
        if phase not in ("recover", "roll"):
            self._seconds(run_id, shard, phase, design, rate, seconds)
        if phase in LOADS:
            self._histograms(run_id, shard, phase, design, LOADS[phase])

    def _seconds(self, run_id: str, shard: int, phase: str, design: Design, rate: float, seconds: int) -> None:
        for second in range(seconds + 1):
            is_stall = design.engine == "rocksdb" and second % 4 == 3
            count = round(rate * self._rng.uniform(0.9, 1.1) * (0.45 if is_stall else 1) * (0.4 if second == seconds else 1))
            row: dict[str, Any] = {"run_id": run_id, "shard": shard, "phase": phase, "second": second, "cancelled": 0, "backlog": 100_000}
            row |= dict.fromkeys(("scheduled", "handed_over", "popped", "acked"), count)
            row |= {"longest_call_ms": 180.0 if is_stall else 20.0, "anon_bytes": 120 << 20}
            self.rows["seconds"].append(row)

    def _histograms(self, run_id: str, shard: int, phase: str, design: Design, load: float) -> None:
        scale = {"schedule": 0.8, "cancel": 0.6, "hand_over": 1.2, "pop": 0.5, "ack": 0.3, "slip": 0.05, "lateness": 1.0}
        for operation, share in scale.items():
            drawn_ms = design.late_ms * share / (1 - load) ** 0.8 * self._rng.lognormal(0, 0.8, 3000)
            self.histogram(run_id, shard, phase, operation, (drawn_ms * 1e6).astype(np.int64).tolist())

    def histogram(self, run_id: str, shard: int, phase: str, operation: str, values_ns: Iterable[int]) -> None:
        """Add the histogram of these values."""
        for bucket, n in Counter(buckets_of(np.fromiter(values_ns, np.int64)).tolist()).items():
            row = {"run_id": run_id, "shard": shard, "phase": phase, "operation": operation, "bucket": bucket, "n": n}
            self.rows["histograms"].append(row)

    def write(self, directory: Path, tables: Sequence[str] = tuple(TABLES)) -> Path:
        """Write ``directory/results``; returns ``directory``."""
        place = directory / "results"
        place.mkdir(parents=True)
        for name in tables:
            pq.write_table(pa.Table.from_pylist(self.rows[name], TABLES[name]), place / f"{name}.parquet")
        if self.environment is not None:
            (directory / "environment.json").write_text(json.dumps(self.environment))
        return directory
