"""Phase 1 of a job in a task: rows are checked, split by shard and set aside in a file; nothing is sent."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.batch import MessageBatch
from rmqstore.clock import SystemClock
from rmqstore.delays import batch_without_requests
from rmqstore.engine.kv.directory import sync_path
from rmqstore.errors import IllegalMessageError, system_error
from rmqstore.plugins import get_plugins
from rmqstore.spark.jobs import CHUNK_BYTES, CHUNK_ROWS, Job
from rmqstore.spark.routing import shard_column
from rmqstore.spark.stagedfiles import BatchWriter, StagedFile, joined

HELD_BYTES: Final = 128 * 1024 * 1024
"""What a task holds for all shards together; then the largest chunk goes, full or not."""


def stage(job: Job, batches: Iterable[pa.RecordBatch], partition: int, now_ms: int | None = None) -> StagedFile:
    """Check the rows of one task and write them durably into a file of its own.

    Args:
        batches: columns of ``IN_SCHEMA``, optional ones may be missing.
        partition: number of the task; it begins the file's name and the turn of rows without a name.
        now_ms: from when on properties that ask for a delay count; by default the time of the machine.

    Raises:
        IllegalMessageError: naming the column at fault, and the row in its task.
        EngineLookupError: the engine of the data set cannot be used in this process.
        StoreFullError: no room.
    """
    get_plugins().load_engine(job.dataset.manifest.engine)
    name = f"{partition:05}-{secrets.token_hex(8)}.arrow"
    path = job.staged / name
    now_ms = SystemClock().now_ms() if now_ms is None else now_ms
    try:
        job.begin()
        with pa.OSFile(str(path), "wb") as sink:
            writer = _Writer(sink, job.dataset.manifest.shards)
            rows = 0
            for batch in batches:
                if batch.num_rows:
                    writer.add(_checked(batch, partition, rows, now_ms), partition + rows)
                    rows += batch.num_rows
            staged = writer.finish(name)
        if not rows:
            path.unlink()
            return StagedFile(name="", shards=[], rows=[], sizes_bytes=[])
        sync_path(path)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise system_error(error, path) from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return staged


def _checked(batch: pa.RecordBatch, partition: int, first_row: int, now_ms: int) -> pa.RecordBatch:
    try:
        # The store would do this when it is too late to refuse a row.
        return batch_without_requests(MessageBatch.from_arrow(batch), now_ms).columns
    except IllegalMessageError as error:
        error.args = (f"{error} (counted from row {first_row} of partition {partition}; nothing was written)",)
        raise


class _Writer:
    """Collects rows by shard and writes them chunk by chunk, each a record batch of its own."""

    def __init__(self, sink: pa.NativeFile, shards: int) -> None:
        self._file = BatchWriter(sink)
        self._count = shards
        self._pieces: dict[int, list[pa.RecordBatch]] = {}
        self._held_rows: dict[int, int] = {}
        self._held_bytes: dict[int, int] = {}
        self.latest_ms: int | None = None

    def add(self, columns: pa.RecordBatch, first_row: int) -> None:
        """Take in a checked batch; ``first_row`` is the turn of its first row."""
        latest_ms = pc.max(columns.column("deliver_at_ms")).as_py()
        if latest_ms is not None:
            self.latest_ms = max(latest_ms, self.latest_ms or 0)
        for shard, piece in self._split(columns, first_row):
            self._pieces.setdefault(shard, []).append(piece)
            self._held_rows[shard] = self._held_rows.get(shard, 0) + piece.num_rows
            self._held_bytes[shard] = self._held_bytes.get(shard, 0) + piece.get_total_buffer_size() * piece.num_rows // columns.num_rows
            if self._held_rows[shard] >= CHUNK_ROWS or self._held_bytes[shard] >= CHUNK_BYTES:
                self._write(shard)
        while sum(self._held_bytes.values()) > HELD_BYTES:
            self._write(max(self._held_bytes, key=self._held_bytes.__getitem__))

    def _split(self, columns: pa.RecordBatch, first_row: int) -> Iterable[tuple[int, pa.RecordBatch]]:
        if self._count == 1:
            return [(0, columns)]
        shards = shard_column(columns, self._count, first_row)
        order = np.argsort(shards.astype(np.uint16), kind="stable")
        behind = np.cumsum(np.bincount(shards, minlength=self._count))
        ordered = columns.take(pa.array(order))
        starts = [0, *behind[:-1].tolist()]
        return [
            (shard, ordered.slice(at, end - at)) for shard, (at, end) in enumerate(zip(starts, behind.tolist(), strict=True)) if end > at
        ]

    def _write(self, shard: int) -> None:
        pieces = self._pieces.pop(shard)
        del self._held_bytes[shard], self._held_rows[shard]
        self._file.write(shard, joined(pieces))

    def finish(self, name: str) -> StagedFile:
        """Write what is held, and the end of the file of this name."""
        for shard in sorted(self._pieces):
            self._write(shard)
        return self._file.finish(name, self.latest_ms)
