"""Phase 2 of a job: a shard takes in the chunks that were set aside for it. Needs no Spark; also the program of a process a shard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Final

import msgspec
import pyarrow as pa

from rmqstore.batch import MessageBatch
from rmqstore.errors import (
    CorruptStoreError,
    FlowControlError,
    IllegalArgumentError,
    RmqstoreError,
    StoreError,
    StorePathError,
    TransferError,
)
from rmqstore.server import connect
from rmqstore.server.remote import RemoteStore
from rmqstore.spark.dataset import LOCK_WAIT_MS, Dataset
from rmqstore.spark.failures import Failure, encoded, reports
from rmqstore.spark.jobs import Job, JobRecord, ShardProgress
from rmqstore.spark.staging import StagedFile, joined, read_batches
from rmqstore.store import Store
from rmqstore.store.sending import calls_of


class ShardReport(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What a shard took in: messages, and how many of them it had already."""

    shard: int
    rows: int
    repeated: int = 0


def ingest_shard(job: Job, shard: int, *, wait_ms: int = LOCK_WAIT_MS) -> ShardReport:
    """Send the chunks of a committed job that shard ``shard`` does not have yet; waits while another task holds it.

    Raises:
        StoreLockedError: it is still held after ``wait_ms``.
        TransferError: the shard does not know any more which chunks it has, or the job was taken back meanwhile, or the data set has got
            another number of shards since ``job`` was made.
        CorruptStoreError: a staged file is damaged or missing.
    """
    record = _record(job)
    rows = record.rows_of(shard)
    if not rows or job.has_all(record, shard):
        return ShardReport(shard=shard, rows=rows, repeated=rows)
    with job.dataset.open_shard(shard, now_ms=record.now_ms, wait_ms=wait_ms) as store:
        # A twin may have come to the end while this one waited; then the staged files may be gone.
        record = _record(job)
        if job.has_all(record, shard):
            return ShardReport(shard=shard, rows=rows, repeated=rows)
        has_sent = job.progress(shard) is not None
        progress = _begun(job, shard, store)
        repeated = 0
        try:
            for mark, batch in chunks(job, record, shard):
                sent = store.send_batch(MessageBatch(columns=batch), marks=[mark])
                has_sent = True
                repeated += len(batch) if sent.repeated else 0
        except (IllegalArgumentError, FlowControlError, CorruptStoreError, TransferError):
            # The store takes all of a chunk or nothing, so nothing of the shard is sent, and the job can still be taken back.
            if not has_sent:
                job.note_not_begun(shard)
            raise
        if isinstance(store, RemoteStore):
            progress = _confirmed(job, record, shard)
        else:
            store.flush()
        job.note_progress(shard, msgspec.structs.replace(progress, is_done=True))
    return ShardReport(shard=shard, rows=rows, repeated=repeated)


def _confirmed(job: Job, record: JobRecord, shard: int) -> ShardProgress:
    """Send the chunks again behind a flush until the store has them all already; ``rmqstore.spark.jobs`` says why. Returns the progress.

    Raises:
        StoreUnavailableError: a connection broke; another attempt helps.
    """
    with connect(job.dataset.shard_path(shard), patience=timedelta(0)) as store:
        while True:
            store.flush()
            progress = _begun(job, shard, store)
            is_kept = True
            for mark, batch in chunks(job, record, shard):
                is_kept &= store.send_batch(MessageBatch(columns=batch), marks=[mark]).repeated
            if is_kept:
                return progress


def _begun(job: Job, shard: int, store: Store) -> ShardProgress:
    """Note that a shard begins, or see that it still knows which chunks it has; no other task is at work in it."""
    progress, prefix = job.progress(shard), _mark_prefix(job)
    if progress is not None and not store.transfer.has_witness(prefix, progress.begun_ms):
        raise TransferError(
            f"shard {shard} of {job.dataset.path} began with job {job.id!r} and did not finish, and by now it has forgotten its "
            "marks (they are kept for mark_memory_ms of its owner) or was set back to an earlier state, so what is missing cannot be told "
            "any more: compare the shard with the source"
        )
    begun_ms = store.transfer.plant_witness(prefix)
    if progress is None or begun_ms < progress.begun_ms:
        # A clock that was set back gives marks that are older than the witness, so they need another one.
        progress = ShardProgress(begun_ms=begun_ms)
        job.note_begun(shard, progress)
    return progress


