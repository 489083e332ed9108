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
    """Open a store for this process alone, or for reading; :func:`rmqstore.open` has the arguments and errors."""
    for name, flag in (("read_only", read_only), ("services", services)):
        if not isinstance(flag, bool):
            raise IllegalArgumentTypeError(f"{name} must be True or False, not {flag!r}")
    clock = checked_clock(clock)
    if read_only:
        return ReadStore(checked_path(path), {"engine": engine, **settings})
    store = Store(OwnedEngines(checked_path(path), {"engine": engine, **settings}), clock, services=services)
    get_plugins().notify_opened(store)
    return store
