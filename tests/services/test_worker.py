"""Workers: what becomes of a message, by what its handler does."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore import (
    AckOutcome,
    IllegalArgumentError,
    IllegalArgumentTypeError,
    LostCallsError,
    ManualClock,
    Message,
    PoppedMessage,
    Reject,
    Retry,
    RmqstoreError,
    Store,
    StoreClosedError,
    StoreFullError,
    StoreUnavailableError,
    Worker,
)
from tests.pairs import ENGINES
from tests.server.served import Served, soon

MINUTE = timedelta(minutes=1)

BAD_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"batch": 5000}, "batch must be an int of 1 to 1024"),
    ({"invisible": timedelta(0)}, "invisible must be"),
    ({"timeout": timedelta(0)}, "timeout must be"),
    ({"topics": []}, "topics must be a topic"),
    ({"topics": 5}, "topics must be a topic"),
    ({"topics": ["t", "a b"]}, "topic name 'a b'"),
    ({"group": ""}, "group name"),
    ({"filter": "a >"}, "expected a property"),
    ({"filter": 5}, "filter"),
    ({"handler": 5}, "handler must be a function"),
]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000_000)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with rmqstore.open(tmp_path / "store", engine="memory", clock=clock, services=False, fifo_queues=4) as opened:
        yield opened


def bodies(count: int, topic: str = "t", fifo: str | None = None) -> list[Message]:
    return [Message(topic, str(number).encode(), message_group=fifo) for number in range(count)]


def lose_answer(served: Served, call: str, meanwhile: Callable[[], object] = lambda: None) -> threading.Event:
    """Let a connection break when the next call of this name is done; what this returns is set then."""
    server, lost = served.thread._server, threading.Event()
    answer = server._answer

    def lose(answered: Any, data: bytearray, *, ends: bool = True) -> None:
        if lost.is_set() or answered.name != call:
            answer(answered, data, ends=ends)
            return
        meanwhile()
        answered.client.transport.abort()
        lost.set()

    server._answer = lose  # type: ignore[method-assign]
    return lost


class Handled:
    """A handler that remembers what it got, and does what it is told to."""

    def __init__(self, does: Callable[[PoppedMessage], object] = lambda message: None) -> None:
        self.messages: list[PoppedMessage] = []
        self._does = does
        self._lock = threading.Lock()

    def __call__(self, message: PoppedMessage) -> None:
        with self._lock:
            self.messages.append(message)
        self._does(message)

    def seen(self, count: int) -> Callable[[], bool]:
        return lambda: len(self.messages) >= count


class Gate:
    """A handler that waits until it may go on."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, message: PoppedMessage) -> None:
        self.begun.set()
        self.go_on.wait(10)

    def wait_for_begin(self) -> None:
        assert self.begun.wait(10)


def nothing_left(store: Store, topic: str = "t", group: str = "g") -> bool:
    lag = store.lag(topic, group)
    return lag.ready + lag.in_flight + lag.retry == 0


def test_each_message_is_handled_and_acked(store: Store) -> None:
    store.send_batch(bodies(100))
    handled = Handled()
    with store.consume("t", "g", handled, threads=3, batch=8) as worker:
        soon(lambda: nothing_left(store))
        store.send_batch(bodies(20))
        soon(handled.seen(120))
    assert nothing_left(store)
    assert worker.stats.done == 120
    assert sorted(int(each.body) for each in handled.messages) == sorted([*range(100), *range(20)])


def test_several_topics(store: Store) -> None:
    store.send_batch([*bodies(3), *bodies(3, "u")])
    handled = Handled()
    with store.consume(["t", "u"], "g", handled):
        soon(lambda: nothing_left(store) and nothing_left(store, "u"))
    assert {each.topic for each in handled.messages} == {"t", "u"}


