"""A write whose shards fail behind the commit: it is tried again, says how it is completed, and is not doubled by the same write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import rmqstore
from rmqstore.clock import SystemClock
from rmqstore.spark import Dataset, ingest
from rmqstore.spark.failures import encoded
from rmqstore.spark.ingest import ingest_here
from rmqstore.spark.jobs import Job, job_of_write
from rmqstore.spark.staging import StagedFile, counted
from tests.spark.datasets import ENGINES, NOW_MS, committed, rows, staged, timers_of

if TYPE_CHECKING:
    from rmqstore.spark.source import JobWriter

pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(not ENGINES, reason="no durable engine is installed")]

LIMIT = 10

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
    reports = ingest_here(job)
    assert sum(report.rows for report in reports) == 100
    assert sum(report.repeated for report in reports) > 0
    assert sorted(timers_of(dataset.path)) == list(range(100))


def test_a_plain_write_that_fails_behind_its_commit_is_completed_and_not_doubled(dataset: Dataset, deaths: Callable[[int], None]) -> None:
    source = pytest.importorskip("rmqstore.spark.source", reason="needs PySpark", exc_type=ImportError)
    schema = source.StructType().add("topic", "string").add("body", "binary")

    def writer(**options: str) -> JobWriter:
        return source.RmqstoreSource({"path": str(dataset.path), "now_ms": str(NOW_MS), **options}).writer(schema, overwrite=False)

    def commit(writer: JobWriter, *files: StagedFile) -> None:
        writer.commit([source.Staged(encoded(file)) for file in files])

    first = writer()
    files = staged(first.job, *(rows(start, 20) for start in range(0, 200, 20)))
    deaths(2 * ingest.ATTEMPTS)
    told = rf'option\("job_id", "{first.job.id}"\).* the process that takes shard 0 in was ended by SIGKILL$'
    with pytest.raises(rmqstore.TransferError, match=told):
        commit(first, *files)
    first.abort([])
    with pytest.raises(rmqstore.TransferError, match=f"{first.job.id}.*has not come to its end"):
        writer()
    assert writer(job_id="another").job.id == "another"

    deaths(0)
    again = writer(job_id=first.job.id)
    commit(again, counted([rows(0, 77), rows(77, 123).slice(0, 50), rows(127, 73)]))
    others = [rows(0, 200).set_column(at, name, rows(1, 200).column(name)) for at, name in ((1, "body"), (2, "keys"))]
    others.append(rows(0, 200).set_column(0, "topic", pa.array(["others"] * 200)))
    # The same bytes, shared out otherwise.
    others.append(rows(0, 200).set_column(1, "body", rows(0, 200).column("body").take(pa.array([1, 0, *range(2, 200)]))))
    for each in (rows(1, 200), *others, rows(0, 200).drop_columns(["keys"])):
        with pytest.raises(rmqstore.TransferError, match="brought 200 messages, and this write has 200 others,"):
            commit(again, counted([each]))
    with pytest.raises(rmqstore.TransferError, match="brought 200 messages, and this write has 0,"):
        commit(again)
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


@pytest.fixture
def limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Dataset]:
    """Makes one shard that takes ten timers of a tick for sure, and twenty never."""
    monkeypatch.setattr("rmqstore.spark.jobs.CHUNK_ROWS", LIMIT)
    return lambda engine: Dataset.create(tmp_path / "limited", shards=1, engine=engine, settings={"congestion_limit": LIMIT})


def due(first: int, *times_ms: int | None) -> pa.RecordBatch:
    """Numbers from ``first`` on that are due at these times."""
    return rows(first, len(times_ms), deliver_at_ms=pa.array(times_ms, pa.int64()))


def filled(dataset: Dataset, *times_ms: int, now_ms: int = NOW_MS) -> None:
    """What others have sent to the shard."""
    with dataset.open_shard(0, now_ms=now_ms) as store:
        for time_ms in times_ms:
            store.send(rmqstore.Message("others", b"0"), deliver_at_ms=time_ms)


SLOT_MS = NOW_MS + 40_000  # the first ms of a minute, so the times of its tick lie in two minutes


@pytest.mark.parametrize("engine", ENGINES)
def test_a_job_that_brings_too_many_timers_of_a_tick_is_refused_before_it_is_committed(
    engine: str, limited: Callable[[str], Dataset]
) -> None:
    dataset = limited(engine)
    filled(dataset, *[SLOT_MS - 999] * 2, *[SLOT_MS - 1000] * 9, *[SLOT_MS + 1] * 9)
    for own, are_taken in ((9, False), (8, True)):
        job = Job(dataset, f"load-{own}")
        files = staged(job, due(0, *[SLOT_MS] * 5), due(5, *[SLOT_MS - 500] * (own - 5), SLOT_MS + 1))
        if are_taken:
            ingest.complete_here(job, files, NOW_MS, 0)
            assert sorted(timers_of(dataset.path, topic="orders")) == list(range(own + 1))
            continue
        told = rf"slot {SLOT_MS} ms of shard 0 would hold 11 timers, 9 of them of job 'load-9', and congestion_limit is 10; nothing was"
        with pytest.raises(rmqstore.FlowControlError, match=told):
            ingest.complete_here(job, files, NOW_MS, 0)
        assert job.record() is None
        assert timers_of(dataset.path, topic="orders") == []


@pytest.mark.parametrize("now_ms", [NOW_MS, None])
def test_messages_without_a_time_are_timers_of_one_tick_where_others_of_their_chunk_have_one(
    now_ms: int | None, limited: Callable[[str], Dataset]
) -> None:
    dataset = limited(ENGINES[0])
    alone = Job(dataset, "alone")
    ingest.complete_here(alone, staged(alone, due(0, *[None] * 30)), now_ms, 0)  # these go straight to their topic
    mixed, apart = Job(dataset, "mixed"), Job(dataset, "apart")
    with pytest.raises(rmqstore.FlowControlError, match=r"(the slot of|slot 1700000000000 ms of) .*would hold 11 timers, 11 of them"):
        mixed.commit(staged(mixed, due(0, SLOT_MS, *[None] * 11)), now_ms, ingest.check_room)
    # By a clock that goes on, each chunk has a tick of its own for them.
    files = staged(apart, due(0, SLOT_MS, *[None] * 6), due(7, SLOT_MS, *[None] * 6))
    if now_ms is None:
        assert apart.commit(files, now_ms, ingest.check_room).rows == 14
    else:
        with pytest.raises(rmqstore.FlowControlError, match="would hold 12 timers"):
            apart.commit(files, now_ms, ingest.check_room)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_job_that_meets_a_tick_which_others_filled_meanwhile_is_finished_when_that_is_handed_over(
    engine: str, limited: Callable[[str], Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, now_ms = limited(engine), NOW_MS
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: now_ms)
    job = Job(dataset, "load")
    job.commit(staged(job, due(0, *[SLOT_MS + 5000] * 10), due(10, *[SLOT_MS] * 10)), None, ingest.check_room)
    filled(dataset, *[SLOT_MS] * 10)
    for _ in range(2):
        with pytest.raises(
            rmqstore.FlowControlError, match=f"slot {SLOT_MS} ms .*; job 'load' can be finished later.* opens {dataset.path}"
        ):
            ingest.ingest_shard(job, 0, wait_ms=0)
    now_ms = SLOT_MS + 3_600_000
    with dataset.open_shard(0) as store:
        store.tick()
    ingest.ingest_shard(job, 0, wait_ms=0)
    job.finish()
    with dataset.open_shard(0) as store:
        store.tick()
        assert sorted(int(body) for body in store.read("orders").columns.column("body").to_pylist()) == list(range(20))
