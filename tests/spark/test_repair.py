"""What is half done in a data set, and how it is finished or taken back."""

from __future__ import annotations

import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pyarrow as pa
import pytest

import rmqstore
from rmqstore.spark import Dataset, ingest, migrating, repair, resharding
from rmqstore.spark.copies import copied
from rmqstore.spark.ingest import ingest_here, ingest_shard
from rmqstore.spark.jobs import Job, ShardProgress, jobs_of
from rmqstore.spark.resharding import reshard_all
from rmqstore.spark.staging import Rules, stage
from rmqstore.store import witness
from rmqstore.transfer import replacing
from rmqstore.transfer.taking import Taking
from tests.spark.datasets import ENGINE, ENGINES, NOW_MS, Killed, committed, creation_left_behind, ingested, killed, rows, timers_of

pytestmark = pytest.mark.skipif(not ENGINES, reason="no durable engine is installed")

needs_two_engines = pytest.mark.skipif(len(ENGINES) < 2, reason="needs two durable engines")
MOMENTS = [(replacing.Replacement, "begin", 1), (Taking, "run", 0), (replacing.Replacement, "ready", 1), (replacing, "exchanged", 1)]


@needs_two_engines
@pytest.mark.parametrize(("owner", "name", "behind"), MOMENTS, ids=[name for _, name, _ in MOMENTS])
def test_a_migration_that_was_killed_in_a_shard_is_undone_at_once(dataset: Dataset, owner: object, name: str, behind: int) -> None:
    ingested(committed(dataset, "load", rows(0, 30)))
    with killed(owner, name, behind):
        migrating.migrate_all(dataset, ENGINES[0])
    dataset = Dataset.open(dataset.path)
    assert repair.undo(dataset)
    assert [dataset.engines(shard) for shard in dataset.shards] == [{ENGINE}, {ENGINE}]
    assert list(repair.troubles(Dataset.open(dataset.path))) == []
    assert sorted(timers_of(dataset.path)) == list(range(30))
    assert [entry.name for entry in dataset.path.glob("*.migrating*")] == []


