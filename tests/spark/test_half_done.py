"""A write whose shards fail behind the commit: it is tried again, says how it is completed, and is not doubled by the same write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import rmqstore
from rmqstore.spark import Dataset, ingest
from rmqstore.spark.failures import encoded
from rmqstore.spark.ingest import ingest_here
from rmqstore.spark.jobs import Job, job_of_write
from rmqstore.spark.staging import counted
from tests.spark.datasets import ENGINES, NOW_MS, committed, rows, staged, timers_of

pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(not ENGINES, reason="no durable engine is installed")]

# Ends each process that sends, behind its first chunk, as long as there is a file to take away.
DYING = """
import os, pathlib, signal, sys
if {path!r} in sys.orig_argv:
    import rmqstore
    send_batch = rmqstore.Store.send_batch
    def sending(*given, **named):
        answer = send_batch(*given, **named)
        lives = sorted(pathlib.Path({lives!r}).iterdir())
        if lives:
            lives[0].unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
    rmqstore.Store.send_batch = sending
"""


@pytest.fixture
def deaths(tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the next so many processes die."""
    site, lives = tmp_path / "site", tmp_path / "lives"
    site.mkdir()
    lives.mkdir()
    (site / "sitecustomize.py").write_text(DYING.format(path=str(dataset.path), lives=str(lives)))
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr("rmqstore.spark.jobs.CHUNK_ROWS", 20)

    def die(count: int) -> None:
        for entry in lives.iterdir():
            entry.unlink()
        for number in range(count):
            (lives / f"{number:03}").touch()

    return die


def test_a_process_that_dies_is_started_again(dataset: Dataset, deaths: Callable[[int], None]) -> None:
    job = committed(dataset, "load", *(rows(first, 20) for first in range(0, 100, 20)))
    deaths(1)
    reports = ingest_here(job, processes=1)
    assert sum(report.rows for report in reports) == 100
    assert sum(report.repeated for report in reports) > 0
    assert sorted(timers_of(dataset.path)) == list(range(100))


def test_a_process_that_always_dies_is_told_by_its_signal(dataset: Dataset, deaths: Callable[[int], None]) -> None:
    job = committed(dataset, "load", rows(0, 100))
    deaths(100)
    with pytest.raises(rmqstore.StoreError, match="the process that takes shard 0 in was ended by SIGKILL") as raised:
        ingest_here(job, processes=1)
    assert "sys.modules" not in str(raised.value)


def test_a_plain_write_that_fails_behind_its_commit_is_completed_and_not_doubled(dataset: Dataset, deaths: Callable[[int], None]) -> None:
    pytest.importorskip("pyspark", reason="needs PySpark", exc_type=ImportError)
    from pyspark.sql.types import BinaryType, StringType, StructField, StructType

    from rmqstore.spark.source import JobWriter, RmqstoreSource
    from rmqstore.spark.streams import Staged

    schema = StructType([StructField("topic", StringType()), StructField("body", BinaryType())])

    def writer(**options: str) -> JobWriter:
        return RmqstoreSource({"path": str(dataset.path), "now_ms": str(NOW_MS), **options}).writer(schema, overwrite=False)

    first = writer()
    files = staged(first.job, *(rows(start, 20) for start in range(0, 200, 20)))
    deaths(2 * ingest.ATTEMPTS)
    with pytest.raises(rmqstore.TransferError, match=rf'option\("job_id", "{first.job.id}"\).*SIGKILL'):
        first.commit([Staged(encoded(file)) for file in files])
    first.abort([])
    with pytest.raises(rmqstore.TransferError, match=f"{first.job.id}.*has not come to its end"):
        writer()
    assert writer(job_id="another").job.id == "another"

    deaths(0)
    again = writer(job_id=first.job.id)
    again.commit([Staged(encoded(counted([rows(0, 77), rows(77, 123).slice(0, 50), rows(127, 73)])))])
    others = [rows(0, 200).set_column(at, name, rows(1, 200).column(name)) for at, name in ((1, "body"), (2, "keys"))]
    others.append(rows(0, 200).set_column(0, "topic", pa.array(["others"] * 200)))
    # The same bytes, shared out otherwise.
    others.append(rows(0, 200).set_column(1, "body", rows(0, 200).column("body").take(pa.array([1, 0, *range(2, 200)]))))
    for each in (rows(1, 200), *others, rows(0, 200).drop_columns(["keys"])):
        with pytest.raises(rmqstore.TransferError, match="brought 200 messages, and this write has 200 others,"):
            again.commit([Staged(encoded(counted([each])))])
    with pytest.raises(rmqstore.TransferError, match="brought 200 messages, and this write has 0,"):
        again.commit([])
    assert sorted(timers_of(dataset.path)) == list(range(200))
    writer()


def test_a_job_that_is_at_work_refuses_no_other(dataset: Dataset) -> None:
    job = Job(dataset, "load")
    files = staged(job, rows(0, 10))
    with job.completing():
        job.commit(files, NOW_MS)
        assert job_of_write(dataset, None).id != "load"
    with pytest.raises(rmqstore.TransferError, match="'load'"):
        job_of_write(dataset, None)
    with pytest.raises(rmqstore.TransferError, match="OSError: no disk"), job.completing():
        raise OSError("no disk")
