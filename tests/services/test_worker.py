"""Workers of threads: what becomes of a message, by what its handler does, and how they end."""

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
from unittest.mock import DEFAULT, Mock, patch

import pytest

import rmqstore
from rmqstore import (
    IllegalArgumentError,
    IllegalArgumentTypeError,
    LostCallsError,
    ManualClock,
    Message,
    PoppedMessage,
    Reject,
    Retry,
    Store,
    StoreClosedError,
    StoreFullError,
    Worker,
)
from tests.pairs import ENGINES
from tests.server.served import soon
from tests.services.consumers import Gate, Handled, bodies, nothing_left

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
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with rmqstore.open(tmp_path / "s", engine="memory", clock=clock, services=False) as opened:
        yield opened


def test_several_topics(store: Store) -> None:
    store.send_batch([*bodies(3), *bodies(3, "u")])
    handled = Handled()
    with store.consume(["t", "u"], "g", handled, invisible=timedelta.max):
        soon(lambda: nothing_left(store) and nothing_left(store, "u"))
    assert {each.topic for each in handled.messages} == {"t", "u"}


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


def test_where_no_clock_counts_the_time_asleep_the_one_that_is_there_is_asked() -> None:
    """As on macOS, where ``time`` has no CLOCK_BOOTTIME."""
    program = "import time; vars(time).pop('CLOCK_BOOTTIME', None); from rmqstore.services import consuming; "
    program += "assert 0 <= time.monotonic() - consuming.now_s() + 1 <= 1"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_message_whose_failure_cannot_be_told_comes_again(store: Store, clock: ManualClock) -> None:
    """The rest of its batch is handled, and its own lease ends by itself."""

    def fail(message: PoppedMessage) -> None:
        if message.body == b"1":
            raise ValueError("no")

    store.send_batch(bodies(5))
    handled = Handled(fail)
    no_room = patch.object(store, "retry_later", side_effect=StoreFullError("no room"))
    with no_room, store.consume("t", "g", handled) as worker:
        soon(handled.seen(5))
        soon(lambda: store.lag("t", "g").in_flight == 1)
    assert worker.stats.done == 4
    clock.advance(61_000)
    assert store.tick().retried == 1


def test_a_failure_is_told_at_the_second_try(store: Store) -> None:
    store.send_batch(bodies(1))
    at_last = patch.object(store, "retry_later", wraps=store.retry_later, side_effect=[StoreFullError("no room"), DEFAULT])
    with at_last, store.consume("t", "g", Mock(side_effect=KeyError("x"))) as worker:
        soon(lambda: worker.stats.retried == 1)
    assert store.leases("t", "g")[0].reason.startswith("KeyError: 'x'")


def test_an_error_without_a_text(store: Store) -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    store.send_batch(bodies(1))
    with store.consume("t", "g", Mock(side_effect=MuteError())) as worker:
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


def test_lost_calls_are_told(store: Store) -> None:
    with patch.object(store._pops, "pop", side_effect=LostCallsError("no room for what was answered")):
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
