"""Two features that meet: order with all that ends a lease, names that come again, glued names, marks on both sides, far timers.

Values are drawn from families whose members differ in one way only (``rmqstore_conformance.data``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from rmqstore import (
    AckOutcome,
    CancelOutcome,
    Lag,
    Message,
    MessageBatch,
    PoppedMessage,
    RejectOutcome,
    ReleaseOutcome,
    transfer,
)
from rmqstore.contract import InitMode, MessageState
from rmqstore.message import MAX_TIME_MS, retry_topic
from rmqstore_conformance.data import BODIES, BORN_TIMES, GLUED, IDS, KEYS, NAMES, PROPERTIES, TAGS, Data, Family
from rmqstore_conformance.fidelity import came_out, check
from rmqstore_conformance.stores import DAY_MS, START_MS, Stores

T = TypeVar("T")

ENDED = {ReleaseOutcome.STALE, AckOutcome.STALE, ReleaseOutcome.UNKNOWN, AckOutcome.UNKNOWN}
"""Answers about a lease that is another's by now, or no one's."""


@pytest.fixture
def values(request: pytest.FixtureRequest, seed: int) -> Data:
    """The values of one case, by labels."""
    return Data(f"{seed} {request.node.originalname}")


# ---------------------------------------------------------------- names that come again


def test_p7_a_group_made_anew_has_no_settings(stores: Stores, values: Data) -> None:
    """P7: retries and waits that were set for a group go with it; the group of that name that comes later follows the store's."""
    store = stores.open(max_retries=5)
    topic, group = values.topic("t"), values.group("g")
    store.send(Message(topic, values.body("0")))
    store.groups.set(group, max_retries=0, backoff=[timedelta(hours=9)])
    (first,) = store.pop(topic, group, invisible_ms=1000)
    store.groups.delete(group)
    assert store.groups.settings(group).max_retries is None
    (again,) = store.pop(topic, group, invisible_ms=1000)
    assert again.attempt == 1
    assert store.ack(first) in (AckOutcome.STALE, AckOutcome.UNKNOWN)
    report = stores.tick_after(store, 1000)
    assert (report.retried, report.dead) == (1, 0)
    (second,) = store.pop(topic, group, invisible_ms=1000)
    store.retry_later(second)
    assert [each.expiry_ms - stores.clock.now_ms() for each in store.leases()] == [30_000]


def test_p2_deletions_go_by_the_whole_name(stores: Stores) -> None:
    """P2: of names each of which begins with the one before, one group and one topic is deleted; all others stay as they were."""
    store = stores.open()
    names = [NAMES[1].member(number) for number in range(4)]
    for topic in names:
        store.send_batch([Message(topic, b"x"), Message(topic, b"y")])
        for group in names:
            assert len(store.pop(topic, group, max_messages=1)) == 1
    gone = names[1]
    store.groups.delete(gone)
    store.topics.delete(gone)
    left = [name for name in names if name != gone]
    assert store.groups.list() == sorted(left)
    assert [topic.name for topic in store.topics.list()] == sorted(left)
    assert len(store.leases()) == 9
    for topic in left:
        for group in left:
            assert store.lag(topic, group) == Lag(ready=1, in_flight=1, retry=0, dead=0)
        assert store.lag(topic, gone) == Lag(ready=2, in_flight=0, retry=0, dead=0)


@pytest.mark.parametrize("family", NAMES, ids=lambda family: family.name)
def test_p2_groups_are_told_apart_by_case(stores: Stores, family: Any) -> None:
    """P2: of groups whose names are alike in case, by a hash or by their first letters, each has its own settings and letters."""
    store = stores.open(max_retries=1)
    one, two, three = (family.member(number) for number in range(3))
    store.send(Message(one, b"x"))
    for group in (one, two, three):
        assert len(store.pop(one, group, invisible_ms=1000)) == 1
    store.groups.set(two, max_retries=0, backoff=[timedelta(hours=1)])
    assert [store.groups.settings(group).max_retries for group in (one, two, three)] == [None, 0, None]
    report = stores.tick_after(store, 1000)
    assert (report.retried, report.dead) == (2, 1)
    assert [len(store.dead_letters.list(group)) for group in (one, two, three)] == [0, 1, 0]
    assert [store.lag(one, group).retry for group in (one, two, three)] == [1, 0, 1]
    store.groups.delete(one)
    assert [store.lag(one, group) for group in (two, three)] == [Lag(0, 0, 0, 1), Lag(0, 0, 1, 0)]


# ---------------------------------------------------------------- glued names


