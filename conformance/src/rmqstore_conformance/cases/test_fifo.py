"""P9: pops in order. One un-acked run a queue; what is not acked comes back in its place, what is acked does not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rmqstore import (
    AckOutcome,
    ChangeOutcome,
    InitMode,
    Lag,
    Message,
    PoppedMessage,
    RejectOutcome,
    ReleaseOutcome,
    Store,
)
from rmqstore.batch import MessageBatch
from rmqstore.message import retry_topic
from rmqstore_conformance.cases.scenes import filled, together, told
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.stores import (
    START_MS,
    Stores,
    ids,
    label,
    mark_of,
    message,
    message_group_of,
    read_ids,
    state_of,
)

(T,) = topics(__name__, 1)
G, H = groups(__name__, 2)

pytestmark = pytest.mark.needs("fifo")


def pop(store: Store, most: int = 32, invisible_ms: int = 1000, **options: Any) -> list[PoppedMessage]:
    return store.pop(T, G, **{"max_messages": most, "invisible_ms": invisible_ms, "order": True, **options})


def test_p9_a_topic_that_begins_with_a_message_group_has_queues_for_many(stores: Stores) -> None:
    """P9: it is made with ``fifo_queues``, after a first pop as well; what ``topics.create`` asked for, or a message found, stays."""
    store = stores.open(fifo_queues=5)
    store.send(message("plain", "plain"))
    store.topics.create("asked", 1)
    assert store.pop("popped", G, order=True) == []
    for topic in ("new", "popped", "plain", "asked"):
        store.send(message(f"first-{topic}", topic, message_group=message_group_of("a")))
        store.send_batch([message(f"{topic}-{number}", topic, message_group=f"g{number}") for number in range(40)])
        store.topics.create(topic, 7)
        store.send(message(f"last-{topic}", topic, message_group=message_group_of("a")))
    if stores.pair.durable:
        store = stores.reopen(store, fifo_queues=3)
    store.send_batch(MessageBatch.of([message(f"c{number}", "columns", message_group=f"g{number}") for number in range(40)]).columns)
    spread = {topic.name: topic.group_queues for topic in store.topics.list()}
    assert spread == {"new": 5, "popped": 5, "plain": 1, "asked": 1, "columns": 3 if stores.pair.durable else 5}
    for topic, queues in spread.items():
        used = {got.queue_id for got in store.pop(topic, G, max_messages=1024, order=True) if got.message_group is not None}
        assert used == set(range(queues)), f"{topic} puts its groups into {used}"


@pytest.mark.clause("P9", "S1")
def test_f3_a_first_message_of_a_group_that_is_refused_makes_no_topic(engine_stores: Stores) -> None:
    """F3: whatever refuses it, above all a deliver time, one message or a batch: nothing is stored; the next one makes the topic."""
    store = engine_stores.open()
    before = state_of(store)
    first, due_ms = message(1, message_group=message_group_of("a")), START_MS + 5000
    large = Message(T, b"x", message_group=message_group_of("a"), properties={"p": "x" * 40_000})
    # Kept together until the later one is due, the first one would be overtaken by what its group sends meanwhile.
    mixed = [first, message(2, deliver_at_ms=due_ms)]
    for call in (
        lambda: store.send(large),
        lambda: store.send_batch([first, large]),
        lambda: store.send(first, marks=[b""]),
        lambda: store.send(first, delay_ms=1000),
        lambda: store.send(first, deliver_at_ms=due_ms),
        lambda: store.send_batch([message(2), first], delay_ms=1000),
        lambda: store.send_batch([first], deliver_at_ms=due_ms),
        lambda: store.send_batch(MessageBatch.of([first]).columns, delay_ms=1000),
        lambda: store.send_batch([message(1, message_group=message_group_of("a"), deliver_at_ms=due_ms)]),
        lambda: store.send_batch(mixed),
        lambda: store.send_batch(MessageBatch.of(mixed).columns),
        lambda: store.send_batch([first, message(2, properties={"DELAY": "3"})], marks=[mark_of("mixed")]),
    ):
        with pytest.raises(ValueError):
            call()
        assert state_of(store) == before
    store.send(first)
    assert [topic.queues for topic in store.topics.list()] == [16]


@pytest.mark.clause("X3")
def test_p9_first_messages_of_groups_race_with_more_queues(stores: Stores) -> None:
    """P9: threads send the first messages of a topic's groups while it is made and widened; the messages of each group share a queue."""
    store = stores.open(flush="async", fifo_queues=3)
    for turn in range(10):
        topic = f"t{turn}"

        def work(number: int, topic: str = topic) -> None:
            if number == 3:
                for queues in (2, 4, 8):
                    store.topics.create(topic, queues)
                return
            for n in range(10):
                store.send(message(f"{topic}-{number}-{n}", topic, message_group=f"g{n % 5}"))

        together(work, 4)
        places: dict[str | None, set[int]] = {}
        for queue in range(8):
            for got in store.read(topic, queue, 0, 1000).messages:
                places.setdefault(got.message_group, set()).add(queue)
        assert len(places) == 5
        assert all(len(queues) == 1 for queues in places.values()), places


