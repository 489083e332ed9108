"""A signal handler, or a finalizer, that calls the store in the middle of a call of its thread (F4)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore import ManualClock, Message, Store, StoreClosedError
from rmqstore.engine.pops.transaction import Transaction
from tests.pairs import ENGINES


@pytest.fixture
def store(tmp_path: Path, engine: str, clock: ManualClock) -> Iterator[Store]:
    with rmqstore.open(tmp_path / "store", engine=engine, clock=clock, services=False) as opened:
        opened.send(Message("t", b"before"))
        yield opened


def _in_the_middle(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something while the next message is being appended, once."""
    append, left = Transaction._append, [act]

    def appended(transaction: Transaction, *arguments: Any) -> object:
        if left:
            left.pop()()
        return append(transaction, *arguments)

    monkeypatch.setattr(Transaction, "_append", appended)


def bodies(store: Store) -> list[bytes]:
    return [message.body for message in store.read("t").messages]


CALLS: dict[str, Callable[[Store], object]] = {
    "stats": lambda store: store.stats(),
    "tick": lambda store: store.tick(),
    "pop": lambda store: store.pop("t", "g"),
    "send": lambda store: store.send(Message("t", b"within")),
    "close": lambda store: store.close(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_within_a_call_is_refused_and_does_nothing(store: Store, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    refused: list[str] = []

    def within() -> None:
        with pytest.raises(RuntimeError, match="within another call of the same thread") as error:
            CALLS[call](store)
        refused.append(str(error.value))

    _in_the_middle(monkeypatch, within)
    store.send(Message("t", b"outer"))
    assert refused
    store.send(Message("t", b"behind"))
    assert bodies(store) == [b"before", b"outer", b"behind"]
    assert store.verify() == []


WHILE_IT_WAITS: dict[str, Callable[[Store], object]] = {**CALLS, "flush": lambda store: store.flush()}


def test_a_call_while_its_thread_waits_for_the_disk_takes_no_lock(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may hold that, as a ticker that makes a check point, and wait for the same sync."""
    sessions: Any = list(store.engine.sessions.values())
    shared = sessions[0]._shared
    sync, refused, is_held, may_end = shared.kv._sync_to_disk, list[str](), threading.Event(), threading.Event()

    def hold() -> None:
        with shared.lock:
            is_held.set()
            may_end.wait(60)

    def synced() -> int:
        if not refused:
            other.start()
            assert is_held.wait(60)
            with pytest.raises(RuntimeError, match="within another call") as error:
                store.stats()
            refused.append(str(error.value))
            may_end.set()
            other.join(60)
        reached: int = sync()
        return reached

    other = threading.Thread(target=hold)
    monkeypatch.setattr(shared.kv, "_sync_to_disk", synced)
    store.send(Message("t", b"outer"))
    assert refused or store.stats().pop_engine == "memory"


@pytest.mark.parametrize("call", WHILE_IT_WAITS)
def test_a_call_while_its_thread_waits_for_the_disk_does_not_wait_for_ever(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:  # fmt: skip
    shared: Any = next(iter(store.engine.sessions.values()))
    kv = shared._shared.kv
    sync, told = kv._sync_to_disk, list[str]()

    def synced() -> int:
        if not told:
            told.append("")
            try:
                WHILE_IT_WAITS[call](store)
            except RuntimeError as error:
                told.append(str(error))
        reached: int = sync()
        return reached

    monkeypatch.setattr(kv, "_sync_to_disk", synced)
    store.send(Message("t", b"outer"))
    if store.stats().pop_engine != "memory":
        assert told, "nothing was synced"
        assert len(told) == 2, "nothing was refused"
    store.send(Message("t", b"behind"))
    assert bodies(store) == [b"before", b"outer", b"behind"]
    assert store.verify() == []


def test_a_close_ends_a_pop_that_waits_in_the_same_thread(store: Store) -> None:
    def close(*_: object) -> None:
        store.close()

    previous = signal.signal(signal.SIGALRM, close)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(StoreClosedError):
            store.pop("empty", "g", wait=timedelta(hours=1))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize("part", ["topics", "dead_letters"])
def test_a_close_within_a_call_of_a_part_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    refused: list[str] = []

    def within(*_: object, **__: object) -> None:
        with pytest.raises(RuntimeError, match="within another call") as error:
            store.close()
        refused.append(str(error.value))

    monkeypatch.setattr(store, "_settle", within)
    if part == "topics":
        store.topics.create("new")
    else:
        store.reject(store.pop("t", "g"))
        store.dead_letters.drop(store.dead_letters.list("g"))
    assert refused


@pytest.mark.parametrize("step", ["_stop_workers", "_ticker", "engine"])
def test_a_close_within_a_close_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """As of a second SIGTERM, whose handler then ends the program: the first close does not come to its end."""
    store = rmqstore.open(tmp_path / "store", engine=ENGINES[-1], services=True)
    store.send(Message("t", b"x"))
    begun: list[bool] = []

    def within(*_: object) -> None:
        if not begun:
            begun.append(True)
            store.close()
            raise SystemExit

    ticker: Any = store._ticker
    end_of = {"_stop_workers": store._stop_workers, "_ticker": ticker.stop, "engine": store.engine.close}[step]
    owner, name = {"_stop_workers": (store, step), "_ticker": (ticker, "stop"), "engine": (store.engine, "close")}[step]

    def ended() -> None:
        within()
        end_of()

    monkeypatch.setattr(owner, name, ended)
    with pytest.raises(SystemExit):
        store.close()
    assert begun
    if step == "engine" or ENGINES[-1] == "memory":
        return  # that was closed for good by the first one already
    with rmqstore.open(tmp_path / "store", services=False) as again:
        assert bodies(again) == [b"x"]


def test_a_handler_whose_call_is_refused_ends_the_call_around_it_as_any_exception_does(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    previous = signal.signal(signal.SIGUSR1, lambda *_: store.send(Message("t", b"within")))
    try:
        _in_the_middle(monkeypatch, lambda: signal.raise_signal(signal.SIGUSR1))
        with pytest.raises(RuntimeError, match="within another call of the same thread"):
            store.send(Message("t", b"outer"))
    finally:
        signal.signal(signal.SIGUSR1, previous)
    store.send(Message("t", b"behind"))
    assert bodies(store) == [b"before", b"behind"]
    assert store.verify() == []
