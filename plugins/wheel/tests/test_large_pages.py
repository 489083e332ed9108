"""What is read of queues at once is bounded by bytes, not by the number of messages."""

from __future__ import annotations

import numpy as np
import pytest

from plugins.wheel.tests.breaking import WheelStores
from rmqstore_conformance.stores import message
from rmqstore_wheel.queues import queue_log
from rmqstore_wheel.queues.queue_log import WheelQueueLog

MIB = 1024 * 1024


def test_pages_of_large_messages_are_short(stores: WheelStores, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first tick after an open looks at how old messages are, a pop takes some, an export all: each a few MiB at a time."""
    store = stores.open(default_queues=1)
    for first in range(0, 40, 10):
        store.send_batch([message(n, body=bytes(MIB)) for n in range(first, first + 10)])
        store.send_batch([message(n, topic=f"u{first}", body=bytes(MIB)) for n in range(10)])
    pages: list[int] = []
    kept: list[int] = []
    read = WheelQueueLog._read

    def noting(log: WheelQueueLog, topic: str, queue: int, offset: int, count: int) -> queue_log._Page | None:
        kept.append(sum(page.size for page in log._recent.values()))
        page = read(log, topic, queue, offset, count)
        if page is not None:
            assert page.size == sum(len(record) for run in page.runs if isinstance(run, queue_log.Run) for record in run.records)
            pages.append(page.size)
        return page

    monkeypatch.setattr(WheelQueueLog, "_read", noting)
    store = stores.reopen(store)
    stores.clock.advance(1000)
    store.tick()
    for first in range(0, 40, 10):
        while popped := store.pop(f"u{first}", "g", max_messages=2):
            store.ack(popped)
    assert store.transfer.digest()["messages"].rows == 80
    (topic,) = (each for each in store.topics.list() if each.name == "t")
    assert sum(map(len, store.engine.pops.pages(topic))) == 40
    assert np.max(pages) <= 8 * MIB
    assert np.max(kept) <= 40 * MIB
    assert store.verify() == []
