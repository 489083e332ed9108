"""P1–P8: leases, receipts, attempts, dead letters."""

from __future__ import annotations

import random
import zlib
from typing import Any

import pyarrow as pa
import pytest

from rmqstore import (
    AckOutcome,
    ChangeOutcome,
    IllegalArgumentError,
    IllegalArgumentTypeError,
    Lag,
    MessageBatch,
    PoppedMessage,
    Receipt,
    ReleaseOutcome,
)
from rmqstore.message import dlq_topic, retry_topic
from rmqstore_conformance.cases.scenes import filled
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.fidelity import differences
from rmqstore_conformance.stores import DAY_MS, START_MS, Stores, attempt_of, ids, label, message, pop_all, read_ids

(T,) = topics(__name__, 1)
G, H = groups(__name__, 2)

ACKED, AGAIN, STALE, UNKNOWN = AckOutcome.ACKED, AckOutcome.ALREADY_ACKED, AckOutcome.STALE, AckOutcome.UNKNOWN


def only(popped: list[PoppedMessage]) -> PoppedMessage:
    """Return the one message of a pop."""
    assert len(popped) == 1
    return popped[0]


def test_p1_leased_messages_are_not_given_again(stores: Stores) -> None:
    """P1: up to the last ms of the invisible time, however often one asks or ticks."""
    store = filled(stores, 6)
    first = store.pop(T, G, max_messages=4, invisible_ms=10_000)
    assert ids(first) == ["m0", "m1", "m2", "m3"]
    assert ids(store.pop(T, G, invisible_ms=10_000)) == ["m4", "m5"]
    for passed in (0, 1, 5000, 9999):
        stores.tick_at(store, START_MS + passed)
        assert store.pop(T, G) == []
    stores.tick_at(store, START_MS + 10_000)
    assert sorted(ids(store.pop(T, G))) == [f"m{n}" for n in range(6)]


@pytest.mark.clause("P8")
def test_p1_a_repeated_attempt_gets_the_same_leases(stores: Stores) -> None:
    """§5.2: the same ``attempt_id`` within the invisible time: the same messages under the same receipts, less those acked."""
    store = filled(stores, 5)
    first = store.pop(T, G, max_messages=3, invisible_ms=10_000, attempt_id=attempt_of("a"))
    again = store.pop(T, G, max_messages=3, invisible_ms=10_000, attempt_id=attempt_of("a"))
    assert [m.receipt for m in again] == [m.receipt for m in first]
    assert [m.attempt for m in again] == [1, 1, 1]
    assert store.lag(T, G).in_flight == 3
    store.ack(first[1])
    stores.clock.advance(9999)
    assert ids(store.pop(T, G, attempt_id=attempt_of("a"))) == ["m0", "m2"]
    assert ids(store.pop(T, H, max_messages=1, attempt_id=attempt_of("a"))) == ["m0"], "attempts are the group's own"
    assert ids(store.pop(T, G, attempt_id=attempt_of("b"), invisible_ms=DAY_MS)) == ["m3", "m4"]
    stores.tick_after(store, 1)
    fresh = store.pop(T, G, attempt_id=attempt_of("a"))
    assert ids(fresh) == ["m0", "m2"]
    assert [m.attempt for m in fresh] == [2, 2]
    assert not {m.receipt for m in fresh} & {m.receipt for m in first}


def test_p1_a_repeated_attempt_gets_nothing_new_once_all_of_it_is_acked(stores: Stores) -> None:
    """§5.2: a repeat that comes late, after its answer was worked off, takes no message that would stay un-acked."""
    store = filled(stores, 3)
    first = store.pop(T, G, max_messages=2, invisible_ms=10_000, attempt_id=attempt_of("a"))
    store.ack(first)
    stores.clock.advance(9999)
    assert store.pop(T, G, attempt_id=attempt_of("a")) == []
    stores.clock.advance(1)
    assert ids(store.pop(T, G, attempt_id=attempt_of("a"))) == ["m2"]


def test_p2_groups_do_not_disturb_each_other(stores: Stores) -> None:
    """P2: two groups pop the same offset in the same ms: receipts of their own, each ack its own."""
    store = filled(stores, 2)
    left, right = store.pop(T, G), store.pop(T, H)
    assert ids(left) == ids(right)
    assert not {m.receipt for m in left} & {m.receipt for m in right}
    assert store.ack(left) == [ACKED, ACKED]
    assert store.lag(T, H).in_flight == 2
    assert store.ack(right[0]) is ACKED
    stores.tick_after(store, 60_000)
    assert store.pop(T, G) == []
    assert ids(store.pop(T, H)) == ["m1"]


