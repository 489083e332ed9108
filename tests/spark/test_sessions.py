"""Sessions that are killed: their JVM, which is told whatever hides it; a worker of a cluster, which costs nothing; all of a query."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rmqstore.spark.sessions import why_not
from tests.spark.datasets import ENGINE

_PROGRAM = """
import os, signal
from rmqstore.errors import SparkLostError, TransferError
from rmqstore.spark.sessions import session

try:
    with session(quick=True):
        try:
            with session(quick=True) as spark:
                os.kill(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
                spark.range(3).count()
        except SparkLostError as error:
            print(error)
            raise TransferError("job 'nightly' is half done") from error
except TransferError as error:
    print(error)
"""


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_a_session_whose_jvm_is_killed_says_so_unless_an_error_of_ours_says_more() -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    run = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stderr
    lost, more = run.stdout.splitlines()
    assert lost.startswith("Spark's process, the JVM, is gone")
    assert more == "job 'nightly' is half done"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not ENGINE, reason="no durable engine is installed")
def test_an_executor_that_is_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    pytest.importorskip("rmqstore_benchmarks")
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    options = ["--cluster", "--failures", "executor", "--engine", ENGINE, "--messages", "2000", "--shards", "2", "--report", "load.json"]
    subprocess.run([sys.executable, "-m", "rmqstore", "load-test", *options], cwd=tmp_path, timeout=560, check=True)
    (found,) = json.loads((tmp_path / "load.json").read_text())["engines"]
    assert found["injected"] == {"executor": 1}
    assert found["closed"]["died"] > 0
    assert found["problems"] == []


_QUERIES = """
import json, os, signal, sys
from pathlib import Path

import rmqstore
import rmqstore.spark
from rmqstore.spark import jobs
from rmqstore.spark.sessions import session
from rmqstore.spark import streams
from rmqstore.spark.source import RmqstoreSource
from rmqstore.spark.popping import GroupReader
from rmqstore.spark.streams import QueueReader

work, engine, outs = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]

def dies(point):
    # Driver, JVM and workers together, as when the machine is lost.
    flag = work / "deaths" / point
    if point and flag.exists():
        flag.unlink()
        others = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
        for pid in sorted(others, key=os.getpid().__eq__):
            try:
                if os.getsid(pid) == os.getsid(0):
                    os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

def dying(owner, name, before="", after=""):
    call = getattr(owner, name)
    def wrapped(*given, **named):
        dies(before)
        answer = call(*given, **named)
        dies(after)
        return answer
    setattr(owner, name, wrapped)

class DyingReader(QueueReader):
    def read(self, partition):
        yield from super().read(partition)
        if partition.value.first > 0:
            dies("read")

class DyingSource(RmqstoreSource):
    def streamWriter(self, schema, overwrite):
        if not hasattr(jobs.Job, "is_dying"):
            jobs.Job.is_dying = True
            dying(jobs.Job, "commit", before="staged", after="committed")
            dying(rmqstore.Store, "send_batch", after="sent")
            dying(jobs.Job, "finish", after="finished")
        return super().streamWriter(schema, overwrite)

    def streamReader(self, schema):
        reader = super().streamReader(schema)
        if isinstance(reader, GroupReader):
            dying(rmqstore.Store, "pop_batch", after="popped")
            dying(rmqstore.Store, "ack", before="written", after="acked")
        else:
            reader.__class__ = DyingReader
        return reader

with session("local[2,4]", quick=True) as spark:
    spark.dataSource.register(DyingSource)
    files = spark.readStream.schema("topic string, body binary").option("maxFilesPerTrigger", 1).parquet(str(work / "files"))
    def run(writer, name, **options):
        options = {"checkpointLocation": str(work / f"checkpoint-{name}"), "path": str(work / name), **options}
        writer.options(**options).trigger(availableNow=True).start().awaitTermination()
    run(files.writeStream.format("rmqstore"), "data", engine=engine, shards=2)
    found = spark.readStream.format("rmqstore").options(view="messages", maxRowsPerBatch=300).load(str(work / "data"))
    run(found.select("body").writeStream.format("parquet"), "read")
    if "popped" in outs:
        consumed = spark.readStream.format("rmqstore").options(view="messages", topic="orders", group="g", maxRowsPerBatch=300)
        run(consumed.load(str(work / "data")).select("body").writeStream.format("parquet"), "popped")
    come = {name: sorted(int(row.body) for row in spark.read.parquet(str(work / name)).collect()) for name in outs}
    lag = spark.read.format("rmqstore").option("view", "lag").load(str(work / "data")).select("ready", "in_flight", "retry").distinct()
    print(json.dumps([come, lag.collect()]))
"""


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.skipif(not ENGINE, reason="no durable engine is installed")
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds the processes of a session in /proc")
@pytest.mark.parametrize(
    "points",
    [
        ("sent", "read"),
        pytest.param(("staged", "committed", "finished"), marks=pytest.mark.slow),
        pytest.param(("popped", "written", "acked"), marks=pytest.mark.slow),
    ],
)
def test_queries_whose_processes_are_all_killed_go_on_from_their_checkpoints(tmp_path: Path, points: tuple[str, ...]) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    for folder in ("files", "deaths"):
        (tmp_path / folder).mkdir()
    numbers = range(600)
    for first in numbers[::200]:
        bodies = [b"%d" % number for number in numbers[first : first + 200]]
        pq.write_table(pa.table({"topic": ["orders"] * 200, "body": bodies}), tmp_path / "files" / f"{first}.parquet")
    outs = ["read", "popped"] if "popped" in points else ["read"]
    for point in (*points, None):
        if point is not None:
            (tmp_path / "deaths" / point).touch()
        program = [sys.executable, "-c", _QUERIES, str(tmp_path), ENGINE, *outs]
        ended = subprocess.run(program, start_new_session=True, capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode == (0 if point is None else -signal.SIGKILL), ended.stderr
        assert list((tmp_path / "deaths").iterdir()) == []
    come, lag = json.loads(ended.stdout)
    assert come == {name: list(numbers) for name in outs}
    assert lag == [[0, 0, 0]] * ("popped" in outs)
