"""The results of a grid: its tables in one place each, and what Spark SQL makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rmqstore_benchmarks.grid.tables import TABLES
from rmqstore_benchmarks.histogram import bounds_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CELL: Final = "cell_id, engine, variant, workload, body_bytes, backlog, durability, shards"

_RATES: Final = f"""
with one_run as (
    select run_id, phase, sum(messages) messages, max(wall_s) wall_s, sum(messages / nullif(wall_s, 0)) rate, sum(cpu_s) cpu_s,
        sum(wchar_bytes) wchar_bytes, sum(user_bytes) user_bytes, sum(disk_bytes) disk_bytes, sum(live_bytes) live_bytes,
        max(device_write_bytes) device_write_bytes, sum(anon_peak_bytes) anon_peak_bytes, sum(stalls) stalls
    from phases group by run_id, phase
)
select {_CELL}, phase, count(*) repeats, percentile(rate, 0.5) rate, min(rate) lowest_rate, max(rate) highest_rate,
    percentile(cpu_s / nullif(messages, 0) * 1e6, 0.5) cpu_us, percentile(wchar_bytes / nullif(user_bytes, 0), 0.5) wchar_per_byte,
    percentile(device_write_bytes / nullif(user_bytes, 0), 0.5) device_per_byte,
    percentile(disk_bytes / nullif(live_bytes, 0), 0.5) disk_per_byte, max(anon_peak_bytes) anon_peak_bytes, sum(stalls) stalls
from one_run join runs using (run_id) where outcome = 'ok' group by {_CELL}, phase
"""
"""Per cell and phase: messages a second over all shards (median, lowest, highest of the repeats), and what a byte of the user cost."""

_LATENCIES: Final = f"""
with merged as (
    select {_CELL}, phase, operation, bucket, sum(n) n from histograms join runs using (run_id) where outcome = 'ok'
    group by {_CELL}, phase, operation, bucket
), counted as (
    select *, sum(n) over (partition by cell_id, phase, operation order by bucket) upto,
        sum(n) over (partition by cell_id, phase, operation) calls
    from merged
)
select {_CELL}, phase, operation, max(calls) calls,
    min(case when upto >= 0.50 * calls then middle_ns end) / 1e6 p50_ms,
    min(case when upto >= 0.99 * calls then middle_ns end) / 1e6 p99_ms,
    min(case when upto >= 0.999 * calls then middle_ns end) / 1e6 p999_ms, max(middle_ns) / 1e6 max_ms
from counted join buckets using (bucket) group by {_CELL}, phase, operation
"""
"""Per cell, phase and operation: percentiles over the merged histograms of all repeats and shards, ms, middles of buckets."""


def write_results(spark: SparkSession, out: Path) -> dict[str, int]:
    """Write ``results/`` anew from the parts of all runs that are there; returns the number of runs by outcome."""
    for name in TABLES:
        spark.read.parquet(f"{out.resolve()}/parts/*/{name}.parquet").createOrReplaceTempView(name)
    buckets = [row["bucket"] for row in spark.sql("select distinct bucket from histograms").collect()]
    middles = [(bucket, float(sum(bounds_of(bucket)) - 1) / 2) for bucket in buckets]
    spark.createDataFrame(middles, "bucket int, middle_ns double").createOrReplaceTempView("buckets")
    queries = {name: f"select * from {name}" for name in TABLES} | {"rates": _RATES, "latencies": _LATENCIES}
    for name, query in queries.items():
        frame: Any = spark.sql(query).coalesce(1)
        frame.write.mode("overwrite").parquet(f"{out.resolve()}/results/{name}.parquet")
    rows = spark.sql("select outcome, count(*) n from runs group by outcome").collect()
    return {row["outcome"]: row["n"] for row in rows}
