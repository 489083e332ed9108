"""Data sets without Spark: routing, creation, jobs in two phases under crashes and twins, reading in parts, migration, repair."""

from __future__ import annotations

import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import rmqstore
from rmqstore.batch import IN_SCHEMA, MessageBatch
from rmqstore.spark import Dataset, migrating, repair, shard_of
from rmqstore.spark.columns import check_columns
from rmqstore.spark.handing import check_no_job_waits, tick_shard
from rmqstore.spark.ingest import check_delays, chunks, ingest_here, ingest_shard
from rmqstore.spark.jobs import Job, JobRecord
from rmqstore.spark.readout import Part, View, Wanted, plan, read
from rmqstore.spark.routing import crc32_column, shard_column
from rmqstore.spark.stagedfiles import StagedFile
from rmqstore.spark.staging import stage
from tests.spark.datasets import ENGINE, ENGINES, NOW_MS, SECOND_MS, committed, creation_left_behind, ingested, rows, staged, timers_of

pytestmark = pytest.mark.skipif(not ENGINES, reason="no durable engine is installed")


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Dataset.create(tmp_path / "data", shards=2, engine=ENGINE)


# ---------------------------------------------------------------- routing


def test_crc32_of_a_column_is_that_of_zlib() -> None:
    words = ["", "a", "k" * 63, "k" * 64, "k" * 65, "ключ", "键" * 100, None, *(str(number) for number in range(200))]
    column = pa.array(words, pa.string())
    assert crc32_column(column).tolist() == [zlib.crc32((word or "").encode()) for word in words]
    assert crc32_column(column.slice(3, 9)).tolist() == [zlib.crc32((word or "").encode()) for word in words[3:12]]


def test_a_row_goes_by_its_group_then_its_first_key_then_its_id_then_its_turn() -> None:
    batch = MessageBatch.from_arrow(
        pa.record_batch(
            {
                "topic": pa.array(["t"] * 6),
                "body": pa.array([b"x"] * 6),
                "message_group": pa.array(["g", None, None, None, None, None]),
                "keys": pa.array([["k"], ["k", "other"], None, [], None, None]),
                "message_id": pa.array(["i", "i", "i", "i", None, None]),
            }
        )
    ).columns
    expected = [shard_of("g", 7), shard_of("k", 7), shard_of("i", 7), shard_of("i", 7), (10 + 4) % 7, (10 + 5) % 7]
    assert shard_column(batch, 7, first_row=10).tolist() == expected
    assert shard_column(batch, 1).tolist() == [0] * 6


# ---------------------------------------------------------------- creation


def test_a_data_set_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rmqstore.spark import dataset as module

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "sync_tree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Dataset.create(tmp_path / "data", shards=2, engine=ENGINE)
    assert list(tmp_path.iterdir()) == []
    made = Dataset.create(tmp_path / "data", shards=2, engine=ENGINE)
    assert [made.engines_of(shard) for shard in made.shards] == [{ENGINE}, {ENGINE}]


def test_a_program_that_opens_a_shard_has_the_settings_of_the_data_set(tmp_path: Path) -> None:
    settings = {"precision_ms": 100, "retention_ms": 0, "max_retries": 3}
    dataset = Dataset.create(tmp_path / "data", shards=2, engine=ENGINE, settings={**settings, "clock__max_step_ms": 5000})
    for shard in dataset.shards:
        with rmqstore.open(dataset.shard_path(shard), services=False) as store:
            assert (store.config.precision_ms, store.config.retention_ms, store.config.max_retries) == (100, 0, 3)
            assert store.config.values["clock.max_step_ms"] == 5000
        with dataset.open_shard(shard) as store:
            assert store.config.retention_ms == 0


def test_of_two_who_create_one_wins(tmp_path: Path) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(Dataset.open_or_create(tmp_path / "data", shards=2, engine=ENGINE).manifest.id))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert set(found) == {Dataset.open(tmp_path / "data").manifest.id}
    assert [entry.name for entry in tmp_path.iterdir()] == ["data"]


