"""An open store: one directory in which messages wait for their time and for their consumers; and how it is opened."""

from __future__ import annotations

import os
from typing import Any, Literal, overload

from rmqstore.clock import Clock
from rmqstore.errors import IllegalArgumentTypeError
from rmqstore.plugins import get_plugins
from rmqstore.store.opening import OwnedEngines, checked_clock, checked_path
from rmqstore.store.reader import Reader, ReadStore, StoreStats
from rmqstore.store.store import Store

__all__ = ["ReadStore", "Reader", "Store", "StoreStats", "open"]


@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    read_only: Literal[False] = False,
    engine: str | None = None,
    clock: Clock | None = None,
    services: bool = True,
    **settings: Any,
) -> Store: ...
@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    read_only: Literal[True],
    engine: str | None = None,
    clock: Clock | None = None,
    services: bool = True,
    **settings: Any,
) -> ReadStore: ...
def open(  # noqa: A001 - a store opens like a file
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    engine: str | None = None,
    clock: Clock | None = None,
    services: bool = True,
    **settings: Any,
) -> Store | ReadStore:
    """Open the store in the directory ``path``, made as needed; its parent must exist.

    Args:
        read_only: read one state of the store, whether a process owns it or not (X1), in place of owning it. A reader makes nothing, takes
            no lock and runs no services, so ``clock`` and ``services`` mean nothing to it.
        engine: the storage engine; the settings ``timer_engine`` and ``pop_engine`` choose one for each side.
        clock: where time comes from; the machine's by default.
        services: run a background thread that hands over, revives and flushes. Without it the store moves only by :meth:`Store.tick`.
        settings: any setting of docs/configuration.md; a dot in its key is written ``__``.

    Raises:
        ConfigError: a setting is wrong, or differs from what the store was made with.
        UnknownEngineError, EngineNotInstalledError, BrokenEngineError: the engine cannot be used.
        StorePathError: the directory cannot be used.
        StoreLockedError: the store is open elsewhere.
        FormatVersionError, CorruptStoreError: what is there cannot be read.
        UnsupportedOperationError: the engine cannot be opened for reading (S1).
    """
    for name, flag in (("read_only", read_only), ("services", services)):
        if not isinstance(flag, bool):
            raise IllegalArgumentTypeError(f"{name} must be True or False, not {flag!r}")
    clock = checked_clock(clock)
    if read_only:
        return ReadStore(checked_path(path), {"engine": engine, **settings})
    store = Store(OwnedEngines(checked_path(path), {"engine": engine, **settings}), clock, services=services)
    get_plugins().notify_opened(store)
    return store
