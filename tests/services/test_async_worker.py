"""Workers of asyncio: what becomes of a message, by what its handler does."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
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
    Retry,
    StoreFullError,
    StoreUnavailableError,
    aio,
)
from rmqstore.aio import AsyncStore
from tests.server.served import Served, waiting
from tests.server.test_aio import run, soon, with_client
from tests.services.async_handlers import Gate, Handled, nothing, raising, reason
from tests.services.test_worker import BAD_ARGUMENTS, bodies, lose_answer, nothing_left

MINUTE = timedelta(minutes=1)


def test_each_message_is_handled_and_acked(served: Served) -> None:
    async def work(store: AsyncStore) -> None:
        await store.send_batch(bodies(100))
        handled = Handled()
        async with store.consume("t", "g", handled, at_once=3, batch=8) as worker:
            await soon(lambda: nothing_left(served.store))
            await store.send_batch(bodies(20))
            await soon(lambda: worker.stats.done == 120)
        assert nothing_left(served.store)
        assert sorted(int(each.body) for each in handled.messages) == sorted([*range(100), *range(20)])
        assert {each.receipt for each in handled.messages} == {None}

    with_client(served, work)


def test_leases_whose_extension_was_not_answered_are_kept(served: Served) -> None:
    async def work(store: AsyncStore) -> None:
        await store.send_batch(bodies(3))
        gate = Gate()
        handled = Handled(gate)
        async with store.consume("t", "g", handled, invisible=MINUTE) as worker:
            await gate.begun.wait()
            for _ in range(3):
                lost = lose_answer(served, "change_invisible")
                await worker.keep(ahead_s=1000)
                assert lost.is_set()
                served.clock.advance(40_000)
            gate.go_on.set()
            await soon(lambda: worker.stats.done == 3)
        assert worker.stats.lost == 0
        assert [each.body for each in handled.messages] == [b"0", b"1", b"2"]
        assert nothing_left(served.store)

    with_client(served, work)


def test_leases_are_kept_when_an_extension_and_its_repeat_were_not_answered(served: Served) -> None:
    async def work(store: AsyncStore) -> None:
        await store.send_batch(bodies(3))
        gate = Gate()
        async with store.consume("t", "g", Handled(gate), invisible=MINUTE) as worker:
            await gate.begun.wait()
            lose_answer(served, "change_invisible", lambda: lose_answer(served, "change_invisible"))
            with pytest.raises(StoreUnavailableError):
                await worker.keep(ahead_s=1000)
            gate.go_on.set()
            await soon(lambda: worker.stats.done + worker.stats.lost == 3)
        assert worker.stats.lost == 0
        assert nothing_left(served.store)

    with_client(served, work)


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("is_taken", [True, False])
def test_a_worker_that_stood_still_begins_on_nothing_that_others_have(
    served: Served, asleep_s: list[float], is_taken: bool, at_once: int
) -> None:
    async def work(store: AsyncStore) -> None:
        await store.send_batch(bodies(5))
        gate = Gate()
        handled = Handled(gate)
        async with store.consume("t", "g", handled, invisible=MINUTE, at_once=at_once) as worker:
            await soon(handled.seen(at_once))
            asleep_s[0] = 61
            served.clock.advance(61_000)
            if is_taken:
                assert served.store.tick().retried == 5
                assert len(served.store.pop("t", "g", invisible=MINUTE)) == 5
            gate.go_on.set()
            await soon(lambda: worker.stats.lost + worker.stats.done == 5)
        assert (worker.stats.done, worker.stats.lost, len(handled.messages)) == ((0, 5, at_once) if is_taken else (5, 0, 5))

    with_client(served, work)


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


def test_as_many_handlers_run_at_a_time_as_are_wanted_and_one_pop_a_topic(served: Served) -> None:
    async def work(store: AsyncStore) -> None:
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

    with_client(served, work)


def test_a_batch_is_acked_with_the_next_pop(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqstore.services.async_worker.ACK_S", 1000.0)

    async def work(store: AsyncStore) -> None:
        await store.send_batch(bodies(60))
        ack, alone = store.ack, []

        async def count(leased: list[PoppedMessage]) -> Any:
            alone.append(leased)
            return await ack(leased)

        monkeypatch.setattr(store, "ack", count, raising=False)
        async with store.consume("t", "g", nothing, at_once=30, batch=20) as worker:
            await soon(lambda: worker.stats.done == 60)
        assert alone == []

    with_client(served, work)


def test_what_a_handler_raises_says_what_becomes_of_its_message(served: Served) -> None:
    async def fail(message: PoppedMessage) -> None:
        if message.attempt == 1:
            again = Retry(timedelta(seconds=3), "the bank is closed")
            raise {b"0": ValueError("no such order"), b"1": again, b"2": Reject("no such customer")}[message.body]

    async def work(store: AsyncStore) -> None:
        await store.send_batch(bodies(3))
        async with store.consume("t", "g", fail) as worker:
            await soon(lambda: (worker.stats.retried, worker.stats.rejected) == (2, 1))
            later, failed = sorted(served.store.leases("t", "g"), key=lambda each: each.expiry_ms)
            assert (later.reason, later.expiry_ms) == ("the bank is closed", served.clock.now_ms() + 3000)
            assert failed.reason.startswith("ValueError: no such order (test_async_worker.py:")
            assert failed.reason.endswith("in fail)")
            served.clock.advance(10_000)  # the first back-off of RocketMQ's table
            await store.tick()
            await soon(lambda: worker.stats.done == 2)
        assert [each.reason for each in served.store.dead_letters.list("g")] == ["no such customer"]
        assert nothing_left(served.store)

    with_client(served, work)


def test_something_cancelled_that_a_handler_awaits_is_a_failed_attempt(served: Served) -> None:
    async def work(store: AsyncStore) -> None:
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()

        async def wait(message: PoppedMessage) -> None:
            if message.body == b"0":
                await gone

        await store.send_batch(bodies(2))
        async with store.consume("t", "g", wait) as worker:
            await soon(lambda: (worker.stats.retried, worker.stats.done) == (1, 1))
            assert reason(served).startswith("CancelledError")

    with_client(served, work)


def test_a_handler_that_gives_what_it_has_not_awaited_has_failed(served: Served) -> None:
    async def work(store: AsyncStore) -> None:
        async def forgetful(message: PoppedMessage) -> object:
            return nothing(message)

        await store.send_batch(bodies(1))
        async with store.consume("t", "g", forgetful) as worker:
            await soon(lambda: worker.stats.retried == 1)
        assert "gave a coroutine" in reason(served)

    with_client(served, work)


def test_leases_are_extended_while_a_handler_runs(served: Served) -> None:
    async def work(store: AsyncStore) -> None:
        await store.send_batch(bodies(3))
        gate = Gate()
        async with store.consume("t", "g", gate, invisible=MINUTE) as worker:
            await gate.begun.wait()
            for _ in range(5):
                served.clock.advance(40_000)
                await worker.keep(ahead_s=1000)
                await store.tick()
            assert served.store.lag("t", "g").in_flight == 3
            gate.go_on.set()
            await soon(lambda: nothing_left(served.store))
        assert (worker.stats.done, worker.stats.lost) == (3, 0)

    with_client(served, work)


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_a_handler_that_ends_while_its_lease_is_extended(served: Served, monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    """What it has done is told under the receipt that the extension gives."""

    async def work(store: AsyncStore) -> None:
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

    with_client(served, work)


def test_what_is_done_is_acked_while_another_handler_runs(served: Served) -> None:
    async def work(store: AsyncStore) -> None:
        await store.send_batch(bodies(5))
        gate = Gate()
        async with store.consume("t", "g", only({b"4": gate})) as worker:
            await gate.begun.wait()
            await worker.keep()
            assert served.store.lag("t", "g").in_flight == 1
            gate.go_on.set()
        assert worker.stats.done == 5

    with_client(served, work)


def only(special: dict[bytes, Callable[[PoppedMessage], Awaitable[object]]]) -> Callable[[PoppedMessage], Awaitable[None]]:
    """Return a handler that does something for some bodies."""

    async def handle(message: PoppedMessage) -> None:
        if message.body in special:
            await special[message.body](message)

    return handle


def test_what_is_done_while_a_pop_waits_is_acked_at_once(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with the next round of the keeper: a queue in order stands still until then."""
    monkeypatch.setattr("rmqstore.services.async_worker.ACK_S", 1000.0)
    monkeypatch.setattr("rmqstore.services.consuming.WAIT", MINUTE)

    async def work(store: AsyncStore) -> None:
        await store.send_batch(bodies(6, fifo="m"))
        handled = Handled(lambda message: asyncio.sleep(0.001))
        async with store.consume("t", "g", handled, at_once=2, batch=2, order=True):
            await soon(lambda: nothing_left(served.store))
        assert [int(each.body) for each in handled.messages] == list(range(6))

    with_client(served, work)


