"""``open(path, share=True)``: processes of one machine use one store without a server of its own (docs/server.md).

The first of them owns the store and serves the others by a socket in the store's directory. When it closes or dies, the others see their
connections break, and the first of them that gets the lock opens the store, which recovers, and serves in its turn. A call that was under
way is made again, at the new owner, where that neither loses nor doubles anything. All of them stay in the directory that they opened,
whatever its name leads to by now (X5), so that no call is made again on another store; but where the same store is in the place by now, as
behind a migration, nobody takes over the one that was left. A server (``rmqstore serve``) that goes may be about
to begin anew, so the others wait a while for it.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import structs

from rmqstore.clock import Clock
from rmqstore.errors import StoreClosedError, StoreError, StoreLockedError, StorePoisonedError, StoreUnavailableError, named, system_error
from rmqstore.server.calls import Passing
from rmqstore.server.connection import Address
from rmqstore.server.remote import RemoteStore
from rmqstore.server.serving import ServerThread
from rmqstore.store import open as open_store
from rmqstore.store.administration import Part
from rmqstore.store.directory import SOCKET_NAME, HeldDirectory, read_manifest
from rmqstore.store.handlers import is_closed_around
from rmqstore.store.opening import absolute_path
from rmqstore.store.store import Store

_Part = TypeVar("_Part", bound=Part)


_SERVER_BACK_S: Final = 15.0
"""So long nobody takes over behind a server."""

_SAME_OUTAGE_S: Final = 60.0
"""Misses that are further apart are of two outages: the server may have been there in between. A call that goes on misses it more often."""


class _Follower(RemoteStore):
    """Reaches the owner, and asks to take over when there is none."""

    def __init__(
        self, path: Path, met: Callable[[Mapping[str, Any]], None], take_over: Callable[[], Store | None], patience: timedelta
    ) -> None:
        self._take_over = take_over
        super().__init__(path, token=None, tls=None, patience=patience)
        self._pool.met = met

    def stay_in(self, directory: Path) -> None:
        """Reach owners of this directory from now on, and of no other that gets its name."""
        self._pool.address = structs.replace(self._pool.address, held=directory)

    def _path_told(self) -> Path:
        assert self._pool.address.path is not None
        return self._pool.address.path.parent

    def _other_owner(self) -> Store | None:
        return self._take_over()


_shared: weakref.WeakSet[SharedStore] = weakref.WeakSet()


def _forget_parents() -> None:
    for store in list(_shared):
        store._forget_parent()


os.register_at_fork(after_in_child=_forget_parents)


class SharedStore(Passing):
    """A store of several processes; made by ``rmqstore.open(path, share=True)``.

    It has the calls and errors of :class:`Store`, and may be used in a forked child. Hand-over, revive and upkeep are done by the owner;
    when it ends, the next call of another process makes that one the owner, also the call of a pop that waits.

    Raises:
        StoreUnavailableError: by every call, when the lock is held for long by a process that nobody can connect to.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], clock: Clock | None, *, services: bool, patience: timedelta) -> None:
        self._path = absolute_path(path)
        self._home: HeldDirectory | None = None
        self._name = self._path  # of the home, when it was found
        self._open_it: Callable[[Path], Store] = lambda place: open_store(place, clock=clock, services=services, **settings)
        self._lock = threading.RLock()
        self._mine: Store | None = None
        self._server: ServerThread | None = None
        self._is_served = False
        self._missed_since_s: float | None = None
        self._missed_s = 0.0  # the last time
        _shared.add(self)
        self._follower = _Follower(self._path, self._met, self._take_over, patience)
        try:
            if self._take_over() is None:
                self._stay_in(self._path)
                self._see_owner(patience)
        except BaseException:
            self.close()
            raise

    def _stay_in(self, directory: Path) -> None:
        try:
            self._home = HeldDirectory(directory)
        except OSError as error:
            raise system_error(error, self._path) from error
        self._name = Path(named(str(self._home.path)))
        self._follower.stay_in(self._home.path)

    def _refuse_replaced(self, home: HeldDirectory) -> None:
        """Refuse to own a store that goes on in another directory, which has its name: what came here would be kept aside, or removed.

        Raises:
            StorePoisonedError: it does.
        """
        now = Path(named(str(home.path)))
        with suppress(OSError):
            if self._name.samefile(home.path):  # as by a link, where it was moved
                return
        if now != self._name and (number := _number_of(self._name)) is not None and number == _number_of(home.path):
            raise StorePoisonedError(f"store {self._path} was replaced, as by a migration; open it again, since this one is {now} now")

    def _see_owner(self, patience: timedelta) -> None:
        """Make sure that the owner serves others; one that is just opening the store does so in a moment."""
        try:
            self._follower.next_wake_ms()
        except StoreUnavailableError as error:
            raise StoreLockedError(
                f"store {self._path} is open in another process, which does not share it: nobody listened in it for "
                f"{patience / timedelta(seconds=1):g} s; open it with share=True there too, or use `rmqstore serve`"
            ) from error

    # ------------------------------------------------------------ who owns it

    def _current(self) -> Store:
        """Return the store to make a call on: the own one, or the follower of another owner."""
        self._check_open()
        return self._mine or self._follower

    def _forget_parent(self) -> None:
        """In a forked child, own nothing: what its parent owned, the parent owns."""
        self._lock = threading.RLock()
        self._mine = self._server = None

    def _met(self, greeting: Mapping[str, Any]) -> None:
        """Note that there is an owner, and what it says of itself."""
        self._is_served = greeting["is_server"]
        self._missed_since_s = None

    def _waits_for_server(self) -> bool:
        """Whether the owner was a server a moment ago; as the owner in its place, this process would keep it from beginning anew."""
        now_s = time.monotonic()
        if self._missed_since_s is None or now_s - self._missed_s > _SAME_OUTAGE_S:
            self._missed_since_s = now_s
        self._missed_s = now_s
        return self._is_served and now_s < self._missed_since_s + _SERVER_BACK_S

    def _take_over(self) -> Store | None:
        """Become the owner if there is none; None when there is one, or will be."""
        with self._lock:
            self._check_open()
            if self._mine is None:
                if self._waits_for_server():
                    return None
                if self._home is not None:
                    self._refuse_replaced(self._home)
                try:
                    mine = self._open_it(self._path if self._home is None else self._home.path)
                except StoreLockedError:
                    return None
                place, server = mine.engine.directory.held, None
                try:
                    if self._home is None:
                        self._stay_in(place)
                    else:
                        self._refuse_replaced(self._home)  # before the lock was there
                    server = ServerThread(mine, lambda entrance: entrance.listen_unix(place / SOCKET_NAME))
                    self._check_open()  # a signal handler may have closed it
                except BaseException as error:
                    if server is not None:
                        server.stop()
                    mine.close()
                    if isinstance(error, OSError):  # there is no socket without room, either (F1)
                        raise system_error(error, self._path) from error
                    raise
                self._server, self._mine = server, mine
            return self._mine

    @property
    def _address(self) -> Address:
        """Where its owner listens."""
        return self._follower._pool.address

    @property
    def is_owner(self) -> bool:
        """Whether this process owns the store at present."""
        return self._current() is self._mine

    def close(self) -> None:
        """Let go of the store, so that another process that has it open becomes its owner; idempotent.

        What a signal handler interrupts the next call does.

        Raises:
            RuntimeError: as with :meth:`Store.close`, when this process is the owner; so in a thread of its server, as by a finalizer.
        """
        if is_closed_around(self, self._mine):
            return
        if self._server is not None:
            self._server.refuse_own_thread()
        self._stop_workers()
        with self._lock:
            self._is_gone = True
        self._follower.close()
        if self._server is not None:
            self._server.stop()  # before the store and its directory, which it uses until it has ended
        try:
            if self._mine is not None:
                self._mine.close()
        finally:
            if self._home is not None:
                self._home.close()

    def _check_open(self) -> None:
        if self._is_gone:
            raise StoreClosedError(f"store {self._path} is closed; open it again")

    # ------------------------------------------------------------ calls and parts

    def _pass(self, call: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        return getattr(self._current(), call)(*arguments, **named)

    def _part(self, kind: type[_Part]) -> _Part:
        return self._current()._part(kind)


def _number_of(path: Path) -> int | None:
    """Return the number of the store at ``path``; None when there is none that can be read."""
    try:
        return (read_manifest(path) or {}).get("store_id")
    except StoreError:
        return None
