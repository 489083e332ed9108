"""Shards that another process serves: what a job brings goes through it, exactly once, whatever breaks on the way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore.server.connection import Connection
from rmqstore.server.remote import RemoteStore
from rmqstore.spark import Dataset
from rmqstore.spark.ingest import chunks, ingest_here, ingest_shard
from rmqstore.spark.jobs import Job
from rmqstore.store.sending import SendReceipts
from tests.spark.datasets import ENGINES, NOW_MS, killed, rows, served, staged, timers_of

pytestmark = pytest.mark.skipif(not ENGINES, reason="no durable engine is installed")

WEEK_MS = 7 * 86_400_000


@pytest.fixture
def job(dataset: Dataset, small_chunks: None) -> Job:
    """A job of 40 timers, in chunks of ten or less, that goes by the clocks of the shards."""
    return job_of(dataset)


def job_of(dataset: Dataset) -> Job:
    found = Job(dataset, "load")
    found.commit(staged(found, *(rows(first, 10) for first in range(0, 40, 10))))
    return found


def test_a_job_goes_through_who_serves_a_shard_and_each_row_once(dataset: Dataset, job: Job) -> None:
    record = job.record()
    assert record is not None
    with served(dataset.shard_path(0)) as store:
        dataset.check_ready(is_served_too=True)
        with pytest.raises(rmqstore.StoreLockedError, match="shard-00000"):
            dataset.check_ready(is_served_too=False)
        with killed(RemoteStore, "send_batch"):
            ingest_shard(job, 0)
        begun = job.progress(0)
        assert begun is not None
        assert begun.begun_ms == NOW_MS
        assert 0 < store.pending().total <= 10
    # Its owner ends: the task owns the shard, and finds what came by the server. Then it is served again.
    with killed(rmqstore.Store, "send_batch"):
        ingest_shard(job, 0)
    with served(dataset.shard_path(0)) as store:
        (first, second) = ingest_here(job)
        assert first.rows == store.pending().total == record.shards[0]
        assert first.repeated > 0
        assert second.repeated == 0
        assert ingest_shard(job, 0).repeated == record.shards[0]
        other = Job(dataset, "other")
        other.commit(staged(other, rows(40, 10)))
        with dataset.open_shard(0) as through:
            assert isinstance(through, RemoteStore)
            with pytest.raises(rmqstore.StoreLockedError, match="another task is at work"):
                ingest_shard(other, 0, wait_ms=0)
    assert sorted(timers_of(dataset.path)) == list(range(40))


def test_who_serves_a_shard_may_have_forgotten_the_marks(dataset: Dataset, job: Job) -> None:
    with served(dataset.shard_path(0)), killed(RemoteStore, "send_batch"):
        ingest_shard(job, 0)
    with served(dataset.shard_path(0), NOW_MS + WEEK_MS + 1000) as store:
        store.tick()
        with pytest.raises(rmqstore.TransferError, match="compare the shard with the source"):
            ingest_shard(job, 0)


@contextmanager
def losing() -> Iterator[list[bytes]]:
    """Let a server lose the first chunk behind its answer; gives the marks of the chunks that it was sent."""
    send_batch, marks = RemoteStore.send_batch, list[bytes]()

    def sending(store: RemoteStore, *given: Any, **named: Any) -> SendReceipts:
        marks.extend(named["marks"])
        return SendReceipts((), None, repeated=False) if len(marks) == 1 else send_batch(store, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemoteStore, "send_batch", sending)
        yield marks


def test_a_chunk_that_was_answered_and_is_gone_is_sent_again(dataset: Dataset, job: Job) -> None:
    """A server with ``flush = "async"`` that meets a full disk tells somebody, once, and goes on; that may be another client."""
    with served(dataset.shard_path(0)), losing() as marks:
        assert ingest_shard(job, 0).repeated == 0
    # Sent, sent again because nobody knows, and once more, as the first one was new then.
    assert marks == marks[: len(marks) // 3] * 3
    ingest_shard(job, 1)
    assert sorted(timers_of(dataset.path)) == list(range(40))


def test_a_chunk_that_finds_its_own_copy_was_not_there_before_the_flush(
    dataset: Dataset, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer was lost by the owner, the second one on its way; the owner may lose the chunk again before it is durable."""
    record = job.record()
    assert record is not None
    count, ask, asked = len(list(chunks(job, record, 0))), Connection.ask, list[str]()

    def breaking(connection: Connection, call: str, *given: Any) -> object:
        answer = ask(connection, call, *given)
        asked.extend([call] * (call == "send_batch"))
        if call == "send_batch" and len(asked) == count:
            raise ConnectionResetError
        return answer

    with served(dataset.shard_path(0)):
        with losing(), monkeypatch.context() as patch:
            patch.setattr(Connection, "ask", breaking)
            with pytest.raises(rmqstore.StoreUnavailableError):
                ingest_shard(job, 0)
        assert job.missing_shards() == [0, 1]
        ingest_here(job)
    assert sorted(timers_of(dataset.path)) == list(range(40))


OWNER = """
import sys, time
import rmqstore
with rmqstore.open(sys.argv[1], share=True, services=False, flush="async") as store:
    store.stats()
    print("up", flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif("lmdb" not in ENGINES, reason="needs lmdb, of which a killed process takes along what it has not flushed")
@pytest.mark.usefixtures("small_chunks")
def test_an_owner_that_is_killed_between_a_chunk_and_its_flush_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Dataset.create(tmp_path / "data", shards=1, engine="lmdb")

    def started() -> subprocess.Popen[bytes]:
        owner = subprocess.Popen([sys.executable, "-c", OWNER, str(dataset.shard_path(0))], stdout=subprocess.PIPE)
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        return owner

    owners, send_batch = [started()], RemoteStore.send_batch

    def killing(store: RemoteStore, *given: Any, **named: Any) -> SendReceipts:
        answer = send_batch(store, *given, **named)
        if len(owners) == 1:
            owners[0].kill()
            owners[0].wait()
            owners.append(started())
        return answer

    try:
        with monkeypatch.context() as patch:
            patch.setattr(RemoteStore, "send_batch", killing)
            ingest_shard(job_of(dataset), 0)
    finally:
        for owner in owners:
            owner.kill()
            owner.communicate()
    assert len(owners) == 2
    # What is done must outlive the second owner, too.
    assert sorted(timers_of(dataset.path)) == list(range(40))
