"""``ReadStore``: one consistent state of a store, seen by somebody who does not own it (X1)."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from rmqstore import config
from rmqstore.consuming import Consuming
from rmqstore.contract import EngineSession, Support
from rmqstore.directory import HeldDirectory, read_manifest
from rmqstore.errors import StorePathError, UnsupportedOperationError
from rmqstore.opening import Opened, refuse_missing_files
from rmqstore.plugins import get_plugins
from rmqstore.producing import Producing
from rmqstore.reading import Reading

_OF_THE_OWNER: Final = frozenset(
    {"tick", "service_tick", "service_flush", "service_wake_ms", "next_wake_ms", "confirm_clock_step", "snapshot", "flush", "wake"}
)
"""Calls of a store that neither producers nor consumers make."""


class ReadStore(Reading):
    """A store opened with ``mode="read"``: the state as of the open, or of the last :meth:`refresh`.

    It takes no lock and changes no file of the store, so it works beside a running owner, and also when nobody has the store open. What
    it shows is a prefix of the owner's calls that holds everything durable. docs/engine.md says what each engine does to keep that state,
    and what it costs the owner.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        found = get_plugins()
        manifest = read_manifest(path)
        if manifest is None:
            raise StorePathError(f"there is no store at {path}; only an open without mode='read' makes one")
        wanted = config.load(path, settings, found.engine_settings()).with_stored(manifest["baked"], str(path))
        self.manifest: dict[str, Any] = manifest
        names = list(dict.fromkeys((wanted.timer_engine, wanted.pop_engine)))
        engines = [(name, *found.load_engine(name)) for name in names]
        for name, info, _ in engines:
            if info.capabilities.read_only_open is not Support.FULL:
                raise UnsupportedOperationError(f"engine {name!r} cannot be opened for reading ({info.capabilities.read_only_open.value})")
        self._sessions: dict[str, EngineSession] = {}
        with ExitStack() as stack:
            directory = HeldDirectory(path)
            stack.callback(directory.close)
            # The timers go first: what is handed over in between is then seen on both sides, and the pops' cursor says that it is done.
            for name, info, engine in engines:
                refuse_missing_files(directory.path / name, info)
                session = engine.open_for_reading(directory.path / name, Opened.options(wanted, manifest, name))
                stack.callback(session.close)
                self._sessions[name] = session
            timers, pops = self._sessions[wanted.timer_engine].timers(), self._sessions[wanted.pop_engine].pops()
            super().__init__(path, wanted, manifest["store_id"], timers, pops)
            self._stack = stack.pop_all()

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            """Answer for the calls of an owner, which a reader has not."""
            if not hasattr(Producing, name) and not hasattr(Consuming, name) and name not in _OF_THE_OWNER:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

            def refuse(*_, **__):
                raise UnsupportedOperationError(f"{name} is for the owner of a store; {self!r} is open for reading")

            return refuse

    def refresh(self) -> None:
        """Move on to the newest state; no other thread may be reading meanwhile. When it fails, refresh again or close."""
        self._check_open()
        for session in self._sessions.values():
            session.refresh()

    def close(self) -> None:
        """Let go of the state; idempotent."""
        if self._closed:
            return
        if os.getpid() != self._pid:
            self._check_open()
        self._closed = True
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<rmqstore.ReadStore {self._path} ({'closed' if self._closed else 'open'})>"
