"""The hand-over of a data set's shards, each in its own task: due timers become messages of their topics."""

from __future__ import annotations

import msgspec

from rmqstore.spark.dataset import LOCK_WAIT_MS, Dataset
from rmqstore.spark.jobs import unfinished_jobs


class ShardTick(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What the tick of one shard moved; as ``rmqstore.TickReport``."""

    shard: int
    handed_over: int
    retried: int = 0
    dead: int = 0
    parked: int = 0
    expired: int = 0


def check_no_job_waits(dataset: Dataset) -> None:
    """Refuse to move a data set while a job is half done: time that goes on makes its marks forgotten.

    Raises:
        TransferError: naming the job.
    """
    for job in unfinished_jobs(dataset):
        raise job.half_done()


def tick_shard(dataset: Dataset, shard: int, until_ms: int, *, wait_ms: int = LOCK_WAIT_MS) -> ShardTick:
    """Do a tick of one shard as of ``until_ms``; done again, it moves what the first one left.

    Raises:
        StoreLockedError: the shard is held for longer than ``wait_ms``.
        TransferError: a job has begun in it meanwhile and did not come to its end.
    """
    with dataset.open_shard(shard, now_ms=until_ms, wait_ms=wait_ms) as store:
        for job in unfinished_jobs(dataset):
            progress = job.progress(shard)
            if progress is not None and not progress.is_done:
                raise job.half_done()
        return ShardTick(shard=shard, **msgspec.structs.asdict(store.tick()))
