"""Where a server listens, and whom it lets in (docs/server.md).

The loop takes connections itself, and not by a server of asyncio: that takes all that wait, before anybody counts them, and when the
process has no descriptor left for one it says so a thousand times, and more each second.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import logging
import os
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from socket import AF_UNIX, SHUT_RDWR, SOCK_STREAM, socket
from typing import TYPE_CHECKING, Final, cast

from rmqstore.errors import AccessDeniedError, FormatVersionError, IllegalArgumentError, PollingFullError, UnsupportedOperationError
from rmqstore.server.clients import HELLO_S, Client
from rmqstore.server.connection import short_name
from rmqstore.server.wire import PROTOCOL

if TYPE_CHECKING:
    from rmqstore.server.serving import Server

_log = logging.getLogger("rmqstore")

_BACKLOG: Final = 1024
"""So many connections wait in the system until the loop takes them."""

_AT_ONCE: Final = 16
"""So many are taken in one step of the loop; then it does what others want."""

_AGAIN_S: Final = 1.0
"""So much later it tries again when the system has none to give."""

_SPARE: Final = 32
"""So many connections beyond their limit are taken, to be told so."""


class Listener:
    """Takes connections from a socket, and gives each to ``let_in``."""

    def __init__(self, listening: socket, let_in: Callable[[socket], None]) -> None:
        self.listening = listening
        self._let_in = let_in
        self._loop = asyncio.get_running_loop()
        self._later: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        listening.listen(_BACKLOG)
        self._begin()

    def _begin(self) -> None:
        self._loop.add_reader(self.listening, self._take)

    def _take(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                made, _ = self.listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor, or no memory; whoever comes waits in the system
                _log.warning("a server cannot take connections, and tries again in %g s: %s", _AGAIN_S, error)
                self._loop.remove_reader(self.listening)
                self._later = self._loop.call_later(_AGAIN_S, self._begin)
                return
            self._let_in(made)

    def close(self) -> None:
        """Take no more, and close the socket."""
        if self._later is not None:
            self._later.cancel()
        self._loop.remove_reader(self.listening)
        self.listening.close()


async def bound(host: str, port: int) -> list[socket]:
    """Return sockets of a TCP port, 0 for a free one, at each address that ``host`` has."""
    made = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port, start_serving=False)
    try:
        return [socket(fileno=os.dup(each.fileno())) for each in made.sockets]
    finally:
        made.close()


class _Silent(asyncio.Protocol):
    """Reads nothing: the first bytes are for TLS."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).pause_reading()


