"""H2: a batch of messages on its way out says the same by its columns as by its rows, and that is what was sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmqstore import Message, MessageBatch
from rmqstore.batch import columns_of
from rmqstore.contract import EMPTY_CURSOR
from rmqstore.message import dlq_topic
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.stores import Stores, plain

(T,) = topics(__name__.rpartition(".")[2], 1)
(G,) = groups(__name__.rpartition(".")[2], 1)

FIELDS = ("topic", "body", "tag", "keys", "properties", "message_id", "born_ms")
"""What is the same on every way."""

COUNT = 6

_FILLED: dict[str, Callable[[int], bool]] = {"all": lambda n: True, "none": lambda n: False, "one": lambda n: n == 3}
"""Which rows have the fields that a message may lack: an engine that keeps columns has a way of its own for each of these."""


def rows(filled: Callable[[int], bool], **fields: str) -> list[Message]:
    """Return messages of which some have every field."""
    full: dict[str, Any] = {"tag": "red", "keys": ("k1", "k2"), "properties": {"a": "1", "b": "2"}, **fields}
    return [plain(n, born_ms=7 + n, **(full if filled(n) else {})) for n in range(COUNT)]


def check(found: MessageBatch, sent: list[Message] | None = None, *fields: str) -> None:
    """Compare the columns of a batch with its rows, and with what was sent."""
    columns = found.columns.to_pylist()
    assert columns == columns_of(found.messages).to_pylist()
    assert len(columns) == COUNT
    if sent is not None:
        names = (*FIELDS, *fields)
        assert [{name: row[name] for name in names} for row in columns] == MessageBatch.of(sent).columns.select(names).to_pylist()


@pytest.mark.parametrize("filled", _FILLED)
def test_h2_columns_and_rows_say_what_was_sent(stores: Stores, filled: str) -> None:
    """H2: of what is due, is in a topic, is popped, comes back or has died: with all optional fields, with none, and of one message."""
    store = stores.open(max_retries=1)
    sent = rows(_FILLED[filled])
    store.send_batch(sent, delay_ms=1000)
    stores.clock.advance(1000)
    store.engine.timers.seal(stores.clock.now_ms())
    check(store.engine.timers.due(EMPTY_CURSOR, COUNT).messages, sent)
    store.tick()
    check(store.read(T), sent)
    for _ in range(2):
        check(store.pop_batch(T, G, invisible_ms=1), sent)
        stores.tick_after(store, 1)
    check(store.read(dlq_topic(G)))


@pytest.mark.clause("H2")
@pytest.mark.parametrize("filled", _FILLED)
def test_p9_columns_and_rows_say_what_was_sent_with_a_group(stores: Stores, filled: str) -> None:
    """P9: the message group is among the optional fields of what is sent for now."""
    store = stores.open()
    store.topics.create(T, queues=1)
    sent = rows(_FILLED[filled], message_group="m")
    store.send_batch(sent)
    check(store.read(T), sent, "message_group")
    check(store.pop_batch(T, G), sent, "message_group")
