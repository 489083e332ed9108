"""P10–P14: filters, offsets, limits, shares, and what is counted."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from rmqstore import AckOutcome, IllegalArgumentError, IllegalFilterError, InitMode, Lag
from rmqstore.contract import PopRequest
from rmqstore.message import dlq_topic
from rmqstore_conformance.cases.scenes import buried, filled
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.stores import HOUR_MS, START_MS, Stores, ids, message, pop_all

T, TWO, NEW = topics(__name__, 3)
G, H = groups(__name__, 2)


def test_p10_tag_expressions(stores: Stores) -> None:
    """P10: one tag, several, all, unknown ones; untagged messages pass only ``*``; what is left out does not stall the offset."""
    store = stores.open()
    tags = ["red", "blue", None, "green", "red", "redder"]
    store.send_batch([message(n, tag=tag) for n, tag in enumerate(tags)])
    expected = {"red": [0, 4], "red || blue": [0, 1, 4], "red||blue": [0, 1, 4], "*": list(range(6)), "none": [], " green ": [3]}
    for number, (expression, wanted) in enumerate(expected.items()):
        assert ids(pop_all(store, group=f"g{number}", filter=expression)) == [f"m{n}" for n in wanted]
        assert store.lag(T, f"g{number}").ready == 0, "the offset has passed what the filter left out"


def test_p10_many_left_out_messages_do_not_stall(engine_stores: Stores) -> None:
    """P10: one match behind 20 000 others is found by a bounded number of pops, and the offset moves with each."""
    store = engine_stores.open()
    store.send_batch([message("other", tag="blue")] * 20_000)
    store.send(message("match", tag="red"))
    before = store.lag(T, G).ready
    for _ in range(25):
        found = store.pop(T, G, filter="red")
        if found:
            break
        assert store.lag(T, G).ready < before
        before = store.lag(T, G).ready
    assert ids(found) == ["mmatch"]


ALIKE = {"xn": "7", "colour2": "red", "offcolour": "red", "n7": "7", "N": "7", "noturgent": "true", "xUNIQ_KEY": "m2"}
"""Properties that no expression names, with names that begin or end with those that one names."""

ODD = {
    0: {"price": "1e1", "vip": "no"},
    1: {"path": "a%b"},
    2: {"price": "1.4", "vip": "True"},
    3: {"path": "axb"},
    4: {"price": "10.0", "vip": "TRUE"},
    5: {"path": "one\ntwo"},
    6: {"price": "1.5e-1", "vip": "yes"},
    9: {"path": "b_x"},
}
"""By message: properties with values that a filter may take for something else."""

SQL_CASES = {
    "n > 5": [6, 7, 8, 9],
    "n BETWEEN 2 AND 4": [2, 3, 4],
    "NOT (n < 8)": [8, 9],
    "colour = 'red' AND n >= 4": [4, 6, 8],
    "colour IN ('red') OR n = 1": [0, 1, 2, 4, 6, 8],
    "colour IS NULL": [1, 3, 5, 7, 9],
    "colour LIKE 'r_d' AND n <> 0": [2, 4, 6, 8],
    "TAGS = 'even'": [0, 2, 4, 6, 8],
    "KEYS = 'k3' OR KEYS LIKE '%extra'": [3, 5],
    "urgent = TRUE": [7],
    "UNIQ_KEY = 'm2'": [2],
    "missing > 1": [],
    "NOT missing = 5": [],
    "NOT colour = 'blue'": [0, 2, 4, 6, 8],
    "NOT (missing > 1 AND n < 3)": [3, 4, 5, 6, 7, 8, 9],
    "(missing = 5) IS NULL AND n < 2": [0, 1],
    "vip = TRUE": [2, 4],
    "NOT vip": [0, 6],
    "path LIKE 'a%b'": [1, 3],
    "path LIKE 'a!%b' ESCAPE '!'": [1],
    "path LIKE 'b!_%' ESCAPE '!' OR path LIKE 'a!_%' ESCAPE '!'": [9],
    "path LIKE 'one%o'": [5],
    "path LIKE 'one_two'": [5],
    "path NOT LIKE '%b%'": [5],
    "path ENDSWITH 'b'": [1, 3],
    "path STARTSWITH 'b'": [9],
    "path CONTAINS 'b'": [1, 3, 9],
    "path NOT ENDSWITH 'b'": [5, 9],
    "price = 10": [0, 4],
    "price > 0.5 AND price < 1.5": [2],
    "price < .2E0": [6],
    "price BETWEEN 1.39 AND 1.41": [2],
    "n = 5.0": [5],
    "n > 8.5": [9],
}


@pytest.mark.needs("sql92_filter")
@pytest.mark.parametrize("batched", [True, False])
def test_p10_sql92_expressions(stores: Stores, batched: bool) -> None:
    """P10: over properties, tag, keys and id, in long runs and single messages alike; what does not pass does not stall the offset."""
    store = stores.open()
    sent = [
        message(
            n,
            # What expressions name is written as it is.
            message_id=f"m{n}",
            tag="odd" if n % 2 else "even",
            keys=(f"k{n}", "extra") if n == 5 else (f"k{n}",),
            properties={
                **(ALIKE | {"n": str(n)} | ODD.get(n, {})),
                **({} if n % 2 else {"colour": "red"}),
                **({"urgent": "true"} if n == 7 else {}),
            },
        )
        for n in range(10)
    ]
    if batched:
        store.send_batch(sent)
    else:
        for each in sent:
            store.send(each)
    for number, (expression, wanted) in enumerate(SQL_CASES.items()):
        assert ids(pop_all(store, group=f"g{number}", filter=expression, max_messages=3)) == [f"m{n}" for n in wanted], expression
        assert store.lag(T, f"g{number}").ready == 0


@pytest.mark.needs("sql92_filter")
def test_p10_sql92_on_long_runs_stops_where_the_pop_is_full(engine_stores: Stores) -> None:
    """P10: the offset stands right behind the last message that was given, so the next pop misses none."""
    store = engine_stores.open()
    store.send_batch([message(n, properties={"lastn": "5", "n": str(n % 7), "größe": "ü\\"}) for n in range(1000)])
    found = []
    while popped := store.pop(T, G, filter="n IN ('3', '5') AND n > 4", max_messages=11):
        found += ids(popped)
        assert store.groups.offsets(G)[0].next_offset in (popped[-1].queue_offset + 1, 1000)
        store.ack(popped)
    assert found == [f"m{n}" for n in range(1000) if n % 7 == 5]


@pytest.mark.parametrize(
    ("expression", "position"), [("a >", 3), ("a b", 2), ("(a || b)", 3), ("a ||", 4), ("", 0), ("n = 'x", 4), ("n > 'x'", 4)]
)
def test_p10_a_bad_expression_names_the_position(engine_stores: Stores, expression: str, position: int) -> None:
    """P10: refused with the place where it goes wrong; neither topic nor group is made."""
    store = engine_stores.open()
    with pytest.raises(IllegalFilterError) as caught:
        store.pop(T, G, filter=expression)
    assert caught.value.position == position, str(caught.value)
    assert caught.value.expression == expression
    assert store.topics.list() == []
    assert store.groups.list() == []


def test_p11_where_a_new_group_starts(stores: Stores) -> None:
    """P11: MIN with the first kept message, MAX with the next one, on every queue; afterwards the setting changes nothing."""
    store = stores.open(init="max")
    store.topics.create(T, 2)
    store.send_batch([message(n, queue_id=n % 2) for n in range(4)])
    assert store.pop(T, "late", queue=0) == []
    store.send_batch([message(n, queue_id=n % 2) for n in range(4, 6)])
    assert sorted(ids(pop_all(store, group="late"))) == ["m4", "m5"]
    request = PopRequest(T, "early", init=InitMode.MIN)
    assert len(store.engine.pops.pop(request, stores.clock.now_ms())[0].messages) == 6


def test_p11_reset_voids_the_leases_and_keeps_the_retries(stores: Stores) -> None:
    """P11: to MIN, MAX and any offset; leases of the queue turn STALE, messages in the retry topic stay."""
    store = filled(stores, 5, reclaim="age")
    retried = store.pop(T, G, max_messages=1, invisible_ms=1000)
    stores.tick_after(store, 1000)
    held = store.pop(T, G, max_messages=2, queue=0, invisible_ms=60_000)
    assert store.lag(T, G) == Lag(ready=2, in_flight=2, retry=1, dead=0)
    store.groups.reset_offset(T, G, InitMode.MAX)
    assert store.ack([*held, *retried]) == [AckOutcome.STALE] * 3
    assert store.lag(T, G) == Lag(ready=0, in_flight=0, retry=1, dead=0)
    assert ids(pop_all(store)) == ["m0"]
    store.groups.reset_offset(T, G, 3)
    assert ids(pop_all(store)) == ["m3", "m4"]
    store.groups.reset_offset(T, G, InitMode.MIN)
    again = store.pop(T, G)
    assert ids(again) == [f"m{n}" for n in range(5)]
    assert {m.attempt for m in again} == {1}
    assert stores.tick_after(store, 60_000).retried == 5, "the voided leases do not come back"
    for wrong in (-1, 6, True, "x"):
        with pytest.raises(IllegalArgumentError):
            store.groups.reset_offset(T, G, wrong)  # type: ignore[arg-type]
    with pytest.raises(IllegalArgumentError):
        store.groups.reset_offset("nowhere", G, 0)


def test_p12_in_flight_limit_per_group_topic_and_queue(stores: Stores) -> None:
    """P12: no pop goes beyond it; acks, expiry and releases make room; other queues, topics and groups have room of their own."""
    store = stores.open(max_in_flight=3)
    store.topics.create(T, 2)
    store.send_batch([message(n, queue_id=n % 2) for n in range(20)])
    first = store.pop(T, G, max_messages=20, invisible_ms=1000)
    assert Counter(m.queue_id for m in first) == {0: 3, 1: 3}
    assert store.pop(T, G) == []
    assert len(store.pop(T, H)) == 6
    store.ack([m for m in first if m.queue_id == 0][:2])
    assert [m.queue_id for m in store.pop(T, G, max_messages=20, invisible_ms=1000)] == [0, 0]
    assert stores.tick_after(store, 1000).retried == 6
    back = store.pop(T, G, max_messages=20)
    assert len(back) == 9, "three from each queue, three from the retry topic"
    assert store.lag(T, G).in_flight == 9
    assert {offset.in_flight for offset in store.groups.offsets(G)} == {3}
    store.retry_later([m for m in back if m.attempt == 1], delay_ms=60_000)
    assert store.pop(T, G, max_messages=20) == [], "what backs off is in flight"


@pytest.mark.parametrize("share", [0.2, 0.5, 0.0, 1.0])
def test_p13_retries_get_their_share_under_full_load(stores: Stores, share: float) -> None:
    """P13: with both sides always full, the configured share of the pops looks at the retry topic first, evenly spread."""
    store = stores.open(retry_share=share)
    store.send_batch([message(n, queue_id=0) for n in range(250)])
    store.pop(T, G, max_messages=120, invisible_ms=1)
    stores.tick_after(store, 1)
    retried = []
    for at in range(100):
        popped = store.pop(T, G, max_messages=1, queue=0 if at % 3 else None)
        retried.append(popped[0].attempt == 2)
        store.ack(popped)
    assert sum(retried) == 100 * share
    if share == 0.2:
        assert all(sum(retried[at : at + 5]) == 1 for at in range(0, 100, 5))


def test_p13_the_start_queue_is_uniform(stores: Stores) -> None:
    """P13: over many pops of one message from full queues, every queue is taken from alike, so none starves."""
    store = stores.open()
    store.topics.create(T, 5)
    store.send_batch([message(n, queue_id=n % 5) for n in range(300)])
    taken = Counter(m.queue_id for _ in range(200) for m in store.pop(T, G, max_messages=1))
    assert set(taken) == set(range(5))
    assert max(taken.values()) - min(taken.values()) <= 5
    other = Counter(m.queue_id for _ in range(100) for m in store.pop(T, H, max_messages=1))
    assert max(other.values()) - min(other.values()) <= 5


@pytest.mark.clause("T3")
def test_a_topic_keeps_its_queues(stores: Stores) -> None:
    """T3: ``default_queues`` is of topics that are made on demand: what is sent to one that is there, now or later, does not widen it."""
    store = stores.open(default_queues=4)
    store.topics.create(T, 1)
    store.topics.create(TWO, 2)
    for topic in (T, TWO, NEW):
        store.send_batch([message(f"{topic}{number}", topic=topic) for number in range(8)])
        store.send(message(f"{topic}later", topic=topic), delay_ms=1000)
        store.send(message(f"{topic}there", topic=topic, queue_id=0))
    stores.clock.advance(2000)
    store.tick()
    assert {each.name: each.queues for each in store.topics.list()} == {T: 1, TWO: 2, NEW: 4}
    store.send(message("wider", topic=TWO, queue_id=2))
    assert {each.name: each.queues for each in store.topics.list()} == {T: 1, TWO: 3, NEW: 4}
    assert ids(pop_all(store, group=G)) == [*(f"m{T}{number}" for number in range(8)), f"m{T}there", f"m{T}later"]


def test_p14_lag_and_rest_are_exact(stores: Stores) -> None:
    """P14: through pops, acks, expiry, releases and dead letters; ``rest`` of every pop is what a next pop could still get."""
    store = stores.open(max_retries=1, reclaim="age")
    store.topics.create(T, 2)
    store.send_batch([message(n, queue_id=n % 2) for n in range(10)])

    def pop(most: int, queue: int | None = None, invisible: int = 1000) -> tuple[list[str], int]:
        request = PopRequest(T, G, max_messages=most, invisible_ms=invisible, queue=queue)
        result, _ = store.engine.pops.pop(request, stores.clock.now_ms())
        return [receipt.text() for receipt in result.messages.receipts()], result.rest

    assert store.lag(T, G) == Lag(10, 0, 0, 0)
    receipts, rest = pop(4)
    assert (len(receipts), rest) == (4, 6)
    assert store.lag(T, G) == Lag(6, 4, 0, 0)
    taken = store.groups.offsets(G)[0].next_offset
    one, rest = pop(1, queue=0)
    assert rest == 5 - taken - 1
    store.ack(one)
    store.ack(receipts[0])
    store.release(receipts[1])
    assert store.lag(T, G) == Lag(5, 2, 1, 0)
    stores.tick_after(store, 1000)
    assert store.lag(T, G) == Lag(5, 0, 3, 0)
    receipts, rest = pop(100)
    assert (len(receipts), rest) == (8, 0)
    assert store.lag(T, G) == Lag(0, 8, 0, 0)
    stores.tick_after(store, 1000)
    assert store.lag(T, G) == Lag(0, 0, 6, 2)
    assert store.lag(T, H) == Lag(10, 0, 0, 0)
    assert store.lag("nowhere", G) == Lag(0, 0, 0, 0)
    store.send(message("timer"), deliver_at_ms=START_MS + 9000)
    assert store.lag(T, H).ready == 10, "a timer is not ready"


@pytest.mark.clause("P7")
def test_p14_letters_of_a_deleted_dead_letter_queue_are_counted_no_more(stores: Stores) -> None:
    """P14: the dead letter queue of one group is deleted: its lag counts none of them on any topic, and only what dies from then on."""
    store = stores.open(max_retries=0, reclaim="age")
    for group in (G, H):
        buried(stores, store, 0, message(1, TWO), group=group)
    store.topics.delete(dlq_topic(G))
    for _ in range(2):
        dead = {(topic, group): store.lag(topic, group).dead for topic in (T, TWO) for group in (G, H)}
        assert dead == {(T, G): 0, (TWO, G): 0, (T, H): 1, (TWO, H): 1}
        if stores.pair.durable:
            store = stores.reopen(store)
    store.send(message(2))
    store.reject(store.pop(T, G, max_messages=10))
    assert (store.lag(T, G).dead, len(store.dead_letters.list(G)), store.lag(TWO, G).dead) == (2, 2, 0)


@pytest.mark.needs("retention")
def test_q1_the_log_warns_of_what_age_takes_from_a_group(stores: Stores, caplog: pytest.LogCaptureFixture) -> None:
    """Q1: the tick that takes messages which a registered group had not popped writes a warning; one that takes others writes none."""
    store = filled(stores, 2, retention_ms=HOUR_MS, reclaim="age")
    store.ack(store.pop(T, G, max_messages=2))
    with caplog.at_level(logging.WARNING, logger="rmqstore"):
        stores.tick_after(store, HOUR_MS + 1)
        assert caplog.messages == []
        store.send(message(2))
        assert stores.tick_after(store, HOUR_MS + 1).expired == 1
    assert [(each.name.partition(".")[0], each.levelname) for each in caplog.records] == [("rmqstore", "WARNING")]


@pytest.mark.clause("P11")
def test_f3_a_reset_that_one_queue_refuses_moves_none(stores: Stores) -> None:
    """F3: an offset that one of the queues does not have moves the group in none of them, nor ends its leases."""
    store = stores.open()
    store.topics.create(T, 3)
    store.send_batch([message(n, queue_id=min(n, 4) // 2) for n in range(5)])
    store.pop(T, G, max_messages=3)
    before = (store.groups.offsets(G), store.leases(group=G), store.lag(T, G))
    with pytest.raises(IllegalArgumentError):
        store.groups.reset_offset(T, G, 2)
    assert (store.groups.offsets(G), store.leases(group=G), store.lag(T, G)) == before
