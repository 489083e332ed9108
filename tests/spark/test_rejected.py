"""Rows that are no messages: which they are, why, and that they are set aside exactly once with their job."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rmqstore
from rmqstore import transfer
from rmqstore.schemas import IN_SCHEMA
from rmqstore.spark import Dataset, copies, repair, resharding
from rmqstore.spark.failures import encoded
from rmqstore.spark.ingest import complete, complete_here
from rmqstore.spark.jobs import Job, prune
from rmqstore.spark.readout import View, Wanted, plan, read
from rmqstore.spark.staging import OnBadRow, Rules, StagedFile, counted, rules_of, stage
from tests.spark.datasets import ENGINE, NOW_MS, ingested, rows, rows_of, timers_of

pytestmark = pytest.mark.skipif(not ENGINE, reason="no durable engine is installed")
COLLECT = Rules(now_ms=NOW_MS, on_bad_row=OnBadRow.COLLECT)


def flawed(first: int, count: int, **bad: dict[int, object]) -> pa.RecordBatch:
    """Rows of which some have other values in a column, by their number."""
    batch = rows(first, count)
    for name, values in bad.items():
        at = batch.schema.get_field_index(name)
        column = [values.get(number, value) for number, value in enumerate(batch.column(name).to_pylist())]
        batch = batch.set_column(at, name, pa.array(column, IN_SCHEMA.field(name).type))
    return batch


def rejected(dataset: Dataset, **wanted: Any) -> list[dict[str, Any]]:
    return rows_of(dataset.path, View.REJECTED, **wanted)


def collected(job: Job, *tasks: list[pa.RecordBatch]) -> list[StagedFile]:
    return [stage(job, batches, number, COLLECT) for number, batches in enumerate(tasks)]


def test_bad_rows_are_told_apart_with_what_is_wrong_with_each(dataset: Dataset) -> None:
    job = Job(dataset, "load")
    first = flawed(
        0, 50, body={0: b"", 49: None}, topic={7: "%RETRY%x", 8: "no topic", 11: None}, deliver_at_ms={9: NOW_MS // 1000, 10: -1}
    )
    second = flawed(50, 10, deliver_at_ms={3: NOW_MS + 10**9})
    rules = Rules(now_ms=NOW_MS, horizon_ms=10**8, on_bad_row=OnBadRow.COLLECT)
    file = stage(job, [first, rows(0, 0), second], 4, rules)
    assert (file.rows, file.rejected) == (52, 8)
    job.commit([file], NOW_MS)
    found = {int(row["keys"][0]): row for row in rejected(dataset)}
    assert list(found) == [0, 7, 8, 9, 10, 11, 49, 53]
    for number, told in (
        (0, "body"),
        (7, "%RETRY%"),
        (8, "no topic"),
        (9, "looks like seconds"),
        (10, "-1"),
        (11, "null"),
        (49, "null"),
        (53, "takes 100000000"),
    ):
        assert told in found[number]["reason"]
        assert not found[number]["reason"].startswith("row 0")
    assert (found[8]["topic"], found[8]["body"], found[8]["deliver_at_ms"]) == ("no topic", b"8", NOW_MS + 9000)
    assert found[49]["body"] is None
    ingested(job)
    assert sorted(timers_of(dataset.path)) == [number for number in range(60) if number not in found]
    assert job.committed().rejected == 8


def test_what_an_attempt_that_does_not_count_rejected_is_not_there(dataset: Dataset) -> None:
    job, bad = Job(dataset, "load"), flawed(0, 20, body={3: None, 4: None})
    late = collected(job, [bad])
    files = collected(job, [bad], [flawed(20, 20, topic={19: ""})], [])
    assert rejected(dataset) == []
    job.commit(files, NOW_MS)
    assert len(list(job.rejected.iterdir())) == 2
    ingested(job)
    assert job.commit(late, NOW_MS).rejected == 3
    assert not job.staged.exists()
    assert sorted(row["keys"][0] for row in rejected(dataset, job_id="load", columns=("job_id", "keys"))) == ["3", "39", "4"]
    assert rejected(dataset, job_id="another") == []


def test_a_rerun_must_bring_the_bad_rows_as_well(dataset: Dataset) -> None:
    job, bad = Job(dataset, "load"), flawed(0, 20, body={3: b"", 4: b""})
    job.commit(collected(job, [bad]), NOW_MS)
    job.check_same([counted([bad.slice(0, 7)]), counted([bad.slice(7)])])
    for other, told in ((bad.slice(0, 19), "has brought 20 messages, and this write has 19,"), (rows(0, 20), "20 others")):
        with pytest.raises(rmqstore.TransferError, match=told):
            job.check_same([counted([other])])


def test_rejected_rows_that_are_gone_are_told_from_those_of_a_job_that_is_forgotten(dataset: Dataset) -> None:
    job, asked = Job(dataset, "load"), Wanted(view=View.REJECTED)
    job.commit(collected(job, [flawed(0, 2, body={0: None, 1: None})]), NOW_MS)
    assert job.missing_shards() == []
    job.finish()
    assert len(rejected(dataset)) == 2
    assert list(repair.troubles(dataset)) == []
    (part,) = plan(str(dataset.path), asked)
    shutil.rmtree(job.rejected)
    with pytest.raises(rmqstore.CorruptStoreError, match="is missing, which has rows that job load rejected"):
        list(read(part, asked))
    prune(dataset, 0)
    assert list(read(part, asked)) == rejected(dataset) == []


def test_what_another_run_has_set_aside_behind_the_commit_goes_with_the_end(dataset: Dataset) -> None:
    bad = flawed(0, 2, body={0: None})
    runs = [Job(dataset, "load"), Job(dataset, "load")]
    (first,), (second,) = (collected(job, [bad]) for job in runs)
    runs[0].commit([first], NOW_MS)
    (second,) = collected(runs[1], [bad])
    complete_here(runs[1], [second], NOW_MS, 0)
    assert [each.name for each in runs[1].rejected.iterdir()] == [first.name]
    assert len(rejected(dataset)) == 1


def test_a_job_that_is_forgotten_as_it_ends_again_is_told_as_it_was(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """With very many newer jobs; who was told to run it again would send it twice."""
    job = Job(dataset, "load")
    files = collected(job, [flawed(0, 4, body={0: None})])
    complete_here(job, files, NOW_MS, 0)
    monkeypatch.setattr("rmqstore.spark.jobs.prune", partial(prune, kept=0))
    _, record = complete(job, lambda: files, NOW_MS, lambda shards: shards)
    assert (record.rows, record.rejected) == (3, 1)
    assert job.record() is None


def damaged(path: Path, how: str) -> None:
    """Damage a file of some batches, or remove it."""
    content = bytearray(path.read_bytes())
    source = pa.BufferReader(bytes(content))
    with pa.ipc.open_stream(source) as batches:
        ends = [source.tell() for _ in batches]
    if how == "gone":
        path.unlink()
        return
    if how == "changed":
        content[content.index(b"no topic")] ^= 1
    path.write_bytes(
        {
            "cut at a batch": content[: ends[-2]],
            "cut in a batch": content[: ends[-2] + 20],
            "empty": b"",
            "longer": content + b"more",
            "of other columns": b"".join((pa.schema([("x", pa.int64())]).serialize(), b"\xff\xff\xff\xff\0\0\0\0")),
        }.get(how, content)
    )


def rejecting(dataset: Dataset) -> tuple[Job, list[StagedFile]]:
    """A job that is not committed yet, and rejects six rows."""
    job = Job(dataset, "load")
    return job, collected(job, [flawed(number, 4, topic={1: "no topic", 2: ""}) for number in (0, 4, 8)])


@pytest.mark.parametrize("knows_sums", [True, False])
def test_rejected_rows_that_are_damaged_are_neither_given_as_all_nor_copied_unseen(dataset: Dataset, knows_sums: bool) -> None:
    """The records of older versions have neither size nor sum; there rows that are too few are told."""
    job, files = rejecting(dataset)
    job.commit(files, NOW_MS)
    ingested(job)
    if not knows_sums:
        done = job.path / "done.json"
        record = json.loads(done.read_bytes())
        for file in record["files"]:
            del file["rejected_bytes"], file["rejected_crc32"]
        done.write_text(json.dumps(record))
    before = rejected(dataset)
    assert [row["keys"] for row in before] == [[str(number)] for number in (1, 2, 5, 6, 9, 10)]
    (path,), target = job.rejected.iterdir(), dataset.path.with_name("copy")
    whole = path.read_bytes()
    for how in ("cut at a batch", "cut in a batch", "empty", "longer", "changed", "of other columns", "gone"):
        path.write_bytes(whole)
        damaged(path, how)
        if not knows_sums and how in ("longer", "changed"):
            assert len(rejected(dataset)) == 6
            continue
        with pytest.raises(rmqstore.CorruptStoreError, match=r"the file of rejected rows .*\.arrow") as caught:
            rejected(dataset)
        assert caught.value.file == str(path)
        with pytest.raises(rmqstore.CorruptStoreError, match=f"or remove {job.rejected} to go on"):
            copies.copied(dataset, target, "dumping", transfer.dump)
        assert not target.exists()
    shutil.rmtree(job.rejected)
    copies.copied(dataset, target, "dumping", transfer.dump)


@pytest.mark.parametrize("folder", ["staged", "rejected"])
@pytest.mark.parametrize("how", ["cut at a batch", "longer", "gone"])
def test_a_job_whose_files_are_gone_or_cut_off_is_not_committed(dataset: Dataset, folder: str, how: str) -> None:
    job, files = rejecting(dataset)
    (path,) = (job.path / folder).iterdir()
    damaged(path, how)
    with pytest.raises(rmqstore.TransferError, match=r"gone or cut off.* run it again"):
        job.commit(files, NOW_MS)
    assert job.record() is None


def test_nothing_is_set_aside_of_a_write_that_fails_or_has_no_bad_row(dataset: Dataset) -> None:
    job = Job(dataset, "load")
    with pytest.raises(rmqstore.IllegalMessageError, match="counted from row 20 of partition 3"):
        stage(job, [rows(0, 20), flawed(20, 5, body={3: None})], 3, rules_of(dataset, NOW_MS, OnBadRow.FAIL))
    assert not job.rejected.exists()
    assert list(job.staged.iterdir()) == []
    collected(job, [rows(0, 20)])
    assert not job.rejected.exists()


def test_rejected_rows_go_along_with_a_resharding_and_into_copies(dataset: Dataset) -> None:
    job, other = Job(dataset, "load"), Job(dataset, "other")
    job.commit(collected(job, [flawed(0, 20, body={3: None})], [flawed(20, 20, topic={19: ""})]), NOW_MS)
    other.commit(collected(other, [rows(40, 5)]), NOW_MS)
    for each in (job, other):
        ingested(each)
    before = rejected(dataset)
    assert [row["keys"] for row in before] == [["3"], ["39"]]
    copy = copies.copied(dataset, dataset.path.with_name("copy"), "dumping", transfer.dump)
    assert rejected(Dataset.open(copy)) == before
    resharding.reshard_all(dataset, 3)
    made = Dataset.open(dataset.path)
    assert rejected(made) == before
    assert len(list(Job(made, "load").rejected.iterdir())) == 2
    assert not Job(made, "other").rejected.exists()


def test_a_micro_batch_that_is_repeated_has_its_bad_rows_once(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    source = pytest.importorskip("rmqstore.spark.source", reason="needs PySpark", exc_type=ImportError)
    monkeypatch.setattr("rmqstore.spark.streams.KEPT_BATCHES", 1)
    schema = source.StructType().add("topic", "string").add("body", "binary")
    options = {"path": str(dataset.path), "now_ms": str(NOW_MS), "on_bad_row": "collect"}
    writer = source.RmqstoreSource(options).streamWriter(schema, overwrite=False)
    bad = flawed(0, 10, body={3: None})
    for batch, attempts in ((0, 2), (1, 1)):
        for _ in range(attempts):
            file = stage(writer._job("query", batch), [bad], 0, writer.rules)
            writer.commit([source.Staged(encoded(file), "query")], batch)
        assert [row["job_id"] for row in rejected(dataset)] == [f"query-{batch}"]
    with pytest.raises(rmqstore.IllegalArgumentError, match="on_bad_row must be fail or collect"):
        source.RmqstoreSource({**options, "on_bad_row": "drop"}).streamWriter(schema, overwrite=False)
