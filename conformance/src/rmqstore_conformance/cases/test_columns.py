"""H2, P3: what comes out is what was sent: by columns as by rows, of every kind of value, in every copy of a message."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from rmqstore import Message, MessageBatch, PoppedMessage, ReleaseOutcome
from rmqstore.batch import columns_of
from rmqstore.contract import EMPTY_CURSOR
from rmqstore.message import MAX_BODY_BYTES, dlq_topic, retry_topic
from rmqstore_conformance.data import BODIES, BORN_TIMES, IDS, KEYS, PROPERTIES, TAGS, Family, groups, topics
from rmqstore_conformance.fidelity import came_out, check
from rmqstore_conformance.stores import START_MS, Stores, message, plain, pop_all

(T,) = topics(__name__, 1)
(G,) = groups(__name__, 1)

Value = TypeVar("Value")

FIELDS = ("topic", "body", "tag", "keys", "properties", "message_id", "born_ms")
"""What is the same on every way."""

COUNT = 6

_FILLED: dict[str, Callable[[int], bool]] = {"all": lambda n: True, "none": lambda n: False, "one": lambda n: n == 3}
"""Which rows have the fields that a message may lack: an engine that keeps columns has a way of its own for each of these."""


def rows(filled: Callable[[int], bool], **fields: str) -> list[Message]:
    """Return messages of which some have every field."""
    full: dict[str, Any] = {"tag": "red", "keys": ("k1", "k2"), "properties": {"a": "1", "b": "2"}, **fields}
    return [plain(n, born_ms=7 + n, **(full if filled(n) else {})) for n in range(COUNT)]


def check_batch(found: MessageBatch, sent: list[Message] | None = None, *fields: str) -> None:
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
    check_batch(store.engine.timers.due(EMPTY_CURSOR, COUNT).messages, sent)
    store.tick()
    check_batch(store.read(T), sent)
    for _ in range(2):
        check_batch(store.pop_batch(T, G, invisible_ms=1), sent)
        stores.tick_after(store, 1)
    check_batch(store.read(dlq_topic(G)))


@pytest.mark.clause("H2")
@pytest.mark.parametrize("filled", _FILLED)
def test_p9_columns_and_rows_say_what_was_sent_with_a_group(stores: Stores, filled: str) -> None:
    """P9: the message group is among the optional fields of what is sent for now."""
    store = stores.open()
    store.topics.create(T, queues=1)
    sent = rows(_FILLED[filled], message_group="m")
    store.send_batch(sent)
    check_batch(store.read(T), sent, "message_group")
    check_batch(store.pop_batch(T, G), sent, "message_group")


# ---------------------------------------------------------------- every kind of value


def _of_families(number: int, *, deliver_at_ms: int | None = None) -> list[Message]:
    """Return a message for each family of values, made of members with this number."""

    def member(families: Sequence[Family[Value]], at: int, number: int) -> Value:
        return families[at % len(families)].member(number)

    return [
        Message(
            "t",
            member(BODIES, at, number),
            member(TAGS, at, number),
            (member(KEYS, at, number), member(KEYS, at, number + 1), member(KEYS, at, number)),
            PROPERTIES[at % len(PROPERTIES)].member(number),
            deliver_at_ms=deliver_at_ms,
            message_id=member(IDS, at, number),
            born_ms=member(BORN_TIMES, at, number),
            queue_id=0,
        )
        for at in range(max(map(len, (BODIES, BORN_TIMES, IDS, KEYS, PROPERTIES, TAGS))))
    ]


@pytest.mark.clause("R1")
@pytest.mark.parametrize("later", [False, True], ids=["now", "later"])
def test_h2_every_family_of_values_comes_as_it_was_sent(stores: Stores, later: bool) -> None:
    """H2: members of each family of bodies, ids, keys, tags, properties and times, as rows and as columns: each field comes back."""
    store = stores.open()
    due = START_MS + 5000 if later else None
    rows, columns = (_of_families(number, deliver_at_ms=due) for number in (0, 1))
    store.send_batch(rows)
    # A slice, as a reader of a large table sends it: its buffers begin before it.
    store.send_batch(MessageBatch.of(rows + columns).columns.slice(len(rows)))
    sent = rows + columns
    if later:
        for message, pending in zip(sent, store.scan().timers, strict=True):
            check(message, pending.message, "pending")
        stores.tick_after(store, 5000)
    if stores.pair.durable:
        store = stores.reopen(store)
    place = {"attempt": 0, "first_pop_ms": None, "store_ms": stores.clock.now_ms()}
    lying = came_out(store.read("t", 0, 0, 1000))
    for offset, (message, seen) in enumerate(zip(sent, lying, strict=True)):
        check(message, seen, "read", queue_offset=offset, **place)
    popped = [*store.pop("t", "g", max_messages=len(rows)), *came_out(store.pop_batch("t", "g"))]
    for offset, (message, seen) in enumerate(zip(sent, popped, strict=True)):
        check(message, seen, "popped", queue_offset=offset, attempt=1, store_ms=stores.clock.now_ms())


@pytest.mark.clause("P7", "H2")
def test_p3_every_copy_is_whole(stores: Stores) -> None:
    """P3: messages of each family expire, come again, die and are resent: each copy has all that was sent, wherever it is seen."""
    store = stores.open(max_retries=1)
    sent = {str(each.message_id): each for each in _of_families(2)}
    store.send_batch(list(sent.values()))

    def popped(attempt: int, pop: Callable[[], list[PoppedMessage]]) -> None:
        got = pop()
        assert len(got) == len(sent)
        for each in got:
            check(sent[each.message_id], each, f"attempt {attempt}", attempt=attempt, first_pop_ms=first_ms)

    first_ms = stores.clock.now_ms()
    popped(1, lambda: store.pop("t", "g", max_messages=1000, invisible_ms=1000))
    assert stores.tick_after(store, 1000).retried == len(sent)
    for each in came_out(store.engine.pops.read(retry_topic("g", "t"), 0, 0, 1000)):
        check(sent[each.message_id], each, "in the retry topic", topic=retry_topic("g", "t"), attempt=1, first_pop_ms=first_ms)
    popped(2, lambda: came_out(store.pop_batch("t", "g", invisible_ms=1000)))
    assert stores.tick_after(store, 1000).dead == len(sent)
    letters = store.dead_letters.list("g")
    for letter in letters:
        message = sent[letter.origin_message_id]
        reason = "delivered 2 times without an ack"
        system = {"DLQ_REASON": reason, "DLQ_ATTEMPTS": "2", "ORIGIN_TOPIC": "t", "ORIGIN_MESSAGE_ID": letter.origin_message_id}
        check(message, letter.message, "dead", topic=dlq_topic("g"), properties={**message.properties, **system}, attempt=0)
        found = store.get(letter.origin_message_id)
        assert found is not None
        check(message, found, "found", topic=dlq_topic("g"), properties={**message.properties, **system})
    assert store.dead_letters.resend(letters) == len(sent)
    first_ms = stores.clock.now_ms()
    popped(1, lambda: store.pop("t", "g", max_messages=1000))


@pytest.mark.clause("P3", "P7")
def test_h2_the_largest_message_comes_as_it_was_sent(stores: Stores) -> None:
    """H2: a body of the most bytes that there may be: pending, handed over, popped, given back, retried, dead and resent, it is whole."""
    store = stores.open(max_retries=1)
    body = random.Random(1).randbytes(MAX_BODY_BYTES)
    store.send(message("now", body=body))
    store.send(message("later", body=body), delay_ms=1000)
    assert [len(each.message.body) for each in store.scan().timers] == [len(body)]
    assert stores.tick_after(store, 1000).handed_over == 1
    assert store.release(store.pop(T, G, max_messages=2)) == [ReleaseOutcome.RELEASED] * 2
    for _ in range(2):
        assert [each.body == body for each in store.pop(T, G, max_messages=2, invisible_ms=1000)] == [True, True]
        stores.tick_after(store, 1000)
    letters = store.dead_letters.list(G)
    assert [each.message.body == body for each in letters] == [True, True]
    assert store.dead_letters.resend(letters) == 2
    assert [each.body == body for each in pop_all(store)] == [True, True]