@pytest.mark.clause("P1")
def test_p9_nothing_more_before_the_run_is_acked(stores: Stores) -> None:
    """P9: while any message of a run is leased, the queue gives nothing, also when more have come; the last ack opens it."""
    store = filled(stores, 6)
    run = pop(store, 3)
    assert ids(run) == ["m0", "m1", "m2"]
    assert pop(store) == []
    assert store.ack([run[2], run[0]]) == [AckOutcome.ACKED] * 2
    store.send(message(6))
    assert pop(store) == []
    assert store.ack(run[1]) is AckOutcome.ACKED
    assert ids(pop(store)) == ["m3", "m4", "m5", "m6"]
    assert store.pop(T, "other", order=True), "another group has a run of its own"


@pytest.mark.clause("P3")
def test_p9_un_acked_messages_come_back_in_place_and_acked_ones_do_not(durable_stores: Stores) -> None:
    """P9: with holes in the acks, after the lease ends: the un-acked ones first, in order, then new ones; also after a reopen."""
    store = filled(durable_stores, 8)
    run = pop(store, 5)
    store.ack([run[1], run[3]])
    report = durable_stores.tick_after(store, 1000)
    assert (report.retried, report.dead) == (3, 0)
    assert store.engine.pops.topic(retry_topic(G, T)) is None, "there is no retry topic"
    assert store.lag(T, G) == Lag(ready=3, in_flight=0, retry=3, dead=0)
    store = durable_stores.reopen(store)
    assert store.verify() == []
    again = pop(store, 5)
    assert ids(again) == ["m0", "m2", "m4", "m5", "m6"]
    assert [m.attempt for m in again] == [2, 2, 2, 1, 1]
    assert [m.first_pop_ms for m in again] == [START_MS] * 3 + [START_MS + 1000] * 2
    assert store.ack(run[0]) is AckOutcome.STALE
    assert store.ack(run[1]) is AckOutcome.ALREADY_ACKED
    assert store.ack(again) == [AckOutcome.ACKED] * 5
    assert ids(pop(store)) == ["m7"]


@pytest.mark.clause("P7")
def test_p9_at_the_last_attempt_the_head_goes_to_the_dead_letters_and_the_rest_moves_up(stores: Stores) -> None:
    """P9: only the head, which blocks the others, with its reason; the others keep their counts and come next."""
    store = filled(stores, 3, max_retries=2)
    for attempt in (1, 2, 3):
        run = pop(store)
        assert told(run) == [(f"m{n}", attempt) for n in range(3)]
        report = stores.tick_after(store, 1000)
        assert (report.retried, report.dead) == ((3, 0) if attempt < 3 else (2, 1))
    letters = store.dead_letters.list(G)
    assert [(label(each.origin_message_id), each.origin_topic) for each in letters] == [("m0", T)]
    assert "3 times" in letters[0].reason
    run = pop(store)
    assert told(run) == [("m1", 4), ("m2", 4)]
    assert store.release(run) == [ReleaseOutcome.RELEASED] * 2
    run = pop(store)
    assert told(run) == [("m1", 4), ("m2", 4)], "a release counts nothing, and kills nothing"
    assert store.ack(run[0]) is AckOutcome.ACKED
    assert stores.tick_after(store, 1000).dead == 1
    assert [label(each.origin_message_id) for each in store.dead_letters.list(G)] == ["m0", "m2"]
    assert store.lag(T, G) == Lag(0, 0, 0, 2)
    assert pop(store) == []


@pytest.mark.clause("P7")
def test_p9_a_run_in_pieces_that_end_together_buries_its_head_alone(stores: Stores) -> None:
    """P9: leases of one run that were changed one by one end at once; whatever a revive is limited to, one message of it dies."""
    store = filled(stores, 4, default_queues=1, max_retries=0)
    for popped in store.pop(T, G, order=True, max_messages=4, invisible_ms=1000):
        store.change_invisible(popped, invisible_ms=5000)
    stores.clock.advance(5000)
    assert revived(stores, store, 1) == 1
    assert [label(letter.message) for letter in store.dead_letters.list(G)] == ["m0"]
    assert [label(each) for each in store.pop(T, G, order=True, max_messages=4)] == ["m1", "m2", "m3"]


