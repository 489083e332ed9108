"""Cancels from a frame: each shard answers, in a task that owns it, for the handles or keys that it is asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.contract import CancelOutcome
from rmqstore.errors import IllegalArgumentError, IllegalArgumentTypeError
from rmqstore.spark.dataset import LOCK_WAIT_MS, Dataset
from rmqstore.spark.running import as_typed
from rmqstore.store import Store
from rmqstore.when import time_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RANKS: Final = (CancelOutcome.CANCELLED, CancelOutcome.ALREADY_DELIVERED, CancelOutcome.UNKNOWN)
"""Of several answers to one question the first of these counts."""

_UNKNOWN: Final = len(_RANKS) - 1


def cancel(
    df: DataFrame,
    path: str | os.PathLike[str],
    *,
    now: datetime | None = None,
    now_ms: int | None = None,
    lock_wait_ms: int = LOCK_WAIT_MS,
) -> DataFrame:
    """Cancel timers of the data set ``path``, and return the rows of ``df`` with their answers in a column ``outcome``.

    The timers are cancelled when the call returns; the frame holds rows and answers, so using it cancels nothing again. It is a local
    checkpoint, so an executor that is lost meanwhile takes it away.

    CANCELLED: the timer will never be delivered. ALREADY_DELIVERED: too late. UNKNOWN: there is no such timer, or the row has a null; also
    by a key whose timers are not pending any more, as in a task that is tried again behind its cancels.

    Args:
        df: a column ``handle``, else columns ``topic`` and ``key``, of type string; others are kept. A column ``shard`` spares a search:
            without it, every shard is asked for every row.
        now: the time at which the shards do it, an aware ``datetime``; by default that of the machine.
        now_ms: the same in ms since the epoch.
        lock_wait_ms: how long a task waits for a shard that another task holds.

    Raises:
        IllegalArgumentError: ``df`` has not these columns, or others whose names are of no use; or a topic or key is none, and shards
            that came first have done their part.
        StoreLockedError: a shard is open in another process that does not serve it, or ``now`` is given and it is open at all.
    """
    from pyspark.sql import functions as sf

    names = _asked_by(df)
    at_ms = time_ms("now", now, now_ms)
    dataset = Dataset.open(path)
    dataset.check_ready(is_served_too=at_ms is None)
    # Timers that were read are not there any more when the frame is computed again.
    given = df.localCheckpoint()
    every = sf.sequence(sf.lit(0), sf.lit(dataset.manifest.shards - 1))
    shards = every
    if "shard" in df.columns:
        one = sf.col("shard").cast("int")
        shards = sf.when(one.between(0, dataset.manifest.shards - 1), sf.array(one)).otherwise(every)
    asked = given.select(*names, sf.explode(shards).alias("shard")).dropna().distinct()
    answering = asked.repartitionById(dataset.manifest.shards, "shard").mapInArrow(
        _answering(dataset, names, at_ms, lock_wait_ms), ", ".join([*(f"{name} string" for name in names), "_rank int"])
    )
    answers = as_typed(answering.localCheckpoint).groupBy(*names).agg(sf.min("_rank").alias("_rank"))
    texts = sf.array(*(sf.lit(each.name) for each in _RANKS))
    outcome = sf.get(texts, sf.coalesce(sf.col("_rank"), sf.lit(_UNKNOWN)))
    return given.join(answers, names, "left").select(*(given[name] for name in df.columns), outcome.alias("outcome"))


def _asked_by(df: DataFrame) -> list[str]:
    """Return the columns that say which timers are meant."""
    names = ["handle"] if "handle" in df.columns else ["topic", "key"]
    kinds = dict(df.dtypes)
    for name in names:
        if name not in kinds:
            raise IllegalArgumentError(f"column {name!r} is missing; a cancel needs handle, or topic and key, such as keys[0] AS key")
        if kinds[name] != "string":
            raise IllegalArgumentTypeError(f"column {name!r} must be string, not {kinds[name]}")
    for name in df.columns:
        # Columns are named once more behind the cancels.
        if df.columns.count(name) > 1 or "." in name or "`" in name:
            raise IllegalArgumentError(f"column {name!r} has a dot or a backtick in its name, or is there twice; give it a name of its own")
    if "outcome" in kinds:
        raise IllegalArgumentError("column 'outcome' is there already, and a cancel gives one; drop it, or give it another name")
    return names


def _answering(
    dataset: Dataset, names: list[str], now_ms: int | None, wait_ms: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with ExitStack() as stack:
            store_of = cache(lambda shard: stack.enter_context(dataset.open_shard(shard, now_ms=now_ms, wait_ms=wait_ms)))
            for batch in batches:
                for shard in pc.unique(batch.column("shard")).to_pylist():
                    rows = batch.filter(pc.equal(batch.column("shard"), shard)).select(names)
                    yield from _answered(store_of(shard), rows)

    return run


def _answered(store: Store, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cancel in one shard; yields the rows with the rank of their answer."""
    if rows.schema.names == ["handle"]:
        yield _ranked(rows, [[outcome] for outcome in store.cancel(rows.column("handle").to_pylist())])
        return
    for topic in pc.unique(rows.column("topic")).to_pylist():
        own = rows.filter(pc.equal(rows.column("topic"), topic))
        yield _ranked(own, store.cancel_keys(topic, own.column("key").to_pylist()))


def _ranked(rows: pa.RecordBatch, outcomes: list[list[CancelOutcome]]) -> pa.RecordBatch:
    ranks = [min(map(_RANKS.index, each), default=_UNKNOWN) for each in outcomes]
    return pa.RecordBatch.from_arrays([*rows.columns, pa.array(ranks, pa.int32())], names=[*rows.schema.names, "_rank"])
