"""Opening a store: settings, engines, directory, and the first step of the hand-over protocol."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rmqstore import config
from rmqstore.clock import Clock, SystemClock
from rmqstore.config import Config
from rmqstore.contract import (
    EngineInfo,
    EngineOptions,
    EngineSession,
    PopBuffer,
    PopStore,
    Reclaim,
    Support,
    TimerStore,
)
from rmqstore.errors import (
    CorruptStoreError,
    IllegalArgumentError,
    IllegalArgumentTypeError,
    StorePathError,
    UnsupportedOperationError,
    system_error,
)
from rmqstore.plugins import get_plugins
from rmqstore.settings import CoreSettings
from rmqstore.store.directory import HeldDirectory, StoreDirectory, read_manifest


class Engines:
    """What is beneath an open store: its engines, one or two, and what they were opened with.

    Attributes:
        timers, pops: the two sides, for tools that speak the contract.
        config: the settings that the store was opened with.
        manifest: what the store was made with.
        sessions: what each engine has open, by the engine's name.
        held: leads to the store's directory, also when that was moved or the path that was given leads elsewhere by now.
    """

    config: Config
    manifest: dict[str, Any]
    held: Path
    timers: TimerStore
    pops: PopStore

    def __init__(self) -> None:
        self.infos: dict[str, EngineInfo] = {}
        self.sessions: dict[str, EngineSession] = {}

    @property
    def store_id(self) -> int:
        """The number that the store got when it was made; its handles and receipts carry it."""
        number: int = self.manifest["store_id"]
        return number

    def _take_sides(self) -> None:
        self.timers = self.sessions[self.config.timer_engine].timers()
        self.pops = self.sessions[self.config.pop_engine].pops()

    def _options(self, engine: str) -> EngineOptions:
        """Return what ``engine`` is opened with."""
        settings = self.config
        shared = {name: getattr(settings, name) for name in EngineOptions.__struct_fields__ if name in CoreSettings.__struct_fields__}
        own: dict[str, Any] = {"pop_buffer": pop_buffer_of(settings), "engine": settings.engine_options(engine)}
        return EngineOptions(
            store_tag=self.store_id,
            broker=broker_name(self.store_id),
            min_epoch=self.manifest.get("min_epoch", 0),
            **{**shared, **own},
        )

    def close(self) -> None:
        """Close the engines, then let go of the directory, also when one of them fails. What is interrupted twice the next call does."""
        failed: BaseException | None = None
        for session in reversed(self.sessions.values()):
            try:
                session.close()
            except BaseException as error:
                failed = failed or error
                session.close()  # it was interrupted, or has failed and is closed; the directory is not let go of before
        self._let_go()
        if failed is not None:
            try:
                raise failed
            finally:
                failed = None  # else it keeps its own frames, and the files that they hold, until the collector runs

    def _let_go(self) -> None:
        raise NotImplementedError


class OwnedEngines(Engines):
    """The engines of a store that this process owns, and its locked directory."""

    def __init__(self, path: str | os.PathLike[str], settings: dict[str, Any], store_id: int | None = None, min_epoch: int = 0) -> None:
        """Open or make a store; ``store_id`` is the number of a new one, by default a random one, ``min_epoch`` the least of its epochs."""
        super().__init__()
        found = get_plugins()
        wanted = config.load(path, settings, found.engine_settings())
        # Engines and baked settings are looked at before the directory is made, so a typo leaves nothing behind.
        for name in {wanted.timer_engine, wanted.pop_engine} - {""}:
            info, _ = found.load_engine(name)
            if name == wanted.pop_engine:
                refuse_undeclared(wanted, info)
        self.directory = StoreDirectory(path)
        try:
            self.held = self.directory.held
            manifest = self.directory.manifest
            is_new = manifest is None
            if manifest is None:
                self.config = wanted.with_default_engine(found.default_engine)
                manifest = self.directory.new_manifest(self.config.baked(), store_id, min_epoch)
            else:
                self.config = wanted.with_stored(manifest["baked"], str(path))
            self.manifest = manifest
            for name in dict.fromkeys((self.config.timer_engine, self.config.pop_engine)):
                self.infos[name], engine = found.load_engine(name)
                if name == self.config.pop_engine:
                    refuse_undeclared(self.config, self.infos[name])
                if not is_new:
                    refuse_missing_files(self.directory.held / name, self.infos[name])
                self.sessions[name] = engine.open(self.directory.engine_path(name), self._options(name))
            self._take_sides()
            self.timers.recover(self.pops.durable_cursor())
            if is_new:
                self.directory.publish(manifest)
        except BaseException:
            self.close()
            raise

    def _let_go(self) -> None:
        self.directory.release()

    @property
    def one_log(self) -> bool:
        """Whether timers and pops live in one atomic log."""
        return self.config.timer_engine == self.config.pop_engine and self.sessions[self.config.pop_engine].one_log


class ReadEngines(Engines):
    """One state of the engines of a store that another process may own and change (X1); takes no lock and changes no file.

    Raises:
        StorePathError: there is no store at ``path``.
        UnsupportedOperationError: an engine cannot be opened for reading.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        super().__init__()
        found = get_plugins()
        # The manifest and the files are of one directory, though a migration may put another one into its place meanwhile.
        self._directory = _held(path)
        self.held = self._directory.path
        try:
            manifest = read_manifest(self.held)
            if manifest is None:
                raise _no_store(path)
            self.config = config.load(path, settings, found.engine_settings()).with_stored(manifest["baked"], str(path))
            self.manifest = manifest
            names = list(dict.fromkeys((self.config.timer_engine, self.config.pop_engine)))
            engines = [(name, *found.load_engine(name)) for name in names]
            for name, info, _ in engines:
                if (support := info.capabilities.read_only_open) is not Support.FULL:
                    raise UnsupportedOperationError(f"engine {name!r} cannot be opened for reading ({support.value})")
            # The timers go first: what is handed over in between is then seen on both sides, and the pops' cursor says that it is done.
            for name, info, engine in engines:
                refuse_missing_files(self.held / name, info)
                self.infos[name], self.sessions[name] = info, engine.open_for_reading(self.held / name, self._options(name))
            self._take_sides()
        except BaseException:
            self.close()
            raise

    def _let_go(self) -> None:
        self._directory.close()

    def refresh(self) -> None:
        """Move on to the newest state."""
        for session in self.sessions.values():
            session.refresh()


