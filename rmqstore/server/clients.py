"""The clients of a server, each a connection: what it may ask for, and its requests, cut out of what it sends (docs/server.md)."""

from __future__ import annotations

import asyncio
import fcntl
import resource
import socket
import sys
import termios
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from rmqstore.batch import MessageBatch
from rmqstore.errors import IllegalArgumentError, RmqstoreError
from rmqstore.server.connection import keep_alive
from rmqstore.server.wire import HEAD, MAX_FRAME_BYTES, decoded_bytes, frame, unpack

if TYPE_CHECKING:
    from rmqstore.server.lines import Waiter
    from rmqstore.server.serving import Server

_HELLO_BYTES: Final = 4096
HELLO_S: Final = 10.0
"""What a connection may send, and how long it may take, before the server knows who it is."""


SMALL_BYTES: Final = 16 << 10
"""Requests up to this length, whose values take no more, are always taken, and answers of calls that the loop makes itself always given."""

_UNWEIGHED_BYTES: Final = 1024
"""In a request up to this length no values can be that matter."""

ROW_BYTES: Final = 600
"""What a row of a batch takes in memory while it is checked and written, beside its own bytes (measured)."""

_TIMES_DECODED: Final = 2
"""The values of a request may take so many times the bytes of the longest one."""

_LOOK_BYTES: Final = 4 << 20
"""A request may take ``unread_s`` for each so many bytes, and twice that for the rest: else one that comes byte by byte counts for ever."""

_NUMBER_BYTES: Final = 10
"""A request begins with its number within so many bytes."""


_CONNECTIONS: Final = 10_000


def _most_connections() -> int:
    """Return how many clients a server has by default: at most half of the descriptors, since the store needs some for its files."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _CONNECTIONS if descriptors == resource.RLIM_INFINITY else min(_CONNECTIONS, descriptors // 2)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a server lets its clients ask for.

    Attributes:
        frame_bytes: the longest request; and what the rows of a batch may take, each ``ROW_BYTES``. The values of a request may take twice
            that when they are decoded.
        waiting_calls: how many pops and sends may wait at a time, of all clients; a send beyond that does not wait.
        client_calls: how many calls of one client may be under way.
        unread_bytes: when more answers than this wait for a client to read them, its next calls wait.
        unread_s: a client that reads nothing for so long then is cut off; so is one that sends nothing more of a request for so long, or
            takes many times that for one (``_LOOK_BYTES``).
        held_bytes: what requests that come in or are under way, and answers until they are read, may hold together, of all clients.
            Beyond it calls are refused that bring or fetch much.
        threads: for the calls that take long, of all clients.
        connections: how many clients may be there; one more is told so, and closed.
    """

    frame_bytes: int = MAX_FRAME_BYTES
    waiting_calls: int = 10_000
    client_calls: int = 1024
    unread_bytes: int = 32 << 20
    unread_s: float = 30.0
    held_bytes: int = 1 << 30
    threads: int = 4
    connections: int = msgspec.field(default_factory=_most_connections)


class Call(NamedTuple):
    """One request of a client; ``held_bytes``: what it counts with among what the server holds."""

    client: Client
    number: int
    name: str
    arguments: list[Any]
    named: dict[str, Any]
    held_bytes: int


