"""The Spark job: the task side without Spark, and a small run with a failing task, checked by id in the stores themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

import rmqstore
from rmqstore_benchmarks import spark_run
from rmqstore_benchmarks.spark_tasks import Job, drain_shard, open_shard, shard_of, shard_path, write_shard
from rmqstore_benchmarks.workloads import LONGEST_DELAY_MS, START_MS, TOPIC, Workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 6000
SHARDS = 2
DURABLE = spark_run.durable_engines()


def shard_batches(job: Job, shard: int, size: int = 100) -> Iterator[pa.RecordBatch]:
    """What Spark gives to the task of a shard."""
    ids = [number for number in range(job.rows) if shard_of(str(number), job.shards) == shard]
    columns = Workload("uniform", len(ids)).arrow(shard)
    whole = pa.record_batch(
        {
            "shard": pa.array(np.full(len(ids), shard, np.int32)),
            "key": pa.array([str(number) for number in ids]),
            "topic": columns.column("topic"),
            "body": columns.column("body"),
            "deliver_at_ms": columns.column("deliver_at_ms"),
        }
    )
    for start in range(0, len(ids), size):
        yield whole.slice(start, size)


def totals(*summaries: pa.RecordBatch) -> Counter[str]:
    counts: Counter[str] = Counter()
    for summary in summaries:
        for row in summary.to_pylist():
            counts[row["op"]] += row["messages"]
    return counts


def ids_in_topic(job: Job, shard: int) -> list[int]:
    """Every id that was ever handed over on a shard, read without a lease."""
    store, _ = open_shard(job, shard, START_MS + 3 * LONGEST_DELAY_MS)
    with store:
        assert store.verify() == []
        assert store.pending().total == 0
        return [int(keys[0]) for keys in store.read(TOPIC, limit=2 * job.rows).columns.column("keys").to_pylist()]


@pytest.mark.parametrize("engine", DURABLE)
def test_a_second_attempt_stores_only_what_the_first_did_not(engine: str, tmp_path: Path) -> None:
    job = Job(engine, str(tmp_path), "run", TOPIC, 1000, SHARDS, fail_after=3)
    with pytest.raises(RuntimeError, match="injected failure"):
        write_shard(job, 0, shard_batches(job, 0), fails=True)
    written = totals(write_shard(job, 0, shard_batches(job, 0)))
    assert written["repeated"] == 300
    drained = totals(drain_shard(job, 0))
    mine = [number for number in range(1000) if shard_of(str(number), SHARDS) == 0]
    assert written["schedule"] + 300 == drained["hand_over"] == drained["pop"] == drained["ack"] == len(mine)
    assert drained["lost"] == drained["twice"] == drained["foreign"] == 0
    assert sorted(ids_in_topic(job, 0)) == mine


def test_a_drain_sees_what_is_lost_doubled_and_foreign(tmp_path: Path) -> None:
    engine = next(iter(DURABLE), None) or pytest.skip("no durable engine")
    job = Job(engine, str(tmp_path), "run", TOPIC, 200, SHARDS)
    batches = list(shard_batches(job, 0, size=20))
    write_shard(job, 0, iter([*batches[1:], batches[1]]))
    foreign = next(str(number) for number in range(200) if shard_of(str(number), SHARDS) == 1)
    with rmqstore.open(shard_path(job, 0), engine=engine, clock=rmqstore.ManualClock(START_MS), services=False) as store:
        store.send(rmqstore.Message(TOPIC, b"x", keys=(foreign,)), delay=1000)
    drained = totals(drain_shard(job, 0))
    assert (drained["lost"], drained["twice"], drained["foreign"]) == (20, 20, 1)


def test_rows_of_another_shard_are_refused(tmp_path: Path) -> None:
    engine = next(iter(DURABLE), None) or pytest.skip("no durable engine")
    job = Job(engine, str(tmp_path), "run", TOPIC, 200, SHARDS)
    with pytest.raises(ValueError, match="another shard"):
        write_shard(job, 1, shard_batches(job, 0))


def test_without_java_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(spark_run, "find_spec", lambda name: object())
    with pytest.raises(SystemExit, match="no Java runtime"):
        spark_run.main([])


def test_without_pyspark_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_run, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pyspark not installed"):
        spark_run.main([])


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    if reason := spark_run.why_not():
        pytest.skip(reason)
    with spark_run.session(2, small=True) as session:
        yield session


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_shards_are_placed_and_timers_are_the_same_every_time(spark: SparkSession) -> None:
    made = spark_run.workload(spark, 500, 3, "lognormal")
    first, second = made.orderBy("id").toArrow(), made.orderBy("id").toArrow()
    assert first.equals(second)
    assert first.column("shard").to_pylist() == [shard_of(str(number), 3) for number in range(500)]
    assert {len(body) for body in first.column("body").to_pylist()} == {256}
    assert min(first.column("deliver_at_ms").to_pylist()) >= START_MS


@pytest.mark.spark
@pytest.mark.timeout(180)
@pytest.mark.parametrize("engine", DURABLE)
def test_nothing_is_lost_and_nothing_comes_twice_although_every_task_fails_once(spark: SparkSession, engine: str, tmp_path: Path) -> None:
    job = Job(engine, str(tmp_path / "stores"), "run", TOPIC, ROWS, SHARDS, fail_after=2)
    Path(job.root).mkdir()
    outcome = spark_run.run_engine(spark, job, "uniform", tmp_path / "summary")
    assert spark_run.problems(job, outcome) == []
    assert outcome.messages("repeated") == 2 * spark_run.BATCH_ROWS * SHARDS
    assert outcome.percentile_ms("schedule", 0.99) >= outcome.percentile_ms("schedule", 0.5) > 0
    assert sum(outcome.per_second("ack").values()) == ROWS
    found = [number for shard in range(SHARDS) for number in ids_in_topic(job, shard)]
    assert sorted(found) == list(range(ROWS))
    assert engine in spark_run.report({engine: outcome}, ROWS, SHARDS, 2, "uniform")