def test_p3_an_expired_lease_comes_back_through_the_retry_topic(stores: Stores) -> None:
    """P3: at the first tick at its end, attempt + 1, first pop time kept; a lease of an hour does not hold up others."""
    store = filled(stores, 3)
    long = store.pop(T, G, max_messages=1, invisible_ms=3_600_000)
    short = store.pop(T, G, invisible_ms=1000)
    assert [m.attempt for m in (*long, *short)] == [1, 1, 1]
    assert stores.tick_after(store, 999).retried == 0
    assert stores.tick_after(store, 1).retried == 2
    assert sorted(read_ids(store, retry_topic(G, T))) == ["m1", "m2"]
    back = store.pop(T, G, invisible_ms=1000)
    assert sorted(ids(back)) == ["m1", "m2"]
    assert {(m.topic, m.attempt, m.first_pop_ms) for m in back} == {(T, 2, short[0].first_pop_ms)}
    assert sorted(ids(pop_all(store, group=H))) == ["m0", "m1", "m2"], "another group sees the topic, not the retries"
    assert store.ack(long) == [ACKED]


def test_p3_all_of_many_expired_leases_come_back_in_one_tick(engine_stores: Stores) -> None:
    """P3: also beyond one page of the revive."""
    store = filled(engine_stores, 1500)
    got = [m for _ in range(2) for m in store.pop(T, G, max_messages=1000, invisible_ms=1000)]
    assert len(got) == 1500
    assert engine_stores.tick_after(store, 1000).retried == 1500
    assert sorted(ids(pop_all(store))) == sorted(ids(got))


def test_p4_acked_is_final(stores: Stores) -> None:
    """P4: not by expiry, by ticks, by time."""
    store = filled(stores, 3)
    popped = store.pop(T, G, invisible_ms=1000)
    assert store.ack(popped[:2]) == [ACKED, ACKED]
    stores.tick_after(store, 1000)
    assert ids(pop_all(store)) == ["m2"]
    for _ in range(3):
        stores.tick_after(store, DAY_MS)
        assert store.pop(T, G) == []
    assert store.lag(T, G) == Lag(0, 0, 0, 0)


def test_p5_outcomes_are_true(stores: Stores) -> None:
    """P5: ACKED also when expired but not yet revived; ALREADY_ACKED; STALE and harmless once revived and popped again."""
    store = filled(stores, 3)
    a, b, c = store.pop(T, G, invisible_ms=1000)
    assert store.ack([a, a]) == [ACKED, AGAIN]
    stores.clock.advance(5000)
    assert store.ack(b) is ACKED
    assert store.tick().retried == 1
    assert store.ack([a, b, c]) == [AGAIN, AGAIN, STALE]
    assert store.change_invisible(c, invisible_ms=1000).outcome is ChangeOutcome.STALE
    assert store.release(c) is ReleaseOutcome.STALE
    again = only(store.pop(T, G, invisible_ms=1000))
    assert store.ack(c) is STALE
    assert store.lag(T, G).in_flight == 1, "harmless"
    assert store.ack(again) is ACKED
    assert store.change_invisible(again, invisible_ms=1000).outcome is ChangeOutcome.ALREADY_ACKED
    assert store.release(again) is ReleaseOutcome.ALREADY_ACKED


