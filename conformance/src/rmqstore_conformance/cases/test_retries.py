"""P7, P14: what consumers say of a failed attempt is kept, and a wait for the next attempt is no lease that somebody works on."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rmqstore import AckOutcome, ChangeOutcome, IllegalArgumentError, Lag, RejectOutcome, ReleaseOutcome
from rmqstore.message import MAX_REASON_BYTES, dlq_topic
from rmqstore_conformance.cases.scenes import filled
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.stores import HOUR_MS, START_MS, Stores, ids, label, message, plain, pop_all

(T,) = topics(__name__.rpartition(".")[2], 1)
G, H = groups(__name__.rpartition(".")[2], 2)

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


def test_p7_the_last_attempt_says_why_in_the_dead_letter(durable_stores: Stores) -> None:
    """P7: the reason of ``retry_later`` is listed while the message waits, survives a reopen, and is in the dead letter."""
    store = durable_stores.open(max_retries=1)
    store.send(sent := message(1))
    for attempt in (1, 2):
        (got,) = store.pop(T, G)
        assert store.retry_later(got, SECOND, reason=f"no answer, attempt {attempt}\n from the bank").outcome is ChangeOutcome.CHANGED
        store = durable_stores.reopen(store, max_retries=1)
        assert [each.reason for each in store.leases()] == [f"no answer, attempt {attempt}  from the bank"]
        durable_stores.tick_after(store, 1000)
    (letter,) = store.dead_letters.list(G)
    assert letter.reason == "delivered 2 times without an ack: no answer, attempt 2  from the bank"
    assert store.dead_letters.resend([letter]) == 1
    (again,) = store.pop(T, G, invisible=SECOND)
    assert (again.attempt, again.properties) == (1, sent.properties), "nothing of the grave comes along"
    store.retry_later(again, SECOND)
    durable_stores.tick_after(store, 1000)
    assert len(store.pop(T, G, invisible=SECOND)) == 1
    assert durable_stores.tick_after(store, 1000).dead == 1
    assert store.dead_letters.list(G)[0].reason == "delivered 2 times without an ack", "the last attempt did not say why"


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
    room = 32_767 - 400
    store.send(plain(1, properties={"p": "v" * room}))
    (got,) = store.pop(T, G)
    assert store.reject(got, reason="r" * MAX_REASON_BYTES) is RejectOutcome.REJECTED
    store = durable_stores.reopen(store)
    (letter,) = store.dead_letters.list(G)
    assert letter.message.properties["p"] == "v" * room
    assert set(letter.reason) <= {"r"}
    assert len(store.pop(dlq_topic(G), "repair")) == 1


@pytest.mark.clause("R1")
def test_p7_a_group_has_retries_of_its_own(durable_stores: Stores) -> None:
    """P7: how often and when are set by group, kept in the store, and go with the group; other groups follow the store."""
    store = durable_stores.open(max_retries=0)
    store.groups.set(G, max_retries=1, backoff=[SECOND, MINUTE])
    store.groups.set("quiet", backoff=[MINUTE])
    store = durable_stores.reopen(store, max_retries=0)
    assert (store.groups.settings(G).max_retries, store.groups.settings(G).backoff_ms) == (1, (1000, 60_000))
    assert store.groups.settings(H).max_retries is None
    store.send(message(1))
    for group in (H, "quiet", G):
        store.retry_later(store.pop(T, group))
    assert sorted(each.expiry_ms - START_MS for each in store.leases()) == [1000, 10_000, 60_000]
    report = durable_stores.tick_after(store, 60_000)
    assert (report.dead, report.retried) == (2, 1), "one group may try once more"
    (again,) = store.pop(T, G)
    store.retry_later(again)
    assert [each.expiry_ms for each in store.leases()] == [START_MS + 120_000]
    store.groups.set(G, max_retries=2)
    assert durable_stores.tick_after(store, 60_000).retried == 1, "a change counts from the next lease that ends"
    store.groups.delete(G)
    assert store.groups.settings(G).max_retries is None
    store = durable_stores.reopen(store, max_retries=0)
    assert store.groups.settings(G) == store.groups.settings(H)
    assert store.groups.settings("quiet").backoff_ms == (60_000,)
    for wrong in ({"max_retries": -1}, {"max_retries": True}, {"backoff": [timedelta(0)]}, {"backoff": "x"}):
        with pytest.raises(IllegalArgumentError):
            store.groups.set(G, **wrong)


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


def test_p7_a_group_made_anew_has_no_settings(stores: Stores) -> None:
    """P7: retries and waits that were set for a group go with it; the group of that name that comes later follows the store's."""
    store = stores.open(max_retries=5)
    store.send(message(0))
    store.groups.set(G, max_retries=0, backoff=[timedelta(hours=9)])
    (first,) = store.pop(T, G, invisible=SECOND)
    store.groups.delete(G)
    assert store.groups.settings(G).max_retries is None
    (again,) = store.pop(T, G, invisible=SECOND)
    assert again.attempt == 1
    assert store.ack(first) in (AckOutcome.STALE, AckOutcome.UNKNOWN)
    report = stores.tick_after(store, 1000)
    assert (report.retried, report.dead) == (1, 0)
    (second,) = store.pop(T, G, invisible=SECOND)
    store.retry_later(second)
    assert [each.expiry_ms - stores.clock.now_ms() for each in store.leases()] == [30_000]


@pytest.mark.clause("P6")
def test_p7_a_change_does_not_take_the_reason(stores: Stores) -> None:
    """P7: a lease that backs off and is lengthened is worked on again: it backs off no more, and its old reason is told no more."""
    store = stores.open()
    store.send(message(0))
    (got,) = store.pop(T, G)
    waiting = store.retry_later(got, timedelta(hours=1), reason="no answer")
    assert [(each.is_backing_off, each.reason) for each in store.leases()] == [(True, "no answer")]
    assert store.lag(T, G) == Lag(ready=0, in_flight=0, retry=0, dead=0, backing_off=1)
    changed = store.change_invisible(waiting, MINUTE)
    assert [(each.is_backing_off, each.reason) for each in store.leases()] == [(False, "")]
    assert store.lag(T, G) == Lag(ready=0, in_flight=1, retry=0, dead=0)
    assert store.ack(changed) is AckOutcome.ACKED