def test_a_handler_that_takes_too_long_is_cancelled_and_has_failed(served: Served) -> None:
    async def wait(message: PoppedMessage) -> None:
        if message.attempt == 1:
            await asyncio.Event().wait()

    async def work(store: AsyncStore) -> None:
        await store.send_batch(bodies(1))
        handled = Handled(wait)
        async with store.consume("t", "g", handled, timeout=timedelta(milliseconds=5)) as worker:
            await soon(lambda: worker.stats.retried == 1)
            assert handled.running == 0
            assert reason(served).startswith("TimeoutError: cancelled after 0.005 s (locks.py:")
            served.clock.advance(10_000)
            await store.tick()
            await soon(lambda: worker.stats.done == 1)

    with_client(served, work)


def test_a_timeout_of_the_handlers_own_keeps_its_words(served: Served) -> None:
    async def work(store: AsyncStore) -> None:
        await store.send_batch(bodies(1))
        async with store.consume("t", "g", raising(TimeoutError("no answer of the bank")), timeout=MINUTE) as worker:
            await soon(lambda: worker.stats.retried == 1)
        assert reason(served).startswith("TimeoutError: no answer of the bank (async_handlers.py:")

    with_client(served, work)


def test_order_is_kept_and_queues_go_side_by_side(served: Served) -> None:
    async def work(store: AsyncStore) -> None:
        await store.send_batch([Message("t", str(number).encode(), message_group=f"group-{number % 8}") for number in range(80)])
        handled = Handled(lambda message: asyncio.sleep(0))
        async with store.consume("t", "g", handled, at_once=4, batch=16, order=True):
            await soon(handled.seen(80))
        for group in range(8):
            mine = [int(each.body) for each in handled.messages if each.message_group == f"group-{group}"]
            assert mine == list(range(group, 80, 8))
        assert handled.most > 1

    with_client(served, work)


