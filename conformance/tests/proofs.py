"""Proofs that mutants are wrong: each uses the public API alone, returns on a sound engine, and fails an assertion on the mutant.

A proof has the name of its mutant. What ``kill -9`` leaves is a copy of the store's directory (:func:`copied`, :func:`moments`).
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from rmqstore import Message, PoppedMessage, Store
from rmqstore.batch import MessageBatch
from rmqstore.contract import Side
from rmqstore_conformance.stores import START_MS, Stores
from rmqstore_lmdb.kv import LmdbBase

S = START_MS

Proof: TypeAlias = Callable[[Stores], None]

PROOFS: dict[str, Proof] = {}


def proof(prove: Proof) -> Proof:
    PROOFS[prove.__name__] = prove
    return prove


def passed(stores: Stores, store: Store, by_ms: int) -> None:
    """Let time pass, and a tick come."""
    stores.clock.advance(by_ms)
    store.tick()


def came(stores: Stores, message: Message) -> PoppedMessage:
    """Send a message for 5 s later, and pop it then."""
    store = stores.open()
    store.send(message, deliver_at_ms=stores.clock.now_ms() + 5000)
    passed(stores, store, 5000)
    return store.pop(message.topic, "g")[0]


def sent(stores: Stores, message: Message, **settings: Any) -> PoppedMessage:
    """Send a message for now, and pop it."""
    store = stores.open(**settings)
    store.send(message)
    return store.pop(message.topic, "g")[0]


def failed_once(stores: Stores, message: Message, **pop: Any) -> Store:
    """Send a message and let the lease of its first pop end."""
    store = stores.open()
    store.send(message)
    assert store.pop(message.topic, "g", invisible_ms=1000, **pop)
    passed(stores, store, 1000)
    return store


def one_timer(number: int = 1, **fields: Any) -> MessageBatch:
    """Return a batch of one as an engine gets it."""
    ready = {"message_id": f"m{number}", "born_ms": S, "queue_id": 0, "deliver_at_ms": S + 5000, **fields}
    return MessageBatch(messages=[Message("t", b"x", **ready)])


def refused(error: type[Exception], call: Callable[[], object]) -> None:
    """Show that a call is refused."""
    try:
        call()
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


def many(count: int, body: bytes = b"x", **fields: Any) -> list[Message]:
    return [Message("t", body, message_id=f"m{number}", **fields) for number in range(count)]


def copied(stores: Stores, name: str = "copy", **settings: Any) -> Store:
    """Open what a kill would leave of the store now."""
    shutil.copytree(stores.root / "store", stores.root / name)
    return stores.open(name, **settings)


@contextmanager
def moments(stores: Stores) -> Iterator[Callable[..., Iterator[Store]]]:
    """Copy the store after each transaction of a block; then give each copy, opened."""
    plain, names = LmdbBase.commit, []

    def commit(base: LmdbBase, changes: Any) -> None:
        plain(base, changes)
        names.append(f"moment{len(names)}")
        shutil.copytree(stores.root / "store", stores.root / names[-1])

    def opened(**settings: Any) -> Iterator[Store]:
        for name in names:
            with stores.open(name, **settings) as store:
                yield store

    LmdbBase.commit = commit
    try:
        yield opened
    finally:
        LmdbBase.commit = plain


def meeting(side: Side, calls: Sequence[Callable[[], Any]], inside: Callable[[], None] = lambda: None) -> list[Any]:
    """Make calls by threads that all have begun while a side is held; ``inside`` runs then."""
    answers: list[Any] = [None] * len(calls)

    def make(at: int) -> None:
        answers[at] = calls[at]()

    threads = [threading.Thread(target=make, args=(at,)) for at in range(len(calls))]
    with side.held():
        for thread in threads:
            thread.start()
        time.sleep(0.2)  # by then each waits for the side
        inside()
    for thread in threads:
        thread.join()
    return answers
