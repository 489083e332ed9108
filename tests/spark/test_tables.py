"""Tables of Spark's catalog: made, filled, read back and dropped in SQL; what would double rows is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import rmqstore
from rmqstore.spark import Dataset
from tests.spark.datasets import ENGINE, ENGINES, NOW_MS, committed, ingested, rows, timers_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.skipif(not ENGINES, reason="no durable engine is installed")]


@pytest.fixture
def sql(spark: SparkSession) -> Iterator[Callable[[str], DataFrame]]:
    """Statements; the tables that they make are gone behind the test."""
    yield spark.sql
    for table in spark.catalog.listTables():
        spark.sql(f"DROP TABLE {table.name}")


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row[0]) for row in frame.selectExpr("CAST(body AS string)").collect())


def test_a_table_is_made_filled_and_read_back(sql: Callable[[str], DataFrame], spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a data set, 100 %"
    sql(f"CREATE TABLE t USING rmqstore OPTIONS (path '{path}', shards 3, engine '{ENGINE}', set.precision_ms 100, now_ms {NOW_MS})")
    assert Dataset.open(path).manifest.settings == {"precision_ms": 100}
    assert sql("SELECT * FROM t").count() == 0
    sql(f"INSERT INTO t (topic, body, deliver_at_ms) VALUES ('orders', encode('1', 'utf-8'), {NOW_MS + 1000}L)")
    sql(f"INSERT INTO t BY NAME SELECT encode('2', 'utf-8') AS body, 'orders' AS topic, {NOW_MS + 1000}L AS deliver_at_ms")
    frame = spark.sql(f"SELECT 'orders' AS topic, encode('3', 'utf-8') AS body, {NOW_MS + 1000}L AS deliver_at_ms")
    frame.write.format("rmqstore").mode("append").saveAsTable("t")
    frame.writeTo("t").append()
    assert numbers(sql("SELECT * FROM t")) == numbers(spark.table("t").where("topic = 'orders'")) == [1, 2, 3, 3]
    assert sum(sql(f"SELECT * FROM t WITH (shard {shard})").count() for shard in range(3)) == 4
    sql(f"CREATE TABLE again USING rmqstore LOCATION '{path}' TBLPROPERTIES ('team' = 'orders')")
    assert numbers(sql("SELECT * FROM again")) == [1, 2, 3, 3]
    sql("DROP TABLE again")
    sql("DROP TABLE t")
    assert sorted(timers_of(path)) == [1, 2, 3, 3]


def test_a_table_is_of_a_view(sql: Callable[[str], DataFrame], dataset: Dataset, spark: SparkSession) -> None:
    ingested(committed(dataset, "load", rows(0, 20)))
    with dataset.open_shard(0, now_ms=NOW_MS) as store:
        store.send(rmqstore.Message("news", b"100"))
    spark.catalog.createTable("t", path=str(dataset.path), source="rmqstore", view="messages")
    assert numbers(sql("SELECT * FROM t")) == [100]
    with pytest.raises(Exception, match="a table of the view 'messages' is only read"):
        sql("INSERT INTO t (topic, body) VALUES ('x', encode('1', 'utf-8'))")


def test_what_would_double_rows_or_show_those_of_another_table_is_refused(
    sql: Callable[[str], DataFrame], dataset: Dataset, spark: SparkSession, tmp_path: Path
) -> None:
    ingested(committed(dataset, "load", rows(0, 20)))
    sql(f"CREATE TABLE t USING rmqstore OPTIONS (path '{dataset.path}', now_ms {NOW_MS})")
    other = tmp_path / "other"
    for statement in (
        "CREATE TABLE copy USING rmqstore AS SELECT * FROM t",
        f"CREATE TABLE copy USING rmqstore OPTIONS (path '{other}') AS SELECT * FROM t",
        "INSERT INTO t SELECT * FROM t",
    ):
        with pytest.raises(Exception, match="a row is a timer already, and a table takes new ones"):
            sql(statement)
    with pytest.raises(Exception, match="these rows are of the table of"):
        spark.table("t").write.format("rmqstore").mode("append").option("path", str(other)).saveAsTable("copy")
    with pytest.raises(Exception, match="option path is missing"):
        sql("CREATE TABLE copy USING rmqstore AS SELECT topic, body FROM t")
    assert not spark.catalog.tableExists("copy")
    assert sorted(timers_of(dataset.path)) == list(range(20))
    assert not other.exists()

    sql(f"CREATE TABLE copy USING rmqstore OPTIONS (path '{other}', engine '{ENGINE}', now_ms {NOW_MS})")
    sql("INSERT INTO copy BY NAME SELECT * EXCEPT (handle) FROM t")
    spark.table("t").drop("handle").write.format("rmqstore").mode("append").option("now_ms", NOW_MS).save(str(other))
    assert sorted(timers_of(other)) == sorted([*range(20)] * 2)


def test_what_a_table_cannot_have_is_refused(sql: Callable[[str], DataFrame], dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for options, error in (
        ("", "option path is missing"),
        (f"OPTIONS (path '{dataset.path}', price 3)", "option price is unknown to tables"),
        (f"OPTIONS (path '{dataset.path}', columns 'topic')", "option columns is unknown to tables"),
        (f"OPTIONS (path '{dataset.path}', shards 3)", "has 2 shards, not 3"),
        (f"OPTIONS (path '{tmp_path}')", "something else is there"),
        (f"OPTIONS (path '{tmp_path / 'new'}', view 'nope')", "view 'nope' is unknown"),
    ):
        with pytest.raises(Exception, match=error):
            sql(f"CREATE TABLE t USING rmqstore {options}")
    assert not (tmp_path / "new").exists()
    sql(f"CREATE TABLE t (topic STRING) USING rmqstore OPTIONS (path '{dataset.path}')")
    with pytest.raises(Exception, match="without columns and without AS SELECT"):
        sql("SELECT * FROM t").count()
