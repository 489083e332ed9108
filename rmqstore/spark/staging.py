"""Phase 1 of a job in a task: rows are checked, split by shard and set aside in a file; nothing is sent until the file is read.

A file is an Arrow IPC stream of record batches, each of one shard, so any reader of such streams shows what is in it. Which batch is
where, and the CRC-32 of its bytes, is not in the file but in the answer of the task, and with the commit in the record of the job: a batch
is taken by that alone, from a copy of its bytes. So a file of another length, or a batch of which a byte is another one, is noticed before
anything of that batch is sent.
"""

from __future__ import annotations

import enum
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore import config
from rmqstore.batch import MessageBatch
from rmqstore.clock import SystemClock
from rmqstore.delays import batch_without_requests
from rmqstore.engine.kv.directory import sync_path
from rmqstore.errors import CorruptStoreError, DelayTooLongError, IllegalArgumentError, system_error
from rmqstore.plugins import get_plugins
from rmqstore.schemas import IN_SCHEMA
from rmqstore.spark.columns import check_unit, shard_column

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # the same sums, taken more slowly; the extra "spark" brings the other one
    from zlib import crc32

if TYPE_CHECKING:
    from rmqstore.spark.dataset import Dataset
    from rmqstore.spark.jobs import Job

CHUNK_ROWS: Final = 50_000
CHUNK_BYTES: Final = 32 * 1024 * 1024
"""A chunk, which a store takes in one atomic call, has about so many rows or bytes."""

HELD_BYTES: Final = 128 * 1024 * 1024
"""What a task holds for all shards together; then the largest chunk goes, full or not."""

_PIECE_BYTES: Final = 1024 * 1024
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


REJECTED_SCHEMA: Final = pa.schema([*IN_SCHEMA, pa.field("reason", pa.string())])
"""The columns of a row that is no message, as it was written, and why it is none."""


class OnBadRow(enum.Enum):
    """What becomes of a row that is no message: the whole write fails, or the row is set aside with the reason."""

    FAIL = "fail"
    COLLECT = "collect"

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise IllegalArgumentError(f"on_bad_row must be {' or '.join(way.value for way in cls)}, not {value!r}")


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """How the rows of a write are checked.

    Attributes:
        now_ms: the time from which delays count; None = that of the machine.
        horizon_ms: the longest delay that every shard takes; None = nothing is too long.
    """

    now_ms: int | None = None
    horizon_ms: int | None = None
    on_bad_row: OnBadRow = OnBadRow.FAIL


DEFAULT_RULES: Final = Rules()


def rules_of(dataset: Dataset, now_ms: int | None, on_bad_row: OnBadRow) -> Rules:
    """Return the rules of a write into a data set."""
    found = get_plugins()
    info, _ = found.load_engine(dataset.manifest.engine)
    known = found.engine_settings()
    # A shard may have settings of its own, and a row does not say to which shard it goes.
    given = [config.load(dataset.shard_path(shard), dataset.manifest.settings, known).max_delay_ms for shard in dataset.shards]
    return Rules(now_ms=now_ms, horizon_ms=min(each or info.capabilities.horizon_ms for each in given), on_bad_row=on_bad_row)


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """One batch of a file: the shard that its rows belong to, how many they are, its bytes, and the CRC-32 of these."""

    shard: int
    rows: int
    size_bytes: int
    crc32: int


