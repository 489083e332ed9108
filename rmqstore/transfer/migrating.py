"""``migrate``: a store changes its engine, or the width of its ticks, in its place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from rmqstore import config
from rmqstore.clock import SystemClock
from rmqstore.errors import ConfigError, StorePathError, TransferError, system_error
from rmqstore.plugins import get_plugins
from rmqstore.store.directory import StoreDirectory, read_manifest
from rmqstore.store.opening import checked_path
from rmqstore.store.reader import ReadStore
from rmqstore.transfer.dumping import check_transferable
from rmqstore.transfer.incoming import IncomingStore, Progress, silent
from rmqstore.transfer.loading import built, check_settings, free_name, new_store_settings
from rmqstore.transfer.replacing import Replacement


class MigrateReport(msgspec.Struct, frozen=True):
    """What a migration moved: rows by table; ``previous`` is where the old store is, which can be removed when all is well."""

    path: Path
    previous: Path | None
    tables: dict[str, int]


def migrate(
    path: str | os.PathLike[str], *, engine: str, precision_ms: int | None = None, progress: Progress | None = None
) -> MigrateReport:
    """Move the store at ``path`` to another engine, or to ticks of another width; handles, receipts and marks stay good.

    The new store is built beside it and compared by digest, then both change places. A crash at any point leaves the old or the new one
    at ``path``; run again, it goes on. The old one is kept.

    Raises:
        TransferError: there is nothing to change, or something would be lost.
        ConfigError: ``rmqstore.toml`` in the store asks for something else.
        StorePathError: there is no store.
        StoreLockedError: it is open.
        StoreFullError: no room; the store is as it was.
    """
    place = checked_path(path)
    try:
        return _migrate(place, engine, precision_ms, progress or silent)
    except OSError as error:
        raise system_error(error, place) from error


def _migrate(place: Path, engine: str, precision_ms: int | None, progress: Progress) -> MigrateReport:
    replacement = Replacement(place, "migrating")
    note = replacement.noted() or {}
    if (finished := replacement.take_up()) is not None:
        return MigrateReport(place, finished.previous, note["tables"])
    if read_manifest(place) is None:
        raise StorePathError(f"there is no store at {place} to migrate")
    get_plugins().load_engine(engine)
    with StoreDirectory(place) as directory, ReadStore(place, {}) as view:
        baked = (directory.manifest or {})["baked"]
        _check_wish(place, engine, precision_ms, baked)
        check_transferable(view)
        source = IncomingStore(view)
        settings = new_store_settings(baked, {"engine": engine} | ({} if precision_ms is None else {"precision_ms": precision_ms}))
        check_settings(replacement.staging, settings)
        wish = {"dump": source.dump_id, "engine": engine, "precision_ms": precision_ms}
        if note.get("wish") != wish:
            replacement.claim()
            replacement.begin({"wish": wish})
        tables = built(replacement, settings, source, SystemClock(), progress)
        old = "+".join(dict.fromkeys((baked["timer_engine"], baked["pop_engine"])))
        replacement.ready(tables, source.epoch, free_name(place, f"before-{old}"))
        return MigrateReport(place, replacement.publish().previous, tables)


def _check_wish(place: Path, engine: str, precision_ms: int | None, baked: dict[str, Any]) -> None:
    """Refuse a migration that changes nothing, or whose store could not be opened where it will be."""
    if baked["timer_engine"] == baked["pop_engine"] == engine and precision_ms in (None, baked.get("precision_ms")):
        raise TransferError(f"store {place} is of engine {engine!r} already")
    wanted = config.load(place, {}, get_plugins().engine_settings())
    for key, value in (("timer_engine", engine), ("pop_engine", engine), ("precision_ms", precision_ms)):
        if value is not None and wanted.is_given(key) and wanted.values[key] != value:
            raise ConfigError(
                f"{wanted.origins[key]} gives {key} = {wanted.values[key]!r}, so the migrated store could not be opened; take it out first"
            )
