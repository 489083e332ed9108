"""Proofs about the strangers on ``memory`` that concern data, copies and rules."""

from __future__ import annotations

import pyarrow as pa

from conformance.tests.stranger_proofs import S, came, failed_once, many, passed, proof, refused, sent
from rmqstore import Message
from rmqstore.contract import AckOutcome, CancelOutcome, InitMode, MessageState, PopRequest
from rmqstore.errors import DelayTooLongError, FlowControlError
from rmqstore_conformance.stores import DAY_MS, HOUR_MS, Stores, ids, message, read_ids

# ---------------------------------------------------------------- data: timers


@proof
def strips_properties(stores: Stores) -> None:
    assert came(stores, Message("t", b"x", properties={"p": " v "})).properties == {"p": " v "}


@proof
def zero_born_is_none(stores: Stores) -> None:
    assert came(stores, Message("t", b"x", born_ms=0)).born_ms == 0


def _cancels_one_of(stores: Stores, one: tuple[str, str], other: tuple[str, str]) -> None:
    store = stores.open()
    for topic, key in (one, other):
        store.send(Message(topic, b"x", keys=(key,)), delay_ms=5000)
    assert store.cancel_key(*one) == [CancelOutcome.CANCELLED]
    assert store.pending().total == 1


@proof
def composes_keys(stores: Stores) -> None:
    _cancels_one_of(stores, ("t", "caf\u00e9"), ("t", "cafe\u0301"))


@proof
def cuts_keys(stores: Stores) -> None:
    _cancels_one_of(stores, ("t", "k" * 64 + "a"), ("t", "k" * 64 + "b"))


@proof
def glues_topic_and_key(stores: Stores) -> None:
    _cancels_one_of(stores, ("a", "bc"), ("ab", "c"))


@proof
def hashes_keys_short(stores: Stores) -> None:
    _cancels_one_of(stores, ("t", "plumless"), ("t", "buckeroo"))


@proof
def marks_by_checksum(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1), delay_ms=5000, marks=[b"plumless"])
    store.send(message(2), delay_ms=5000, marks=[b"buckeroo"])
    assert store.pending().total == 2


@proof
def minutes_wrap(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1), deliver_at_ms=2**32 * 60_000 + S + 60_000)
    assert store.pending([S, S + 120_000]).counts == (0,)


@proof
def counts_by_seconds(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1), delay_ms=5500)
    assert store.pending([S + 5600, S + 7000]).counts == (0,)


@proof
def horizon_of_first_row(stores: Stores) -> None:
    store = stores.open(max_delay_ms=10_000)
    batch = [message(1, deliver_at_ms=S + 1000), message(2, deliver_at_ms=S + DAY_MS)]
    refused(DelayTooLongError, lambda: store.send_batch(batch))


# ---------------------------------------------------------------- data: pops


@proof
def marks_as_text(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1), marks=[b"\xff"])
    store.send(message(2), marks=[b"\xfe"])
    assert read_ids(store) == ["m1", "m2"]


@proof
def trailing_zeros_lost(stores: Stores) -> None:
    assert sent(stores, Message("t", b"a\0")).body == b"a\0"


@proof
def strips_tags(stores: Stores) -> None:
    assert sent(stores, Message("t", b"x", tag="\u00a0x")).tag == "\u00a0x"


@proof
def page_borders_eat_bytes(stores: Stores) -> None:
    assert len(sent(stores, Message("t", b"x" * 4096)).body) == 4096


@proof
def sliced_columns_unmoved(stores: Stores) -> None:
    store = stores.open()
    store.send_batch(pa.RecordBatch.from_pydict({"topic": ["t"] * 3, "body": [b"a", b"bb", b"ccc"]}).slice(1))
    assert [each.body for each in store.pop("t", "g")] == [b"bb", b"ccc"]


@proof
def folds_topics(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1, "Orders"))
    store.send(message(2, "orders"))
    assert read_ids(store, "Orders") == ["m1"]


@proof
def tags_by_hash(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1, tag="Aa"))
    store.send(message(2, tag="BB"))
    assert ids(store.pop("t", "g", filter="BB")) == ["m2"]


@proof
def filter_numbers_as_floats(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1, properties={"n": "9007199254740993"}))
    assert store.pop("t", "g", filter="n = 9007199254740992") == []


@proof
def acks_by_byte(stores: Stores) -> None:
    store = stores.open()
    store.send_batch(many(300))
    popped = store.pop("t", "g", max_messages=300)
    assert store.ack(popped[256]) is AckOutcome.ACKED
    assert store.ack(popped[0]) is AckOutcome.ACKED


