"""The Spark side of one run: one task a shard, its store opened and closed within the task; the tables come back as Arrow."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa

from rmqstore_benchmarks.grid.recording import as_batch
from rmqstore_benchmarks.grid.shard import Outcome, run_shard
from rmqstore_benchmarks.grid.tables import TABLES
from rmqstore_benchmarks.grid.task import ShardTask

RESULT_DDL: Final = "shard int, kind string, payload binary"
"""``kind``: name of a table, with its rows as an Arrow stream; or ``wrong``, ``failed``, ``note``, with a text."""

RESULT: Final = pa.schema([("shard", pa.int32()), ("kind", pa.string()), ("payload", pa.binary())])

Batches = Iterator[pa.RecordBatch]


def runner(tasks: tuple[ShardTask, ...]) -> Callable[[Batches], Batches]:
    """Return the function that runs the shards that its rows name."""

    def run(batches: Batches) -> Batches:
        for batch in batches:
            for shard in batch.column("shard").to_pylist():
                yield shard_result(tasks[shard])

    return run


def shard_result(task: ShardTask) -> pa.RecordBatch:
    """Run one shard; whatever happens there becomes rows, so that the rest of the grid goes on."""
    try:
        return _rows(task.shard, run_shard(task))
    except Exception as error:  # a failing engine must not end the grid
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"shard {task.shard}: {type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        return _batch(task.shard, [("failed", text.encode())])


def _rows(shard: int, outcome: Outcome) -> pa.RecordBatch:
    rows = [("note", f"shard {shard}: {note}".encode()) for note in outcome.notes]
    if outcome.wrong:
        rows.append(("wrong", f"shard {shard}: {outcome.wrong}".encode()))
    else:
        rows += [(table, _stream(as_batch(found, TABLES[table]))) for table, found in outcome.rows.items()]
    return _batch(shard, rows)


def _batch(shard: int, rows: list[tuple[str, bytes]]) -> pa.RecordBatch:
    kinds, payloads = zip(*rows, strict=True) if rows else ((), ())
    return pa.RecordBatch.from_arrays(
        [pa.array([shard] * len(rows), pa.int32()), pa.array(kinds, pa.string()), pa.array(payloads, pa.binary())], schema=RESULT
    )


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def table_of(payload: bytes) -> pa.Table:
    """Return the rows of a payload."""
    with pa.ipc.open_stream(payload) as reader:
        return reader.read_all()


def progress_of(text: str) -> str:
    """Return the phase that a progress file names; "" when it cannot be read now."""
    try:
        found: Any = json.loads(text)
        return str(found["phase"])
    except (ValueError, KeyError, TypeError):
        return ""
