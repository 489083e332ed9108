"""F3, S1, I1: a failed call changes nothing, an absent capability is refused, a repeated mark gives the first answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

import rmqstore
from rmqstore import IllegalArgumentError, IllegalMessageError, Message, Store, StoreFullError, UnsupportedOperationError
from rmqstore.contract import Support
from rmqstore.ordered.shared import Shared
from rmqstore.plugins import get_plugins
from tests.stores import DAY_MS, START_MS, Stores, ids, message, pop_all, read_ids


def state_of(store: Store) -> list[object]:
    """Return everything that a user can see."""
    topics = [(each.name, each.queues, each.max_offsets) for each in store.topics(system=True)]
    lying = [
        [m.message_id for m in store.pops.read(name, queue, 0, 1000).messages] for name, queues, _ in topics for queue in range(queues)
    ]
    groups = [(group, store.offsets(group)) for group in store.groups()]
    lags = [store.lag(name, group) for name, _, _ in topics if not name.startswith("%") for group, _ in groups]
    timers = [(each.handle, each.deliver_at_ms) for each in store.scan().timers]
    return [topics, lying, groups, lags, timers, store.pending([0, START_MS, 2**50]), store.pops.timer_cursor(), store.verify()]


@pytest.mark.clause("F3")
def test_f3_a_call_that_finds_no_room_changes_nothing(stores: Stores) -> None:
    """F3: every mutating call, failing at its write, leaves the store as it was, in memory too; then it works."""
    store = stores.open()
    store.create_topic("t", 2)
    sent = store.send_batch([message(n, deliver_at_ms=START_MS + 1000 * n, keys=("k",) if n > 3 else ()) for n in range(1, 6)])
    store.send_batch([message(f"q{n}", queue_id=n % 2) for n in range(8)])
    popped = store.pop("t", "g", max_messages=4, invisible=1000)
    stores.clock.advance(2000)
    calls: dict[str, Callable[[], Any]] = {
        "put": lambda: store.send(message("new"), delay=5000),
        "append": lambda: store.send(message("new2")),
        "batch": lambda: store.send_batch([message(f"n{n}", "fresh", deliver_at_ms=START_MS + 9000) for n in range(3)]),
        "cancel": lambda: store.cancel(sent[4].handle or ""),
        "cancel key": lambda: store.cancel_key("t", "k"),
        "pop": lambda: store.pop("t", "g", attempt_id="a"),
        "pop of a new group": lambda: store.pop("t", "h"),
        "pop of a new topic": lambda: store.pop("u", "g"),
        "ack": lambda: store.ack(popped[0]),
        "change": lambda: store.change_invisible(popped[1], 5000),
        "release": lambda: store.release(popped[2]),
        "tick": lambda: store.tick(),
        "reset": lambda: store.reset_offset("t", "g", 0),
        "create": lambda: store.create_topic("v", 3),
    }
    for name, call in calls.items():
        before = state_of(store)
        with patch.object(Shared, "write", side_effect=StoreFullError("no room")), pytest.raises(StoreFullError):
            call()
        assert state_of(store) == before, f"{name} left something behind"
        call()
        assert name == "change" or state_of(store) != before, f"{name} did nothing the second time"


@pytest.mark.clause("F3")
@pytest.mark.parametrize(
    "bad",
    [
        Message("t", b""),
        Message("bad topic", b"x"),
        Message("%RETRY%x", b"x"),
        Message("x" * 128, b"x"),
        Message("t", b"x", tag="a b"),
        Message("t", b"x", tag="a|b"),
        Message("t", b"x", keys=("a b",)),
        Message("t", b"x", properties={"": "x"}),
        Message("t", b"x", properties={"a": ""}),
        Message("t", b"x", properties={"a": "\x01"}),
        Message("t", b"x", properties={"a": "x" * 33_000}),
        Message("t", b"x", properties={"KEYS": "x"}),
        Message("t", b"x", deliver_at_ms=-1),
        Message("t", b"x", queue_id=-1),
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
    columns = rmqstore.batch.columns_of([good[0], bad, good[1]])  # type: ignore[attr-defined]
    with pytest.raises(IllegalArgumentError):
        store.send_batch(columns)
    assert state_of(store) == before


@pytest.mark.clause("F3", "S1")
def test_f3_a_message_group_with_a_deliver_time_is_refused(engine_stores: Stores) -> None:
    """P9's guard: however the deliver time is given, alone or for a whole batch."""
    store = engine_stores.open()
    grouped = Message("t", b"x", message_group="g")
    before = state_of(store)
    for call in (
        lambda: store.send(grouped, delay=1000),
        lambda: store.send(grouped, deliver_at=START_MS + 1000),
        lambda: store.send_batch([message(1), grouped], delay=1000),
        lambda: store.send_batch([grouped], deliver_at=START_MS + 1000),
        lambda: store.send_batch(rmqstore.MessageBatch.of([grouped]).columns, delay=1000),
        lambda: store.send_batch([Message("t", b"x", message_group="g", deliver_at_ms=START_MS + 1)]),
    ):
        with pytest.raises((IllegalMessageError, IllegalArgumentError)):
            call()
        assert state_of(store) == before


