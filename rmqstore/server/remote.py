"""``RemoteStore``: the calls of a store, made by another process that has it open (docs/server.md)."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqstore.errors import RmqstoreError, StoreClosedError, StoreForkedError, StoreUnavailableError, UnsupportedOperationError
from rmqstore.server.calls import Passing
from rmqstore.server.connection import Address, Pool
from rmqstore.server.requests import Ask, Lanes, Underway, asking, ended, patience_s_of, unavailable
from rmqstore.store.store import Store

if TYPE_CHECKING:
    from rmqstore.store.opening import OwnedEngines


class RemoteStore(Passing):
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
        self._path = self._path_told()

    def _path_told(self) -> Path:
        """Return the store's path, as the server tells it."""
        until_s = time.monotonic() + self._patience_s
        while True:
            try:
                connection = self._pool.take()
                break
            except OSError as error:
                if isinstance(error, RmqstoreError):
                    raise
                if not isinstance(error, TimeoutError) or time.monotonic() >= until_s:  # it is there, and busy
                    raise StoreUnavailableError(unavailable(self._pool.address, error)) from error
        self._pool.give_back(connection)
        return Path(connection.greeting["path"])

    def _ask(self, ask: Ask) -> Any:
        """Make a call, again when the connection breaks and a repeat does no harm."""
        call = Underway(ask, self._lanes, self._pool.address, self._patience_s)
        while True:
            call.check_age()
            try:
                self._check_open()
                connection = self._pool.take(may_wait=call.left_s > 0)
            except RmqstoreError as error:  # the server answered, and does not want this client
                call.refuse(error)
            except OSError as error:
                call.lost(error, may_be_done=False)
            else:
                if call.is_forgotten(connection.greeting):
                    self._pool.give_back(connection)
                    raise call.given_up()
                try:
                    answer = connection.ask(call.call, call.arguments, call.named)
                except BaseException as error:
                    self._pool.drop(connection)  # what it carries next may be the answer to this call
                    if not isinstance(error, OSError):
                        raise
                    call.lost(error, may_be_done=True)
                else:
                    self._pool.give_back(connection)
                    if not isinstance(answer, StoreUnavailableError):
                        return call.answered(answer)
                    call.lost(answer, may_be_done=False)
            try:
                other = self._other_owner()
                self._check_open()
            except StoreForkedError as error:  # of this process only
                other = None
                call.lost(error, may_be_done=False)
            except RmqstoreError as error:
                call.refuse(error)
            if other is not None:
                return call.make_on(other)
            time.sleep(call.pause_s())

    def _other_owner(self) -> Store | None:
        """Return the store to make the call on when its owner is gone; None to ask again."""
        return None

    def _pass(self, call: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        steps = asking(call)(*arguments, **named)
        return ended(steps, self._ask(next(steps)))

    if not TYPE_CHECKING:

        @property
        def engine(self) -> OwnedEngines:
            """Not there: the engines are open in the process that serves the store."""
            raise UnsupportedOperationError(f"the engines of {self!r} are open in the process that serves it; stats() tells which they are")

    def close(self) -> None:
        """Close the connections, and end the calls that wait at the server; the store stays open where it is. Idempotent."""
        self._stop_workers()
        self._is_gone = True
        self._pool.close()

    def _check_open(self) -> None:
        if self._is_gone:
            raise StoreClosedError(f"the connection to store {self._path} is closed; connect again")
