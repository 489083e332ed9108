"""``RemoteStore``: the calls of a store, made by another process that has it open (docs/server.md)."""

from __future__ import annotations

import functools
import os
import ssl
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqstore.errors import RmqstoreError, StoreClosedError, StoreUnavailableError, UnsupportedOperationError
from rmqstore.server.calls import CALLS, METHODS
from rmqstore.server.connection import Address, Pool
from rmqstore.server.requests import Ask, Lanes, Underway, asking, patience_s_of, unavailable
from rmqstore.store.administration import Groups, Part, Topics, Transfer
from rmqstore.store.dead_letters import DeadLetters
from rmqstore.store.schedules import Schedules
from rmqstore.store.store import Store

if TYPE_CHECKING:
    from rmqstore.store.opening import OwnedEngines


class RemoteStore(Store):
    """A store that another process has open; made by :func:`rmqstore.connect`. It has the calls of :class:`Store`, and its errors.

    Safe to share between threads, and usable in a forked child. A call whose connection breaks is made again for ``patience``, where that
    neither loses nor doubles anything: a send has a name of its own, a pop an attempt id. For the others, such as ``retry_later``, the
    error says that they may have been done.

    Raises:
        StoreUnavailableError: by every call, when there is no server, or it went away.
    """

    def __init__(self, where: str | os.PathLike[str], *, token: str | None, tls: ssl.SSLContext | None, patience: timedelta) -> None:
        self._pool = Pool(Address.parse(where, tls), token, tls)
        self._patience_s = patience_s_of(patience)
        self._lanes = Lanes()
        self._is_gone = False
        self._path = self._path_told()

    def _path_told(self) -> Path:
        """Return the store's path, as the server tells it."""
        try:
            connection = self._pool.take()
        except OSError as error:
            if isinstance(error, RmqstoreError):
                raise
            raise StoreUnavailableError(unavailable(self._pool.address, error)) from error
        self._pool.give_back(connection)
        return Path(connection.greeting["path"])

    def _ask(self, ask: Ask) -> Any:
        """Make a call, again when the connection breaks and a repeat does no harm."""
        call = Underway(ask, self._lanes, self._pool.address, self._patience_s)
        while True:
            self._check_open()
            try:
                connection = self._pool.take()
            except OSError as error:
                if isinstance(error, RmqstoreError):  # the server answered, and does not want this client
                    raise
                call.lost(error, may_be_done=False)
            else:
                try:
                    answer = connection.ask(call.call, call.arguments, call.named)
                except BaseException as error:
                    connection.close()  # what it carries next may be the answer to this call
                    if not isinstance(error, OSError):
                        raise
                    call.lost(error, may_be_done=True)
                else:
                    self._pool.give_back(connection)
                    if not isinstance(answer, StoreUnavailableError):
                        return call.answered(answer)
                    call.lost(answer, may_be_done=False)
            if (other := self._other_owner()) is not None:
                return call.make_on(other)
            time.sleep(call.pause_s())

    def _other_owner(self) -> Store | None:
        """Return the store to make the call on when its owner is gone; None to ask again."""
        return None

    @property
    def topics(self) -> Topics:
        return _RemoteTopics(self)

    @property
    def groups(self) -> Groups:
        return _RemoteGroups(self)

    @property
    def dead_letters(self) -> DeadLetters:
        return _RemoteDeadLetters(self)

    @property
    def schedules(self) -> Schedules:
        return _RemoteSchedules(self)

    @property
    def transfer(self) -> Transfer:
        return _RemoteTransfer(self)

    if not TYPE_CHECKING:

        @property
        def engine(self) -> OwnedEngines:
            """Not there: the engines are open in the process that serves the store."""
            raise UnsupportedOperationError(f"the engines of {self!r} are open in the process that serves it; stats() tells which they are")

    def close(self) -> None:
        """Close the connections; the store stays open where it is. Idempotent."""
        self._stop_workers()
        self._is_gone = True
        self._pool.close()

    @property
    def _is_closed(self) -> bool:
        return self._is_gone

    def _check_open(self) -> None:
        if self._is_gone:
            raise StoreClosedError(f"the connection to store {self._path} is closed; connect again")


class _RemoteTopics(Topics):
    """As its base has it."""


class _RemoteGroups(Groups):
    """As its base has it."""


class _RemoteDeadLetters(DeadLetters):
    """As its base has it."""


class _RemoteSchedules(Schedules):
    """As its base has it."""


class _RemoteTransfer(Transfer):
    """As its base has it."""


def _method(call: str, like: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of a store, or of a part of it, that makes a call."""
    begin = asking(call)

    @functools.wraps(like)
    def method(self: RemoteStore | Part, *arguments: object, **named: object) -> Any:
        store: Any = self._store if isinstance(self, Part) else self
        steps = begin(*arguments, **named)
        try:
            steps.send(store._ask(next(steps)))
        except StopIteration as end:
            return end.value
        raise AssertionError("a call asks once")

    return method


for _name in CALLS:
    setattr(RemoteStore, _name, _method(_name, getattr(Store, _name)))
for _start, _part in {
    "topics": _RemoteTopics,
    "groups": _RemoteGroups,
    "dead_letters": _RemoteDeadLetters,
    "schedules": _RemoteSchedules,
    "transfer": _RemoteTransfer,
}.items():
    for _call in METHODS:
        if _call.startswith(f"{_start}."):
            _name = _call.removeprefix(f"{_start}.")
            setattr(_part, _name, _method(_call, getattr(_part, _name)))
