"""F3, S1, I1: a failed call changes nothing, an absent capability is refused, a repeated mark gives the first answer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

import rmqstore
from rmqstore import CancelOutcome, IllegalArgumentError, Message, MessageBatch, Store, UnsupportedOperationError
from rmqstore.contract import Support, WriteStatus
from rmqstore.errors import IllegalArgumentTypeError, IllegalNameError
from rmqstore.plugins import get_plugins
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.probing import FLAGS
from rmqstore_conformance.stores import DAY_MS, HOUR_MS, START_MS, Stores, ids, key_of, mark_of, message, pop_all, read_ids, state_of
from rmqstore_conformance.targets import capabilities_of

(T,) = topics(__name__, 1)
(G,) = groups(__name__, 1)


@pytest.mark.parametrize(
    "bad",
    [
        Message(T, b""),
        Message("bad topic", b"x"),
        Message("%RETRY%x", b"x"),
        Message("x" * 128, b"x"),
        Message(T, b"x", tag="a b"),
        Message(T, b"x", tag="a|b"),
        Message(T, b"x", keys=("a b",)),
        Message(T, b"x", properties={"": "x"}),
        Message(T, b"x", properties={"a": ""}),
        Message(T, b"x", properties={"a": "\x01"}),
        Message(T, b"x", properties={"a": "x" * 33_000}),
        Message(T, b"x", properties={"KEYS": "x"}),
        Message(T, b"x", deliver_at_ms=-1),
        Message(T, b"x", queue_id=-1),
        Message("rmq_sys_x", b"x"),
        Message("SCHEDULE_TOPIC_XXXX", b"x"),
        Message("%DLQ%x", b"x"),
        Message("%PARKED%", b"x"),
        Message("", b"x"),
        Message("t\u00e9", b"x"),
        Message(T, b"x" * (4 * 1024 * 1024 + 1)),
        Message(T, b"x", message_id="x" * 256),
        Message(T, b"x", message_id="\u00e9" * 128),
        Message(T, b"x", message_id="a b"),
        Message(T, b"x", message_group="x" * 256),
        Message(T, b"x", message_group="a b"),
        Message(T, b"x", message_group="a", deliver_at_ms=START_MS + 1),
        Message(T, b"x", tag="a\x1f"),
        Message(T, b"x", keys=("fine", "a\x00")),
        Message(T, b"x", properties={"a\x01": "x"}),
        Message(T, b"x", properties={"a\x02": "x"}),
        Message(T, b"x", properties={"a": "\x02"}),
        Message(T, b"x", properties={"UNIQ_KEY": "x"}),
        Message(T, b"x", keys=("x" * 20_000, "y" * 13_000)),
        Message(T, b"x", deliver_at_ms=2**62 + 1),
        Message(T, b"x", queue_id=1024),
    ],
)
def test_f3_one_bad_row_refuses_the_batch(engine_stores: Stores, bad: Message) -> None:
    """F3, §5.8: nothing of the batch is stored, now or later, by structs or by columns, and the error names the row or the column."""
    store = engine_stores.open()
    good = [message(1), message(2, deliver_at_ms=START_MS + 1000)]
    before = state_of(store)
    with pytest.raises(IllegalArgumentError, match=r"row 1"):
        store.send_batch([good[0], bad, good[1]])
    with pytest.raises(IllegalArgumentError):
        store.send(bad)
    columns = rmqstore.batch.columns_of([good[0], bad, good[1]])
    with pytest.raises(IllegalArgumentError):
        store.send_batch(columns)
    assert state_of(store) == before


BEYOND: dict[str, tuple[type[IllegalArgumentError], Callable[[Store], object]]] = {
    "pop of 0": (IllegalArgumentError, lambda store: store.pop(T, G, max_messages=0)),
    "pop of 1025": (IllegalArgumentError, lambda store: store.pop(T, G, max_messages=1025)),
    "0 queues": (IllegalArgumentError, lambda store: store.topics.create("new", 0)),
    "1025 queues": (IllegalArgumentError, lambda store: store.topics.create("new", 1025)),
    "reserved topic": (IllegalNameError, lambda store: store.topics.create("rmq_sys_new")),
    "reserved group": (IllegalNameError, lambda store: store.pop(T, "SCHEDULE_TOPIC_XXXX")),
    "group of 128": (IllegalNameError, lambda store: store.pop(T, "g" * 128)),
    "no group": (IllegalNameError, lambda store: store.pop(T, "")),
    "invisible for 0 ms": (IllegalArgumentError, lambda store: store.pop(T, G, invisible_ms=0)),
    "attempt of 256": (IllegalArgumentError, lambda store: store.pop(T, G, attempt_id="a" * 256)),
    "mark of 256": (IllegalArgumentError, lambda store: store.send(message(0), marks=[b"m" * 256])),
    "time beyond 2^62": (IllegalArgumentError, lambda store: store.send(message(0), deliver_at_ms=2**62 + 1)),
    "naive time": (IllegalArgumentError, lambda store: store.send(message(0), deliver_at=datetime(2100, 1, 1))),  # noqa: DTZ001
    "bare invisible": (IllegalArgumentTypeError, lambda store: store.pop(T, G, invisible=60)),  # type: ignore[arg-type]
    "bare wait": (IllegalArgumentTypeError, lambda store: store.pop(T, G, wait=0)),  # type: ignore[arg-type]
    "bare delay": (IllegalArgumentTypeError, lambda store: store.send(message(0), delay=0)),  # type: ignore[arg-type]
    "bare time": (IllegalArgumentTypeError, lambda store: store.send(message(0), deliver_at=4_102_444_800)),  # type: ignore[arg-type]
    "bare timeout": (IllegalArgumentTypeError, lambda store: store.send(message(0), timeout=1)),  # type: ignore[arg-type]
    "fraction of a ms": (IllegalArgumentTypeError, lambda store: store.send(message(0), delay_ms=0.5)),  # type: ignore[arg-type]
}
"""Calls that ask for more than the limits, or leave the unit open, by what they ask for; and the error that says so."""


@pytest.mark.parametrize("beyond", BEYOND)
def test_f3_what_is_beyond_the_limits_is_refused(engine_stores: Stores, beyond: str) -> None:
    """F3, §5.8: a call whose arguments are beyond the limits, or a bare number for a time, changes nothing; one at the limits is taken."""
    store = engine_stores.open()
    store.send_batch([message(n) for n in range(3)])
    before = state_of(store)
    error, call = BEYOND[beyond]
    with pytest.raises(error):
        call(store)
    assert state_of(store) == before


@pytest.mark.clause("H2")
def test_f3_what_is_at_the_limits_is_taken(engine_stores: Stores) -> None:
    """F3, §5.8: names of 127 bytes, words of 255, 1024 queues, pops of 1024, 1 ms and 2^62 ms are within the limits."""
    store = engine_stores.open(default_queues=1)
    topic, group, word = "t" * 127, "g" * 127, "w" * 255
    store.topics.create(topic, 1024)
    store.send(Message(topic, b"x", message_id=word, message_group=word), marks=[b"m" * 255])
    store.send(Message(topic, b"y", message_id=word, keys=("k" * 5000,), tag="t" * 5000, queue_id=1023), deliver_at_ms=2**62)
    store.send_batch([Message("many", b"x")] * 1025)
    (popped,) = store.pop(topic, group, attempt_id=word, invisible_ms=1)
    assert (popped.message_id, popped.message_group) == (word, word)
    assert store.scan().timers[0].deliver_at_ms == 2**62
    assert [len(store.pop("many", G, max_messages=1024)) for _ in range(2)] == [1024, 1]


def test_s1_declared_capabilities_are_there(stores: Stores) -> None:
    """S1: what the engines declare is so: precisions, body size, cancel by key, snapshot."""
    timers, pops = (get_plugins().load_engine(name)[0].capabilities for name in stores.pair)
    store = stores.open(precision_ms=timers.min_precision_ms)
    largest = Message(
        T, b"x" * min(timers.max_body_bytes, pops.max_body_bytes), message_id="large", deliver_at_ms=START_MS + 1, keys=("k" * 100,)
    )
    store.send(largest)
    stores.tick_after(store, timers.min_precision_ms)
    assert read_ids(store) == ["large"]
    if timers.cancel_by_key is Support.FULL:
        store.send(message(1, keys=(key_of("key"),)), delay_ms=1000)
        assert len(store.cancel_key(T, key_of("key"))) == 1
    if Support.FULL is timers.snapshot is pops.snapshot:
        store.send(message(2), delay_ms=1000)
        store.snapshot(stores.root / "copy")
        copy = stores.open("copy")
        assert copy.pending() == store.pending()
        assert pop_all(copy)[0].body == largest.body
        assert copy.verify() == []


@pytest.mark.clause("S1")
def test_names_that_are_legal_are_seen(engine_stores: Stores) -> None:
    """§5.8: ``%`` is a legal letter; such a topic is a user's topic unless its prefix is reserved."""
    store = engine_stores.open(default_queues=2)
    store.send(message(1, "%mine"))
    assert [topic.name for topic in store.topics.list()] == ["%mine"]
    assert store.topics.list()[0].queues == 2