def test_what_is_no_data_set_is_refused(tmp_path: Path, dataset: Dataset) -> None:
    with rmqstore.open(tmp_path / "single", engine=ENGINE, services=False):
        pass
    with pytest.raises(rmqstore.StorePathError, match="single store"):
        Dataset.open_or_create(tmp_path / "single")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").touch()
    with pytest.raises(rmqstore.StorePathError, match="something else is there"):
        Dataset.open_or_create(tmp_path / "full")
    with pytest.raises(rmqstore.StorePathError, match="does not exist"):
        Dataset.open_or_create(tmp_path / "no" / "data")
    with pytest.raises(rmqstore.ConfigError, match="has 2 shards, not 3"):
        Dataset.open_or_create(dataset.path, shards=3)
    with pytest.raises(rmqstore.ConfigError, match=r"precision_ms = None, not 100"):
        Dataset.open_or_create(dataset.path, settings={"precision_ms": 100})
    with pytest.raises(rmqstore.UnknownEngineError, match="bdb"):
        Dataset.create(tmp_path / "other", shards=1, engine="bdb")
    with pytest.raises(rmqstore.UnsupportedOperationError, match="memory"):
        Dataset.create(tmp_path / "other", shards=1, engine="memory")
    with pytest.raises(rmqstore.IllegalArgumentError, match="1–4096, not 0"):
        Dataset.create(tmp_path / "other", shards=0)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["data", "full", "single"]


def test_a_shard_that_is_open_missing_or_foreign_is_named(dataset: Dataset) -> None:
    with dataset.open_shard(1), pytest.raises(rmqstore.StoreLockedError, match="shard-00001"):
        dataset.check_ready()
    dataset.check_ready()
    dataset.shard_path(1).rename(dataset.path.parent / "away")
    with pytest.raises(rmqstore.StorePathError, match="shard-00001 is missing"):
        dataset.check_ready()
    with pytest.raises(rmqstore.StorePathError, match="shard-00001 is missing"):
        timers_of(dataset.path)


# ---------------------------------------------------------------- jobs


def test_every_row_is_written_once_however_often_it_is_sent(dataset: Dataset) -> None:
    job = committed(dataset, "load", rows(0, 100), rows(100, 100))
    first = ingest_shard(job, 0)
    assert (first.rows, first.repeated) == (job.record().rows_of(0), 0)  # type: ignore[union-attr]
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