@proof
def acks_mix_groups(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    leased = [store.pop("t", group)[0] for group in ("g", "h")]
    assert store.ack(leased) == [AckOutcome.ACKED] * 2


@proof
def deletes_by_suffix(stores: Stores) -> None:
    store = failed_once(stores, message(1, "ab"))
    store.topics.create("b")
    store.topics.delete("b")
    assert ids(store.pop("ab", "g")) == ["m1"]


@proof
def leases_by_prefix(stores: Stores) -> None:
    store = stores.open()
    for topic in ("t", "t2"):
        store.send(message(1, topic))
        store.pop(topic, "g")
    assert [each.topic for each in store.leases("t")] == ["t"]


@proof
def offsets_sort_as_text(stores: Stores) -> None:
    store = stores.open()
    store.topics.create("t", 12)
    store.pop("t", "g")
    assert [each.queue_id for each in store.groups.offsets("g")] == list(range(12))


@proof
def queue_zero_is_any(stores: Stores) -> None:
    store = stores.open()
    store.topics.create("t", 2)
    store.send(message(1, queue_id=1))
    assert store.pop("t", "g", queue=0) == []


@proof
def short_reasons(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    store.reject(store.pop("t", "g"), reason="x" * 1000)
    assert store.dead_letters.list("g")[0].reason == "x" * 1000


@proof
def looks_at_sixteen_queues(stores: Stores) -> None:
    store = stores.open()
    store.topics.create("t", 20)
    store.send(message(1, queue_id=19))
    assert ids(store.pop("t", "g")) == ["m1"]


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
def born_in_seconds(stores: Stores) -> None:
    assert came(stores, Message("t", b"x", born_ms=S + 123)).born_ms == S + 123


@proof
def large_bodies_cut_on_the_way(stores: Stores) -> None:
    assert len(came(stores, Message("t", b"x" * 1_500_000)).body) == 1_500_000


@proof
def keys_twice_on_the_way(stores: Stores) -> None:
    assert came(stores, Message("t", b"x", keys=("a", "a"))).keys == ("a", "a")


@proof
def repeats_tick_anew(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1), delay_ms=60_000, marks=[b"k"])
    stores.clock.advance(5000)
    again = store.send(message(1), delay_ms=60_000, marks=[b"k"])
    assert again.repeated
    assert store.cancel(again) is CancelOutcome.CANCELLED


@proof
def dumps_no_delivered(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1), delay_ms=5000)
    passed(stores, store, 5000)
    assert store.engine.timers.export_state("timer_traces", None, 100).rows.num_rows == 1


@proof
def dead_keys_sorted(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1, keys=("b", "a")))
    store.reject(store.pop("t", "g"))
    assert store.dead_letters.list("g")[0].message.keys == ("b", "a")