@pytest.mark.parametrize("at_once", [1, 3])
def test_what_is_behind_a_failed_message_waits_for_it(served: Served, at_once: int) -> None:
    async def fail_once(message: PoppedMessage) -> None:
        if message.body == b"1" and message.attempt == 1:
            raise ValueError("not yet")

    async def work(store: AsyncStore) -> None:
        await store.send_batch(bodies(5, fifo="m"))
        handled = Handled(fail_once)
        async with store.consume("t", "g", handled, order=True, at_once=at_once) as worker:
            await soon(lambda: worker.stats.retried == 1)
            assert [each.body for each in handled.messages] == [b"0", b"1"]
            served.clock.advance(10_000)
            await store.tick()
            await soon(handled.seen(6))
        assert [(each.body, each.attempt) for each in handled.messages] == [
            (b"0", 1),
            (b"1", 1),
            (b"1", 2),
            (b"2", 1),
            (b"3", 1),
            (b"4", 1),
        ]

    with_client(served, work)


def test_what_is_behind_a_rejected_message_goes_on(served: Served) -> None:
    async def work(store: AsyncStore) -> None:
        await store.send_batch(bodies(3, fifo="m"))
        handled = Handled(only({b"1": raising(Reject("no"))}))
        async with store.consume("t", "g", handled, order=True):
            await soon(handled.seen(3))
        assert [each.body for each in handled.messages] == [b"0", b"1", b"2"]
        assert len(served.store.dead_letters.list("g")) == 1

    with_client(served, work)


def test_what_others_have_is_not_handled(served: Served) -> None:
    async def work(store: AsyncStore) -> None:
        await store.send_batch(bodies(3))
        gate = Gate()
        handled = Handled(gate)
        worker = store.consume("t", "g", handled, invisible=MINUTE)
        await gate.begun.wait()
        served.clock.advance(61_000)
        assert served.store.tick().retried == 3
        assert len(served.store.pop("t", "g", invisible=MINUTE)) == 3
        await worker.keep(ahead_s=1000)
        gate.go_on.set()
        await worker.stop()
        assert len(handled.messages) == 1
        assert (worker.stats.done, worker.stats.lost) == (0, 3)

    with_client(served, work)


def test_a_worker_goes_on_when_the_server_is_back(served: Served) -> None:
    async def work(store: AsyncStore) -> None:
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

    with_client(served, work)


def test_a_full_disk_is_waited_for(served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def work(store: AsyncStore) -> None:
        await store.send_batch(bodies(1))
        pop, failures = store.pop, [StoreFullError("no room")] * 2

        async def pop_at_last(*arguments: Any, **named: Any) -> Any:
            if failures:
                raise failures.pop()
            return await pop(*arguments, **named)

        monkeypatch.setattr(store, "pop", pop_at_last, raising=False)
        handled = Handled()
        async with store.consume("t", "g", handled) as worker:
            await soon(handled.seen(1))
            assert worker.failure is None
        assert "a worker of group g waits 0.1 s: no room" in caplog.text
        assert "a worker of group g waits 0.2 s: no room" in caplog.text

    with_client(served, work)


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
def test_bad_arguments_are_refused(served: Served, options: dict[str, Any], error: str) -> None:
    async def work(store: AsyncStore) -> None:
        with pytest.raises(IllegalArgumentError, match=error) as raised:
            store.consume(**{"topics": "t", "group": "g", "handler": nothing, **options})
        assert isinstance(raised.value, IllegalArgumentTypeError) or "handler" not in options

    with_client(served, work)


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
