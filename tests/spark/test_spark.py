"""The data source in Spark: what is written, read, refused, tried again, handed over and migrated."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import rmqstore
from rmqstore import spark as rmqspark
from rmqstore.spark import Dataset
from rmqstore.spark.jobs import Job
from rmqstore.spark.sessions import SMALL_MESSAGES
from tests.spark.datasets import ENGINE, ENGINES, NOW_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 2000
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.skipif(not ENGINES, reason="no durable engine is installed")]


@pytest.fixture(scope="module")
def timers(spark: SparkSession) -> DataFrame:
    """Messages whose key and body are their number, due a second apart, in three partitions."""
    return spark.range(0, ROWS, 1, 3).selectExpr(
        "'orders' AS topic",
        "CAST(CAST(id AS string) AS binary) AS body",
        "array(CAST(id AS string)) AS keys",
        "map('number', CAST(id AS string)) AS properties",
        f"{NOW_MS}L + 1000 * (id + 1) AS deliver_at_ms",
    )


@pytest.fixture(scope="module")
def written(timers: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards with these messages, by a plain write that was made twice; no test changes them."""
    path = tmp_path_factory.mktemp("written") / "data"
    at = timers.selectExpr("topic", "body", "keys", "timestamp_millis(deliver_at_ms) AS deliver_at")
    write = at.write.format("rmqstore").mode("append").option("now_ms", NOW_MS).option("job_id", "load")
    write.options(shards=3, engine=ENGINE, **{"set.precision_ms": "100"}).save(str(path))
    write.save(str(path))
    return path


def view(spark: SparkSession, path: Path, name: str = "timers", **options: object) -> DataFrame:
    return spark.read.format("rmqstore").options(view=name, **options).load(str(path))


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.body.decode()) for row in frame.select("body").collect())


def in_the_store(path: Path) -> list[int]:
    """What the shards hold, read without Spark."""
    dataset = Dataset.open(path)
    found: list[int] = []
    for shard in dataset.shards:
        with dataset.open_shard(shard, now_ms=NOW_MS) as store:
            assert store.verify() == []
            found += [int(timer.message.body) for timer in store.scan(limit=10 * ROWS).timers]
    return sorted(found)