class Client(asyncio.Protocol):
    """One connection to a server.

    Attributes:
        calls: those under way, by number; of one that waits, what waits.
        held: long calls that wait for a thread, or until the client reads its answers.
        due: how many calls have come and are not begun.
        held_bytes: what its requests count with among what the server holds, but for long calls that have a thread.
        is_local: it came by a unix socket.
        transport: what its answers are written to; None when it has gone, and before it has agreed on TLS.
    """

    def __init__(self, server: Server, *, is_known: bool = False) -> None:
        self._server = server
        self._is_known = is_known  # the socket lets nobody in but the user of the server
        self._unparsed = bytearray()
        self._is_greeted = False
        self._longest = _HELLO_BYTES
        self._is_let_in = False  # the request that is coming in
        self._looks = 0  # so many more times it is seen to, at the most
        self._refused_bytes = 0  # of one that was not let in, what has not come yet
        self._cut: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport | None = None
        self._plain: asyncio.Transport | None = None  # below that of TLS
        self.calls: dict[int, Waiter | None] = {}
        self.held: deque[Call] = deque()
        self.held_bytes = 0
        self.due = 0
        self.is_unread = False
        self.is_local = False

    def connection_made(self, transport: asyncio.BaseTransport, plain: asyncio.Transport | None = None) -> None:
        self.transport = transport = cast("asyncio.Transport", transport)  # of uvloop it is of no class of asyncio
        self._plain = plain
        transport.set_write_buffer_limits(self._server.limits.unread_bytes)
        own: socket.socket = transport.get_extra_info("socket")
        self.is_local = own.family == socket.AF_UNIX
        keep_alive(own)
        self._server.clients.add(self)
        self._cut = asyncio.get_running_loop().call_later(HELLO_S, transport.abort)
        if self._server.is_stopping:
            transport.abort()
        elif self._unparsed:
            self.data_received(b"")

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = self._plain = None
        self._uncut()
        self._server.clients.discard(self)
        self._server.entrance.leave(self)
        self._server.forget(self)

    def data_received(self, data: bytes) -> None:
        if self.transport is not None and self.transport.is_closing():  # of TLS more may come until the end is agreed on
            return
        unparsed = self._unparsed
        unparsed += data
        if self.transport is None:  # TLS has just been agreed on
            return
        at, end = 0, len(unparsed)
        try:
            while end - at >= HEAD.size:
                if self._refused_bytes:
                    passed_over = min(self._refused_bytes, end - at)
                    self._refused_bytes -= passed_over
                    at += passed_over
                    continue
                (size,) = HEAD.unpack_from(unparsed, at)
                if size > self._longest:
                    raise IllegalArgumentError(f"{size} bytes are too many: this server takes {self._longest} here; send less at a time")
                if size > SMALL_BYTES and not self._is_let_in:
                    if end - at < HEAD.size + _NUMBER_BYTES:
                        break
                    if (refusal := self._server.refusal(size)) is not None:
                        self.answer(frame([_number_in(unparsed, at + HEAD.size), refusal]))
                        self._refused_bytes = HEAD.size + size
                        continue
                    self._is_let_in = True
                    self._looks = 2 + size // _LOOK_BYTES
                    self._server.hold(self, size)
                if end - at - HEAD.size < size:
                    break
                at += HEAD.size + size
                if self._is_let_in:
                    self._is_let_in = False
                    if not self.is_unread:
                        self._uncut()
                self._take(bytes(memoryview(unparsed)[at - size : at]))
        except RmqstoreError as error:  # nothing behind it can be understood
            self.answer(frame([0, error]))
            self.close()
            return
        del unparsed[:at]
        if self._is_let_in and self._cut is None:
            self._look_later()

    def _take(self, data: bytes) -> None:
        if self._is_greeted:
            held_bytes = len(data) if len(data) > SMALL_BYTES else 0
            try:
                value_bytes = self._weighed_values(data)
                number, name, arguments, named = _checked_request(unpack(data))
                more_bytes = max(value_bytes, self._weighed_rows(name, arguments))
            except RmqstoreError as error:
                if not _has_number(data):
                    raise
                # What is behind it begins where it should, and is another call's.
                self._server.hold(self, -held_bytes)
                self.answer(frame([_number_in(data, 0), error]))
                return
            self._server.hold(self, more_bytes)
            self._server.take(Call(self, number, name, arguments, named, held_bytes + more_bytes))
        else:
            self.answer(frame([0, self._server.entrance.greet(self, _hello_in(data), is_known=self._is_known)]))
            self._is_greeted = True
            self._longest = self._server.limits.frame_bytes
            self._uncut()

    def _weighed_values(self, data: bytes) -> int:
        """Return what the values of a request count with, before they are there, beside the bytes that came.

        Raises:
            IllegalArgumentError: they are more than one call takes.
            PollingFullError: the server has no room for them.
        """
        if len(data) <= _UNWEIGHED_BYTES:
            return 0
        most_bytes = _TIMES_DECODED * self._server.limits.frame_bytes
        value_bytes = decoded_bytes(data, most_bytes)
        if value_bytes <= SMALL_BYTES:
            return 0
        if value_bytes > most_bytes:
            raise IllegalArgumentError(f"the values of this call take more than {most_bytes} bytes at this server; send fewer a call")
        self._see_room(value_bytes)
        return value_bytes

    def _weighed_rows(self, name: str, arguments: list[Any]) -> int:
        """Return what the rows of a batch count with, as of :meth:`_weighed_values`; they may come as one or two bytes each."""
        rows = _rows_in(arguments[0]) if name == "send_batch" and arguments else 0
        row_bytes = rows * ROW_BYTES
        if row_bytes <= SMALL_BYTES:
            return 0
        most_bytes = self._server.limits.frame_bytes
        if row_bytes > most_bytes:
            raise IllegalArgumentError(
                f"{rows} rows take {row_bytes} bytes at this server, and one call at most {most_bytes}; send fewer rows a call"
            )
        self._see_room(row_bytes)
        return row_bytes

    def _see_room(self, more_bytes: int) -> None:
        if (refusal := self._server.refusal(more_bytes)) is not None:
            raise refusal

    def answer(self, data: bytes | bytearray) -> None:
        """Send a frame."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)
            behind = self._server.behind
            (behind.add if self.unread_bytes else behind.discard)(self)

    @property
    def unread_bytes(self) -> int:
        """How much waits here for it to read."""
        if self.transport is None:
            return 0
        plain_bytes = 0 if self._plain is None else self._plain.get_write_buffer_size()
        return self.transport.get_write_buffer_size() + plain_bytes

    @property
    def is_served(self) -> bool:
        """Whether all that was written is at the client's machine; of a unix socket, on its way into the socket of the client.

        A TCP socket that is closed before loses the rest as soon as the client sends one more request, and so does TLS.
        """
        if self.transport is None:
            return True
        if self.unread_bytes:
            return False
        own: socket.socket | None = self.transport.get_extra_info("socket")
        if own is None or self.is_local:  # None: the other end has gone
            return True
        with suppress(OSError):
            return not int.from_bytes(fcntl.ioctl(own.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
        return True

    def close(self) -> None:
        """Close the connection when what has been written is in the system; of TLS when this is called again until then.

        One that is left to TLS would stay until the client agrees to the end, which one that does not read never does.
        """
        if self.transport is not None:
            if not self.transport.is_closing():
                self.transport.close()
            if self._plain is not None and not self.transport.get_write_buffer_size():
                self._plain.close()

    def pause_writing(self) -> None:
        """Take no more calls of a client that does not read its answers."""
        self.is_unread = True
        self._uncut()
        if self.transport is not None:
            self.transport.pause_reading()
            self._cut_unless_read(self.unread_bytes + 1)

    def _cut_unless_read(self, before: int) -> None:
        """Cut the client off if it has read nothing since, and else look again."""
        if self.transport is None:
            return
        left = self.unread_bytes
        if left >= before:
            self.transport.abort()
        else:
            self._cut = asyncio.get_running_loop().call_later(self._server.limits.unread_s, self._cut_unless_read, left)

    def _look_later(self) -> None:
        self._cut = asyncio.get_running_loop().call_later(self._server.limits.unread_s, self._cut_unless_sent, len(self._unparsed))

    def _cut_unless_sent(self, before: int) -> None:
        """Cut the client off if nothing of the request has come since that it was let in with, or it takes too long; else look again."""
        if self.transport is None or self._server.is_stopping:
            return
        self._looks -= 1
        if len(self._unparsed) <= before or not self._looks:
            self.transport.abort()
        else:
            self._look_later()

    def resume_writing(self) -> None:
        self.is_unread = False
        self._uncut()
        if self.transport is not None and not self._server.is_stopping:
            self.transport.resume_reading()
            if self._is_let_in:
                self._look_later()
            self._server.resume(self)

    def _uncut(self) -> None:
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None


def _rows_in(batch: Any) -> int:
    """Return how many rows a batch has, in whatever form it came; 0 of what is none."""
    if isinstance(batch, MessageBatch | list | tuple):
        return len(batch)
    return getattr(batch, "num_rows", 0)  # of pyarrow


def _hello_in(data: bytes) -> object:
    """Return how a connection begins, in plain MessagePack: nobody knows yet who it is."""
    try:
        return msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise IllegalArgumentError(f"a connection begins with [protocol, token], and not so: {error}") from error


def _has_number(data: bytes) -> bool:
    """Say whether a request begins as one should: an array of four, and an int that is not negative."""
    return len(data) >= _NUMBER_BYTES and data[0] == 0x94 and (data[1] < 0x80 or 0xCC <= data[1] <= 0xCF)


def _number_in(data: bytes | bytearray, at: int) -> int:
    """Return the number of a request, of which there is only the beginning: an array, and an int of MessagePack in it."""
    kind = data[at + 1]
    return kind if kind < 0x80 else int.from_bytes(data[at + 2 : at + 2 + (1 << (kind & 3))], "big")


def _checked_request(request: Any) -> tuple[int, str, list[Any], dict[str, Any]]:
    match request:
        case [int(number), str(name), list(arguments), dict(named)] if set(map(type, named)) <= {str}:
            return number, name, arguments, named
    raise IllegalArgumentError("a request is [number, call, arguments, named arguments]")
