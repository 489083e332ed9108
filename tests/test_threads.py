"""Threads and the real clock: no lost wake-up, no early timer, and close ends every wait (T1, X3)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rmqstore
from rmqstore import AckOutcome, Message, Store, StoreClosedError, StoreLockedError, SystemClock

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def store(tmp_path: Path, engine: str) -> Iterator[Store]:
    with rmqstore.open(tmp_path / "store", engine=engine, precision_ms=100, default_queues=4, revive_interval_ms=100) as found:
        yield found


def test_a_waiting_pop_never_sleeps_through_an_arrival(store: Store) -> None:
    """A lost wake-up would cost the whole wait of 30 s, and the test its time."""
    rounds = 300
    chance = random.Random(5)
    taken = threading.Semaphore(0)
    slowest_s = [0.0]
    sent_s = [0.0]

    def consume() -> None:
        for _ in range(rounds):
            popped = store.pop("t", "g", max_messages=1, wait_ms=30_000, invisible_ms=60_000)
            slowest_s[0] = max(slowest_s[0], time.monotonic() - sent_s[0])
            assert store.ack(popped) == [AckOutcome.ACKED]
            taken.release()

    with ThreadPoolExecutor() as pool:
        consumer = pool.submit(consume)
        for number in range(rounds):
            # Near the moment at which the consumer looks for the last time before it waits.
            until = time.perf_counter() + chance.random() * 0.0008
            while time.perf_counter() < until:
                pass
            sent_s[0] = time.monotonic()
            store.send(Message("t", b"%d" % number))
            assert taken.acquire(timeout=15), f"round {number}: the consumer slept through the arrival"
        consumer.result(60)
    assert slowest_s[0] < 10


def test_timers_are_in_time_and_never_early(store: Store) -> None:
    clock = SystemClock()
    chance = random.Random(6)
    start_ms = clock.now_ms()
    due = {f"m{number}": start_ms + 200 + chance.randrange(2_000) for number in range(60)}
    store.send_batch([Message("t", b"x", message_id=name, deliver_at_ms=at) for name, at in due.items()])
    late_ms: list[int] = []
    left = set(due)
    while left:
        popped = store.pop("t", "g", wait_ms=10_000, invisible_ms=60_000)
        now_ms = clock.now_ms()
        assert popped, f"{len(left)} timers never came"
        for message in popped:
            assert now_ms >= due[message.message_id], f"{message.message_id} came {due[message.message_id] - now_ms} ms early"
            assert message.store_ms >= due[message.message_id]
            late_ms.append(now_ms - due[message.message_id])
            left.remove(message.message_id)
        store.ack(popped)
    late_ms.sort()
    assert late_ms[len(late_ms) // 2] < 600, f"half of the timers were more than {late_ms[len(late_ms) // 2]} ms late"
    assert late_ms[-1] < 5_000


def test_what_is_due_or_expires_sooner_than_what_was_there_is_not_slept_through(store: Store) -> None:
    store.send(Message("t", b"far"), delay_ms=3_600_000)
    store.pop("t", "g")
    begun_s = time.monotonic()
    store.send(Message("t", b"near"), delay_ms=300)
    assert [near.attempt for near in store.pop("t", "g", wait_ms=10_000, invisible_ms=400)] == [1]
    assert 0.3 <= time.monotonic() - begun_s < 5
    (again,) = store.pop("t", "g", wait_ms=10_000)
    assert again.attempt == 2
    assert 0.6 <= time.monotonic() - begun_s < 10
    assert store.ack(again) is AckOutcome.ACKED
    assert store.pop("t", "g", wait_ms=1_000) == []


def test_close_ends_every_wait(tmp_path: Path, engine: str) -> None:
    for round_number in range(5):
        store = rmqstore.open(tmp_path / f"store-{round_number}", engine=engine)
        waiting = threading.Barrier(7)

        def consume(number: int, store: Store = store, waiting: threading.Barrier = waiting) -> None:
            waiting.wait()
            store.pop("t", f"g{number}", wait_ms=60_000)

        def busy(store: Store = store, waiting: threading.Barrier = waiting) -> None:
            waiting.wait()
            while True:
                store.send(Message("u", b"x"), delay_ms=50)
                store.ack(store.pop("u", "g"))
                store.pending()
                store.lag("u", "g")

        with ThreadPoolExecutor() as pool:
            calls = [*(pool.submit(consume, number) for number in range(4)), pool.submit(busy), pool.submit(busy)]
            waiting.wait()
            time.sleep(0.05 * round_number)
            store.close()
            for call in calls:
                with pytest.raises(StoreClosedError, match="closed"):
                    call.result(20)
        if engine != "memory":
            with rmqstore.open(tmp_path / f"store-{round_number}", engine=engine, services=False) as again:
                assert again.verify() == []


def test_while_a_pop_looks_on_in_steps_each_call_stands_back(tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks are not fair: without this a loop of calls keeps the steps out, or they keep it out (X3)."""
    stood_back, steps = 0, 0

    def stand_back(_: float) -> None:
        nonlocal stood_back
        stood_back += 1

    def send_at_the_third(*arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 3:
            before = stood_back
            with ThreadPoolExecutor() as pool:
                pool.submit(store.send, Message("other", b"y")).result(60)
            assert stood_back == before + 1, "the send did not stand back"
        return pop_of_engine(*arguments)

    with rmqstore.open(tmp_path / "store", engine=engine, services=False) as store:
        pop_of_engine = store._pops.pop
        store.send_batch([Message("t", b"x", tag="red", queue_id=0) for _ in range(10_000)])
        monkeypatch.setattr("rmqstore.store.handover.time", SimpleNamespace(sleep=stand_back))
        monkeypatch.setattr(store._pops, "pop", send_at_the_third)
        assert store.pop("t", "g", filter="blue") == []
        assert steps >= 4
        assert stood_back == steps, "the pop stands back between two steps, as the send did once"
        store.send(Message("other", b"z"))
        assert stood_back == steps, "nothing goes on in steps any more"


def test_two_opens_at_once_give_one_owner(tmp_path: Path, engine: str) -> None:
    for round_number in range(5):
        path, start = tmp_path / f"store-{round_number}", threading.Barrier(4)

        def open_it(_: int, path: Path = path, start: threading.Barrier = start) -> Store | None:
            start.wait()
            try:
                return rmqstore.open(path, engine=engine, services=False)
            except StoreLockedError:
                return None

        with ThreadPoolExecutor() as pool:
            (opened,) = filter(None, pool.map(open_it, range(4), timeout=20))
        opened.send(Message("t", b"x"))
        opened.close()
