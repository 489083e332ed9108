"""Phase 2 of a job: a shard takes in the chunks that were set aside for it. Needs no Spark; also the program of a process a shard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from rmqstore import config
from rmqstore.batch import MessageBatch
from rmqstore.engine.timers.ticks import MINUTE_MS, Times, ticks_and_dues
from rmqstore.errors import CorruptStoreError, FlowControlError, IllegalArgumentError, RmqstoreError, StoreError, TransferError
from rmqstore.message import MAX_TIME_MS
from rmqstore.plugins import get_plugins
from rmqstore.server import connect
from rmqstore.server.remote import RemoteStore
from rmqstore.spark.dataset import LOCK_WAIT_MS, Dataset
from rmqstore.spark.failures import Failure, encoded, reports
from rmqstore.spark.jobs import Job, JobRecord, ShardProgress
from rmqstore.spark.staging import StagedFile, joined, read_batches
from rmqstore.store import Store
from rmqstore.store.reader import ReadStore
from rmqstore.store.sending import calls_of

_Sent = TypeVar("_Sent")


class ShardReport(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What a shard took in: messages, and how many of them it had already."""

    shard: int
    rows: int
    repeated: int = 0


def check_room(job: Job, record: JobRecord) -> None:
    """Refuse to commit a job by which a tick would hold more timers than the ``congestion_limit`` of its shard (T9); names the tick.

    So what is refused behind the commit is so because of what others put meanwhile, and not once that is handed over.
    """
    settings, known = job.dataset.manifest.settings, get_plugins().engine_settings()
    for shard in record.shards:
        path = job.dataset.shard_path(shard)
        limit = config.load(path, settings, known).congestion_limit
        if not limit:
            continue
        with ReadStore(path, settings) as view:
            precision_ms = view.engine.timers.precision_ms
            ticks, own = _ticks_of(job, record, shard, precision_ms)
            # By the minute first, which a store knows without a look at its timers.
            there = _pending(view, (ticks - precision_ms + 1) // MINUTE_MS * MINUTE_MS, (ticks // MINUTE_MS + 1) * MINUTE_MS)
            ticks, own = ticks[own + there > limit], own[own + there > limit]
            counts = own + _pending(view, ticks - precision_ms + 1, ticks + 1)
        if not np.any(counts > limit):
            continue
        fullest = np.argmax(counts)
        tick = ticks[fullest]
        what = f"slot {tick} ms" if tick >= 0 else "the slot of messages without a deliver time, beside others that have one,"
        raise FlowControlError(
            f"{what} of shard {shard} would hold {counts[fullest]} timers, {own[fullest]} of them of job {job.id!r}, and "
            f"congestion_limit is {limit}; nothing was stored: spread the deliver times, or raise the limit"
        )


def _ticks_of(job: Job, record: JobRecord, shard: int, precision_ms: int) -> tuple[Times, Times]:
    """Return the ticks of the timers that a shard is to get, and how many each is to get.

    By the clock of the shard, messages without a deliver time are due when their chunk comes, so they have a tick below 0 a chunk.
    """
    ticks, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for number, (_, batch) in enumerate(chunks(job, record, shard)):
        delivers = batch.column("deliver_at_ms")
        if delivers.null_count < len(delivers):  # else it goes straight to its topics
            now_ms = -1 - number if record.now_ms is None else record.now_ms
            found, _ = ticks_and_dues(delivers.fill_null(-1).to_numpy(), now_ms, precision_ms)
            for kept, new in zip((ticks, counts), np.unique(found, return_counts=True), strict=True):
                kept.append(new)
    all_ticks, places = np.unique(np.concatenate(ticks), return_inverse=True)
    return all_ticks, np.bincount(places, np.concatenate(counts), len(all_ticks)).astype(np.int64)


def _pending(view: ReadStore, first_ms: Times, behind_ms: Times) -> Times:
    """Return how many timers are pending in each of some ranges of due times."""
    first_ms, behind_ms = (np.clip(each, 0, MAX_TIME_MS) for each in (first_ms, behind_ms))
    edges = np.unique(np.concatenate((first_ms, behind_ms)))
    sums = np.concatenate(([0], np.cumsum(view.pending(edges.tolist()).counts, dtype=np.int64)))
    found: Times = sums[np.searchsorted(edges, behind_ms)] - sums[np.searchsorted(edges, first_ms)]
    return found


def ingest_shard(job: Job, shard: int, *, wait_ms: int = LOCK_WAIT_MS) -> ShardReport:
    """Send the chunks of a committed job that shard ``shard`` does not have yet; waits while another task holds it.

    Raises:
        StoreLockedError: it is still held after ``wait_ms``.
        TransferError: the shard does not know any more which chunks it has, or the job was taken back meanwhile, or the data set has got
            another number of shards since ``job`` was made.
        FlowControlError: others have put timers into a tick since the commit, or sends are paused.
        CorruptStoreError: a staged file is damaged or missing.
    """
    record = job.committed()
    rows = record.shards.get(shard, 0)
    if not rows or job.has_all(record, shard):
        return ShardReport(shard=shard, rows=rows, repeated=rows)
    with job.dataset.open_shard(shard, now_ms=record.now_ms, wait_ms=wait_ms) as store:
        # A twin may have come to the end while this one waited; then the staged files may be gone.
        record = job.committed()
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
        except (IllegalArgumentError, FlowControlError, CorruptStoreError, TransferError) as error:
            # The store takes all of a chunk or nothing, so nothing of the shard is sent, and the job can still be taken back.
            if not has_sent:
                job.note_not_begun(shard)
            if isinstance(error, FlowControlError):
                told = (
                    f"{error}; job {job.id!r} can be finished later: when the pause of sends has ended; when the time of the slot has "
                    f"come, and a program that opens {job.dataset.shard_path(shard)} has handed over what is there; or with a higher limit"
                )
                error.args = (told,)
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


# ---------------------------------------------------------------- in processes of their own


ATTEMPTS: Final = 4
"""How often a shard is tried that fails, or whose process dies; as often as Spark tries a task."""

_PROGRAM: Final = "import sys; from rmqstore.spark.ingest import main; main(sys.argv[1:])"


def ingest_here(job: Job, *, wait_ms: int = LOCK_WAIT_MS) -> list[ShardReport]:
    """Take in every shard that misses something, each in a process of its own on this machine, one a core, and finish the job.

    A shard that fails, or whose process dies, is tried again, unless the next attempt would meet the same.

    Raises:
        RmqstoreError: what went wrong in the first shard that failed; the others are as far as they came.
    """
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        answers = list(pool.map(lambda shard: _in_a_process(job, shard, wait_ms), job.missing_shards()))
    found = reports(answers, ShardReport)
    job.finish()
    return found


def complete(
    job: Job, set_aside: Callable[[], Sequence[StagedFile]], now_ms: int | None, send: Callable[[list[int]], _Sent]
) -> tuple[_Sent, JobRecord]:
    """Commit what ``set_aside`` stages, unless the job was committed before; then let ``send`` take in the shards that miss some.

    Returns the answer of ``send``, and the record of the job. A job that cannot be committed leaves nothing.
    """
    files: Sequence[StagedFile] = ()
    is_new = job.record() is None
    try:
        if is_new:
            files = set_aside()
        with job.completing():
            if is_new:
                job.commit(files, now_ms, check_room)
            sent = send(job.missing_shards())
            record = job.finish()
    except BaseException:
        job.discard()  # unless it is committed
        raise
    # Also of what this run staged: another one of this id may have been faster with the commit.
    job.check_same(files if is_new else set_aside())
    return sent, record


def complete_here(job: Job, files: Sequence[StagedFile], now_ms: int | None, wait_ms: int) -> None:
    """As :func:`complete`, from this machine."""

    def send(shards: list[int]) -> None:
        record = job.committed()
        rows = record.shards
        for shard in shards:
            # A process costs more than a chunk; what fails here, or is locked, gets one all the same.
            if rows[shard] <= record.chunk_rows:
                with suppress(RmqstoreError, OSError):
                    ingest_shard(job, shard, wait_ms=0)
        ingest_here(job, wait_ms=wait_ms)

    complete(job, lambda: files, now_ms, send)


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