def _mark_prefix(job: Job) -> bytes:
    """Return what the marks of a job's chunks, and of its witness, begin with."""
    return f"spark/{job.dataset.manifest.id}/{job.id}/".encode()


def chunks(job: Job, record: JobRecord, shard: int) -> Iterator[tuple[bytes, pa.RecordBatch]]:
    """Yield mark and rows of every chunk of a shard, the same ones in the same order each time."""
    mark = b""
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for file in record.files:
        for number, batch in read_batches(job.staged / file.name, file, shard):
            batch_bytes = file.batches[number].size_bytes
            if held and (rows + len(batch) > record.chunk_rows or size_bytes + batch_bytes > record.chunk_bytes):
                yield from calls_of(joined(held), mark)
                held, rows, size_bytes = [], 0, 0
            if not held:
                mark = _mark_prefix(job) + f"{file.name}/{number}".encode()
            held.append(batch)
            rows += len(batch)
            size_bytes += batch_bytes
    if held:
        yield from calls_of(joined(held), mark)


def _record(job: Job) -> JobRecord:
    record = job.record()
    if record is None:
        raise StorePathError(f"there is no job {job.id!r} in {job.dataset.path} that was committed")
    job.check_not_dropped(record)
    return record


# ---------------------------------------------------------------- in processes of their own


ATTEMPTS: Final = 4
"""How often a shard is tried that fails, or whose process dies; as often as Spark tries a task."""

_PROGRAM: Final = "import sys; from rmqstore.spark.ingest import main; main(sys.argv[1:])"


def ingest_here(job: Job, *, processes: int | None = None, wait_ms: int = LOCK_WAIT_MS) -> list[ShardReport]:
    """Take in every shard that misses something, each in a process of its own on this machine, and finish the job.

    A shard that fails, or whose process dies, is tried again, unless the next attempt would meet the same.

    Args:
        processes: at a time; by default one a core.

    Raises:
        RmqstoreError: what went wrong in the first shard that failed; the others are as far as they came.
    """
    with ThreadPoolExecutor(processes or len(os.sched_getaffinity(0))) as pool:
        answers = list(pool.map(lambda shard: _in_a_process(job, shard, wait_ms), job.missing_shards()))
    found = reports(answers, ShardReport)
    job.finish()
    return found


def complete_here(job: Job, files: Sequence[StagedFile], now_ms: int | None, wait_ms: int) -> None:
    """Commit a job of which these files were staged, unless it was before, and send what is missing from here."""
    with job.completing():
        record = job.commit(files, now_ms)
        for shard in job.missing_shards():
            # A process costs more than a chunk; what fails here, or is locked, gets one all the same.
            if record.rows_of(shard) <= record.chunk_rows:
                with suppress(RmqstoreError, OSError):
                    ingest_shard(job, shard, wait_ms=0)
        ingest_here(job, wait_ms=wait_ms)
    job.check_same(files)


def _in_a_process(job: Job, shard: int, wait_ms: int) -> str:
    """Let a process take a shard in, and another one as long as that may help; returns the answer of the last."""
    command = [sys.executable, "-c", _PROGRAM, str(job.dataset.path), job.id, str(shard), str(wait_ms)]
    # What this process can import, the child can.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for attempt in range(1, ATTEMPTS + 1):
        child = subprocess.run(command, capture_output=True, env=environment, check=False)
        answer = _answer(shard, child)
        found = msgspec.json.decode(answer, type=ShardReport | Failure)
        # Ctrl-C reaches the processes as well.
        if attempt == ATTEMPTS or child.returncode == -signal.SIGINT or isinstance(found, ShardReport) or found.is_lasting:
            break
    return answer


def _answer(shard: int, child: subprocess.CompletedProcess[bytes]) -> str:
    code = child.returncode
    if not code:
        return child.stdout.decode()
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
    said = child.stderr.decode(errors="replace")[-2000:].strip()
    return encoded(Failure.of(StoreError(f"the process that takes shard {shard} in {how}{said and f': {said}'}")))


def main(arguments: list[str]) -> None:
    """Take one shard in and print the answer."""
    path, job_id, shard, wait_ms = arguments
    try:
        answer = encoded(ingest_shard(Job(Dataset.open(path), job_id), int(shard), wait_ms=int(wait_ms)))
    except (RmqstoreError, OSError) as error:
        answer = encoded(Failure.of(error))
    sys.stdout.write(answer)
