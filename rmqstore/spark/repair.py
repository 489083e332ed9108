"""What is half done in a data set, and how it is finished or undone without Spark: what ``rmqstore doctor`` says and does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa

from rmqstore.contract.receipts import Receipt
from rmqstore.errors import ConfigError, CorruptStoreError, RmqstoreError, StorePathError, TransferError
from rmqstore.spark import migrating, resharding
from rmqstore.spark.dataset import STREAMS, Dataset, left_asides, place_of
from rmqstore.spark.ingest import ingest_here
from rmqstore.spark.jobs import Job, jobs_of


class Trouble(msgspec.Struct, frozen=True):
    """One thing that is not as it should be; ``is_problem`` when something is missing or stands in the way of further work."""

    check: str
    is_problem: bool
    text: str


class Consumer(msgspec.Struct, frozen=True):
    """A stream that consumes as a group, by its directory: the last round, 0 for none, and a receipt of it, None if it cannot be read."""

    path: Path
    round: int
    receipt: Receipt | None


def troubles(dataset: Dataset) -> Iterator[Trouble]:
    """Yield what is half done or missing; nothing when all is well."""
    for shard in dataset.shards:
        try:
            dataset.check_shard(shard)
        except (StorePathError, ConfigError) as error:
            yield Trouble("shards", True, str(error))
    doctor = f"`rmqstore doctor {dataset.path}"
    if dataset.manifest.migrating_to is not None:
        done = sum(engines == {dataset.manifest.migrating_to} for engines in dataset.present().values())
        yield Trouble(
            "migration",
            True,
            f"{done} of {dataset.manifest.shards} shards are of engine {dataset.manifest.migrating_to!r}; {doctor} --finish` moves the "
            f"others, --undo moves these back to {dataset.manifest.engine!r}",
        )
    if what := resharding.what_is_left(dataset):
        yield Trouble("resharding", True, what)
    for job in jobs_of(dataset):
        try:
            yield from _troubles_of(job, doctor)
        except CorruptStoreError as error:
            way_out = f"restore that file from a copy, or remove {job.path} when every shard is known to have what the job brought"
            yield Trouble("job", True, f"{error}; {way_out}")
    for left in left_asides(dataset.path):
        yield Trouble(
            "creation", False, f"{left} was left by a creation that did not come to its end, or runs; {doctor} --undo` removes it"
        )


def _troubles_of(job: Job, doctor: str) -> Iterator[Trouble]:
    record = job.record()
    if record is None:
        yield Trouble("job", False, f"{job.id} is being staged, or its driver is gone; nothing was sent; {doctor} --undo` removes it")
    elif not record.is_done:
        shards = [shard for shard in record.shards if not job.has_all(record, shard)]
        what = f"some are missing in shard {', '.join(map(str, shards))}" if shards else "every shard has its part"
        yield Trouble("job", True, f"{job.id} of {record.rows} messages has not come to its end: {what}; {doctor} --finish` sends them")
    elif job.staged.is_dir():  # a task ended later
        yield Trouble("job", False, f"{job.id} came to its end, and staged files are left of it; {doctor} --undo` removes them")


def consumers(dataset: Dataset) -> Iterator[Consumer]:
    """Yield the streams that popped from the data set; whether one still runs, and has acked its last round, its checkpoint alone tells."""
    for place in sorted(dataset.path.joinpath(STREAMS).glob("*/")):
        rounds = {int(path.stem): path for path in place.glob("*.arrow") if path.stem.isdecimal()}
        last = max(rounds, default=0)
        yield Consumer(place, last, _receipt_in(rounds[last]) if rounds else None)


def _receipt_in(path: Path) -> Receipt | None:
    """Return the first receipt of a round, which says whose it is; None when it cannot be read."""
    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
            return Receipt.parse(file.get_batch(0).column("receipt")[0].as_py())
    except (pa.ArrowException, ValueError, KeyError, OSError):
        return None


def opened(path: Path) -> Dataset:
    """Open the data set at ``path``; when a resharding was cut off behind the exchange, it ends first."""
    place = place_of(path)
    resharding.take_up(place)
    return Dataset.open(place)


def finish(dataset: Dataset) -> list[str]:
    """Bring what is half done to its end; returns one sentence a thing.

    Raises:
        TransferError: jobs cannot be finished; the others are.
        RmqstoreError: a migration cannot; a shard is open, or damaged.
    """
    done: list[str] = []
    target = dataset.manifest.migrating_to
    if target is not None:
        moved = migrating.migrate_all(dataset, target)
        done.append(f"every shard is of engine {target!r} now; {sum(bool(each.previous) for each in moved)} moved")
    if dataset.manifest.resharding_to is not None:
        resharded = resharding.reshard_all(dataset, dataset.manifest.resharding_to)
        dataset = Dataset.open(dataset.path)
        done.append(f"the data set has {dataset.manifest.shards} shards now; the old one is {resharded.previous}")
    failed: list[str] = []
    for job in jobs_of(dataset):
        try:
            if not job.is_unfinished():
                continue
            reports = ingest_here(job)
        except (RmqstoreError, OSError) as error:
            failed.append(f"job {job.id}: {error}")
        else:
            done.append(f"job {job.id}: {sum(each.rows - each.repeated for each in reports)} messages were sent that were missing")
    if failed:
        raise TransferError("; ".join([*done, *failed, f"`rmqstore doctor {dataset.path} --drop-job ID` gives a job up"]))
    return done


def drop_job(dataset: Dataset, job_id: str) -> list[str]:
    """Give a job up that cannot be finished; returns one sentence for the job and for each shard that has a part of it."""
    job = Job(dataset, job_id)
    record = job.record()
    found = job.drop()
    assert record is not None
    done = [f"job {job_id}: given up; what is sent stays, and the id cannot be used again"]
    for shard, progress in found.items():
        if progress is None:
            what = "nothing was sent"
        elif progress.is_done:
            what = "all were sent"
        else:
            what = "it had begun, so some may be sent; compare the shard with the source"
        done.append(f"shard {shard}: of {record.shards[shard]} messages of job {job_id} {what}")
    return done


def undo(dataset: Dataset) -> list[str]:
    """Take back what is half done, as far as nothing was sent by it, and no shard is open; returns one sentence a thing."""
    done: list[str] = []
    if dataset.manifest.migrating_to is not None:
        moved = migrating.undo_here(dataset)
        done.append(f"every shard is of engine {dataset.manifest.engine!r} again; {sum(bool(each.previous) for each in moved)} moved back")
    if resharding.what_is_left(dataset):
        resharding.undo_here(dataset)
        done.append(f"what was built of new shards is removed; the {dataset.manifest.shards} old ones are as they were")
    for job in jobs_of(dataset):
        try:
            done += _undone(job)
        except CorruptStoreError as error:
            done.append(f"job {job.id}: stays as it is: {error}")
    for left in left_asides(dataset.path):
        shutil.rmtree(left, ignore_errors=True)
        done.append(f"{left} is removed")
    return done


def _undone(job: Job) -> Iterator[str]:
    record = job.record()
    if record is None:
        job.discard()
        yield f"job {job.id}: what was staged is removed; nothing had been sent"
    elif record.is_done:
        if job.staged.is_dir():
            shutil.rmtree(job.staged, ignore_errors=True)
            yield f"job {job.id}: staged files that were left are removed; it had come to its end"
    elif job.withdraw():
        yield f"job {job.id}: withdrawn; nothing had been sent"
    else:
        yield f"job {job.id}: some of its messages are sent and stay, so it can only be finished, or given up (--drop-job)"
