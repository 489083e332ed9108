"""Copies of a whole data set, side by side in a directory of the same layout: snapshots and dumps, and the data sets made of them.

A copy has no half done job, and none is committed while it is made, since that waits for the lock of jobs. So of each job that a copy knows
as finished it has every message, and of any other none. Nor does the data set get other shards meanwhile, as a resharding takes that lock
when it begins, and when its shards take their place; in between nothing is copied. What programs send to a shard meanwhile is in the copy
or not, shard by shard. Needs no Spark.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rmqstore.errors import StorePathError, TransferError
from rmqstore.spark.dataset import MANIFEST, Dataset, Manifest, place_of, write_json
from rmqstore.spark.jobs import at_rest, copy_finished
from rmqstore.store.directory import made_aside


def copied(
    source: Dataset, path: str | os.PathLike[str], doing: str, copy_shard: Callable[[Path, Path], object], manifest: Manifest | None = None
) -> Path:
    """Copy a data set, or a copy of one, to ``path``, which is there whole in the end, or not at all; returns its absolute path.

    Args:
        doing: what a directory is called in which the copy is being made.
        copy_shard: makes the second path, which is not there yet, of the shard that is the first.
        manifest: of the copy; by default that of the source.
    """
    target = place_of(path)
    if target.exists():
        raise StorePathError(f"{target} exists already; a copy of a data set goes into a new directory")
    if not target.parent.is_dir():
        raise StorePathError(f"{target.parent} does not exist; make it first")
    if Path(os.path.realpath(target)).is_relative_to(os.path.realpath(source.path)):
        raise StorePathError(f"{target} lies in the data set itself; a copy goes elsewhere")
    with at_rest(source), made_aside(target, doing) as aside:
        if (shards := source.manifest.resharding_to) is not None:
            raise TransferError(
                f"data set {source.path} is on its way to {shards} shards, which may take their place while it is copied; let that come to "
                f"its end, or `rmqstore doctor {source.path} --finish` (or --undo), then copy it"
            )
        made = Dataset(aside, manifest or source.manifest)
        for shard in source.shards:
            copy_shard(source.shard_path(shard), made.shard_path(shard))
        copy_finished(source, made)
        write_json(aside / MANIFEST, made.manifest)
    return target
