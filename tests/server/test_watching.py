"""HTTP for who watches a server: what each page says, and what it takes no part in."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

import rmqstore
from rmqstore import ManualClock, Message, Store, StorePoisonedError
from rmqstore.server import watching
from rmqstore.server.watching import Watch

MUCH = b"m" * (32 << 20)
"""A page that is more than the system buffers."""


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)  # none of this needs it
    with rmqstore.open(tmp_path / "store", engine="memory", clock=clock, services=False) as opened:
        yield opened


async def said(port: int, request: bytes) -> bytes:
    """Return all that comes back for what is sent, until the other end closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        await closed(writer)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@asynccontextmanager
async def watched(store: Store, metrics: Callable[[], bytes] | None = None) -> AsyncIterator[int]:
    """Answer on a port until the end of the block."""
    watch = Watch(store, metrics)
    port = await watch.listen("127.0.0.1", 0)
    try:
        yield port
    finally:
        await watch.stop()


async def pages(store: Store, *paths: str, method: str = "GET", metrics: Callable[[], bytes] | None = None) -> list[tuple[int, bytes]]:
    """Return status and text of some pages."""
    found: list[tuple[int, bytes]] = []
    async with watched(store, metrics) as port:
        for path in paths:
            head, _, text = (await said(port, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())).partition(b"\r\n\r\n")
            found.append((int(head.split()[1]), text))
    return found


async def test_a_store_that_is_late_is_live_and_not_ready(store: Store, clock: ManualClock) -> None:
    store.send(Message("t", b"x"), delay=timedelta(seconds=1))
    assert [status for status, _ in await pages(store, "/health", "/health/live")] == [200, 200]
    clock.advance(60_000)
    (ready, told), (live, _) = await pages(store, "/health", "/health/live?verbose")
    assert (ready, live) == (503, 200)
    assert json.loads(told) == {"live": True, "ready": False, "problems": ["1 timers are overdue, the first one by 59 s"]}


async def test_a_poisoned_store_is_not_live(store: Store) -> None:
    store._poisoned(StorePoisonedError("the disk failed"))
    for status, told in await pages(store, "/health", "/health/live"):
        assert status == 503
        assert json.loads(told) == {"live": False, "ready": False, "problems": ["the disk failed"]}


async def test_pages_that_there_are_not(store: Store) -> None:
    assert await pages(store, "/metrics", "/", "") == [(404, b"there is /health, /health/live\n")] * 3
    assert await pages(store, "/health", method="POST") == [(405, b"GET\n")]
    assert await pages(store, "/health", method="HEAD") == [(200, b"")]


async def test_a_page_that_fails_says_so(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> bytes:
        raise ZeroDivisionError

    assert (await pages(store, "/metrics", "/health", metrics=broken))[0] == (500, b"the log of the server says why\n")
    assert "/metrics" in caplog.text


async def test_silent_clients_keep_nobody_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_CLIENTS", 2)
    async with watched(store) as port:
        assert await said(port, b"x" * 20_000) == b""
        assert (await said(port, b"\r\n\r\n")).startswith(b"HTTP/1.1 404")
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        assert (await said(port, b"GET /health HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await silent[0][0].read() == b""  # the place of the first was taken
        silent[1][1].write(b"GET /health HTTP/1.1\r\n\r\n")
        assert (await silent[1][0].read()).startswith(b"HTTP/1.1 200")
        silent.append(await asyncio.open_connection("127.0.0.1", port))
    for reader, writer in silent:
        assert await reader.read() == b""  # the stop has ended it
        await closed(writer)


async def test_who_is_being_answered_keeps_its_place(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_CLIENTS", 1)
    begun, goes_on = threading.Event(), threading.Event()

    def slow() -> bytes:
        begun.set()
        goes_on.wait(30)
        return MUCH

    async with watched(store, slow) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        await asyncio.to_thread(begun.wait, 30)
        assert await said(port, b"GET /health HTTP/1.1\r\n\r\n") == b""
        goes_on.set()
        while not await said(port, b"GET /health HTTP/1.1\r\n\r\n"):  # until all that is left is that the other one reads
            await asyncio.sleep(0)
        with suppress(ConnectionError):
            assert len(await reader.read()) < len(MUCH)
        await closed(writer)


async def test_who_reads_slowly_gets_all(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    async with watched(store, lambda: MUCH) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        while await reader.read(100_000):
            await asyncio.sleep(0)
        await closed(writer)
    gc.collect()  # what a task ended with is logged when nobody has asked for it by then
    assert caplog.messages == []


async def test_a_client_that_says_nothing_is_cut_off(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_REQUEST_S", 0.01)
    async with watched(store) as port:
        assert await said(port, b"GET /health") == b""


async def test_who_does_not_read_its_answer_is_cut_off(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as that happens, no descriptor is left with it."""
    monkeypatch.setattr(watching, "_REQUEST_S", 0.05)
    begun = threading.Event()

    def much() -> bytes:
        begun.set()
        return MUCH

    async with watched(store, much) as port:
        before = len(list(Path("/proc/self/fd").iterdir()))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        await asyncio.to_thread(begun.wait, 30)
        while len(list(Path("/proc/self/fd").iterdir())) > before + 1:
            await asyncio.sleep(0.01)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        with suppress(ConnectionError):
            assert len(await reader.read()) < len(MUCH)
        await closed(writer)