class Entrance:
    """Where the clients of a server come in.

    A connection is a stranger's until it has said who it is. Strangers take no place from clients: when there are too many connections,
    the one goes that has been a stranger for longest.
    """

    def __init__(self, server: Server, token: str | None) -> None:
        self._server = server
        self._token = token
        self._listeners: list[Listener] = []
        self._files: list[Path] = []
        self._strangers: dict[Client, socket] = {}  # the oldest first
        self._known: set[Client] = set()
        self._arrivals: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------ listening

    async def listen_unix(self, path: Path) -> None:
        """Listen on a unix socket, for this user alone, who needs no token; one that a killed owner left there is replaced.

        The socket of a store is named by the directory that the store holds: by another name it could be that of another store when it is
        removed (X5).
        """
        path.unlink(missing_ok=True)
        listening = socket(AF_UNIX, SOCK_STREAM)
        try:
            with short_name(path) as name:
                listening.bind(name)
            path.chmod(0o600)  # before it listens
        except BaseException:
            listening.close()
            raise
        self._files.append(path)
        self._listen(listening, None, is_known=True)

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> list[int]:
        """Listen on a TCP port, 0 for a free one; returns the ports."""
        listening = await bound(host, port)
        for each in listening:
            self._listen(each, tls)
        return [each.getsockname()[1] for each in listening]

    async def listen_at(self, made: socket, tls: ssl.SSLContext | None = None) -> None:
        """Listen on a socket that somebody else has bound, and who keeps what comes while this server is not there."""
        self._listen(made, None if made.family == AF_UNIX else tls)

    def _listen(self, listening: socket, tls: ssl.SSLContext | None, *, is_known: bool = False) -> None:
        if tls is not None and not isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop):
            listening.close()
            raise UnsupportedOperationError("a server takes TLS on a loop of asyncio only; run it by asyncio.run, and not by uvloop.run")
        self._listeners.append(Listener(listening, functools.partial(self._let_in, tls, is_known)))

    # ------------------------------------------------------------ who comes, and who goes

    def _let_in(self, tls: ssl.SSLContext | None, is_known: bool, made: socket) -> None:
        if self._strangers and len(self._strangers) + len(self._known) >= self._server.limits.connections + _SPARE:
            self._turn_away(next(iter(self._strangers)))
        made.setblocking(False)
        client = Client(self._server, is_known=is_known)
        self._strangers[client] = made
        arrival = asyncio.get_running_loop().create_task(self._connect(client, made, tls))
        self._arrivals.add(arrival)
        arrival.add_done_callback(functools.partial(self._arrived, client))

    async def _connect(self, client: Client, made: socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        if tls is None:
            await loop.connect_accepted_socket(lambda: client, made)
            return
        plain, _ = await loop.connect_accepted_socket(_Silent, made)
        encrypted = await loop.start_tls(plain, client, tls, server_side=True, ssl_handshake_timeout=HELLO_S)
        if encrypted is not None and not encrypted.is_closing():
            client.connection_made(encrypted, plain)

    def _arrived(self, client: Client, arrival: asyncio.Task[None]) -> None:
        """Let go of one that has not become a client, as it does not agree on TLS."""
        self._arrivals.discard(arrival)
        if arrival.cancelled() or arrival.exception() is not None:
            self.leave(client)

    def _turn_away(self, stranger: Client) -> None:
        """End a connection, whatever it is about to say."""
        with suppress(OSError):  # it is gone already
            self._strangers.pop(stranger).shutdown(SHUT_RDWR)

    def greet(self, client: Client, hello: object, *, is_known: bool) -> Mapping[str, object]:
        """Return what the first answer of a connection says; one that ``is_known`` needs no token.

        Raises:
            FormatVersionError: the client speaks another protocol.
            AccessDeniedError: it has not the token.
            PollingFullError: as many clients as the limit says are there.
        """
        match hello:
            case [int(protocol), None | str() as token]:
                pass
            case _:
                raise IllegalArgumentError("a connection begins with [protocol, token]")
        if protocol != PROTOCOL:
            raise FormatVersionError(f"this server speaks protocol {PROTOCOL}, the client {protocol}; install one version for both")
        if self._token is not None and not is_known and not hmac.compare_digest(self._token.encode(), (token or "").encode()):
            raise AccessDeniedError(f"the server wants a token{', and this is not it' if token else '; give connect(…, token=…)'}")
        if len(self._known) >= self._server.limits.connections:
            raise PollingFullError(
                f"{len(self._known)} connections are there, which is the limit of this server; close some, or let it open more files"
            )
        self._strangers.pop(client, None)
        self._known.add(client)
        return self._server.greeting

    def leave(self, client: Client) -> None:
        """Note that a connection is closed."""
        self._strangers.pop(client, None)
        self._known.discard(client)

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Let nobody in any more, also of those who are on their way."""
        while self._listeners:
            self._listeners.pop().close()
        while self._files:
            self._files.pop().unlink(missing_ok=True)  # nobody else has listened there: this process owns the store
        for stranger in list(self._strangers):
            self._turn_away(stranger)

    @property
    def is_busy(self) -> bool:
        """Whether somebody is on the way in."""
        return bool(self._arrivals)

    def descriptors(self) -> list[int]:
        """Return the descriptors of its sockets."""
        return [each.fileno() for each in (*(listener.listening for listener in self._listeners), *self._strangers.values())]