def test_an_error_of_a_handler_is_the_reason(store: Store, clock: ManualClock) -> None:
    def fail(message: PoppedMessage) -> None:
        if message.attempt == 1:
            raise ValueError("no such order")

    store.send_batch(bodies(1))
    handled = Handled(fail)
    with store.consume("t", "g", handled) as worker:
        soon(lambda: worker.stats.retried == 1)
        (lease,) = store.leases("t", "g")
        assert lease.is_backing_off
        assert lease.reason.startswith("ValueError: no such order (test_worker.py:")
        assert lease.reason.endswith("in fail)")
        clock.advance(10_000)  # the first back-off of RocketMQ's table
        store.tick()
        soon(lambda: worker.stats.done == 1 or nothing_left(store))
    assert [each.attempt for each in handled.messages] == [1, 2]


def test_a_handler_may_say_when(store: Store, clock: ManualClock) -> None:
    def later(message: PoppedMessage) -> None:
        if message.attempt == 1:
            raise Retry(timedelta(seconds=3), "the bank is closed")

    store.send_batch(bodies(1))
    handled = Handled(later)
    with store.consume("t", "g", handled) as worker:
        soon(lambda: worker.stats.retried == 1)
        (lease,) = store.leases("t", "g")
        assert (lease.reason, lease.expiry_ms) == ("the bank is closed", clock.now_ms() + 3000)
        clock.advance(3000)
        store.tick()
        soon(handled.seen(2))


def test_a_handler_may_give_up(store: Store) -> None:
    def refuse(message: PoppedMessage) -> None:
        raise Reject("no such customer")

    store.send_batch(bodies(2))
    with store.consume("t", "g", refuse) as worker:
        soon(lambda: worker.stats.rejected == 2)
    assert [each.reason for each in store.dead_letters.list("g")] == ["no such customer"] * 2
    assert nothing_left(store)


def test_a_stop_gives_back_what_was_not_begun(store: Store) -> None:
    gate = Gate()
    store.send_batch(bodies(8))
    worker = store.consume("t", "g", gate, batch=8)
    gate.wait_for_begin()
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    gate.go_on.set()
    stopping.join(10)
    assert worker.stats.done == 1
    lag = store.lag("t", "g")
    assert (lag.in_flight, lag.ready + lag.retry) == (0, 7)
    assert all(each.attempt == 1 for each in store.pop("t", "g"))


def test_a_stop_acks_what_is_done(store: Store) -> None:
    store.send_batch(bodies(5))
    handled = Handled()
    worker = store.consume("t", "g", handled)
    soon(handled.seen(5))
    worker.stop()
    worker.stop()
    assert nothing_left(store)


def test_leases_are_extended_while_a_handler_runs(store: Store, clock: ManualClock) -> None:
    gate = Gate()
    store.send_batch(bodies(3))
    with store.consume("t", "g", gate, invisible=MINUTE) as worker:
        gate.wait_for_begin()
        for _ in range(5):
            clock.advance(40_000)
            worker.keep(ahead_s=1000)
            store.tick()
        assert store.lag("t", "g").in_flight == 3
        gate.go_on.set()
        soon(lambda: nothing_left(store))
    assert (worker.stats.done, worker.stats.lost) == (3, 0)


def test_a_handler_that_takes_too_long_keeps_nothing_from_others(store: Store, clock: ManualClock) -> None:
    gate = Gate()
    store.send_batch(bodies(3))
    with store.consume("t", "g", gate, invisible=MINUTE, timeout=timedelta(milliseconds=1)) as worker:
        gate.wait_for_begin()
        soon(lambda: worker._is_overrun(worker._hands[0]))
        worker.keep(ahead_s=1000)
        lag = store.lag("t", "g")
        assert (lag.in_flight, lag.ready + lag.retry) == (1, 2)
        assert {each.body for each in store.pop("t", "g")} == {b"1", b"2"}
        clock.advance(61_000)
        assert store.tick().retried == 3
        worker._ended.set()
        gate.go_on.set()
    assert (worker.stats.done, worker.stats.lost) == (0, 1)


def test_order_is_kept_and_queues_go_side_by_side(store: Store) -> None:
    store.send_batch([Message("t", str(number).encode(), message_group=f"group-{number % 8}") for number in range(80)])
    handled = Handled()
    with store.consume("t", "g", handled, threads=4, batch=3, order=True):
        soon(handled.seen(80))
    for group in range(8):
        mine = [int(each.body) for each in handled.messages if each.message_group == f"group-{group}"]
        assert mine == sorted(mine)
        assert len(mine) == 10


