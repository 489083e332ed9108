"""I1: a call that is made again with a mark of the first one stores nothing, and gives the first answer."""

from __future__ import annotations

from datetime import timedelta

import pytest

import rmqstore
from rmqstore import CancelOutcome, IllegalArgumentError, Message, MessageBatch
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.stores import DAY_MS, START_MS, Stores, ids, label, mark_of, message, pop_all, read_ids

(T,) = topics(__name__, 1)
(G,) = groups(__name__, 1)

SIDES = pytest.mark.parametrize("due_ms", [None, START_MS + 5000], ids=["now", "later"])


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


def test_i1_the_first_answer_holds_the_first_ids(stores: Stores) -> None:
    """I1: ids that the store made with the first call are the answer of the second."""
    store = stores.open()
    for delay in (None, 5000):
        first, again = (store.send(Message(T, b"x"), delay_ms=delay, marks=[b"m%d" % (delay or 0)]) for _ in range(2))
        assert again.repeated
        assert label(again) == label(first)


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


def test_i1_marks_of_both_sides_are_kept_apart(stores: Stores) -> None:
    """I1: one mark for a send for now and for a send for later: both are stored, once each, whichever came first."""
    store = stores.open()
    for number, order in enumerate(((None, 5000), (5000, None))):
        for delay_ms in order:
            sent = message(f"{number}-{delay_ms}")
            assert [store.send(sent, delay_ms=delay_ms, marks=[mark_of(f"{number}")]).repeated for _ in range(2)] == [False, True]
    assert ids(each.message for each in store.scan().timers) == ["m0-5000", "m1-5000"]
    assert ids(pop_all(store)) == ["m0-None", "m1-None"]


@SIDES
def test_i1_a_repeat_with_other_marks_in_front(stores: Stores, due_ms: int | None) -> None:
    """I1: any mark of a call makes a repeat of it, also behind one that is new; what is new is not stored by a call that does nothing."""
    store = stores.open()
    rows, marks, new = [message(n, deliver_at_ms=due_ms) for n in range(2)], [mark_of(f"{n}") for n in range(3)], mark_of("new")
    first = store.send_batch(rows, marks=marks)
    for again in ([marks[2]], [marks[1], marks[0]], [new, marks[1]], [new, marks[2], mark_of("newer")]):
        for given in (rows, MessageBatch.of(rows).columns):
            receipts = store.send_batch(given, marks=again)
            assert receipts.repeated
            assert [each.handle for each in receipts] == [each.handle for each in first]
    assert not store.send_batch(rows, marks=[new]).repeated
    assert (store.lag(T, G).ready, store.pending().total) == ((4, 0) if due_ms is None else (0, 4))


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


@SIDES
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
