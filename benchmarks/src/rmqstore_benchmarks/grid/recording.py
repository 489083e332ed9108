"""What one phase on one shard leaves: its row of ``phases``, its seconds, its histograms; and what it cost, read from the machine.

A thread looks at the memory a few times a second, and at how far a long hand-over has come, since one call may hand over millions.

``write_bytes`` of ``/proc/self/io`` is wrong where the page cache uses large folios, so the device's own sectors and ``wchar`` are read.
Those of the device are everybody's on it. What cannot be read is None.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rmqstore_benchmarks.grid.tables import PHASES, SECONDS, buckets_of

_SECTOR_BYTES: Final = 512
_BLOCK_BYTES: Final = 512
_COMPACTED: Final = '"event": "compaction_finished"'
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


def merged(into: Rows, more: Rows) -> None:
    """Add rows to rows."""
    for table, rows in more.items():
        into[table] += rows


# ---------------------------------------------------------------- what the machine tells


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


class Probes:
    """Looks at this process, at the device under ``directory``, and at the store in it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        device = directory.stat().st_dev
        self._device = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")

    def read(self) -> dict[str, int | None]:
        """Return where every counter is, by its column of ``phases``."""
        written, read = self.device_bytes()
        return {
            "wchar_bytes": _proc_number("/proc/self/io", "wchar:"),
            "device_write_bytes": written,
            "device_read_bytes": read,
            "compaction_bytes": compaction_bytes(self._directory),
        }

    def device_bytes(self) -> tuple[int | None, int | None]:
        """Return bytes written to, and read from, the device since it was started."""
        try:
            fields = self._device.read_text().split()
            return int(fields[6]) * _SECTOR_BYTES, int(fields[2]) * _SECTOR_BYTES
        except (OSError, IndexError, ValueError):
            return None, None

    def disk_bytes(self) -> int:
        """Return the blocks in use by the files of the directory, bytes."""
        blocks = 0
        for path in self._directory.rglob("*"):
            with suppress(OSError):  # a file may go while it is looked at
                blocks += path.lstat().st_blocks
        return blocks * _BLOCK_BYTES

    def sync_files(self) -> None:
        """Let the device have what was written, so that its sectors count to the phase that wrote them."""
        self._each_file(os.fsync)

    def forget_pages(self) -> None:
        """Let the page cache drop the files, which must be closed, so that they are read from the device again."""
        self.sync_files()
        self._each_file(lambda descriptor: os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED))

    def _each_file(self, act: Callable[[int], None]) -> None:
        for path in self._directory.rglob("*"):
            with suppress(OSError):
                if path.is_file():
                    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    try:
                        act(descriptor)
                    finally:
                        os.close(descriptor)


def anon_bytes(process: int | str = "self") -> int | None:
    """Return a process's RssAnon: memory of its own, without mapped files."""
    kib = _proc_number(f"/proc/{process}/status", "RssAnon:")
    return None if kib is None else kib * 1024


def compaction_bytes(directory: Path) -> int | None:
    """Return what RocksDB's compactions wrote, by its own log; None where no RocksDB logs."""
    logs = [*directory.rglob("LOG"), *directory.rglob("LOG.old.*")]
    total = 0
    for log in logs:
        with suppress(OSError):
            for line in log.read_text(errors="replace").splitlines():
                if _COMPACTED in line:
                    event = json.loads(line[line.index("{") :])
                    total += int(event.get("total_output_size", 0)) + int(event.get("total_blob_output_size", 0))
    return total if logs else None


def _proc_number(path: str, name: str) -> int | None:
    with suppress(OSError):
        for line in Path(path).read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return None
