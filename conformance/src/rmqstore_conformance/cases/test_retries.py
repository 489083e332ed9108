"""P7, P14: retries, what consumers say of a failed attempt, and dead letters: listed, sent back, dropped."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from rmqstore import AckOutcome, ChangeOutcome, IllegalArgumentError, Lag, RejectOutcome, ReleaseOutcome, Store
from rmqstore.contract import PopRequest, PopTxn, Removal
from rmqstore.delays import RETRY_BACKOFF_MS
from rmqstore.message import MAX_REASON_BYTES, dlq_topic
from rmqstore.store.dead_letters import DeadLetter
from rmqstore_conformance.cases.scenes import buried, filled
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.stores import DAY_MS, HOUR_MS, START_MS, Stores, ids, label, message, plain, pop_all

(T,) = topics(__name__, 1)
G, H, F = groups(__name__, 3)

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


@pytest.mark.clause("P4", "P14")
def test_p7_a_rejected_message_is_a_dead_letter_at_once(durable_stores: Stores) -> None:
    """P7: with its reason, however many attempts are left; its receipt is done for; the other messages and groups are not concerned."""
    store = filled(durable_stores, 3)
    bad, done, good = store.pop(T, G)
    store.ack(done)
    assert store.reject([bad, done, "no receipt"], reason="not JSON") == [
        RejectOutcome.REJECTED, RejectOutcome.ALREADY_ACKED, RejectOutcome.UNKNOWN,
    ]  # fmt: skip
    assert store.reject(bad) is RejectOutcome.STALE
    assert store.ack(bad) is AckOutcome.STALE
    store = durable_stores.reopen(store)
    (letter,) = store.dead_letters.list(G)
    assert (letter.reason, letter.attempts, letter.origin_topic, letter.origin_message_id) == ("not JSON", 1, T, bad.message_id)
    assert store.lag(T, G) == Lag(0, 1, 0, 1)
    assert len(pop_all(store, group="other")) == 3
    assert store.ack(good) is AckOutcome.ACKED
    assert store.dead_letters.resend([letter]) == 1
    (again,) = store.pop(T, G)
    assert (again.message_id, again.attempt, again.properties) == (bad.message_id, 1, bad.properties)
    assert store.reject(again) is RejectOutcome.REJECTED
    assert [each.reason for each in store.dead_letters.list(G)] == ["rejected"]
    assert durable_stores.tick_after(store, HOUR_MS).retried == 0


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("é" * MAX_REASON_BYTES, "é" * (MAX_REASON_BYTES // 2)),
        ("x" + "é" * MAX_REASON_BYTES, "x" + "é" * ((MAX_REASON_BYTES - 1) // 2)),
        ("a\x01b\x02c\0d\r\n", "a b c d"),
        ("half \ud800", "half ?"),
    ],
)
def test_p7_no_reason_is_refused(stores: Stores, given: str, kept: str) -> None:
    """P7: of any text, as much is kept as the bound and the formats allow: what failed must not fail again for its reason."""
    store = stores.open(max_retries=0)
    store.send_batch([message(1), message(2)])
    first, second = store.pop(T, G)
    store.reject(first, reason=given)
    store.retry_later(second, SECOND, reason=given)
    assert [each.reason for each in store.leases()] == [kept]
    stores.tick_after(store, 1000)
    assert [each.reason for each in store.dead_letters.list(G)] == [kept, f"delivered 1 time without an ack: {kept}"]
    for call in (store.reject, store.retry_later):
        with pytest.raises(IllegalArgumentError, match="reason must be a str"):
            call(first, reason=ValueError("x"))  # type: ignore[call-overload]


@pytest.mark.clause("R1")
def test_p7_a_reason_beside_the_largest_properties_loses_no_message(durable_stores: Stores) -> None:
    """P7: the message dies with all that it was sent with, whatever room is left for the reason."""
    store = durable_stores.open()
    room = 32_767 - 400 - len((plain(1).message_id or "").encode())
    store.send(plain(1, properties={"p": "v" * room}))
    (got,) = store.pop(T, G)
    assert store.reject(got, reason="r" * MAX_REASON_BYTES) is RejectOutcome.REJECTED
    store = durable_stores.reopen(store)
    (letter,) = store.dead_letters.list(G)
    assert letter.message.properties["p"] == "v" * room
    assert set(letter.reason) <= {"r"}
    assert len(store.pop(dlq_topic(G), "repair")) == 1


def test_p6_a_heartbeat_and_a_back_off_go_together(stores: Stores) -> None:
    """P6: what a change of the lease returned stands for the message in every later call; what it was made of is STALE."""
    store = filled(stores, 4)
    popped = store.pop(T, G, max_messages=4, invisible=SECOND)
    beats = [store.change_invisible(each, MINUTE) for each in popped]
    assert [each.message and label(each.message) for each in beats] == ids(popped)
    longer = store.change_invisible(beats[0], 2 * MINUTE)
    assert longer.outcome is ChangeOutcome.CHANGED
    assert store.retry_later(popped[0], SECOND).outcome is ChangeOutcome.STALE
    assert store.ack([popped[0], beats[0]]) == [AckOutcome.STALE, AckOutcome.STALE]
    assert store.change_invisible(popped[0], MINUTE).message == popped[0]
    assert store.retry_later(longer, SECOND).outcome is ChangeOutcome.CHANGED
    assert store.ack(beats[1]) is AckOutcome.ACKED
    assert store.release(beats[2]) is ReleaseOutcome.RELEASED
    assert [each.outcome for each in store.retry_later(beats[3:], SECOND)] == [ChangeOutcome.CHANGED]
    stores.tick_after(store, 1000)
    assert sorted((label(each), each.attempt) for each in store.pop(T, G)) == [("m0", 2), ("m2", 1), ("m3", 2)]


# ---------------------------------------------------------------- dead letters


def bury(stores: Stores, store: Store, count: int, group: str = G, topic: str = T) -> list[DeadLetter]:
    """Send messages and let them die; the store must have ``max_retries=0``."""
    store.send_batch([message(f"{topic}{n}", topic, tag="red", properties={"n": str(n)}) for n in range(count)])
    assert len(store.pop(topic, group, invisible_ms=1, max_messages=1024)) == count
    assert stores.tick_after(store, 1).dead == count
    return store.dead_letters.list(group)


@pytest.mark.clause("P14")
def test_p7_dead_letters_tell_why_they_are_there(stores: Stores) -> None:
    """P7: group, reason, origin topic and id, time; listed in the order of arrival; counted by topic."""
    store = stores.open(max_retries=0)
    bury(stores, store, 3)
    bury(stores, store, 2, topic="u")
    bury(stores, store, 1, group="other", topic="w")
    letters = store.dead_letters.list(G)
    assert [(each.origin_topic, label(each.origin_message_id)) for each in letters] == [
        *((T, f"m{T}{n}") for n in range(3)), ("u", "mu0"), ("u", "mu1"),
    ]  # fmt: skip
    assert {each.group for each in letters} == {G}
    assert all("delivered 1 time without an ack" in each.reason and each.attempts == 1 and each.died_ms > START_MS for each in letters)
    assert letters[0].message.properties["n"] == "0"
    assert store.dead_letters.list(G, limit=2) == letters[:2]
    assert store.dead_letters.list("nobody") == []
    assert (store.lag(T, G).dead, store.lag("u", G).dead, store.lag("w", "other").dead) == (3, 2, 1)


@pytest.mark.clause("P14")
def test_p7_dropped_letters_are_gone(stores: Stores) -> None:
    """P7: from the list, the count and the disk, in any order and in pieces; what is left keeps its offsets."""
    store = stores.open(max_retries=0, reclaim="age")
    letters = bury(stores, store, 9)
    assert store.dead_letters.drop([letters[n] for n in (4, 2, 3)]) == 3
    assert store.read(dlq_topic(G)).columns.column("queue_offset").to_pylist() == [0, 1, 5, 6, 7, 8]
    assert store.dead_letters.drop(letters[:5]) == 2
    assert store.lag(T, G).dead == 4
    assert store.topics.list(system=True)[0].min_offsets in ((0,), (5,))
    store.tick()
    assert next(each for each in store.topics.list(system=True) if each.name == dlq_topic(G)).min_offsets == (5,)
    assert store.stats().pops.messages == 9 + 4
    assert store.dead_letters.drop(store.dead_letters.list(G)) == 4
    assert store.dead_letters.drop(letters) == 0
    assert store.lag(T, G).dead == 0
    bury(stores, store, 1, topic="v")
    assert len(store.dead_letters.list(G)) == 1


def test_p7_removals_are_for_dead_letters_and_parked_entries_only(stores: Stores) -> None:
    """P7: nothing else can be taken out, and a refused call changes nothing."""
    store = stores.open(max_retries=0)
    letters = bury(stores, store, 2)
    with pytest.raises(IllegalArgumentError, match=re.escape(f"not from {T!r}")):
        store.engine.pops.apply(PopTxn(removals=[Removal(dlq_topic(G), 0, 0), Removal(T, 0, 0)]), stores.clock.now_ms())
    for wrong in ("x", "", b"", [1], letters[0]):
        with pytest.raises(IllegalArgumentError):
            store.dead_letters.drop(wrong)  # type: ignore[arg-type]
    assert store.dead_letters.list(G) == letters
    assert store.dead_letters.drop([]) == 0


@pytest.mark.clause("P3")
def test_p7_retry_later_waits_longer_with_every_attempt(stores: Stores) -> None:
    """P7: RocketMQ's table by default, a table of one's own, its last entry for ever; the attempt counts; the old receipt is STALE."""
    store = stores.open(max_retries=20, outcome_memory_ms=DAY_MS)
    store.send(message(1))
    assert RETRY_BACKOFF_MS[:3] == (10_000, 30_000, 60_000)
    assert RETRY_BACKOFF_MS[-1] == 2 * HOUR_MS
    for attempt in range(1, 19):
        (got,) = store.pop(T, G, invisible_ms=1000)
        assert got.attempt == attempt
        result = store.retry_later(got)
        assert result.outcome is ChangeOutcome.CHANGED
        wait_ms = RETRY_BACKOFF_MS[min(attempt, 16) - 1]
        assert stores.tick_after(store, wait_ms - 1).retried == 0
        assert store.ack(got) is AckOutcome.STALE
        assert stores.tick_after(store, 1).retried == 1
    (got,) = store.pop(T, G)
    assert [each.outcome for each in store.retry_later([got], backoff=[timedelta(milliseconds=5), timedelta(milliseconds=7)])] == [
        ChangeOutcome.CHANGED
    ]
    assert stores.tick_after(store, 7).retried == 1
    for wrong in ("x", [], [0], [True], [timedelta(0)]):
        with pytest.raises(IllegalArgumentError):
            store.retry_later(got, backoff=wrong)  # type: ignore[arg-type]
    with pytest.raises(IllegalArgumentError):
        store.retry_later("text")  # type: ignore[arg-type]


@pytest.mark.clause("P7")
def test_p14_the_rest_of_a_dead_letter_queue_is_exact(stores: Stores) -> None:
    """P14: what was dropped of it, before where a group stands and behind, is in no ``rest``, as it is in no answer."""
    store = stores.open(max_retries=0)
    store.topics.create(T, 1)
    store.send_batch([message(n) for n in range(8)])
    store.pop(T, G, max_messages=8, invisible_ms=1000)
    assert stores.tick_after(store, 1000).dead == 8

    def pop(most: int) -> tuple[int, int]:
        request = PopRequest(dlq_topic(G), H, max_messages=most, invisible_ms=1000)
        result, _ = store.engine.pops.pop(request, stores.clock.now_ms())
        return len(result.messages), result.rest

    assert pop(2) == (2, 6)
    letters = store.dead_letters.list(G)
    assert store.dead_letters.drop([letters[at] for at in (3, 5, 7)]) == 3
    assert pop(1) == (1, 2)
    assert pop(8) == (2, 0)


# ---------------------------------------------------------------- deleted, made anew, popped in order


def test_p7_a_letter_of_a_deleted_queue_takes_no_other_with_it(stores: Stores) -> None:
    """P7: a list of letters from before their queue was deleted names none of the new ones, though they are at the same offsets."""
    store = stores.open(max_retries=0)
    old = buried(stores, store, 1)
    store.topics.delete(dlq_topic(G))
    (new,) = buried(stores, store, 2)
    assert new.message.queue_offset == 0
    assert store.dead_letters.drop(old) == 0
    assert store.dead_letters.resend(old) == 0
    assert store.dead_letters.list(G) == [new]


@pytest.mark.clause("P14", "P7")
@pytest.mark.needs("fifo")
def test_p9_letters_that_wait_in_a_run_can_be_dropped(stores: Stores) -> None:
    """P14: a dropped letter is not counted as waiting, and wakes no caller."""
    store = stores.open(max_retries=0)
    letters = buried(stores, store, 1)
    store.release(store.pop(dlq_topic(G), "repair", order=True))
    assert store.lag(dlq_topic(G), "repair").retry == 1
    assert store.dead_letters.drop(letters) == 1
    assert store.lag(dlq_topic(G), "repair").retry == 0
    assert store.engine.pops.ready(dlq_topic(G), "repair", "*", stores.clock.now_ms()) is None


@pytest.mark.clause("P9")
@pytest.mark.needs("fifo")
def test_p7_a_letter_of_a_dead_letter_queue_goes_back_to_its_own_group(stores: Stores) -> None:
    """P7: also when that group pops the queue in order; the letter of the first group stays what it is."""
    store = stores.open(max_retries=0)
    buried(stores, store, 1)
    store.pop(dlq_topic(G), "audit", order=True, invisible_ms=1)
    assert stores.tick_after(store, 1).dead == 1
    assert store.dead_letters.resend(store.dead_letters.list("audit")) == 1
    assert [each.origin_topic for each in store.dead_letters.list(G)] == [T]
    assert ids(store.pop(dlq_topic(G), "audit", order=True)) == ["m1"]


@pytest.mark.parametrize("is_reopened", [False, True])
def test_p14_dead_letters_of_a_topic_that_was_made_anew_are_counted_right(durable_stores: Stores, is_reopened: bool) -> None:
    """P14: dropping a letter of the deleted topic takes nothing off the count of the new one."""
    stores = durable_stores
    store = stores.open(max_retries=0)
    first = buried(stores, store, 1)
    store.topics.delete(T)
    buried(stores, store, 1)
    assert store.lag(T, G).dead == 1
    if is_reopened:
        store = stores.reopen(store, max_retries=0)
    assert store.dead_letters.drop(first) == 1
    assert store.lag(T, G).dead == 1
