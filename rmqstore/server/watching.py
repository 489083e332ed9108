"""HTTP for who watches a server: ``/metrics``, ``/health`` and ``/health/live``, on a port of its own (docs/server.md)."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from http import HTTPStatus
from socket import socket
from typing import Final, NamedTuple, cast

from rmqstore.errors import RmqstoreError
from rmqstore.server.listening import Listener, bound
from rmqstore.services.metrics import observe
from rmqstore.store import Store

_log = logging.getLogger("rmqstore")

_REQUEST_BYTES: Final = 8192
_REQUEST_S: Final = 10.0
"""What a request may hold, and how long it may take to come."""

_CLIENTS: Final = 32
"""So many connections at a time; what they ask for is read by one thread, one after the other. One more takes the place of the one that
has kept the server waiting for longest, for its request or to read its answer: else silent ones would keep out who checks the server."""


class _Answer(NamedTuple):
    status: HTTPStatus
    text: bytes
    kind: str = "text/plain; charset=utf-8"


class Watch:
    """Answers on a port how a store does; lives in an asyncio loop.

    Args:
        metrics: makes the text of ``/metrics``; without it there is no such page.
    """

    def __init__(self, store: Store, metrics: Callable[[], bytes] | None = None) -> None:
        self._store = store
        self._pages: dict[str, Callable[[], _Answer]] = {
            "/health": functools.partial(self._health, "ready"),
            "/health/live": functools.partial(self._health, "live"),
        }
        if metrics is not None:
            self._pages["/metrics"] = lambda: _Answer(HTTPStatus.OK, metrics(), "text/plain; version=0.0.4; charset=utf-8")
        self._listeners: list[Listener] = []
        self._clients: set[asyncio.Task[None]] = set()
        self._awaited: dict[asyncio.Task[None], None] = {}  # those of them that it waits for, the longest first
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="rmqstore-watch")

    async def listen(self, host: str, port: int) -> int:
        """Listen on a TCP port, 0 for a free one; returns the port."""
        self._listeners = [Listener(each, self._let_in) for each in await bound(host, port)]
        port_taken: int = self._listeners[0].listening.getsockname()[1]
        return port_taken

    async def stop(self) -> None:
        """Take no more requests, and end those that are under way."""
        for listener in self._listeners:
            listener.close()
        await asyncio.sleep(0)  # who has just come has a connection to close then
        for task in self._clients:
            task.cancel()
        if self._clients:
            await asyncio.wait(self._clients)
        self._pool.shutdown()

    def _let_in(self, made: socket) -> None:
        if len(self._clients) >= _CLIENTS:
            if not self._awaited:
                made.close()
                return
            longest = next(iter(self._awaited))
            del self._awaited[longest]
            self._clients.remove(longest)
            longest.cancel()
        client = asyncio.get_running_loop().create_task(self._serve(made))
        self._clients.add(client)
        client.add_done_callback(self._clients.discard)

    async def _serve(self, made: socket) -> None:
        reader, writer = await asyncio.open_connection(sock=made, limit=_REQUEST_BYTES)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await self._exchange(reader, writer)
        finally:
            writer.transport.abort()

    @asynccontextmanager
    async def _waiting(self) -> AsyncIterator[None]:
        """Wait for a client, for so long at most, and only as long as nobody else needs its place."""
        client = cast("asyncio.Task[None]", asyncio.current_task())
        self._awaited[client] = None
        try:
            async with asyncio.timeout(_REQUEST_S):
                yield
        finally:
            self._awaited.pop(client, None)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._waiting():
            head = await reader.readuntil(b"\r\n\r\n")
        method, path, *_ = [*head.partition(b"\r\n")[0].decode("latin-1").split(" "), ""]
        answer = await self._answer(method, path.partition("?")[0])
        fields = f"Content-Type: {answer.kind}\r\nContent-Length: {len(answer.text)}\r\nConnection: close\r\n\r\n"
        writer.transport.set_write_buffer_limits(0)
        writer.write(f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n{fields}".encode())
        if method != "HEAD":
            writer.write(answer.text)
        async with self._waiting():
            await writer.drain()  # nothing of it waits here any more

    async def _answer(self, method: str, path: str) -> _Answer:
        if (page := self._pages.get(path)) is None:
            return _Answer(HTTPStatus.NOT_FOUND, f"there is {', '.join(self._pages)}\n".encode())
        if method not in ("GET", "HEAD"):
            return _Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"GET\n")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, page)
        except Exception:
            _log.exception("a page for who watches the server failed: %s", path)
            return _Answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"the log of the server says why\n")

    def _health(self, wanted: str) -> _Answer:
        """Tell how the store does; one whose calls raise, as after a failed sync, is not live: only to begin anew helps it."""
        try:
            health = self._store.health()
            told = {"live": True, "ready": health.is_ready, "problems": health.problems}
        except RmqstoreError as error:
            told = {"live": False, "ready": False, "problems": [str(error)]}
        status = HTTPStatus.OK if told[wanted] else HTTPStatus.SERVICE_UNAVAILABLE
        return _Answer(status, json.dumps(told).encode() + b"\n", "application/json")


@contextmanager
def exported(store: Store) -> Iterator[Callable[[], bytes]]:
    """Observe a store until the end of the block; gives what makes the text that Prometheus reads, of the store and of this process."""
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider
    from prometheus_client import REGISTRY, generate_latest

    provider = MeterProvider([PrometheusMetricReader(disable_target_info=True)], shutdown_on_exit=False)
    try:
        with observe(store, provider):
            yield functools.partial(generate_latest, REGISTRY)
    finally:
        provider.shutdown()