def revived(stores: Stores, store: Store, limit: int) -> int:
    """Give back all leases that have ended, by calls that are limited; returns how many messages died of that."""
    dead = 0
    while True:
        report, ticket = store.engine.pops.revive(stores.clock.now_ms(), limit)
        store.engine.pops.sync(ticket)
        dead += report.dead
        if not report.more:
            return dead


@pytest.mark.clause("P7")
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_p9_a_head_within_its_run_is_buried_alone_wherever_a_revive_ends(stores: Stores, limit: int) -> None:
    """P9: the first of a pop is acked, the next ones have leases of their own and end with it: one of them dies, not one a call."""
    store = filled(stores, 6, default_queues=1, max_retries=0)
    run = store.pop(T, G, order=True, max_messages=6, invisible_ms=5000)
    store.ack(run[0])
    for popped in run[1:5]:
        store.change_invisible(popped, invisible_ms=5000)
    stores.clock.advance(5000)
    assert revived(stores, store, limit) == 1
    assert [label(letter.message) for letter in store.dead_letters.list(G)] == ["m1"]
    assert [label(each) for each in store.pop(T, G, order=True, max_messages=6)] == ["m2", "m3", "m4", "m5"]


@pytest.mark.clause("P7")
def test_p9_the_rest_of_a_run_does_not_die_with_its_head_when_it_ends_later(stores: Stores) -> None:
    """P9: leases of one run that end one by one: the first dies, and what was leased behind it comes once more, as head of the next run."""
    store = filled(stores, 4, default_queues=1, max_retries=0)
    for number, popped in enumerate(store.pop(T, G, order=True, max_messages=4, invisible_ms=5000)):
        store.change_invisible(popped, invisible_ms=5000 + number)
    for number in range(4):
        stores.clock.advance(5000 if not number else 1)
        assert store.tick().dead == (not number)
    again = store.pop(T, G, order=True, max_messages=3, invisible_ms=5000)
    assert told(again) == [("m1", 2), ("m2", 2), ("m3", 2)]
    assert store.retry_later(again[0], timedelta(seconds=1)).outcome is ChangeOutcome.CHANGED
    assert store.retry_later(again[1], timedelta(seconds=2)).outcome is ChangeOutcome.CHANGED
    stores.clock.advance(2000)
    store.tick()
    assert [label(letter.message) for letter in store.dead_letters.list(G)] == ["m0", "m1", "m2"], "these a consumer has put off"


@pytest.mark.clause("P7", "R1")
def test_p9_what_spares_the_rest_of_a_run_outlives_a_reopen(durable_stores: Stores) -> None:
    """P9: the head of a run died before the store was opened anew; what was leased behind it still comes once more."""
    store = filled(durable_stores, 2, default_queues=1, max_retries=0)
    head, _ = store.pop(T, G, order=True, max_messages=2, invisible_ms=5000)
    store.change_invisible(head, invisible_ms=1000)
    assert durable_stores.tick_after(store, 1000).dead == 1
    store = durable_stores.reopen(store, max_retries=0)
    assert durable_stores.tick_after(store, 4000).dead == 0
    assert told(store.pop(T, G, order=True)) == [("m1", 2)]


@pytest.mark.clause("P7")
def test_p9_a_letter_goes_back_to_the_queue_of_its_message_group(stores: Stores) -> None:
    """P9: so that it is in order with what else the group sent."""
    store = stores.open(default_queues=8)
    store.topics.create(T, 8)
    store.send_batch([message(number, message_group=f"group-{number}") for number in range(5)])
    before = [read_ids(store, T, queue) for queue in range(8)]
    for queue in range(8):
        store.reject(store.pop(T, G, queue=queue, order=True, max_messages=5))
    assert store.dead_letters.resend(store.dead_letters.list(G)) == 5
    assert [sorted(read_ids(store, T, queue)) for queue in range(8)] == [sorted(2 * each) for each in before]


@pytest.mark.clause("P7")
@pytest.mark.parametrize("others", [0, 1, 2, 3])
def test_p9_a_head_behind_leases_of_a_deleted_topic_is_buried_alone(stores: Stores, others: int) -> None:
    """P9: what ended before the run is of a topic that is gone, or of others, so that a revive ends anywhere in the run."""
    store = filled(stores, 4, default_queues=1)
    store.groups.set(G, max_retries=0)
    for topic in ("gone", *["other"] * others):
        store.send(message(topic, topic))
        assert len(store.pop(topic, H, invisible_ms=1000)) == 1
    for popped in store.pop(T, G, order=True, max_messages=4, invisible_ms=1000):
        store.change_invisible(popped, invisible_ms=5000)
    store.topics.delete("gone")
    stores.clock.advance(5000)
    assert revived(stores, store, 1 + others) == 1
    assert [label(letter.message) for letter in store.dead_letters.list(G)] == ["m0"]
    assert [label(each) for each in store.pop(T, G, order=True, max_messages=4)] == ["m1", "m2", "m3"]


