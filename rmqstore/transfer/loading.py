"""``load``: dumps become a new store, or become part of one that exists."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from rmqstore import config
from rmqstore.clock import Clock
from rmqstore.contract import Durability, Flush, Operation
from rmqstore.directory import StoreDirectory, read_manifest, translated
from rmqstore.epochs import epoch_of, parted_epoch
from rmqstore.errors import StorePathError, TransferError, UnsupportedOperationError
from rmqstore.opening import Opened, checked_clock, checked_path
from rmqstore.plugins import get_plugins
from rmqstore.store import Store
from rmqstore.transfer.dumping import check_transferable
from rmqstore.transfer.dumps import Dump, open_dump
from rmqstore.transfer.given import give_settings
from rmqstore.transfer.progress import Progress, silent
from rmqstore.transfer.replacing import Replacement
from rmqstore.transfer.taking import Taking

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class LoadReport(msgspec.Struct, frozen=True):
    """What a load took in: rows by table; ``previous`` is where the store lies that was there before, if there was one."""

    path: Path
    tables: dict[str, int]
    stores: list[int]
    previous: Path | None


def load(
    dumps: Paths,
    path: str | os.PathLike[str],
    *,
    engine: str | None = None,
    timer_engine: str | None = None,
    pop_engine: str | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> LoadReport:
    """Load one dump or several into the store at ``path``, all or nothing.

    Without a store there, the first dump becomes one: same number, same offsets, seqs and epochs, so that all handles, receipts and marks
    stay good. Every further dump is merged into it, as all are into a store that exists. The store is built beside ``path`` and takes its
    place once its digest is right; run again after an interruption, it goes on.

    Args:
        engine, timer_engine, pop_engine: engines of a new store; by default those of the first dump.
        settings: settings of a new store, as for ``rmqstore.open``; ``precision_ms`` may differ from the dump's.
        progress: told after every chunk.

    Raises:
        TransferError: something would be lost or doubled; found before anything is written.
        CorruptStoreError, FormatVersionError: a dump is damaged, or too new; found before anything is written.
        StoreLockedError: the store at ``path`` is open.
        ConfigError: a setting is wrong or differs from what the store was made with.
        StoreFullError: no room; the store at ``path`` is as it was.
    """
    place = checked_path(path)
    found = _opened_dumps(dumps)
    names = {"engine": engine, "timer_engine": timer_engine, "pop_engine": pop_engine}
    given = {**{name: value for name, value in names.items() if value is not None}, **settings}
    try:
        return _Load(place, found, given, checked_clock(clock), progress or silent).run()
    except OSError as error:
        raise translated(error, place) from error


def load_into(dumps: Paths, store: Store, *, progress: Progress | None = None) -> LoadReport:
    """Merge dumps into an open store, whose other calls wait meanwhile. After a crash, run it again: until then a part is there.

    Raises:
        TransferError: something would be lost or doubled; found before anything is written.
        CorruptStoreError, FormatVersionError: a dump is damaged, or too new; found before anything is written.
    """
    found = _opened_dumps(dumps)
    check_transferable(store)
    with store.timers.held(), store.pops.held():
        takings = [Taking(store, each, progress or silent, takes_over=False) for each in found]
        resuming = any(taking.is_unfinished for taking in takings)
        for taking in takings:
            taking.check(resuming=resuming)
        counts = _summed([taking.run(resuming=resuming) for taking in takings])
    store.wake()
    return LoadReport(store.path, counts, [each.store_id for each in found], None)


def _opened_dumps(dumps: Paths) -> list[Dump]:
    paths = [dumps] if isinstance(dumps, str | os.PathLike) else list(dumps)
    if not paths:
        raise TransferError("there is no dump to load; name at least one")
    found = [open_dump(checked_path(each)) for each in paths]
    twice = [each for each, count in Counter(each.store_id for each in found).items() if count > 1]
    if twice:
        shown = " and ".join(str(each.path) for each in found if each.store_id == twice[0])
        raise TransferError(f"{shown} are dumps of the same store; loading both would double every message")
    return found


def _summed(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


class _Load:
    def __init__(self, place: Path, dumps: list[Dump], given: dict[str, Any], clock: Clock, progress: Progress) -> None:
        self._place = place
        self._dumps = dumps
        self._given = given
        self._clock = clock
        self._progress = progress
        self._replacement = Replacement(place, "loading")
        self._plan = {"dumps": [dump.dump_id for dump in dumps], "settings": {key: str(value) for key, value in sorted(given.items())}}

    def run(self) -> LoadReport:
        replacement = self._replacement
        if not self._place.parent.is_dir():
            raise StorePathError(f"{self._place.parent} does not exist; make it first")
        note = replacement.noted()
        finished = replacement.take_up()
        if note is not None and finished is not None:
            if note.get("plan") == self._plan:
                return self._report(note["tables"], finished.previous)
            note = None
        merges = self._place.is_dir() and read_manifest(self._place) is not None
        if not merges:
            check_settings(self._replacement.staging, new_store_settings(self._dumps[0].baked, self._given))
        with ExitStack() as stack:
            epoch = self._prepare(stack, note, merges=merges)
            target = stack.enter_context(self._target(merges=merges))
            takings = [
                Taking(target, dump, self._progress, takes_over=not merges and number == 0) for number, dump in enumerate(self._dumps)
            ]
            for taking in takings:
                taking.check(resuming=True)
            tables = _summed([taking.run(resuming=True) for taking in takings])
            target.close()
            replacement.ready(tables, epoch, free_name(self._place, "before-load"))
            return self._report(tables, replacement.publish().previous)

    def _report(self, tables: dict[str, int], previous: Path | None) -> LoadReport:
        return LoadReport(self._place, tables, [dump.store_id for dump in self._dumps], previous)

    def _prepare(self, stack: ExitStack, note: dict[str, Any] | None, *, merges: bool) -> int:
        """Make the beginning of the new store, unless an earlier run of the same did; returns the epoch of the store in the place."""
        same = note is not None and note.get("plan") == self._plan
        if not merges:
            self._check_place()
            if not same:
                self._replacement.claim()
                self._replacement.begin({"plan": self._plan, "epoch": 0})
                self._give_settings()
            return 0
        if same and note is not None:
            stack.enter_context(StoreDirectory(self._place))
            if note["epoch"] == epoch_of(self._place):
                return int(note["epoch"])
            # It was opened since: what lies in staging is not a copy of it any more.
            stack.pop_all().close()
        self._replacement.claim()
        try:
            epoch = self._copied()
        except BaseException:
            self._replacement.abandon()
            raise
        stack.enter_context(StoreDirectory(self._place))
        if epoch_of(self._place) != epoch:
            raise TransferError(f"store {self._place} was opened by somebody else meanwhile; close it and load again")
        self._replacement.begin({"plan": self._plan, "epoch": epoch})
        return epoch

    def _give_settings(self) -> None:
        """Let the new store have the settings file of the old one, when the place has none and all the old ones agree."""
        given = self._dumps[0].given
        if all(dump.given == given for dump in self._dumps):
            settings = new_store_settings(self._dumps[0].baked, self._given)
            engines = {str(settings[name]) for name in ("engine", "timer_engine", "pop_engine") if settings.get(name)}
            self._replacement.staging.mkdir(exist_ok=True)
            give_settings(self._replacement.staging, given, engines)

    def _copied(self) -> int:
        """Copy the store that is there, if it can take the dumps in; returns its epoch."""
        with Store(Opened(self._place, dict(self._given)), self._clock, services=False) as store:
            check_transferable(store)
            for dump in self._dumps:
                Taking(store, dump, silent, takes_over=False).check()
            store.snapshot(self._replacement.staging)
            return max(store.stats().timers.epoch, store.stats().pops.epoch)

    def _check_place(self) -> None:
        """Refuse a place that holds something else."""
        if self._place.exists():
            with StoreDirectory(self._place) as directory:
                directory.abandon()

    def _target(self, *, merges: bool) -> Store:
        if merges:
            return Store(Opened(self._replacement.staging, {}), self._clock, services=False)
        first = self._dumps[0]
        settings = new_store_settings(first.baked, self._given)
        target = Store(Opened(self._replacement.staging, settings, first.store_id, parted_epoch(first.epoch)), self._clock, services=False)
        try:
            check_transferable(target)
            check_keeps(target)
        except BaseException:
            target.close()
            self._replacement.abandon()
            raise
        return target


def new_store_settings(baked: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a store that takes over another: the baked ones of that, and over them those that were given."""
    settings = dict(given)
    if not any(name in settings for name in ("engine", "timer_engine", "pop_engine")):
        settings |= {"timer_engine": baked["timer_engine"], "pop_engine": baked["pop_engine"]}
    in_use = {settings.get(name) for name in ("engine", "timer_engine", "pop_engine")}
    for key, value in baked.items():
        if key not in ("timer_engine", "pop_engine") and ("." not in key or key.split(".")[0] in in_use):
            settings.setdefault(key.replace(".", "__"), value)
    return settings


def check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Refuse settings that no store at ``path`` could have, before anything is begun.

    Raises:
        ConfigError, EngineLookupError: naming the setting, or the engine.
    """
    found = get_plugins()
    wanted = config.load(path, settings, found.engine_settings())
    for name in {wanted.timer_engine, wanted.pop_engine} - {""}:
        found.load_engine(name)


def check_keeps(store: Store) -> None:
    """Refuse engines that forget everything when they are closed.

    Raises:
        UnsupportedOperationError: naming the engine.
    """
    for name in sorted({store.config.timer_engine, store.config.pop_engine}):
        if get_plugins().load_engine(name)[0].capabilities.durability_of(Operation.PUT, Flush.SYNC) is Durability.NONE:
            raise UnsupportedOperationError(f"engine {name!r} keeps nothing on disk; load into an open store of it with load_into")


def free_name(place: Path, what: str) -> str:
    """Return a name beside ``place`` that says what and when, and that nobody has."""
    name = f"{place.name}.{what}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    number = 2
    while place.with_name(name).exists():
        name = f"{name.partition('~')[0]}~{number}"
        number += 1
    return name
