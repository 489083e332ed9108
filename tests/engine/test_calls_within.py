"""A signal handler, or a finalizer, that calls the store in the middle of a call of its thread (F4)."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore import ManualClock, Message, Store, StoreClosedError
from rmqstore.engine.pops.transaction import Transaction
from tests.pairs import ENGINES


@pytest.fixture(params=ENGINES)
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    with rmqstore.open(tmp_path / "store", engine=request.param, clock=ManualClock(10**12), services=False) as opened:
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


def test_a_close_within_a_call_is_refused_and_does_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """So do handlers of SIGTERM."""
    refused: list[str] = []

    def within() -> None:
        with pytest.raises(RuntimeError, match=r"closes store .* within another call of the same thread") as error:
            store.close()
        refused.append(str(error.value))

    _in_the_middle(monkeypatch, within)
    store.send(Message("t", b"outer"))
    assert refused
    store.send(Message("t", b"behind"))
    assert bodies(store) == [b"before", b"outer", b"behind"]


WHILE_IT_WAITS: dict[str, Callable[[Store], object]] = {**CALLS, "close": lambda store: store.close(), "flush": lambda store: store.flush()}


@pytest.mark.parametrize("call", WHILE_IT_WAITS)
def test_a_call_while_its_thread_waits_for_the_disk_does_not_wait_for_ever(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:  # fmt: skip
    shared: Any = next(iter(store.engine.sessions.values()))
    kv = shared._shared.kv
    sync, told = kv._sync_to_disk, []

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
        assert len(told) == 2 or call in ("stats", "tick", "pop"), "nothing was refused"
    store.send(Message("t", b"behind"))
    assert [body for body in bodies(store) if body != b"within"] == [b"before", b"outer", b"behind"]
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


def test_a_close_within_a_close_leaves_it_to_that(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    end, ended = store.engine.close, []

    def within() -> None:
        store.close()
        ended.append(True)
        end()

    monkeypatch.setattr(store.engine, "close", within)
    store.close()
    assert ended == [True]


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
