"""One store for several processes: the wire, the server, the client, and stores that are shared without a server (docs/server.md)."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from rmqstore import store
from rmqstore.clock import Clock
from rmqstore.errors import IllegalArgumentError, IllegalArgumentTypeError, StoreLockedError, StoreUnavailableError
from rmqstore.store import ReadStore, Store
from rmqstore.store.opening import checked_clock, checked_path

if TYPE_CHECKING:
    import ssl

__all__ = ["connect", "open"]

PATIENCE: Final = timedelta(seconds=30)
"""How long a call looks for a server that has gone, before it gives up."""


@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    read_only: Literal[False] = False,
    share: bool = False,
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
    share: bool = False,
    engine: str | None = None,
    clock: Clock | None = None,
    services: bool = True,
    **settings: Any,
) -> ReadStore: ...
def open(  # noqa: A001 - a store opens like a file
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    share: bool = False,
    engine: str | None = None,
    clock: Clock | None = None,
    services: bool = True,
    **settings: Any,
) -> Store | ReadStore:
    """Open the store in the directory ``path``, made as needed; its parent must exist.

    Args:
        read_only: read one state of the store, whether a process owns it or not (X1), in place of owning it. A reader makes nothing, takes
            no lock and runs no services, so ``clock`` and ``services`` mean nothing to it.
        share: use the store together with other processes of this machine that open it so: one of them owns it and serves the others, and
            when it ends, another one takes over.
        engine: the storage engine; the settings ``timer_engine`` and ``pop_engine`` choose one for each side.
        clock: where time comes from; the machine's by default.
        services: run a background thread that hands over, revives and flushes. Without it the store moves only by :meth:`Store.tick`.
        settings: any setting of docs/configuration.md; a dot in its key is written ``__``.

    Raises:
        ConfigError: a setting is wrong, or differs from what the store was made with.
        UnknownEngineError, EngineNotInstalledError, BrokenEngineError: the engine cannot be used.
        StorePathError: the directory cannot be used.
        StoreLockedError: the store is open elsewhere, and not shared.
        FormatVersionError, CorruptStoreError: what is there cannot be read.
        UnsupportedOperationError: the engine cannot be opened for reading (S1).
    """
    for name, flag in (("read_only", read_only), ("share", share), ("services", services)):
        if not isinstance(flag, bool):
            raise IllegalArgumentTypeError(f"{name} must be True or False, not {flag!r}")
    if read_only and share:
        raise IllegalArgumentError("read_only and share exclude each other: a reader needs no owner")
    if read_only:
        checked_clock(clock)
        return ReadStore(checked_path(path), {"engine": engine, **settings})
    if not share:
        return store.open(path, engine=engine, clock=clock, services=services, **settings)
    from rmqstore.server.sharing import SharedStore  # it brings sockets and a loop along

    checked = checked_clock(clock)
    return SharedStore(checked_path(path), {"engine": engine, **settings}, checked, services=services, patience=PATIENCE)


def reach(path: str | os.PathLike[str], *, patience: timedelta = PATIENCE, **opening: Any) -> Store:
    """Own the store in the directory ``path``, or use it through the process that serves it; ``opening`` is as for :func:`open`.

    Raises:
        StoreLockedError: it is open elsewhere, and nobody serves it.
    """
    try:
        owned: Store = store.open(path, **opening)
    except StoreLockedError as locked:
        try:
            return connect(path, patience=patience)
        except StoreUnavailableError:
            raise locked from None
    return owned


def connect(
    where: str | os.PathLike[str], *, token: str | None = None, tls: ssl.SSLContext | None = None, patience: timedelta = PATIENCE
) -> Store:
    """Use a store that another process has open: ``rmqstore serve``, or one that shares it.

    Args:
        where: ``rmqstore://host:port``, ``rmqstores://host:port`` for TLS, ``unix:/path/to/socket``, or the store's directory.
        token: what the server wants to hear.
        tls: certificates, for TLS; by default those that the machine trusts.
        patience: how long a call whose connection breaks is tried anew, up to five minutes.

    Returns:
        The same calls as of a store that is open here, with the same errors. It can be used by several threads, and in a forked child.

    Raises:
        IllegalArgumentError: ``where`` is no address, or ``patience`` too long.
        StoreUnavailableError: nobody serves a store there.
        AccessDeniedError, FormatVersionError: the server does not want this client.
    """
    from rmqstore.server.remote import RemoteStore  # as above

    return RemoteStore(where, token=token, tls=tls, patience=patience)