@pytest.mark.clause("F3")
@pytest.mark.parametrize("max_delay_ms", [0, 1000])
@pytest.mark.parametrize("delay_ms", [None, 500])
def test_t5_a_batch_of_nothing_stores_nothing(engine_stores: Stores, max_delay_ms: int, delay_ms: int | None) -> None:
    """T5: a batch without messages is a call like others, with a limit of delays and without."""
    store = engine_stores.open(max_delay_ms=max_delay_ms)
    assert len(store.send_batch([], delay_ms=delay_ms)) == 0
    assert store.topics.list() == []
    assert store.pending().total == 0
    receipts, _ = store.engine.timers.put(rmqstore.MessageBatch.of([]), engine_stores.clock.now_ms())
    assert len(receipts) == 0


# ---------------------------------------------------------------- what is not declared


Call = Callable[[Stores, Store], Any]


def _open_fresh(**settings: Any) -> Call:
    return lambda stores, store: stores.open("fresh", **settings).close()


CALLS: dict[str, tuple[Call, ...]] = {
    "cancel_by_key": (lambda stores, store: store.cancel_key(T, key_of("k")),),
    "fifo": (lambda stores, store: store.pop("elsewhere", "g2", order=True),),
    "sql92_filter": (lambda stores, store: store.pop("elsewhere", "g3", filter="price > 10"),),
    "read_only_open": (lambda stores, store: rmqstore.open(stores.root / "store", read_only=True, clock=stores.clock).close(),),
    "retention": (_open_fresh(retention_ms=HOUR_MS), _open_fresh(reclaim="consumed")),
    "import_state": (lambda stores, store: store.transfer.dump(stores.root / "dump"), lambda stores, store: store.transfer.digest()),
    "snapshot": (lambda stores, store: store.snapshot(stores.root / "copy"),),
    "pop_buffer": (_open_fresh(pop__buffer=True),),
}
"""By capability: calls that have no use but for it, and that would leave a trace if they did something before they are refused."""


