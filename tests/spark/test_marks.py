"""A job that is resumed after somebody else had the shard open: it goes on only while the shard knows which chunks it has."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import rmqstore
from rmqstore.clock import ManualClock, SystemClock
from rmqstore.spark import Dataset
from rmqstore.spark.ingest import ingest_shard
from rmqstore.spark.jobs import Job
from rmqstore.spark.readout import View
from rmqstore.spark.running import tick_shard
from tests.spark.datasets import ENGINE, ENGINES, NOW_MS, committed, killed, numbers_of, rows, staged

pytestmark = pytest.mark.skipif(not ENGINES, reason="no durable engine is installed")

WEEK_MS = 7 * 86_400_000
VIEWS = (View.TIMERS, View.MESSAGES)


def interrupted(job: Job, chunks: int = 1) -> None:
    """Send some chunks of shard 0 and stop as a killed process does, with nothing noted."""
    with killed(rmqstore.Store, "send_batch", chunks):
        ingest_shard(job, 0)


def ticked(dataset: Dataset, now_ms: int, **settings: int) -> None:
    """Do what an owner of shard 0 does, by its own clock and settings."""
    with rmqstore.open(dataset.shard_path(0), clock=ManualClock(now_ms), services=False, **settings) as store:
        store.tick()


def found(dataset: Dataset) -> list[int]:
    return sorted(number for view in VIEWS for number in numbers_of(dataset.path, view))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("is_timed", "later_ms", "settings"),
    [
        (True, WEEK_MS + 1000, {"retention_ms": 0}),
        (False, WEEK_MS + 1000, {"retention_ms": 0}),
        pytest.param(False, 5000, {"mark_memory_ms": 1000}, id="by its settings"),
    ],
)
def test_no_row_is_doubled_when_an_owner_forgot_the_marks(
    tmp_path: Path, engine: str, is_timed: bool, later_ms: int, settings: dict[str, int]
) -> None:
    dataset = Dataset.create(tmp_path / "data", shards=1, engine=engine)
    batch = rows(0, 20) if is_timed else rows(0, 20, deliver_at_ms=pa.nulls(20, pa.int64()))
    job = committed(dataset, "load", batch)
    interrupted(job)
    ticked(dataset, NOW_MS + later_ms, **settings)
    with pytest.raises(rmqstore.TransferError, match="compare the shard with the source"):
        ingest_shard(job, 0)
    assert found(dataset) == list(range(20))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_job_goes_on_while_the_marks_are_there(tmp_path: Path, engine: str) -> None:
    dataset = Dataset.create(tmp_path / "data", shards=1, engine=engine)
    job = committed(dataset, "load", *(rows(first, 10) for first in range(0, 40, 10)))
    interrupted(job)
    ticked(dataset, NOW_MS + WEEK_MS - 1000)
    assert ingest_shard(job, 0).repeated == 10
    assert found(dataset) == list(range(40))


@pytest.mark.usefixtures("small_chunks")
def test_a_job_goes_on_after_its_clock_was_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Dataset.create(tmp_path / "data", shards=1, engine=ENGINE)
    job = Job(dataset, "load")
    job.commit(staged(job, *(rows(first, 10) for first in (0, 10, 20))))
    clock = ManualClock(NOW_MS)
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: clock.now_ms())
    interrupted(job)
    clock.set(NOW_MS - WEEK_MS)
    interrupted(job, chunks=2)
    # The mark of the second chunk is a week older than that of the first; it goes, and the job must not send it again.
    ticked(dataset, NOW_MS + 1000)
    with pytest.raises(rmqstore.TransferError, match="compare the shard with the source"):
        ingest_shard(job, 0)


def test_a_hand_over_leaves_a_shard_that_a_job_has_begun(dataset: Dataset) -> None:
    job = committed(dataset, "load", rows(0, 40))
    interrupted(job)
    with pytest.raises(rmqstore.TransferError, match="has not come to its end"):
        tick_shard(dataset, 0, NOW_MS + WEEK_MS + 1000)
    assert ingest_shard(job, 0).rows == len(found(dataset))
