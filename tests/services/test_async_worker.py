"""Workers of asyncio: what becomes of a message, by what its handler does."""

from __future__ import annotations

import asyncio
import functools
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore import (
    IllegalArgumentError,
    IllegalArgumentTypeError,
    Message,
    PoppedMessage,
    Reject,
    aio,
)
from rmqstore.aio import AsyncStore
from tests.server.served import Served, run, soon_async as soon, waiting
from tests.services.async_handlers import Gate, Handled, nothing, raising, reason
from tests.services.consumers import bodies, nothing_left
from tests.services.test_worker import BAD_ARGUMENTS

MINUTE = timedelta(minutes=1)


def test_on_uvloop(served: Served) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def work() -> None:
        async with asyncio.timeout(30), aio.connect(f"unix:{served.socket}") as store:
            assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
            await store.send_batch(bodies(50))
            handled = Handled(lambda message: raising(Reject("no"))() if message.body == b"7" else nothing(message))
            async with store.consume("t", "g", handled, at_once=4) as worker:
                await soon(lambda: worker.stats.done == 49)
        assert [each.reason for each in served.store.dead_letters.list("g")] == ["no"]
        assert nothing_left(served.store)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work())


async def test_as_many_handlers_run_at_a_time_as_are_wanted_and_one_pop_a_topic(served: Served, store: AsyncStore) -> None:
    await store.send_batch([*bodies(30), *bodies(3, "u")])
    gate = Gate()
    handled = Handled(gate)
    async with store.consume(["t", "u"], "g", handled, at_once=20, batch=8):
        await soon(lambda: handled.running == 23)
        await soon(lambda: waiting(served) == 1)  # of the topic that has less than may run
        assert served.store.lag("t", "g").in_flight == 24  # what may run, and the rest of its last batch
        gate.go_on.set()
        await soon(lambda: nothing_left(served.store) and nothing_left(served.store, "u"))
    assert handled.most == 23


