"""The connection of a store for asyncio: how its calls share it, and what becomes of them when it breaks."""

from __future__ import annotations

import asyncio
import gc
import select
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmqstore import Message, StoreUnavailableError, aio
from rmqstore.aio import AsyncStore, _Connection
from rmqstore.server import requests
from rmqstore.server.clients import Limits
from rmqstore.server.wire import frame
from tests.server.served import NOW, Served, cancelled, let_turn, soon_async as soon, waiting
from tests.server.test_aio import MINUTE

# ---------------------------------------------------------------- calls that miss the server


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Future[Exception | None]]:
    """Attempts to connect, each of which waits until it is told its error, or None; then it goes on."""
    made: list[asyncio.Future[Exception | None]] = []
    real = _Connection.to

    async def to(*arguments: Any) -> _Connection:
        made.append(asyncio.get_running_loop().create_future())
        if (error := await made[-1]) is not None:
            raise error
        return await real(*arguments)

    monkeypatch.setattr(_Connection, "to", to)
    return made


async def test_calls_share_an_attempt_to_connect(tmp_path: Path, attempts: list[asyncio.Future[Exception | None]]) -> None:
    async with asyncio.TaskGroup() as calls:
        store = aio.connect(tmp_path, patience=timedelta(0))

        async def call() -> None:
            with pytest.raises(StoreUnavailableError, match="does not answer"):
                await store.topics.list()

        for _ in range(8):
            calls.create_task(call())
        await soon(lambda: bool(attempts))
        attempts[0].set_result(TimeoutError())
    assert len(attempts) == 1


async def test_a_cancelled_call_leaves_the_attempt_to_the_others(served: Served, attempts: list[asyncio.Future[Exception | None]]) -> None:
    store = aio.connect(f"unix:{served.socket}")
    first, second = (asyncio.create_task(store.topics.list()) for _ in range(2))
    await soon(lambda: bool(attempts))
    await cancelled(first)
    attempts[0].set_result(None)
    assert await second == []
    assert len(attempts) == 1
    await store.close()


async def test_an_attempt_that_nobody_waits_for_fails_in_silence(
    tmp_path: Path, attempts: list[asyncio.Future[Exception | None]], caplog: pytest.LogCaptureFixture
) -> None:
    store = aio.connect(tmp_path)
    call = asyncio.create_task(store.topics.list())
    await soon(lambda: bool(attempts))
    call.cancel()
    await asyncio.wait([call])
    attempts[0].set_result(ConnectionRefusedError())
    while not store._connecting.done():  # type: ignore[union-attr]
        await asyncio.sleep(0)
    attempts.clear()  # they hold the error, and that the task
    gc.collect()
    assert not caplog.records


async def test_patience_counts_from_the_begin_of_an_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now_s[-1], time=time.time)
    monkeypatch.setattr(requests, "time", clock)
    monkeypatch.setattr(aio, "time", clock, raising=False)

    async def to(*_: object) -> None:
        now_s.append(now_s[-1] + 5)
        raise TimeoutError

    monkeypatch.setattr(_Connection, "to", to)

    with pytest.raises(StoreUnavailableError):
        await aio.connect(tmp_path, patience=timedelta(seconds=2)).topics.list()
    assert now_s == [0, 5]


