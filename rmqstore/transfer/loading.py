"""``load``: a dump becomes a new store, or fills one that is empty; ``migrate``: a store changes its engine, or the width of its ticks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from rmqstore import config
from rmqstore.clock import Clock, SystemClock
from rmqstore.config import ENGINE_KEYS
from rmqstore.errors import ConfigError, StorePathError, TransferError, UnsupportedOperationError, system_error
from rmqstore.plugins import get_plugins
from rmqstore.settings import Source, Value
from rmqstore.store import Store
from rmqstore.store.directory import StoreDirectory, engines_in, read_manifest
from rmqstore.store.opening import OwnedEngines, checked_clock, checked_path
from rmqstore.store.reader import ReadStore
from rmqstore.store.snapshots import parted_epoch
from rmqstore.transfer.dumps import Dump, check_transferable, open_dump
from rmqstore.transfer.incoming import Incoming, IncomingStore, Progress, silent
from rmqstore.transfer.replacing import Replacement
from rmqstore.transfer.taking import Taking


class LoadReport(msgspec.Struct, frozen=True):
    """What a load took in: rows by table."""

    path: Path
    tables: dict[str, int]


def load(
    dump: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    engine: str | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> LoadReport:
    """Load a dump into the directory ``path``, which holds no store, or one that is empty; run again after an interruption, it goes on,
    and with another dump, or other settings, it begins anew.

    Without a store there, the dump becomes one: same number, same offsets, seqs and epochs, so that all handles, receipts and marks stay
    good. It is built beside ``path`` and takes its place once its digest is right. An empty store is filled in its place, as by
    :func:`load_into`.

    Args:
        engine: of a new store; by default, and without ``timer_engine`` and ``pop_engine``, those of the dump.
        settings: settings of a new store, as for ``rmqstore.open``; ``precision_ms`` may differ from the dump's.
        progress: told after every chunk.

    Raises:
        TransferError: the store at ``path`` is not empty, or something would be lost; found before anything is written. Or a store was made
            there meanwhile, which stays.
        CorruptStoreError, FormatVersionError: the dump is damaged, or too new; found before anything is written.
        StoreLockedError: the store at ``path`` is open.
        ConfigError: a setting is wrong or differs from what the store was made with.
        StoreFullError: no room.
    """
    place = checked_path(path)
    found = open_dump(checked_path(dump))
    given = {name: value for name, value in {"engine": engine, **settings}.items() if value is not None}
    try:
        return _load(place, found, given, checked_clock(clock), progress or silent)
    except OSError as error:
        raise system_error(error, place) from error


def load_into(dump: str | os.PathLike[str], store: Store, *, progress: Progress | None = None) -> LoadReport:
    """Load a dump into an open store that is empty; its other calls wait meanwhile.

    After a crash or an error, run it again with the same dump: until then a part is there, and every other call raises
    :class:`TransferError`. The store keeps its own number, and what the dumped one gave
    out is good in it.

    Raises:
        TransferError: the store is not empty, or something would be lost; found before anything is written.
        CorruptStoreError, FormatVersionError: the dump is damaged, or too new; found before anything is written.
    """
    return _filled(store, open_dump(checked_path(dump)), progress or silent)


def _filled(store: Store, dump: Dump, progress: Progress) -> LoadReport:
    check_transferable(store)
    # A tick that waits for the load looks again whether it may go on; one that waited for the sides only would hand a part over.
    with store._tick_lock, store.engine.timers.held(), store.engine.pops.held():
        tables = Taking(store, dump, progress).run()
    store.transfer.wake()
    return LoadReport(store.path, tables)


def _load(path: Path, dump: Dump, given: dict[str, Any], clock: Clock, progress: Progress) -> LoadReport:
    replacement = Replacement(path, "loading")
    place = replacement.path
    if not place.parent.is_dir():
        raise StorePathError(f"{place.parent} does not exist; make it first")
    settings = new_store_settings(dump.manifest.baked, given)
    note = replacement.noted() or {}
    plan = {"dump": dump.dump_id, "settings": {key: str(value) for key, value in sorted(given.items())}}
    is_planned = note.get("plan") == plan
    # What another load made, and did not come to put into the place, gives way.
    with replacement.alone():
        if (is_planned or replacement.is_in_place()) and replacement.take_up() is not None and is_planned:
            return LoadReport(place, note["tables"])
    is_planned &= replacement.noted() is not None  # what it had made may be gone
    if place.is_dir() and read_manifest(place) is not None:
        with Store(OwnedEngines(place, given), clock, services=False) as store:
            check_keeps(store)
            return _filled(store, dump, progress)
    check_settings(place, settings)
    if place.exists():
        # It may hold something else.
        with StoreDirectory(place) as directory:
            directory.abandon()
    if not is_planned:
        # The new store has the settings file of the old one, and in it what was given, unless the place has one. All of it is there before
        # the plan is noted, since a run that goes on with a plan gives no settings.
        engines = {str(settings[name]) for name in ENGINE_KEYS if name in settings}
        with replacement.alone():
            replacement.claim()
            replacement.begin({"plan": plan}, config.as_given(dump.manifest.given | _unstored(place, given), engines))
    tables = built(replacement, {"plan": plan}, settings, dump, clock, progress)
    with replacement.alone():
        _check_own(replacement, {"plan": plan})
        replacement.ready(tables, (0, 0), "before-load")
        published = replacement.take_up()
    if published is None:
        raise TransferError(
            f"a store was made at {place} while the dump was loaded, and it stays there; the loaded one is {replacement.staging}: move the "
            "other one away, and the same load puts it into its place"
        )
    return LoadReport(place, tables)


def _check_own(replacement: Replacement, note: Mapping[str, Any]) -> None:
    """Refuse to go on when another run has claimed the place; :class:`TransferError`."""
    if replacement.noted() != note:
        raise TransferError(f"another load into {replacement.path} began meanwhile, and took the place of this one; run one of them again")


def built(
    replacement: Replacement, note: Mapping[str, Any], settings: dict[str, Any], source: Incoming, clock: Clock, progress: Progress
) -> dict[str, int]:
    """Take a source into the new store of a replacement, close it and return the rows by table; what is refused leaves nothing behind.

    Args:
        note: what :meth:`Replacement.begin` noted of this run.
    """
    opened = OwnedEngines(replacement.staging, settings, source.store_id, parted_epoch(source.epoch))
    with Store(opened, clock, services=False) as target:
        taking = Taking(target, source, progress)
        try:
            _check_own(replacement, note)
            check_transferable(target)
            check_keeps(target)
            taking.check(resuming=True)
        except BaseException:
            target.close()
            with replacement.alone():
                replacement.abandon(is_own=True)
            raise
        return taking.run(resuming=True)


def new_store_settings(baked: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a store that takes over another: the baked ones of that, and over them those that were given."""
    settings = dict(given)
    if ENGINE_KEYS.isdisjoint(settings):
        settings |= {"timer_engine": baked["timer_engine"], "pop_engine": baked["pop_engine"]}
    in_use = {settings.get(name) for name in ENGINE_KEYS}
    for key, value in baked.items():
        if key not in ("timer_engine", "pop_engine") and ("." not in key or key.split(".")[0] in in_use):
            settings.setdefault(key.replace(".", "__"), value)
    return settings


