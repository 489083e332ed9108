"""Timers that are cancelled from a frame: by handle and by key, with an answer a row, once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import rmqstore
from rmqstore import spark as rmqspark
from rmqstore.spark import Dataset
from rmqstore.spark.running import tick_shard
from tests.spark.datasets import ENGINES, NOW_MS, SECOND_MS, committed, ingested, rows, served, timers_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.skipif(not ENGINES, reason="no durable engine is installed")]


@pytest.fixture
def timers(dataset: Dataset, spark: SparkSession) -> DataFrame:
    """A hundred timers as the view gives them, of which the first ten have come to their topics since."""
    ingested(committed(dataset, "load", rows(0, 100)))
    frame = spark.read.format("rmqstore").load(str(dataset.path))
    kept = frame.localCheckpoint()
    for shard in dataset.shards:
        tick_shard(dataset, shard, NOW_MS + 10 * SECOND_MS)
    return kept.selectExpr("*", "CAST(CAST(body AS string) AS int) AS number")


def outcomes(frame: DataFrame) -> dict[int, str]:
    found = frame.select("number", "outcome").collect()
    assert len({row.number for row in found}) == len(found)
    return {row.number: row.outcome for row in found}


def expected(numbers: range) -> dict[int, str]:
    return {number: "ALREADY_DELIVERED" if number < 10 else "CANCELLED" for number in numbers}


@pytest.mark.parametrize("columns", [("*",), ("handle", "number")], ids=["with shard", "without shard"])
def test_timers_are_cancelled_by_their_handles(dataset: Dataset, timers: DataFrame, columns: tuple[str, ...]) -> None:
    given = timers.where("number < 50").select(*columns)
    answer = rmqspark.cancel(given, dataset.path, now_ms=NOW_MS)
    assert answer.columns == [*given.columns, "outcome"]
    assert sorted(timers_of(dataset.path)) == list(range(50, 100))
    again = given if columns == ("*",) else given.union(given).distinct()
    for each in (answer, answer, rmqspark.cancel(again, dataset.path, now_ms=NOW_MS)):
        assert outcomes(each) == expected(range(50))
    wrong = given.selectExpr("number", "if(number % 2 = 0, null, concat('x', handle)) AS handle")
    assert set(outcomes(rmqspark.cancel(wrong, dataset.path)).values()) == {"UNKNOWN"}


def test_a_frame_of_pending_timers_is_cancelled_whole(dataset: Dataset, spark: SparkSession) -> None:
    """Read again behind the cancels, it has no rows. One shard is served by another process than those of the tasks."""
    ingested(committed(dataset, "load", rows(0, 30)))
    pending = spark.read.format("rmqstore").load(str(dataset.path))
    with served(dataset.shard_path(0)):
        assert rmqspark.cancel(pending, dataset.path).where("outcome = 'CANCELLED'").count() == 30
    assert pending.count() == 0


def test_timers_are_cancelled_by_topic_and_key_wherever_they_are(dataset: Dataset, timers: DataFrame, spark: SparkSession) -> None:
    for shard in dataset.shards:
        with dataset.open_shard(shard, now_ms=NOW_MS) as store:
            store.send(rmqstore.Message("orders", b"1000", keys=("other", "twin")), delay_ms=10**6)
    numbers = {"20": (20, 21), "5": (5,), "twin": (1000,), None: (7,)}
    questions = [("orders", key, number) for key, asked in numbers.items() for number in asked]
    asked = spark.createDataFrame([*questions, ("others", "30", 30)], "topic string, key string, number int")
    answer = rmqspark.cancel(asked, dataset.path, now_ms=NOW_MS)
    wanted = {20: "CANCELLED", 21: "CANCELLED", 5: "UNKNOWN", 30: "UNKNOWN", 1000: "CANCELLED", 7: "UNKNOWN"}
    assert outcomes(answer) == wanted
    assert sorted(timers_of(dataset.path)) == [number for number in range(10, 100) if number != 20]
    assert outcomes(answer) == wanted


def test_what_cannot_be_asked_for_is_refused(dataset: Dataset, spark: SparkSession, tmp_path: Path) -> None:
    with dataset.open_shard(1), pytest.raises(rmqstore.StoreLockedError, match="shard-00001"):
        rmqspark.cancel(spark.sql("SELECT 'x' AS handle"), dataset.path)
    for columns, error in (
        ("'x' AS topic", "column 'key' is missing"),
        ("1 AS handle", "column 'handle' must be string, not int"),
        ("'x' AS handle, 1 AS outcome", "column 'outcome' is there already"),
        ("'%RETRY%x' AS topic, 'x' AS key", "topic"),
        ("'x' AS handle, 1 AS `a.b`", "column 'a.b' has a dot"),
        ("'x' AS handle, 1 AS other, 2 AS other", "column 'other' .* is there twice"),
    ):
        with pytest.raises(rmqstore.IllegalArgumentError, match=error):
            rmqspark.cancel(spark.sql(f"SELECT {columns}"), dataset.path)
    with pytest.raises(rmqstore.StorePathError, match="no data set"):
        rmqspark.cancel(spark.sql("SELECT 'x' AS handle"), tmp_path / "nope")
