"""What one call takes of CPU where it waits for no disk, and what a start takes: ``python -m rmqstore_benchmarks.single_calls``.

Calls of one kind follow one another in a warm store under ``flush = async``; a start is a process that imports rmqstore, opens an empty
store, sends a message and pops it. docs/benchmarks.md has a run of it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

import rmqstore
from rmqstore import ManualClock, Message
from rmqstore_benchmarks.machine import measure_engines

_BODY: Final = b"x" * 256
_ROUNDS: Final = 5
_START: Final = """
import sys, time
import rmqstore
store = rmqstore.open(sys.argv[1], engine=sys.argv[2], services=False, flush="async")
store.send(rmqstore.Message("t", b"x"))
assert store.pop("t", "g")
print(time.process_time(), next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def cpu_us(call: Callable[[Any], object], given: list[Any]) -> float:
    """Call with each value; return the CPU time of one call in µs, the median of some rounds."""
    rounds = []
    for part in np.array_split(np.arange(len(given)), _ROUNDS):
        values = [given[at] for at in part]
        begun_s = time.process_time()
        for value in values:
            call(value)
        rounds.append((time.process_time() - begun_s) / len(values))
    return 1e6 * float(np.median(rounds))


def started(engine: str, root: Path) -> tuple[float, float]:
    """Return what a start takes: CPU in seconds, and the most memory in MiB; medians of some processes."""
    told = []
    for number in range(_ROUNDS):
        done = subprocess.run(
            [sys.executable, "-c", _START, str(root / f"{engine}-{number}"), engine], check=True, capture_output=True, text=True
        )
        told.append([float(word) for word in done.stdout.split()])
    cpu_s, memory_kib = np.median(told, axis=0)
    return float(cpu_s), float(memory_kib) / 1024


def measure(engine: str, root: Path, calls: int) -> None:
    """Print a line about one engine."""
    clock = ManualClock(1_800_000_000_000)
    rows = list(range(calls))
    with rmqstore.open(root / engine, engine=engine, clock=clock, services=False, flush="async") as store:
        handles: list[str] = []
        popped: list[Any] = []
        for _ in rows:
            store.send(Message("t", _BODY), delay_ms=60_000)
            store.send(Message("now", _BODY))
        taken = [
            cpu_us(lambda row: handles.append(store.send(Message("later", _BODY), delay_ms=1000 + 1000 * row).handle or ""), rows),
            cpu_us(lambda _: store.send(Message("now", _BODY)), rows),
            cpu_us(lambda _: popped.extend(store.pop("now", "g", max_messages=1)), rows),
            cpu_us(lambda row: store.ack(popped[row]), rows),
            cpu_us(lambda row: store.cancel(handles[row]), rows),
        ]
        assert len(popped) == calls
    cpu_s, memory_mib = started(engine, root)
    figures = " | ".join(f"{each:.0f}" for each in taken)
    print(f"| {engine} | {figures} | {cpu_s:.2f} s, {memory_mib:.0f} MiB |", flush=True)


if __name__ == "__main__":
    measure_engines(
        __doc__,
        "| µs of CPU | send, later | send, now | pop 1 | ack 1 | cancel 1 | import, open, send, pop |\n|---|---:|---:|---:|---:|---:|---:|",
        measure,
        calls=5000,
    )