@proof
def dead_get_tags(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    store.reject(store.pop("t", "g"))
    assert store.dead_letters.list("g")[0].message.tag is None


@proof
def resent_remembers(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    store.reject(store.pop("t", "g"), reason="why")
    store.dead_letters.resend(store.dead_letters.list("g"))
    assert store.pop("t", "g")[0].properties == {}


@proof
def resent_counts_on(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    store.reject(store.pop("t", "g"))
    store.dead_letters.resend(store.dead_letters.list("g"))
    assert store.pop("t", "g")[0].attempt == 1


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
def columns_of_one_queue(stores: Stores) -> None:
    store = stores.open()
    store.topics.create("t", 2)
    store.send_batch([message(queue, queue_id=queue) for queue in range(2)])
    assert set(store.pop_batch("t", "g").columns.column("queue_id").to_pylist()) == {0, 1}


@proof
def columns_of_first_attempts(stores: Stores) -> None:
    assert failed_once(stores, message(1)).pop_batch("t", "g").columns.column("attempt").to_pylist() == [2]


@proof
def columns_of_last_pop(stores: Stores) -> None:
    assert failed_once(stores, message(1)).pop_batch("t", "g").columns.column("first_pop_ms").to_pylist() == [S]


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


@proof
def leases_forget_runs(stores: Stores) -> None:
    store = failed_once(stores, message(1), order=True)
    assert store.pop("t", "g", order=True)[0].attempt == 2
    assert store.leases("t")[0].attempt == 2


@proof
def where_overlooks_waits(stores: Stores) -> None:
    store = failed_once(stores, message(1), order=True)
    assert [each.state for each in store.where(id="m1")] == [MessageState.RETRY]


@proof
def get_finds_the_first(stores: Stores) -> None:
    store = stores.open()
    for body in (b"old", b"new"):
        store.send(message(1, body=body))
    found = store.get("m1")
    assert found is not None
    assert found.body == b"new"


@proof
def dumps_no_reasons(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    store.retry_later(store.pop("t", "g"), delay_ms=1000, reason="why")
    assert "why" in store.engine.pops.export_state("leases", None, 100).rows.column("reason").to_pylist()


@proof
def dumps_no_attempts(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    store.pop("t", "g", attempt_id="a")
    assert store.engine.pops.export_state("attempts", None, 100).rows.num_rows == 1


@proof
def change_pops_first(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    popped = store.pop("t", "g")
    stores.clock.advance(100)
    store.change_invisible(popped, invisible_ms=1000)
    passed(stores, store, 1000)
    assert store.pop("t", "g")[0].first_pop_ms == S


# ---------------------------------------------------------------- rules


@proof
def large_pages_end_scans(stores: Stores) -> None:
    store = stores.open()
    for number in range(3):
        store.send(message(number, body=bytes(4 * 1024 * 1024)), delay_ms=5000 + number * 1000)
    page = store.scan()
    count = len(page.timers)
    while page.next_after is not None:
        page = store.scan(after=page.next_after)
        count += len(page.timers)
    assert count == 3


@proof
def get_sees_cancelled(stores: Stores) -> None:
    store = stores.open()
    first = store.send_batch(many(2), delay_ms=5000)[0]
    store.cancel(first)
    assert first.timer is not None
    assert store.engine.timers.get(first.timer) is None


@proof
def cancels_twice_in_a_call(stores: Stores) -> None:
    store = stores.open()
    receipt = store.send(message(1), delay_ms=5000)
    assert store.cancel([receipt, receipt]) == [CancelOutcome.CANCELLED] * 2


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
def calls_do_not_count(stores: Stores) -> None:
    store = stores.open(congestion_limit=2)
    refused(FlowControlError, lambda: store.send_batch(many(4), delay_ms=5000))


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
def empty_pops_are_idle(stores: Stores) -> None:
    store = stores.open(group_expiry_ms=80_000)
    store.pop("t", "g")
    stores.clock.advance(60_000)
    store.pop("t", "g")
    assert store.groups.subscriptions("g")[0].active_ms == S + 60_000


@proof
def reset_to_the_end_forgets_queues(stores: Stores) -> None:
    store = stores.open()
    store.topics.create("t", 2)
    store.send_batch([message(number, queue_id=min(number, 1)) for number in range(4)])
    store.groups.reset_offset("t", "g", InitMode.MAX)
    assert store.lag("t", "g").ready == 0


@proof
def removed_twice_counts_twice(stores: Stores) -> None:
    store = stores.open()
    store.send_batch(many(2))
    store.reject(store.pop("t", "g"))
    first = store.dead_letters.list("g", limit=1)
    assert [store.dead_letters.drop(first), store.dead_letters.drop(first)] == [1, 0]
    assert store.lag("t", "g").dead == 1


# ---------------------------------------------------------------- pairs


@proof
def seal_ends_with_the_clock(stores: Stores) -> None:
    store = stores.open()
    receipt = store.send(message(1), delay_ms=5000)
    store.engine.timers.seal(S + 10_000)
    store.engine.timers.seal(S)
    assert store.cancel(receipt) is CancelOutcome.ALREADY_DELIVERED


@proof
def marks_end_with_timers(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1), deliver_at_ms=S + 5000, marks=[b"k"])
    passed(stores, store, 5000)
    assert store.send(message(1), deliver_at_ms=S + 5000, marks=[b"k"]).repeated


@proof
def latest_outlives_cancel_key(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1), delay_ms=5000)
    store.send(message(2, keys=("k",)), delay_ms=9000)
    store.cancel_key("t", "k")
    assert store.pending().latest_ms == S + 5000


@proof
def cancels_stay_in_slots(stores: Stores) -> None:
    store = stores.open(congestion_limit=2)
    store.cancel(store.send_batch(many(2), delay_ms=5000)[:])
    try:
        store.send_batch(many(2), delay_ms=5000)
    except FlowControlError as error:
        raise AssertionError(str(error)) from error


@proof
def keys_cancel_by_tick(stores: Stores) -> None:
    store = stores.open()
    for number, delay_ms in ((1, 60_000), (2, 1000)):
        store.send(message(number, keys=("k",)), delay_ms=delay_ms)
    store.engine.timers.seal(S + 2000)
    assert store.cancel_key("t", "k") == [CancelOutcome.CANCELLED, CancelOutcome.ALREADY_DELIVERED]


@proof
def waits_in_order_of_ends(stores: Stores) -> None:
    store = stores.open()
    store.send_batch(many(2))
    for each in reversed(store.pop("t", "g", order=True)):
        store.release(each)
    assert ids(store.pop("t", "g", order=True)) == ["m0", "m1"]


@proof
def waits_open_the_queue(stores: Stores) -> None:
    store = stores.open()
    store.send_batch(many(2))
    store.retry_later(store.pop("t", "g", order=True, max_messages=1), delay_ms=10_000)
    assert store.pop("t", "g", order=True) == []


@proof
def changes_count_in_order(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    store.change_invisible(store.pop("t", "g", order=True), invisible_ms=1000)
    passed(stores, store, 1000)
    assert store.pop("t", "g", order=True)[0].attempt == 2


@proof
def rejects_end_runs(stores: Stores) -> None:
    store = stores.open()
    store.send_batch(many(3))
    leased = store.pop("t", "g", order=True)
    store.reject(leased[1])
    assert store.ack(leased[0]) is AckOutcome.ACKED


@proof
def reset_keeps_runs(stores: Stores) -> None:
    store = stores.open()
    store.send_batch(many(3))
    store.pop("t", "g", order=True, max_messages=1, invisible_ms=1000)
    passed(stores, store, 1000)
    store.groups.reset_offset("t", "g", 2)
    assert ids(store.pop("t", "g", order=True)) == ["m2"]


@proof
def reset_voids_first_queue(stores: Stores) -> None:
    store = stores.open()
    store.topics.create("t", 2)
    store.send(message(1, queue_id=1))
    leased = store.pop("t", "g")[0]
    store.groups.reset_offset("t", "g", InitMode.MIN)
    assert store.ack(leased) is AckOutcome.STALE


@proof
def runs_that_wait_go(stores: Stores) -> None:
    store = failed_once(stores, message(1), order=True)
    assert ids(store.pop("t", "g", order=True)) == ["m1"]


@proof
def limit_forgets_waits(stores: Stores) -> None:
    store = stores.open(max_in_flight=1)
    store.send_batch(many(2))
    store.retry_later(store.pop("t", "g"), delay_ms=10_000)
    assert store.pop("t", "g") == []


@proof
def deleted_gives_receipts_again(stores: Stores) -> None:
    store = stores.open()
    receipts = set()
    for _ in range(2):
        store.send(message(1))
        receipts.add(store.pop("t", "g")[0].receipt)
        store.topics.delete("t")
    assert len(receipts) == 2


@proof
def retries_outlive_topics(stores: Stores) -> None:
    store = failed_once(stores, message(1))
    store.topics.delete("t")
    store.send(message(2))
    assert ids(store.pop("t", "g")) == ["m2"]


@proof
def queues_outlive_topics(stores: Stores) -> None:
    store = stores.open()
    store.topics.create("t", 4)
    store.topics.delete("t")
    store.send(message(1))
    assert [each.queues for each in store.topics.list()] == [1]


@proof
def age_from_birth(stores: Stores) -> None:
    store = stores.open(retention_ms=10_000)
    store.send(message(1), delay_ms=60_000)
    passed(stores, store, 60_000)
    assert read_ids(store) == ["m1"]


@proof
def rest_counts_dropped(stores: Stores) -> None:
    store = stores.open()
    store.send_batch(many(3))
    store.reject(store.pop("t", "g"))
    store.dead_letters.drop(store.dead_letters.list("g")[1:2])
    assert store.engine.pops.pop(PopRequest("%DLQ%g", "ops", max_messages=1), S)[0].rest == 1


# ---------------------------------------------------------------- other stores and clocks


@proof
def handles_of_any_store(stores: Stores) -> None:
    first, second = (stores.open(name) for name in ("first", "second"))
    receipts = [store.send(message(1), delay_ms=5000) for store in (first, second)]
    assert second.cancel(receipts[0]) is CancelOutcome.UNKNOWN


@proof
def receipts_of_any_store(stores: Stores) -> None:
    leased = []
    for name in ("first", "second"):
        store = stores.open(name)
        store.send(message(1))
        leased += store.pop("t", "g")
    assert store.ack(leased[0]) is AckOutcome.UNKNOWN


@proof
def traces_age_from_cancel(stores: Stores) -> None:
    store = stores.open()
    receipt = store.send(message(1), delay_ms=30 * DAY_MS)
    store.cancel(receipt)
    passed(stores, store, 2 * DAY_MS)
    assert store.cancel(receipt) is CancelOutcome.CANCELLED


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


@proof
def rejects_count_less(stores: Stores) -> None:
    store = stores.open()
    store.send(message(1))
    store.reject(store.pop("t", "g"))
    assert store.dead_letters.list("g")[0].attempts == 1


@proof
def loads_arrive_now(stores: Stores) -> None:
    source, target = (stores.open(name) for name in ("source", "target"))
    source.send(message(1))
    tables = [(table, source.engine.pops.export_state(table, None, 100).rows) for table in ("topics", "messages")]
    target.engine.pops.import_state(tables, S + 5000)
    assert target.read("t").columns.column("store_ms").to_pylist() == [S]


@proof
def loads_taken_in_twice(stores: Stores) -> None:
    source, target = (stores.open(name) for name in ("source", "target"))
    source.send(message(1), delay_ms=5000)
    rows = source.engine.timers.export_state("timers", None, 100).rows
    for _ in range(2):
        target.engine.timers.import_state([("timers", rows)], S, [b"part 1"])
    assert target.pending().total == 1
