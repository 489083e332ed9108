"""What one phase on one shard leaves: its row of ``phases``, its seconds, its histograms; what it cost, read from the machine; and a limit.

A thread looks at the memory a few times a second, and at how far a long hand-over has come, since one call may hand over millions.

``write_bytes`` of ``/proc/self/io`` is wrong where the page cache uses large folios, so the device's own sectors and ``wchar`` are read.
Those of the device are everybody's on it. What cannot be read is None.

A control group, version 2 or 1, limits the memory of a process, page cache included. It is made below the one that this process is in, and
goes when it is empty; nothing else is changed.
"""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore_benchmarks.grid.tables import HISTOGRAMS, PHASES, SECONDS, buckets_of

_SECTOR_BYTES: Final = 512
_BLOCK_BYTES: Final = 512
_COMPACTED: Final = '"event": "compaction_finished"'
_LOOK_S: Final = 0.1
_COUNTS: Final = {"schedule": "scheduled", "cancel": "cancelled", "hand_over": "handed_over", "pop": "popped", "ack": "acked"}

Tables = dict[str, pa.Table]
"""Rows of ``phases``, ``seconds`` and ``histograms``, by the name of the table."""


class Phase:
    """One phase while it runs; every time is ``time.perf_counter_ns`` of this process."""

    def __init__(self, run_id: str, shard: int, name: str) -> None:
        self._key = {"run_id": run_id, "shard": shard, "phase": name}
        # What happened, for ``seconds``: operation, when, messages, time in a call of the store (None where there was none), memory.
        self._events: list[tuple[str, int, int, int | None, int | None]] = []
        self._latencies: dict[str, list[int | NDArray[np.int64]]] = defaultdict(list)
        self.begin_ns = time.perf_counter_ns()

    def call(self, operation: str, begin_ns: int, end_ns: int, messages: int, intended_ns: int | None = None) -> None:
        """Note one call of the store; its latency counts from ``intended_ns``, or from its begin where nothing was intended."""
        self._events.append((operation, end_ns, messages, end_ns - begin_ns, None))
        self._latencies[operation].append(end_ns - (begin_ns if intended_ns is None else intended_ns))

    def count(self, operation: str, messages: int, at_ns: int) -> None:
        """Count messages to a second without a call of their own."""
        self._events.append((operation, at_ns, messages, None, None))

    def slip(self, ns: int) -> None:
        """Note how late the load itself began a call."""
        self._latencies["slip"].append(max(ns, 0))

    def late(self, ns: NDArray[np.int64]) -> None:
        """Note by how much messages were handed over after their due time."""
        self._latencies["lateness"].append(np.maximum(ns, 0))

    def look(self) -> None:
        """Look at the memory."""
        self._events.append(("", time.perf_counter_ns(), 0, None, anon_bytes()))

    def tables(self, spent: dict[str, Any]) -> Tables:
        """Return the rows of the three tables; ``spent`` are the columns of ``phases`` that only the caller knows."""
        events = pd.DataFrame(self._events, columns=["operation", "at_ns", "messages", "spent_ns", "anon_bytes"])
        events = events.astype({"spent_ns": float, "anon_bytes": float}).assign(second=(events.at_ns - self.begin_ns) // 10**9)
        peak = events.anon_bytes.max()
        row = self._key | {"calls": int(events.spent_ns.count()), "call_s": events.spent_ns.sum() / 1e9}
        row |= {"anon_peak_bytes": None if pd.isna(peak) else int(peak)} | spent
        seconds = events.pivot_table("messages", "second", "operation", "sum").rename(columns=_COUNTS)
        seconds = seconds.reindex(columns=list(_COUNTS.values())).fillna(0)
        seconds = seconds.join(events.groupby("second").agg(longest_call_ns=("spent_ns", "max"), anon_bytes=("anon_bytes", "last")))
        seconds = seconds.assign(longest_call_ms=seconds.longest_call_ns / 1e6, **self._key).reset_index()[SECONDS.names]
        counted = []
        for operation, values in self._latencies.items():
            buckets, counts = np.unique(buckets_of(np.hstack(values)), return_counts=True)
            counted.append(pd.DataFrame({**self._key, "operation": operation, "bucket": buckets, "n": counts}))
        histograms = pd.concat(counted) if counted else pd.DataFrame(columns=HISTOGRAMS.names)
        return {
            "phases": pa.Table.from_pylist([row], PHASES),
            "seconds": pa.Table.from_pandas(seconds, SECONDS, preserve_index=False).replace_schema_metadata(),
            "histograms": pa.Table.from_pandas(histograms, HISTOGRAMS, preserve_index=False).replace_schema_metadata(),
        }


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


# ---------------------------------------------------------------- what the machine tells


def measured(phase: Phase, directory: Path, run: Callable[[Phase], object]) -> dict[str, Any]:
    """Run a phase whose store is under a directory; returns what it gives as ``messages``, and the columns that the machine tells.

    Files are synced before and behind, outside of its time, so that a phase pays for what it wrote.
    """
    sync_files(directory)
    before, begin_cpu_s = counters(directory), time.process_time()
    phase.begin_ns = time.perf_counter_ns()
    phase.look()
    with every(_LOOK_S, phase.look, "bench-looking"):
        spent = {
            "messages": run(phase),
            "wall_s": (time.perf_counter_ns() - phase.begin_ns) / 1e9,
            "cpu_s": time.process_time() - begin_cpu_s,
        }
    phase.look()
    sync_files(directory)
    after = counters(directory)
    counted = {name: None if was is None or (now := after[name]) is None else now - was for name, was in before.items()}
    return {**spent, **counted, "disk_bytes": disk_bytes(directory)}


def counters(directory: Path) -> dict[str, int | None]:
    """Return where every counter is, by its column of ``phases``: of this process, and of the device and the store under a directory."""
    written, read = device_bytes(directory)
    return {
        "wchar_bytes": _proc_number("/proc/self/io", "wchar:"),
        "device_write_bytes": written,
        "device_read_bytes": read,
        "compaction_bytes": compaction_bytes(directory),
    }


def device_bytes(directory: Path) -> tuple[int | None, int | None]:
    """Return bytes written to, and read from, the device under a directory since it was started."""
    device = directory.stat().st_dev
    try:
        fields = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()
        return int(fields[6]) * _SECTOR_BYTES, int(fields[2]) * _SECTOR_BYTES
    except (OSError, IndexError, ValueError):
        return None, None


def disk_bytes(directory: Path) -> int:
    """Return the blocks in use by the files of a directory, bytes."""
    blocks = 0
    for path in directory.rglob("*"):
        with suppress(OSError):  # a file may go while it is looked at
            blocks += path.lstat().st_blocks
    return blocks * _BLOCK_BYTES


def sync_files(directory: Path, *, forget: bool = False) -> None:
    """Let the device have what was written, so that its sectors count to the phase that wrote them.

    Args:
        forget: let the page cache drop the files, which must be closed, so that they are read from the device again.
    """
    for path in directory.rglob("*"):
        with suppress(OSError):
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(descriptor)
                    if forget:
                        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
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


# ---------------------------------------------------------------- a limit on memory

FLOOR_BYTES: Final = 384 * 1024 * 1024
"""What Python, Arrow and an engine with its caches need to run at all; a little less, and they wait for their own code to be read."""

_GROUP_PATIENCE_S: Final = 5.0


class NoLimitError(OSError):
    """No control group for memory can be made here; the text says why."""


def limit_for(backlog_bytes: int) -> int:
    """Return a quarter of the backlog, or the least that a process runs in."""
    return max(backlog_bytes // 4, FLOOR_BYTES)


@contextmanager
def limited_group(name: str, limit_bytes: int) -> Iterator[Path]:
    """Give a control group; a process that writes its id into ``cgroup.procs`` there has no more memory than this.

    Args:
        name: tells the groups of this machine apart; one of this name that an owner left when it was killed is used again.

    Raises:
        NoLimitError: none can be made.
    """
    parent, limit_name = _parent()
    group = parent / f"rmqstore-bench-{zlib.crc32(name.encode()):08x}"
    try:
        try:
            group.mkdir(exist_ok=True)
            (group / limit_name).write_text(str(limit_bytes))
        except OSError as error:
            raise NoLimitError(f"no control group with a limit can be made in {parent}: {error.strerror}") from error
        with suppress(OSError):  # version 2 alone has it
            (group / "memory.swap.max").write_text("0")
        yield group
    finally:
        _remove_group(group)


def _parent() -> tuple[Path, str]:
    """Return the memory group that this process is in, and the name of its limit."""
    try:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError as error:
        raise NoLimitError(f"the control groups of this process cannot be read: {error.strerror}") from error
    # Of version 1 there is a group for each controller, of version 2 one for all, whose line names none.
    groups = {controller: path for _, controllers, path in lines for controller in controllers.split(",")}
    for _, point, kind, options, *_ in mounts:
        if kind == "cgroup" and "memory" in options.split(",") and "memory" in groups:
            return _below(Path(point), groups["memory"]), "memory.limit_in_bytes"
        if kind == "cgroup2":
            group = _below(Path(point), groups.get("", "/"))
            with suppress(OSError):
                if "memory" in (group / "cgroup.subtree_control").read_text().split():
                    return group, "memory.max"
    raise NoLimitError("this machine has no control group for memory")


def _below(mount: Path, path: str) -> Path:
    """Return a group's folder; in a container its path may be that of the host, and the mount is the group itself."""
    named = mount / path.lstrip("/")
    return named if named.is_dir() else mount


def _remove_group(group: Path) -> None:
    """Remove the group; the kernel lets go of an ended process a moment later."""
    until_s = time.monotonic() + _GROUP_PATIENCE_S
    while group.is_dir() and time.monotonic() < until_s:
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.01)
