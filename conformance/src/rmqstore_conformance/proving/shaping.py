"""Engines that are the ``memory`` engine but for some calls; a plug-in module announces them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rmqstore.contract import Capabilities, Engine, EngineInfo, EngineOptions, EngineSession
from rmqstore.plugins import get_plugins

Change = Callable[[Any], type]
"""Returns a class that is derived from that of one side of a session, and does some calls in another way."""


class Shaped(Engine):
    """Opens the ``memory`` engine and changes the classes of its two sides."""

    def __init__(self, timers: Change | None = None, pops: Change | None = None) -> None:
        self._timers = timers
        self._pops = pops

    def open(self, directory: Path, options: EngineOptions) -> EngineSession:
        """Open the engine and change it."""
        session = get_plugins().load_engine("memory")[1].open(directory, options)
        for side, change in ((session.timers(), self._timers), (session.pops(), self._pops)):
            if change is not None:
                side.__class__ = change(type(side))
        return session


def shaped_info(name: str, factory: Callable[[], Engine], capabilities: Capabilities | None = None) -> EngineInfo:
    """Return the announcement of such an engine, which ``factory``, an attribute of its module, makes."""
    return EngineInfo(
        name=name,
        capabilities=capabilities or get_plugins().load_engine("memory")[0].capabilities,
        factory=f"{factory.__module__}:{factory.__qualname__}",
        install_hint="pip install rmqstore-memory",
    )
