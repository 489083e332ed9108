"""Streams: what Spark writes and reads by micro-batches, repeats and bounds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import rmqstore
from rmqstore.spark import Dataset, repair
from rmqstore.spark.copies import copied
from rmqstore.spark.failures import encoded
from rmqstore.spark.jobs import jobs_of
from rmqstore.spark.readout import View
from rmqstore.spark.resharding import reshard_all
from tests.spark.datasets import ENGINE, NOW_MS, committed, ingested, numbers_of, rows, staged, timers_of

pytest.importorskip("pyspark", reason="needs PySpark", exc_type=ImportError)

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from rmqstore.spark import streams
from rmqstore.spark.source import RmqstoreSource
from rmqstore.spark.streams import MicroBatchWriter, QueueReader, Staged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(not ENGINE, reason="no durable engine is installed")]
SCHEMA = StructType().add("topic", "string").add("body", "binary")
FILES, FILE_ROWS = 3, 200
ALL = list(range(FILES * FILE_ROWS))


def numbered(spark: SparkSession, folder: Path) -> DataFrame:
    """A stream of messages that are numbers, a file a micro-batch."""
    frame = spark.range(0, len(ALL), 1, FILES).selectExpr("'orders' AS topic", "CAST(CAST(id AS string) AS binary) AS body")
    frame.write.parquet(str(folder))
    return spark.readStream.schema(frame.schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def run(writer: DataStreamWriter, checkpoint: Path) -> StreamingQuery:
    """Run a query over what is there."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def writing(frame: DataFrame, path: Path) -> DataStreamWriter:
    return frame.writeStream.format("rmqstore").options(path=str(path), engine=ENGINE, shards=2)


def input_rows(query: StreamingQuery) -> list[int]:
    return [progress["numInputRows"] for progress in query.recentProgress]


@pytest.mark.spark
def test_a_stream_goes_in_once_and_comes_out_in_batches_of_the_size_that_was_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    path, checkpoint, out = tmp_path / "data", tmp_path / "in", tmp_path / "out"
    writer = writing(numbered(spark, tmp_path / "files"), path)
    assert input_rows(run(writer, checkpoint)) == [FILE_ROWS] * FILES
    # As if the driver had died between the commit of the data set and that of the checkpoint.
    for name in (f"{FILES - 1}", f".{FILES - 1}.crc"):
        (checkpoint / "commits" / name).unlink()
    assert input_rows(run(writer, checkpoint)) == [FILE_ROWS]
    assert sorted(numbers_of(path, View.MESSAGES)) == ALL

    found = spark.readStream.format("rmqstore").options(view="messages", topic="orders", maxRowsPerBatch=250).load(str(path))
    query = run(found.select("body").writeStream.format("parquet").option("path", str(out)), tmp_path / "read")
    assert input_rows(query) == [250, 250, 100]
    last: Any = query.lastProgress
    assert sum(ends(json.loads(last["sources"][0]["latestOffset"])).values()) == len(ALL)
    assert sorted(int(row.body) for row in spark.read.parquet(str(out)).collect()) == ALL
    assert sum(input_rows(run(found.writeStream.format("noop"), tmp_path / "read"))) == 0

    popped = spark.readStream.format("rmqstore").options(view="messages", topic="orders", group="billing", maxRowsPerBatch=250)
    consuming = popped.load(str(path)).select("body").writeStream.format("parquet").option("path", str(tmp_path / "popped"))
    query = run(consuming, tmp_path / "consumed")
    assert [rows for rows in input_rows(query) if rows] == [250, 250, 100]
    assert sum(input_rows(run(consuming, tmp_path / "consumed"))) == 0
    assert sorted(int(row.body) for row in spark.read.parquet(str(tmp_path / "popped")).collect()) == ALL
    lag = spark.read.format("rmqstore").option("view", "lag").load(str(path))
    assert lag.select("ready", "in_flight", "retry").distinct().collect() == [(0, 0, 0)]


# ---------------------------------------------------------------- without a session


def source(dataset: Dataset, **options: str) -> RmqstoreSource:
    return RmqstoreSource({"path": str(dataset.path), **options})


