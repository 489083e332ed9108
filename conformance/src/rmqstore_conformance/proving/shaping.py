"""Engines that are the ``memory`` engine but for some calls; a plug-in module announces them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rmqstore.contract import Capabilities, Engine, EngineInfo, EngineOptions, EngineSession, PopStore, TimerStore
from rmqstore.plugins import get_plugins

Change = Callable[[Any], type]
"""Returns a class that is derived from that of one side of a session, and does some calls in another way."""


class Shaped(Engine):
    """Opens the ``memory`` engine and changes the classes of its two sides; ``settle`` changes what it is told when it is opened."""

    def __init__(
        self,
        timers: Change | None = None,
        pops: Change | None = None,
        settle: Callable[[EngineOptions], EngineOptions] | None = None,
    ) -> None:
        self._timers = timers
        self._pops = pops
        self._settle = settle

    def open(self, directory: Path, options: EngineOptions) -> EngineSession:
        """Open the engine and change it."""
        settled = options if self._settle is None else self._settle(options)
        return ShapedSession(get_plugins().load_engine("memory")[1].open(directory, settled), self._timers, self._pops)


class ShapedSession(EngineSession):
    """A session with other sides: they have the state of its own, and some calls of theirs."""

    def __init__(self, session: EngineSession, timers: Change | None, pops: Change | None) -> None:
        self._session = session
        self.one_log = session.one_log
        self._timers: TimerStore = _changed(session.timers(), timers)
        self._pops: PopStore = _changed(session.pops(), pops)

    def timers(self) -> TimerStore:
        return self._timers

    def pops(self) -> PopStore:
        return self._pops

    def snapshot(self, path: Path) -> None:
        self._session.snapshot(path)

    def close(self) -> None:
        self._session.close()


def _changed(side: Any, change: Change | None) -> Any:
    """Return a side of the changed class with the state of this one: a change of either is one of both."""
    if change is None:
        return side
    kind: Any = change(type(side))
    changed = kind.__new__(kind)
    changed.__dict__ = side.__dict__
    return changed


def shaped_info(name: str, factory: Callable[[], Engine], capabilities: Capabilities | None = None) -> EngineInfo:
    """Return the announcement of such an engine, which ``factory``, an attribute of its module, makes."""
    return EngineInfo(
        name=name,
        capabilities=capabilities or get_plugins().load_engine("memory")[0].capabilities,
        factory=f"{factory.__module__}:{factory.__qualname__}",
        install_hint="pip install rmqstore-memory",
    )