@pytest.mark.parametrize("engine", ENGINES)
def test_a_task_that_dies_after_any_chunk_is_completed(tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("staging", "jobs"):
        monkeypatch.setattr(f"rmqstore.spark.{module}.CHUNK_ROWS", 10)
    dataset = Dataset.create(tmp_path / "data", shards=1, engine=engine)
    job = Job(dataset, "load")
    job.commit([stage(job, [rows(0, 12), rows(12, 9), rows(21, 10)], 0)], NOW_MS)
    record = job.record()
    assert record is not None
    assert record.files[0].rows == [12, 19]
    send_batch = rmqstore.Store.send_batch
    for dies_after in (0, 1, 2):
        sent: list[int] = []

        def dying(store: rmqstore.Store, *given: object, limit: int = dies_after, done: list[int] = sent, **named: object) -> object:
            if len(done) == limit:
                raise RuntimeError("killed")
            done.append(1)
            return send_batch(store, *given, **named)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(rmqstore.Store, "send_batch", dying)
            if dies_after < 2:
                with pytest.raises(RuntimeError, match="killed"):
                    ingest_shard(job, 0)
            else:
                assert ingest_shard(job, 0).repeated == 12
    assert sorted(timers_of(dataset.path)) == list(range(31))


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
    assert sorted(found) == [0, job.record().rows_of(0)]  # type: ignore[union-attr]
    ingest_shard(job, 1)
    assert sorted(timers_of(dataset.path)) == list(range(2000))


def test_a_second_run_of_a_committed_job_brings_nothing_new(dataset: Dataset) -> None:
    job = committed(dataset, "load", rows(0, 20))
    again = job.commit(staged(job, rows(100, 20)), NOW_MS)
    assert again == job.record()
    assert len(list(job.staged.iterdir())) == 1
    ingested(job)
    assert sorted(timers_of(dataset.path)) == list(range(20))


def test_a_run_whose_files_were_taken_away_does_not_commit(dataset: Dataset) -> None:
    job = Job(dataset, "load")
    files = staged(job, rows(0, 20))
    Job(dataset, "load").discard()
    with pytest.raises(rmqstore.TransferError, match="run it again"):
        job.commit(files, NOW_MS)
    assert job.record() is None


def test_a_file_that_was_cut_off_before_the_commit_is_not_committed(dataset: Dataset) -> None:
    job = Job(dataset, "load")
    files = staged(job, rows(0, 20), rows(20, 20))
    path = job.staged / files[1].name
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(rmqstore.TransferError, match="cut off"):
        job.commit(files, NOW_MS)
    assert job.record() is None


def test_a_lost_staged_file_is_named(dataset: Dataset) -> None:
    job = committed(dataset, "load", rows(0, 20))
    (file,) = job.staged.iterdir()
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(rmqstore.CorruptStoreError, match=file.name):
        ingest_shard(job, 0)
    file.unlink()
    with pytest.raises(rmqstore.CorruptStoreError, match=file.name):
        ingest_here(job)
    assert timers_of(dataset.path) == []


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("topic", ["orders", None]),
        ("body", [b"x", None]),
        ("body", [b"x", b""]),
        ("topic", ["orders", "%RETRY%x"]),
        ("deliver_at_ms", [1, -1]),
    ],
)
def test_bad_rows_are_refused_before_anything_is_kept(dataset: Dataset, column: str, values: list[object]) -> None:
    job = Job(dataset, "load")
    good = rows(0, 2)
    bad = good.set_column(good.schema.get_field_index(column), column, pa.array(values, IN_SCHEMA.field(column).type))
    with pytest.raises(rmqstore.IllegalArgumentError) as caught:
        stage(job, [good, bad], 3)
    assert column in str(caught.value)
    assert list(job.staged.iterdir()) == []


def test_columns_are_refused_by_name_and_type() -> None:
    good = [("topic", "string"), ("body", "binary"), ("properties", "map<string,string>"), ("deliver_at_ms", "bigint"), ("tag", "void")]
    check_columns(good)
    for bad, expected in (
        ([*good, ("price", "int")], "'price' is unknown"),
        ([*good, ("deliver_at", "timestamp")], "unix_millis"),
        ([*good, ("queue_id", "bigint")], "'queue_id' must be int, not bigint"),
        ([("topic", "string"), ("body", "string")], "'body' must be binary, not string"),
        ([("body", "binary")], "'topic' is missing"),
        ([*good, ("topic", "string")], "'topic' is there more than once"),
    ):
        with pytest.raises(rmqstore.IllegalMessageError, match=expected):
            check_columns(bad)


def test_a_delay_beyond_the_limit_is_refused_before_the_commit(tmp_path: Path) -> None:
    dataset = Dataset.create(tmp_path / "data", shards=1, engine=ENGINE, settings={"max_delay_ms": 5000})
    job = Job(dataset, "load")
    check_delays(job, staged(job, rows(0, 5)), NOW_MS)
    with pytest.raises(rmqstore.DelayTooLongError, match="deliver_at_ms"):
        check_delays(job, staged(job, rows(0, 6)), NOW_MS)