def written(writer: MicroBatchWriter, batch: int, *tasks: pa.RecordBatch, query: str = "query") -> None:
    """Write a micro-batch as Spark does."""
    files = staged(writer._job(query, batch), *tasks)
    writer.commit([Staged(encoded(file), query) for file in files], batch)


def test_queries_do_not_meet_and_the_last_batches_are_remembered(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqstore.spark.streams.KEPT_BATCHES", 2)
    writer = source(dataset, now_ms=str(NOW_MS)).streamWriter(SCHEMA, overwrite=False)
    for batch in range(4):
        written(writer, batch, rows(10 * batch, 5), rows(10 * batch + 5, 5))
        written(writer, batch, rows(10 * batch + 100, 10), query="another")
    written(writer, 3, rows(30, 10))
    assert sorted(timers_of(dataset.path)) == [*range(40), *range(100, 140)]
    assert [job.id for job in jobs_of(dataset)] == [f"{query}-{batch}" for query in ("another", "query") for batch in (2, 3)]
    with pytest.raises(rmqstore.TransferError, match="this write has 3,"):
        written(writer, 3, rows(40, 3))


def test_a_query_goes_on_behind_a_micro_batch_that_was_given_up(dataset: Dataset) -> None:
    writer = source(dataset, now_ms=str(NOW_MS)).streamWriter(SCHEMA, overwrite=False)
    committed(dataset, "query-0", rows(0, 10))
    repair.drop_job(dataset, "query-0")
    with pytest.raises(rmqstore.TransferError, match="this write has 3,"):
        written(writer, 0, rows(40, 3))
    written(writer, 0, rows(0, 10))
    written(writer, 1, rows(10, 10))
    assert sorted(timers_of(dataset.path)) == list(range(10, 20))


def test_a_micro_batch_waits_for_a_shard_that_another_query_has(dataset: Dataset) -> None:
    with dataset.open_shard(0):
        writer = source(dataset, now_ms=str(NOW_MS), lock_wait_ms="0").streamWriter(SCHEMA, overwrite=False)
        with pytest.raises(rmqstore.TransferError, match="a task waited 0 ms for it"):
            written(writer, 0, rows(0, 10))
    written(writer, 0, rows(0, 10))
    assert sorted(timers_of(dataset.path)) == list(range(10))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[rmqstore.Store]:
    """A store with one topic of two queues, one message in each."""
    with rmqstore.open(tmp_path / "store", engine=ENGINE, services=False) as opened:
        opened.topics.create("orders", queues=2)
        opened.send_batch([rmqstore.Message("orders", b"0"), rmqstore.Message("orders", b"1")])
        yield opened


def reader_of(path: Path, **options: str) -> QueueReader:
    return RmqstoreSource({"path": str(path), "view": "messages", **options}).streamReader(SCHEMA)


def ends(offsets: dict[str, int]) -> dict[str, int]:
    """Return the offsets of queues, without what says whose they are."""
    return {name: offset for name, offset in offsets.items() if "/" in name}


def bodies(reader: QueueReader, start: dict[str, int], end: dict[str, int]) -> list[str]:
    return [body.decode() for part in reader.partitions(start, end) for batch in reader.read(part) for body in batch["body"].to_pylist()]


def sent(store: rmqstore.Store, *names: str, queue: int = 0, topic: str = "orders") -> None:
    store.send_batch([rmqstore.Message(topic, name.encode(), queue_id=queue) for name in names])


def test_a_stream_begins_where_it_is_asked_to_and_meets_new_queues_at_their_first_message(store: rmqstore.Store, tmp_path: Path) -> None:
    whole, later = reader_of(tmp_path / "store"), reader_of(tmp_path / "store", startingOffsets="latest")
    start = later.initialOffset()
    assert (whole.initialOffset(), ends(start)) == ({}, {"0/orders/0": 1, "0/orders/1": 1})
    assert later.reportLatestOffset() is None
    assert later.latestOffset(start, ReadAllAvailable()) == start
    assert later.partitions(start, start) == []
    sent(store, "2", "3", queue=1)
    sent(store, "mail", topic="mails")
    end = later.latestOffset(start, later.getDefaultReadLimit())
    assert end == later.reportLatestOffset()
    assert ends(end) == {"0/orders/0": 1, "0/orders/1": 3, "0/mails/0": 1}
    assert sorted(bodies(later, start, end)) == ["2", "3", "mail"]
    assert sorted(bodies(whole, {}, end)) == ["0", "1", "2", "3", "mail"]
    assert bodies(later, end, end) == []
    store.topics.delete("mails")
    assert later.latestOffset(end, ReadAllAvailable()) == end
    sent(store, *"4567")
    parts = reader_of(tmp_path / "store", part_rows="2").partitions(end, later.latestOffset(end, ReadAllAvailable()))
    assert [(part.value.first, part.value.behind) for part in parts] == [(1, 3), (3, 5)]


def test_a_batch_takes_of_each_queue_in_proportion_and_no_more_than_it_may(store: rmqstore.Store, tmp_path: Path) -> None:
    sent(store, *(f"{number}" for number in range(30)), queue=0)
    sent(store, *(f"{number}" for number in range(8)), queue=1)
    reader = reader_of(tmp_path / "store", maxRowsPerBatch="15")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(15)
    reader.prepareForTriggerAvailableNow()
    sent(store, "late")
    offset, sizes = reader.initialOffset(), []
    while (end := reader.latestOffset(offset, limit)) != offset:
        sizes.append([end[name] - offset.get(name, 0) for name in ("0/orders/0", "0/orders/1")])
        assert len(bodies(reader, offset, end)) == sum(sizes[-1])
        offset = end
    assert sizes == [[11, 4], [12, 3], [8, 2]]


def test_a_stream_that_begins_at_the_end_and_stops_there_does_not_mind_what_comes_meanwhile(store: rmqstore.Store, tmp_path: Path) -> None:
    reader = reader_of(tmp_path / "store", startingOffsets="latest")
    reader.prepareForTriggerAvailableNow()
    sent(store, "2")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    assert ends(start) == {"0/orders/0": 1, "0/orders/1": 1}


def test_a_queue_that_ends_before_the_offset_of_a_checkpoint_is_told(store: rmqstore.Store, tmp_path: Path) -> None:
    reader = reader_of(tmp_path / "store")
    offsets = reader.latestOffset({}, ReadAllAvailable()) | {"0/orders/1": 7}
    with pytest.raises(rmqstore.TransferError, match="queue 0/orders/1 ends at offset 1, and this stream has read it up to 7"):
        reader.latestOffset(offsets, ReadAllAvailable())


@pytest.mark.parametrize("kind", ["store", "data set"])
def test_offsets_of_another_one_in_the_same_place_are_refused(tmp_path: Path, kind: str) -> None:
    """Also when its queues have grown beyond them: what came first would never be read."""
    place, limit = tmp_path / "place", ReadAllAvailable()

    def made(bodies: Sequence[str]) -> None:
        if kind == "data set":
            Dataset.create(place, shards=1)
        with rmqstore.open(place / "shard-00000" if kind == "data set" else place, services=False) as store:
            sent(store, *bodies)

    made("ab")
    end = reader_of(place).latestOffset({}, limit)
    shutil.rmtree(place)
    made("cdef")
    reader = reader_of(place)
    for call in (partial(reader.latestOffset, end, limit), partial(reader.partitions, {}, end)):
        with pytest.raises(rmqstore.TransferError, match=r"is another one than this stream has read.* a new checkpoint begins"):
            call()
    assert bodies(reader, {}, reader.latestOffset({}, limit)) == list("cdef")


def test_offsets_of_other_shards_are_refused(dataset: Dataset, tmp_path: Path) -> None:
    ingested(committed(dataset, "load", rows(0, 9).drop_columns(["deliver_at_ms"])))
    saved = copied(dataset, tmp_path / "saved", "copying", shutil.copytree)
    before, limit = reader_of(dataset.path), ReadAllAvailable()
    end = before.latestOffset({}, limit)
    assert sum(ends(end).values()) == 9
    reshard_all(dataset, 3)
    reader = reader_of(dataset.path)
    for call in (partial(reader.latestOffset, end, limit), partial(reader.partitions, {}, end)):
        with pytest.raises(rmqstore.TransferError, match=r"another number of shards since .* a new checkpoint begins with what is there"):
            call()
    anew = reader.latestOffset({}, limit)
    assert (anew["resharded"], reader.latestOffset(anew, limit)) == (Dataset.open(dataset.path).manifest.resharded, anew)
    assert sorted(map(int, bodies(reader, {}, anew))) == list(range(9))
    # A data set that was set back, and got yet other shards, was resharded as often.
    shutil.rmtree(dataset.path)
    saved.rename(dataset.path)
    reshard_all(Dataset.open(dataset.path), 5)
    with pytest.raises(rmqstore.TransferError, match="another number of shards since"):
        reader_of(dataset.path).latestOffset(anew, limit)


@pytest.mark.parametrize("is_before", [True, False], ids=["before a look", "behind it"])
def test_a_resharding_while_a_stream_looks_is_told(dataset: Dataset, monkeypatch: pytest.MonkeyPatch, is_before: bool) -> None:
    """The offsets of the old shards and the queues of the new ones never meet."""
    ingested(committed(dataset, "load", rows(0, 90).drop_columns(["deliver_at_ms"])))
    plan, numbers, limit = streams.plan, list[int](), ReadAllAvailable()

    def resharded(*given: Any, **named: Any) -> Any:
        found = [] if is_before else plan(*given, **named)
        if numbers:
            reshard_all(Dataset.open(dataset.path), numbers.pop())
        return plan(*given, **named) if is_before else found

    monkeypatch.setattr(streams, "plan", resharded)
    end = reader_of(dataset.path).latestOffset({}, limit)
    numbers.append(5)
    with pytest.raises(rmqstore.TransferError, match="another number of shards since"):
        reader_of(dataset.path).partitions({}, end)
    end = reader_of(dataset.path).latestOffset({}, limit)
    numbers.append(2)
    with pytest.raises(rmqstore.TransferError, match="another number of shards since"):
        reader_of(dataset.path).latestOffset(end, limit)
    numbers.append(4)
    whole = reader_of(dataset.path).latestOffset({}, limit)
    assert sorted(map(int, bodies(reader_of(dataset.path), {}, whole))) == list(range(90))


@pytest.mark.parametrize("shards", [1, 3])
def test_a_task_that_was_planned_before_a_resharding_says_so(dataset: Dataset, shards: int) -> None:
    """Whether its shard is another one by now, or there is none of its number."""
    ingested(committed(dataset, "load", rows(0, 9).drop_columns(["deliver_at_ms"])))
    reader = reader_of(dataset.path)
    planned = reader.partitions({}, reader.latestOffset({}, ReadAllAvailable()))
    reshard_all(dataset, shards)
    for part in planned:
        with pytest.raises(rmqstore.TransferError, match=r"the data set has got other shards; read it again"):
            list(reader.read(part))


def test_options_that_make_no_write_and_no_stream_are_refused(dataset: Dataset, tmp_path: Path) -> None:
    for options, told in (
        ({"startingOffsets": "first"}, "must be earliest or latest, not 'first'"),
        ({"maxRowsPerBatch": "0"}, "maxRowsPerBatch must be 1 or more"),
        ({"part_rows": "-5"}, "part_rows must be 1 or more"),
        ({"view": "timers"}, r'option\("view", "messages"\)'),
        ({"to_ms": str(2**63)}, "option to_ms must be 9223372036854775807 at most"),
    ):
        with pytest.raises(rmqstore.IllegalArgumentError, match=told):
            reader_of(dataset.path, **options)
    with pytest.raises(rmqstore.ConfigError, match="startingOffsets is unknown to reads"):
        source(dataset, startingOffsets="latest").reader(SCHEMA)
    with pytest.raises(rmqstore.ConfigError, match="job_id is unknown to writes"):
        source(dataset, job_id="load").streamWriter(SCHEMA, overwrite=False)
    with pytest.raises(rmqstore.IllegalArgumentError, match="outputMode"):
        source(dataset).streamWriter(SCHEMA, overwrite=True)
    with pytest.raises(rmqstore.IllegalArgumentError, match="now_ms"):
        RmqstoreSource({"path": str(tmp_path / "new"), "now_ms": "-5"}).writer(SCHEMA, overwrite=False)
    assert not (tmp_path / "new").exists()
    assert source(dataset).writer(SCHEMA, overwrite=False).lock_wait_ms == 600_000
