"""``migrate``: a store changes its engine, or the width of its ticks, in its place."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from rmqstore import config
from rmqstore.clock import SystemClock
from rmqstore.errors import ConfigError, StorePathError, TransferError, system_error
from rmqstore.plugins import get_plugins
from rmqstore.store import Store
from rmqstore.store.directory import StoreDirectory, read_manifest
from rmqstore.store.opening import OwnedEngines, checked_path
from rmqstore.store.reader import ReadStore
from rmqstore.store.snapshots import parted_epoch
from rmqstore.transfer.dumping import check_transferable
from rmqstore.transfer.incoming import IncomingStore
from rmqstore.transfer.loading import built, check_settings, free_name, new_store_settings
from rmqstore.transfer.progress import Progress, silent
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
        return _Migration(place, engine, precision_ms, progress or silent).run()
    except OSError as error:
        raise system_error(error, place) from error


class _Migration:
    def __init__(self, place: Path, engine: str, precision_ms: int | None, progress: Progress) -> None:
        self._place = place
        self._engine = engine
        self._precision_ms = precision_ms
        self._progress = progress
        self._replacement = Replacement(place, "migrating")

    def run(self) -> MigrateReport:
        replacement = self._replacement
        note = replacement.noted()
        if (finished := replacement.take_up()) is not None:
            return MigrateReport(self._place, finished.previous, (note or {})["tables"])
        if read_manifest(self._place) is None:
            raise StorePathError(f"there is no store at {self._place} to migrate")
        get_plugins().load_engine(self._engine)
        with ExitStack() as stack:
            directory = stack.enter_context(StoreDirectory(self._place))
            baked = (directory.manifest or {})["baked"]
            self._check_wish(baked)
            view = stack.enter_context(ReadStore(self._place, {}))
            check_transferable(view)
            source = IncomingStore(view)
            given: dict[str, Any] = {"engine": self._engine}
            if self._precision_ms is not None:
                given["precision_ms"] = self._precision_ms
            settings = new_store_settings(baked, given)
            check_settings(replacement.staging, settings)
            wish = {"dump": source.dump_id, "engine": self._engine, "precision_ms": self._precision_ms}
            if note is None or note.get("wish") != wish:
                replacement.claim()
                replacement.begin({"wish": wish})
            opened = OwnedEngines(replacement.staging, settings, source.store_id, parted_epoch(source.epoch))
            tables = built(replacement, Store(opened, SystemClock(), services=False), source, self._progress)
            old = (
                baked["timer_engine"] if baked["timer_engine"] == baked["pop_engine"] else f"{baked['timer_engine']}+{baked['pop_engine']}"
            )
            replacement.ready(tables, source.epoch, free_name(self._place, f"before-{old}"))
            return MigrateReport(self._place, replacement.publish().previous, tables)

    def _check_wish(self, baked: dict[str, Any]) -> None:
        same_engine = baked["timer_engine"] == baked["pop_engine"] == self._engine
        if same_engine and self._precision_ms in (None, baked.get("precision_ms")):
            raise TransferError(f"store {self._place} is of engine {self._engine!r} already")
        wanted = config.load(self._place, {}, get_plugins().engine_settings())
        for key, value in (("timer_engine", self._engine), ("pop_engine", self._engine), ("precision_ms", self._precision_ms)):
            if value is not None and wanted.is_given(key) and wanted.values[key] != value:
                raise ConfigError(
                    f"{wanted.origins[key]} gives {key} = {wanted.values[key]!r}, so the migrated store could not be opened; "
                    "take it out first"
                )