def test_what_is_behind_a_failed_message_waits_for_it(store: Store, clock: ManualClock) -> None:
    """P9: the rest of the run goes back, with its attempt not counted, and comes behind the message that failed."""

    def fail_once(message: PoppedMessage) -> None:
        if message.body == b"1" and message.attempt == 1:
            raise ValueError("not yet")

    store.send_batch(bodies(5, fifo="m"))
    handled = Handled(fail_once)
    with store.consume("t", "g", handled, order=True) as worker:
        soon(lambda: worker.stats.retried == 1)
        assert [each.body for each in handled.messages] == [b"0", b"1"]
        clock.advance(10_000)
        store.tick()
        soon(handled.seen(6))
    assert [(each.body, each.attempt) for each in handled.messages] == [
        (b"0", 1),
        (b"1", 1),
        (b"1", 2),
        (b"2", 1),
        (b"3", 1),
        (b"4", 1),
    ]


def test_what_is_behind_a_rejected_message_goes_on(store: Store) -> None:
    def refuse(message: PoppedMessage) -> None:
        if message.body == b"1":
            raise Reject("no")

    store.send_batch(bodies(3, fifo="m"))
    handled = Handled(refuse)
    with store.consume("t", "g", handled, order=True):
        soon(handled.seen(3))
    assert [each.body for each in handled.messages] == [b"0", b"1", b"2"]
    assert len(store.dead_letters.list("g")) == 1


def test_what_others_have_is_not_handled(store: Store, clock: ManualClock) -> None:
    gate = Gate()
    store.send_batch(bodies(3))
    handled = Handled(gate)
    worker = store.consume("t", "g", handled, invisible=MINUTE)
    gate.wait_for_begin()
    clock.advance(61_000)
    assert store.tick().retried == 3
    assert len(store.pop("t", "g", invisible=MINUTE)) == 3
    worker.keep(ahead_s=1000)
    gate.go_on.set()
    worker.stop()
    assert len(handled.messages) == 1
    assert (worker.stats.done, worker.stats.lost) == (0, 3)


@pytest.mark.parametrize("is_again", [False, True])
@pytest.mark.parametrize("order", [False, True])
def test_leases_whose_extension_was_not_answered_are_kept(served: Served, order: bool, is_again: bool) -> None:
    """The server has extended them, and the receipts that count were in the answer that was lost."""
    gate = Gate()
    served.store.send_batch(bodies(3, fifo="m"))
    if is_again:
        served.store.pop("t", "g", order=order)
        served.clock.advance(61_000)
        assert served.store.tick().retried == 3
    handled = Handled(gate)
    with served.connect().consume("t", "g", handled, invisible=MINUTE, order=order) as worker:
        gate.wait_for_begin()
        for _ in range(3):
            lost = lose_answer(served, "change_invisible")
            worker.keep(ahead_s=1000)
            assert lost.is_set()
            served.clock.advance(40_000)
        gate.go_on.set()
        soon(lambda: worker.stats.done == 3)
    assert [(each.body, each.attempt) for each in handled.messages] == [(b"%d" % number, 1 + is_again) for number in range(3)]
    assert worker.stats.lost == 0
    assert nothing_left(served.store)


@pytest.mark.parametrize("does", ["acks", "pops", "retries", "releases"])
def test_leases_are_kept_when_an_extension_and_its_repeat_were_not_answered(served: Served, does: str) -> None:
    """What comes next may be anything that needs the receipts that count."""
    gate = Gate()

    def wait(message: PoppedMessage) -> None:
        gate(message)
        if does == "retries" and message.attempt == 1:
            raise Retry(timedelta(seconds=1))

    served.store.send_batch(bodies(3))
    with served.connect().consume("t", "g", wait, invisible=MINUTE, batch=1 if does == "pops" else 3) as worker:
        gate.wait_for_begin()
        lose_answer(served, "change_invisible", lambda: lose_answer(served, "change_invisible"))
        with pytest.raises(StoreUnavailableError):
            worker.keep(ahead_s=1000)
        if does == "releases":
            worker._ended.set()
        gate.go_on.set()
        soon(lambda: worker.stats.done + worker.stats.retried + worker.stats.lost == (1 if does == "releases" else 3))
    assert worker.stats.lost == 0
    lag = served.store.lag("t", "g")
    assert lag.in_flight == 0
    assert (lag.ready + lag.retry, lag.backing_off) == {"retries": (0, 3), "releases": (2, 0)}.get(does, (0, 0))


