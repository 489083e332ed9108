"""Calls of several threads that one of them makes: each once, its answer or error in its own thread, and one wait for the disk (X3)."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rmqstore import FlowControlError, Message, Store, StorePoisonedError
from rmqstore.contract import Ticket
from rmqstore_conformance.stores import Stores
from tests.server.served import soon

BODIES = [b"%d" % number for number in range(8)]


@pytest.fixture
def store(engine_stores: Stores) -> Store:
    return engine_stores.open()


class Sends:
    """Sends of a thread each, which gather while the first one is held up in its engine.

    Attributes:
        made: the thread that made the call of each body.
        told: what each send gave or raised.
    """

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch, before: Callable[[bytes], None] = lambda _: None) -> None:
        self.store = store
        self.made: dict[bytes, int] = {}
        self.told: dict[bytes, object] = {}
        pops, go_on = store.engine.pops, threading.Event()
        append = pops.append

        def appended(batch: Any, *rest: Any) -> Any:
            (message,) = batch.messages
            self.made[message.body] = threading.get_ident()
            if message.body == b"first":
                assert go_on.wait(20)
            before(message.body)
            return append(batch, *rest)

        monkeypatch.setattr(pops, "append", appended)
        self.threads = {body: threading.Thread(target=self._send, args=(body,)) for body in (b"first", *BODIES)}
        self.threads[b"first"].start()
        soon(lambda: b"first" in self.made)
        for body in BODIES:
            self.threads[body].start()
        soon(lambda: len(store._joint._gathering.calls) == len(BODIES))
        go_on.set()
        for thread in self.threads.values():
            thread.join(20)
            assert not thread.is_alive()

    def _send(self, body: bytes) -> None:
        try:
            self.told[body] = self.store.send(Message("t", body)).message_id
        except BaseException as error:
            self.told[body] = error

    def errors(self) -> dict[bytes, type]:
        return {body: type(told) for body, told in self.told.items() if isinstance(told, BaseException)}

    def stored(self) -> set[bytes]:
        popped = self.store.pop("t", "g")
        bodies = {each.body for each in popped}
        assert len(bodies) == len(popped), "a send was made twice"
        return bodies


def test_sends_that_wait_together_are_made_by_one_thread_and_share_a_sync(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, synced = store.engine.pops.sync, list[int]()

    def noted(ticket: Ticket | None = None) -> None:
        synced.append(threading.get_ident())
        sync(ticket)

    monkeypatch.setattr(store.engine.pops, "sync", noted)
    sends = Sends(store, monkeypatch)
    threads = {sends.threads[body].ident for body in BODIES}
    (leader,) = {sends.made[body] for body in BODIES}
    assert leader in threads
    assert {each.message_id: each.body for each in store.pop("t", "g")} == {told: body for body, told in sends.told.items()}
    if store.stats().pop_engine != "memory":
        assert next(each for each in synced if each in threads) == leader, "the others ask for what is durable"


def test_an_error_goes_to_its_own_thread(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(body: bytes) -> None:
        if body == b"3":
            raise FlowControlError("refused")

    sends = Sends(store, monkeypatch, refuse)
    assert sends.errors() == {b"3": FlowControlError}
    assert sends.stored() == {b"first", *BODIES} - {b"3"}


def test_what_ends_a_leader_is_told_in_its_thread_and_that_of_the_call(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(body: bytes) -> None:
        if body == b"3":
            raise SystemExit

    sends = Sends(store, monkeypatch, end)
    leader = next(body for body in BODIES if sends.threads[body].ident == sends.made[b"3"])
    assert sends.errors() == dict.fromkeys({b"3", leader}, SystemExit)
    assert sends.stored() == {b"first", *BODIES} - {b"3"}


def test_a_sync_that_fails_is_told_to_all_that_waited_for_it(durable_stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    store = durable_stores.open()
    pops: Any = store.engine.pops
    kv, made = pops._shared.kv, set[bytes]()
    sync = kv._sync_to_disk

    def fail() -> int:
        if made > {b"first"}:
            raise OSError(errno.EIO, "broken")
        reached: int = sync()
        return reached

    monkeypatch.setattr(kv, "_sync_to_disk", fail)
    assert Sends(store, monkeypatch, made.add).errors() == dict.fromkeys(BODIES, StorePoisonedError)
    monkeypatch.undo()


def test_a_call_that_a_finalizer_makes_within_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []

    def within(body: bytes) -> None:
        if body == b"3":
            with pytest.raises(RuntimeError, match="within another call") as error:
                store.send(Message("t", b"of a finalizer"))
            refused.append(str(error.value))

    sends = Sends(store, monkeypatch, within)
    assert refused
    assert sends.stored() == {b"first", *BODIES}
