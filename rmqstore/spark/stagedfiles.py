"""The files of phase 1: Arrow record batches, each of one shard and with a sum, that are in a file until they are sent.

A file is an Arrow IPC stream, so any reader of such streams shows what is in it. Which batch is where, and the CRC-32 of its bytes, is
not in the file but in the answer of the task, and with the commit in the record of the job: a batch is taken by that alone, from a copy of
its bytes. So a file of another length, or a batch of which a byte is another one, is noticed before anything of that batch is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.batch import IN_SCHEMA
from rmqstore.errors import CorruptStoreError, TransferError

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # the same sums, taken more slowly; the extra "spark" brings the other one
    from zlib import crc32

_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class StagedFile(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One file of phase 1: where its batches begin; shard, rows, bytes and CRC-32 of each; and the latest deliver time, ms.

    A task without rows has no file; its name is empty. One that found the job committed only counted its rows: ``is_drained``.
    ``body_sum`` is that of all bytes of all bodies, the same in whatever order the rows come. A file
    without sums was written by a version that took none; it only says what its job had.
    """

    name: str
    shards: list[int]
    rows: list[int]
    sizes_bytes: list[int]
    offset: int = 0
    sums: list[int] = []
    latest_ms: int | None = None
    body_sum: int = 0
    is_drained: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return self.offset + sum(self.sizes_bytes) + len(_END_OF_STREAM)


def body_sum(batch: pa.RecordBatch) -> int:
    """Return the sum of all bytes of the bodies."""
    bodies = batch.column("body").cast(pa.binary())
    _, offsets, values = bodies.buffers()
    if values is None or not len(bodies):
        return 0
    first, behind = np.frombuffer(offsets, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1][[0, -1]].tolist()
    return int(pc.sum(pa.Array.from_buffers(pa.uint8(), behind - first, [None, values], offset=first)).as_py() or 0)


def counted(batches: Iterable[pa.RecordBatch]) -> StagedFile:
    """Return how many rows there are, and the sum of their bodies; nothing is written."""
    rows = total = 0
    for batch in batches:
        rows += batch.num_rows
        total += body_sum(batch)
    return StagedFile(name="", shards=[], rows=[rows], sizes_bytes=[], body_sum=total, is_drained=True)


class BatchWriter:
    """Writes batches into a new file.

    Attributes:
        offset, shards, rows, sizes_bytes, sums, body_sum: of what was written so far, as in :class:`StagedFile`.
    """

    def __init__(self, sink: pa.NativeFile) -> None:
        self._sink = sink
        self._sink.write(IN_SCHEMA.serialize())
        self.offset: int = sink.tell()
        self.shards: list[int] = []
        self.rows: list[int] = []
        self.sizes_bytes: list[int] = []
        self.sums: list[int] = []
        self.body_sum = 0

    def write(self, shard: int, batch: pa.RecordBatch) -> None:
        """Write rows of ``IN_SCHEMA`` that belong to one shard."""
        message = batch.serialize()
        self.shards.append(shard)
        self.rows.append(batch.num_rows)
        self.sizes_bytes.append(message.size)
        self.sums.append(crc32(message))
        self.body_sum += body_sum(batch)
        self._sink.write(message)

    def finish(self, name: str, latest_ms: int | None = None) -> StagedFile:
        """Write the end of the stream, and say what is in the file of this name."""
        self._sink.write(_END_OF_STREAM)
        return StagedFile(
            name=name,
            shards=self.shards,
            rows=self.rows,
            sizes_bytes=self.sizes_bytes,
            offset=self.offset,
            sums=self.sums,
            latest_ms=latest_ms,
            body_sum=self.body_sum,
        )


def read_batches(path: Path, file: StagedFile, shard: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield number and rows of every batch of a shard.

    Raises:
        CorruptStoreError: the file is missing, or not what was written.
        TransferError: an earlier version wrote it.
    """
    if shard not in file.shards:
        return
    if len(file.sums) != len(file.shards):
        raise TransferError(
            f"the staged file {path} has no sums: an earlier version of rmqstore set it aside, so finish its job with that version, "
            "or take it back with `rmqstore doctor --undo`, or --drop-job when some of it was sent"
        )
    starts = accumulate(file.sizes_bytes[:-1], initial=file.offset)
    try:
        with pa.OSFile(str(path)) as source:
            if source.size() != file.size_bytes:
                what = f"the staged file {path} has {source.size()} bytes, not {file.size_bytes} as it was written"
                raise CorruptStoreError(what, file=str(path), offset=min(source.size(), file.size_bytes))
            for number, (own, start) in enumerate(zip(file.shards, starts, strict=True)):
                if own != shard:
                    continue
                source.seek(start)
                message = source.read_buffer(file.sizes_bytes[number])
                batch = pa.ipc.read_record_batch(message, IN_SCHEMA) if crc32(message) == file.sums[number] else None
                if batch is None or batch.num_rows != file.rows[number]:
                    what = f"batch {number} of the staged file {path} is not what was written"
                    raise CorruptStoreError(what, file=str(path), offset=start)
                yield number, batch
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        raise CorruptStoreError(f"the staged file {path} cannot be read: {error}", file=str(path), offset=0) from error


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of some batches as one, without a copy when there is only one."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