def test_p5_garbage_or_forged_is_unknown(stores: Stores) -> None:
    """P5: no text of somebody's own making ends a lease, whatever field is changed and the checksum set right."""
    store = filled(stores, 2)
    other = stores.open("other")
    other.send(message("x"))
    popped, second = store.pop(T, G)
    text = popped.receipt or ""
    foreign = only(other.pop(T, G)).receipt or ""
    fields = text.split(" ")[:-1]
    swaps = {0: "7", 1: str(int(fields[1]) + 1), 6: "5", 7: "99", 9: "u", 10: H, 11: "9", 5: "rmqs-00000000", 4: "2"}
    forged = []
    for place, value in swaps.items():
        changed = " ".join(value if at == place else field for at, field in enumerate(fields))
        forged.append(f"{changed} {zlib.crc32(changed.encode()):08x}")
    huge = " ".join("9" * 19 if at in (0, 1, 2, 3, 7, 8, 11) else field for at, field in enumerate(fields))
    negative = " ".join(f"-{field}" if at in (0, 1, 6, 7, 11) else field for at, field in enumerate(fields))
    forged += [f"{each} {zlib.crc32(each.encode()):08x}" for each in (huge, negative)]
    garbage = ["", "x", text[:-1], text + "0", text.replace(" ", "  ", 1), text[:-8] + "00000000", "\x00", "é" * 200, text.upper()]
    texts = [*garbage, *forged, foreign]
    assert store.ack(texts) == [UNKNOWN] * len(texts)
    assert {each.outcome for each in store.change_invisible(texts, invisible_ms=1)} == {ChangeOutcome.UNKNOWN}
    assert set(store.release(texts)) == {ReleaseOutcome.UNKNOWN}
    columns = store.pop_batch(T, H).columns
    column = columns.schema.get_field_index("receipt")
    for each in garbage:
        unreadable: Any = MessageBatch(columns=columns.set_column(column, "receipt", pa.array([each] * len(columns)))).messages
        assert {each.outcome for each in store.retry_later(unreadable, delay_ms=1)} == {ChangeOutcome.UNKNOWN}
    assert store.lag(T, G).in_flight == 2
    parsed = Receipt.parse(text)
    assert parsed is not None
    assert store.ack([text, parsed, second]) == [ACKED, AGAIN, ACKED]


def test_p5_wrong_types_are_errors(engine_stores: Stores) -> None:
    """P5: what is no receipt at all is a typed error, and nothing of the list was done."""
    store = filled(engine_stores, 1)
    popped = store.pop(T, G)
    wrongs: tuple[Any, ...] = (None, 5, b"x", [popped[0], None], [b"x"])
    for wrong in wrongs:
        for call in (store.ack, store.release):
            with pytest.raises(IllegalArgumentTypeError):
                call(wrong)
    assert store.lag(T, G).in_flight == 1
    assert store.ack([]) == []


def test_p6_the_longest_lease_at_the_latest_time(stores: Stores) -> None:
    """P6: a lease may be as long as a time is late; the sum of both is more than 63 bits hold."""
    store = filled(stores, 2)
    stores.clock.set(2**62)
    popped = store.pop(T, G, invisible_ms=2**62)
    assert [each.outcome for each in store.change_invisible(popped, invisible_ms=2**62)] == [ChangeOutcome.CHANGED] * 2
    assert store.pop(T, H, attempt_id="a", invisible_ms=2**62) == store.pop(T, H, attempt_id="a", invisible_ms=2**62)
    store.tick()
    assert [store.lag(T, group).in_flight for group in (G, H)] == [2, 2]


def test_p6_change_longer_and_shorter(stores: Stores) -> None:
    """P6: the lease ends when the new receipt says; the old receipt is STALE at once; attempt and first pop time stay."""
    store = filled(stores, 3)
    a, b, c = store.pop(T, G, invisible_ms=10_000)
    stores.clock.advance(1)
    longer, shorter = store.change_invisible(a, invisible_ms=100_000), store.change_invisible(b, invisible_ms=1000)
    assert [longer.outcome, shorter.outcome] == [ChangeOutcome.CHANGED] * 2
    assert store.ack([a, b]) == [STALE, STALE]
    assert store.change_invisible(a, invisible_ms=5).outcome is ChangeOutcome.STALE
    assert store.lag(T, G).in_flight == 3
    assert stores.tick_after(store, 1000).retried == 1
    back = only(store.pop(T, G, invisible_ms=1_000_000))
    assert (label(back), back.attempt, back.first_pop_ms) == (label(b), 2, b.first_pop_ms)
    assert stores.tick_after(store, 9000).retried == 1
    assert ids(store.pop(T, G, invisible_ms=1_000_000)) == [label(c)]
    assert stores.tick_after(store, 90_000 - 1).retried == 0
    assert longer.receipt is not None
    assert store.ack(longer.receipt) is ACKED
    assert store.ack(longer.receipt.text()) is AGAIN


