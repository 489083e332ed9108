"""Jobs without Spark: rows in two phases, under crashes, twins and second runs; what is refused before the commit."""

from __future__ import annotations

import os
import shutil
import threading
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import rmqstore
from rmqstore.spark import Dataset, shard_of
from rmqstore.spark.columns import check_columns, ddl_type, taken
from rmqstore.spark.copies import copied
from rmqstore.spark.failures import reports
from rmqstore.spark.ingest import ShardReport, chunks, ingest_shard
from rmqstore.spark.jobs import Job, job_of_write, jobs_of, prune, unfinished_jobs
from rmqstore.spark.readout import SCHEMAS, View, Wanted, plan, read
from rmqstore.spark.running import answered
from rmqstore.spark.staging import OnBadRow, Rules, rules_of, stage
from tests.spark.datasets import ENGINE, ENGINES, NOW_MS, committed, ingested, killed, numbers_of, rows, staged, timers_of

pytestmark = pytest.mark.skipif(not ENGINES, reason="no durable engine is installed")


def test_every_row_is_written_once_however_often_it_is_sent(dataset: Dataset) -> None:
    job = committed(dataset, "load", rows(0, 100), rows(100, 100))
    first = ingest_shard(job, 0)
    assert (first.rows, first.repeated) == (job.record().shards[0], 0)  # type: ignore[union-attr]
    assert ingest_shard(job, 0).repeated == first.rows
    assert job.missing_shards() == [1]
    ingest_shard(job, 1)
    job.finish()
    assert not job.staged.exists()
    assert ingest_shard(job, 1).repeated == ingest_shard(job, 1).rows
    assert sorted(timers_of(dataset.path)) == list(range(200))
    for shard in dataset.shards:
        with dataset.open_shard(shard) as store:
            found = [int(timer.message.body) for timer in store.scan().timers]
        assert {shard_of(str(number), 2) for number in found} == {shard}


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_task_that_dies_after_any_chunk_is_completed(tmp_path: Path, engine: str) -> None:
    dataset = Dataset.create(tmp_path / "data", shards=1, engine=engine)
    job = Job(dataset, "load")
    job.commit([stage(job, [rows(0, 12), rows(12, 9), rows(21, 10)], 0)], NOW_MS)
    record = job.record()
    assert record is not None
    assert [batch.rows for batch in record.files[0].batches] == [12, 19]
    for chunks_sent in (0, 1):
        with killed(rmqstore.Store, "send_batch", chunks_sent):
            ingest_shard(job, 0)
    assert ingest_shard(job, 0).repeated == 12
    assert sorted(timers_of(dataset.path)) == list(range(31))


def test_rows_of_message_groups_stand_beside_later_ones(dataset: Dataset) -> None:
    """A store takes no call of both, so a chunk becomes two."""
    count = 20
    is_grouped = [number % 3 == 0 for number in range(count)]
    due_ms = [None if grouped else NOW_MS + 1000 for grouped in is_grouped]
    groups = [f"g{number % 2}" if grouped else None for number, grouped in enumerate(is_grouped)]
    job = committed(dataset, "load", rows(0, count, deliver_at_ms=pa.array(due_ms, pa.int64()), message_group=pa.array(groups)))
    ingested(job)
    assert sum(ingest_shard(job, shard).repeated for shard in dataset.shards) == count
    assert sorted(timers_of(dataset.path)) == [number for number in range(count) if not is_grouped[number]]
    assert sorted(numbers_of(dataset.path, View.MESSAGES)) == [number for number in range(count) if is_grouped[number]]


def test_attempts_of_one_task_do_not_meet(dataset: Dataset) -> None:
    job = Job(dataset, "load")
    lost = stage(job, [rows(0, 50)], 0)
    kept = stage(job, [rows(0, 50).take(pa.array(np.arange(50)[::-1]))], 0)
    assert lost.name != kept.name
    job.commit([kept], NOW_MS)
    assert [entry.name for entry in job.staged.iterdir()] == [kept.name]
    ingested(job)
    assert sorted(timers_of(dataset.path)) == list(range(50))


def test_twins_that_run_at_a_time_wait_for_each_other(dataset: Dataset) -> None:
    job = committed(dataset, "load", rows(0, 2000))
    found: list[int] = []
    twins = [threading.Thread(target=lambda: found.append(ingest_shard(job, 0).repeated)) for _ in range(2)]
    for twin in twins:
        twin.start()
    for twin in twins:
        twin.join()
    assert sorted(found) == [0, job.record().shards[0]]  # type: ignore[union-attr]
    ingest_shard(job, 1)
    assert sorted(timers_of(dataset.path)) == list(range(2000))


def test_a_second_run_of_a_committed_job_brings_nothing_new(dataset: Dataset) -> None:
    job = committed(dataset, "load", rows(0, 20))
    again = job.commit(staged(job, rows(100, 20)), NOW_MS)
    assert again == job.record()
    assert len(list(job.staged.iterdir())) == 1
    ingested(job)
    assert sorted(timers_of(dataset.path)) == list(range(20))


