"""Data sets and jobs for the tests: messages that are numbers, staged and taken in without Spark."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

import rmqstore
from rmqstore import ManualClock
from rmqstore.server.serving import ServerThread
from rmqstore.spark import Dataset
from rmqstore.spark.ingest import ingest_shard
from rmqstore.spark.jobs import Job
from rmqstore.spark.readout import View, Wanted, plan, read
from rmqstore.spark.staging import StagedFile, stage
from rmqstore.store.directory import SOCKET_NAME
from tests.pairs import DURABLE_PAIRS

NOW_MS: Final = 1_700_000_000_000
SECOND_MS: Final = 1000
ENGINES: Final = sorted({pair.timers for pair in DURABLE_PAIRS if pair.timers == pair.pops})
ENGINE: Final = ENGINES[-1] if ENGINES else ""


def rows(first: int, count: int, **others: pa.Array) -> pa.RecordBatch:
    """Messages whose body and key are their number, due a second apart."""
    numbers = range(first, first + count)
    return pa.record_batch(
        {
            "topic": pa.array(["orders"] * count),
            "body": pa.array([b"%d" % number for number in numbers]),
            "keys": pa.array([[str(number)] for number in numbers]),
            "deliver_at_ms": pa.array([NOW_MS + (number + 1) * SECOND_MS for number in numbers]),
            **others,
        }
    )


def staged(job: Job, *tasks: pa.RecordBatch) -> list[StagedFile]:
    return [stage(job, [task], number) for number, task in enumerate(tasks)]


def committed(dataset: Dataset, job_id: str, *tasks: pa.RecordBatch) -> Job:
    job = Job(dataset, job_id)
    job.commit(staged(job, *tasks), NOW_MS)
    return job


class Killed(BaseException):
    """The end of a process."""


@contextmanager
def killed(owner: object, name: str, behind: int = 1) -> Iterator[None]:
    """Let the process end behind so many calls, or in place of the first one; the block must end by that."""
    call, calls = getattr(owner, name), itertools.count(1)

    def dying(*given: object, **named: object) -> object:
        answer = call(*given, **named) if behind else None
        if next(calls) >= behind:
            raise Killed
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, dying)
        with pytest.raises(Killed):
            yield


def ingested(job: Job) -> None:
    """Take in all shards in this process."""
    for shard in job.missing_shards():
        ingest_shard(job, shard)
    job.finish()


def rows_of(path: Path, view: View, **wanted: Any) -> list[dict[str, Any]]:
    """Read a view, part by part."""
    asked = Wanted(view=view, **wanted)
    return [row for part in plan(str(path), asked, 50) for batch in read(part, asked) for row in batch.to_pylist()]


def numbers_of(path: Path, view: View, **wanted: Any) -> list[int]:
    """Read the numbers of the pending timers or the messages."""
    return [int(row["body"]) for row in rows_of(path, view, columns=("body",), **wanted)]


def timers_of(path: Path, **wanted: Any) -> list[int]:
    """Read the numbers of the pending timers."""
    return numbers_of(path, View.TIMERS, **wanted)


@contextmanager
def served(path: Path, now_ms: int = NOW_MS) -> Iterator[rmqstore.Store]:
    """Own a shard and serve it; give it."""
    with rmqstore.open(path, clock=ManualClock(now_ms), services=False) as store:
        thread = ServerThread(store, lambda entrance: entrance.listen_unix(path / SOCKET_NAME))
        try:
            yield store
        finally:
            thread.stop()


def creation_left_behind(dataset: Dataset) -> Path:
    """Make what a creation of the same data set leaves when it is killed."""
    aside = dataset.path.with_name(f"{dataset.path.name[:40]}.{zlib.crc32(dataset.path.name.encode()):08x}.creating-0123abcd")
    aside.mkdir()
    return aside
