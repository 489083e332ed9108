"""A child that makes public calls one by one, each between two system calls that a tracer sees: ``access`` of a path that names it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import rmqstore
from rmqstore import ManualClock, Message, MessageBatch, Store

START_MS = 1_700_000_000_000


@contextmanager
def marked(name: str) -> Iterator[None]:
    """Let the tracer see where a call begins and ends."""
    os.access(f"/rmqs-begin/{name}", os.F_OK)
    yield
    os.access(f"/rmqs-end/{name}", os.F_OK)


def messages(count: int, deliver_at_ms: int | None = None) -> list[Message]:
    """Return ``count`` messages."""
    return [Message("t", b"x" * 200, keys=(f"k{number}",), deliver_at_ms=deliver_at_ms) for number in range(count)]


def run(store: Store, clock: ManualClock) -> None:
    """Make every call."""
    store.send(messages(1)[0])
    store.pop("t", "g")
    handles = [receipt.handle for receipt in store.send_batch(messages(20), delay_ms=1_000)]
    with marked("send"):
        store.send(messages(1)[0])
    with marked("send later"):
        store.send(messages(1)[0], delay_ms=2_000)
    with marked("send_batch"):
        store.send_batch(messages(200))
    with marked("send_batch columns"):
        store.send_batch(MessageBatch.of(messages(200)).columns)
    with marked("send_batch later"):
        store.send_batch(messages(200, START_MS + 2_500))
    with marked("send_batch now and later"):
        store.send_batch(messages(5) + messages(5, START_MS + 2_500))
    with marked("send to a new topic"):
        store.send(Message("another", b"x"))
    with marked("cancel"):
        store.cancel(handles[0] or "")
    with marked("cancel many"):
        store.cancel([handle or "" for handle in handles[1:5]])
    with marked("cancel_key"):
        store.cancel_key("t", "k7")
    assert store.tick().handed_over == 5
    with marked("tick idle"):
        store.tick()
    clock.set(START_MS + 1_000)
    with marked("tick moves"):
        assert store.tick().handed_over == 14
    clock.set(START_MS + 3_000)
    with marked("tick moves in many batches"):
        assert store.tick().handed_over > 200
    with marked("tick idle again"):
        store.tick()
    with marked("pop"):
        popped = store.pop("t", "g", max_messages=32, invisible_ms=500_000)
    with marked("pop_batch"):
        batch = store.pop_batch("t", "g", max_messages=300, invisible_ms=500_000)
    with marked("pop short"):
        assert store.pop("t", "g", max_messages=10, invisible_ms=5_000)
    with marked("ack"):
        store.ack(popped[0])
    with marked("ack many"):
        store.ack(popped[1:20])
    with marked("ack batch"):
        store.ack(batch)
    with marked("change"):
        store.change_invisible(popped[25], invisible_ms=5_000)
    with marked("release"):
        store.release(popped[26:])
    clock.set(START_MS + 10_000)
    with marked("tick revives"):
        assert store.tick().retried == 11
    store.send(messages(1)[0], delay_ms=1_000)
    store.pop("t", "g", max_messages=5, invisible_ms=1_000)
    clock.set(START_MS + 20_000)
    with marked("tick moves and revives"):
        report = store.tick()
        assert report.handed_over
        assert report.retried
    while left := store.pop("t", "g", max_messages=1024):
        store.ack(left)
    with marked("pop empty"):
        assert store.pop("t", "g") == []
    with marked("forget"):
        store.engine.timers.forget(store.engine.pops.durable_cursor())
    with marked("reads"):
        _read_all(store)
    store.flush()
    with marked("flush with nothing to do"):
        store.flush()


def _read_all(store: Store) -> None:
    reads: list[Callable[[], Any]] = [
        store.pending,
        store.scan,
        store.topics.list,
        store.groups.list,
        store.stats,
        store.verify,
        store.next_wake_ms,
        lambda: store.lag("t", "g"),
        lambda: store.groups.offsets("g"),
        lambda: store.read("t"),
    ]
    for read in reads:
        read()


def main() -> None:
    """Run on the directory and with the engines that the command line names."""
    path, timer_engine, pop_engine = sys.argv[1:]
    clock = ManualClock(START_MS)
    settings: dict[str, Any] = {"precision_ms": 100, "hand_over_limit": 20, "clock": clock, "services": False}
    with rmqstore.open(path, timer_engine=timer_engine, pop_engine=pop_engine, **settings) as store:
        run(store, clock)


if __name__ == "__main__":
    main()