class StagedFile(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One file of phase 1: its batches, and where they begin.

    A task without rows has no file; its name is empty. Nor has one that found the job committed and only counted its rows. ``rejected``
    rows are in the file of this name among the rejected ones, and in no batch; ``rejected_bytes`` and ``rejected_crc32`` are of that whole
    file, None in the record of an older version. ``rows_sum`` is of all rows, as :func:`rows_sum` gives it. ``split`` tells among how many
    shards the rows were split.
    """

    name: str = ""
    rows: int = 0
    batches: list[Batch] = []
    offset: int = 0
    rejected: int = 0
    rejected_bytes: int | None = None
    rejected_crc32: int | None = None
    rows_sum: int = 0
    split: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return self.offset + sum(batch.size_bytes for batch in self.batches) + len(_END_OF_STREAM)


def rows_sum(batch: pa.RecordBatch) -> int:
    """Return the sum of the CRC-32 of each row's topic, keys and body together: the same in whatever order the rows come.

    ``keys`` may be missing.
    """
    keys = batch.column("keys") if "keys" in batch.schema.names else pa.nulls(batch.num_rows, pa.string())
    if pa.types.is_list(keys.type):
        keys = pc.binary_join(keys.cast(pa.list_(pa.string())), "\0")
    parts = [column.cast(pa.binary()) for column in (batch.column("topic"), keys, batch.column("body"))]
    rows = pc.binary_join_element_wise(*parts, b"\0", null_handling="replace")
    return sum(map(crc32, rows.to_pylist()))


def counted(batches: Iterable[pa.RecordBatch]) -> StagedFile:
    """Return how many rows there are, and their sum; nothing is written."""
    found = [(batch.num_rows, rows_sum(batch)) for batch in batches]
    return StagedFile(rows=sum(rows for rows, _ in found), rows_sum=sum(each for _, each in found))


def stage(job: Job, batches: Iterable[pa.RecordBatch], partition: int, rules: Rules = DEFAULT_RULES) -> StagedFile:
    """Check the rows of one task and write them durably into a file of its own; bad ones, if they are collected, into another one.

    Args:
        batches: columns of ``IN_SCHEMA``, optional ones may be missing.
        partition: number of the task; it begins the file's name and the turn of rows without a name.
    """
    get_plugins().load_engine(job.dataset.manifest.engine)
    name = f"{partition:05}-{secrets.token_hex(8)}.arrow"
    path, bad_path = job.staged / name, job.rejected / name
    now_ms = SystemClock().now_ms() if rules.now_ms is None else rules.now_ms
    rows = rejected = 0
    kept: list[Path] = []
    try:
        # What other attempts staged stays until the commit, since they may still run.
        job.staged.mkdir(parents=True, exist_ok=True)
        with ExitStack() as files:
            writer = StagedWriter(files.enter_context(pa.OSFile(str(path), "wb")), job.dataset.manifest.shards)
            aside: pa.RecordBatchStreamWriter | None = None
            for batch in filter(len, batches):
                bad: dict[int, str] | None = {} if rules.on_bad_row is OnBadRow.COLLECT else None
                good = [*_sorted_out(batch, partial(_checked, now_ms=now_ms, horizon_ms=rules.horizon_ms), bad)]
                if good:
                    writer.add(joined(good), partition + rows)
                    rows += sum(map(len, good))
                if bad:
                    if aside is None:
                        bad_path.parent.mkdir(exist_ok=True)
                        aside = files.enter_context(pa.ipc.new_stream(str(bad_path), REJECTED_SCHEMA))
                    as_written = batch.take(pa.array(bad))
                    aside.write_batch(_with_reasons(as_written, list(bad.values())))
                    writer.rows_sum += rows_sum(as_written)
                    rejected += len(bad)
            staged = writer.finish(name)
        if rejected:
            with pa.OSFile(str(bad_path)) as source:
                size_bytes, total = _size_and_sum(source)
            staged = msgspec.structs.replace(staged, rejected=rejected, rejected_bytes=size_bytes, rejected_crc32=total)
        for each, is_wanted in ((path, rows or rejected), (bad_path, rejected)):
            if is_wanted:
                sync_path(each)
                kept.append(each)
    except IllegalArgumentError as error:
        error.args = (f"{error} (counted from row {rows} of partition {partition}; nothing was written)",)
        raise
    except OSError as error:
        raise system_error(error, path) from error
    finally:
        for each in {path, bad_path}.difference(kept):
            each.unlink(missing_ok=True)
    return staged if kept else StagedFile()


def _sorted_out(
    batch: pa.RecordBatch, check: Callable[[pa.RecordBatch], pa.RecordBatch], bad: dict[int, str] | None, first: int = 0
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that are messages, as ``check`` gives them; the others come into ``bad``, their numbers with the reasons.

    Where ``bad`` is None, the first of them is raised.
    """
    try:
        good = check(batch)
    except IllegalArgumentError as error:
        if bad is None:
            raise
        if batch.num_rows == 1:
            bad[first] = str(error).removeprefix("row 0: ")
            return
        half = batch.num_rows // 2
        yield from _sorted_out(batch.slice(0, half), check, bad, first)
        yield from _sorted_out(batch.slice(half), check, bad, first + half)
    else:
        yield good


def _checked(batch: pa.RecordBatch, now_ms: int, horizon_ms: int | None) -> pa.RecordBatch:
    """Return rows as the shards take them; what these would refuse later is refused here."""
    columns = batch_without_requests(MessageBatch.from_arrow(batch), now_ms).columns
    check_unit(columns)
    latest_ms = pc.max(columns.column("deliver_at_ms")).as_py()
    if latest_ms is not None and horizon_ms is not None and latest_ms - now_ms > horizon_ms:
        raise DelayTooLongError(f"column 'deliver_at_ms': {latest_ms} is {latest_ms - now_ms} ms ahead; this data set takes {horizon_ms}")
    return columns


def _with_reasons(batch: pa.RecordBatch, reasons: list[str]) -> pa.RecordBatch:
    columns = [
        batch.column(field.name).cast(field.type) if field.name in batch.schema.names else pa.nulls(len(reasons), field.type)
        for field in IN_SCHEMA
    ]
    return pa.RecordBatch.from_arrays([*columns, pa.array(reasons, pa.string())], schema=REJECTED_SCHEMA)


class StagedWriter:
    """Collects rows by shard and writes them into a new file chunk by chunk, each a record batch of its own."""

    def __init__(self, sink: pa.NativeFile, shards: int) -> None:
        self._sink = sink
        self._sink.write(IN_SCHEMA.serialize())
        self._offset: int = sink.tell()
        self._count = shards
        self._pieces: defaultdict[int, list[pa.RecordBatch]] = defaultdict(list)
        self._held_rows: Counter[int] = Counter()
        self._held_bytes: Counter[int] = Counter()
        self._written: list[Batch] = []
        self.rows_sum = 0

    def add(self, columns: pa.RecordBatch, first_row: int) -> None:
        """Take in a checked batch; ``first_row`` is the turn of its first row."""
        for shard, piece in self._split(columns, first_row):
            self._pieces[shard].append(piece)
            self._held_rows[shard] += piece.num_rows
            self._held_bytes[shard] += piece.get_total_buffer_size() * piece.num_rows // columns.num_rows
            if self._held_rows[shard] >= CHUNK_ROWS or self._held_bytes[shard] >= CHUNK_BYTES:
                self._write(shard)
        while self._held_bytes.total() > HELD_BYTES:
            self._write(max(self._held_bytes, key=self._held_bytes.__getitem__))

    def _split(self, columns: pa.RecordBatch, first_row: int) -> Iterable[tuple[int, pa.RecordBatch]]:
        if self._count == 1:
            return [(0, columns)]
        shards = shard_column(columns, self._count, first_row)
        order = np.argsort(shards.astype(np.uint16), kind="stable")
        ordered = columns.take(pa.array(order))
        edges = pairwise([0, *np.cumsum(np.bincount(shards)).tolist()])
        return [(shard, ordered.slice(at, end - at)) for shard, (at, end) in enumerate(edges) if end > at]

    def _write(self, shard: int) -> None:
        pieces = self._pieces.pop(shard)
        del self._held_bytes[shard], self._held_rows[shard]
        self.write(shard, joined(pieces))

    def write(self, shard: int, batch: pa.RecordBatch) -> None:
        """Write rows of ``IN_SCHEMA`` that belong to one shard."""
        message = batch.serialize()
        self._written.append(Batch(shard, batch.num_rows, message.size, crc32(message)))
        self.rows_sum += rows_sum(batch)
        self._sink.write(message)

    def finish(self, name: str) -> StagedFile:
        """Write what is held, and the end of the stream; say what is in the file of this name."""
        for shard in sorted(self._pieces):
            self._write(shard)
        self._sink.write(_END_OF_STREAM)
        rows, batches = sum(batch.rows for batch in self._written), self._written
        return StagedFile(name=name, rows=rows, batches=batches, offset=self._offset, rows_sum=self.rows_sum, split=self._count)


def _size_and_sum(source: pa.NativeFile) -> tuple[int, int]:
    """Return the bytes of a file and their CRC-32."""
    found = 0
    while piece := source.read_buffer(_PIECE_BYTES):
        found = crc32(piece, found)
    return source.size(), found


def read_rejected(path: Path, file: StagedFile) -> Iterator[pa.RecordBatch]:
    """Yield the rows that a task rejected, on ``REJECTED_SCHEMA``; none when their job was forgotten meanwhile.

    Raises:
        CorruptStoreError: the file is damaged, as far as its record tells, or missing.
    """
    rows, job = 0, path.parent.parent
    try:
        with damage_told(path, "the file of rejected rows"), pa.OSFile(str(path)) as source:
            found = _size_and_sum(source)
            if file.rejected_bytes is not None and found != (file.rejected_bytes, file.rejected_crc32):
                raise pa.ArrowInvalid(f"it has {found[0]} bytes, which are not the {file.rejected_bytes} that were written")
            source.seek(0)
            with pa.ipc.open_stream(source) as batches:
                if batches.schema != REJECTED_SCHEMA:
                    raise pa.ArrowInvalid(f"its columns are {', '.join(batches.schema.names)}")
                for batch in batches:
                    batch.validate(full=True)
                    rows += len(batch)
                    yield batch
            if rows != file.rejected:
                raise pa.ArrowInvalid(f"it has {rows} rows, not {file.rejected}")
    except FileNotFoundError as error:
        if job.exists():
            what = f"the file of rejected rows {path} is missing, which has rows that job {job.name} rejected"
            raise CorruptStoreError(what, file=str(path), offset=0) from error


@contextmanager
def damage_told(path: Path, what: str) -> Iterator[None]:
    """Tell of damage to an Arrow file that is read in this block, by :class:`CorruptStoreError`; :class:`FileNotFoundError` passes."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # of the system; pyarrow tells of damage without
            raise system_error(error, path) from error
        raise CorruptStoreError(f"{what} {path} cannot be read: {error}", file=str(path), offset=0) from error


def read_batches(path: Path, file: StagedFile, shard: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield number and rows of every batch of a shard."""
    starts = accumulate((each.size_bytes for each in file.batches), initial=file.offset)
    own = [(number, each, start) for number, (each, start) in enumerate(zip(file.batches, starts, strict=False)) if each.shard == shard]
    if not own:
        return
    try:
        with pa.OSFile(str(path)) as source:
            if source.size() != file.size_bytes:
                what = f"the staged file {path} has {source.size()} bytes, not {file.size_bytes} as it was written"
                raise CorruptStoreError(what, file=str(path), offset=min(source.size(), file.size_bytes))
            for number, written, start in own:
                source.seek(start)
                message = source.read_buffer(written.size_bytes)
                batch = pa.ipc.read_record_batch(message, IN_SCHEMA) if crc32(message) == written.crc32 else None
                if batch is None or batch.num_rows != written.rows:
                    what = f"batch {number} of the staged file {path} is not what was written"
                    raise CorruptStoreError(what, file=str(path), offset=start)
                yield number, batch
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        raise CorruptStoreError(f"the staged file {path} cannot be read: {error}", file=str(path), offset=0) from error


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of some batches as one, without a copy when there is only one."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