async def test_a_batch_is_acked_with_the_next_pop(served: Served, store: AsyncStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqstore.services.async_worker.ACK_S", 1000.0)
    await store.send_batch(bodies(60))
    ack, alone = store.ack, []

    async def count(leased: list[PoppedMessage]) -> Any:
        alone.append(leased)
        return await ack(leased)

    monkeypatch.setattr(store, "ack", count, raising=False)
    async with store.consume("t", "g", nothing, at_once=30, batch=20) as worker:
        await soon(lambda: worker.stats.done == 60)
    assert alone == []


async def test_something_cancelled_that_a_handler_awaits_is_a_failed_attempt(served: Served, store: AsyncStore) -> None:
    gone = asyncio.get_running_loop().create_future()
    gone.cancel()

    async def wait(message: PoppedMessage) -> None:
        if message.body == b"0":
            await gone

    await store.send_batch(bodies(2))
    async with store.consume("t", "g", wait) as worker:
        await soon(lambda: (worker.stats.retried, worker.stats.done) == (1, 1))
        assert reason(served).startswith("CancelledError")


async def test_a_handler_that_gives_what_it_has_not_awaited_has_failed(served: Served, store: AsyncStore) -> None:
    async def forgetful(message: PoppedMessage) -> object:
        return nothing(message)

    await store.send_batch(bodies(1))
    async with store.consume("t", "g", forgetful) as worker:
        await soon(lambda: worker.stats.retried == 1)
    assert "gave a coroutine" in reason(served)


@pytest.mark.parametrize("ends", ["well", "badly"])
async def test_a_handler_that_ends_while_its_lease_is_extended(
    served: Served, store: AsyncStore, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """What it has done is told under the receipt that the extension gives."""
    await store.send_batch(bodies(1))
    gate, answered, may_be_told = Gate(), asyncio.Event(), asyncio.Event()
    change = store.change_invisible

    async def extend(*arguments: Any) -> Any:
        answer = await change(*arguments)
        answered.set()
        await may_be_told.wait()
        return answer

    async def handle(message: PoppedMessage) -> None:
        await gate(message)
        if ends == "badly":
            raise ValueError

    monkeypatch.setattr(store, "change_invisible", extend, raising=False)
    async with store.consume("t", "g", handle) as worker:
        await gate.begun.wait()
        keeping = asyncio.create_task(worker.keep(ahead_s=1000))
        await answered.wait()
        gate.go_on.set()
        await soon(lambda: not worker._handlers or ends == "badly")
        may_be_told.set()
        await keeping
        await soon(lambda: worker.stats.done + worker.stats.retried == 1)
    assert worker.stats.lost == 0


async def test_what_is_done_while_a_pop_waits_is_acked_at_once(served: Served, store: AsyncStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with the next round of the keeper: a queue in order stands still until then."""
    monkeypatch.setattr("rmqstore.services.async_worker.ACK_S", 1000.0)
    monkeypatch.setattr("rmqstore.services.consuming.WAIT", MINUTE)
    await store.send_batch(bodies(6, fifo="m"))
    handled = Handled(lambda message: asyncio.sleep(0.001))
    async with store.consume("t", "g", handled, at_once=2, batch=2, order=True):
        await soon(lambda: nothing_left(served.store))
    assert [int(each.body) for each in handled.messages] == list(range(6))


async def test_a_handler_that_takes_too_long_is_cancelled_and_has_failed(served: Served, store: AsyncStore) -> None:
    async def wait(message: PoppedMessage) -> None:
        if message.attempt == 1:
            await asyncio.Event().wait()

    await store.send_batch(bodies(1))
    handled = Handled(wait)
    async with store.consume("t", "g", handled, timeout=timedelta(milliseconds=5)) as worker:
        await soon(lambda: worker.stats.retried == 1)
        assert handled.running == 0
        assert reason(served).startswith("TimeoutError: cancelled after 0.005 s (locks.py:")
        served.clock.advance(10_000)
        await store.tick()
        await soon(lambda: worker.stats.done == 1)


async def test_a_timeout_of_the_handlers_own_keeps_its_words(served: Served, store: AsyncStore) -> None:
    await store.send_batch(bodies(1))
    async with store.consume("t", "g", raising(TimeoutError("no answer of the bank")), timeout=MINUTE) as worker:
        await soon(lambda: worker.stats.retried == 1)
    assert reason(served).startswith("TimeoutError: no answer of the bank (async_handlers.py:")


async def test_a_worker_goes_on_when_the_server_is_back(served: Served, store: AsyncStore) -> None:
    await store.send_batch(bodies(4))
    gate = Gate()
    handled = Handled(gate)
    async with store.consume("t", "g", handled, at_once=2, batch=2) as worker:
        await soon(handled.seen(2))
        await asyncio.to_thread(served.thread.stop)
        gate.go_on.set()  # what they have done is acked when there is somebody again
        served.start()
        await soon(lambda: worker.stats.done == 4)
    assert nothing_left(served.store)
    assert (worker.failure, worker.stats.lost) == (None, 0)


def _plain(message: PoppedMessage) -> None:
    pass


async def _lazily(message: PoppedMessage) -> Any:
    yield


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"at_once": 0}, "at_once must be an int of 1 to 1024"),
        *BAD_ARGUMENTS,
        ({"handler": _plain}, "is no async function.*write it with `async def`"),
        ({"handler": functools.partial(_plain)}, "is no async function"),
        ({"handler": _lazily}, "is no async function"),
    ],
)
async def test_bad_arguments_are_refused(served: Served, store: AsyncStore, options: dict[str, Any], error: str) -> None:
    with pytest.raises(IllegalArgumentError, match=error) as raised:
        store.consume(**{"topics": "t", "group": "g", "handler": nothing, **options})
    assert isinstance(raised.value, IllegalArgumentTypeError) or "handler" not in options


def test_opened_by_this_process_under_a_clock_that_stands_still(tmp_path: Path) -> None:
    async def work() -> None:
        clock = rmqstore.ManualClock(0)
        async with aio.open(tmp_path / "s", engine="memory", clock=clock, services=False) as store:
            await store.send(Message("t", b"x"), delay=timedelta(days=1))
            handled = Handled()
            async with store.consume("t", "g", handled) as worker:
                clock.advance(timedelta(hours=23))
                await store.tick()
                clock.advance(timedelta(hours=1))
                await store.tick()
                await soon(lambda: worker.stats.done == 1)

    run(work())
