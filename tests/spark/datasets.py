"""Data sets and jobs for the tests: messages that are numbers, staged and taken in without Spark."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

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


@contextmanager
def killed_after(chunks: int, kind: type[rmqstore.Store] = rmqstore.Store) -> Iterator[None]:
    """Let the send of a chunk fail as when its process is killed before it, once so many were sent; the block must end by that."""
    send_batch, sent = kind.send_batch, 0

    def dying(store: rmqstore.Store, *given: object, **named: object) -> object:
        nonlocal sent
        if sent == chunks:
            raise RuntimeError("killed")
        sent += 1
        return send_batch(store, *given, **named)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "send_batch", dying)
        with pytest.raises(RuntimeError, match="killed"):
            yield


def ingested(job: Job) -> None:
    """Take in all shards in this process."""
    for shard in job.missing_shards():
        ingest_shard(job, shard)
    job.finish()


def numbers_of(path: Path, view: View, **wanted: object) -> list[int]:
    """Read the numbers of the pending timers or the messages, part by part."""
    asked = Wanted(view=view, **wanted)  # type: ignore[arg-type]
    return [int(body) for part in plan(str(path), asked, 50) for batch in read(part, asked) for body in batch.column("body").to_pylist()]


def timers_of(path: Path, **wanted: object) -> list[int]:
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
