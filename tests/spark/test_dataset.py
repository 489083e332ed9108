"""Data sets without Spark: routing, creation, and what is half done and brought to an end."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import rmqstore
from rmqstore.batch import MessageBatch
from rmqstore.spark import Dataset, migrating, repair, shard_of
from rmqstore.spark.columns import shard_column
from rmqstore.spark.ingest import ingest_shard
from rmqstore.spark.jobs import Job, check_no_job_waits
from rmqstore.store import directory
from tests.spark.datasets import ENGINE, ENGINES, committed, creation_left_behind, ingested, killed, rows, staged, timers_of

pytestmark = pytest.mark.skipif(not ENGINES, reason="no durable engine is installed")


# ---------------------------------------------------------------- routing


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


def test_a_data_set_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    with killed(directory, "sync_tree", 0):
        Dataset.create(tmp_path / "data", shards=2, engine=ENGINE)
    assert list(tmp_path.iterdir()) == []
    made = Dataset.create(tmp_path / "data", shards=2, engine=ENGINE)
    assert [made.engines(shard) for shard in made.shards] == [{ENGINE}, {ENGINE}]


def test_a_program_that_opens_a_shard_has_the_settings_of_the_data_set(tmp_path: Path) -> None:
    settings = {"precision_ms": 100, "retention_ms": 0, "max_retries": 3}
    dataset = Dataset.create(tmp_path / "data", shards=2, engine=ENGINE, settings={**settings, "clock__max_step_ms": 5000})
    for shard in dataset.shards:
        with rmqstore.open(dataset.shard_path(shard), services=False) as store:
            assert (store.engine.config.precision_ms, store.engine.config.retention_ms, store.engine.config.max_retries) == (100, 0, 3)
            assert store.engine.config.values["clock.max_step_ms"] == 5000
        with dataset.open_shard(shard) as store:
            assert store.engine.config.retention_ms == 0


def test_a_data_set_behind_a_link_is_made_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").symlink_to("disk")
    Dataset.create(tmp_path / "data", shards=1)
    assert (tmp_path / "data").is_symlink()
    assert (tmp_path / "disk" / "shard-00000").is_dir()


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
    # A migration would leave behind a setting that names an engine.
    with pytest.raises(rmqstore.ConfigError, match=r"pop_engine is no setting of a data set.* name it with engine="):
        Dataset.create(tmp_path / "other", shards=1, settings={"timer_engine": ENGINE, "pop_engine": ENGINE})
    with pytest.raises(rmqstore.IllegalArgumentError, match="1–4096, not 0"):
        Dataset.create(tmp_path / "other", shards=0)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["data", "full", "single"]


def test_a_shard_that_is_open_missing_or_foreign_is_named(dataset: Dataset) -> None:
    with dataset.open_shard(1), pytest.raises(rmqstore.StoreLockedError, match="shard-00001"):
        dataset.check_ready(is_served_too=True)
    dataset.check_ready(is_served_too=True)
    dataset.shard_path(1).rename(dataset.path.parent / "away")
    with pytest.raises(rmqstore.StorePathError, match="shard-00001 is missing"):
        dataset.check_ready(is_served_too=True)
    with pytest.raises(rmqstore.StorePathError, match="shard-00001 is missing"):
        timers_of(dataset.path)
    (trouble,) = repair.troubles(dataset)
    assert trouble.is_problem
    assert "shard-00001 is missing" in trouble.text


# ---------------------------------------------------------------- migration and repair


@pytest.mark.skipif(len(ENGINES) < 2, reason="needs two durable engines")
def test_an_interrupted_migration_is_finished_or_undone(dataset: Dataset) -> None:
    other = ENGINES[0]
    ingested(committed(dataset, "load", rows(0, 100)))
    for repaired, engine in ((repair.undo, ENGINE), (repair.finish, other)):
        migrating.begin(dataset, other)
        migrating.migrate_shard(dataset, other, 0)
        (trouble,) = repair.troubles(dataset)
        assert f"1 of 2 shards are of engine '{other}'" in trouble.text
        with pytest.raises(rmqstore.ConfigError, match="has not come to its end"):
            dataset.check_ready(is_served_too=True)
        # Nor is a job committed whose write was opened before.
        with pytest.raises(rmqstore.ConfigError, match="has not come to its end"):
            committed(dataset, "late", rows(100, 5))
        Job(dataset, "late").discard()
        assert sorted(timers_of(dataset.path)) == list(range(100))
        assert repaired(dataset)
        assert Dataset.open(dataset.path).manifest.engine == engine
        assert list(repair.troubles(dataset)) == []
        dataset.check_ready(is_served_too=True)
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
    assert repair.finish(dataset) == [f"job half: {half.record().shards[1]} messages were sent that were missing"]  # type: ignore[union-attr]
    assert list(repair.troubles(dataset)) == []
    check_no_job_waits(dataset)
    assert sorted(timers_of(dataset.path)) == list(range(200, 250))
