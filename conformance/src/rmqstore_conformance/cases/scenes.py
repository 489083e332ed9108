"""What many cases begin with: a queue with messages, messages that died, threads that start at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rmqstore import DeadLetter, PoppedMessage, Store
from rmqstore_conformance.data import drawn
from rmqstore_conformance.stores import Stores, label, message

THREADS = 8


def filled(stores: Stores, count: int, **settings: Any) -> Store:
    """Open a store with the messages 0 … ``count - 1`` in the topic of the case."""
    store = stores.open(**settings)
    store.send_batch([message(n) for n in range(count)])
    return store


def buried(stores: Stores, store: Store, *sent: Any, group: str | None = None) -> list[DeadLetter]:
    """Send messages, or those of numbers, let a group use them up one after the other, and list its letters; it must have no retries."""
    group = group or drawn().usual_group
    for each in sent:
        one = message(each) if isinstance(each, (int, str)) else each
        store.send(one)
        assert len(store.pop(one.topic, group, max_messages=1, invisible_ms=1)) == 1
        assert stores.tick_after(store, 1).dead == 1
    return store.dead_letters.list(group)


def told(popped: list[PoppedMessage]) -> list[tuple[str, int]]:
    """Return the label and the attempt of each message."""
    return [(label(each), each.attempt) for each in popped]


def together(work: Callable[[int], None], count: int = THREADS) -> None:
    """Run ``work(0) … work(count - 1)`` at once; the first error is raised."""
    barrier = threading.Barrier(count)

    def started(number: int) -> None:
        barrier.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        for future in [pool.submit(started, number) for number in range(count)]:
            future.result(timeout=100)
