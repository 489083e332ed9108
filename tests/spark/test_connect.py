"""A driver that is a client of Spark Connect: it writes, schedules, reads and hands over as any other, and gets the same errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.datasets import ENGINE, NOW_MS, timers_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

for module in ("grpc", "grpc_status", "google.rpc", "zstandard"):
    pytest.importorskip(module, reason="a client of Spark Connect needs pyspark[connect]", exc_type=ImportError)
pytestmark = [pytest.mark.spark, pytest.mark.timeout(180), pytest.mark.skipif(not ENGINE, reason="no durable engine is installed")]

CLIENT = """
import sys

from pyspark.sql import SparkSession

import rmqstore
import rmqstore.spark

port, path, engine, now_ms = sys.argv[1:]
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
assert "connect" in type(spark).__module__
rmqstore.spark.register(spark)
orders = spark.range(0, 100, 1, 2).selectExpr(
    "'orders' AS topic",
    "CAST(CAST(id AS string) AS binary) AS body",
    "array(CAST(id AS string)) AS keys",
    f"{now_ms} + 1000 * (id + 1) AS deliver_at_ms",
)
report = rmqstore.spark.schedule(orders, path, shards=2, engine=engine, job_id="load", now_ms=int(now_ms))
assert (report.rows, report.repeated) == (100, 0), report
more = orders.selectExpr("topic", "CAST(CAST(100 + CAST(keys[0] AS int) AS string) AS binary) AS body", "deliver_at_ms")
more.write.format("rmqstore").mode("append").option("now_ms", now_ms).save(path)
assert rmqstore.spark.read(spark, path, columns=("shard", "topic")).where("shard < 2").count() == 200
try:
    rmqstore.spark.schedule(orders.selectExpr("topic", "if(keys[0] = '7', null, body) AS body"), path)
    raise AssertionError("a null is no body")
except rmqstore.IllegalMessageError as error:
    assert "column 'body' has a null" in str(error), error
early = rmqstore.spark.read(spark, path).where("keys[0] = '8'")
assert [row.outcome for row in rmqstore.spark.cancel(early, path, now_ms=int(now_ms)).collect()] == ["CANCELLED"]
assert rmqstore.spark.hand_over(spark, path, until_ms=int(now_ms) + 10_000).handed_over == 19
"""


def test_a_client_of_spark_connect_calls_what_any_driver_does(spark: SparkSession, tmp_path: Path) -> None:
    server: Any = spark._jvm
    service = server.java.lang.Class.forName("org.apache.spark.sql.connect.service.SparkConnectService$")
    port = service.getField("MODULE$").get(None).localPort()
    client = [sys.executable, "-W", "ignore", "-c", CLIENT, str(port), str(tmp_path / "data"), ENGINE, str(NOW_MS)]
    ended = subprocess.run(client, capture_output=True, text=True, timeout=150, check=False)
    assert ended.returncode == 0, ended.stderr
    assert sorted(timers_of(tmp_path / "data")) == [*range(10, 100), *range(110, 200)]