@pytest.mark.clause("P1")
def test_p2_places_with_glued_names_are_told_apart(stores: Stores) -> None:
    """P2: topic and group that make one text with another topic and group: leases, positions, retries and letters of each are its own."""
    store = stores.open(max_retries=1)
    for topic, group, other_topic, other_group in dict.fromkeys(GLUED):
        places = ((topic, group), (other_topic, other_group))
        for number, (name, _) in enumerate(places):
            store.send_batch([Message(name, b"%d" % number, message_id=f"m{number}{at}", queue_id=0) for at in range(3)])
        first, second = (store.pop(*place, max_messages=2, invisible_ms=1000) for place in places)
        assert [each.body for each in first + second] == [b"0", b"0", b"1", b"1"]
        assert store.ack(first) == [AckOutcome.ACKED] * 2
        assert store.lag(*places[1]) == Lag(ready=1, in_flight=2, retry=0, dead=0)
        store.groups.reset_offset(*places[0], InitMode.MAX)
        assert store.lag(*places[1]) == Lag(ready=1, in_flight=2, retry=0, dead=0)
        assert store.reject(second[0]) is RejectOutcome.REJECTED
        assert (len(store.dead_letters.list(group)), len(store.dead_letters.list(other_group))) == (0, 1)
        assert stores.tick_after(store, 1000).retried == 1
        assert store.pop(*places[0]) == []
        assert [each.attempt for each in store.pop(*places[1], max_messages=1024)] in ([1, 2], [2, 1])
        for name in {topic, other_topic}:
            store.topics.delete(name)
        for name in {group, other_group}:
            store.dead_letters.drop(store.dead_letters.list(name))
            store.groups.delete(name)


@pytest.mark.clause("P2")
def test_p1_attempts_with_glued_names_are_told_apart(stores: Stores) -> None:
    """P1: group and attempt id that make one text with another group and attempt id, or topic and attempt id, are two attempts."""
    store = stores.open()
    for number, (one, two, three, four) in enumerate(GLUED):
        for turn, places in enumerate(((("t", one, two), ("t", three, four)), ((one, "g", two), (three, "g", four)))):
            if len({topic for topic, _, _ in places}) < len(places):
                topics = [f"{number}-{turn}"] * 2
            else:
                topics = [topic for topic, _, _ in places]
            for name in set(topics):
                store.send_batch([Message(name, b"x", queue_id=0), Message(name, b"y", queue_id=0)])
            got = [
                store.pop(name, group, max_messages=1, attempt_id=attempt) for name, (_, group, attempt) in zip(topics, places, strict=True)
            ]
            assert [[each.topic for each in one] for one in got] == [[name] for name in topics]
            assert got[0][0].receipt != got[1][0].receipt
            again = [
                store.pop(name, group, max_messages=1, attempt_id=attempt) for name, (_, group, attempt) in zip(topics, places, strict=True)
            ]
            assert [[each.receipt for each in one] for one in again] == [[each.receipt for each in one] for one in got]
            for name in set(topics):
                store.topics.delete(name)


@pytest.mark.needs("import_state")
def test_p1_a_remembered_attempt_of_a_deleted_topic_is_moved(durable_stores: Stores, values: Data) -> None:
    """P1: a repeat of an attempt whose topic was deleted gets nothing new within its time, also from a store that was dumped and loaded."""
    topic, group, attempt = values.topic("t"), values.group("g"), values.id("attempt")
    engines: dict[str, Any] = {"timer_engine": durable_stores.pair.timers, "pop_engine": durable_stores.pair.pops}
    store = durable_stores.open()
    store.send(Message(topic, values.body("old")))
    assert len(store.pop(topic, group, attempt_id=attempt)) == 1
    store.topics.delete(topic)
    store.send(Message(topic, values.body("new")))
    store.transfer.dump(durable_stores.root / "dump")
    transfer.load(durable_stores.root / "dump", durable_stores.root / "moved", **engines)
    for each in (store, durable_stores.open("moved")):
        assert each.pop(topic, group, attempt_id=attempt) == []
        assert "" not in each.groups.list()
        assert each.verify() == []
        assert [got.body for got in each.pop(topic, group)] == [values.body("new")]


# ---------------------------------------------------------------- far timers

FAR = (
    400 * DAY_MS,
    *(at - START_MS for at in (2**41 - 1, 2**41 + 7, 2**42 + 1, 2**48 + 1, 2**53, 2**53 + 1, 2**53 + 2, 2**53 + 3, 2**61, MAX_TIME_MS)),
)
"""On both sides of the numbers of bits that an index may have for a time, and one ms apart."""


