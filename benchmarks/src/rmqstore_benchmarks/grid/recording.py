"""What one phase on one shard leaves: its row of ``phases``, its seconds, its histograms.

A thread looks at the memory a few times a second, and at how far a long hand-over has come, since one call may hand over millions.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rmqstore_benchmarks.grid.probes import Probes, anon_bytes
from rmqstore_benchmarks.grid.tables import PHASES, SECONDS
from rmqstore_benchmarks.histograms import buckets_of

STALL_NS: Final = 100_000_000
_LOOK_S: Final = 0.1
_COUNTS: Final = {"schedule": "scheduled", "cancel": "cancelled", "hand_over": "handed_over", "pop": "popped", "ack": "acked"}

Rows = dict[str, list[dict[str, Any]]]


def no_rows() -> Rows:
    """Return the tables of a shard, empty."""
    return {"phases": [], "seconds": [], "histograms": []}


class Phase:
    """One phase while it runs; every time is ``time.perf_counter_ns`` of this process.

    Args:
        backlog: returns how many timers are pending by the ledger.
    """

    def __init__(self, run_id: str, shard: int, name: str, backlog: Callable[[], int]) -> None:
        self._key = {"run_id": run_id, "shard": shard, "phase": name}
        self.name = name
        self._backlog = backlog
        self._latencies: dict[str, list[int]] = defaultdict(list)
        self._arrays: dict[str, list[NDArray[np.int64]]] = defaultdict(list)
        self._seconds: dict[int, dict[str, Any]] = {}
        self._stalls = self._calls = self._longest_ns = self._spent_ns = 0
        self._anon_peak = 0
        self.begin_ns = time.perf_counter_ns()

    # ------------------------------------------------------------ what happens

    def call(self, operation: str, begin_ns: int, end_ns: int, messages: int, intended_ns: int | None = None) -> None:
        """Note one call of the store; its latency counts from ``intended_ns``, or from its begin where nothing was intended."""
        self._calls += 1
        spent_ns = end_ns - begin_ns
        self._stalls += spent_ns > STALL_NS
        self._longest_ns = max(self._longest_ns, spent_ns)
        self._spent_ns += spent_ns
        self._latencies[operation].append(end_ns - (begin_ns if intended_ns is None else intended_ns))
        second = self._second(end_ns)
        second["longest_call_ms"] = max(second["longest_call_ms"] or 0.0, spent_ns / 1e6)
        self.count(operation, messages, end_ns)

    def count(self, operation: str, messages: int, at_ns: int) -> None:
        """Count messages to a second without a call of their own."""
        self._second(at_ns)[_COUNTS[operation]] += messages

    def slip(self, ns: int) -> None:
        """Note how late the load itself began a call."""
        self._latencies["slip"].append(max(ns, 0))

    def late(self, ns: NDArray[np.int64]) -> None:
        """Note by how much messages were handed over after their due time."""
        if len(ns):
            self._arrays["lateness"].append(np.maximum(ns, 0))

    def look(self) -> None:
        """Look at the memory and the backlog."""
        anon = anon_bytes()
        if anon is not None:
            self._anon_peak = max(self._anon_peak, anon)
        second = self._second(time.perf_counter_ns())
        second["anon_bytes"] = anon
        second["backlog"] = self._backlog()

    def _second(self, at_ns: int) -> dict[str, Any]:
        number = (at_ns - self.begin_ns) // 1_000_000_000
        row = self._seconds.get(number)
        if row is None:
            row = {field.name: None for field in SECONDS} | dict.fromkeys(_COUNTS.values(), 0) | self._key
            row |= {"second": number, "backlog": self._backlog()}
            row = self._seconds.setdefault(number, row)  # the looking thread may have been first
        return row

    # ------------------------------------------------------------ what is left

    def rows(self, spent: dict[str, Any]) -> Rows:
        """Return the rows of the three tables; ``spent`` are the columns of ``phases`` that only the caller knows."""
        row: dict[str, Any] = {field.name: None for field in PHASES} | self._key
        row |= {"calls": self._calls, "stalls": self._stalls, "longest_call_ms": self._longest_ns / 1e6}
        row["call_s"] = self._spent_ns / 1e9
        row |= {"anon_peak_bytes": self._anon_peak or None} | spent
        folded = {operation: np.asarray(values, np.int64) for operation, values in self._latencies.items()}
        folded |= {operation: np.concatenate(parts) for operation, parts in self._arrays.items()}
        histograms = []
        for operation, values in folded.items():
            buckets, counts = np.unique(buckets_of(values), return_counts=True)
            pairs = zip(buckets.tolist(), counts.tolist(), strict=True)
            histograms += [{**self._key, "operation": operation, "bucket": bucket, "n": count} for bucket, count in pairs]
        return {"phases": [row], "seconds": [self._seconds[number] for number in sorted(self._seconds)], "histograms": histograms}


@contextmanager
def every(seconds: float, call: Callable[[], object], name: str) -> Iterator[None]:
    """Call it every so many seconds, in a thread of this name, until the block ends; then the thread is gone."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(seconds):
            call()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def looking(phase: Phase) -> Iterator[None]:
    """Look at memory and backlog meanwhile, in a thread of its own."""
    phase.look()
    try:
        with every(_LOOK_S, phase.look, "bench-looking"):
            yield
    finally:
        phase.look()


class Spent:
    """What a phase costs: read before and after, with the files synced behind it, so that a phase pays for what it wrote."""

    def __init__(self, probes: Probes) -> None:
        self._probes = probes
        probes.sync_files()
        self._before = probes.read()
        self._begin_s, self._begin_cpu_s = time.perf_counter(), time.process_time()
        self.wall_s = self.cpu_s = 0.0

    def stop(self) -> None:
        """Take the times."""
        self.wall_s, self.cpu_s = time.perf_counter() - self._begin_s, time.process_time() - self._begin_cpu_s

    def columns(self) -> dict[str, Any]:
        """Return the columns of ``phases`` that were read from the machine."""
        self._probes.sync_files()
        after = self._probes.read()
        counted = {name: None if before is None or (now := after[name]) is None else now - before for name, before in self._before.items()}
        return {"wall_s": self.wall_s, "cpu_s": self.cpu_s, **counted, "disk_bytes": self._probes.disk_bytes()}


def merged(into: Rows, more: Rows) -> None:
    """Add rows to rows."""
    for table, rows in more.items():
        into[table] += rows
