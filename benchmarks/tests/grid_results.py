"""Results of a grid as the harness leaves them, made up, so that every figure of the report is known: an engine has one rate for all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rmqstore_benchmarks.grid.tables import TABLES, buckets_of

LOADS = {"open_50": 0.5, "open_80": 0.8, "open_95": 0.95}


class Design(NamedTuple):
    """How a made-up engine behaves: messages a second, bytes written over those of the user, and lateness at no load."""

    engine: str
    settings: dict[str, str]
    rate: float
    written: float
    late_ms: float


DESIGNS = {
    "wheel": Design("wheel", {"wheel.roll": "reference"}, 230e3, 2.6, 2.0),
    "wheel-again": Design("wheel", {"wheel.roll": "reference"}, 231e3, 2.6, 2.0),
    "wheel-copy": Design("wheel", {"wheel.roll": "copy"}, 226e3, 2.6, 2.2),
    "rocksdb": Design("rocksdb", {}, 120e3, 4.4, 3.5),
    "rocksdb-separated": Design("rocksdb", {"rocksdb.values": "separated"}, 128e3, 3.1, 5.0),
    "lmdb": Design("lmdb", {}, 61e3, 9.8, 9.0),
    "null": Design("null", {}, 900e3, 0.0, 0.1),
    "below": Design("raw-wheel", {}, 460e3, 1.0, 0.1),
    "bare": Design("raw-rocksdb", {}, 400e3, 2.0, 0.1),
    "bare-by-arrival": Design("raw-rocksdb-by-arrival", {}, 500e3, 2.0, 0.1),
    "bare-uncompacted": Design("raw-rocksdb-uncompacted", {}, 450e3, 1.0, 0.1),
}


class Point(NamedTuple):
    """A cell but for its variant."""

    workload: str = "order-timeout"
    body_bytes: int = 256
    backlog: int = 100_000
    durability: str = "power_loss"
    shards: int = 1


COLD = ("cold_hand_over", "cold_pop_ack")
STEADY = ("fill", "schedule", "cancel", "hand_over", "pop_ack", "warm_up", "mixed", *LOADS, *COLD, "recover")


class Grid:
    """Gathers rows of all tables and writes them."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
        self.environment: dict[str, Any] | None = {
            "command": "rmqstore bench run full.toml",
            "machine": {"kernel": "6.1.0", "cores": 2, "memory_gib": 24.0, "file_system": "ext4", "directory": "/var/tmp"},
            "versions": {"rmqstore": "0.1.0", "pyarrow": "26.0.1"},
        }

    def run(
        self,
        variant: str,
        phases: Sequence[str] = STEADY,
        repeat: int = 0,
        *,
        outcome: str = "ok",
        reason: str | None = None,
        seconds: int = 1,
        **point: Any,
    ) -> str:
        """Add one repeat of one cell, of which each phase lasts so long; each repeat is a tenth faster. Returns its run_id."""
        design, at = DESIGNS[variant], Point(**point)
        cell_id = f"{variant}/{'/'.join(map(str, at))}"
        cell = {"cell_id": cell_id, "engine": design.engine, "variant": variant, "settings": list(design.settings.items()), **at._asdict()}
        of_run = {"run_id": f"{cell_id}/{repeat}", "repeat": repeat, "seed": 1, "outcome": outcome, "reason": reason}
        self.rows["runs"].append({**cell, **of_run, "started_ms": 1_700_000_000_000, "wall_s": 60.0})
        for phase in phases:
            for shard in range(at.shards):
                key = {"run_id": of_run["run_id"], "shard": shard, "phase": phase}
                self._phase(key, design, at, design.rate * LOADS.get(phase, 1.0) * 256 / at.body_bytes * (1 + repeat / 10), seconds)
        return str(of_run["run_id"])

    def _phase(self, key: dict[str, Any], design: Design, at: Point, rate: float, seconds: int) -> None:
        phase, wall_s = key["phase"], 0.02 * at.backlog / 1e4 if key["phase"] == "recover" else seconds + 0.4
        messages = 0 if phase in ("recover", "roll") else round(rate * wall_s)
        user_bytes, live_bytes = (count * (at.body_bytes + 14) for count in (messages, at.backlog))
        is_null, is_cold, written = design.engine == "null", phase in COLD, design.written * (user_bytes or live_bytes)
        row = key | {"messages": messages, "wall_s": wall_s, "call_s": 0.9 * wall_s, "cpu_s": 0.9 * wall_s, "user_bytes": user_bytes}
        row |= {"live_bytes": live_bytes, "wchar_bytes": round(written), "device_write_bytes": None if is_null else round(1.15 * written)}
        row |= {"device_read_bytes": round(user_bytes * design.written) if is_cold else 0, "anon_peak_bytes": 150 << 20}
        row |= {"disk_bytes": 0 if is_null else round(live_bytes * design.written * 0.5)}
        row |= {"memory_limit_bytes": live_bytes // 4 if is_cold else None}
        compacted = round(1.4 * user_bytes) if phase == "schedule" else 0
        row |= {"compaction_bytes": compacted if design.engine in ("rocksdb", "raw-rocksdb") else None}
        row |= {"offered_per_s": rate if phase in LOADS else None}
        self.rows["phases"].append(row)
        for second in range(seconds + 1 if messages else 0):
            counts = dict.fromkeys(("scheduled", "handed_over", "popped", "acked"), round(rate * (1 - 0.1 * (second % 3))))
            self.rows["seconds"].append({**key, "second": second, **counts, "longest_call_ms": 180.0 if second % 4 == 3 else 20.0})
        if phase in LOADS:
            drawn_ms = design.late_ms / (1 - LOADS[phase]) * np.random.default_rng(7).lognormal(0, 0.8, 3000)
            for operation in ("schedule", "slip", "lateness"):
                self.histogram(operation, (drawn_ms * 1e6).astype(np.int64), **key)

    def histogram(self, operation: str, values_ns: Iterable[int], **key: Any) -> None:
        """Add the histogram of these values."""
        buckets, counts = np.unique(buckets_of(np.fromiter(values_ns, np.int64)), return_counts=True)
        rows = zip(buckets.tolist(), counts.tolist(), strict=True)
        self.rows["histograms"] += [{**key, "operation": operation, "bucket": bucket, "n": n} for bucket, n in rows]

    def write(self, directory: Path, tables: Sequence[str] = tuple(TABLES)) -> Path:
        """Write ``directory/results``; returns ``directory``."""
        place = directory / "results"
        place.mkdir(parents=True)
        for name in tables:
            pq.write_table(pa.Table.from_pylist(self.rows[name], TABLES[name]), place / f"{name}.parquet")
        if self.environment is not None:
            (directory / "environment.json").write_text(json.dumps(self.environment))
        return directory