@pytest.mark.parametrize("retries", [0, 1, 16])
def test_p7_after_the_last_retry_the_dead_letter_queue(stores: Stores, retries: int) -> None:
    """P7: retries + 1 deliveries, then the DLQ with reason, origin topic and id; counted once, removed from the group."""
    store = stores.open(max_retries=retries, reclaim="age")
    sent = message(1)
    store.send(sent)
    for attempt in range(1, retries + 2):
        assert only(store.pop(T, G, invisible_ms=1000)).attempt == attempt
        assert store.lag(T, G).dead == 0
        report = stores.tick_after(store, 1000)
        assert (report.retried, report.dead) == ((1, 0) if attempt <= retries else (0, 1))
    assert store.pop(T, G) == []
    assert store.lag(T, G) == Lag(0, 0, 0, 1)
    dead = only(store.pop(dlq_topic(G), "undertaker"))
    assert differences(sent, dead, topic=dlq_topic(G), queue_id=0, properties=dead.properties) == []
    assert dict(dead.properties).items() >= sent.properties.items()
    assert dead.properties["ORIGIN_TOPIC"] == T
    assert label(dead.properties["ORIGIN_MESSAGE_ID"]) == "m1"
    assert dead.properties["DLQ_REASON"]
    assert ids(pop_all(store, group=H)) == ["m1"], "another group has it still"


@pytest.mark.clause("P3", "R1")
@pytest.mark.parametrize("order", [False, pytest.param(True, marks=pytest.mark.needs("fifo"))], ids=["any order", "in order"])
def test_p7_hundreds_of_attempts_are_counted(durable_stores: Stores, order: bool) -> None:
    """P7: each of 261 deliveries has its number, also behind an open; the last one is that."""
    store = durable_stores.open(max_retries=260, default_queues=1)
    store.send(message(1))
    for attempt in range(1, 262):
        assert only(store.pop(T, G, invisible_ms=1, order=order)).attempt == attempt
        durable_stores.tick_after(store, 1)
        if attempt % 100 == 9:
            store = durable_stores.reopen(store, max_retries=260)
    assert [each.attempts for each in store.dead_letters.list(G)] == [261]


def test_p8_acks_in_any_order_with_holes(stores: Stores) -> None:
    """P8: one call over leases of several pops, queues and groups, duplicates and garbage among them: an outcome per receipt."""
    store = stores.open()
    store.topics.create(T, 3)
    store.send_batch([message(n, queue_id=n % 3) for n in range(30)])
    rng = random.Random(8)
    leases = [m for group in "gh" for _ in range(5) for m in store.pop(T, group, max_messages=6, invisible_ms=1000)]
    assert len(leases) == 60
    chosen = rng.sample(leases, 40)
    acked: set[str] = set()
    for at in range(0, 40, 8):
        part: list[str] = [m.receipt or "" for m in chosen[at : at + 8]]
        call = [*part, part[0], "garbage", *sorted(acked)[:1]]
        assert store.ack(call) == [ACKED] * 8 + [AGAIN, UNKNOWN] + [AGAIN] * bool(acked)
        acked |= set(part)
    stores.tick_after(store, 1000)
    for group in "gh":
        left = sorted(label(m) for m in leases if m.receipt not in acked and f" {group} " in (m.receipt or ""))
        assert sorted(ids(pop_all(store, group=group))) == left


def test_p8_a_pop_acks_what_it_is_given(stores: Stores) -> None:
    """P8: of any pop, with an outcome for each; also when it finds nothing, and never when it is refused."""
    store = filled(stores, 6)
    held = [*store.pop(T, G, max_messages=3, invisible_ms=1000), *store.pop(T, H, max_messages=1, invisible_ms=1000)]
    found = store.pop(T, G, max_messages=2, invisible_ms=1000, acks=[held[0], held[3], held[0], "garbage"])
    assert ids(found) == ["m3", "m4"]
    assert found.acks == [ACKED, ACKED, AGAIN, UNKNOWN]
    assert (store.lag(T, G).in_flight, store.lag(T, H).in_flight) == (4, 0)
    nothing = store.pop(dlq_topic(G), H, acks=found)
    assert (nothing, nothing.acks) == ([], [ACKED, ACKED])
    with pytest.raises(IllegalArgumentError):
        store.pop(T, G, queue=9, acks=held[1])
    assert store.pop(T, H, max_messages=1, acks=held[2]).acks == [ACKED], "one that is given alone is a list of one"
    stores.tick_after(store, 1000)
    assert sorted(ids(pop_all(store, group=G))) == ["m1", "m5"]


@pytest.mark.clause("P12")
def test_p8_what_a_pop_acks_makes_room_for_it(stores: Stores) -> None:
    """P8: the acks come first, so the pop finds the next messages below ``max_in_flight``."""
    store = filled(stores, 6, max_in_flight=2)
    held = store.pop(T, G)
    assert ids(held) == ["m0", "m1"]
    assert store.pop(T, G) == []
    assert ids(store.pop(T, G, acks=held[0])) == ["m2"]
