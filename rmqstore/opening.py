"""Opening a store: settings, engines, directory, and the first step of the hand-over protocol."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rmqstore import config
from rmqstore.clock import Clock, SystemClock
from rmqstore.config import Config
from rmqstore.contract import (
    Durability,
    EngineInfo,
    EngineOptions,
    EngineSession,
    Flush,
    Operation,
    PopBuffer,
    PopStore,
    Reclaim,
    Support,
    TimerStore,
)
from rmqstore.directory import StoreDirectory
from rmqstore.errors import CorruptStoreError, IllegalArgumentError, IllegalArgumentTypeError, UnsupportedOperationError
from rmqstore.plugins import get_plugins


class Opened:
    """Everything that an open store owns; :meth:`close` lets go of it in the right order."""

    def __init__(self, path: str | os.PathLike[str], settings: dict[str, Any], store_id: int | None = None, min_epoch: int = 0) -> None:
        """Open or make a store; ``store_id`` is the number of a new one, by default a random one, ``min_epoch`` the least of its epochs."""
        found = get_plugins()
        known = found.engine_settings()
        wanted = config.load(path, settings, known)
        # Engines and baked settings are looked at before the directory is made, so a typo leaves nothing behind.
        for name in {wanted.timer_engine, wanted.pop_engine} - {""}:
            info, _ = found.load_engine(name)
            if name == wanted.pop_engine:
                refuse_undeclared(wanted, info)
        with ExitStack() as stack:
            self.directory = StoreDirectory(path)
            stack.callback(self.directory.release)
            manifest = self.directory.manifest
            is_new = manifest is None
            if manifest is None:
                self.config: Config = wanted.with_default_engine(found.default_engine)
                manifest = self.directory.new_manifest(self.config.baked(), store_id, min_epoch)
            else:
                self.config = wanted.with_stored(manifest["baked"], str(path))
            self.manifest: dict[str, Any] = manifest
            self.store_tag: int = manifest["store_id"]
            self.infos: dict[str, EngineInfo] = {}
            self.sessions: dict[str, EngineSession] = {}
            for name in dict.fromkeys((self.config.timer_engine, self.config.pop_engine)):
                self.infos[name], engine = found.load_engine(name)
                if name == self.config.pop_engine:
                    refuse_undeclared(self.config, self.infos[name])
                if not is_new:
                    refuse_missing_files(self.directory.held / name, self.infos[name])
                session = engine.open(self.directory.engine_path(name), self.options(self.config, manifest, name))
                stack.callback(session.close)
                self.sessions[name] = session
            self.timers: TimerStore = self.sessions[self.config.timer_engine].timers()
            self.pops: PopStore = self.sessions[self.config.pop_engine].pops()
            self.timers.recover(self.pops.durable_cursor())
            if is_new:
                self.directory.publish(manifest)
            self._stack = stack.pop_all()

    @property
    def one_log(self) -> bool:
        """Whether timers and pops live in one atomic log."""
        return self.config.timer_engine == self.config.pop_engine and self.sessions[self.config.pop_engine].one_log

    @property
    def broker(self) -> str:
        """The store's name in receipts."""
        return broker_name(self.store_tag)

    @staticmethod
    def options(settings: Config, manifest: Mapping[str, Any], engine: str) -> EngineOptions:
        """Return what ``engine`` is opened with."""
        store_tag: int = manifest["store_id"]
        return EngineOptions(
            store_tag=store_tag,
            broker=broker_name(store_tag),
            precision_ms=settings.precision_ms,
            max_delay_ms=settings.max_delay_ms,
            congestion_limit=settings.congestion_limit,
            congestion_seed=settings.congestion_seed,
            cancel_memory_ms=settings.cancel_memory_ms,
            outcome_memory_ms=settings.outcome_memory_ms,
            mark_memory_ms=settings.mark_memory_ms,
            default_queues=settings.default_queues,
            max_retries=settings.max_retries,
            max_in_flight=settings.max_in_flight,
            retry_share=settings.retry_share,
            retention_ms=settings.retention_ms,
            reclaim=settings.reclaim,
            group_expiry_ms=settings.group_expiry_ms,
            pop_buffer=pop_buffer_of(settings),
            min_epoch=manifest.get("min_epoch", 0),
            flush=settings.flush,
            engine=settings.engine_options(engine),
        )

    def close(self) -> None:
        """Close the engines, then release the lock, whatever fails on the way."""
        self._stack.close()


def refuse_missing_files(path: Path, info: EngineInfo) -> None:
    """Refuse an engine directory without files in a store that exists; made anew it would hide that everything is gone.

    Raises:
        CorruptStoreError: naming the directory.
    """
    keeps_files = info.capabilities.durability_of(Operation.PUT, Flush.SYNC) is not Durability.NONE
    if keeps_files and not (path.is_dir() and any(entry.is_dir() for entry in path.iterdir())):
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
    return PopBuffer(
        stay_ms=settings.pop_buffer_stay_ms,
        left_ms=settings.pop_buffer_left_ms,
        check_points=settings.pop_buffer_check_points,
        queue_check_points=settings.pop_buffer_queue_check_points,
    )


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


def checked_path(path: str | os.PathLike[str]) -> Path:
    """Return the store path.

    Raises:
        IllegalArgumentError: it is no path.
    """
    try:
        text = os.fspath(path)
    except TypeError:
        text = ""
    if not isinstance(text, str) or not text:
        raise IllegalArgumentTypeError(f"path must be a directory's name, not {path!r}")
    try:
        legal = b"\x00" not in os.fsencode(text)
    except UnicodeEncodeError:
        legal = False
    if not legal:
        raise IllegalArgumentError(f"path {text!r} holds a character that no file name can have")
    if text == ":memory:":
        raise IllegalArgumentError('":memory:" is no directory; with engine="memory" a store keeps nothing when it is closed')
    return Path(text)