@pytest.mark.parametrize("flag", FLAGS)
def test_s1_declared_is_offered_and_absent_is_refused(stores: Stores, flag: str) -> None:
    """S1: a call that needs a capability works when both engines declare it, and changes nothing when one does not."""
    store = stores.open()
    store.send(message(1, keys=(key_of("k"),)), delay_ms=5000)
    store.send(message(2))
    before, files = state_of(store), {path.name for path in stores.root.iterdir()}
    declared = [getattr(each, flag) for each in capabilities_of(stores.pair)]
    asked = {"cancel_by_key": declared[:1]}.get(flag, declared if flag in ("read_only_open", "import_state", "snapshot") else declared[1:])
    if all(each is Support.FULL for each in asked):
        for call in CALLS[flag]:
            call(stores, store)
        return
    for call in CALLS[flag]:
        with pytest.raises(UnsupportedOperationError):
            call(stores, store)
    if flag in ("cancel_by_key", "fifo", "sql92_filter"):
        # Refused for what it is, also where it would have found nothing.
        with pytest.raises(UnsupportedOperationError):
            CALLS[flag][0](stores, stores.open("empty"))
        files.add("empty")
    assert state_of(store) == before
    assert {path.name for path in stores.root.iterdir()} == files


# ---------------------------------------------------------------- marks


