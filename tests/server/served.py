"""A store that is served in the process, for tests of what goes over a connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest

import rmqstore
from rmqstore import ManualClock, Message, Store
from rmqstore.server.connection import Address, Connection
from rmqstore.server.serving import ServerThread
from rmqstore.server.wire import HEAD, frame, unpack
from tests.pairs import DURABLE_PAIRS

ENGINE = DURABLE_PAIRS[0].timers if DURABLE_PAIRS else "memory"
SECOND = timedelta(seconds=1)
NOW = Message("t", b"x")


class Lost(Protocol):
    """Lets the answer to the next call of a client be lost, and then does something."""

    def __call__(self, then: Callable[[], object] = lambda: None) -> None:
        """Do so."""


class Raw(Connection):
    """A connection for what no client says."""

    def say(self, *requests: list[Any]) -> None:
        """Send requests, in one piece: number, call, arguments and named arguments of each."""
        self._socket.sendall(b"".join(map(frame, requests)))


class Served:
    """A store that is served on a unix socket, clients of it, and threads for their calls."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.clock = ManualClock(1_800_000_000_000)
        self.store = rmqstore.open(root / "store", engine=ENGINE, clock=self.clock, services=False)
        self.socket = root / "socket"
        self.options = options
        self.clients: list[Store | Connection] = []
        self.threads = ThreadPoolExecutor(16)
        self.start()

    def start(self) -> None:
        """Serve it."""
        self.thread = ServerThread(self.store, lambda entrance: entrance.listen_unix(self.socket), **self.options)

    def connect(self, **options: Any) -> Store:
        """Return a new client."""
        client = rmqstore.connect(f"unix:{self.socket}", **options)
        self.clients.append(client)
        return client

    def raw(self) -> Raw:
        """Return a new connection."""
        connection = Raw(Address(self.socket), None, None)
        self.clients.append(connection)
        return connection

    def waits(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Future[Any]:
        """Make a call in a thread; it waits at the server when this returns."""
        before = waiting(self)
        made = self.threads.submit(call, *arguments, **named)
        soon(lambda: waiting(self) == before + 1)
        return made

    def hold(self, call: str) -> threading.Event:
        """Let a call of the store wait until the event is set."""
        gate, real = threading.Event(), getattr(self.store, call)

        def held(*arguments: Any, **named: Any) -> Any:
            gate.wait(30)
            return real(*arguments, **named)

        setattr(self.store, call, held)
        return gate

    def close(self) -> None:
        """Close everything."""
        for client in self.clients:
            client.close()
        self.thread.stop()
        self.store.close()
        self.threads.shutdown()


def soon(condition: Callable[[], bool]) -> None:
    """Wait until another thread has done something."""
    done = threading.Event()
    for _ in range(2000):
        if condition():
            return
        done.wait(0.005)
    raise AssertionError("it did not happen in ten seconds")


async def soon_async(condition: Callable[[], bool]) -> None:
    """Let other tasks and threads go on until something has happened."""
    for _ in range(4000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it did not happen")


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and see that it is."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine, for half a minute at most."""

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work

    asyncio.run(bounded())


def let_turn(thread: ServerThread) -> None:
    """Let the loop of a server do what there is to do."""
    for _ in range(10):
        thread._done(asyncio.sleep(0))


def waiting(served: Served) -> int:
    """Return how many pops wait at the server."""
    return served.thread._server._waiting


def answer(connection: Connection) -> tuple[int, object]:
    """Return the number and the value of the next answer."""
    number, value = unpack(connection._read(HEAD.unpack(connection._read(4))[0]))
    return number, value


def asked(attempt: str | None = None, wait_ms: int = 60_000, *, is_fresh: bool = True) -> tuple[list[Any], dict[str, Any]]:
    """Return what a pop of topic t for group g says to a server."""
    named = {"invisible": None, "invisible_ms": None, "wait": None, "wait_ms": wait_ms, "attempt_id": attempt, "queue": None}
    return ["t", "g", [], is_fresh], {**named, "max_messages": 1, "order": False, "filter": "*"}
