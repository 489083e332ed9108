"""What a driver calls: write, read, hand over, migrate, reshard. Each runs jobs of Spark whose tasks own one shard at a time.

Nothing here touches ``sparkContext``, RDDs or accumulators, so that it works over Spark Connect as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial, reduce
from typing import TYPE_CHECKING, TypeVar

import msgspec
import pyarrow as pa

from rmqstore.clock import SystemClock
from rmqstore.settings import Value
from rmqstore.spark.columns import check_columns, ddl, taken, written_columns
from rmqstore.spark.dataset import LOCK_WAIT_MS, Dataset, place_of
from rmqstore.spark.failures import LASTING, Failure, encoded, reports as read_reports, typed
from rmqstore.spark.ingest import ShardReport, complete, ingest_shard
from rmqstore.spark.jobs import Job, check_no_job_waits, job_of_write, job_under_way
from rmqstore.spark.readout import SCHEMAS, View, Wanted, stores_at
from rmqstore.spark.staging import OnBadRow, Rules, StagedFile, counted, rules_of, stage
from rmqstore.store.tick import TickReport
from rmqstore.when import time_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from rmqstore.spark.migrating import ShardMigration
    from rmqstore.spark.resharding import Resharding

_Report = TypeVar("_Report", bound=msgspec.Struct)
_Answer = TypeVar("_Answer")
_Batches = Iterator[pa.RecordBatch]


class ScheduleReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a job wrote.

    Attributes:
        rows: messages of the job, in all shards.
        rejected: rows that are no messages, which the view ``rejected`` shows; 0 unless they are collected.
        repeated: how many of them an earlier run of the same job had written.
        shards: the same by shard; those without a message are left out.
    """

    job_id: str
    rows: int
    repeated: int
    shards: tuple[ShardReport, ...]
    rejected: int = 0


class ShardTick(TickReport, frozen=True, tag=True, kw_only=True):
    """What the tick of one shard moved."""

    shard: int


class HandOverReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a hand-over moved: messages that came to their topics, and the whole report by shard."""

    handed_over: int
    shards: tuple[ShardTick, ...]


def schedule(
    df: DataFrame,
    path: str | os.PathLike[str],
    *,
    shards: int | None = None,
    engine: str | None = None,
    job_id: str | None = None,
    now: datetime | None = None,
    now_ms: int | None = None,
    settings: Mapping[str, Value] | None = None,
    lock_wait_ms: int = LOCK_WAIT_MS,
    on_bad_row: str = OnBadRow.FAIL.value,
) -> ScheduleReport:
    """Write the rows of ``df`` as messages into the data set ``path``, made as needed, exactly once for one ``job_id``.

    Nothing is stored before all rows are checked and set aside. After an error behind that, a call with the same ``job_id`` completes the
    job from what was set aside; the rows of ``df`` are then only compared with it.

    Args:
        df: columns of :data:`rmqstore.spark.SCHEMA`; all but topic and body may be missing or null. A timestamp ``deliver_at``
            may stand for ``deliver_at_ms``; what only a read gives (``shard``, ``store_ms``, ``receipt`` …) means nothing to a new message.
        shards: of a new data set, by default 2; of one that exists, what it must have.
        engine: likewise.
        job_id: name of the job; by default a new one, which is refused while another job is half done.
        now: the time at which the messages are sent, an aware ``datetime``; by default that of the machine, and of who serves a shard.
        now_ms: the same in ms since the epoch.
        settings: keywords of ``rmqstore.open`` for every shard of a new data set.
        lock_wait_ms: how long a task waits for a shard that another task holds.
        on_bad_row: ``fail``, or ``collect``: a row that is no message is set aside with the reason, exactly once as the others are
            written, and the view ``rejected`` has it. Columns are not rows: a wrong one always fails.

    Raises:
        IllegalMessageError: a column, or a row, breaks the data contract; nothing was stored.
        FlowControlError: a tick would hold more timers than ``congestion_limit``; nothing was stored.
        TransferError: the job is committed and not all of it is stored, with its id and what completes it; or another one is, and this one
            has no id; or a job of this id has brought other rows, or was given up; or shards do not know which part of it they have; or
            the data set has got another number of shards meanwhile, and nothing was stored.
        ConfigError: the data set is another one than was asked for, or on its way to another number of shards, or to another engine.
        StoreLockedError: a shard is open in another process that does not serve it, or ``now`` is given and it is open at all.
        EngineNotInstalledError: the engine is missing here or on an executor.
        StorePathError, StoreFullError: the directory cannot be used.
    """
    check_columns((field.name, field.dataType.simpleString()) for field in df.schema.fields)
    now_ms, way = time_ms("now", now, now_ms), OnBadRow(on_bad_row)
    dataset = Dataset.open_or_create(path, shards=shards, engine=engine, settings=settings)
    dataset.check_ready(is_served_too=now_ms is None)
    rules = rules_of(dataset, now_ms, way)
    job = job_of_write(dataset, job_id)
    columns = df.select(*written_columns(df.columns))
    set_aside = partial(_reported, columns, StagedFile, lambda batches: iter([staged_here(job, batches, rules)]))
    send = partial(_run, df.sparkSession, ShardReport, lambda shard: ingest_shard(job, shard, wait_ms=lock_wait_ms))
    sent, record = complete(job, set_aside, now_ms, send)
    found = {report.shard: report for report in sent}
    # What is not reported had everything.
    reports = tuple(found.get(shard, ShardReport(shard=shard, rows=rows, repeated=rows)) for shard, rows in record.shards.items())
    repeated = sum(each.repeated for each in reports)
    return ScheduleReport(job_id=job.id, rows=record.rows, repeated=repeated, shards=reports, rejected=record.rejected)


def read(
    spark: SparkSession,
    path: str | os.PathLike[str],
    view: str = View.TIMERS.value,
    *,
    columns: Sequence[str] = (),
    shard: int | None = None,
    **options: object,
) -> DataFrame:
    """Read a view of a data set, shard by shard: a condition on the column ``shard`` leaves the other shards out of the plan.

    Each shard is a scan of its own, beside its number, so it is Spark that drops those that a condition excludes.

    Args:
        columns: names in their order; by default all of the view. Spark prunes none of them.
        shard: only this one.
        options: of the format ``rmqstore``, such as ``topic`` or ``from_ms``.

    Raises:
        IllegalArgumentError: there is no such view, or the view has no such column, or there is no such shard.
        StorePathError: there is nothing to read at ``path``.
    """
    from pyspark.sql import functions as sf

    wanted = Wanted(view=View(view), columns=tuple(columns))
    schema = wanted.schema()
    reader = spark.read.format("rmqstore").schema(ddl(schema)).options(view=view, **options)  # type: ignore[arg-type]
    if "shard" not in SCHEMAS[wanted.view].names:
        return reader.load(os.fspath(path))
    numbers = [number for number, _ in stores_at(os.fspath(path), shard)]
    scans = [reader.option("shard", number).load(os.fspath(path)) for number in numbers]
    if "shard" in schema.names:
        scans = [scan.withColumn("shard", sf.lit(number)) for number, scan in zip(numbers, scans, strict=True)]
    return reduce(type(scans[0]).union, scans)


def hand_over(
    spark: SparkSession,
    path: str | os.PathLike[str],
    until: datetime | None = None,
    *,
    until_ms: int | None = None,
    lock_wait_ms: int = LOCK_WAIT_MS,
) -> HandOverReport:
    """Let every shard do a tick: timers that are due at ``until`` (or ``until_ms``), by default now, become messages of their topics (H1).

    A time in the future is taken for granted by the shards: what depends on time, such as retention, goes by it.

    Raises:
        TransferError: a job is half done.
        StoreLockedError: a shard is open in another process, whose services hand over by themselves.
    """
    given_ms = time_ms("until", until, until_ms)
    due_ms = SystemClock().now_ms() if given_ms is None else given_ms
    dataset = Dataset.open(path)
    dataset.check_ready(is_served_too=False)
    check_no_job_waits(dataset)
    found = _run(spark, ShardTick, lambda shard: tick_shard(dataset, shard, due_ms, wait_ms=lock_wait_ms), dataset.shards)
    return HandOverReport(handed_over=sum(each.handed_over for each in found), shards=tuple(found))


def tick_shard(dataset: Dataset, shard: int, until_ms: int, *, wait_ms: int = LOCK_WAIT_MS) -> ShardTick:
    """Do a tick of one shard as of ``until_ms``; done again, it moves what the first one left."""
    with dataset.open_shard(shard, now_ms=until_ms, wait_ms=wait_ms) as store:
        if (job := job_under_way(dataset, shard)) is not None:
            raise job.half_done()
        return ShardTick(shard=shard, **msgspec.structs.asdict(store.tick()))


def migrate(spark: SparkSession, path: str | os.PathLike[str], engine: str) -> tuple[ShardMigration, ...]:
    """Move every shard to another engine, in parallel; digests are compared, the old stores are kept beside the new ones.

    Handles, receipts and marks stay good. An interrupted migration goes on with the same call, or with ``rmqstore doctor --finish``.

    Raises:
        TransferError: there is nothing to change, or a job is half done.
        StoreLockedError: a shard is open in another process.
        EngineNotInstalledError: the engine is missing here or on an executor.
    """
    from rmqstore.spark import migrating  # it brings Parquet along, which a task that writes does not need

    return migrating.migrate_all(Dataset.open(path), engine, partial(_run, spark, migrating.ShardMigration))


def reshard(spark: SparkSession, path: str | os.PathLike[str], shards: int) -> Resharding:
    """Change the number of shards: every message and timer goes to the shard that its name has among so many; the old shards are kept.

    The new data set takes the place of the old one in one step, so an interrupted call has changed nothing; it goes on with the same call,
    or with ``rmqstore doctor --finish``, and ``--undo`` removes what is built. docs/spark.md tells what goes along and what does not, and
    ``rmqstore.spark.resharding`` why nothing is lost or there twice.

    Raises:
        TransferError: there is nothing to change, a job is half done, or there is what cannot be split: leases, schedules, pauses, or
            groups of one topic that are not equally far.
        ConfigError: the shards have different settings.
        StoreLockedError: a shard is open in another process.
    """
    from rmqstore.spark import resharding  # as in migrate

    place = place_of(path)
    finished = resharding.take_up(place)
    dataset = Dataset.open(place)
    if finished is not None and dataset.manifest.shards == shards:
        return resharding.Resharding(shards=(), previous=str(finished.previous))
    return resharding.reshard_all(dataset, shards, partial(_run, spark, resharding.ShardShare))


# ---------------------------------------------------------------- tasks


def answered(call: Callable[[], msgspec.Struct]) -> str:
    """Return the report of a task, or the failure that the next attempt would meet again, as JSON."""
    try:
        return encoded(call())
    except LASTING as error:
        return encoded(Failure.of(error))


def staged_here(job: Job, batches: Iterable[pa.RecordBatch], rules: Rules) -> str:
    """Set the rows of this task aside, or count them when their job was committed; returns the answer, as JSON."""
    from pyspark import TaskContext

    found, context = map(taken, batches), TaskContext.get()
    assert context is not None
    return answered(lambda: stage(job, found, context.partitionId(), rules) if job.record() is None else counted(found))


def _run(spark: SparkSession, kind: type[_Report], work: Callable[[int], _Report], shards: Sequence[int]) -> list[_Report]:
    """Do some work for each shard, each in a task of its own, and return the reports by shard."""
    if not shards:
        return []
    numbers = list(shards)

    def run(batches: _Batches) -> Iterator[str]:
        for batch in batches:
            for place in batch.column(0).to_pylist():
                yield answered(partial(work, numbers[place]))

    return _reported(spark.range(0, len(numbers), 1, len(numbers)), kind, run)


def _reported(frame: DataFrame, kind: type[_Report], task: Callable[[_Batches], Iterator[str]]) -> list[_Report]:
    """Run a job whose tasks give reports as JSON, and return these; it is one action, so that every task runs once."""

    def run(batches: _Batches) -> _Batches:
        for answer in task(batches):
            yield pa.record_batch({"answer": [answer]})

    return read_reports([row.answer for row in as_typed(frame.mapInArrow(run, "answer string").collect)], kind)


def as_typed(action: Callable[[], _Answer]) -> _Answer:
    """Run a job, and raise the error of ours that its tasks ended with."""
    try:
        return action()
    except Exception as error:
        found = typed(error)
        if found is error:
            raise
        raise found from error