def test_i1_a_repeated_mark_stores_nothing(stores: Stores) -> None:
    """I1: for sends now and for later; any of several marks will do; the answer is the first one: handles, ids, ``repeated``."""
    store = stores.open()
    later = [message(n, deliver_at_ms=START_MS + 1000 * n) for n in range(1, 4)]
    first = store.send_batch(later, marks=[mark_of("a"), mark_of("b")])
    for marks in ([mark_of("a")], [mark_of("b")], [mark_of("c"), mark_of("b")]):
        again = store.send_batch(later, marks=marks)
        assert again.repeated
        assert [each.handle for each in again] == [each.handle for each in first]
    assert store.pending().total == 3
    assert [store.send(message("now"), marks=[mark_of("n")]).repeated for _ in range(2)] == [False, True]
    assert read_ids(store) == ["mnow"]
    assert store.cancel(first[2].handle or "") is CancelOutcome.CANCELLED
    assert store.send_batch(later, marks=[mark_of("a")]).repeated
    assert store.pending().total == 2


def test_i1_a_resend_after_its_time_is_still_a_repeat(stores: Stores) -> None:
    """I1: a writer resends the same rows when their time has passed: nothing is stored again, and the handle is the first."""
    store = stores.open()
    row = message(1, deliver_at_ms=START_MS + 1000)
    first = store.send(row, marks=[mark_of("token")])
    for passed in (1000, 5000):
        stores.tick_at(store, START_MS + passed)
        again = store.send(row, marks=[mark_of("token")])
        assert (again.repeated, again.handle) == (True, first.handle)
        assert read_ids(store) == ["m1"]


def test_i1_a_repeat_of_another_number_of_timers_is_refused(stores: Stores) -> None:
    """I1: no receipt of a call names a timer that was never put; nothing is stored, and the mark stays that of the first call."""
    store = stores.open()
    later = [message(n) for n in range(5)]
    first = store.send_batch(later[:3], delay=timedelta(seconds=9), marks=[mark_of("a")])
    for others in (later, later[:2], later[:1], MessageBatch.of(later).columns):
        with pytest.raises(IllegalArgumentError, match="3 messages"):
            store.send_batch(others, delay=timedelta(seconds=9), marks=[mark_of("b"), mark_of("a")])
    assert store.pending().total == 3
    again = store.send_batch(later[:3], delay=timedelta(seconds=9), marks=[mark_of("a")])
    assert [each.handle for each in again] == [each.handle for each in first]


def test_i1_marks_of_no_messages_are_kept(durable_stores: Stores) -> None:
    """I1: a put of nothing leaves its marks, and no timer is stored under one of them afterwards; a connection's repeats rest on it."""
    store = durable_stores.open()
    now_ms = durable_stores.clock.now_ms()
    complete = msgspec.structs.replace(message(1), message_id="m1", born_ms=now_ms, queue_id=0, deliver_at_ms=now_ms + 1000)
    nothing, one = MessageBatch(messages=()), MessageBatch(messages=(complete,))
    for reopened in (False, True):
        if reopened:
            store = durable_stores.reopen(store)
        else:
            first, ticket = store.engine.timers.put(nothing, now_ms, [mark_of("a")])
            store.engine.timers.sync(ticket)
            assert (first.status, len(first)) == (WriteStatus.APPLIED, 0)
        for batch in (nothing, one):
            again, _ = store.engine.timers.put(batch, now_ms, [mark_of("b"), mark_of("a")])
            assert (again.status, len(again)) == (WriteStatus.REPEATED, 0)
        assert store.pending().total == 0


def test_i1_marks_are_forgotten_after_their_time(stores: Stores) -> None:
    """I1: each mark of either side is kept for ``mark_memory_ms`` after its call, and no longer, also beside a later one."""
    store = stores.open(mark_memory_ms=10_000)

    def repeated(*marks: bytes) -> set[bool]:
        return {store.send(message(1), delay_ms=delay_ms, marks=marks).repeated for delay_ms in (None, DAY_MS)}

    assert repeated(b"early", b"of two") == {False}
    stores.clock.advance(5_000)
    assert repeated(b"late") == {False}
    stores.tick_after(store, 5_000)
    assert [repeated(mark) for mark in (b"early", b"of two", b"late")] == [{True}] * 3
    stores.tick_after(store, 1)
    assert [repeated(mark) for mark in (b"late", b"early", b"of two")] == [{True}, {False}, {False}]


