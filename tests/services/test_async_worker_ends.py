"""How workers of asyncio end: by a stop, with their program, their store or a handler, and by errors that do not pass."""

from __future__ import annotations

import asyncio

import pytest

from rmqstore import (
    IllegalArgumentError,
    LostCallsError,
    Message,
    PoppedMessage,
    RmqstoreError,
    StoreClosedError,
    aio,
)
from rmqstore.aio import AsyncStore
from tests.server.served import Served, run, soon_async as soon, waiting
from tests.services.async_handlers import Gate, nothing, raising
from tests.services.consumers import bodies


async def test_a_stop_waits_for_what_runs_and_gives_back_what_was_not_begun_at_once(served: Served, store: AsyncStore) -> None:
    await store.send_batch(bodies(8))
    gate = Gate()
    worker = store.consume("t", "g", gate, at_once=2, batch=8)
    await gate.begun.wait()
    stopping = asyncio.create_task(worker.stop())
    await soon(lambda: served.store.lag("t", "g").in_flight == 2)
    assert not stopping.done()
    gate.go_on.set()
    await stopping
    await worker.stop()
    await worker.join()
    assert worker.stats.done == 2
    lag = served.store.lag("t", "g")
    assert (lag.in_flight, lag.ready + lag.retry) == (0, 6)
    assert all(each.attempt == 1 for each in served.store.pop("t", "g"))


async def test_a_stop_ends_a_pop_that_waits(served: Served, store: AsyncStore) -> None:
    async with store.consume("t", "g", nothing):
        await soon(lambda: waiting(served) == 1)
    await soon(lambda: waiting(served) == 0)


async def test_a_stop_that_is_cancelled_goes_on_by_itself(served: Served, store: AsyncStore) -> None:
    await store.send_batch(bodies(3))
    gate = Gate()
    worker = store.consume("t", "g", gate)
    await gate.begun.wait()
    stopping = asyncio.create_task(worker.stop())
    await soon(lambda: served.store.lag("t", "g").in_flight == 1)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    gate.go_on.set()
    await worker.join()
    assert (worker.stats.done, served.store.lag("t", "g").in_flight) == (1, 0)


async def test_a_consumer_that_is_cancelled_gives_back(served: Served, store: AsyncStore) -> None:
    gates: list[Gate] = []

    async def consume(store: AsyncStore) -> None:
        gates.append(Gate())
        async with store.consume("t", "g", gates[0]) as worker:
            await worker.join()

    await store.send_batch(bodies(5))
    consuming = asyncio.create_task(consume(store))
    await soon(lambda: bool(gates) and gates[0].begun.is_set())
    consuming.cancel()
    await soon(lambda: served.store.lag("t", "g").in_flight == 1)
    gates[0].go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await consuming
    lag = served.store.lag("t", "g")
    assert (lag.in_flight, lag.ready + lag.retry) == (0, 4)


async def test_a_handler_that_somebody_cancels_ends_the_worker(served: Served, store: AsyncStore) -> None:
    """Its lease ends by itself; as who cancels all tasks wants no calls any more, none is made for it."""
    await store.send_batch(bodies(2))
    gate = Gate()
    worker = store.consume("t", "g", gate)
    await gate.begun.wait()
    for task in worker._handlers:
        task.cancel()
    await worker.join()
    assert isinstance(worker.failure, asyncio.CancelledError)
    with pytest.raises(RmqstoreError, match="ended its worker by CancelledError"):
        await worker.stop()
    assert served.store.lag("t", "g").in_flight == 1
    served.clock.advance(61_000)
    assert served.store.tick().retried == 1


def test_a_program_that_ends_without_a_stop_loses_nothing(served: Served) -> None:
    served.store.send_batch(bodies(3))

    async def forgetful() -> None:
        store = await aio.connect(f"unix:{served.socket}")
        gate = Gate()
        store.consume("t", "g", gate)
        await gate.begun.wait()

    run(forgetful())
    served.clock.advance(61_000)
    served.store.tick()
    assert len(served.store.pop("t", "g")) == 3


@pytest.mark.parametrize("order", [False, True])
async def test_a_handler_may_stop_its_worker(served: Served, store: AsyncStore, order: bool) -> None:
    await store.send_batch([Message("t", b"x", message_group="m")] * 3)

    async def stop(message: PoppedMessage) -> None:
        await worker.stop()
        with pytest.raises(IllegalArgumentError, match="its own worker"):
            await worker.join()

    worker = store.consume("t", "g", stop, order=order)
    await worker.join()
    assert (worker.stats.done, worker.failure) == (1, None)
    assert served.store.lag("t", "g").in_flight == 0


async def test_a_handler_may_close_its_store(served: Served, store: AsyncStore) -> None:
    await store.send_batch(bodies(3))

    async def close(message: PoppedMessage) -> None:
        await store.close()

    worker = store.consume("t", "g", close)
    await worker.join()
    assert isinstance(worker.failure, StoreClosedError)


async def test_a_store_that_is_closed_stops_its_workers_first(served: Served, store: AsyncStore) -> None:
    await store.send_batch(bodies(5))
    gate = Gate()
    worker = store.consume("t", "g", gate)
    await gate.begun.wait()
    closing = asyncio.create_task(store.close())
    await soon(lambda: served.store.lag("t", "g").in_flight == 1)
    gate.go_on.set()
    await closing
    assert (worker.failure, worker.stats.done) == (None, 1)
    assert served.store.lag("t", "g").in_flight == 0
    with pytest.raises(StoreClosedError):
        store.consume("t", "g", nothing)


async def test_a_close_that_is_cancelled_closes_without_its_handlers(served: Served, store: AsyncStore) -> None:
    await store.send_batch(bodies(1))
    gate = Gate()
    worker = store.consume("t", "g", gate)
    await gate.begun.wait()
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await soon(lambda: not served.thread._server.clients)
    gate.go_on.set()
    await worker.join()
    served.clock.advance(61_000)
    assert served.store.tick().retried == 1


@pytest.mark.parametrize(
    ("call", "error"), [("pop", LostCallsError("no room for what was answered")), ("retry_later", RuntimeError("of a plug-in"))]
)
async def test_an_error_that_does_not_pass_ends_the_worker(
    served: Served, store: AsyncStore, monkeypatch: pytest.MonkeyPatch, call: str, error: Exception
) -> None:
    monkeypatch.setattr(store, call, raising(error), raising=False)
    await store.send_batch(bodies(2))
    worker = store.consume("t", "g", raising(ValueError("a bad message")), batch=1)
    await asyncio.wait_for(worker.join(), 30)
    with pytest.raises(type(error), match=str(error)):
        await worker.stop()
