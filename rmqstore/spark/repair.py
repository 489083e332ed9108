"""What is half done in a data set, and how it is finished or undone without Spark: what ``rmqstore doctor`` says and does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import msgspec

from rmqstore.spark import migrating
from rmqstore.spark.dataset import Dataset, left_asides
from rmqstore.spark.ingest import ingest_here
from rmqstore.spark.jobs import jobs_of, unfinished_jobs


class Trouble(msgspec.Struct, frozen=True):
    """One thing that is not as it should be; ``is_problem`` when something is missing or stands in the way of further work."""

    check: str
    is_problem: bool
    text: str


def troubles(dataset: Dataset) -> Iterator[Trouble]:
    """Yield what is half done or missing; nothing when all is well."""
    yield from _shards(dataset)
    doctor = f"`rmqstore doctor {dataset.path}"
    if dataset.manifest.migrating_to is not None:
        done = sum(dataset.engines_of(shard) == {dataset.manifest.migrating_to} for shard in dataset.shards)
        yield Trouble(
            "migration",
            True,
            f"{done} of {dataset.manifest.shards} shards are of engine {dataset.manifest.migrating_to!r}; {doctor} --finish` moves the "
            f"others, --undo moves these back to {dataset.manifest.engine!r}",
        )
    for job in jobs_of(dataset):
        record = job.record()
        if record is None:
            yield Trouble("job", False, f"{job.id} is being staged, or its driver is gone; nothing was sent; {doctor} --undo` removes it")
        elif not record.is_done:
            shards = job.missing_shards()
            what = f"some are missing in shard {', '.join(map(str, shards))}" if shards else "every shard has its part"
            yield Trouble("job", True, f"{job.id} of {record.rows} messages has not come to its end: {what}; {doctor} --finish` sends them")
    for left in left_asides(dataset.path):
        yield Trouble(
            "creation", False, f"{left} was left by a creation that did not come to its end, or runs; {doctor} --undo` removes it"
        )


def _shards(dataset: Dataset) -> Iterator[Trouble]:
    known = {dataset.manifest.engine, dataset.manifest.migrating_to}
    for shard in dataset.shards:
        engines = dataset.engines_of(shard)
        path = dataset.shard_path(shard)
        if engines is None:
            yield Trouble("shards", True, f"{path} is missing; restore it from a snapshot of that shard")
        elif not engines <= known:
            yield Trouble(
                "shards",
                True,
                f"{path} is of engine {' and '.join(sorted(engines))}, the data set of {dataset.manifest.engine}; "
                f"`rmqstore migrate {path} --engine {dataset.manifest.engine}` makes it alike",
            )


def finish(dataset: Dataset) -> list[str]:
    """Bring what is half done to its end; returns one sentence a thing.

    Raises:
        RmqstoreError: it cannot be done; a shard is open, or damaged.
    """
    done: list[str] = []
    target = dataset.manifest.migrating_to
    if target is not None:
        moved = migrating.migrate_here(dataset, target)
        done.append(f"every shard is of engine {target!r} now; {sum(bool(each.previous) for each in moved)} moved")
    for job in unfinished_jobs(dataset):
        reports = ingest_here(job)
        done.append(f"job {job.id}: {sum(each.rows - each.repeated for each in reports)} messages were sent that were missing")
    return done


def undo(dataset: Dataset) -> list[str]:
    """Take back what is half done, as far as nothing was sent by it; returns one sentence a thing.

    Raises:
        RmqstoreError: it cannot be done; a shard is open, or damaged.
    """
    done: list[str] = []
    if dataset.manifest.migrating_to is not None:
        moved = migrating.undo_here(dataset)
        done.append(f"every shard is of engine {dataset.manifest.engine!r} again; {sum(bool(each.previous) for each in moved)} moved back")
    for job in jobs_of(dataset):
        if job.record() is None:
            job.discard()
            done.append(f"job {job.id}: what was staged is removed; nothing had been sent")
    for job in unfinished_jobs(dataset):
        if job.withdraw():
            done.append(f"job {job.id}: withdrawn; nothing had been sent")
        else:
            done.append(f"job {job.id}: some of its messages are sent and stay, so it can only be finished")
    for left in left_asides(dataset.path):
        shutil.rmtree(left, ignore_errors=True)
        done.append(f"{left} is removed")
    return done
