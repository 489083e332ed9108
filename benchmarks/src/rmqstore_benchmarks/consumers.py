"""``python -m rmqstore_benchmarks.consumers``: 1 to 64 consumer threads over 1 to 8 queues; how much they get, and whether anybody starves.

Each cell fills a topic, lets the threads pop and ack it empty with every call synced, and checks that each message was acked once. A queue
starves when its messages wait while others' go; so the cell notes, for each queue, when its last message was popped: with fair turns all
queues end together. A thread starves when it gets little while others get much; so the cell notes the share of the slowest thread.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

import rmqstore
from rmqstore.plugins import EngineState, get_plugins
from rmqstore_benchmarks.histogram import bucket_of, percentile
from rmqstore_benchmarks.machine import default_directory, described, replace_part, sentence, table

THREADS: Final = (1, 2, 4, 8, 16, 32, 64)
QUEUES: Final = (1, 2, 4, 8)
POP: Final = 32
BODY_BYTES: Final = 256
_LOAD: Final = 1000
_LEGEND: Final = (
    "Each cell: thousand messages a second · p99 of a pop with its ack · when the first queue ran dry, as a share of the whole time · what "
    "the slowest thread got, as a share of an even part."
)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """What one cell of the grid gave.

    Attributes:
        messages_per_s: messages popped and acked a second, all threads together.
        pop_ack_p99_ms: the time of a pop and the ack of what it gave.
        slowest_queue: when the last message of the queue that ended first was popped, as a share of the whole time.
        slowest_thread: messages of the thread that got least, as a share of an even part.
    """

    engine: str
    queues: int
    threads: int
    messages_per_s: float
    pop_ack_p99_ms: float
    slowest_queue: float
    slowest_thread: float


class Consumers:
    """Threads of one group that empty one topic."""

    def __init__(self, store: rmqstore.Store, threads: int) -> None:
        self._store = store
        self._start = threading.Barrier(threads + 1)
        self.counts = [0] * threads
        self.acked: list[Counter[str]] = [Counter() for _ in range(threads)]
        self.last_ns: list[dict[int, int]] = [{} for _ in range(threads)]
        self.took: list[Counter[int]] = [Counter() for _ in range(threads)]
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(threads)]

    def run(self) -> tuple[int, int]:
        """Let them work until nothing is left; returns when they began and ended, ns."""
        for thread in self._threads:
            thread.start()
        self._start.wait()
        begin_ns = time.perf_counter_ns()
        for thread in self._threads:
            thread.join()
        return begin_ns, time.perf_counter_ns()

    def _work(self, number: int) -> None:
        self._start.wait()
        while True:
            before_ns = time.perf_counter_ns()
            popped = self._store.pop("work", "workers", max_messages=POP, invisible_ms=600_000)
            if not popped:
                return
            outcomes = self._store.ack(popped)
            after_ns = time.perf_counter_ns()
            self.took[number][bucket_of((after_ns - before_ns) // 1000)] += 1
            self.counts[number] += len(popped)
            for message, outcome in zip(popped, outcomes, strict=True):
                self.acked[number][message.message_id] += outcome is rmqstore.AckOutcome.ACKED
                self.last_ns[number][message.queue_id] = after_ns


def measure(engine: str, queues: int, threads: int, messages: int, directory: Path) -> Cell:
    """Run one cell.

    Raises:
        SystemExit: a message was lost or acked twice; then there is no figure.
    """
    with (
        tempfile.TemporaryDirectory(prefix="rmqstore-consumers-", dir=directory) as fresh,
        rmqstore.open(Path(fresh, "store"), engine=engine, services=False) as store,
    ):
        store.create_topic("work", queues)
        for first in range(0, messages, _LOAD):
            rows = [
                rmqstore.Message("work", b"x" * BODY_BYTES, message_id=str(row), queue_id=row % queues)
                for row in range(first, min(first + _LOAD, messages))
            ]
            store.send_batch(rows)
        consumers = Consumers(store, threads)
        begin_ns, end_ns = consumers.run()
    acked: Counter[str] = sum(consumers.acked, Counter())
    if len(acked) != messages or set(acked.values()) != {1}:
        raise SystemExit(
            f"{engine}, {queues} queues, {threads} threads: {len(acked)} of {messages} messages were acked, some not just once"
        )
    ended = [max(last.get(queue, begin_ns) for last in consumers.last_ns) for queue in range(queues)]
    took: Counter[int] = sum(consumers.took, Counter())
    return Cell(
        engine=engine,
        queues=queues,
        threads=threads,
        messages_per_s=messages / ((end_ns - begin_ns) / 1e9),
        pop_ack_p99_ms=percentile(took, 0.99) / 1000,
        slowest_queue=(min(ended) - begin_ns) / (max(ended) - begin_ns),
        slowest_thread=min(consumers.counts) / (messages / threads),
    )


def markdown(cells: Sequence[Cell], machine: dict[str, Any], messages: int) -> str:
    """Return one table an engine: rows are threads, columns are queues."""
    parts = [
        f"{messages:,} messages of {BODY_BYTES} bytes, pops of {POP}, `flush = sync`. {sentence(machine)}",
        _LEGEND,
    ]
    for engine in dict.fromkeys(cell.engine for cell in cells):
        mine = {(cell.threads, cell.queues): cell for cell in cells if cell.engine == engine}
        columns = sorted({queues for _, queues in mine})
        rows = [
            [str(threads), *(_shown(mine[threads, queues]) for queues in columns)] for threads in sorted({threads for threads, _ in mine})
        ]
        header = ["threads", *(f"{queues} queue{'s' if queues > 1 else ''}" for queues in columns)]
        parts += [f"**{engine}**", table(header, rows)]
    return "\n\n".join(parts)


def _shown(cell: Cell) -> str:
    return f"{cell.messages_per_s / 1000:.0f} k · {cell.pop_ack_p99_ms:.1f} ms · {cell.slowest_queue:.0%} · {cell.slowest_thread:.0%}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the grid and print it."""
    parser = argparse.ArgumentParser(prog="rmqstore_benchmarks.consumers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engines", nargs="+", help="engines; by default all that work")
    parser.add_argument("--threads", nargs="+", type=int, default=THREADS)
    parser.add_argument("--queues", nargs="+", type=int, default=QUEUES)
    parser.add_argument("--messages", type=int, default=40_000, help="messages in each cell")
    parser.add_argument("--directory", type=Path, default=default_directory(), help="where the data goes: the disk that is measured")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--markdown", type=Path, help="put the tables between the markers `consumers` of this page")
    given = parser.parse_args(arguments)
    engines = given.engines or [entry.name for entry in get_plugins().engines() if entry.state is EngineState.OK]
    machine = described(given.directory)
    cells = []
    for engine in engines:
        for queues in given.queues:
            for threads in given.threads:
                cells.append(measure(engine, queues, threads, given.messages, given.directory))
                print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    text = markdown(cells, machine, given.messages)
    print(text)
    if given.json:
        given.json.write_text(json.dumps({"machine": machine, "cells": [msgspec.to_builtins(cell) for cell in cells]}, indent=2))
    if given.markdown:
        replace_part(given.markdown, "consumers", text)


if __name__ == "__main__":
    main()