def _unstored(path: Path, given: Mapping[str, Any]) -> dict[str, Value]:
    """Return those settings that are not stored with a store, by dotted key."""
    found = config.load(path, given, get_plugins().engine_settings(), environ={})
    return {
        key: found.values[key]
        for key, setting in found.known.items()
        if found.origins[key].source is Source.KEYWORD and key not in ENGINE_KEYS and not setting.baked
    }


def check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Refuse settings that no store at ``path`` could have, or that it could not be opened with there, before anything is begun.

    Raises:
        ConfigError, EngineLookupError: naming the setting, or the engine.
    """
    found = get_plugins()
    made = config.load(path, settings, found.engine_settings())
    for name in {made.timer_engine, made.pop_engine} - {""}:
        found.load_engine(name)
    wanted = config.load(path, {}, found.engine_settings())
    for key, value in made.baked().items():
        if wanted.is_given(key) and wanted.values[key] != value:
            raise ConfigError(
                f"{wanted.origins[key]} gives {key} = {wanted.values[key]!r} and the new store has {value!r}, so it could not be opened; "
                "take it out first, or ask for the same"
            )


def check_keeps(store: Store) -> None:
    """Refuse engines that forget everything when they are closed.

    Raises:
        UnsupportedOperationError: naming the engine.
    """
    for name, info in sorted(store.engine.infos.items()):
        if info.capabilities.keeps_nothing:
            raise UnsupportedOperationError(f"engine {name!r} keeps nothing on disk; load into an open store of it with load_into")


# ---------------------------------------------------------------- migrate


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
    at ``path``; run again, it goes on, and when it is to move elsewhere it begins anew. The old one is kept.

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


def _migrate(path: Path, engine: str, precision_ms: int | None, progress: Progress) -> MigrateReport:
    replacement = Replacement(path, "migrating")
    place = replacement.path
    note = replacement.noted() or {}
    wished = note.get("wish", {})
    is_wished = (wished.get("engine"), wished.get("precision_ms")) == (engine, precision_ms)
    # What an earlier run made for another wish takes no place but one that the old store has left.
    finished = replacement.take_up() if is_wished or replacement.is_in_place() or not place.exists() else None
    if finished is not None and _is_of(read_manifest(place) or {}, engine, precision_ms):
        return MigrateReport(place, finished.previous, note["tables"])
    if read_manifest(place) is None:
        raise StorePathError(f"there is no store at {place} to migrate")
    get_plugins().load_engine(engine)
    with StoreDirectory(place) as directory, ReadStore(place, {}) as view:
        manifest = directory.manifest or {}
        if _is_of(manifest, engine, precision_ms):
            raise TransferError(f"store {place} is of engine {engine!r} already")
        given = {"engine": engine} | ({} if precision_ms is None else {"precision_ms": precision_ms})
        settings = new_store_settings(manifest["baked"], given)
        check_settings(place, settings)
        check_transferable(view)
        source = IncomingStore(view)
        wish = {"dump": source.dump_id, "engine": engine, "precision_ms": precision_ms}
        if (replacement.noted() or {}).get("wish") != wish:  # what it had made may be gone, and its note with it
            replacement.claim()
            replacement.begin({"wish": wish})
        tables = built(replacement, {"wish": wish}, settings, source, SystemClock(), progress)
        old = "+".join(engines_in(manifest))
        replacement.ready(tables, (manifest["store_id"], source.epoch), f"before-{old}")
        return MigrateReport(place, replacement.publish().previous, tables)


def _is_of(manifest: Mapping[str, Any], engine: str, precision_ms: int | None) -> bool:
    """Say whether a store is of one engine, and of a precision if one is given."""
    baked = manifest["baked"]
    return baked["timer_engine"] == baked["pop_engine"] == engine and precision_ms in (None, baked.get("precision_ms"))
