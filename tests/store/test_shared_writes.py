"""Single sends of many threads that go together: each is answered as if it had been alone."""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from msgspec import structs

import rmqstore
from rmqstore import DelayTooLongError, ManualClock, MessageBatch, SendReceipt, Store, StorePoisonedError, StoreUnavailableError
from rmqstore.contract import Lag, Ticket, TimerReceipts
from rmqstore.store.shared_writes import _MOST, SharedWrites
from rmqstore_conformance.stores import START_MS, message

LATER_MS = 60_000


class OfSomebody(Mapping[str, str]):
    def __init__(self, held: dict[str, str]) -> None:
        self._held = held

    def __getitem__(self, name: str) -> str:
        return self._held[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


class Text(str):
    __slots__ = ()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with rmqstore.open(tmp_path / "store", engine="memory", clock=ManualClock(START_MS), services=False, max_delay_ms=LATER_MS) as store:
        yield store


def shared(store: Store) -> SharedWrites[TimerReceipts]:
    return store._placing._later


def later(store: Store, number: int, delay_ms: int = LATER_MS) -> SendReceipt:
    return store.send(message(number), delay_ms=delay_ms)


@contextmanager
def meeting(store: Store, *calls: Callable[[], SendReceipt]) -> Iterator[list[Future[SendReceipt]]]:
    """Let calls meet two that are under way until the block ends, each in a thread of its own, and come to an end behind it."""
    with ThreadPoolExecutor(len(calls)) as pool:
        with two_under_way(store):
            futures = [pool.submit(call) for call in calls]
            until(lambda: len(shared(store)._joining.sendings) == len(calls))
            yield futures
        for each in futures:
            each.exception(20)


@contextmanager
def two_under_way(store: Store) -> Iterator[None]:
    one, other = threading.Lock(), threading.Lock()
    with one, other:
        shared(store)._one_before, shared(store)._last = one, other
        yield


def until(is_so: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not is_so():
        pause.wait(0.001)


@contextmanager
def puts_of(store: Store, before: Callable[[MessageBatch], None] = lambda _: None) -> Iterator[list[int]]:
    """Note of how many messages each put is; ``before`` is called first."""
    put, sizes = store.engine.timers.put, []

    def noted(batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()) -> tuple[TimerReceipts, Ticket]:
        sizes.append(len(batch))
        before(batch)
        return put(batch, now_ms, marks)

    with patch.object(store.engine.timers, "put", noted):
        yield sizes


def raise_once(error: BaseException) -> Callable[..., None]:
    errors = [error]

    def fail(*_: object) -> None:
        if errors:
            raise errors.pop()

    return fail


def test_sends_that_meet_are_one_put_and_each_gets_its_own_handle(store: Store) -> None:
    with puts_of(store) as sizes, meeting(store, *(lambda number=number: later(store, number) for number in range(5))) as futures:
        pass
    assert sizes == [5]
    for number, each in enumerate(futures):
        receipt = each.result()
        assert receipt.timer is not None
        found = store.engine.timers.get(receipt.timer)
        assert found is not None
        assert (found.message.body, found.message.message_id) == (message(number).body, receipt.message_id)
    assert store.pending().total == 5


def test_one_that_is_refused_is_refused_alone(store: Store) -> None:
    """As by an engine that has a horizon of its own."""

    def refuse(batch: MessageBatch) -> None:
        if any(each.body == message(1).body for each in batch.messages):
            raise DelayTooLongError("m1 is too far ahead")

    with puts_of(store, refuse) as sizes, meeting(store, *(lambda number=number: later(store, number) for number in range(3))) as futures:
        pass
    assert sizes == [3, 1, 1, 1]
    assert isinstance(futures[1].exception(), DelayTooLongError)
    assert all(futures[at].result().handle for at in (0, 2))
    assert store.pending().total == 2


@pytest.mark.parametrize(
    "change",
    [
        {"properties": OfSomebody({"a": "1"})},
        {"keys": (Text("k"),)},
        {"tag": Text("t")},
        {"body": b"x" * 65_537},
    ],
    ids=["a mapping", "a text of a class of its own", "a tag of one", "large"],
)
def test_what_is_not_plain_or_is_large_goes_alone(store: Store, change: dict[str, Any]) -> None:
    with two_under_way(store), puts_of(store) as sizes, ThreadPoolExecutor(1) as pool:
        sent = structs.replace(message(1), **change)
        assert pool.submit(store.send, sent, delay_ms=LATER_MS).result(20).handle
    assert sizes == [1]


@pytest.mark.parametrize("properties", [{"a": "1"}, {}], ids=str)
def test_properties_are_those_of_the_call(store: Store, properties: dict[str, str]) -> None:
    """Whatever their sender does with them while the message waits for its turn."""
    before = properties.get("a")
    sent = structs.replace(message(1), properties=properties)
    with meeting(store, lambda: store.send(sent, delay_ms=LATER_MS)) as futures:
        properties["a"] = "2"
    timer = futures[0].result().timer
    assert timer is not None
    found = store.engine.timers.get(timer)
    assert found is not None
    assert found.message.properties.get("a") == before


def test_too_far_ahead_goes_alone(store: Store) -> None:
    """Or a thread that always asks for too much would take the others their shared sync."""
    with two_under_way(store), puts_of(store) as sizes, ThreadPoolExecutor(1) as pool:
        assert isinstance(pool.submit(later, store, 1, LATER_MS + 1).exception(20), DelayTooLongError)
    assert sizes == [1]


def test_with_flow_control_each_send_is_drawn_once(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with (
        rmqstore.open(tmp_path / "store", engine="memory", clock=clock, services=False, congestion_limit=1000) as store,
        two_under_way(store),
        puts_of(store) as sizes,
        ThreadPoolExecutor(1) as pool,
    ):
        assert pool.submit(later, store, 1).result(20).handle
        assert sizes == [1]


def test_the_main_thread_puts_nothing_of_others(store: Store) -> None:
    """There a signal handler may raise in the middle, and the others could not be told whether they are stored."""
    with two_under_way(store), puts_of(store) as sizes:
        assert later(store, 3).handle
    assert sizes == [1]


@pytest.mark.parametrize("is_led", [True, False], ids=["goes with others", "leaves a group that nobody leads"])
def test_the_main_thread_in_a_group(store: Store, is_led: bool) -> None:
    here = threading.get_ident()
    put_here: list[tuple[int, bool]] = []
    is_held = threading.Event()

    def hold() -> None:
        with two_under_way(store):
            is_held.set()
            until(lambda: len(shared(store)._joining.sendings) == 2 and is_waiting(here))

    lead = shared(store)._lead if is_led else raise_once(KeyboardInterrupt())
    with (
        ThreadPoolExecutor(2) as pool,
        puts_of(store, lambda batch: put_here.append((len(batch), threading.get_ident() == here))),
        patch.object(shared(store), "_lead", Held(lead, until_free=shared(store))),
    ):
        holding = pool.submit(hold)
        assert is_held.wait(20)
        other = pool.submit(later, store, 1)
        until(lambda: len(shared(store)._joining.sendings) == 1)
        assert later(store, 2).handle
        holding.result(20)
        other.exception(20)
    assert put_here == [(2, False) if is_led else (1, True)]


def test_the_main_thread_joins_no_group_that_nobody_is_in(store: Store) -> None:
    with patch.object(shared(store), "_lead", raise_once(KeyboardInterrupt())), meeting(store, lambda: later(store, 0)) as futures:
        pass
    assert isinstance(futures[0].exception(), KeyboardInterrupt)
    with two_under_way(store):
        assert later(store, 1).handle
    assert len(shared(store)._joining.sendings) == 1


class Held:
    """Leads a group once nothing is under way."""

    def __init__(self, lead: Callable[..., None], until_free: SharedWrites[TimerReceipts]) -> None:
        self._lead, self._shared = lead, until_free

    def __call__(self, *arguments: Any) -> None:
        until(lambda: not self._shared._last.locked())
        self._lead(*arguments)


def is_waiting(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    return frame is not None and frame.f_code is SharedWrites._put_with_others.__code__


@pytest.mark.parametrize("around", ["lag", "a worker"])
def test_a_send_within_another_call_waits_for_nobody(store: Store, around: str) -> None:
    """It holds what that call holds, the engine's lock perhaps, for which those may wait that are under way. A worker holds nothing."""
    lag = store.engine.pops.lag

    def sends(topic: str, group: str) -> Lag:
        later(store, 9)
        return lag(topic, group)

    with puts_of(store) as sizes:
        if around == "lag":
            with two_under_way(store), ThreadPoolExecutor(1) as pool, patch.object(store.engine.pops, "lag", sends):
                pool.submit(store.lag, "t", "g").result(20)
        else:
            store.send(message(1))
            with two_under_way(store):
                worker = store.consume(message(1).topic, "g", lambda _: later(store, 9) and None)
                until(lambda: len(shared(store)._joining.sendings) == 1)
            worker.stop()
    assert sizes == [1]


def test_a_thread_deep_in_its_stack_takes_no_others_along(store: Store) -> None:
    """It may run out of it in the middle of their put."""

    def deep(left: int) -> SendReceipt:
        return deep(left - 1) if left else later(store, 1)

    with two_under_way(store), puts_of(store) as sizes, ThreadPoolExecutor(1) as pool:
        assert pool.submit(deep, sys.getrecursionlimit() // 2).result(20).handle
    assert sizes == [1]


def test_an_interrupt_in_a_put_leaves_the_others_in_doubt(store: Store) -> None:
    with puts_of(store, raise_once(KeyboardInterrupt())) as sizes:
        with meeting(store, *(lambda number=number: later(store, number) for number in range(3))) as futures:
            pass
        assert sizes == [3]
    errors = [type(each.exception()) for each in futures]
    assert sorted(errors, key=str) == [KeyboardInterrupt, StoreUnavailableError, StoreUnavailableError]
    assert later(store, 4).handle


def test_a_group_goes_on_without_one_that_was_interrupted_before_it(store: Store) -> None:
    """Else the message would be stored later, when its sender has looked for it and sent it again."""
    lead = shared(store)._lead
    fail = raise_once(KeyboardInterrupt())

    def interrupted(*arguments: Any) -> None:
        fail()
        lead(*arguments)

    with (
        patch.object(shared(store), "_lead", interrupted),
        meeting(store, *(lambda number=number: later(store, number) for number in range(3))) as futures,
    ):
        pass
    (gone,) = (number for number, each in enumerate(futures) if isinstance(each.exception(), KeyboardInterrupt))
    stored = {timer.message.body for timer in store.engine.timers.scan(START_MS, START_MS + 2 * LATER_MS).timers}
    assert stored == {message(number).body for number in range(3) if number != gone}


def test_a_message_whose_thread_is_gone_is_not_stored_by_the_next(store: Store) -> None:
    with patch.object(shared(store), "_lead", raise_once(KeyboardInterrupt())), meeting(store, lambda: later(store, 0)) as futures:
        pass
    assert isinstance(futures[0].exception(), KeyboardInterrupt)
    with ThreadPoolExecutor(1) as pool:
        with two_under_way(store):
            sent = pool.submit(later, store, 1)
            until(lambda: len(shared(store)._joining.sendings) == 2)
        assert sent.result(20).handle
    assert store.pending().total == 1


def test_all_hear_of_a_disk_that_failed(store: Store) -> None:
    kv = store.engine.timers._shared.kv  # type: ignore[attr-defined]
    with (
        patch.object(kv, "_sync_to_disk", raise_once(OSError(errno.EIO, "broken"))),
        meeting(store, *(lambda number=number: later(store, number) for number in range(3))) as futures,
    ):
        pass
    assert [type(each.exception()) for each in futures] == [StorePoisonedError] * 3


def test_no_more_go_together_than_engines_put_without_arrays(store: Store) -> None:
    count = _MOST + 3
    with puts_of(store) as sizes, ThreadPoolExecutor(count) as pool:
        with two_under_way(store):
            sent = [pool.submit(later, store, number) for number in range(count)]
            until(lambda: len(shared(store)._joining.sendings) == 3)
        assert len({each.result(20).handle for each in sent}) == count
    assert sorted(sizes) == [3, _MOST]