@pytest.mark.clause("T10", "T6")
def test_t5_times_beyond_2_53_are_kept_to_the_ms(stores: Stores, values: Data) -> None:
    """T5: timers beyond 2^53 ms, up to the limit, that differ by a ms are counted, listed and found by their own times."""
    store = stores.open(precision_ms=100)
    topic = values.topic("t")
    sent = [
        Message(topic, values.body(f"{at}"), message_id=values.id(f"{at}"), deliver_at_ms=START_MS + far, born_ms=at)
        for at, far in enumerate(FAR)
    ]
    handles = [str(each.handle) for each in (store.send(sent[0]), *store.send_batch(MessageBatch.of(sent[1:]).columns))]
    for _ in range(2):
        assert stores.tick_after(store, 60_000).handed_over == 0
        for message, pending in zip(sent, store.scan().timers, strict=True):
            check(message, pending.message, "far ahead")
            assert pending.deliver_at_ms == message.deliver_at_ms
        edges = [each.deliver_at_ms or 0 for each in sent]
        counts = store.pending(edges)
        assert (counts.total, counts.earliest_ms, counts.latest_ms) == (len(sent), edges[0], edges[-1])
        assert list(counts.counts) == [1] * (len(edges) - 1)
        assert [len(store.scan(from_ms=at, to_ms=min(at + 1, MAX_TIME_MS)).timers) for at in edges[:-1]] == [1] * (len(edges) - 1)
        (found,) = store.where(id=values.id("3"))
        assert (found.state, found.until_ms, found.handle) == (MessageState.PENDING, edges[3], handles[3])
        if stores.pair.durable:
            store = stores.reopen(store, precision_ms=100)
    for _ in range(2):
        assert store.cancel(handles) == [CancelOutcome.CANCELLED] * len(handles)
    assert store.pending().total == 0


@pytest.mark.clause("T5")
@pytest.mark.needs("cancel_by_key")
def test_c6_far_timers_are_cancelled_by_key(stores: Stores, values: Data) -> None:
    """C6: a cancel by key finds what is due in a second and beyond 2^53 ms alike, of one topic and one key alone."""
    store = stores.open()
    topic, other = values.topic("t"), values.topic("u")
    key, alike = values.key("k"), values.key("l")
    times = [START_MS + far for far in (1000, *FAR)]
    for name, word in ((topic, key), (topic, alike), (other, key)):
        store.send_batch([Message(name, values.body("x"), keys=(word,), deliver_at_ms=at) for at in times])
    if stores.pair.durable:
        store = stores.reopen(store)
    assert store.cancel_key(topic, key) == [CancelOutcome.CANCELLED] * len(times)
    assert store.cancel_key(topic, key) == []
    assert [(each.message.topic, each.message.keys) for each in store.scan().timers].count((topic, (alike,))) == len(times)
    assert store.pending().total == 2 * len(times)


# ---------------------------------------------------------------- whole messages


def _of_families(number: int, *, deliver_at_ms: int | None = None) -> list[Message]:
    """Return a message for each family of values, made of members with this number."""

    def member(families: Sequence[Family[T]], at: int, number: int) -> T:
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
        check(message, letter.message, "dead", topic="%DLQ%g", properties={**message.properties, **system}, attempt=0)
        found = store.get(letter.origin_message_id)
        assert found is not None
        check(message, found, "found", topic="%DLQ%g", properties={**message.properties, **system})
    assert store.dead_letters.resend(letters) == len(sent)
    first_ms = stores.clock.now_ms()
    popped(1, lambda: store.pop("t", "g", max_messages=1000))


@pytest.mark.clause("P6")
def test_p7_a_change_does_not_take_the_reason(stores: Stores, values: Data) -> None:
    """P7: a lease that backs off and is lengthened is worked on again: it backs off no more, and its old reason is told no more."""
    store = stores.open()
    topic, group = values.topic("t"), values.group("g")
    store.send(Message(topic, values.body("0")))
    (got,) = store.pop(topic, group)
    waiting = store.retry_later(got, timedelta(hours=1), reason="no answer")
    assert [(each.is_backing_off, each.reason) for each in store.leases()] == [(True, "no answer")]
    assert store.lag(topic, group) == Lag(ready=0, in_flight=0, retry=0, dead=0, backing_off=1)
    changed = store.change_invisible(waiting, timedelta(minutes=1))
    assert [(each.is_backing_off, each.reason) for each in store.leases()] == [(False, "")]
    assert store.lag(topic, group) == Lag(ready=0, in_flight=1, retry=0, dead=0)
    assert store.ack(changed) is AckOutcome.ACKED
