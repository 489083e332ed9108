"""A signal handler, or a finalizer, that calls the store in the middle of a call of its thread (F4)."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
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


def test_a_close_within_a_call_ends_it_as_an_interrupted_one(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """So do handlers of SIGTERM."""
    is_durable = store.stats().pop_engine != "memory"
    _in_the_middle(monkeypatch, store.close)
    with pytest.raises(StoreClosedError):
        store.send(Message("t", b"outer"))
    if not is_durable:
        return
    with rmqstore.open(store.path, clock=ManualClock(10**12), services=False) as again:
        again.send(Message("t", b"behind"))
        assert bodies(again) in ([b"before", b"behind"], [b"before", b"outer", b"behind"])
        assert again.verify() == []


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
