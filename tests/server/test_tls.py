"""A server on TLS, or on a port without: what waits for clients to read it is known, and its end waits for nobody who is owed nothing."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trustme

import rmqstore
from rmqstore import Message, PollingFullError, UnsupportedOperationError, aio
from rmqstore.batch import MessageBatch
from rmqstore.server.clients import Limits
from rmqstore.server.connection import Address, Connection
from rmqstore.server.serving import Server
from rmqstore.server.wire import frame
from tests.server.served import NOW, Served, answer, asked, let_turn, soon

READS, BODY_BYTES = 5, 4 << 20
"""So many reads of two such bodies are more than the system buffers."""


@pytest.fixture(scope="module")
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Those of the server and of a client."""
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


class Encrypted(Served):
    """A server on a port with TLS."""

    def __init__(self, root: Path, contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
        super().__init__(root)
        server, self.tls = contexts
        (self.port,) = self.thread._done(self.thread._server.entrance.listen("127.0.0.1", 0, server))  # type: ignore[misc]
        (self.plain_port,) = self.thread._done(self.thread._server.entrance.listen("127.0.0.1", 0))  # type: ignore[misc]

    def connection(self, *, is_tls: bool = True) -> Connection:
        """Return a new connection of a client."""
        port, tls = (self.port, self.tls) if is_tls else (self.plain_port, None)
        return Connection(Address(host="127.0.0.1", port=port, is_tls=is_tls), None, tls)

    def unread(self, *, is_tls: bool = True) -> Connection:
        """Return a connection on which much is on its way that nobody reads."""
        self.store.send_batch([Message("t", bytes(BODY_BYTES))] * 2)
        connection = self.connection(is_tls=is_tls)
        for number in range(READS):
            connection._socket.sendall(frame([1 + number, "read", ["t", 0, 0], {}]))
        soon(lambda: any(each.unread_bytes > BODY_BYTES for each in self.thread._server.clients))
        return connection


@pytest.fixture
def encrypted(tmp_path: Path, contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> Iterator[Encrypted]:
    made = Encrypted(tmp_path, contexts)
    yield made
    made.close()


def test_a_stop_does_not_wait_for_clients_that_say_nothing(encrypted: Encrypted) -> None:
    """As those of ``connect`` between two calls, which read nothing, and so do not agree to the end of TLS."""
    clients = [rmqstore.connect(f"rmqstores://127.0.0.1:{encrypted.port}", tls=encrypted.tls) for _ in range(3)]
    for client in clients:
        client.send(NOW)
    begun_s = time.monotonic()
    encrypted.thread.stop()
    assert time.monotonic() - begun_s < 2
    for client in clients:
        client.close()


@pytest.mark.parametrize("is_tls", [True, False])
def test_what_a_client_is_owed_is_sent_before_the_end(encrypted: Encrypted, is_tls: bool) -> None:
    """Also when it asks for more meanwhile, which the server takes no more."""
    connection = encrypted.unread(is_tls=is_tls)
    stopped = encrypted.threads.submit(encrypted.thread.stop)
    soon(lambda: encrypted.thread._server.is_stopping)
    let_turn(encrypted.thread)
    connection._socket.sendall(frame([1 + READS, "lag", ["t", "g"], {}]))
    for _ in range(READS):
        batch = answer(connection)[1]
        assert isinstance(batch, MessageBatch)
        assert batch.columns.nbytes > 2 * BODY_BYTES
    with suppress(ConnectionResetError):  # the last request was not read
        assert connection._reader.read() == b""
    stopped.result(2)
    connection.close()


@pytest.mark.parametrize("is_tls", [True, False])
def test_what_the_system_has_not_sent_yet_is_sent_before_the_end(encrypted: Encrypted, is_tls: bool) -> None:
    encrypted.store.send(Message("t", bytes(BODY_BYTES // 2)))
    connection = encrypted.connection(is_tls=is_tls)
    connection._socket.sendall(frame([1, "read", ["t", 0, 0], {}]))
    (client,) = encrypted.thread._server.clients
    soon(lambda: not client.is_served and not client.unread_bytes)
    stopped = encrypted.threads.submit(encrypted.thread.stop)
    soon(lambda: encrypted.thread._server.is_stopping)
    let_turn(encrypted.thread)
    connection._socket.sendall(frame([2, "lag", ["t", "g"], {}]))
    assert isinstance(answer(connection)[1], MessageBatch)
    stopped.result(2)
    connection.close()


def test_a_client_that_goes_while_a_server_stops_keeps_no_other_waiting(encrypted: Encrypted) -> None:
    """Of TLS, its transport has no socket any more, a moment before the client is told."""
    connection = encrypted.connection()
    (client,) = encrypted.thread._server.clients
    assert client.transport is not None
    client.transport.get_extra_info = lambda name: None  # type: ignore[method-assign, misc, assignment]
    encrypted.thread.stop()
    connection.close()


def test_what_nobody_reads_counts_as_held(encrypted: Encrypted) -> None:
    connection, other = encrypted.unread(), encrypted.connection()
    encrypted.thread._server.limits = Limits(held_bytes=BODY_BYTES)
    assert isinstance(other.ask("pop", *asked(wait_ms=0)), PollingFullError)
    for _ in range(READS):
        answer(connection)
    soon(lambda: encrypted.thread._server.refusal() is None)
    connection.close()
    other.close()


def test_a_server_runs_on_uvloop(tmp_path: Path, contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """But for TLS, of which uvloop loses the first bytes; no descriptor is closed that has become another file's."""
    uvloop = pytest.importorskip("uvloop")

    async def run() -> None:
        server = Server(store, limits=Limits(connections=2))
        (port,) = await server.entrance.listen("127.0.0.1", 0)
        with pytest.raises(UnsupportedOperationError, match="not by uvloop"):
            await server.entrance.listen("127.0.0.1", 0, contexts[0])
        silent = []
        for _ in range(80):
            silent.append(await asyncio.open_connection("127.0.0.1", port))
            files.append(os.open(os.devnull, os.O_RDONLY))
        async with aio.connect(f"rmqstore://127.0.0.1:{port}") as client:
            await client.send(NOW)
            files.append(os.open(os.devnull, os.O_RDONLY))
            assert len(await client.pop("t", "g")) == 1
            await server.stop()
        for _, writer in silent:
            writer.close()

    files: list[int] = []
    with rmqstore.open(tmp_path / "store", engine="memory", services=False) as store:
        uvloop.run(run())
    for each in files:
        os.close(each)
