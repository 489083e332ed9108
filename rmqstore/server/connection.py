"""A client's connections to a server: addresses, one connection, and the pool of those that are not in use."""

from __future__ import annotations

import os
import re
import select
import socket
import ssl
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from rmqstore.errors import AccessDeniedError, IllegalArgumentError
from rmqstore.server.wire import HEAD, MAX_FRAME_BYTES, PROTOCOL, frame, unpack
from rmqstore.store.directory import SOCKET_NAME
from rmqstore.store.opening import absolute_path, text_of

_HOST_AND_PORT = re.compile(r"[\w.-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", re.ASCII)

_MAX_UNIX_BYTES: Final = 100
"""Longer names do not fit into the address of a unix socket, everywhere."""

_CONNECT_S: Final = 5.0

_KEEPALIVE: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
"""A machine that does not answer for 25 s is gone. The last one, in ms, is for when something is on its way to it: then the system does not
ask whether it is there, but sends that again, for a quarter of an hour."""


class Address(msgspec.Struct, frozen=True):
    """Where a server listens: a unix socket, or a host and a port.

    Attributes:
        path: the socket's file; None for TCP.
        is_tls: whether the connection is encrypted.
        held: the directory in which the socket is, where that shall be the same one whatever is at ``path`` by now (X5).
    """

    path: Path | None = None
    host: str = ""
    port: int = 0
    is_tls: bool = False
    held: Path | None = None

    @classmethod
    def parse(cls, where: str | os.PathLike[str], tls: ssl.SSLContext | None = None) -> Address:
        """Read an address: ``rmqstore://host:port``, ``rmqstores://host:port`` (TLS), ``unix:/path/to/socket``, or a store's directory.

        Raises:
            IllegalArgumentError: it is none of these; or ``tls`` was given for one that has no TLS.
        """
        text = text_of(where, "where must be the address of a server or the directory of a store")
        address = cls._parsed(text)
        if tls is not None and not address.is_tls:
            raise IllegalArgumentError(f"tls is for an address of the form rmqstores://host:port, which {text!r} is not")
        return address

    @classmethod
    def _parsed(cls, text: str) -> Address:
        if _HOST_AND_PORT.fullmatch(text):
            raise IllegalArgumentError(f"{text!r} could be a directory or a port; write rmqstore://{text}, or ./{text}")
        if text.startswith("unix:"):
            return cls(absolute_path(text.removeprefix("unix:").removeprefix("//")))
        if "://" not in text:
            return cls(absolute_path(text) / SOCKET_NAME)
        with suppress(ValueError):  # as of a port that is no number, or of a host that is no name
            parts = urlsplit(text)
            if parts.scheme in ("rmqstore", "rmqstores") and parts.hostname and parts.hostname.encode("idna") and parts.port:
                return cls(None, parts.hostname, parts.port, parts.scheme == "rmqstores")
        raise IllegalArgumentError(
            f"{text!r} is no address of a server; write rmqstore://host:port, rmqstores://host:port for TLS, unix:/path, or the "
            "directory of a store"
        )

    @property
    def file(self) -> Path | None:
        """The socket's file, by the name that leads to it; None for TCP."""
        return self.path if self.path is None or self.held is None else self.held / self.path.name

    def __str__(self) -> str:
        if self.path is not None:
            return str(self.path)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rmqstores' if self.is_tls else 'rmqstore'}://{host}:{self.port}"


@contextmanager
def short_name(path: Path) -> Iterator[str]:
    """Give a name of ``path`` that fits into the address of a unix socket."""
    text = os.fspath(path)
    if len(os.fsencode(text)) <= _MAX_UNIX_BYTES:
        yield text
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def keep_alive(connection: Any) -> None:
    """Let the system tell when the machine at the other end of a TCP connection is gone."""
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            if (number := getattr(socket, option, None)) is not None:
                connection.setsockopt(socket.IPPROTO_TCP, number, value)


sockets: weakref.WeakSet[Any] = weakref.WeakSet()
"""The sockets of this process's connections; each tells its descriptor by ``fileno()``, -1 when it is closed."""


def let_go_of(descriptors: Iterable[int]) -> None:
    """In a forked child, let go of its parent's sockets: while the child keeps one open, its other end does not see the parent die.

    A socket object that is collected later closes its number, so that must not become another file's.
    """
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in descriptors:
        if descriptor >= 0:
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=lambda: let_go_of([each.fileno() for each in list(sockets)]))


@contextmanager
def agreeing_on_tls(address: Address) -> Iterator[None]:
    """Tell a server that wants other TLS from one that is not there.

    Raises:
        AccessDeniedError: server and client do not agree on TLS.
    """
    try:
        yield
    except ssl.SSLEOFError:  # it only closed the connection, as one that is killed does
        raise
    except ssl.SSLError as error:
        raise AccessDeniedError(f"{address} and this client do not agree on TLS: {error}; give connect(…, tls=…)") from error


