"""All shards of a data set on their way to another engine: each in its place, by ``rmqstore.transfer.migrate``, which compares digests.

The manifest says that a migration is under way before the first shard moves, and names the new engine when the last one has. In between a
crash leaves shards of both engines; the same call, or ``rmqstore doctor --finish``, goes on, and ``--undo`` moves back what had moved.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from rmqstore.config import ENGINE_KEYS
from rmqstore.errors import ConfigError, TransferError, UnsupportedOperationError
from rmqstore.plugins import get_plugins
from rmqstore.spark.dataset import Dataset, Manifest, RunShards
from rmqstore.spark.jobs import at_rest, unchanged
from rmqstore.transfer import migrate
from rmqstore.transfer.replacing import Replacement

_WHAT: Final = "migrating"
"""What is under way in the names of what ``rmqstore.transfer.migrate`` builds beside a shard."""


class ShardMigration(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What moved with one shard: rows by table; ``previous`` is where the old store is, empty when the shard had moved before."""

    shard: int
    tables: dict[str, int] = {}
    previous: str = ""


def begin(dataset: Dataset, engine: str) -> None:
    """Note that the data set moves to ``engine``; the first step, and again the first of a call that goes on.

    Raises:
        TransferError: it is of that engine, a job is half done, or another migration is.
        StoreLockedError, StorePathError, ConfigError: as :meth:`Dataset.check_ready`.
        EngineLookupError: the engine cannot be used.
    """
    info, _ = get_plugins().load_engine(engine)
    if info.capabilities.keeps_nothing:
        raise UnsupportedOperationError(f"engine {engine!r} keeps nothing when it is closed; choose a durable one")
    manifest = dataset.manifest
    if manifest.migrating_to == engine:
        return
    if manifest.migrating_to is not None:
        raise TransferError(
            f"data set {dataset.path} is on its way to engine {manifest.migrating_to!r}; finish that first, or undo it: "
            f"`rmqstore doctor {dataset.path} --undo`"
        )
    if manifest.engine == engine:
        raise TransferError(f"data set {dataset.path} is of engine {engine!r} already")
    check_settings(manifest, engine)
    dataset.check_ready(is_served_too=False)
    with at_rest(dataset):
        dataset.rewrite(msgspec.structs.replace(manifest, migrating_to=engine))


def check_settings(manifest: Manifest, engine: str) -> None:
    """Refuse an engine that does not know the settings of a data set."""
    foreign = [name for name in manifest.settings if name.partition("__")[0] == manifest.engine != engine]
    if foreign:
        raise ConfigError(f"the data set has the setting {foreign[0]} of engine {manifest.engine!r}, which {engine!r} does not know")


def migrate_shard(dataset: Dataset, engine: str, shard: int) -> ShardMigration:
    """Move one shard to ``engine``; a shard that is there already stays, and one that cannot be moved is as it was."""
    path = dataset.shard_path(shard)
    replacement = Replacement(path, _WHAT)
    if not path.exists():  # between two renames
        replacement.take_up()
    if dataset.engines(shard) == {engine} and not replacement.is_in_place():
        if replacement.noted() is not None:  # of a way back that was cut off
            with dataset.locked([shard]):
                replacement.abandon()
        return ShardMigration(shard=shard)
    report = migrate(path, engine=engine)
    return ShardMigration(shard=shard, tables=report.tables, previous="" if report.previous is None else str(report.previous))


def end(dataset: Dataset, engine: str) -> None:
    """Note that every shard is of ``engine``, when it is."""
    for shard in dataset.shards:
        found = dataset.engines(shard)
        if found != {engine}:
            raise ConfigError(f"shard {shard} of data set {dataset.path} is of engine {' and '.join(sorted(found))}, not {engine!r}")
    with unchanged(dataset):
        settings = {name: value for name, value in dataset.manifest.settings.items() if name not in ENGINE_KEYS}  # of the old engine
        dataset.rewrite(msgspec.structs.replace(dataset.manifest, engine=engine, settings=settings, migrating_to=None))


def migrate_all(dataset: Dataset, engine: str, run: RunShards[ShardMigration] = map) -> tuple[ShardMigration, ...]:
    """Move every shard, as :func:`rmqstore.spark.migrate`; ``run`` calls a function with each, by default here, without Spark."""
    begin(dataset, engine)
    moved = tuple(run(partial(migrate_shard, dataset, engine), dataset.shards))
    end(dataset, engine)
    return moved


def undo_here(dataset: Dataset) -> list[ShardMigration]:
    """Move the shards that had moved back to the engine of the manifest; a migration that is under way ends."""
    engine = dataset.manifest.engine
    moved: list[ShardMigration] = []
    for shard in dataset.shards:
        replacement = Replacement(dataset.shard_path(shard), _WHAT)
        # One that was interrupted on its way is of the new engine when that was complete, else of the old one.
        if replacement.noted() is not None and replacement.take_up() is None:
            dataset.engines(shard)  # else what was built of a shard that is lost is all that there is of it
            with dataset.locked([shard]):
                replacement.abandon()
        moved.append(migrate_shard(dataset, engine, shard))
    end(dataset, engine)
    return moved