def test_an_undo_beside_a_shard_that_begins_sends_nothing_or_leaves_the_job(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    job = committed(dataset, "load", rows(0, 40))
    plant = witness.plant

    def undone(*given: object) -> None:
        plant(*given)  # type: ignore[arg-type]
        assert repair.undo(Dataset.open(dataset.path)) == ["job load: withdrawn; nothing had been sent"]

    with monkeypatch.context() as patch:
        patch.setattr(witness, "plant", undone)
        with pytest.raises(rmqstore.TransferError, match="taken back"):
            ingest_shard(job, 0)
    assert timers_of(dataset.path) == []
    again = committed(dataset, "load", rows(0, 40))
    ingest_shard(again, 0)
    assert not again.withdraw()
    ingested(again)
    assert sorted(timers_of(dataset.path)) == list(range(40))


def test_withdrawing_keeps_a_shard_from_beginning(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    job = committed(dataset, "load", rows(0, 40))
    progress, found = Job.progress, list[BaseException]()

    def ingest() -> None:
        try:
            ingest_shard(Job(dataset, "load"), 0)
        except rmqstore.TransferError as error:
            found.append(error)

    other, begins = threading.Thread(target=ingest), threading.Event()
    note_begun = Job.note_begun

    def looked(own: Job, shard: int) -> ShardProgress | None:
        answer = progress(own, shard)
        if threading.current_thread() is not other and not other.ident:
            other.start()
            assert begins.wait(60)
        return answer

    def noted(own: Job, shard: int, new: ShardProgress) -> None:
        begins.set()
        note_begun(own, shard, new)

    monkeypatch.setattr(Job, "progress", looked)
    monkeypatch.setattr(Job, "note_begun", noted)
    assert job.withdraw()
    other.join()
    assert "taken back" in str(found[0])
    assert timers_of(dataset.path) == []


def test_only_what_a_creation_of_this_data_set_left_is_removed(tmp_path: Path) -> None:
    name = "n" * 40
    dataset = Dataset.create(tmp_path / f"{name}-a[1]", shards=1, engine=ENGINE)
    own = creation_left_behind(dataset)
    others = [
        creation_left_behind(Dataset.create(tmp_path / f"{name}-a1", shards=1, engine=ENGINE)),
        Dataset.create(tmp_path / f"{name}.creating-2026", shards=1, engine=ENGINE).path,
    ]
    (trouble,) = repair.troubles(dataset)
    assert str(own) in trouble.text
    assert repair.undo(dataset) == [f"{own} is removed"]
    assert not own.exists()
    assert all(other.is_dir() for other in others)


def test_ids_and_files_in_the_way_do_not_meet_the_locks(dataset: Dataset) -> None:
    (dataset.path / "jobs" / ".trash").mkdir()
    (dataset.path / "jobs" / "not a job").mkdir()
    for number, job_id in enumerate(("x", "x.lock")):
        ingested(committed(dataset, job_id, rows(10 * number, 10)))
    assert [job.id for job in jobs_of(dataset)] == ["x", "x.lock"]
    assert list(repair.troubles(dataset)) == []
    assert sorted(timers_of(dataset.path)) == list(range(20))


def test_a_write_whose_job_is_undone_between_its_tasks_is_refused(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    source = pytest.importorskip("rmqstore.spark.source", reason="needs PySpark", exc_type=ImportError)
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: Mock(**{"partitionId.return_value": 0}))
    committed(dataset, "load", rows(0, 20), rows(20, 20))
    writer = source.JobWriter(Job(dataset, "load"), Rules(now_ms=NOW_MS), 1000)
    first = writer.write(iter([rows(0, 20)]))
    repair.undo(dataset)
    second = writer.write(iter([rows(20, 20)]))
    with pytest.raises(rmqstore.TransferError, match="taken back"):
        writer.commit([first, second])
    assert Job(dataset, "load").record() is None
    assert timers_of(dataset.path) == []


def asking(count: int, **others: pa.Array) -> pa.RecordBatch:
    """Rows whose properties ask for an hour."""
    wish = pa.array([[("TIMER_DELAY_SEC", "3600")]] * count, pa.map_(pa.string(), pa.string()))
    return rows(0, count, deliver_at_ms=pa.nulls(count, pa.int64()), properties=wish, **others)


def test_properties_that_ask_for_a_time_are_resolved_before_the_commit(dataset: Dataset) -> None:
    job = Job(dataset, "load")
    job.commit([stage(job, [asking(10)], 0, Rules(now_ms=NOW_MS))], NOW_MS)
    ingested(job)
    assert len(timers_of(dataset.path, from_ms=NOW_MS + 3_600_000, to_ms=NOW_MS + 3_600_001)) == 10
    for bad in (asking(2, message_group=pa.array(["g", "g"])), asking(2).set_column(3, "deliver_at_ms", pa.array([NOW_MS] * 2))):
        with pytest.raises(rmqstore.IllegalMessageError, match="exclude each other"):
            stage(Job(dataset, "bad"), [bad], 0, Rules(now_ms=NOW_MS))


def test_a_job_that_the_first_chunk_is_refused_of_can_be_taken_back_and_others_are_finished(dataset: Dataset) -> None:
    torn, well = committed(dataset, "a-torn", rows(0, 40)), committed(dataset, "b-well", rows(40, 40))
    (file,) = torn.staged.iterdir()
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(rmqstore.TransferError, match="job b-well: 40 messages were sent") as caught:
        repair.finish(dataset)
    assert "job a-torn: the staged file" in str(caught.value)
    assert well.record().is_done  # type: ignore[union-attr]
    assert repair.undo(dataset) == ["job a-torn: withdrawn; nothing had been sent"]
    assert sorted(timers_of(dataset.path)) == list(range(40, 80))


def test_a_job_that_cannot_be_finished_is_given_up(dataset: Dataset) -> None:
    job = committed(dataset, "load", rows(0, 40))
    ingest_shard(job, 0)
    there = timers_of(dataset.path)
    (file,) = job.staged.iterdir()
    file.unlink()
    with rmqstore.open(dataset.shard_path(1), services=False), pytest.raises(rmqstore.StoreLockedError):
        repair.drop_job(dataset, "load")
    told = repair.drop_job(dataset, "load")
    assert [f"of {len(there)} messages of job load all were sent" in told[1], "nothing was sent" in told[2]] == [True, True]
    assert list(repair.troubles(dataset)) == []
    assert timers_of(dataset.path) == there
    for refused in (lambda: ingest_shard(job, 1), job.missing_shards, lambda: ingest_here(job)):
        with pytest.raises(rmqstore.TransferError, match="given up"):
            refused()
    with pytest.raises(rmqstore.TransferError, match="given up"):
        repair.drop_job(dataset, "load")


def test_what_a_late_task_leaves_of_a_finished_job_is_named_and_removed(dataset: Dataset) -> None:
    job = committed(dataset, "load", rows(0, 10))
    ingested(job)
    stage(job, [rows(0, 10)], 0)
    (trouble,) = repair.troubles(dataset)
    assert "staged files are left" in trouble.text
    assert repair.undo(dataset) == ["job load: staged files that were left are removed; it had come to its end"]
    assert not job.staged.exists()
    assert job.record().is_done  # type: ignore[union-attr]


def test_a_process_that_says_much_is_not_held_up(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    loud = "import sys; sys.stderr.write('x' * 1_000_000); sys.stderr.write('the end'); sys.exit(3)"
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **named: popen([command[0], "-c", loud], **named))
    with pytest.raises(rmqstore.StoreError, match=r"ended with 3: x+the end"):
        ingest_here(committed(dataset, "load", rows(0, 10)))


@pytest.mark.parametrize("window", ["behind the commit", "behind the first shards"])
def test_a_write_whose_job_is_undone_behind_its_commit_does_not_end_well(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, window: str
) -> None:
    """Nothing of it was sent, and who believes it was goes on to the next rows."""
    job = Job(dataset, "load")
    files = [stage(job, [rows(0, 10)], 0)]
    if window == "behind the commit":
        commit = Job.commit

        def committed_and_undone(self: Job, *given: object) -> object:
            record = commit(self, *given)  # type: ignore[arg-type]
            assert self.withdraw()
            return record

        monkeypatch.setattr(Job, "commit", committed_and_undone)
    else:
        monkeypatch.setattr(ingest, "ingest_shard", lambda job, shard, wait_ms: job.withdraw())
    with pytest.raises(rmqstore.TransferError, match=r"'load' .* was taken back; nothing of it was sent"):
        ingest.complete_here(job, files, NOW_MS, 0)
    assert timers_of(dataset.path) == []


def test_a_directory_in_the_way_of_a_resharding_stays(dataset: Dataset) -> None:
    own = dataset.path.with_name("data.resharding")
    own.mkdir()
    (own / "precious").touch()
    with pytest.raises(rmqstore.TransferError, match="is in the way"):
        reshard_all(dataset, 3)
    dataset = Dataset.open(dataset.path)
    assert dataset.manifest.resharding_to is None
    dataset.rewrite(msgspec.structs.replace(dataset.manifest, resharding_to=3))
    with pytest.raises(rmqstore.TransferError, match="is in the way"):
        repair.undo(dataset)
    assert (own / "precious").exists()


def test_what_a_resharding_left_beside_a_data_set_that_was_restored_is_removed(dataset: Dataset) -> None:
    saved = copied(dataset, dataset.path.with_name("saved"), "copying", shutil.copytree)
    with killed(resharding, "build", 0):
        reshard_all(dataset, 3)
    shutil.rmtree(dataset.path)
    saved.rename(dataset.path)
    dataset = Dataset.open(dataset.path)
    (trouble,) = repair.troubles(dataset)
    assert "is left of a resharding" in trouble.text
    assert repair.undo(dataset)
    assert list(repair.troubles(dataset)) == []
    assert [entry.name for entry in dataset.path.parent.iterdir()] == [dataset.path.name]


def test_one_record_that_cannot_be_read_keeps_nobody_from_the_others(dataset: Dataset) -> None:
    for job_id in "abc":
        committed(dataset, job_id, rows(0, 40))
    (dataset.path / "jobs" / "a" / "shard-00000.json").write_text("{")
    (dataset.path / "jobs" / "b" / "job.json").write_text("{")
    first, second, third = repair.troubles(dataset)
    assert (first.check, second.check, first.is_problem) == ("job", "job", True)
    assert "shard-00000.json of job 'a' cannot be read" in first.text
    assert all("restore that file" in trouble.text for trouble in (first, second))
    assert third.text.startswith("c of 40 messages has not come to its end")
    with pytest.raises(rmqstore.TransferError, match=r"job a: the record .*job b: the record ") as failed:
        repair.finish(dataset)
    assert "job c: 40 messages were sent" in str(failed.value)
    assert len(repair.undo(dataset)) == 2


def test_a_shard_that_is_lost_leaves_no_directory_when_a_job_is_given_up(dataset: Dataset) -> None:
    committed(dataset, "load", rows(0, 10))
    shutil.rmtree(dataset.shard_path(1))
    repair.drop_job(dataset, "load")
    assert not dataset.shard_path(1).exists()


def test_who_asks_whether_a_job_runs_is_not_taken_for_its_driver(dataset: Dataset) -> None:
    job = committed(dataset, "load", rows(0, 1))
    with ThreadPoolExecutor(4) as threads:
        assert not any(threads.map(lambda _: job.is_running(), range(400)))
    with job.completing():
        assert job.is_running()


def test_a_copy_writes_nothing_into_its_source(dataset: Dataset) -> None:
    before = sorted(dataset.path.rglob("*"))
    copied(dataset, dataset.path.with_name("saved"), "copying", shutil.copytree)
    assert sorted(dataset.path.rglob("*")) == before


@needs_two_engines
def test_a_migration_is_finished_behind_an_undo_that_was_killed(dataset: Dataset) -> None:
    ingested(committed(dataset, "load", rows(0, 30)))
    migrating.begin(dataset, ENGINES[0])
    migrating.migrate_shard(dataset, ENGINES[0], 0)
    with killed(replacing, "exchanged", 0):
        repair.undo(Dataset.open(dataset.path))
    assert repair.finish(Dataset.open(dataset.path))
    dataset = Dataset.open(dataset.path)
    assert list(repair.troubles(dataset)) == []
    assert [dataset.engines(shard) for shard in dataset.shards] == [{ENGINES[0]}, {ENGINES[0]}]
    assert sorted(timers_of(dataset.path)) == list(range(30))
    assert list(dataset.path.glob("*.migrating*")) == []


@needs_two_engines
def test_an_undo_beside_a_lost_shard_makes_nothing_in_its_place(dataset: Dataset) -> None:
    with killed(Taking, "run", 0):
        migrating.migrate_all(dataset, ENGINES[0])
    shutil.rmtree(dataset.shard_path(0))
    with pytest.raises(rmqstore.StorePathError, match="is missing"):
        repair.undo(Dataset.open(dataset.path))
    assert not dataset.shard_path(0).exists()


@needs_two_engines
def test_settings_that_name_the_engine_end_with_a_migration(dataset: Dataset) -> None:
    """Those of a data set that was made when they were taken."""
    dataset.rewrite(msgspec.structs.replace(dataset.manifest, settings={"timer_engine": ENGINE, "pop_engine": ENGINE}))
    migrating.migrate_all(dataset, ENGINES[0])
    ingested(committed(Dataset.open(dataset.path), "load", rows(0, 30)))
    assert sorted(timers_of(dataset.path)) == list(range(30))


@needs_two_engines
def test_a_migration_that_was_killed_between_two_renames_is_finished(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system has no exchange of two directories: the shard has no name for a moment."""
    ingested(committed(dataset, "load", rows(0, 30)))
    rename, shard = Path.rename, dataset.shard_path(0)

    def killed_behind_the_first(path: Path, target: Path) -> Path:
        done = rename(path, target)
        if path == shard:
            raise Killed
        return done

    monkeypatch.setattr(replacing, "exchanged", lambda one, other: False)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed_behind_the_first)
        with pytest.raises(Killed):
            migrating.migrate_all(dataset, ENGINES[0])
    assert not shard.exists()
    assert repair.finish(Dataset.open(dataset.path))
    assert sorted(timers_of(dataset.path)) == list(range(30))
    assert list(repair.troubles(Dataset.open(dataset.path))) == []