def test_what_was_staged_stays_until_no_loss_of_power_brings_the_record_back(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    job, synced = committed(dataset, "load", rows(0, 1)), list[tuple[Path, bool, bool]]()

    def noting(path: Path) -> None:
        synced.append((path, (job.path / "job.json").exists(), job.staged.exists()))

    monkeypatch.setattr("rmqstore.spark.jobs.sync_path", noting)
    job.drop()
    assert (job.path, False, True) in synced


def test_of_finished_jobs_the_newest_are_known(dataset: Dataset) -> None:
    done = [committed(dataset, f"job-{number:02}", rows(number, 1)) for number in range(20)]
    dropped, left = committed(dataset, "a-dropped", rows(20, 1)), committed(dataset, "b-left", rows(21, 1))
    dropped.drop()
    for job in done:
        ingested(job)
    for age, job in enumerate([dropped, *done]):
        os.utime(job.path / "done.json", (age, age))
    prune(dataset, 21)
    assert len(jobs_of(dataset)) == 22
    (dataset.path / "jobs" / ".job-99.0123abcd.gone").mkdir()
    prune(dataset, 10)
    assert [job.id for job in jobs_of(dataset)] == ["a-dropped", "b-left", *(f"job-{number}" for number in range(10, 20))]
    assert [job.id for job in unfinished_jobs(dataset)] == ["b-left"]
    left.forget()
    with pytest.raises(rmqstore.TransferError, match=r"'b-left' .* not come to its end"):
        job_of_write(dataset, None)
    assert list((dataset.path / "jobs").glob(".*")) == []
    # One of which the end was noted, and the commit not yet removed.
    (done[19].path / "done.json").rename(done[19].path / "job.json")
    assert [job.id for job in unfinished_jobs(dataset)] == ["b-left"]
    assert ingest_shard(done[19], 0).repeated == ingest_shard(done[19], 0).rows


def test_the_last_micro_batch_of_a_query_is_known_however_many_jobs_came_since(dataset: Dataset, tmp_path: Path) -> None:
    query = "0f8fad5b-d9cb-469f-a165-70867728950e"
    ids = [f"{query}-9", f"{query}-10", *(f"load-{number}" for number in range(6))]
    for age, job_id in enumerate(ids):
        job = Job(dataset, job_id)
        job.commit(staged(job, rows(0, 0)))
        job.finish()
        os.utime(job.path / "done.json", (age, age))
    copy = copied(dataset, tmp_path / "copy", "copying", shutil.copytree)
    for each in (dataset, Dataset.open(copy)):
        prune(each, 3)
        assert {job.id for job in jobs_of(each)} == {f"{query}-10", "load-3", "load-4", "load-5"}


def test_columns_are_refused_by_name_and_type() -> None:
    good = [("topic", "string"), ("body", "binary"), ("properties", "map<string,string>"), ("deliver_at_ms", "bigint"), ("tag", "void")]
    check_columns(good)
    for bad, expected in (
        ([*good, ("price", "int")], "'price' is unknown"),
        ([*good, ("deliver_at", "timestamp")], "say the same"),
        ([*good[:3], ("deliver_at", "bigint")], "must be timestamp, not bigint"),
        ([*good[:3], ("deliver_at", "timestamp_ntz")], "must be timestamp, not timestamp_ntz"),
        ([*good, ("queue_id", "bigint")], "'queue_id' must be int, not bigint"),
        ([("topic", "string"), ("body", "string")], "'body' must be binary, not string"),
        ([("body", "binary")], "'topic' is missing"),
        ([*good, ("topic", "string")], "'topic' is there more than once"),
    ):
        with pytest.raises(rmqstore.IllegalMessageError, match=expected):
            check_columns(bad)


def test_a_view_is_written_as_it_was_read(dataset: Dataset, tmp_path: Path) -> None:
    ingested(committed(dataset, "load", rows(0, 20)))
    copy = Dataset.create(tmp_path / "copy", shards=3, engine=ENGINE)
    job = Job(copy, "copy")
    asked = Wanted(view=View.TIMERS)
    check_columns((field.name, ddl_type(field.type)) for field in SCHEMAS[View.TIMERS])
    batches = [taken(batch) for part in plan(str(dataset.path), asked) for batch in read(part, asked)]
    job.commit([stage(job, batches, 0, Rules(now_ms=NOW_MS))], NOW_MS)
    ingested(job)
    assert sorted(timers_of(copy.path)) == list(range(20))
    assert sum(len(timers_of(dataset.path, shard=shard)) for shard in dataset.shards) == 20
    with pytest.raises(rmqstore.IllegalArgumentError, match=r"no shard 2 .* 0 to 1"):
        plan(str(dataset.path), Wanted(view=View.LAG, shard=2))


def deliver_times(*times: int | None, unit: str, zone: str) -> list[int | None]:
    """What becomes of the times of a column ``deliver_at``, in ms."""
    at, count = pa.array(times, pa.timestamp(unit, zone)), len(times)
    found = taken(pa.record_batch({"shard": [1] * count, "topic": ["a"] * count, "body": [b"1"] * count, "deliver_at": at}))
    assert found.schema.names == ["topic", "body", "deliver_at_ms"]
    return found.column("deliver_at_ms").to_pylist()  # type: ignore[no-any-return]


def test_a_timestamp_stands_for_a_deliver_time() -> None:
    """Rounded up; those that no message can have are refused row by row."""
    assert deliver_times(NOW_MS * 1000, NOW_MS * 1000 + 1, None, unit="us", zone="Asia/Tokyo") == [NOW_MS, NOW_MS + 1, None]
    last = deliver_times(2**63 - 1, -(2**63), 1, -1, 1000, -1999, None, unit="us", zone="UTC")
    assert last == [2**63 // 1000 + 1, -(2**63 // 1000), 1, 0, 1, -1, None]
    # In an hour that a zone has twice, or not at all, it is taken as it is.
    for moment in ("2026-10-25T00:30:00", "2026-10-25T01:30:00", "2026-03-29T01:00:00"):
        at_us = int(datetime.fromisoformat(f"{moment}+00:00").timestamp()) * 1_000_000
        for unit, parts in (("us", 1), ("ns", 1000)):
            found = deliver_times((at_us + 1) * parts, at_us * parts, unit=unit, zone="Europe/Berlin")
            assert found == [at_us // 1000 + 1, at_us // 1000]


@pytest.mark.parametrize(("value", "unit"), [(NOW_MS // 1000, "seconds"), (NOW_MS * 1000, "microseconds")])
def test_a_deliver_time_in_another_unit_is_refused(dataset: Dataset, value: int, unit: str) -> None:
    with pytest.raises(rmqstore.IllegalMessageError, match=f"{value} looks like {unit}"):
        stage(Job(dataset, "load"), [rows(0, 1).set_column(3, "deliver_at_ms", pa.array([value]))], 0)
    asking = pa.array([[("TIMER_DELIVER_MS", str(value))]], pa.map_(pa.string(), pa.string()))
    with pytest.raises(rmqstore.IllegalMessageError, match=f"{value} looks like {unit}"):
        stage(Job(dataset, "load"), [rows(0, 1, properties=asking).drop_columns(["deliver_at_ms"])], 0)


def test_a_delay_beyond_the_limit_is_refused_before_the_commit(tmp_path: Path) -> None:
    """Also by a limit that one shard has in its own settings."""
    whole = Dataset.create(tmp_path / "whole", shards=2, engine=ENGINE, settings={"max_delay_ms": 5000})
    other = Dataset.create(tmp_path / "other", shards=2, engine=ENGINE)
    (other.shard_path(1) / "rmqstore.toml").write_text("max_delay_ms = 2000")
    for dataset, limit in ((whole, 5), (other, 2)):
        job, rules = Job(dataset, "load"), rules_of(dataset, NOW_MS, OnBadRow.FAIL)
        assert stage(job, [rows(0, limit)], 0, rules).rows == limit
        with pytest.raises(rmqstore.DelayTooLongError, match=f"deliver_at_ms.* takes {limit * 1000}"):
            stage(job, [rows(0, limit + 1)], 0, rules)


def test_memory_is_bounded_by_writing_the_largest_chunk(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqstore.spark.staging.HELD_BYTES", 4000)
    monkeypatch.setattr("rmqstore.spark.jobs.CHUNK_ROWS", 1)
    job = Job(dataset, "load")
    file = stage(job, (rows(first, 20) for first in range(0, 200, 20)), 0)
    assert len(file.batches) > 4
    assert sum(batch.rows for batch in file.batches) == file.rows == 200
    record = job.commit([file], NOW_MS)
    marks = [mark for shard in dataset.shards for mark, _ in chunks(job, record, shard)]
    assert len(set(marks)) == len(file.batches)


def test_small_batches_go_together_the_same_way_each_time(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqstore.spark.jobs.CHUNK_ROWS", 60)
    job = Job(dataset, "load")
    record = job.commit(staged(job, *(rows(first, 20) for first in range(0, 200, 20))), NOW_MS)
    monkeypatch.setattr("rmqstore.spark.jobs.CHUNK_ROWS", 10)
    for shard in dataset.shards:
        given = list(chunks(job, record, shard))
        assert 2 <= len(given) <= 3
        assert all(len(batch) <= 60 for _, batch in given)
        again = Job(dataset, "load").record()
        assert again is not None
        assert list(chunks(job, again, shard)) == given
        whole = msgspec.structs.replace(record, chunk_bytes=1)
        assert len(list(chunks(job, whole, shard))) == sum(batch.shard == shard for file in record.files for batch in file.batches)


def test_a_job_id_that_is_no_name_is_refused(dataset: Dataset) -> None:
    for job_id in ("", "a/b", "..", "a" * 65, " a"):
        with pytest.raises(rmqstore.IllegalArgumentError, match="job_id"):
            Job(dataset, job_id)


def test_an_engine_that_executors_lack_is_named_with_the_machine() -> None:
    def missing() -> ShardReport:
        raise rmqstore.EngineNotInstalledError("engine 'bdb' needs its module; pip install 'rmqstore[bdb]'")

    with pytest.raises(rmqstore.EngineNotInstalledError, match=r"pip install .* every machine that runs tasks"):
        reports([answered(missing)], ShardReport)