def test_the_lease_of_another_is_not_taken_for_one_whose_extension_was_not_answered(served: Served) -> None:
    """In a FIFO queue its message is at the same place."""
    gate = Gate()
    others: list[PoppedMessage] = []

    def take() -> None:
        served.clock.advance(61_000)
        assert served.store.tick().retried == 3
        others.extend(served.store.pop("t", "g", order=True, invisible=MINUTE))

    served.store.send_batch(bodies(3, fifo="m"))
    handled = Handled(gate)
    with served.connect().consume("t", "g", handled, invisible=MINUTE, order=True) as worker:
        gate.wait_for_begin()
        lost = lose_answer(served, "change_invisible", take)
        worker.keep(ahead_s=1000)
        assert lost.is_set()
        gate.go_on.set()
        soon(lambda: worker.stats.lost == 3)
    assert len(handled.messages) == 1
    assert served.store.ack(others) == [AckOutcome.ACKED] * 3


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_worker_that_stood_still_begins_on_nothing_that_others_have(
    store: Store, clock: ManualClock, asleep_s: list[float], is_taken: bool
) -> None:
    gate = Gate()
    store.send_batch(bodies(3))
    handled = Handled(gate)
    with store.consume("t", "g", handled, invisible=MINUTE) as worker:
        gate.wait_for_begin()
        asleep_s[0] = 61
        clock.advance(61_000)
        if is_taken:
            assert store.tick().retried == 3
            assert len(store.pop("t", "g", invisible=MINUTE)) == 3
        gate.go_on.set()
        soon(lambda: worker.stats.lost + worker.stats.done == 3)
    assert (worker.stats.done, worker.stats.lost, len(handled.messages)) == ((0, 3, 1) if is_taken else (3, 0, 3))