def test_a_schedule_is_written_once_handed_over_and_read(spark: SparkSession, timers: DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "data"
    report = rmqspark.schedule(timers, path, shards=2, engine=ENGINE, job_id="load", now_ms=NOW_MS)
    assert (report.rows, report.repeated, len(report.shards)) == (ROWS, 0, 2)
    again = rmqspark.schedule(timers.repartition(2), path, job_id="load", now_ms=NOW_MS)
    assert (again.rows, again.repeated) == (ROWS, ROWS)
    with pytest.raises(rmqstore.TransferError, match=f"brought {ROWS} messages, and this write has 5,"):
        rmqspark.schedule(timers.limit(5), path, job_id="load", now_ms=NOW_MS)
    assert in_the_store(path) == list(range(ROWS))

    read = view(spark, path, part_rows=300)
    assert read.count() == ROWS
    assert read.rdd.getNumPartitions() >= 6
    row = read.where("array_contains(keys, '7')").first()
    assert row is not None
    assert (row.topic, bytes(row.body), row.properties, row.deliver_at_ms) == ("orders", b"7", {"number": "7"}, NOW_MS + 8000)
    assert row.shard == rmqspark.shard_of("7", 2)
    assert read.where("shard != pmod(crc32(CAST(keys[0] AS binary)), 2)").count() == 0
    condition = f"topic = 'orders' AND deliver_at_ms > {NOW_MS + 100_000} AND deliver_at_ms <= {NOW_MS + 200_000}"
    narrow = view(spark, path, topic="orders", from_ms=NOW_MS + 100_001, to_ms=NOW_MS + 200_001)
    assert numbers(read.where(condition)) == numbers(narrow) == list(range(100, 200))
    one = view(spark, path, shard=1)
    assert (read.count(), one.where("shard != 1").count(), one.count()) == (ROWS, 0, read.where("shard = 1").count())

    moved = rmqspark.hand_over(spark, path, until_ms=NOW_MS + 500_000)
    assert moved.handed_over == 500
    assert numbers(view(spark, path, "messages")) == list(range(500))
    assert numbers(view(spark, path)) == list(range(500, ROWS))
    with Dataset.open(path).open_shard(0, now_ms=NOW_MS + 500_000) as store:
        store.pop("orders", "billing", max_messages=3)
        assert view(spark, path, "leases").select("shard", "group").collect() == [(0, "billing")] * 3
        assert view(spark, path, "lag").select("in_flight").collect() == [(3,)]


def test_of_two_runs_of_one_job_id_at_a_time_the_later_one_must_bring_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    path, go, up = tmp_path / "data", tmp_path / "go", tmp_path / "up"
    Dataset.create(path, shards=2, engine=ENGINE)

    def waits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        up.touch()
        while not go.exists():
            time.sleep(0.05)
        yield from batches

    messages = ("'orders' AS topic", "CAST(CAST(id AS string) AS binary) AS body", "array(CAST(id AS string)) AS keys")
    # Staged by a task that began before the other's commit, and counted by one that began behind it.
    late = spark.range(0, 30, 1, 1).mapInArrow(waits, "id long").selectExpr(*messages)
    same = spark.range(0, 10, 1, 1).mapInArrow(waits, "id long").repartition(2).selectExpr(*messages)
    with ThreadPoolExecutor(2) as pool:
        for number, (waiting, told) in enumerate(((late, "has brought 10 messages, and this write has 30,"), (same, None))):
            run = pool.submit(rmqspark.schedule, waiting, path, job_id=f"day-{number}")
            try:
                while not up.exists() and not run.done():
                    time.sleep(0.05)
                rmqspark.schedule(spark.range(10).selectExpr(*messages), path, job_id=f"day-{number}")
            finally:
                go.touch()
            if told is None:
                assert run.result().rows == 10
            else:
                with pytest.raises(rmqstore.TransferError, match=told):
                    run.result()
            for file in (go, up):
                file.unlink()
    assert numbers(view(spark, path, "messages")) == sorted([*range(10)] * 2)


def test_a_plain_write_takes_options_and_its_job_id(written: Path) -> None:
    assert Dataset.open(written).manifest.settings == {"precision_ms": 100}
    assert in_the_store(written) == list(range(ROWS))
    assert Job(Dataset.open(written), "load").committed().is_done


def test_a_view_of_nothing_has_no_rows(spark: SparkSession, timers: DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "data"
    rmqspark.schedule(timers.limit(0), path, shards=2, engine=ENGINE, now_ms=NOW_MS)
    for name in ("timers", "messages", "leases", "dead_letters", "rejected"):
        assert view(spark, path, name).collect() == []
    rmqspark.schedule(timers.limit(3), path, now_ms=NOW_MS)
    assert view(spark, path, "messages").count() == 0
    assert view(spark, path, from_ms=NOW_MS + 10**9).count() == 0
    assert rmqspark.hand_over(spark, path, until_ms=NOW_MS + 10**9).handed_over == 3
    assert view(spark, path).count() == 0
    assert view(spark, path, "messages").count() == 3
    assert view(spark, path, "jobs").groupBy("state").sum("rows").collect() == [("done", 3)]


def scans(frame: DataFrame) -> int:
    return str(frame._jdf.queryExecution().executedPlan().toString()).count("BatchScan rmqstore")


def test_a_condition_on_the_shard_leaves_the_others_out_of_the_plan(spark: SparkSession, written: Path) -> None:
    read = rmqspark.read(spark, written)
    assert read.dtypes == view(spark, written).dtypes
    in_one = [number for number in range(ROWS) if rmqspark.shard_of(str(number), 3) == 1]
    for _ in range(2):  # a frame that is used again has the rows of each condition
        assert numbers(read.where("shard = 1")) == in_one
        assert read.count() == ROWS
        assert read.where("shard != 1 AND topic = 'orders'").count() == ROWS - len(in_one)
    assert [scans(read.where(f"shard {condition}")) for condition in ("= 1", "!= 1", "> 5", ">= 0")] == [1, 2, 0, 3]
    read.createOrReplaceTempView("timers")
    assert scans(spark.sql("SELECT body FROM timers WHERE shard IN (1, 2) AND deliver_at_ms > 0")) == 2
    few = rmqspark.read(spark, written, columns=("body",), topic="orders", to_ms=NOW_MS + 10_000)
    assert (few.columns, numbers(few)) == (["body"], list(range(9)))
    one = rmqspark.read(spark, written, shard=1)
    assert (numbers(one), scans(one), one.where("shard != 1").count()) == (in_one, 1, 0)
    with pytest.raises(rmqstore.IllegalArgumentError, match=r"no shard 3 .* 0 to 2"):
        rmqspark.read(spark, written, shard=3)
    with pytest.raises(rmqstore.IllegalArgumentError, match="view 'nope' is unknown"):
        rmqspark.read(spark, written, "nope")


def test_what_was_read_is_written_as_it_is(spark: SparkSession, written: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    view(spark, written).write.format("rmqstore").mode("append").options(now_ms=NOW_MS, engine=ENGINE).save(str(first))
    rmqspark.schedule(view(spark, written), second, engine=ENGINE, now_ms=NOW_MS)
    columns = ("message_id", "topic", "body", "keys", "deliver_at_ms")
    there = sorted(view(spark, written).select(*columns).collect())
    assert [row.deliver_at_ms for row in sorted(there, key=lambda row: row.deliver_at_ms)] == [NOW_MS + 1000 * (n + 1) for n in range(ROWS)]
    for copy in (first, second):
        assert sorted(view(spark, copy).select(*columns).collect()) == there


def test_bad_input_is_refused_before_any_write(spark: SparkSession, timers: DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "data"
    with pytest.raises(rmqstore.IllegalMessageError, match="'price' is unknown"):
        rmqspark.schedule(timers.selectExpr("*", "1 AS price"), path)
    with pytest.raises(rmqstore.IllegalMessageTypeError, match="'body' must be binary, not string"):
        rmqspark.schedule(timers.selectExpr("topic", "topic AS body"), path)
    with pytest.raises(
        rmqstore.IllegalMessageTypeError, match=r"bigint, not timestamp; write unix_millis\(deliver_at_ms\) AS deliver_at_ms"
    ):
        rmqspark.schedule(timers.selectExpr("topic", "body", "now() AS deliver_at_ms"), path)
    with pytest.raises(rmqstore.IllegalArgumentError, match="is a URI"):
        rmqspark.schedule(timers, f"file://{path}")
    assert not path.exists()
    nulls = timers.selectExpr("topic", f"if(keys[0] = '{ROWS - 1}', null, body) AS body")
    with pytest.raises(rmqstore.IllegalMessageError, match=r"'body' has a null.* nothing was written"):
        rmqspark.schedule(nulls, path, shards=2, engine=ENGINE)
    with pytest.raises(Exception, match=r"'body' has a null.* nothing was written"):
        nulls.write.format("rmqstore").mode("append").save(str(path))
    with pytest.raises(rmqstore.IllegalArgumentError, match="on_bad_row must be fail or collect, not 'skip'"):
        rmqspark.schedule(nulls, tmp_path / "other", on_bad_row="skip")
    assert not (tmp_path / "other").exists()
    with pytest.raises(Exception, match="a data set is only added to"):
        timers.write.format("rmqstore").mode("overwrite").save(str(path))
    with pytest.raises(Exception, match="option shard is unknown to writes"):
        timers.write.format("rmqstore").mode("append").option("shard", 2).save(str(path))
    assert in_the_store(path) == []
    assert [entry for entry in (path / "jobs").iterdir() if entry.is_dir()] == []
    with pytest.raises(rmqstore.ConfigError, match="has 2 shards, not 3"):
        rmqspark.schedule(timers, path, shards=3)
    with Dataset.open(path).open_shard(1), pytest.raises(rmqstore.StoreLockedError, match="shard-00001"):
        rmqspark.schedule(timers, path)


def test_bad_rows_are_set_aside_once_with_their_reasons(spark: SparkSession, timers: DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "data"
    seconds = "if(keys[0] % 400 = 0, 1700000000, deliver_at_ms) AS deliver_at_ms"
    flawed = timers.selectExpr("topic", "if(keys[0] = '7', null, body) AS body", "keys", "properties", seconds)
    bad = [7, *range(0, ROWS, 400)]
    for _ in range(2):
        report = rmqspark.schedule(flawed, path, engine=ENGINE, job_id="load", now_ms=NOW_MS, on_bad_row="collect")
        assert (report.rows, report.rejected) == (ROWS - len(bad), len(bad))
    assert in_the_store(path) == [number for number in range(ROWS) if number not in bad]
    rejected = view(spark, path, "rejected", job_id="load")
    assert sorted(int(row["keys"][0]) for row in rejected.collect()) == sorted(bad)
    assert rejected.where("reason LIKE '%looks like seconds%' AND deliver_at_ms = 1700000000").count() == len(bad) - 1
    assert rejected.where("body IS NULL").select("job_id", "topic", "properties").collect() == [("load", "orders", {"number": "7"})]

    mended = rejected.where("body IS NOT NULL").drop("job_id", "reason", "deliver_at_ms")
    mended.write.format("rmqstore").mode("append").options(now_ms=NOW_MS, on_bad_row="collect", job_id="mended").save(str(path))
    assert rmqspark.read(spark, path, "rejected", columns=("job_id",)).distinct().collect() == [("load",)]


def test_settings_for_small_messages_end_a_batch_by_its_rows_alone(spark: SparkSession) -> None:
    def row_counts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"rows": [batch.num_rows]})

    frame = spark.range(0, 40, 1, 1).selectExpr("repeat('x', 1048576 + CAST(id AS int)) AS body").mapInArrow(row_counts, "rows long")
    before = {name: spark.conf.get(name) for name in SMALL_MESSAGES}
    try:
        spark.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(2**24))
        assert len(frame.collect()) > 1
        for name, value in SMALL_MESSAGES.items():
            spark.conf.set(name, value)
        assert [row.rows for row in frame.collect()] == [40]
    finally:
        for name, value in before.items():
            assert value is not None
            spark.conf.set(name, value)


def test_tasks_that_fail_are_tried_again_and_write_nothing_twice(spark: SparkSession, timers: DataFrame, tmp_path: Path) -> None:
    # A batch that is half read fails in the first attempt of every task that stages.
    def fragile(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield batch.slice(0, len(batch) // 2)
            if context.attemptNumber() == 0:
                raise RuntimeError("injected")
            yield batch.slice(len(batch) // 2)

    broken = timers.mapInArrow(fragile, timers.schema)
    report = rmqspark.schedule(broken, tmp_path / "data", shards=2, engine=ENGINE, now_ms=NOW_MS)
    assert (report.rows, report.repeated) == (ROWS, 0)
    broken.write.format("rmqstore").mode("append").option("now_ms", NOW_MS).save(str(tmp_path / "data"))
    assert in_the_store(tmp_path / "data") == sorted([*range(ROWS)] * 2)
    assert all(not job.is_dir() or not (job / "staged").exists() for job in (tmp_path / "data" / "jobs").iterdir())


def test_a_shard_that_dies_half_way_is_completed_by_the_next_attempt(
    spark: SparkSession, timers: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data"
    monkeypatch.setattr("rmqstore.spark.jobs.CHUNK_ROWS", 100)

    def dies_once(mark: str) -> object:
        """Return work that ends its process behind the first chunk of each shard, once."""

        def work(job: Job, shard: int, wait_ms: int) -> object:
            from rmqstore.spark.ingest import ingest_shard

            send_batch = rmqstore.Store.send_batch
            flag = Path(mark, f"died-{shard}")

            def sending(store: rmqstore.Store, *given: object, **named: object) -> object:
                answer = send_batch(store, *given, **named)  # type: ignore[arg-type]
                if not flag.exists():
                    flag.touch()
                    os._exit(9)
                return answer

            rmqstore.Store.send_batch = sending  # type: ignore[assignment, method-assign]
            try:
                return ingest_shard(job, shard, wait_ms=wait_ms)
            finally:
                rmqstore.Store.send_batch = send_batch  # type: ignore[method-assign]

        return work

    monkeypatch.setattr("rmqstore.spark.running.ingest_shard", dies_once(str(tmp_path)))
    report = rmqspark.schedule(timers, path, shards=2, engine=ENGINE, job_id="load", now_ms=NOW_MS)
    assert sorted(entry.name for entry in tmp_path.glob("died-*")) == ["died-0", "died-1"]
    assert 0 < report.repeated < ROWS
    assert in_the_store(path) == list(range(ROWS))


@pytest.mark.skipif(len(ENGINES) < 2, reason="needs two durable engines")
def test_all_shards_move_to_another_engine_and_become_more(spark: SparkSession, timers: DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "data"
    rmqspark.schedule(timers, path, shards=2, engine=ENGINE, job_id="load", now_ms=NOW_MS)
    moved = rmqspark.migrate(spark, path, ENGINES[0])
    assert sum(shard.tables["timers"] for shard in moved) == ROWS
    assert all(Path(shard.previous).is_dir() for shard in moved)
    assert Dataset.open(path).manifest.engine == ENGINES[0]
    assert in_the_store(path) == list(range(ROWS))
    assert rmqspark.schedule(timers, path, job_id="load").repeated == ROWS
    resharded = rmqspark.reshard(spark, path, 3)
    assert sum(shard.timers for shard in resharded.shards) == ROWS
    assert Path(resharded.previous).is_dir()
    assert in_the_store(path) == list(range(ROWS))
    assert rmqspark.schedule(timers, path, job_id="load").repeated == ROWS