@pytest.mark.clause("S1")
def test_s1_absent_capabilities_are_refused_without_effect(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: FIFO pop, SQL92 filter, retention, a snapshot, where not declared: UnsupportedOperationError, and nothing has changed."""
    store = stores.open()
    store.send(message(1))
    capabilities = [get_plugins().load_engine(name)[0].capabilities for name in stores.pair]
    before = state_of(store)
    poorer = msgspec.structs.replace(capabilities[1], fifo=Support.NOT_YET, sql92_filter=Support.NOT_YET, retention=Support.NOT_YET)
    info = msgspec.structs.replace(store._opened.infos[stores.pair.pops], capabilities=poorer)
    with monkeypatch.context() as patch:
        patch.setitem(store._opened.infos, stores.pair.pops, info)
        for call in (
            lambda: store.pop("t", "g", order=True),
            lambda: store.pop("fresh", "g2", order=True),
            lambda: store.pop("fresh", "g3", filter="price > 10"),
        ):
            with pytest.raises(UnsupportedOperationError):
                call()
    with monkeypatch.context() as patch:
        plugins = get_plugins()
        offers = [(info if offered.name == info.name else offered, source) for offered, source in plugins._offers]
        patch.setattr(plugins, "_offers", offers)
        for setting in ({"retention_ms": 1000}, {"reclaim": "consumed"}):
            with pytest.raises(UnsupportedOperationError):
                stores.open("fresh", **setting)
        assert not (stores.root / "fresh").exists()
    if any(each.snapshot.value == "impossible" for each in capabilities):
        with pytest.raises(UnsupportedOperationError):
            store.snapshot(stores.root / "copy")
        assert not (stores.root / "copy").exists()
    assert state_of(store) == before
    assert NotImplementedError in UnsupportedOperationError.__mro__


@pytest.mark.clause("S1")
def test_s1_declared_capabilities_are_there(stores: Stores) -> None:
    """S1: what the engines declare is so: precisions, body size, cancel by key, snapshot."""
    timers, pops = (get_plugins().load_engine(name)[0].capabilities for name in stores.pair)
    store = stores.open(precision_ms=timers.min_precision_ms)
    largest = Message(
        "t", b"x" * min(timers.max_body_bytes, pops.max_body_bytes), message_id="large", deliver_at_ms=START_MS + 1, keys=("k" * 100,)
    )
    store.send(largest)
    stores.clock.advance(timers.min_precision_ms)
    store.tick()
    assert read_ids(store) == ["large"]
    if timers.cancel_by_key is Support.FULL:
        store.send(message(1, keys=("key",)), delay=1000)
        assert len(store.cancel_key("t", "key")) == 1
    if Support.FULL is timers.snapshot is pops.snapshot:
        store.send(message(2), delay=1000)
        store.snapshot(stores.root / "copy")
        copy = stores.open("copy")
        assert copy.pending() == store.pending()
        assert pop_all(copy)[0].body == largest.body
        assert copy.verify() == []


@pytest.mark.clause("I1")
def test_i1_a_repeated_mark_stores_nothing(stores: Stores) -> None:
    """I1: for sends now and for later; any of several marks will do; the answer is the first one: handles, ids, ``repeated``."""
    store = stores.open()
    later = [message(n, deliver_at_ms=START_MS + 1000 * n) for n in range(1, 4)]
    first = store.send_batch(later, marks=[b"a", b"b"])
    for marks in ([b"a"], [b"b"], [b"c", b"b"]):
        again = store.send_batch(later, marks=marks)
        assert again.repeated
        assert [each.handle for each in again] == [each.handle for each in first]
    assert store.pending().total == 3
    now = store.send(message("now"), marks=[b"n"])
    assert store.send(message("now"), marks=[b"n"]).repeated
    assert not now.repeated
    assert read_ids(store) == ["mnow"]
    assert store.cancel(first[2].handle or "") is rmqstore.CancelOutcome.CANCELLED
    assert store.send_batch(later, marks=[b"a"]).repeated
    assert store.pending().total == 2


@pytest.mark.clause("I1")
def test_i1_the_first_answer_holds_the_first_ids(stores: Stores) -> None:
    """I1: ids that the store made with the first call are the answer of the second."""
    store = stores.open()
    for delay in (None, 5000):
        first = store.send(Message("t", b"x"), delay=delay, marks=[b"m%d" % (delay or 0)])
        again = store.send(Message("t", b"x"), delay=delay, marks=[b"m%d" % (delay or 0)])
        assert again.repeated
        assert again.message_id == first.message_id


@pytest.mark.clause("I1")
def test_i1_a_resend_after_its_time_is_still_a_repeat(stores: Stores) -> None:
    """I1: a writer resends the same rows when their time has passed: nothing is stored again, and the handle is the first."""
    store = stores.open()
    row = message(1, deliver_at_ms=START_MS + 1000)
    first = store.send(row, marks=[b"token"])
    for passed in (1000, 5000):
        stores.clock.set(START_MS + passed)
        store.tick()
        again = store.send(row, marks=[b"token"])
        assert again.repeated
        assert again.handle == first.handle
        assert read_ids(store) == ["m1"]


@pytest.mark.clause("I1", "R1")
def test_i1_marks_survive_a_reopen(durable_stores: Stores) -> None:
    """I1: also after a close; they are forgotten ``mark_memory`` later."""
    store = durable_stores.open()
    first = store.send(message(1), delay=1000, marks=[b"a"])
    store.send(message(2), marks=[b"b"])
    store = durable_stores.reopen(store)
    assert store.send(message(1), delay=1000, marks=[b"a"]).handle == first.handle
    assert store.send(message(2), marks=[b"b"]).repeated
    durable_stores.clock.advance(7 * DAY_MS - 1)
    store.tick()
    assert store.send(message(1), delay=1000, marks=[b"a"]).repeated
    durable_stores.clock.advance(2)
    store.tick()
    assert not store.send(message(1), delay=1000, marks=[b"a"]).repeated
    assert not store.send(message(2), marks=[b"b"]).repeated


@pytest.mark.clause("I1", "F3")
def test_i1_a_refused_call_stores_no_mark(engine_stores: Stores) -> None:
    """I1: a mark belongs to the same atomic step as the rows."""
    store = engine_stores.open(max_delay_ms=10_000)
    with pytest.raises(rmqstore.DelayTooLongError):
        store.send(message(1), delay=10_001, marks=[b"a"])
    assert not store.send(message(1), delay=10_000, marks=[b"a"]).repeated
    with patch.object(Shared, "write", side_effect=StoreFullError("no room")), pytest.raises(StoreFullError):
        store.send(message(2), marks=[b"b"])
    assert not store.send(message(2), marks=[b"b"]).repeated
    for wrong in ([b""], [b"x" * 256], ["x"], b"x", "x", [None]):
        with pytest.raises(IllegalArgumentError):
            store.send(message(3), marks=wrong)  # type: ignore[arg-type]
    assert ids(pop_all(store)) == ["m2"]


@pytest.mark.clause("S1")
def test_names_that_are_legal_are_seen(engine_stores: Stores) -> None:
    """§5.8: ``%`` is a legal letter; such a topic is a user's topic unless its prefix is reserved."""
    store = engine_stores.open(default_queues=2)
    store.send(message(1, "%mine"))
    assert [topic.name for topic in store.topics()] == ["%mine"]
    assert store.topics()[0].queues == 2