def test_a_worker_that_cannot_ask_whether_it_still_has_messages_leaves_them(
    store: Store, clock: ManualClock, asleep_s: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    store.send_batch(bodies(3))
    handled = Handled(gate)
    monkeypatch.setattr(store, "change_invisible", raising(StoreFullError("no room")))
    with store.consume("t", "g", handled, invisible=MINUTE) as worker:
        gate.wait_for_begin()
        asleep_s[0] = 61
        gate.go_on.set()
        soon(lambda: worker.stats.done == 1)
        store.send(Message("t", b"3"))
        soon(handled.seen(2))
    assert [each.body for each in handled.messages] == [b"0", b"3"]
    assert "leaves messages whose leases may have ended: no room" in caplog.text
    clock.advance(61_000)
    assert store.tick().retried == 2


def test_where_no_clock_counts_the_time_asleep_the_one_that_is_there_is_asked() -> None:
    """As on macOS, where ``time`` has no CLOCK_BOOTTIME."""
    program = "import time; vars(time).pop('CLOCK_BOOTTIME', None); from rmqstore.services import consuming; "
    program += "assert 0 <= time.monotonic() - consuming.now_s() + 1 <= 1"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_what_is_done_is_acked_while_another_handler_runs(store: Store) -> None:
    gate = Gate()
    store.send_batch(bodies(5))
    with store.consume("t", "g", lambda message: gate(message) if message.body == b"4" else None) as worker:
        gate.wait_for_begin()
        worker.keep()
        assert store.lag("t", "g").in_flight == 1
        gate.go_on.set()
    assert worker.stats.done == 5


def test_a_message_whose_failure_cannot_be_told_comes_again(store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of its batch is handled, and its own lease ends by itself."""

    def fail(message: PoppedMessage) -> None:
        if message.body == b"1":
            raise ValueError("no")

    store.send_batch(bodies(5))
    handled = Handled(fail)
    monkeypatch.setattr(store, "retry_later", raising(StoreFullError("no room")))
    with store.consume("t", "g", handled) as worker:
        soon(handled.seen(5))
        soon(lambda: store.lag("t", "g").in_flight == 1)
    assert worker.stats.done == 4
    clock.advance(61_000)
    assert store.tick().retried == 1


def raising(error: Exception) -> Any:
    def fail(*arguments: Any, **named: Any) -> None:
        raise error

    return fail


def test_a_failure_is_told_at_the_second_try(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    retry_later, failures = store.retry_later, [StoreFullError("no room")]

    def second(*arguments: Any, **named: Any) -> Any:
        if failures:
            raise failures.pop()
        return retry_later(*arguments, **named)

    monkeypatch.setattr(store, "retry_later", second)
    store.send_batch(bodies(1))
    with store.consume("t", "g", raising(KeyError("x"))) as worker:
        soon(lambda: worker.stats.retried == 1)
    assert store.leases("t", "g")[0].reason.startswith("KeyError: 'x'")


def test_a_handler_that_exits_ends_the_worker_and_says_so(store: Store) -> None:
    def leave(message: PoppedMessage) -> None:
        raise SystemExit(3)

    store.send_batch(bodies(3))
    worker = store.consume("t", "g", leave)
    assert worker.join(10)
    assert isinstance(worker.failure, SystemExit)
    with pytest.raises(RmqstoreError, match="ended its worker by SystemExit: 3"):
        worker.stop()
    lag = store.lag("t", "g")
    assert (lag.backing_off, lag.ready + lag.retry) == (1, 2)
    assert store.leases("t", "g")[0].reason.startswith("SystemExit: 3")


def test_an_error_without_a_text(store: Store) -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    store.send_batch(bodies(1))
    with store.consume("t", "g", raising(MuteError())) as worker:
        soon(lambda: worker.stats.retried == 1)
    assert store.leases("t", "g")[0].reason.startswith("MuteError: an error that has no text")


async def _later(message: PoppedMessage) -> None:
    pass


def _lazily(message: PoppedMessage) -> Iterator[None]:
    yield


class _Callable:
    async def __call__(self, message: PoppedMessage) -> None:
        pass


@pytest.mark.parametrize("handler", [_later, _lazily, _Callable(), functools.partial(_later)])
def test_a_handler_that_would_do_nothing_is_refused(store: Store, handler: Any) -> None:
    with pytest.raises(IllegalArgumentTypeError, match="whose call does nothing; give a plain function, or an async one to"):
        store.consume("t", "g", handler)


def _generated(message: PoppedMessage) -> Iterator[PoppedMessage]:
    yield message


async def _generated_later(message: PoppedMessage) -> AsyncIterator[PoppedMessage]:
    yield message


@pytest.mark.parametrize("give", [_later, _generated, _generated_later, lambda _: Future()])
def test_a_handler_that_gives_work_to_be_done_has_failed(store: Store, give: Callable[[PoppedMessage], object]) -> None:
    store.send_batch(bodies(1))
    with store.consume("t", "g", lambda message: give(message)) as worker:
        soon(lambda: worker.stats.retried == 1)
    assert "would be acked before that is done" in store.leases("t", "g")[0].reason


def test_what_a_handler_raises_comes_out_of_a_pool_of_processes_as_it_was() -> None:
    retry, reject = pickle.loads(pickle.dumps((Retry(timedelta(minutes=5), "why"), Reject("never"))))
    assert (retry.after, str(retry), str(reject)) == (timedelta(minutes=5), "why", "never")
    assert pickle.loads(pickle.dumps(Retry(timedelta(minutes=5)))).args == Retry(timedelta(minutes=5)).args


def test_a_handler_may_stop_its_worker(store: Store) -> None:
    store.send_batch(bodies(3))
    workers: list[Worker] = []
    begun = threading.Event()

    def stop(message: PoppedMessage) -> None:
        begun.wait(10)
        workers[0].stop()
        with pytest.raises(IllegalArgumentError, match="its own worker"):
            workers[0].join()

    workers.append(store.consume("t", "g", stop))
    begun.set()
    assert workers[0].join(10)
    assert workers[0].stats.done == 1


def test_handlers_of_two_workers_may_close_their_store(tmp_path: Path) -> None:
    store = rmqstore.open(tmp_path / "s", engine="memory")
    both = threading.Barrier(2)

    def close(message: PoppedMessage) -> None:
        both.wait(10)
        store.close()

    workers = [store.consume(topic, "g", close) for topic in ("t", "u")]
    store.send_batch([*bodies(1), *bodies(1, "u")])
    assert all(worker.join(20) for worker in workers)


def test_a_handler_gets_no_receipt(store: Store) -> None:
    """It would be out of date with the next extension, and the worker would ack what it had asked to come again."""
    store.send_batch(bodies(1))
    handled = Handled()
    with store.consume("t", "g", handled):
        soon(handled.seen(1))
    assert handled.messages[0].receipt is None


def test_lost_calls_are_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store._pops, "pop", raising(LostCallsError("no room for what was answered")))
    worker = store.consume("t", "g", Handled())
    assert worker.join(10)
    with pytest.raises(LostCallsError):
        worker.stop()


def test_a_filter_is_asked(store: Store) -> None:
    store.send_batch([Message("t", b"x", tag="red"), Message("t", b"y", tag="blue")])
    handled = Handled()
    with store.consume("t", "g", handled, filter="red"):
        soon(handled.seen(1))
    assert [each.tag for each in handled.messages] == ["red"]


def test_a_full_disk_is_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    store.send_batch(bodies(1))
    pop, failures = store._pops.pop, [StoreFullError("no room"), StoreFullError("no room")]

    def pop_at_last(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return pop(*arguments)

    monkeypatch.setattr(store._pops, "pop", pop_at_last)
    handled = Handled()
    with store.consume("t", "g", handled) as worker:
        soon(handled.seen(1))
        assert worker.failure is None
    assert "a worker of group g waits 0.1 s: no room" in caplog.text


def test_a_store_that_is_closed_stops_its_workers_first(tmp_path: Path) -> None:
    store = rmqstore.open(tmp_path / "s", engine=ENGINES[0])
    store.send_batch(bodies(5))
    handled = Handled()
    worker = store.consume("t", "g", handled)
    soon(handled.seen(5))
    store.close()
    assert worker.join(0)
    assert (worker.failure, worker.stats.done) == (None, 5)
    with pytest.raises(StoreClosedError):
        store.consume("t", "g", Handled())


def test_join_says_whether_it_has_ended(store: Store) -> None:
    worker = store.consume("t", "g", Handled())
    assert not worker.join(0)
    worker.stop()
    assert worker.join(0)


@pytest.mark.parametrize(("options", "error"), [({"threads": 0}, "threads must be an int of 1 to 1024"), *BAD_ARGUMENTS])
def test_bad_arguments_are_refused(store: Store, options: dict[str, Any], error: str) -> None:
    before = threading.active_count()
    with pytest.raises(IllegalArgumentError, match=error):
        store.consume(**{"topics": "t", "group": "g", "handler": Handled(), **options})
    assert threading.active_count() == before


def test_a_retry_needs_a_time() -> None:
    with pytest.raises(IllegalArgumentTypeError):
        Retry(5)  # type: ignore[arg-type]


def test_a_worker_over_a_connection(tmp_path: Path) -> None:
    with rmqstore.open(tmp_path / "s", share=True, engine="memory") as first, rmqstore.connect(tmp_path / "s") as second:
        second.send_batch(bodies(50))
        handled = Handled()
        with second.consume("t", "g", handled, threads=2) as worker:
            assert isinstance(worker, Worker)
            soon(lambda: nothing_left(first))
        assert sorted(int(each.body) for each in handled.messages) == list(range(50))
