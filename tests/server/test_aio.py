"""The calls of a store for asyncio."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore import (
    AckOutcome,
    ChangeOutcome,
    Flow,
    IllegalArgumentTypeError,
    ManualClock,
    Message,
    ReleaseOutcome,
    StoreClosedError,
    StorePoisonedError,
    StoreUnavailableError,
    aio,
)
from rmqstore.aio import AsyncStore, _Connection
from rmqstore.server import sharing
from rmqstore.server.calls import CALLS, METHODS
from rmqstore.server.connection import sockets
from rmqstore.server.wire import frame
from rmqstore.store.receipts import PoppedMessages
from rmqstore.transfer import migrate
from tests.pairs import DURABLE_PAIRS
from tests.server.served import ENGINE, NOW, Served, cancelled, soon_async as soon, waiting

ENGINES = [pair.timers for pair in DURABLE_PAIRS if pair.timers == pair.pops]
MINUTE = timedelta(minutes=1)


def test_every_call_of_a_store_is_there() -> None:
    store: Any = object.__new__(AsyncStore)
    for name in CALLS:
        assert asyncio.iscoroutinefunction(getattr(store, name)), name
    for name in METHODS:
        part, dot, call = name.partition(".")
        if dot:
            assert asyncio.iscoroutinefunction(getattr(getattr(store, part), call)), name


async def test_a_message_goes_in_and_comes_out(served: Served, store: AsyncStore) -> None:
    sent = await store.send(NOW, delay=MINUTE)
    assert sent.handle
    await store.send_batch([NOW, NOW])
    popped = await store.pop("t", "g")
    assert len(popped) == 2
    assert await store.ack(popped) == [AckOutcome.ACKED] * 2
    assert (await store.pending()).total == 1
    assert [each.name for each in await store.topics.list()] == ["t"]
    assert await store.cancel(sent) is rmqstore.CancelOutcome.CANCELLED
    with pytest.raises(IllegalArgumentTypeError, match="a topic name must be a str"):
        await store.send(Message(5, b"x"))  # type: ignore[arg-type]


async def test_a_hundred_pops_wait_without_a_thread_each(served: Served, store: AsyncStore) -> None:
    before = threading.active_count()
    pops = [asyncio.create_task(store.pop("t", "g", max_messages=1, wait=MINUTE)) for _ in range(100)]
    await soon(lambda: waiting(served) == 100)
    assert threading.active_count() <= before + 1
    await store.send_batch([Message("t", str(number).encode()) for number in range(100)])
    popped = [each for found in await asyncio.gather(*pops) for each in found]
    assert sorted(int(each.body) for each in popped) == list(range(100))


async def test_a_hundred_sends_wait_without_a_thread_each(served: Served, store: AsyncStore) -> None:
    served.store.pauses.begin(Flow.SENDS)
    before = threading.active_count()
    sends = [asyncio.create_task(store.send(NOW, timeout=MINUTE)) for _ in range(100)]
    await soon(lambda: waiting(served) == 100)
    assert threading.active_count() == before
    sends.pop().cancel()
    await soon(lambda: waiting(served) == 99)
    await store.pauses.end(Flow.SENDS)
    await asyncio.gather(*sends)
    assert served.store.lag("t", "g").ready == 99


async def test_a_cancelled_pop_ends_at_the_server(served: Served, store: AsyncStore) -> None:
    pop = asyncio.create_task(store.pop("t", "g", wait=MINUTE))
    await soon(lambda: waiting(served) == 1)
    await cancelled(pop)
    await soon(lambda: waiting(served) == 0)
    await store.send(NOW)
    assert len(await store.pop("t", "g")) == 1


@pytest.mark.parametrize("call", ["pop", "pop_batch"])
async def test_what_a_cancelled_pop_had_leased_is_released(served: Served, call: str, store: AsyncStore) -> None:
    await store.send_batch([NOW] * 3)
    pop = asyncio.create_task(getattr(store, call)("t", "g"))
    while not store._connection._asked:  # type: ignore[union-attr]
        await asyncio.sleep(0)
    await cancelled(pop)  # it is on its way
    await store.topics.list()  # behind it
    await soon(lambda: (lag := served.store.lag("t", "g")).in_flight == 0 and lag.ready + lag.retry == 3)
    assert [each.attempt for each in await store.pop("t", "g")] == [1, 1, 1]


async def test_a_cancelled_pop_with_an_attempt_of_its_caller_keeps_its_leases(served: Served, store: AsyncStore) -> None:
    """P1: who asks for the attempt again has them, and no release comes behind that."""
    await store.send(NOW)
    pop = asyncio.create_task(store.pop("t", "g", attempt_id="mine"))
    await asyncio.sleep(0)  # the request is written
    pop.cancel()
    again = await store.pop("t", "g", attempt_id="mine")
    await asyncio.wait([pop])
    await store.topics.list()  # behind it
    assert await store.ack(list(again)) == [AckOutcome.ACKED]


async def test_a_close_keeps_the_leases_of_a_pop_with_an_attempt_of_its_caller(served: Served) -> None:
    """As a cancellation does."""
    async with aio.connect(f"unix:{served.socket}") as store:
        await store.send(NOW)
        pop = asyncio.create_task(store.pop("t", "g", attempt_id="mine"))
        await asyncio.sleep(0)  # the request is written
    await asyncio.gather(pop, return_exceptions=True)
    await soon(lambda: not served.thread._server.clients)
    assert served.store.lag("t", "g").in_flight == 1
    assert len(served.store.pop("t", "g", attempt_id="mine")) == 1


async def test_a_cancelled_read_leaves_the_connection_to_the_others(served: Served, store: AsyncStore) -> None:
    """Its answer is a batch of messages, as that of a pop is, of which none is leased."""
    await store.send(NOW)
    connection = store._connection
    read = asyncio.create_task(store.read("t"))
    await asyncio.sleep(0)  # the request is written
    read.cancel()
    assert await store.verify() == []
    assert store._connection is connection


async def test_an_extension_waits_behind_no_call_of_the_program(served: Served, store: AsyncStore) -> None:
    """Else a lease ends while its handler asks the store for much."""
    await store.send(NOW)
    (leased,) = await store.pop("t", "g")
    gate = served.hold("where")
    looks = [asyncio.create_task(store.where(id="m")) for _ in range(aio._OTHER_CALLS + 1)]
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        assert (await store.change_invisible(leased, MINUTE)).outcome is ChangeOutcome.CHANGED
    assert not any(each.done() for each in looks)
    gate.set()
    await asyncio.gather(*looks)


@pytest.mark.parametrize("ends", ["awaited", "not awaited", "not cancelled"])
async def test_a_pop_under_way_leaves_no_lease_behind_a_close(served: Served, ends: str) -> None:
    """P7: nobody has the messages, so their attempt does not count."""
    async with aio.connect(f"unix:{served.socket}") as store:
        await store.send(NOW)
        pop = asyncio.create_task(store.pop("t", "g"))
        await asyncio.sleep(0)  # the request is written
        if ends != "not cancelled":
            pop.cancel()
        if ends == "awaited":
            await asyncio.wait([pop])
    (outcome,) = await asyncio.gather(pop, return_exceptions=True)
    if ends == "not cancelled" and isinstance(outcome, PoppedMessages):  # the answer came before the close
        assert served.store.release(outcome) == [ReleaseOutcome.RELEASED]
    else:
        assert isinstance(outcome, StoreClosedError if ends == "not cancelled" else asyncio.CancelledError)
    await soon(lambda: not served.thread._server.clients)
    lag = served.store.lag("t", "g")
    assert (lag.in_flight, lag.ready + lag.retry) == (0, 1)
    assert [each.attempt for each in served.store.pop("t", "g")] == [1]


def behind_what_comes(act: Callable[[], object]) -> None:
    """Do something when the loop has read what the only connection gets next, in the same turn, as a timer that is due does."""
    (connection,) = (each for each in sockets if isinstance(each, _Connection) and each.fileno() != -1)
    assert select.select([connection], [], [], 10)[0]
    asyncio.get_running_loop().call_later(0, act)


async def test_an_answer_that_comes_in_the_turn_of_the_cancellation_is_released(served: Served, store: AsyncStore) -> None:
    pop = asyncio.create_task(store.pop("t", "g", wait=MINUTE))
    await soon(lambda: waiting(served) == 1)
    served.store.send(NOW)
    behind_what_comes(pop.cancel)
    with pytest.raises(asyncio.CancelledError):
        await pop
    await store.topics.list()
    await soon(lambda: (lag := served.store.lag("t", "g")).in_flight == 0 and lag.ready + lag.retry == 1)


async def test_a_call_goes_on_when_the_server_is_back(served: Served, store: AsyncStore) -> None:
    await store.send(NOW)
    pops = [asyncio.create_task(store.pop("u", "g", max_messages=1, wait=MINUTE)) for _ in range(3)]
    await soon(lambda: waiting(served) == 3)
    await asyncio.to_thread(served.thread.stop)
    sends = [asyncio.create_task(store.send(NOW)) for _ in range(3)]
    await asyncio.sleep(0)
    served.start()
    assert not any(each.repeated for each in await asyncio.gather(*sends))
    await soon(lambda: waiting(served) == 3)
    await store.send_batch([Message("u", b"x")] * 3)
    assert sum(map(len, await asyncio.gather(*pops))) == 3
    assert served.store.lag("t", "g").ready == 4


async def test_a_close_ends_what_waits(served: Served) -> None:
    store = await aio.connect(f"unix:{served.socket}")
    pop = asyncio.create_task(store.pop("t", "g", wait=MINUTE))
    await soon(lambda: waiting(served) == 1)
    await store.close()
    with pytest.raises(StoreClosedError):
        await pop
    await soon(lambda: not served.thread._server.clients)


async def test_opened_by_this_process(tmp_path: Path) -> None:
    clock = ManualClock(0)
    async with aio.open(tmp_path / "s", engine=ENGINE, clock=clock, services=False) as store:
        await store.send(NOW, delay_ms=1000)
        clock.advance(1000)
        assert (await store.tick()).handed_over == 1
        async with aio.connect(tmp_path / "s") as other:
            assert len(await other.pop("t", "g")) == 1
    with pytest.raises(StoreClosedError):
        await store.pending()


async def test_a_cancelled_open_leaves_no_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, real = threading.Event(), threading.Event(), sharing.open_store

    def slow(*arguments: Any, **named: Any) -> Any:
        begun.set()
        go.wait(10)  # a recovery that takes a while
        return real(*arguments, **named)

    monkeypatch.setattr(sharing, "open_store", slow)

    async def using() -> None:
        async with aio.open(tmp_path / "s", engine=ENGINE):
            pass

    task = asyncio.create_task(using())
    await soon(begun.is_set)
    await cancelled(task)
    go.set()
    monkeypatch.undo()
    async with aio.open(tmp_path / "s", engine=ENGINE) as store:  # at the latest when the other one is opened and closed
        await store.send(NOW)
    rmqstore.open(tmp_path / "s", engine=ENGINE).close()


async def test_a_cancelled_close_leaves_no_owner(tmp_path: Path) -> None:
    store = await aio.open(tmp_path / "s", engine=ENGINE)
    connection = store._connection
    assert connection is not None
    for _ in range(3):
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
    await store.close()
    assert connection.is_broken
    rmqstore.open(tmp_path / "s", engine=ENGINE).close()
    with pytest.raises(StoreClosedError):
        await store.pending()


@pytest.mark.skipif(not DURABLE_PAIRS, reason="no engine that keeps anything is installed")
async def test_a_follower_takes_over(tmp_path: Path) -> None:
    first = await aio.open(tmp_path / "s", engine=ENGINE)
    async with aio.open(tmp_path / "s", engine=ENGINE) as second:
        await second.send(NOW)
        pop = asyncio.create_task(second.pop("u", "g", wait=MINUTE))
        await first.close()
        await second.send(Message("u", b"y"))
        assert [each.body for each in await pop] == [b"y"]
        assert len(await second.pop("t", "g")) == 1


@pytest.mark.skipif(not DURABLE_PAIRS, reason="no engine that keeps anything is installed")
async def test_a_follower_stays_with_its_store(tmp_path: Path) -> None:
    """X5: whatever has its name now."""
    first = await aio.open(tmp_path / "s", engine=ENGINE)
    async with aio.open(tmp_path / "s", engine=ENGINE) as second:
        await second.send(NOW)
        (tmp_path / "s").rename(tmp_path / "moved")
        async with aio.open(tmp_path / "s", engine=ENGINE) as other:
            await first.close()
            await second.send(NOW)
            assert len(await second.pop("t", "g")) == 2
            assert await other.topics.list() == []


@pytest.mark.skipif(len(ENGINES) < 2, reason="needs two durable engines")
async def test_a_send_that_was_under_way_when_the_store_was_migrated_may_have_been_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await aio.open(tmp_path / "s", engine=ENGINE)
    ask = _Connection.ask

    async def ask_and_lose(self: Any, call: Any) -> object:
        await ask(self, call)
        await first.close()
        await asyncio.to_thread(migrate, tmp_path / "s", engine=ENGINES[1])
        raise ConnectionResetError("the owner is dead")

    async with aio.open(tmp_path / "s", engine=ENGINE) as second:
        monkeypatch.setattr(_Connection, "ask", ask_and_lose)
        with pytest.raises(StoreUnavailableError, match=r"open it again.*may have been done"):
            await second.send(NOW)
        monkeypatch.undo()
        with pytest.raises(StorePoisonedError, match="open it again"):
            await second.send(NOW)


async def test_a_close_while_a_call_connects_again(served: Served) -> None:
    store = await aio.connect(f"unix:{served.socket}")
    await store._connection.close()  # type: ignore[union-attr]
    call = asyncio.create_task(store.topics.list())
    while store._connecting is None or store._connecting.done():
        await asyncio.sleep(0)
    await store.close()
    with pytest.raises(StoreClosedError):
        await call
    await soon(lambda: not served.thread._server.clients)


@pytest.mark.parametrize("call", ["topics", "pop"])
async def test_a_close_right_behind_a_new_connection_ends_its_call(tmp_path: Path, call: str) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    came, go = threading.Event(), threading.Event()

    def serve() -> None:
        peer, _ = listener.accept()
        with listener, peer:
            peer.recv(4096)
            came.set()
            go.wait(10)
            peer.sendall(frame([0, {"path": "/x", "frame_bytes": 1 << 20, "is_server": True}]))
            while asked := peer.recv(4096):
                if call == "pop" and b"give_up" in asked:
                    peer.sendall(frame([1, []]))

    threading.Thread(target=serve, daemon=True).start()

    store = aio.connect(f"unix:{tmp_path / 's'}")  # its first call connects
    asked = asyncio.create_task(store.topics.list() if call == "topics" else store.pop("t", "g", wait=MINUTE))
    await soon(came.is_set)

    ending: asyncio.Future[asyncio.Task[None]] = asyncio.get_running_loop().create_future()
    go.set()
    behind_what_comes(lambda: ending.set_result(asyncio.create_task(store.close())))
    await asyncio.wait_for(await ending, 3)
    with pytest.raises(StoreClosedError):
        await asyncio.wait_for(asked, 3)


async def test_nobody_is_there(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="nobody serves a store at"):
        await aio.connect(tmp_path)


async def test_a_close_sends_what_is_on_its_way(served: Served) -> None:
    with suppress(TimeoutError):
        async with aio.connect(f"unix:{served.socket}") as store, asyncio.timeout(0.002):
            await store.send(Message("t", bytes(3_900_000)))
    await soon(lambda: [each.name for each in served.store.topics.list()] == ["t"])
    assert served.store.lag("t", "g").ready == 1


async def test_a_close_does_not_wait_for_a_server_that_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "_RELEASE_S", 0.2)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()

        def greet() -> socket.socket:
            end, _ = listening.accept()
            end.recv(1000)
            end.sendall(frame([0, {"path": "s", "frame_bytes": 1 << 28, "is_server": True, "lineage": 0}]))
            return end

        greeting = asyncio.create_task(asyncio.to_thread(greet))
        store = await aio.connect(f"unix:{tmp_path / 'socket'}")
        with await greeting:
            send = asyncio.create_task(store.send(Message("t", bytes(4 << 20))))
            await asyncio.sleep(0.05)
            send.cancel()
            await store.close()