def test_memory_is_bounded_by_writing_the_largest_chunk(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqstore.spark.staging.HELD_BYTES", 4000)
    monkeypatch.setattr("rmqstore.spark.jobs.CHUNK_ROWS", 1)
    job = Job(dataset, "load")
    file = stage(job, (rows(first, 20) for first in range(0, 200, 20)), 0)
    assert len(file.rows) > 4
    assert sum(file.rows) == 200
    record = job.commit([file], NOW_MS)
    marks = [mark for shard in dataset.shards for mark, _ in chunks(job, record, shard)]
    assert len(set(marks)) == len(file.rows)


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
        assert len(list(chunks(job, whole, shard))) == sum(file.shards.count(shard) for file in record.files)


@pytest.mark.parametrize("job_id", ["", "a/b", "..", "a" * 65, " a"])
def test_a_job_id_that_is_no_name_is_refused(dataset: Dataset, job_id: str) -> None:
    with pytest.raises(rmqstore.IllegalArgumentError, match="job_id"):
        Job(dataset, job_id)


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize("engine", ENGINES)
def test_parts_give_every_timer_once_beside_an_owner(tmp_path: Path, engine: str) -> None:
    dataset = Dataset.create(tmp_path / "data", shards=2, engine=engine)
    ingested(committed(dataset, "load", rows(0, 400)))
    with dataset.open_shard(0, now_ms=NOW_MS) as owner:
        late = rows(1000, 1, deliver_at_ms=pa.array([NOW_MS - SECOND_MS]))
        owner.send_batch(late, marks=[b"late"])
        owner.send_batch(rows(2000, 2, deliver_at_ms=pa.array([None, NOW_MS + SECOND_MS])))
        view = Wanted(view=View.TIMERS)
        parts = plan(str(dataset.path), view, 50)
        assert len(parts) >= 8
        assert all(sum(map(len, read(part, view))) <= 100 for part in parts)
        assert sorted(timers_of(dataset.path)) == [*range(400), 1000, 2000, 2001]
        chosen = {"from_ms": NOW_MS + 101 * SECOND_MS, "to_ms": NOW_MS + 201 * SECOND_MS}
        assert sorted(timers_of(dataset.path, **chosen)) == list(range(100, 200))
        assert sorted(timers_of(dataset.path, to_ms=NOW_MS)) == [1000]
        assert timers_of(dataset.path, topic="nobody") == []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("precision_ms", [100, 1000])
def test_timers_of_the_last_tick_are_read(tmp_path: Path, engine: str, precision_ms: int) -> None:
    dataset = Dataset.create(tmp_path / "data", shards=1, engine=engine, settings={"precision_ms": precision_ms})
    last_ms = 2**62
    job = Job(dataset, "load")
    times = pa.array([last_ms - 5000, last_ms - 1, last_ms])
    job.commit([stage(job, [rows(0, 3, deliver_at_ms=times)], 0)], last_ms - 100_000)
    ingested(job)
    assert sorted(timers_of(dataset.path)) == [0, 1, 2]
    assert sorted(timers_of(dataset.path, to_ms=last_ms)) == [0, 1]
    assert timers_of(dataset.path, from_ms=last_ms) == [2]
    assert timers_of(dataset.path, from_ms=last_ms, to_ms=last_ms + 1) == [2]
    assert timers_of(dataset.path, from_ms=last_ms + 1) == []


def test_messages_leases_and_lag_are_read_by_shard(dataset: Dataset) -> None:
    ingested(committed(dataset, "load", rows(0, 100)))
    moved = [tick_shard(dataset, shard, NOW_MS + 60 * SECOND_MS).handed_over for shard in dataset.shards]
    assert sum(moved) == 60
    with dataset.open_shard(0, now_ms=NOW_MS + 61 * SECOND_MS) as store:
        store.pop("orders", "billing", max_messages=5)
    assert sorted(messages(dataset)) == list(range(60))
    leases = Wanted(view=View.LEASES)
    (found,) = [batch for part in plan(str(dataset.path), leases) for batch in read(part, leases)]
    assert found.num_rows == 5
    assert set(found.column("group").to_pylist()) == {"billing"}
    lag = Wanted(view=View.LAG)
    rows_of_lag = [row for part in plan(str(dataset.path), lag) for batch in read(part, lag) for row in batch.to_pylist()]
    assert rows_of_lag == [
        {"shard": 0, "topic": "orders", "group": "billing", "ready": moved[0] - 5, "in_flight": 5, "retry": 0, "dead": 0}
    ]


def messages(dataset: Dataset) -> Iterator[int]:
    view = Wanted(view=View.MESSAGES, columns=("queue_offset", "body", "shard"))
    for part in plan(str(dataset.path), view, 7):
        for batch in read(part, view):
            assert batch.schema.names == list(view.columns)
            assert batch.num_rows <= 7
            yield from map(int, batch.column("body").to_pylist())


def test_a_single_store_and_a_snapshot_are_read_as_shard_0(tmp_path: Path) -> None:
    with rmqstore.open(tmp_path / "one", engine=ENGINE, services=False, clock=rmqstore.ManualClock(NOW_MS)) as store:
        store.send_batch(rows(0, 10))
        store.snapshot(tmp_path / "copy")
        store.send_batch(rows(10, 10))
    assert sorted(timers_of(tmp_path / "copy")) == list(range(10))
    view = Wanted(view=View.TIMERS)
    (part,) = plan(str(tmp_path / "one"), view)
    assert part == Part(shard=0, path=str(tmp_path / "one"))
    assert sum(map(len, read(part, view))) == 20
    with pytest.raises(rmqstore.IllegalArgumentError, match="no column 'price'"):
        plan(str(tmp_path / "one"), Wanted(view=View.TIMERS, columns=("price",)))
    with pytest.raises(rmqstore.StorePathError, match="neither a data set nor a store"):
        plan(str(tmp_path), view)


# ---------------------------------------------------------------- migration and repair


@pytest.mark.skipif(len(ENGINES) < 2, reason="needs two durable engines")
def test_an_interrupted_migration_is_finished_or_undone(dataset: Dataset) -> None:
    other = ENGINES[0]
    ingested(committed(dataset, "load", rows(0, 100)))
    for repaired, engine in ((repair.undo, ENGINE), (repair.finish, other)):
        migrating.begin(dataset, other)
        migrating.migrate_shard(dataset, 0, other)
        (trouble,) = repair.troubles(dataset)
        assert f"1 of 2 shards are of engine '{other}'" in trouble.text
        with pytest.raises(rmqstore.ConfigError, match="has not come to its end"):
            dataset.check_ready()
        assert sorted(timers_of(dataset.path)) == list(range(100))
        assert repaired(dataset)
        assert Dataset.open(dataset.path).manifest.engine == engine
        assert list(repair.troubles(dataset)) == []
        dataset.check_ready()
        assert sorted(timers_of(dataset.path)) == list(range(100))
    with pytest.raises(rmqstore.TransferError, match="already"):
        migrating.begin(dataset, other)


def test_half_done_jobs_are_told_finished_and_undone(dataset: Dataset) -> None:
    staged(Job(dataset, "never-committed"), rows(0, 10))
    withdrawn = committed(dataset, "withdrawn", rows(100, 10))
    half = committed(dataset, "half", rows(200, 50))
    ingest_shard(half, 0)
    creation_left_behind(dataset)
    assert Counter(trouble.check for trouble in repair.troubles(dataset)) == {"job": 3, "creation": 1}
    with pytest.raises(rmqstore.TransferError, match="has not come to its end"):
        check_no_job_waits(dataset)
    told = "\n".join(repair.undo(dataset))
    assert "never-committed: what was staged is removed" in told
    assert "withdrawn: withdrawn" in told
    assert "half: some of its messages are sent and stay" in told
    assert withdrawn.record() is None
    assert repair.finish(dataset) == [f"job half: {half.record().rows_of(1)} messages were sent that were missing"]  # type: ignore[union-attr]
    assert list(repair.troubles(dataset)) == []
    check_no_job_waits(dataset)
    assert sorted(timers_of(dataset.path)) == list(range(200, 250))


def test_a_foreign_or_missing_shard_is_a_problem(dataset: Dataset) -> None:
    dataset.shard_path(0).rename(dataset.path.parent / "away")
    (trouble,) = repair.troubles(dataset)
    assert trouble.is_problem
    assert "shard-00000 is missing" in trouble.text


def test_a_record_of_a_job_counts_by_shard() -> None:
    files = [
        StagedFile(name="a", shards=[0, 1, 0], rows=[5, 7, 1], sizes_bytes=[1, 1, 1]),
        StagedFile(name="b", shards=[1], rows=[2], sizes_bytes=[1]),
    ]
    record = JobRecord(files=files, chunk_rows=10, chunk_bytes=10)
    assert (record.rows, record.rows_of(0), record.rows_of(1), record.rows_of(2)) == (15, 6, 9, 0)