class Connection:
    """One connection, which takes one call at a time.

    Raises:
        OSError: the server cannot be reached.
        AccessDeniedError, FormatVersionError: it does not want this client.
    """

    def __init__(self, address: Address, token: str | None, tls: ssl.SSLContext | None) -> None:
        with agreeing_on_tls(address):
            self._socket = _connected(address, tls)
            self._begin(token)

    def _begin(self, token: str | None) -> None:
        self._reader = self._socket.makefile("rb", buffering=1 << 16)
        self._number = 0
        try:
            self._socket.sendall(frame([PROTOCOL, token]))
            greeting = self._answer(0)
            self._socket.settimeout(None)  # a call may take long; a peer that is gone is told by the system
            if isinstance(greeting, Exception):
                raise greeting
            self.greeting: dict[str, Any] = greeting
        except BaseException:
            self.close()
            raise

    def ask(self, call: str, arguments: Sequence[object], named: Mapping[str, object]) -> object:
        """Make a call and return its answer, which may be an error.

        Raises:
            IllegalArgumentError: the call is too long, and was not made.
            OSError: the connection broke; whether the call was done is unknown.
        """
        self._number += 1
        request = frame([self._number, call, list(arguments), named])
        if len(request) > self.greeting["frame_bytes"]:
            raise IllegalArgumentError(
                f"{call} of {len(request)} bytes is more than the server takes at a time ({self.greeting['frame_bytes']}); send less a call"
            )
        self._socket.sendall(request)
        return self._answer(self._number)

    def _answer(self, wanted: int) -> Any:
        (size,) = HEAD.unpack(self._read(HEAD.size))
        if size > MAX_FRAME_BYTES:
            raise ConnectionError(f"an answer of {size} bytes came, which no server gives")
        number, value = unpack(self._read(size))
        if number not in (wanted, 0):
            raise ConnectionError(f"the answer to call {number} came, where that to {wanted} was due")
        return value

    def _read(self, size: int) -> bytes:
        data: bytes = self._reader.read(size)
        if len(data) < size:
            raise ConnectionResetError("the server closed the connection")
        return data

    @property
    def is_broken(self) -> bool:
        """Whether the server closed the connection meanwhile; between calls nothing else can come."""
        look = select.poll()
        look.register(self._socket, select.POLLIN)
        return bool(look.poll(0))

    def cut_off(self) -> None:
        """Let the call of another thread end as if the server had closed the connection."""
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # that of TLS would let the other thread go on without it

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()
        self._socket.close()


def _connected(address: Address, tls: ssl.SSLContext | None) -> socket.socket:
    if (file := address.file) is not None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sockets.add(made)  # before anything can wait
        made.settimeout(_CONNECT_S)
        try:
            with short_name(file) as name:
                made.connect(name)
        except BaseException:
            made.close()
            raise
        return made
    try:
        made = socket.create_connection((address.host, address.port), _CONNECT_S)
    except TimeoutError as error:  # a server that is busy is connected to all the same
        raise ConnectionError(f"nothing at {address.host} answers") from error
    sockets.add(made)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(made)
    if not address.is_tls:
        return made
    encrypted = (tls or ssl.create_default_context()).wrap_socket(made, server_hostname=address.host)
    sockets.add(encrypted)
    return encrypted


class Pool:
    """The connections of a client; each call has one for itself, so as many calls go on side by side as there are threads that call.

    There is no lock, which a signal handler that calls could not take: each step on a list or a set is one of C.

    Attributes:
        met: told what the server says of itself, whenever one is reached, or has answered.
    """

    def __init__(self, address: Address, token: str | None, tls: ssl.SSLContext | None) -> None:
        self.address = address
        self._token = token
        self._tls = tls
        self._idle: list[Connection] = []
        self._waiting: set[Connection] = set()
        self._is_closed = False
        self._pid = os.getpid()
        self.met: Callable[[Mapping[str, Any]], None] | None = None

    def take(self, *, may_wait: bool = False) -> Connection:
        """Return a connection that nobody uses; a close ends a call on it that may wait at the server.

        Raises:
            OSError: the server cannot be reached.
        """
        self._see_fork()
        connection = self._unused()
        if may_wait:
            self._waiting.add(connection)
            if self._is_closed:  # a close that comes behind this look finds it
                self.drop(connection)
                raise ConnectionAbortedError("this program has closed it")
        return connection

    def _unused(self) -> Connection:
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if not connection.is_broken:
                    return connection
                connection.close()
        connection = Connection(self.address, self._token, self._tls)
        if self.met is not None:
            self.met(connection.greeting)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection, on which a call was answered, for the next call."""
        if self.met is not None:
            self.met(connection.greeting)
        self._waiting.discard(connection)
        self._idle.append(connection)
        if self._is_closed:
            self._close_idle()

    def drop(self, connection: Connection) -> None:
        """Close a connection whose call was not answered."""
        self._waiting.discard(connection)
        connection.close()

    def close(self) -> None:
        """Close those that nobody uses, end the calls that may wait, and close the others when they are given back."""
        self._see_fork()
        self._is_closed = True
        for connection in list(self._waiting):
            connection.cut_off()
        self._close_idle()

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _see_fork(self) -> None:
        """In a forked child, have none of the parent's connections."""
        if os.getpid() != self._pid:
            self._idle, self._waiting = [], set()
            self._pid = os.getpid()
