"""An open store: one directory in which messages wait for their time and for their consumers; and how it is opened."""

from __future__ import annotations

import os
from typing import Any

from rmqstore.clock import Clock
from rmqstore.errors import IllegalArgumentTypeError
from rmqstore.plugins import get_plugins
from rmqstore.store.opening import OwnedEngines, checked_clock, checked_path
from rmqstore.store.reader import Reader, ReadStore, StoreStats
from rmqstore.store.store import Store

__all__ = ["ReadStore", "Reader", "Store", "StoreStats", "open"]


def open(  # noqa: A001 - a store opens like a file
    path: str | os.PathLike[str], *, engine: str | None = None, clock: Clock | None = None, services: bool = True, **settings: Any
) -> Store:
    """Open a store for this process alone; :func:`rmqstore.open` has the arguments and errors."""
    if not isinstance(services, bool):
        raise IllegalArgumentTypeError(f"services must be True or False, not {services!r}")
    clock = checked_clock(clock)
    engines = OwnedEngines(checked_path(path), {"engine": engine, **settings})
    store: Store | None = None
    try:
        store = Store(engines, clock, services=services)
        get_plugins().notify_opened(store)
    except BaseException:
        (store or engines).close()
        raise
    return store
