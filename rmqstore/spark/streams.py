"""Streams of Spark: a micro-batch that is written is a job, and the queues of topics are read by their offsets.

**Writing.** The id of the job is that of the query, which its checkpoint keeps, and the number of the micro-batch. So a micro-batch that
Spark runs again after a crash is the same job again (``rmqstore.spark.jobs``): before the commit it begins anew, after it what is missing
is sent, and of one that was given up nothing more is. Spark tells the id of the query to tasks alone; they hand it to the commit with their
answers.

**Reading.** An offset of a stream says for each queue, named ``shard/topic/queue``, which of its messages comes next; a queue that is not
named begins with its first message. Spark keeps the offsets, and asks for a range of them again after a crash. Nothing is leased. They say
of which data set they are, and of which shards of it, since the queues of others have the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, DataSourceStreamReader, InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from rmqstore.errors import TransferError
from rmqstore.spark.dataset import Dataset, is_dataset, place_of
from rmqstore.spark.failures import reports
from rmqstore.spark.ingest import complete_here
from rmqstore.spark.jobs import Job
from rmqstore.spark.readout import Part, Wanted, plan, read, split
from rmqstore.spark.running import staged_here
from rmqstore.spark.staging import Rules, StagedFile
from rmqstore.store.directory import read_manifest

if TYPE_CHECKING:
    import pyarrow as pa

KEPT_BATCHES: Final = 100
"""So many micro-batches of a query are remembered, as many as Spark keeps in a checkpoint (``spark.sql.streaming.minBatchesToRetain``)."""

_IDENTITY: Final = "id"
_RESHARDED: Final = "resharded"
"""Among offsets: of which data set, or store, they are, and which resharding made its shards. The names of queues have slashes."""

_IDENTITY_DIGITS: Final = 12
"""So many digits of a data set's id are a number that JSON keeps everywhere."""

Offsets = dict[str, int]


# ---------------------------------------------------------------- writing


@dataclass
class Staged(WriterCommitMessage):
    """What a task answered, as JSON, and the query of its micro-batch, if it is of one."""

    answer: str
    query_id: str = ""


def staged_files(messages: Iterable[WriterCommitMessage | None]) -> list[StagedFile]:
    """Return what the tasks of a write set aside; the first failure among their answers is raised."""
    return reports((message.answer for message in messages if isinstance(message, Staged)), StagedFile)


@dataclass(frozen=True)
class MicroBatchWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch as a job: tasks stage, the commit sends."""

    dataset: Dataset
    rules: Rules
    lock_wait_ms: int

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context: Any = TaskContext.get()
        query_id = context.getLocalProperty("sql.streaming.queryId")
        job = self._job(query_id, int(context.getLocalProperty("streaming.sql.batchId")))
        return Staged(staged_here(job, iterator, self.rules), query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for query_id in _queries(messages):
            files, job = staged_files(messages), self._job(query_id, batchId)
            if (record := job.record()) is not None and record.is_dropped:
                # A query cannot give it another id, and would never come to the next one.
                job.check_same(files)
            else:
                complete_here(job, files, self.rules.now_ms, self.lock_wait_ms)
            self._job(query_id, batchId - KEPT_BATCHES).forget()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        # A task may still be writing: what it leaves is swept when the micro-batch comes again, or by the doctor.
        for query_id in _queries(messages):
            self._job(query_id, batchId).discard()

    def _job(self, query_id: str, batch: int) -> Job:
        return Job(self.dataset, f"{query_id}-{batch}")


def _queries(messages: Iterable[WriterCommitMessage | None]) -> set[str]:
    return {message.query_id for message in messages if isinstance(message, Staged)}


# ---------------------------------------------------------------- reading


@dataclass(eq=False)
class QueueReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the queues of topics on and on, a range of offsets a task."""

    path: str
    wanted: Wanted
    part_rows: int
    is_from_latest: bool
    max_rows: int | None
    _last: dict[str, Part] | None = None  # of a query that stops where the queues ended when it began
    _seen: Offsets | None = None
    _whose: Offsets = field(default_factory=dict)  # of which shards the queues are that were looked for last

    def initialOffset(self) -> Offsets:
        if not self.is_from_latest:
            return {}
        ends = _ends(self._reached())
        return self._whose | ends

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._queues()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self.max_rows is None else ReadMaxRows(self.max_rows)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        queues = self._reached()
        self._check(start)
        start = start | self._whose
        self._seen = start | _ends(queues)
        return bounded(start, queues, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def reportLatestOffset(self) -> Offsets | None:
        return self._seen

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        queues = self._queues()
        self._check(end)
        parts: list[Part] = []
        for name, queue in queues.items():
            first, behind = max(start.get(name, 0), queue.first), end.get(name, 0)
            parts += split(msgspec.structs.replace(queue, first=first, behind=behind), self.part_rows)
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(partition.value, self.wanted)

    def _shards(self) -> Offsets:
        """Return what tells the shards from others that were, or will be, in their place."""
        place = place_of(self.path)
        if not is_dataset(place):
            return {_IDENTITY: (read_manifest(place) or {}).get("store_id", 0)}
        manifest = Dataset.open(place).manifest
        return {_IDENTITY: int(manifest.id[:_IDENTITY_DIGITS], 16), _RESHARDED: manifest.resharded}

    def _check(self, offsets: Offsets) -> None:
        """Refuse offsets of other shards than those whose queues were looked for last."""
        given = {name: offsets.get(name) for name in self._whose}
        if not offsets or given == self._whose:
            return
        is_other = given[_IDENTITY] != self._whose[_IDENTITY]
        what = "is another one than this stream has read" if is_other else "has got another number of shards since this stream read it"
        raise TransferError(
            f"what is at {self.path} {what}, so its offsets are those of shards that are gone; a new checkpoint begins with what is there"
        )

    def _reached(self) -> dict[str, Part]:
        """Return the queues as far as the query goes."""
        return self._queues() if self._last is None else self._last

    def _queues(self) -> dict[str, Part]:
        """Return every queue that has messages, whole, by the name that it has in offsets."""
        while True:
            self._whose = self._shards()
            queues = {f"{queue.shard}/{queue.topic}/{queue.queue_id}": queue for queue in plan(self.path, self.wanted, part_rows=2**63)}
            if self._shards() == self._whose:
                return queues


def _ends(queues: dict[str, Part]) -> Offsets:
    return {name: queue.behind for name, queue in queues.items()}


def bounded(start: Offsets, queues: dict[str, Part], max_rows: int | None) -> Offsets:
    """Return how far a micro-batch goes: to the ends of the queues, or ``max_rows`` messages on, shared out by what waits in each."""
    waiting: Offsets = {}
    for name, queue in queues.items():
        if queue.behind < start.get(name, 0):
            raise TransferError(
                f"queue {name} ends at offset {queue.behind}, and this stream has read it up to {start[name]}: its topic was made anew, or "
                "its shard was set back to an earlier state; a new checkpoint begins with what is there"
            )
        waiting[name] = queue.behind - max(start.get(name, 0), queue.first)
    total = sum(waiting.values())
    taken = total if max_rows is None else min(max_rows, total)
    end, before = dict(start), 0
    for name, rows in waiting.items():
        if rows and (share := taken * (before + rows) // total - taken * before // total):
            end[name] = queues[name].behind - rows + share
        before += rows
    return end
