"""``python -m rmqstore_benchmarks.spark_run``: Spark makes timers, writes them into sharded stores, one task a shard, and drains them.

Each of the two jobs ends in one action, the Parquet files of its summary, since Spark runs a writer once per action. The task side is
``spark_tasks``. Needs PySpark and Java 17.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rmqstore.contract import Durability, Flush, Operation
from rmqstore.plugins import EngineState, get_plugins
from rmqstore_benchmarks.histogram import percentile
from rmqstore_benchmarks.machine import default_directory, described, replace_part, sentence, table
from rmqstore_benchmarks.spark_tasks import CHECK_OPS, SUMMARY, Job, drainer, writer
from rmqstore_benchmarks.workloads import HALF_HOUR_MS, HOUR_MS, LONGEST_DELAY_MS, START_MS, TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS: Final = 1000
DELAYS_SQL: Final = {
    "constant": f"{HALF_HOUR_MS}",
    "lognormal": f"least({HALF_HOUR_MS} * exp(randn(11)), {LONGEST_DELAY_MS})",
    "uniform": f"1 + rand(11) * {HOUR_MS - 1}",
}
_BODY_SQL: Final = "unhex(concat(" + ", ".join(f"sha2(concat(id, '/{part}'), 512)" for part in range(4)) + "))"
# What is off here reports failed tasks; the error of a job that fails for good reaches Python as an exception.
_LOG4J: Final = """\
rootLogger.level = error
rootLogger.appenderRef.c.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.utils.name = org.apache.spark.util.Utils
logger.utils.level = off
logger.writer.name = org.apache.spark.sql.execution.datasources.FileFormatWriter
logger.writer.level = off
"""


class Outcome(msgspec.Struct, frozen=True):
    """What one engine did: rows of the two summaries, and the wall time of each job, s."""

    rows: list[dict[str, Any]]
    write_s: float
    drain_s: float

    def messages(self, *ops: str) -> int:
        """Return the messages that calls of these kinds moved."""
        return sum(row["messages"] for row in self.rows if row["op"] in ops)

    def rate(self, *ops: str) -> float:
        """Return messages a second of one store: those of the first kind over the time of the calls of all kinds."""
        spent_ns = sum(row["ns"] for row in self.rows if row["op"] in ops)
        return self.messages(ops[0]) * 1e9 / spent_ns if spent_ns else 0.0

    def percentile_ms(self, op: str, share: float) -> float:
        """Return a percentile of the latency of a call, ms."""
        counts: Counter[int] = Counter()
        for row in self.rows:
            if row["op"] == op:
                counts[row["bucket"]] += row["calls"]
        return percentile(counts, share) / 1e6

    def per_second(self, op: str) -> dict[int, int]:
        """Return the messages of each wall-clock second."""
        counts: Counter[int] = Counter()
        for row in self.rows:
            if row["op"] == op:
                counts[row["second"]] += row["messages"]
        return dict(sorted(counts.items()))


def why_not() -> str | None:
    """Return why Spark cannot run here; None when it can."""
    missing = [name for name in ("pandas", "pyspark") if find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed; pip install 'rmqstore-benchmarks[spark]'"
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else shutil.which("java")
    if java is None or subprocess.run([str(java), "-version"], capture_output=True, check=False).returncode:
        return "there is no Java runtime; Spark needs Java 17 or newer on PATH or in JAVA_HOME"
    return None


@contextmanager
def session(slots: int, *, small: bool) -> Iterator[SparkSession]:
    """Give a quiet local session in which a failed task is tried up to four times."""
    with tempfile.TemporaryDirectory(prefix="rmqstore-spark-", ignore_cleanup_errors=True) as scratch:
        Path(scratch, "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
        os.environ |= {"SPARK_CONF_DIR": scratch, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "TZ": "UTC"}
        from pyspark.sql import SparkSession

        settings = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g" if small else "4g",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" if small else "-XX:+UseSerialGC",
            "spark.local.dir": scratch,
            "spark.sql.warehouse.dir": f"{scratch}/warehouse",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": str(slots),
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
            "spark.speculation": "false",
        }
        builder: Any = SparkSession.builder
        builder = builder.master(f"local[{slots},4]").appName("rmqstore-benchmarks")
        for key, value in settings.items():
            builder = builder.config(key, value)
        spark: SparkSession = builder.getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()


def workload(spark: SparkSession, rows: int, shards: int, distribution: str) -> DataFrame:
    """Return timers: shard, id, key, topic, a body of 256 random bytes, deliver_at_ms."""
    made = spark.range(0, rows, 1, shards).selectExpr(
        "id",
        "cast(id as string) key",
        f"'{TOPIC}' topic",
        f"{_BODY_SQL} body",
        f"cast({START_MS} + {DELAYS_SQL[distribution]} as bigint) deliver_at_ms",
    )
    return made.selectExpr(f"cast(pmod(crc32(cast(key as binary)), {shards}) as int) shard", "*")


def run_engine(spark: SparkSession, job: Job, distribution: str, out: Path) -> Outcome:
    """Write all timers into the shards of ``job``, drain them, and leave both summaries as Parquet in ``out``."""
    from pyspark.sql import functions

    start_s = time.perf_counter()
    rows = workload(spark, job.rows, job.shards, distribution)
    # Sorted by a unique column and cut at a fixed size, so that every attempt sends the same batches.
    placed = rows.repartitionById(job.shards, functions.col("shard")).sortWithinPartitions("id")
    placed.mapInArrow(writer(job), SUMMARY).write.parquet(str(out / "write"))
    write_s = time.perf_counter() - start_s

    start_s = time.perf_counter()
    shards = spark.range(0, job.shards, 1, job.shards).selectExpr("cast(id as int) shard")
    shards.mapInArrow(drainer(job), SUMMARY).write.parquet(str(out / "drain"))
    drain_s = time.perf_counter() - start_s

    summaries = spark.read.parquet(str(out / "write"), str(out / "drain"))
    return Outcome(summaries.toArrow().to_pylist(), write_s, drain_s)


def problems(job: Job, outcome: Outcome) -> list[str]:
    """Check the counts; returns one sentence for each that is wrong."""
    counts = {
        "sent": outcome.messages("schedule", "repeated"),
        "handed over": outcome.messages("hand_over"),
        "popped": outcome.messages("pop"),
        "acked": outcome.messages("ack"),
    }
    wrong = [f"{job.rows} timers, {count} {what}" for what, count in counts.items() if count != job.rows]
    return wrong + [f"{count} ids {op}" for op in CHECK_OPS if (count := outcome.messages(op))]


def report(outcomes: dict[str, Outcome], rows: int, shards: int, slots: int, distribution: str) -> str:
    """Return the figures as a Markdown table."""
    lines = []
    for engine, outcome in outcomes.items():
        latencies = [f"{outcome.percentile_ms(op, 0.5):.1f} / {outcome.percentile_ms(op, 0.99):.1f}" for op in ("schedule", "pop", "ack")]
        rates = (rows / outcome.write_s, outcome.rate("schedule"), rows / outcome.drain_s, outcome.rate("hand_over", "pop", "ack"))
        lines.append([engine, *(f"{rate / 1000:,.0f} k" for rate in rates), *latencies])
    text = (
        f"**Spark**, messages/s: {rows:,} timers of 256 B with a key each, {distribution} delays, {shards} stores, {slots} tasks at once, "
        f"batches of {BATCH_ROWS:,}, each call synced. *job* is the whole Spark job with generation and shuffle, *store* the rate of one "
        "store in its calls (drain: hand-over, pop and ack together). Then p50 / p99 of a call, ms."
    )
    header = ["", "write: job", "store", "drain: job", "store", "send_batch", "pop_batch", "ack"]
    return f"{text}\n\n{table(header, lines)}"


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rmqstore_benchmarks.spark_run", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=400_000, help="timers of each engine (default %(default)s)")
    parser.add_argument("--shards", type=int, default=4, help="stores of each engine (default %(default)s)")
    parser.add_argument("--engines", nargs="+", metavar="E", help="durable engines to run; all that are installed by default")
    parser.add_argument("--distribution", choices=list(DELAYS_SQL), default="lognormal", help="of the delays (default %(default)s)")
    parser.add_argument("--slots", type=int, default=min(len(os.sched_getaffinity(0)), 8), help="tasks at a time (default %(default)s)")
    parser.add_argument(
        "--fail-after",
        type=int,
        default=2,
        metavar="N",
        help="the first task of every shard fails after N batches; -1: none (default %(default)s)",
    )
    parser.add_argument("--small", action="store_true", help="20 000 timers, 2 stores: to see that it runs")
    parser.add_argument(
        "--directory", type=Path, default=default_directory(), help="a directory on the disk to measure (default %(default)s)"
    )
    parser.add_argument("--keep", type=Path, help="leave the stores and the Parquet files in this new directory")
    parser.add_argument("--markdown", type=Path, help="put the table into this page, between its markers")
    return parser.parse_args(arguments)


def durable_engines() -> list[str]:
    """Return the installed engines whose stores outlive a process."""
    entries = [entry for entry in get_plugins().engines() if entry.state is EngineState.OK and entry.info is not None]
    return [
        entry.name
        for entry in entries
        if entry.info is not None and entry.info.capabilities.durability_of(Operation.PUT, Flush.SYNC) > Durability.NONE
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print; see ``--help``."""
    given = _parsed(arguments)
    if reason := why_not():
        raise SystemExit(f"the Spark benchmark cannot run: {reason}")
    rows, shards = (20_000, 2) if given.small else (given.rows, given.shards)
    engines = given.engines or durable_engines()
    if unknown := set(engines) - set(durable_engines()):
        raise SystemExit(f"{', '.join(sorted(unknown))}: no durable engine of this name is installed")
    if given.keep:
        given.keep.mkdir(parents=True)
    machine = described(given.directory)
    outcomes: dict[str, Outcome] = {}
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="rmqstore-spark-bench-", dir=given.directory) as scratch:
        root = given.keep or Path(scratch)
        with session(given.slots, small=given.small) as spark:
            for engine in engines:
                print(f"{engine}: {rows:,} timers into {shards} stores", file=sys.stderr, flush=True)
                place = root / engine
                place.mkdir()
                job = Job(engine, str(place), uuid.uuid4().hex, TOPIC, rows, shards, given.fail_after)
                outcomes[engine] = run_engine(spark, job, given.distribution, root / f"{engine}-summary")
                wrong += [f"{engine}: {problem}" for problem in problems(job, outcomes[engine])]
    for engine, outcome in outcomes.items():
        if repeated := outcome.messages("repeated"):
            print(f"{engine}: failed tasks were tried again; {repeated:,} messages were sent twice and stored once")
        for op in ("schedule", "ack"):
            print(f"{engine}, {op} by the second: " + " ".join(f"{count:,}" for count in outcome.per_second(op).values()))
    command = f"python -m rmqstore_benchmarks.spark_run --rows {rows} --shards {shards} --distribution {given.distribution}"
    text = f"{report(outcomes, rows, shards, given.slots, given.distribution)}\n\n`{command}`: {sentence(machine)}"
    print(f"\n{text}")
    if wrong:
        raise SystemExit("messages were lost or doubled:\n  " + "\n  ".join(wrong))
    print("\nNothing was lost and nothing came twice, checked by id.")
    if given.markdown:
        replace_part(given.markdown, "spark", text)


if __name__ == "__main__":
    main()