@pytest.mark.needs("import_state")
def test_i1_a_witness_goes_before_the_marks_behind_it(stores: Stores) -> None:
    """I1: it is there where it was planted, by its prefix and time, as long as ``mark_memory_ms``, and gone before a mark of a call is."""
    store = stores.open(mark_memory_ms=10_000)
    begun_ms = store.transfer.plant_witness(b"job/")
    assert begun_ms == START_MS

    def known() -> list[bool]:
        return [
            store.transfer.has_witness(prefix, at_ms) for prefix, at_ms in ((b"job/", begun_ms), (b"jo", begun_ms), (b"job/", begun_ms + 1))
        ]

    for delay_ms in (None, DAY_MS):
        store.send(message(1), delay_ms=delay_ms, marks=[b"job/1"])
    for passed_ms in (0, 9_999):
        stores.tick_after(store, passed_ms)
        assert known() == [True, False, False]
        if stores.pair.durable:
            store = stores.reopen(store, mark_memory_ms=10_000)
    stores.tick_after(store, 2)
    assert known() == [False] * 3
    assert not store.send(message(1), marks=[b"job/1"]).repeated
    assert store.transfer.plant_witness(b"job/") == START_MS + 10_001
    assert store.transfer.has_witness(b"job/", START_MS + 10_001)


def test_i1_marks_by_the_thousand_survive_a_reopen(durable_stores: Stores) -> None:
    """I1: however many they are, each is known, of a send for now as of one for later."""
    store = durable_stores.open(flush="async")
    calls = [([mark_of(f"{call}-{n}") for n in range(64)], None if call % 2 else 1000) for call in range(40)]
    for marks, delay_ms in calls:
        store.send(message("x"), marks=marks, delay_ms=delay_ms)
    store = durable_stores.reopen(store)
    for at in (0, 31, 63):
        assert all(store.send(message("x"), marks=marks[at : at + 1], delay_ms=delay_ms).repeated for marks, delay_ms in calls)
    assert store.pending().total == store.lag(T, G).ready == 20


@pytest.mark.clause("F3")
def test_i1_a_refused_call_stores_no_mark(engine_stores: Stores) -> None:
    """I1: a mark belongs to the same atomic step as the rows."""
    store = engine_stores.open(max_delay_ms=10_000)
    with pytest.raises(rmqstore.DelayTooLongError):
        store.send(message(1), delay_ms=10_001, marks=[mark_of("a")])
    assert not store.send(message(1), delay_ms=10_000, marks=[mark_of("a")]).repeated
    for wrong in ([b""], [b"x" * 256], ["x"], b"x", "x", [None]):
        with pytest.raises(IllegalArgumentError):
            store.send(message(3), marks=wrong)  # type: ignore[arg-type]
    assert ids(pop_all(store)) == []


@pytest.mark.clause("C4")
def test_i1_a_repeat_of_what_was_cancelled(stores: Stores) -> None:
    """I1: a call whose timers were cancelled is repeated: nothing is stored, and the first handles say CANCELLED, also past their time."""
    store = stores.open()
    rows = [message(n, deliver_at_ms=START_MS + 5000) for n in range(2)]
    first = store.send_batch(rows, marks=[mark_of("a")])
    assert store.cancel(list(first)) == [CancelOutcome.CANCELLED] * 2
    for _ in range(3):
        again = store.send_batch(rows, marks=[mark_of("a")])
        assert again.repeated
        assert [each.handle for each in again] == [each.handle for each in first]
        assert store.cancel(list(again)) == [CancelOutcome.CANCELLED] * 2
        assert store.pending().total == 0
        assert stores.tick_after(store, 5000).handed_over == 0


@pytest.mark.parametrize("due_ms", [None, START_MS + 5000], ids=["now", "later"])
def test_i1_a_repeat_for_a_topic_that_was_deleted(stores: Stores, due_ms: int | None) -> None:
    """I1: the topic of a call was deleted since: its repeat stores nothing and makes no topic, after a reopen as well."""
    store = stores.open()
    rows = [message(n, deliver_at_ms=due_ms) for n in range(2)]
    store.send_batch(rows, marks=[mark_of("a")])
    stores.tick_after(store, 5000)
    assert store.lag(T, G).ready == 2
    store.topics.delete(T)
    for _ in range(2):
        assert store.send_batch(rows, marks=[mark_of("a")]).repeated
        assert store.topics.list() == []
        assert store.pending().total == 0
        store.tick()
        if stores.pair.durable:
            store = stores.reopen(store)
