"""Spark as the data pipeline: ingest and read-out beside a plain loop, one shard and two, a whole job within bounded memory, and a stream.

``python -m rmqstore_benchmarks.spark_pipeline --timers 1000000 --engine wheel``. Input is a Parquet file of random bodies, read by both
sides. *Per core* is messages by second of CPU time of all processes together (JVM, Python workers), so that other work on the machine
disturbs it little; wall times are shown as well.

Two more steps say what can be reached at all: rows that go through Spark to Python and are thrown away there, and two plain loops side by
side, each with half of the rows and a store of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import rmqstore
from rmqstore import spark as rmqspark
from rmqstore.spark.readout import View, Wanted, plan, read
from rmqstore.spark.sessions import SMALL_MESSAGES, session
from rmqstore_benchmarks.grid.load import Load
from rmqstore_benchmarks.grid.named import HOUR_MS, START_MS
from rmqstore_benchmarks.grid.recording import anon_bytes, every
from rmqstore_benchmarks.peers.peer import BODY_BYTES, DISTRIBUTIONS
from rmqstore_benchmarks.statistics import spreads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARQUET_ROWS: Final = 50_000
WARM_TIMERS: Final = 500_000
"""Timers that go in and out before anything is measured: the processes start, and the JVM compiles most of what it is going to run."""

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    """What one step took: messages, wall and CPU seconds."""

    rows: int
    wall_s: float
    cpu_s: float

    @property
    def per_core(self) -> float:
        """Messages by second of CPU time."""
        return self.rows / self.cpu_s


def processes() -> dict[int, tuple[str, list[str]]]:
    """Return name and fields of ``/proc/PID/stat``, from the state on, of this process and of all below it."""
    known: dict[int, tuple[str, list[str]]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            head, _, tail = entry.read_text(encoding="ascii", errors="replace").rpartition(")")
            known[int(entry.parent.name)] = head.partition("(")[2], tail.split()
    found = [os.getpid()]
    for pid in found:
        found += [child for child, (_, fields) in known.items() if int(fields[1]) == pid]
    return {pid: known[pid] for pid in found}


_seen_ticks: dict[tuple[int, str], int] = {}


def cpu_seconds() -> float:
    """Return the CPU time of all our processes so far; one that ended counts as it was seen last.

    Spark ends Python processes that had nothing to do for a minute, and what they used then is told by nobody else.
    """
    for pid, (_, fields) in processes().items():
        _seen_ticks[pid, fields[19]] = int(fields[11]) + int(fields[12])
    return sum(_seen_ticks.values()) / _TICKS_PER_S


def measured(what: str, call: Callable[[], int]) -> Cost:
    """Call, and print what it took; the call returns its number of messages."""
    cpu_s, start_s = cpu_seconds(), time.perf_counter()
    rows = call()
    cost = Cost(rows, time.perf_counter() - start_s, cpu_seconds() - cpu_s)
    print(f"{what:34} {rows:>11,} {cost.wall_s:8.1f} s {rows / cost.wall_s:>11,.0f}/s {cost.per_core:>11,.0f}/s a core", flush=True)
    return cost


@contextmanager
def peak_memory() -> Iterator[dict[str, int]]:
    """Watch the resident memory of our processes, without mapped files: peak of the JVM, of all Python processes, and of their sum."""
    peak = {"JVM": 0, "Python": 0, "all": 0}

    def look() -> None:
        now = dict.fromkeys(peak, 0)
        for pid, (name, _) in processes().items():
            for kind in ("JVM" if name == "java" else "Python", "all"):
                now[kind] += anon_bytes(pid) or 0
        peak.update({kind: max(peak[kind], size) for kind, size in now.items()})

    with every(0.2, look, "bench-memory"):
        yield peak


def write_input(path: Path, timers: int) -> None:
    """Write timers with random bodies of 256 bytes, due within the hour, in files of Parquet that Spark can read side by side."""
    path.mkdir()
    load = Load(DISTRIBUTIONS["uniform"], BODY_BYTES, seed=1)
    for first in range(0, timers, PARQUET_ROWS):
        made = load.fresh(START_MS, min(PARQUET_ROWS, timers - first))
        keys = pa.ListArray.from_arrays(np.arange(len(made.ids) + 1, dtype=np.int32), pa.array(made.ids.astype(str)))
        table = pa.Table.from_batches([made.columns.append_column("keys", keys)])
        pq.write_table(table, path / f"{first // PARQUET_ROWS:05}.parquet", compression="none")


def plain_ingest(files: Sequence[Path], store: Path, engine: str, batch_rows: int) -> int:
    """Send the same rows with a plain loop over Arrow batches."""
    rows = 0
    with rmqstore.open(store, engine=engine, services=False, clock=rmqstore.ManualClock(START_MS)) as opened:
        for file in files:
            for batch in pq.ParquetFile(file).iter_batches(batch_rows):
                opened.send_batch(batch, marks=[f"plain/{rows}".encode()])
                rows += len(batch)
    return rows


def two_plain_ingests(files: Sequence[Path], root: Path, engine: str) -> Cost:
    """Measure two plain loops at a time, in processes of their own that have started before."""
    halves = [(files[at::2], root / side, engine, PARQUET_ROWS) for at, side in enumerate(("left", "right"))]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(os.path.basename, ("left", "right"), chunksize=1)
        return measured(f"two plain loops, batches of {PARQUET_ROWS}", lambda: sum(pool.starmap(plain_ingest, halves, chunksize=1)))


def plain_read(path: Path, view: View) -> int:
    """Read a view with a plain loop over its parts."""
    wanted = Wanted(view=view)
    return sum(len(batch) for part in plan(str(path), wanted) for batch in read(part, wanted))


def spark_ingest(spark: SparkSession, source: Path, path: Path, engine: str, shards: int) -> int:
    """Schedule the same rows with Spark."""
    return rmqspark.schedule(spark.read.parquet(str(source)), path, shards=shards, engine=engine, now_ms=START_MS).rows


def spark_passes(spark: SparkSession, source: Path) -> int:
    """Bring the same rows to Python and throw them away there."""
    counts = spark.read.parquet(str(source)).mapInArrow(_counted, "rows long").collect()
    return sum(int(row.rows) for row in counts)


def _counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"rows": [len(batch)]})


def spark_read(spark: SparkSession, path: Path, view: View) -> int:
    """Read a view with Spark and throw it away; the number comes from what was observed on the way."""
    from pyspark.sql import Observation, functions as f

    seen = Observation()
    frame = spark.read.format("rmqstore").option("view", view.value).load(str(path))
    frame.observe(seen, f.count(f.lit(1)).alias("rows")).write.format("noop").mode("append").save()
    return int(seen.get["rows"])


def compare(spark: SparkSession, root: Path, source: Path, engine: str, rounds: int) -> None:
    """Measure Spark beside the plain loop, and two shards beside one, in turns; shares and speedups are those of one round."""
    files = sorted(source.iterdir())
    rows: list[tuple[str, str, float]] = []
    for _ in range(rounds):
        loops = {}
        for size in (10_000, PARQUET_ROWS):
            name = f"plain loop, batches of {size}"
            loops[name] = measured(name, lambda size=size: plain_ingest(files, root / "plain", engine, size))  # type: ignore[misc]
            # What nobody reads any more leaves the memory to what is read next.
            shutil.rmtree(root / "plain")
        both = two_plain_ingests(files, root, engine)
        shutil.rmtree(root / "left")
        shutil.rmtree(root / "right")
        passes = measured("Spark, rows to Python only", lambda: spark_passes(spark, source))
        one = measured("Spark, 1 shard", lambda: spark_ingest(spark, source, root / "one", engine, 1))
        shutil.rmtree(root / "one")
        two = measured("Spark, 2 shards", lambda: spark_ingest(spark, source, root / "two", engine, 2))
        for name, loop in loops.items():
            rows += [
                (f"ingest a core, Spark, {n} shards, to {name}", ".0%", each.per_core / loop.per_core) for n, each in ((1, one), (2, two))
            ]
            share = loop.cpu_s / (loop.cpu_s + passes.cpu_s)
            rows.append((f"ingest a core, {name}, were it sent as it comes from Spark", ".0%", share))
        read_out = measured("plain loop, reading timers", lambda: plain_read(root / "two", View.TIMERS))
        out = measured("Spark, reading timers", lambda: spark_read(spark, root / "two", View.TIMERS))
        shutil.rmtree(root / "two")
        rows.append(("read-out a core, Spark to plain loop", ".0%", out.per_core / read_out.per_core))
        rows.append(("times as fast, 1 to 2 plain loops", ".2f", loop.wall_s / both.wall_s))
        rows.append(("times as fast, 1 to 2 shards", ".2f", one.wall_s / two.wall_s))
    for each in spreads(pd.DataFrame(rows, columns=["what", "form", "value"]), ["what", "form"]).itertuples():
        middle, low, high = (format(value, each.form) for value in (each.median, each.low, each.high))
        print(f"{each.what}: {middle}{f' ({low} to {high})' if rounds > 1 else ''}")


def whole_job(spark: SparkSession, root: Path, source: Path, engine: str, shards: int) -> None:
    """Schedule, hand over and read back all timers; every id must come once."""
    from pyspark.sql import functions as f

    path = root / "whole"
    found: Any = None

    def read_back() -> int:
        nonlocal found
        frame = spark.read.format("rmqstore").option("view", "messages").option("columns", "keys").load(str(path))
        number = f.col("keys")[0].cast("bigint")
        # Sums of the numbers and of their squares find a loss or a double; an exact distinct count would measure Spark's shuffle.
        found = frame.agg(f.count(f.lit(1)), f.sum(number), f.sum(number.cast("decimal(38,0)") * number)).first()
        return int(found[0])

    steps: dict[str, Callable[[], int]] = {
        "schedule": lambda: spark_ingest(spark, source, path, engine, shards),
        "hand over": lambda: rmqspark.hand_over(spark, path, until_ms=START_MS + 2 * HOUR_MS).handed_over,
        "read back": read_back,
    }
    start_s = time.perf_counter()
    with peak_memory() as peak:
        rows = max(measured(what, step).rows for what, step in steps.items())
    took_s = time.perf_counter() - start_s
    expected = (rows, rows * (rows - 1) // 2, (rows - 1) * rows * (2 * rows - 1) // 6)
    if tuple(map(int, found)) != expected:
        raise SystemExit(f"lost or doubled: {tuple(found)}, not {expected}")
    shown = ", ".join(f"{kind} {size / 2**30:.2f} GiB" for kind, size in peak.items())
    print(f"whole job: {rows:,} timers in {took_s:.0f} s, each once; peak memory without mapped files: {shown}")


def stream(spark: SparkSession, root: Path, source: Path, engine: str, shards: int, batch_rows: int) -> None:
    """Write all timers by a streaming query, from its start to its end."""
    path, schema = root / "stream", spark.read.parquet(str(source)).schema
    found = spark.readStream.schema(schema).option("maxFilesPerTrigger", max(batch_rows // PARQUET_ROWS, 1)).parquet(str(source))
    options = {"path": path, "checkpointLocation": root / "checkpoint", "engine": engine, "shards": shards, "now_ms": START_MS}
    writing = found.writeStream.format("rmqstore").options(**{name: str(value) for name, value in options.items()})
    start_s = time.perf_counter()
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination()
    took_s = time.perf_counter() - start_s
    batches = pd.DataFrame(
        [(each["numInputRows"], each["durationMs"]["triggerExecution"]) for each in query.recentProgress], columns=["rows", "ms"]
    )
    rates, rows = batches["rows"] / batches["ms"], batches["rows"].sum()
    print(
        f"stream, {len(batches)} micro-batches of {batches['rows'].max():,} rows, {shards} shards: {rows / took_s:,.0f}/s; "
        f"within a micro-batch {rates.median():,.0f} k/s ({rates.min():,.0f} to {rates.max():,.0f})",
        flush=True,
    )
    shutil.rmtree(path)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--timers", type=int, default=1_000_000)
    parser.add_argument("--engine", default="wheel")
    parser.add_argument("--rounds", type=int, default=1, help="of the comparison")
    parser.add_argument("--shards", type=int, default=2, help="of the whole job, and of the stream")
    parser.add_argument("--heap", default="1500m", help="heap of the driver's JVM, in which the executors are threads")
    parser.add_argument("--parts", default="compare,whole", help="what to run: compare, whole, stream")
    parser.add_argument("--batch-rows", type=int, default=500_000, help="of a micro-batch of the stream")
    parser.add_argument("--directory", type=Path, help="where the stores are made and removed; the system's by default")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rmqstore-pipeline-", dir=given.directory) as scratch:
        root = Path(scratch)
        write_input(root / "input", given.timers)
        write_input(root / "warm", WARM_TIMERS)
        with session(settings={"spark.driver.memory": given.heap, "spark.local.dir": scratch} | SMALL_MESSAGES) as spark:
            rmqspark.register(spark)
            spark_ingest(spark, root / "warm", root / "warmed", given.engine, 2)
            spark_read(spark, root / "warmed", View.TIMERS)
            if "compare" in given.parts:
                compare(spark, root, root / "input", given.engine, given.rounds)
            if "whole" in given.parts:
                whole_job(spark, root, root / "input", given.engine, given.shards)
            if "stream" in given.parts:
                stream(spark, root, root / "input", given.engine, given.shards, given.batch_rows)


if __name__ == "__main__":
    main()