def _held(path: Path) -> HeldDirectory:
    try:
        return HeldDirectory(path)
    except (FileNotFoundError, NotADirectoryError):
        raise _no_store(path) from None
    except OSError as error:
        raise system_error(error, path) from error


def _no_store(path: Path) -> StorePathError:
    return StorePathError(f"there is no store at {path}; only an open without read_only=True makes one")


def refuse_missing_files(path: Path, info: EngineInfo) -> None:
    """Refuse an engine directory without files in a store that exists; made again it would hide that everything is gone.

    Raises:
        CorruptStoreError: naming the directory.
    """
    try:
        is_missing = not info.capabilities.keeps_nothing and not (path.is_dir() and any(entry.is_dir() for entry in path.iterdir()))
    except OSError as error:
        raise system_error(error, path) from error
    if is_missing:
        raise CorruptStoreError(f"the files of engine {info.name} are missing from {path}; restore them from a snapshot", file=str(path))


def refuse_undeclared(config: Config, pop_engine: EngineInfo) -> None:
    """Refuse settings that somebody gave and that ask for what the pop engine does not declare (S1); their defaults ask for nothing.

    Raises:
        UnsupportedOperationError: naming the setting and where it came from.
    """
    if pop_engine.capabilities.retention is not Support.FULL:
        for key, harmless in (("retention_ms", 0), ("reclaim", Reclaim.AGE.value)):
            if config.is_given(key) and config.values[key] != harmless:
                raise UnsupportedOperationError(
                    f"{config.origins[key]}: {key} = {config.values[key]!r} needs retention, which engine {pop_engine.name!r} has not"
                )
    if config.pop_buffer and pop_engine.capabilities.pop_buffer is not Support.FULL:
        raise UnsupportedOperationError(
            f"{config.origins['pop.buffer']}: pop.buffer = true needs an engine with a pop buffer, which {pop_engine.name!r} has not"
        )


def pop_buffer_of(settings: Config) -> PopBuffer | None:
    """Return the limits of the pop buffer; None when there is none."""
    if not settings.pop_buffer:
        return None
    return PopBuffer(**{name: getattr(settings, f"pop_buffer_{name}") for name in PopBuffer.__struct_fields__})


def broker_name(store_tag: int) -> str:
    """Return the broker name of a store in its receipts."""
    return f"rmqs-{store_tag:08x}"


def checked_clock(clock: Clock | None) -> Clock:
    """Return the clock to use.

    Raises:
        IllegalArgumentTypeError: it has no ``now_ms``.
    """
    if clock is None:
        return SystemClock()
    if not isinstance(clock, Clock):
        raise IllegalArgumentTypeError(f"clock must have a method now_ms(), {clock!r} has none; use SystemClock() or ManualClock(start_ms)")
    return clock


def text_of(where: str | os.PathLike[str], wanted: str) -> str:
    """Return a path, or an address, as text.

    Args:
        wanted: begins the error: what it must be.

    Raises:
        IllegalArgumentTypeError: it is neither a text nor a path, or empty.
    """
    try:
        text = os.fspath(where)
    except TypeError:
        text = ""
    if not isinstance(text, str) or not text:
        raise IllegalArgumentTypeError(f"{wanted}, not {where!r}")
    return text


def checked_path(path: str | os.PathLike[str]) -> Path:
    """Return the store path.

    Raises:
        IllegalArgumentError: it is no path.
    """
    text = text_of(path, "path must be a directory's name")
    try:
        legal = b"\x00" not in os.fsencode(text)
    except UnicodeEncodeError:
        legal = False
    if not legal:
        raise IllegalArgumentError(f"path {text!r} holds a character that no file name can have")
    if text == ":memory:":
        raise IllegalArgumentError('":memory:" is no directory; with engine="memory" a store keeps nothing when it is closed')
    return Path(text)


def absolute_path(path: str | os.PathLike[str]) -> Path:
    """Return the store path, the same wherever the process goes: nothing changes when its working directory does (X5).

    Raises:
        IllegalArgumentError: it is no path.
        StorePathError: it is relative, and the working directory is gone.
    """
    place = checked_path(path)
    try:
        return place.absolute()
    except FileNotFoundError:
        raise StorePathError(f"path {str(place)!r} is relative, and the working directory was removed; give an absolute one") from None
