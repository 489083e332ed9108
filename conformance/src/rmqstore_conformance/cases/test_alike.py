"""Values that are alike are told apart by every call that looks something up by one: members of each family, and texts that are glued."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from rmqstore import AckOutcome, CancelOutcome, ChangeOutcome, Lag, Message, RejectOutcome, ReleaseOutcome
from rmqstore.contract import InitMode, MessageState
from rmqstore_conformance.data import GLUED, IDS, KEYS, MARKS, MESSAGE_GROUPS, NAMES, TAGS, Family
from rmqstore_conformance.stores import DAY_MS, Stores, ids, message, pop_all

MEMBERS = 4
"""Of each family; whatever a member is taken for is among the first."""


def members(families: Sequence[Family[Any]]) -> Iterator[tuple[str, list[Any]]]:
    """Yield a name for each family, which no other one has, and its first members."""
    for number, family in enumerate(families):
        yield f"family-{number}", [family.member(each) for each in range(MEMBERS)]


@pytest.mark.needs("cancel_by_key")
def test_c6_keys_that_are_alike_are_told_apart(engine_stores: Stores) -> None:
    """C6: of timers whose keys are alike, or make one text with their topic, a cancel by key takes its own, and all others stay."""
    store = engine_stores.open()
    places = [(topic, key) for topic, keys in members(KEYS) for key in keys]
    places += [each for one, two, three, four in dict.fromkeys(GLUED) for each in ((one, two), (three, four))]
    places += [(name, "k") for family in NAMES for name in (family.member(0), family.member(1))]
    places = list(dict.fromkeys(places))
    store.send_batch([Message(topic, b"%d" % at, keys=(key,)) for at, (topic, key) in enumerate(places)], delay_ms=1000)
    for at, (topic, key) in enumerate(places):
        if at % 2 == 0:
            assert store.cancel_key(topic, key) == [CancelOutcome.CANCELLED], f"key {key!r} of topic {topic!r}"
    left = sorted(int(each.message.body) for each in store.scan(limit=1024).timers)
    assert left == list(range(1, len(places), 2))
    if engine_stores.pair.durable:
        store = engine_stores.reopen(store)
    for topic, key in places[1::2]:
        assert store.cancel_key(topic, key) == [CancelOutcome.CANCELLED], f"key {key!r} of topic {topic!r}"
    assert store.pending().total == 0


@pytest.mark.parametrize("delay_ms", [None, DAY_MS], ids=["now", "later"])
def test_i1_marks_that_are_alike_are_told_apart(stores: Stores, delay_ms: int | None) -> None:
    """I1: a mark that is like another one is new, and a repeat of each gets the answer of its own first call."""
    store = stores.open()
    marks = [mark for _, each in members(MARKS) for mark in each]
    options: dict[str, Any] = {} if delay_ms is None else {"delay_ms": delay_ms}
    first = [store.send(Message("t", b"%d" % at), marks=[mark], **options) for at, mark in enumerate(marks)]
    for mark, receipt in zip(marks, first, strict=True):
        assert not receipt.repeated, f"mark {mark!r} is new"
    for turn in range(2 if stores.pair.durable else 1):
        for mark, receipt in zip(marks, first, strict=True):
            again = store.send(Message("t", b"again"), marks=[mark], **options)
            assert (again.repeated, again.handle) == (True, receipt.handle), f"mark {mark!r}"
        if stores.pair.durable and not turn:
            store = stores.reopen(store)
    assert (store.lag("t", "g").ready, store.pending().total) == ((len(marks), 0) if delay_ms is None else (0, len(marks)))


def test_p1_attempts_that_are_alike_are_told_apart(engine_stores: Stores) -> None:
    """P1: an attempt id that is like another one is another attempt: it gets what is next, and its repeat gets that again."""
    store = engine_stores.open()
    for topic, attempts in members(IDS):
        store.send_batch([Message(topic, b"%d" % at, queue_id=0) for at in range(len(attempts))])
        for at, attempt in enumerate(attempts):
            assert [each.body for each in store.pop(topic, "g", max_messages=1, attempt_id=attempt)] == [b"%d" % at], f"attempt {attempt!r}"
        for at, attempt in enumerate(attempts):
            assert [each.body for each in store.pop(topic, "g", max_messages=1, attempt_id=attempt)] == [b"%d" % at], f"attempt {attempt!r}"


@pytest.mark.clause("T10")
@pytest.mark.parametrize("delay_ms", [None, DAY_MS], ids=["now", "later"])
def test_p14_ids_and_keys_that_are_alike_are_told_apart(stores: Stores, delay_ms: int | None) -> None:
    """P14: a look-up by id or by key finds the messages of exactly that one, wherever they are."""
    store = stores.open()
    options: dict[str, Any] = {} if delay_ms is None else {"delay_ms": delay_ms}
    state = MessageState.READY if delay_ms is None else MessageState.PENDING
    for topic, alike in members(IDS):
        store.send_batch([Message(topic, b"%d" % at, message_id=each) for at, each in enumerate(alike)], **options)
        for at, each in enumerate(alike):
            found = store.where(id=each, topic=topic)
            assert [(one.state, one.message.body) for one in found] == [(state, b"%d" % at)], f"id {each!r}"
    for topic, keys in members(KEYS):
        store.send_batch([Message(topic, b"%d" % at, keys=(each, "k")) for at, each in enumerate(keys)], **options)
        for at, each in enumerate(keys):
            bodies = [one.message.body for one in store.where(key=each, topic=topic)]
            assert bodies == [b"%d" % at], f"key {each!r}"


@pytest.mark.clause("P5", "P11", "P14")
def test_p2_topics_that_are_alike_are_told_apart(engine_stores: Stores) -> None:
    """P2: messages, leases, retries, deletion and what comes again of topics whose names are alike go each their own way."""
    store = engine_stores.open(default_queues=1)
    for _, names in members(NAMES):
        held = {}
        for name in names:
            store.send_batch([Message(name, name.encode(), message_id=f"{at}") for at in range(3)])
            assert len(store.pop(name, "g", max_messages=1, invisible_ms=1)) == 1
            (held[name],) = store.pop(name, "g", max_messages=1)
            assert held[name].body == name.encode()
        assert engine_stores.tick_after(store, 1).retried == len(names)
        assert [[each.receipt for each in store.leases(name)] for name in names] == [[held[name].receipt] for name in names]
        assert {store.lag(name, "g") for name in names} == {Lag(ready=1, in_flight=1, retry=1, dead=0)}
        store.topics.delete(names[1])
        assert store.lag(names[1], "g") == Lag(0, 0, 0, 0)
        assert {store.lag(name, "g") for name in names if name != names[1]} == {Lag(ready=1, in_flight=1, retry=1, dead=0)}
        for name in names:
            assert store.ack(held[name]) in ((AckOutcome.STALE, AckOutcome.UNKNOWN) if name == names[1] else (AckOutcome.ACKED,))
        store.send(Message(names[1], b"anew"))
        for name in names:
            left = [b"anew"] if name == names[1] else [name.encode()] * 2
            assert [each.body for each in store.pop(name, "g", max_messages=8)] == left
        for name in names:
            store.topics.delete(name)
    assert store.topics.list() == []


@pytest.mark.clause("H2")
@pytest.mark.needs("fifo")
def test_p9_message_groups_that_are_alike_keep_their_order(engine_stores: Stores) -> None:
    """P9: messages of each message group come in order from one queue, whatever the other groups of the topic are called."""
    store = engine_stores.open()
    for topic, groups in members(MESSAGE_GROUPS):
        for step in range(3):
            store.send_batch([Message(topic, b"%d" % step, message_group=group) for group in groups])
        queues: dict[str, set[int]] = {}
        steps: dict[str, list[bytes]] = {}
        while popped := store.pop(topic, "g", max_messages=64, order=True):
            assert set(store.ack(popped)) == {AckOutcome.ACKED}
            for each in popped:
                queues.setdefault(str(each.message_group), set()).add(each.queue_id)
                steps.setdefault(str(each.message_group), []).append(each.body)
        assert steps == {group: [b"0", b"1", b"2"] for group in groups}
        assert {len(each) for each in queues.values()} == {1}


@pytest.mark.clause("P2", "P14")
def test_p8_leases_that_are_alike_are_told_apart(engine_stores: Stores) -> None:
    """P8: leases of one moment and one offset, of other groups, topics or queues: calls with a list of them end those, and no other."""
    store = engine_stores.open()
    places = [(topic, group, queue) for topic in ("t", "u") for group in ("g", "h") for queue in (0, 1)]
    for topic in ("t", "u"):
        store.send_batch([Message(topic, b"%d" % at, queue_id=queue) for at in range(4) for queue in (0, 1)])
    held = [store.pop(topic, group, max_messages=4, queue=queue) for topic, group, queue in places]
    rows = [each for of_place in held for each in of_place]
    assert len(rows) == 4 * len(places)
    assert store.ack(rows[::4]) == [AckOutcome.ACKED] * len(places)
    assert store.release(rows[1::4]) == [ReleaseOutcome.RELEASED] * len(places)
    changed = store.change_invisible(rows[2::4], invisible_ms=DAY_MS)
    assert [each.outcome for each in changed] == [ChangeOutcome.CHANGED] * len(places)
    running = [*(each.receipt.text() for each in changed if each.receipt is not None), *(str(each.receipt) for each in rows[3::4])]
    assert sorted(str(each.receipt) for each in store.leases()) == sorted(running)
    assert store.ack(rows[3::8]) == [AckOutcome.ACKED] * (len(places) // 2)
    for at, (topic, group, queue) in enumerate(places):
        found = {
            (each.topic, each.group, each.queue_id, each.queue_offset) for each in store.leases(topic, group) if each.queue_id == queue
        }
        assert found == {(topic, group, queue, offset) for offset in ((2,) if at % 2 == 0 else (2, 3))}


def test_p10_tags_that_are_alike_are_told_apart(engine_stores: Stores) -> None:
    """P10: a tag passes the messages that have it, and no other that has its hash, its letters in another case, or its beginning."""
    store = engine_stores.open()
    for topic, tags in members([family for family in TAGS if all(_is_word(family.member(at)) for at in range(MEMBERS))]):
        store.send_batch([Message(topic, b"%d" % at, tag) for at, tag in enumerate(tags)])
        for at, tag in enumerate(tags):
            assert [each.body for each in store.pop(topic, f"g{at}", max_messages=8, filter=tag)] == [b"%d" % at], f"tag {tag!r}"


def _is_word(tag: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_]+", tag) is not None


@pytest.mark.needs("sql92_filter")
def test_p10_properties_that_are_alike_are_told_apart(engine_stores: Stores) -> None:
    """P10: a condition on a property passes the messages that have that text, or that number to the last digit, and no other."""
    store = engine_stores.open()
    for topic, words in members(IDS):
        store.send_batch([Message(topic, b"%d" % at, properties={"p": word}) for at, word in enumerate(words)])
        for at, word in enumerate(words):
            condition = "p = '{}'".format(word.replace("'", "''"))
            assert [each.body for each in store.pop(topic, f"g{at}", max_messages=8, filter=condition)] == [b"%d" % at], condition
    numbers = [2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, 2**62, 2**62 + 1]
    store.send_batch([Message("numbers", b"%d" % at, properties={"n": str(number)}, queue_id=0) for at, number in enumerate(numbers)])
    for at, number in enumerate(numbers):
        for kind, (sign, passed) in enumerate((("=", [at]), (">", range(at + 1, len(numbers))), ("<=", range(at + 1)))):
            popped = store.pop("numbers", f"g{at}-{kind}", max_messages=8, filter=f"n {sign} {number}")
            assert [int(each.body) for each in popped] == list(passed), f"n {sign} {number}"


@pytest.mark.clause("P14")
def test_p8_any_of_a_large_pop_can_be_acked_alone(engine_stores: Stores) -> None:
    """P8: of the most messages that one pop gives, those behind any number of them are acked: they are done, and the first ones are not."""
    store = engine_stores.open()
    store.send_batch([Message("t", b"%d" % at, queue_id=0) for at in range(1024)])
    popped = store.pop("t", "g", max_messages=1024)
    for behind in (1000, 513, 256, 255):
        assert set(store.ack(popped[behind:])) <= {AckOutcome.ACKED, AckOutcome.ALREADY_ACKED}
        assert [each.queue_offset for each in store.leases("t", "g")] == list(range(behind))
    assert store.lag("t", "g") == Lag(ready=0, in_flight=255, retry=0, dead=0)


def test_p14_of_one_id_the_newest_is_found(stores: Stores) -> None:
    """P14: a look-up of one message by id gives the one that came last, also of several that came at one time, in any order of queues."""
    store = stores.open()
    for number, queue in enumerate((1, 0, 1, 1)):
        store.send(Message("t", b"%d" % number, message_id="same", queue_id=queue))
        stores.clock.advance(int(number == 1))
    found = store.get("same")
    assert found is not None
    assert found.body == b"3"


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
        names = (one, three) if one != three else (f"{number}-1",) * 2
        for topics, groups in ((names, ("g", "g")), ((f"{number}-0",) * 2, (one, three))):
            asked = list(zip(topics, groups, (two, four), strict=True))
            for topic in set(topics):
                store.send_batch([Message(topic, body, queue_id=0) for body in (b"x", b"y")])
            got, again = (
                [store.pop(topic, group, max_messages=1, attempt_id=attempt)[0] for topic, group, attempt in asked] for _ in range(2)
            )
            assert [each.topic for each in got] == list(topics)
            assert got[0].receipt != got[1].receipt
            assert [each.receipt for each in again] == [each.receipt for each in got]
            for topic in set(topics):
                store.topics.delete(topic)


TOPIC, OTHER = "t" * 127, "t" * 126 + "u"
GROUP, LIKE_IT = "g" * 127, "g" * 126 + "h"


@pytest.mark.clause("P3", "R1")
def test_p7_the_longest_names_have_retry_topics_and_dead_letters(durable_stores: Stores) -> None:
    """P7: topic and group of 127 bytes each: retries, dead letters and leases keep apart what differs in the last byte, over opens."""
    store = durable_stores.open(max_retries=1, default_queues=1)
    store.send_batch([message(f"{topic[-1]}{number}", topic) for topic in (TOPIC, OTHER) for number in range(3)])
    for topic in (TOPIC, OTHER):
        for group in (GROUP, LIKE_IT):
            assert len(store.pop(topic, group, invisible_ms=1000)) == 3
    assert durable_stores.tick_after(store, 1000).retried == 12
    for _ in range(2):
        assert store.verify() == []
        store = durable_stores.reopen(store, max_retries=1)
    for topic in (TOPIC, OTHER):
        for group in (GROUP, LIKE_IT):
            assert store.lag(topic, group).retry == 3
            popped = store.pop(topic, group, invisible=timedelta(seconds=1))
            assert sorted(ids(popped)) == [f"m{topic[-1]}{number}" for number in range(3)]
            assert {each.attempt for each in popped} == {2}
            store.ack(popped[0])
    assert durable_stores.tick_after(store, 1000).dead == 8
    store = durable_stores.reopen(store, max_retries=1)
    for group in (GROUP, LIKE_IT):
        letters = store.dead_letters.list(group)
        assert sorted(each.origin_topic for each in letters) == [TOPIC] * 2 + [OTHER] * 2
    assert store.dead_letters.resend(store.dead_letters.list(GROUP)) == 4
    assert len(pop_all(store, TOPIC, GROUP)) == 2
    store.topics.delete(TOPIC)
    store.groups.delete(LIKE_IT)
    store = durable_stores.reopen(store)
    assert {each.name for each in store.topics.list()} == {OTHER}