# ---------------------------------------------------------------- in order, and something else


@pytest.mark.clause("P7")
@pytest.mark.parametrize("how", ["release", "retry_later", "expiry"])
def test_p9_whatever_is_given_back_keeps_its_place(stores: Stores, how: str) -> None:
    """P9: of a run of five, two in the middle end otherwise than by an ack; they come first, in order, before what is new."""
    store = filled(stores, 5)
    run = pop(store, 5)
    back = [run[3], run[1]]
    if how == "release":
        assert store.release(back) == [ReleaseOutcome.RELEASED] * 2
        assert store.release(back) == [ReleaseOutcome.STALE] * 2
    elif how == "retry_later":
        assert [each.outcome for each in store.retry_later(back, timedelta(seconds=3))] == [ChangeOutcome.CHANGED] * 2
    assert pop(store) == []
    assert store.ack([run[4], run[0], run[2]]) == [AckOutcome.ACKED] * 3
    store.send_batch([message(5), message(6)])
    if how != "release":
        assert pop(store) == []
        assert stores.tick_after(store, 3000).retried == 2
    attempt = 1 if how == "release" else 2
    assert store.lag(T, G) == Lag(ready=2, in_flight=0, retry=2, dead=0)
    again = pop(store, 3)
    assert told(again) == [("m1", attempt), ("m3", attempt), ("m5", 1)]
    assert store.release(again) == [ReleaseOutcome.RELEASED] * 3
    assert told(pop(store)) == [("m1", attempt), ("m3", attempt), ("m5", 1), ("m6", 1)]
    assert store.engine.pops.topic(retry_topic(G, T)) is None


@pytest.mark.clause("P7")
def test_p9_a_rejected_message_goes_alone(stores: Stores) -> None:
    """P9: a message is rejected from the middle of a run; those beside it stay leased, and keep their place when they come back."""
    store = filled(stores, 4)
    run = pop(store, 4)
    assert store.reject(run[1], reason="no use") is RejectOutcome.REJECTED
    assert store.lag(T, G) == Lag(ready=0, in_flight=3, retry=0, dead=1)
    assert store.ack(run[3]) is AckOutcome.ACKED
    assert pop(store) == []
    stores.tick_after(store, 1000)
    assert told(pop(store)) == [("m0", 2), ("m2", 2)]
    (letter,) = store.dead_letters.list(G)
    assert (label(letter.origin_message_id), letter.origin_topic, letter.reason) == ("m1", T, "no use")
    assert store.dead_letters.resend([letter]) == 1
    assert store.lag(T, G) == Lag(ready=1, in_flight=2, retry=0, dead=0)


@pytest.mark.clause("P11", "P5")
@pytest.mark.parametrize("to", [0, 2, InitMode.MAX], ids=["the beginning", "the middle", "the end"])
def test_p9_a_reset_voids_a_run(stores: Stores, to: int | InitMode) -> None:
    """P9: leases and waiting messages of a run are left by a reset; the next run begins where the group was moved, with first attempts."""
    store = filled(stores, 4)
    run = pop(store, 3)
    assert store.release(run[0]) is ReleaseOutcome.RELEASED
    delayed = store.retry_later(run[1], timedelta(hours=1))
    store.groups.reset_offset(T, G, to)
    assert store.ack(run) == [AckOutcome.STALE] * 3
    assert store.ack(delayed) is AckOutcome.STALE
    assert store.leases() == []
    begin = 4 if isinstance(to, InitMode) else to
    assert store.lag(T, G) == Lag(ready=4 - begin, in_flight=0, retry=0, dead=0)
    store.send(message(4))
    assert told(pop(store)) == [(f"m{number}", 1) for number in range(begin, 5)]


@pytest.mark.clause("P8")
def test_p9_a_pop_that_acks_the_run_gets_the_next_one(stores: Stores) -> None:
    """P8: the acks come first; with a part of the run acked, the rest of it still holds the queue."""
    store = stores.open()
    store.send_batch([message(n, message_group="a") for n in range(6)])
    held = store.pop(T, G, order=True, max_messages=2)
    assert store.pop(T, G, order=True, max_messages=2, acks=held[1]) == []
    assert ids(store.pop(T, G, order=True, max_messages=2, acks=held)) == ["m2", "m3"]
