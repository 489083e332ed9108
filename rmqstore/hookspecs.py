"""The hooks that a plug-in may implement.

A plug-in is a module that an entry point of the group ``rmqstore`` names. It implements any of the hooks below by a function of the
same name, marked with :data:`hookimpl`; arguments it does not need may be left out. Every hook is 1:N: all plug-ins are asked, each for
itself, so the failure of one does not hide the answer of another.

.. code-block:: python

    from rmqstore.hookspecs import hookimpl

    @hookimpl
    def rmqstore_engines() -> list[EngineInfo]:
        return [EngineInfo(name="acme", capabilities=..., factory="acme_engine.store:AcmeEngine", requires=("acme_native",))]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from rmqstore.contract import EngineInfo
    from rmqstore.store import Store

PROJECT = "rmqstore"
"""The name of the entry-point group, and the prefix of every hook."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a plug-in as the implementation of a hook."""


@hookspec
def rmqstore_engines() -> list[EngineInfo]:
    """Announce storage engines.

    Called once, when engines are first listed or looked up. The module that holds this hook must import without the engine's C
    extension; ``EngineInfo.factory`` is imported when the engine is opened.

    Returns:
        One :class:`~rmqstore.contract.EngineInfo` for each engine.
    """
    return []


@hookspec
def rmqstore_conformance_cases() -> Sequence[object]:
    """Offer further conformance cases, which the suite runs against the engine under test beside its own.

    Called by the conformance suite when it collects.

    Returns:
        Import names of modules of pytest functions, each with a mark ``clause`` and a fixture of the suite that gives it an engine
        (docs/writing-an-engine.md).
    """
    return []


@hookspec
def rmqstore_workloads() -> Sequence[object]:
    """Offer further benchmark workloads.

    Called by the benchmarks when they list what can be run.

    Returns:
        Import names ``"package.module:ATTRIBUTE"`` of ``rmqstore_benchmarks.grid.named.NamedWorkload`` objects, so that the plug-in
        itself does not import the benchmarks.
    """
    return []


@hookspec
def rmqstore_store_opened(store: Store) -> None:
    """Look at a store that has just been opened, for instance to export its metrics.

    Called by ``rmqstore.open`` in the opening thread, after recovery and before the caller gets the store. An error is reported as
    a warning and does not keep the store from opening.

    Args:
        store: the open store; it may be used, and must not be closed.
    """