# ---------------------------------------------------------------- pops whose answer is lost


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer is lost with its connection."""
    ask = _Connection.ask

    async def ask_and_lose(self: Any, call: Any) -> object:
        monkeypatch.setattr(_Connection, "ask", ask)
        await ask(self, call)
        await self.close()
        raise ConnectionResetError("the network is gone")

    monkeypatch.setattr(_Connection, "ask", ask_and_lose)


@pytest.mark.parametrize("call", ["pop", "pop_batch"])
@pytest.mark.parametrize("cancelled", ["in its pause", "while it connects", "while it asks again"])
async def test_what_a_cancelled_pop_had_leased_is_released_when_its_answer_was_lost(
    served: Served, store: AsyncStore, monkeypatch: pytest.MonkeyPatch, losing: None, call: str, cancelled: str
) -> None:
    reached, go = asyncio.Event(), asyncio.Event()

    def stop_at(kind: Any, name: str) -> None:
        real = getattr(kind, name)

        async def stopped(*arguments: Any) -> Any:
            reached.set()
            await go.wait()
            return await real(*arguments)

        monkeypatch.setattr(kind, name, stopped)

    def pause_s(_: requests.Underway) -> float:
        if cancelled == "in its pause":
            reached.set()
            return 3600.0
        stop_at(_Connection, "to" if cancelled == "while it connects" else "ask")
        return 0.0

    served.store.send_batch([NOW] * 3)
    monkeypatch.setattr(requests.Underway, "pause_s", pause_s)
    pop = asyncio.create_task(getattr(store, call)("t", "g"))
    await soon(reached.is_set)
    assert served.store.lag("t", "g").in_flight == 3
    pop.cancel()
    go.set()
    if call == "pop":  # else the close comes right behind the cancellation
        with pytest.raises(asyncio.CancelledError):
            await pop
    await store.close()  # it waits for that
    lag = served.store.lag("t", "g")
    assert (lag.in_flight, lag.ready + lag.retry) == (0, 3)
    assert [each.attempt for each in served.store.pop("t", "g")] == [1, 1, 1]


async def test_an_attempt_that_has_a_name_is_left_to_its_caller(
    served: Served, store: AsyncStore, monkeypatch: pytest.MonkeyPatch, losing: None
) -> None:
    served.store.send(NOW)
    reached = asyncio.Event()

    def pause_s(_: requests.Underway) -> float:
        reached.set()
        return 3600.0

    monkeypatch.setattr(requests.Underway, "pause_s", pause_s)
    pop = asyncio.create_task(store.pop("t", "g", attempt_id="mine"))
    await soon(reached.is_set)
    await cancelled(pop)
    assert len(await store.pop("t", "g", attempt_id="mine")) == 1
    assert served.store.lag("t", "g").in_flight == 1


async def test_what_a_cancelled_pop_had_leased_is_released_when_the_connection_breaks_behind_that(
    served: Served, store: AsyncStore
) -> None:
    served.store.send(NOW)
    transport: Any = store._connection._writer.transport  # type: ignore[union-attr]
    transport.pause_reading()  # its answer is on its way
    pop = asyncio.create_task(store.pop("t", "g"))
    await soon(lambda: served.store.lag("t", "g").in_flight == 1)
    await cancelled(pop)
    transport.abort()
    await soon(lambda: (lag := served.store.lag("t", "g")).in_flight == 0 and lag.ready + lag.retry == 1)


# ---------------------------------------------------------------- more calls than a server takes


def places(store: AsyncStore, *, waiting: int, others: int) -> None:
    """Let so many calls be under way on the connection of a client."""
    assert store._connection is not None
    store._connection._waiting, store._connection._others = asyncio.Semaphore(waiting), asyncio.Semaphore(others)


def test_a_server_takes_what_a_connection_carries() -> None:
    assert Limits().client_calls > aio._WAITING_CALLS + aio._OTHER_CALLS + aio._EXTENSIONS


async def test_more_calls_than_a_server_takes_wait_for_their_turn(served: Served, store: AsyncStore) -> None:
    await asyncio.gather(*(store.send(NOW) for _ in range(2000)))
    assert served.store.lag("t", "g").ready == 2000


@pytest.mark.limits(client_calls=3)
async def test_a_release_has_the_place_of_its_pop(served: Served, store: AsyncStore, monkeypatch: pytest.MonkeyPatch) -> None:
    places(store, waiting=3, others=1)
    go = threading.Event()

    pop = asyncio.create_task(store.pop("t", "g", wait=MINUTE))
    others = [asyncio.create_task(store.pop("none", "g", max_messages=1, wait=MINUTE)) for _ in range(3)]
    await soon(lambda: waiting(served) == 3)
    let_turn(served.thread)
    served.store.send(NOW)
    assert select.select([store._connection], [], [], 10)[0]
    served.thread._loop.call_soon_threadsafe(go.wait, 10)  # what is asked now comes at the same time
    pop.cancel()  # its answer is on its way
    others.append(asyncio.create_task(store.pop("none", "g", max_messages=1, wait=MINUTE)))
    for _ in range(10):
        await asyncio.sleep(0)
    go.set()
    await soon(lambda: (lag := served.store.lag("t", "g")).in_flight == 0 and lag.ready + lag.retry == 1)
    await soon(lambda: waiting(served) == 3)
    served.store.send_batch([Message("none", b"x")] * 4)
    assert sum(map(len, await asyncio.gather(*others))) == 4


async def test_a_pop_that_finds_no_place_looks_when_its_wait_ends(
    served: Served, store: AsyncStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    places(store, waiting=1, others=1)
    asked: list[Any] = []
    monkeypatch.setattr(aio, "frame", lambda request: asked.append(request) or frame(request))

    first = asyncio.create_task(store.pop("t", "g", wait=MINUTE))
    await soon(lambda: waiting(served) == 1)
    await store.send(Message("u", b"x"))
    assert len(await store.pop("u", "g", wait_ms=20)) == 1
    assert len(await store.pop("u", "g", wait_ms=20)) == 0
    assert [named["wait_ms"] for _, call, _, named in asked if call == "pop"] == [None, 0, 0]
    first.cancel()


@pytest.mark.parametrize("is_given_up", [False, True])
async def test_a_call_without_a_place_is_not_done_when_the_connection_breaks(
    served: Served, store: AsyncStore, monkeypatch: pytest.MonkeyPatch, is_given_up: bool
) -> None:
    """So it is made again, though it does harm when it is made twice."""
    places(store, waiting=1, others=1)

    transport: Any = store._connection._writer.transport  # type: ignore[union-attr]
    transport.pause_reading()  # who asks first keeps its place
    first = asyncio.create_task(store.topics.list())
    second = asyncio.create_task(store.topics.create("u"))
    for _ in range(3):
        await asyncio.sleep(0)
    if is_given_up:
        first.cancel()
        await asyncio.wait([first])
    let_turn(served.thread)
    assert served.store.topics.list() == []
    transport.abort()
    await second
    assert [each.name for each in await store.topics.list()] == ["u"]
    await asyncio.wait([first])
