"""A data set: one directory of stores, its *shards*, among which messages are spread by name.

::

    rmqstore-dataset.json    the manifest: format, id, number of shards, engine, routing, settings; a move that is under way
    shard-00000/ …           the shards, each a store like any other; its rmqstore.toml has the settings, too
    jobs/                    what was written by jobs, and is being written (rmqstore.spark.jobs)
    streams/                 what streams popped that consume as a group (rmqstore.spark.popping)

It is made beside its place, shards and all, and renamed: so there is a whole data set or none, and of two that make it one wins.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from rmqstore import config
from rmqstore.clock import ManualClock
from rmqstore.errors import (
    ConfigError,
    CorruptStoreError,
    FormatVersionError,
    IllegalArgumentError,
    IllegalArgumentTypeError,
    StoreLockedError,
    StorePathError,
    StoreUnavailableError,
    TransferError,
    UnsupportedOperationError,
    system_error,
)
from rmqstore.plugins import get_plugins
from rmqstore.server import connect, reach
from rmqstore.settings import Value, known_settings
from rmqstore.spark.columns import ROUTING
from rmqstore.store import Store, open as open_store
from rmqstore.store.directory import (
    MANIFEST_NAME as STORE_MANIFEST,
    StoreDirectory,
    aside_prefix,
    engines_in,
    flocked,
    json_bytes,
    made_aside,
    read_manifest,
    write_durably,
)
from rmqstore.store.opening import checked_path

MANIFEST: Final = "rmqstore-dataset.json"
FORMAT: Final = 1
MAX_SHARDS: Final = 4096
LOCK_WAIT_MS: Final = 600_000
"""How long a task waits for a shard that another task holds."""

STREAMS: Final = "streams"
"""The directory of what streams popped, with one directory for each consumer."""

RESHARDING: Final = "resharding"
"""What is built beside a data set for another number of shards, and the note of it, have this in their names."""

_POLL_S: Final = 0.05
_DOINGS: Final = ("creating", "copying", "restoring", "dumping", "loading")
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


_Content = TypeVar("_Content", bound=msgspec.Struct)
_Found = TypeVar("_Found")
RunShards = Callable[[Callable[[int], _Found], Sequence[int]], Iterable[_Found]]
"""Calls a function with each of some shards, and returns what it returned; ``map`` does."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a data set says of itself.

    Attributes:
        engine: of every shard.
        settings: with which every shard is opened, by the keywords of ``rmqstore.open``.
        migrating_to: the engine of a migration that did not come to its end.
        resharding_to: the number of shards of a resharding that did not come to its end.
        resharded: the number of the resharding that made these shards, drawn at random, 0 for those of its creation; offsets of streams
            from before mean nothing.
    """

    format: int
    id: str
    shards: int
    engine: str
    routing: str = ROUTING
    settings: dict[str, Any] = {}
    migrating_to: str | None = None
    resharding_to: int | None = None
    resharded: int = 0


class Dataset:
    """A data set that exists; :meth:`open` and :meth:`create` give one."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest

    # ------------------------------------------------------------ coming to be

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, shards: int | None = None, engine: str | None = None) -> Dataset:
        """Open the data set at ``path``, and compare it with what the caller expects of it.

        Raises:
            StorePathError: there is none, or ``path`` is a single store.
            ConfigError: it has another number of shards, or another engine.
            FormatVersionError, CorruptStoreError: its manifest cannot be read.
        """
        place = place_of(path)
        manifest = read_dataset_manifest(place)
        if manifest is None:
            raise StorePathError(f"there is no data set at {place}: {what_is(place)}")
        if shards is not None and shards != manifest.shards:
            raise ConfigError(
                f"data set {place} has {manifest.shards} shards, not {shards}; leave it out, or change their number with "
                "rmqstore.spark.reshard"
            )
        if engine is not None and engine != manifest.engine:
            raise ConfigError(
                f"data set {place} is of engine {manifest.engine!r}, not {engine!r}; leave it out, or change the engine with "
                "rmqstore.spark.migrate"
            )
        return cls(place, manifest)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        shards: int,
        engine: str | None = None,
        settings: Mapping[str, Value] | None = None,
    ) -> Dataset:
        """Make a data set at ``path``, which does not exist yet or is an empty directory; when somebody else is faster, open theirs.

        Args:
            engine: by default the one that ``rmqstore.open`` takes.
            settings: as ``rmqstore.open`` takes them; they hold for every shard, each time it is opened.

        Raises:
            StorePathError: something else is there, or the parent is missing.
            ConfigError: a setting is wrong.
            UnsupportedOperationError: the engine keeps nothing when it is closed.
            UnknownEngineError, EngineNotInstalledError, BrokenEngineError: the engine cannot be used.
        """
        place = place_of(path)
        check_shards(shards)
        if not place.parent.is_dir():
            raise StorePathError(f"{place.parent} does not exist; make it first, then write to {place}")
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise StorePathError(f"no data set can be made at {place}: {what_is(place)}; choose an empty or a new directory")
        if (note := place.with_name(f"{place.name}.{RESHARDING}.json")).exists():
            raise StorePathError(
                f"no data set can be made at {place}: the one that was there is on its way to another number of shards; "
                f"`rmqstore doctor {place} --finish` ends that, or remove {note} as well when it was removed"
            )
        check_names_no_engine(settings or {})
        given = {"engine": engine, **(settings or {})}
        wanted = config.load(place, given, get_plugins().engine_settings()).with_default_engine(get_plugins().default_engine)
        if wanted.timer_engine != wanted.pop_engine:
            raise ConfigError(f"a data set has one engine, not {wanted.timer_engine!r} and {wanted.pop_engine!r}; name one with engine=")
        info, _ = get_plugins().load_engine(wanted.timer_engine)
        if info.capabilities.keeps_nothing:
            raise UnsupportedOperationError(
                f"engine {info.name!r} keeps nothing when it is closed, and each task closes its shard; choose a durable one"
            )
        kept = {name: value for name, value in (settings or {}).items() if value is not None}
        manifest = Manifest(format=FORMAT, id=secrets.token_hex(8), shards=shards, engine=wanted.timer_engine, settings=kept)
        try:
            with made_aside(place, "creating") as aside:
                made = cls(aside, manifest)
                for shard in made.shards:
                    open_store(made.shard_path(shard), engine=manifest.engine, services=False, **manifest.settings).close()
                    _give_settings(made.shard_path(shard), manifest)
                (aside / "jobs").mkdir()
                write_json(aside / MANIFEST, manifest)
        except StorePathError:
            if not is_dataset(place):
                raise
        return cls.open(place)

    @classmethod
    def open_or_create(
        cls,
        path: str | os.PathLike[str],
        *,
        shards: int | None = None,
        engine: str | None = None,
        settings: Mapping[str, Value] | None = None,
    ) -> Dataset:
        """Open the data set at ``path``, or make one of ``shards`` shards, by default 2; as :meth:`open` and :meth:`create`.

        Raises:
            ConfigError: also when ``settings`` differ from those that it was made with.
        """
        place = place_of(path)
        if read_dataset_manifest(place) is None:
            cls.create(place, shards=2 if shards is None else shards, engine=engine, settings=settings)
        found = cls.open(place, shards=shards, engine=engine)
        for name, value in (settings or {}).items():
            if value is not None and found.manifest.settings.get(name) != value:
                raise ConfigError(
                    f"data set {place} was made with {name} = {found.manifest.settings.get(name)!r}, not {value!r}; leave the setting out"
                )
        return found

    # ------------------------------------------------------------ shards

    @property
    def shards(self) -> range:
        """The numbers of the shards."""
        return range(self.manifest.shards)

    def shard_path(self, shard: int) -> Path:
        """Return the store directory of a shard."""
        return self.path / f"shard-{shard:05}"

    def check_ready(self, *, is_served_too: bool) -> None:
        """Refuse to begin anything that writes, unless each shard is there, of the right engine, and open nowhere.

        With ``is_served_too``, one that another process serves will do as well. It has a time of its own.

        Raises:
            StoreLockedError: a shard is open in another process.
            ConfigError, StorePathError, EngineLookupError: as :meth:`check_whole`.
        """
        self.check_whole()
        for shard in self.shards:
            path = self.shard_path(shard)
            try:
                StoreDirectory(path).release()
            except StoreLockedError as locked:
                if not is_served_too:
                    raise
                try:
                    connect(path, patience=timedelta(0)).close()
                except StoreUnavailableError:
                    raise locked from None

    def check_whole(self) -> None:
        """Refuse a data set that nothing can be written to, whoever has its shards open.

        Raises:
            ConfigError, StorePathError: as :meth:`check_settled` and :meth:`check_shard`.
            EngineLookupError: the engine cannot be used here.
        """
        get_plugins().load_engine(self.manifest.engine)
        self.check_settled()
        for shard in self.shards:
            self.check_shard(shard)

    def check_shard(self, shard: int) -> None:
        """Refuse a shard that is missing, or of another engine than the data set is of or moves to; StorePathError, ConfigError."""
        engines = self.engines(shard)
        if not engines <= {self.manifest.engine, self.manifest.migrating_to}:
            raise ConfigError(
                f"data set {self.path} is of engine {self.manifest.engine!r}, but its shard {shard} is of "
                f"{' and '.join(sorted(engines))}; "
                f"`rmqstore migrate {self.shard_path(shard)} --engine {self.manifest.engine}` makes it alike"
            )

    def check_settled(self) -> None:
        """Refuse a data set that is on its way to another engine, or to another number of shards; :class:`ConfigError`."""
        engine, shards = self.manifest.migrating_to, self.manifest.resharding_to
        for move, target, words in (("migration", engine, f"engine {engine!r}"), ("resharding", shards, f"{shards} shards")):
            if target is not None:
                raise ConfigError(
                    f"the {move} of data set {self.path} to {words} has not come to its end; run it again, or "
                    f"`rmqstore doctor {self.path} --finish` (or --undo)"
                )

    def engines(self, shard: int) -> set[str]:
        """Return the engines of a shard's two sides; :class:`StorePathError` when it is missing."""
        manifest = read_manifest(self.shard_path(shard))
        if manifest is None:
            raise StorePathError(f"shard {self.shard_path(shard)} is missing; restore it from a snapshot of that shard")
        return set(engines_in(manifest))

    def present(self) -> dict[int, set[str]]:
        """Return the engines of every shard that is there."""
        manifests = {shard: read_manifest(self.shard_path(shard)) for shard in self.shards}
        return {shard: set(engines_in(manifest)) for shard, manifest in manifests.items() if manifest is not None}

    @contextmanager
    def locked(self, shards: Iterable[int]) -> Iterator[None]:
        """Keep everybody else from opening these shards, as far as they are there; :class:`StoreLockedError` when one is open."""
        with ExitStack() as stack:
            for shard in shards:
                if read_manifest(self.shard_path(shard)) is not None:  # else the lock would make a directory, where a copy is to go
                    stack.enter_context(StoreDirectory(self.shard_path(shard)))
            yield

    @contextmanager
    def open_shard(self, shard: int, *, now_ms: int | None = None, wait_ms: int = LOCK_WAIT_MS) -> Iterator[Store]:
        """Own a shard, without services, or use it through the process that serves it; waits while another task has it.

        Args:
            now_ms: the time that the shard is to see; by default that of the machine, or of who serves it. With one, only an owner will do.

        Raises:
            StoreLockedError: it is still held after ``wait_ms``.
            StorePathError: it is missing.
            TransferError: the data set has got another number of shards since it was opened here.
        """
        path = self.shard_path(shard)
        until_s = time.monotonic() + wait_ms / 1000
        while True:
            self._check_shards()
            self.engines(shard)
            with ExitStack() as stack:
                try:
                    store = self._entered(stack, path, now_ms)
                except StoreLockedError as error:
                    if time.monotonic() >= until_s:
                        raise StoreLockedError(f"{error}; a task waited {wait_ms} ms for it") from error
                else:
                    # None gets another number of shards while one is open, so this holds as long as the block.
                    self._check_shards()
                    yield store
                    return
            time.sleep(_POLL_S)

    def _check_shards(self) -> None:
        """Refuse the numbers of shards that are gone: what is asked of one would be meant for another."""
        found = read_dataset_manifest(self.path)
        if found is not None and (found.shards, found.resharded) != (self.manifest.shards, self.manifest.resharded):
            raise TransferError(
                f"data set {self.path} has got {found.shards} shards since this began, which was meant for {self.manifest.shards}; "
                "run it again"
            )

    def _entered(self, stack: ExitStack, path: Path, now_ms: int | None) -> Store:
        """Open a shard for as long as the stack is, when no other task has it; a lock of their own, as they may meet at a server."""
        try:
            stack.enter_context(flocked(path, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except BlockingIOError:
            raise StoreLockedError(f"another task is at work in {path}") from None
        if now_ms is None:
            return stack.enter_context(reach(path, services=False, **self.manifest.settings))
        store: Store = open_store(path, clock=ManualClock(now_ms), services=False, **self.manifest.settings)
        return stack.enter_context(store)

    def rewrite(self, manifest: Manifest) -> None:
        """Put another manifest into place, durably and in one step."""
        write_json(self.path / MANIFEST, manifest)
        self.manifest = manifest


def check_shards(shards: int) -> None:
    """Refuse a number of shards that no data set can have."""
    if type(shards) is not int:
        raise IllegalArgumentTypeError(f"shards must be an int, not {shards!r}")
    if not 1 <= shards <= MAX_SHARDS:
        raise IllegalArgumentError(f"shards must be 1–{MAX_SHARDS}, not {shards}")


def is_dataset(path: Path) -> bool:
    """Say whether there is a data set in the directory ``path``."""
    return (path / MANIFEST).is_file()


def read_dataset_manifest(path: Path) -> Manifest | None:
    """Return the manifest of the data set in ``path``; None when there is none. That of a newer rmqstore, or a damaged one, is refused."""
    file = path / MANIFEST
    try:
        found = json.loads(file.read_bytes())
        if isinstance(found, dict) and found.get("format") != FORMAT:
            raise FormatVersionError(f"data set {path} has format {found.get('format')!r}, this version of rmqstore reads {FORMAT}")
        manifest = msgspec.convert(found, Manifest)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except FormatVersionError:
        raise
    except (ValueError, OSError) as error:
        raise CorruptStoreError(f"the manifest {file} cannot be read: {error}", file=str(file), offset=0) from error
    if manifest.routing != ROUTING or manifest.shards < 1:
        raise FormatVersionError(f"data set {path} routes by {manifest.routing!r}, this version of rmqstore by {ROUTING!r}")
    return manifest


def write_json(file: Path, content: object) -> None:
    """Write a small file durably; tasks that write it at the same time do not disturb each other."""
    try:
        write_durably(file, json_bytes(msgspec.to_builtins(content)), f".{secrets.token_hex(4)}.new")
    except OSError as error:
        raise system_error(error, file) from error


def read_json(file: Path, kind: type[_Content], what: str, way_out: str = "") -> _Content | None:
    """Return what :func:`write_json` wrote, None when it is not there; :class:`CorruptStoreError` says ``what`` cannot be read."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CorruptStoreError(f"{what} cannot be read: {error}{way_out}", file=str(file), offset=0) from error


def place_of(path: str | os.PathLike[str]) -> Path:
    """Return the directory that a path names, absolute; what is no path, or a URI, is refused."""
    place = checked_path(path)
    if _URI.match(str(path)):
        raise IllegalArgumentError(
            f"path {str(path)!r} is a URI; data sets lie in directories that every task can reach: give a plain path"
        )
    return Path(os.path.realpath(place)) if place.is_symlink() else place.absolute()


def check_names_no_engine(settings: Mapping[str, object]) -> None:
    """Refuse settings of a data set that name an engine, as a migration would leave them behind; :class:`ConfigError`."""
    if named := sorted(name for name in config.ENGINE_KEYS & settings.keys() if settings[name] is not None):
        raise ConfigError(f"{named[0]} is no setting of a data set, which has one engine for all its shards; name it with engine=")


def what_is(place: Path) -> str:
    """Say what is at a path that is no data set."""
    if (place / STORE_MANIFEST).is_file():
        return "that is a single store; rmqstore.open writes to it, and as a source Spark only reads it"
    if not place.exists():
        return "nothing is there"
    return "the directory is empty" if place.is_dir() and not any(place.iterdir()) else "something else is there"


def left_asides(place: Path) -> list[Path]:
    """Return the directories in which data sets for ``place`` are being made, or were left unfinished."""
    prefixes = "|".join(re.escape(aside_prefix(place, doing)) for doing in _DOINGS)
    name = re.compile(f"({prefixes})[0-9a-f]{{8}}")
    return sorted(entry for entry in place.parent.iterdir() if name.fullmatch(entry.name) and entry.is_dir())


def _give_settings(store: Path, manifest: Manifest) -> None:
    """Write the settings into the shard as well, where a program finds them that opens it as a store of its own."""
    known = known_settings(get_plugins().engine_settings())
    keys = {key.replace(".", "__"): key for key, setting in known.items() if not setting.baked}
    settings = {keys[name]: value for name, value in manifest.settings.items() if name in keys}
    config.give_settings(store, settings, [manifest.engine])
