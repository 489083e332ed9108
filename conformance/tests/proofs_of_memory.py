"""Proofs about the mutants on ``memory`` that concern data, copies and rules."""

from __future__ import annotations

import pyarrow as pa

from conformance.tests.proofs import S, failed_once, many, passed, proof, sent
from rmqstore import Message
from rmqstore.contract import AckOutcome, CancelOutcome, InitMode, MessageState
from rmqstore_conformance.stores import DAY_MS, HOUR_MS, Stores, message

# ---------------------------------------------------------------- data: pops


@proof
def page_borders_eat_bytes(stores: Stores) -> None:
    assert len(sent(stores, Message("t", b"x" * 4096)).body) == 4096


@proof
def sliced_columns_unmoved(stores: Stores) -> None:
    store = stores.open()
    store.send_batch(pa.RecordBatch.from_pydict({"topic": ["t"] * 3, "body": [b"a", b"bb", b"ccc"]}).slice(1))
    assert [each.body for each in store.pop("t", "g")] == [b"bb", b"ccc"]


@proof
def dead_of_long_topics(stores: Stores) -> None:
    store = stores.open()
    topic = "t" * 64
    store.send(message(1, topic))
    store.reject(store.pop(topic, "g"))
    store.dead_letters.drop(store.dead_letters.list("g"))
    assert store.lag(topic, "g").dead == 0


# ---------------------------------------------------------------- copies


@proof
def null_time_becomes_now(stores: Stores) -> None:
    store = stores.open()
    store.send_batch([message(1), message(2, deliver_at_ms=S + 5000)])
    store.tick()
    assert store.pop("t", "g")[0].deliver_at_ms is None


@proof
def repeats_tick_anew(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1), delay_ms=60_000, marks=[b"k"])
    stores.clock.advance(5000)
    again = store.send(message(1), delay_ms=60_000, marks=[b"k"])
    assert again.repeated
    assert store.cancel(again) is CancelOutcome.CANCELLED


@proof
def dead_get_tags(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    store.reject(store.pop("t", "g"))
    assert store.dead_letters.list("g")[0].message.tag is None


@proof
def release_forgets_attempts(stores: Stores) -> None:
    store = failed_once(stores, message(1))
    store.release(store.pop("t", "g"))
    assert store.pop("t", "g")[0].attempt == 2


@proof
def reasons_stick(stores: Stores) -> None:
    store = stores.open(max_retries=1)
    store.send(message(1))
    store.retry_later(store.pop("t", "g"), delay_ms=1000, reason="early")
    passed(stores, store, 1000)
    assert store.pop("t", "g", invisible_ms=1000)
    passed(stores, store, 1000)
    assert "early" not in store.dead_letters.list("g")[0].reason


@proof
def columns_keep_one_key(stores: Stores) -> None:
    store = stores.open()
    store.send_batch(pa.RecordBatch.from_pydict({"topic": ["t"], "body": [b"x"], "keys": [["a", "b"]]}))
    assert store.pop("t", "g")[0].keys == ("a", "b")


@proof
def columns_fill_tags(stores: Stores) -> None:
    store = stores.open()
    store.send_batch(pa.RecordBatch.from_pydict({"topic": ["t"] * 2, "body": [b"x"] * 2, "tag": ["a", None]}))
    assert [each.tag for each in store.pop("t", "g")] == ["a", None]


@proof
def reads_one_store_time(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    stores.clock.advance(10)
    store.send(message(2))
    assert store.read("t").columns.column("store_ms").to_pylist() == [S, S + 10]


# ---------------------------------------------------------------- rules


@proof
def get_sees_cancelled(stores: Stores) -> None:
    store = stores.open()
    first = store.send_batch(many(2), delay_ms=5000)[0]
    store.cancel(first)
    assert first.timer is not None
    assert store.engine.timers.get(first.timer) is None


@proof
def sleeps_through_puts(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1), delay_ms=60_000)
    store.next_wake_ms()
    store.send(message(2), delay_ms=1000)
    wake_ms = store.next_wake_ms()
    assert wake_ms is not None
    assert wake_ms <= 1000


@proof
def zero_retries_are_default(stores: Stores) -> None:
    store = stores.open()
    store.groups.set("g", max_retries=0)
    store.send(message(1))
    store.pop("t", "g", invisible_ms=1000)
    passed(stores, store, 1000)
    assert store.lag("t", "g").dead == 1


@proof
def expiry_without_waits(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    store.retry_later(store.pop("t", "g"), delay_ms=1000)
    assert store.engine.pops.next_expiry_ms() == S + 1000


@proof
def ready_without_retries(stores: Stores) -> None:
    store = failed_once(stores, message(1))
    assert store.engine.pops.ready("t", "g", "*", S + 1000) is True


@proof
def marks_of_sends_age_early(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1), marks=[b"k"])
    passed(stores, store, HOUR_MS)
    assert store.send(message(1), marks=[b"k"]).repeated


@proof
def outcomes_age_from_ack(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    leased = store.pop("t", "g", invisible_ms=HOUR_MS)[0]
    store.ack(leased)
    passed(stores, store, HOUR_MS // 2)
    assert store.ack(leased) is AckOutcome.ALREADY_ACKED


@proof
def expired_of_one_group(stores: Stores) -> None:
    store = stores.open(retention_ms=1000)
    for group in ("g", "h"):
        store.pop("t", group)
    store.send(message(1))
    passed(stores, store, 5000)
    assert [store.lag("t", group).expired for group in ("g", "h")] == [1, 1]


@proof
def reset_to_the_end_forgets_queues(stores: Stores) -> None:
    store = stores.open()
    store.topics.create("t", 2)
    store.send_batch([message(number, queue_id=min(number, 1)) for number in range(4)])
    store.groups.reset_offset("t", "g", InitMode.MAX)
    assert store.lag("t", "g").ready == 0


# ---------------------------------------------------------------- pairs


@proof
def seal_ends_with_the_clock(stores: Stores) -> None:
    store = stores.open()
    receipt = store.send(message(1), delay_ms=5000)
    store.engine.timers.seal(S + 10_000)
    store.engine.timers.seal(S)
    assert store.cancel(receipt) is CancelOutcome.ALREADY_DELIVERED


@proof
def reset_voids_first_queue(stores: Stores) -> None:
    store = stores.open()
    store.topics.create("t", 2)
    store.send(message(1, queue_id=1))
    leased = store.pop("t", "g")[0]
    store.groups.reset_offset("t", "g", InitMode.MIN)
    assert store.ack(leased) is AckOutcome.STALE


# ---------------------------------------------------------------- other stores and clocks


@proof
def rejects_count_less(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    store.reject(store.pop("t", "g"))
    assert store.dead_letters.list("g")[0].attempts == 1


@proof
def where_overlooks_waits(stores: Stores) -> None:
    store = failed_once(stores, message(1), order=True)
    assert [each.state for each in store.where(id="m1")] == [MessageState.RETRY]


@proof
def latest_outlives_cancel_key(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1), delay_ms=5000)
    store.send(message(2, keys=("k",)), delay_ms=9000)
    store.cancel_key("t", "k")
    assert store.pending().latest_ms == S + 5000


@proof
def leases_end_by_pop_time(stores: Stores) -> None:
    store = stores.open()
    store.send_batch(many(2))
    stores.clock.set(S + DAY_MS)
    store.ack(store.pop("t", "g", max_messages=1))
    stores.clock.set(S)
    assert store.pop("t", "g", invisible_ms=1000)
    passed(stores, store, 1000)
    assert store.lag("t", "g").retry == 1
