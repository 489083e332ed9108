"""``python -m rmqstore_benchmarks.steady``: whether a store stays as large as it is while the load stays the same.

A second of the clock is 5,000 messages sent, popped by 32 and acked, 2,000 of them with marks of their own, and a tick; the clock is moved
by hand, so an hour takes some minutes. Marks are remembered as long as outcomes, by default ten minutes; from then on rows of state, files
and memory are to be flat.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import rmqstore
from rmqstore import ManualClock, Message, Store
from rmqstore_benchmarks.machine import default_directory
from rmqstore_benchmarks.runs import installed

_START_MS: Final = 1_772_443_800_000
_ROWS_A_POP: Final = 32
_ENGINES: Final = ("wheel", "rocksdb", "lmdb")


def _one_second(store: Store, clock: ManualClock, second: int, pops: int, marks: int) -> None:
    messages = [Message("t", b"0123456789abcdef" * 8, message_id=f"{second}-{number}") for number in range(pops)]
    store.send_batch(messages[:marks], marks=[b"%d-%d" % (second, number) for number in range(marks)])
    store.send_batch(messages[marks:])
    while popped := store.pop("t", "g", max_messages=_ROWS_A_POP, invisible=timedelta(seconds=30)):
        store.ack(popped)
    clock.advance(timedelta(seconds=1))
    store.tick()


def _sizes(store: Store, path: Path) -> dict[str, Any]:
    with Path("/proc/self/statm").open() as file:
        memory = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    files = sum(each.stat().st_blocks * 512 for each in path.rglob("*") if each.is_file())
    return {"rows": {table: found.rows for table, found in store.digest().items()}, "disk_mib": files >> 20, "memory_mib": memory >> 20}


def measured(engine: str, directory: Path, minutes: int, pops: int, marks: int, memory_minutes: int) -> Iterator[dict[str, Any]]:
    """Load a store of the engine in ``directory``; yields the minute and the sizes after each ``memory_minutes // 2``."""
    clock = ManualClock(_START_MS)
    memory_ms = memory_minutes * 60_000
    settings: dict[str, Any] = {"flush": "async", "default_queues": 1, "outcome_memory_ms": memory_ms, "mark_memory_ms": memory_ms}
    with rmqstore.open(directory, engine=engine, clock=clock, services=False, **settings) as store:
        for minute in range(1, minutes + 1):
            for second in range(60):
                _one_second(store, clock, minute * 60 + second, pops, marks)
            if minute % max(1, memory_minutes // 2) == 0:
                yield {"engine": engine, "minute": minute, **_sizes(store, directory)}
        if faults := store.verify():
            raise SystemExit(f"{engine}: verify found {faults[0]}")


def main() -> None:
    """Print a line of JSON for each look at each engine."""
    parser = argparse.ArgumentParser(prog="python -m rmqstore_benchmarks.steady", description=__doc__.partition(": ")[2])
    parser.add_argument("--engine", action="append", choices=_ENGINES, help="may be given several times; all by default")
    parser.add_argument("--minutes", type=int, default=60, help="of the clock")
    parser.add_argument("--pops", type=int, default=5000, help="messages a second")
    parser.add_argument("--marks", type=int, default=2000, help="of them that have a mark")
    parser.add_argument("--memory", type=int, default=10, help="minutes for which outcomes and marks are remembered")
    parser.add_argument("--directory", type=Path, default=default_directory(), help="where the stores are made, and removed again")
    asked = parser.parse_args()
    for engine in installed(asked.engine or _ENGINES):
        with tempfile.TemporaryDirectory(prefix="rmqstore-bench-", dir=asked.directory) as fresh:
            for figures in measured(engine, Path(fresh, "store"), asked.minutes, asked.pops, asked.marks, asked.memory):
                json.dump(figures, sys.stdout)
                print(flush=True)


if __name__ == "__main__":
    main()
