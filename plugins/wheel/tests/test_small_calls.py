"""Calls of a few messages, which go row by row, leave the same store as by column."""

from __future__ import annotations

import random
from typing import Any

import pytest

from plugins.wheel.tests.stores import WheelStores
from rmqstore import ManualClock, Message, Store
from rmqstore_conformance.stores import START_MS
from rmqstore_wheel.log import call
from rmqstore_wheel.timers import store as timer_store

WINDOW_MS = 1024 * 1000
TOPICS = ("t0", "t1")


@pytest.mark.usefixtures("small_log")
@pytest.mark.parametrize("seed", range(4))
def test_calls_of_a_few_messages_leave_the_same_store_as_by_column(stores: WheelStores, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Timers of one slot and of many, rolled ones, keys, tags, ends of files, cancels, a kill, and each message as it comes out."""

    def history(name: str, few: int) -> list[Any]:
        monkeypatch.setattr(call, "FEW", few)
        monkeypatch.setattr(timer_store, "FEW", few)
        stores.clock.set(START_MS)
        return _history(stores, name, stores.clock, random.Random(seed))

    assert history("rows", call.FEW) == history("columns", 0)


def _history(stores: WheelStores, name: str, clock: ManualClock, draws: random.Random) -> list[Any]:
    store, told = stores.open(name), list[Any]()
    for step in range(25):
        sent = store.send_batch([_message(f"{step}-{row}", draws) for row in range(draws.choice((1, 2, 5, 40, 96)))])
        told.append([receipt.timer and (receipt.timer.tick, receipt.timer.seq) for receipt in sent])
        told.append(store.cancel(draws.sample([*sent], min(len(sent), 3))))
        told.append(store.cancel_key(draws.choice(TOPICS), "k1"))
        if draws.random() < 0.3:
            clock.advance(draws.randrange(2 * WINDOW_MS))
            store.tick()
            told.append(_read(store))
        if draws.random() < 0.1:
            store = stores.killed(store)
    told.append([each.message for each in store.engine.timers.scan(START_MS, START_MS + 10 * WINDOW_MS).timers])
    clock.advance(10 * WINDOW_MS)
    store.tick()
    told += [_read(store), store.verify(), store.pending().total]
    store.close()
    return told


def _message(name: str, draws: random.Random) -> Message:
    due_ms = draws.choice((None, START_MS + 60_000, START_MS + draws.randrange(4 * WINDOW_MS)))
    return Message(
        draws.choice(TOPICS),
        draws.randbytes(draws.choice((1, 300))),
        tag=draws.choice((None, "a", "ü")),
        keys=draws.choice(((), ("k1",), ("k1", "k2"))),
        properties=draws.choice(({}, {"a": "1", "b": "2"})),
        deliver_at_ms=due_ms,
        message_id=name,
        born_ms=START_MS,
        queue_id=0,
    )


def _read(store: Store) -> list[Any]:
    """Return all that a group gets, field by field."""
    found = []
    for topic in TOPICS:
        while popped := store.pop(topic, "g", max_messages=32):
            found += [
                (m.topic, m.body, m.tag, m.keys, [*m.properties.items()], m.deliver_at_ms, m.message_id, m.queue_offset, m.store_ms)
                for m in popped
            ]
            store.ack(popped)
    return found
