"""I2: values that a step keeps under names, and the schedules that are made of them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rmqstore import IllegalArgumentError, Message, MessageBatch
from rmqstore.contract import PopTxn, WriteStatus
from rmqstore_conformance.data import IDS, topics
from rmqstore_conformance.stores import START_MS, Stores, message

(T,) = topics(__name__, 1)

HOUR_MS = 3_600_000

LARGEST_NOTE_BYTES = 64 * 1024


def test_i2_notes_are_kept_replaced_and_let_go_of(engine_stores: Stores) -> None:
    """I2: a note comes back as it was given; a later step replaces it or lets go of it, and no other note changes."""
    store = engine_stores.open()
    pops, now_ms = store.engine.pops, engine_stores.clock.now_ms()
    names = list(dict.fromkeys([member for family in IDS for member in (family.member(0), family.member(1))] + ["n" * 255]))
    expected = {name: b"%d" % at for at, name in enumerate(names)} | {
        "empty": b"",
        "large": bytes(range(256)) * (LARGEST_NOTE_BYTES // 256),
    }
    assert pops.notes() == {}
    pops.apply(PopTxn(notes=expected), now_ms)
    assert pops.notes() == expected
    changes = {name: (None if at % 2 else b"again") for at, name in enumerate(names[: len(names) // 2])}
    _, ticket = pops.apply(PopTxn(notes={**changes, "never": None}), now_ms)
    pops.sync(ticket)
    expected = {name: value for name, value in {**expected, **changes}.items() if value is not None}
    assert pops.notes() == expected
    assert store.verify() == []
    if engine_stores.pair.durable:
        store = engine_stores.reopen(store)
        assert store.engine.pops.notes() == expected
        assert store.verify() == []


def test_i2_a_step_that_does_nothing_keeps_no_note(engine_stores: Stores) -> None:
    """I2: a repeat, a refusal, and a batch for another number of queues leave the notes as they are."""
    store = engine_stores.open()
    pops, now_ms = store.engine.pops, engine_stores.clock.now_ms()
    pops.apply(PopTxn(notes={"a": b"1"}, marks=[b"m"]), now_ms)
    assert pops.apply(PopTxn(notes={"a": b"2", "b": b"2"}, marks=[b"m"]), now_ms)[0].status is WriteStatus.REPEATED
    store.send(message(0, T, message_group="g"))
    grouped = MessageBatch(messages=[Message(T, b"x", queue_id=0, message_group="g")])
    assert pops.apply(PopTxn(appends=grouped, group_queues={T: 77}, notes={"a": None}), now_ms)[0].status is WriteStatus.MOVED
    for refused in ({"": b""}, {"n" * 256: b""}, {"a": bytes(LARGEST_NOTE_BYTES + 1)}):
        with pytest.raises(IllegalArgumentError, match="note"):
            pops.apply(PopTxn(appends=MessageBatch(messages=[message(1, T)]), notes={"c": b"3", **refused}), now_ms)
    assert pops.notes() == {"a": b"1"}
    assert store.lag(T, "g").ready == 1


@pytest.mark.clause("K1", "T1")
def test_i2_each_time_of_a_schedule_has_one_message(stores: Stores) -> None:
    """I2: one message a time, none before it, whoever has the store open then; those of the time when nobody had it come late."""
    store = stores.open()
    store.topics.create(T)
    store.schedules.put("hourly", timedelta(hours=1), Message(T, b"x", queue_id=0))
    times = [START_MS + turn * HOUR_MS for turn in range(1, 100)]

    def sent() -> list[int]:
        return [int(each.properties["SCHEDULED_MS"]) for each in store.read(T, 0, 0, 1000).messages]

    for turn, time_ms in enumerate(times[:6]):
        stores.tick_at(store, time_ms - 1)
        assert sent() == times[:turn], "nothing is early"
        if turn % 2 and stores.pair.durable:
            store = stores.reopen(store)
        stores.tick_at(store, time_ms)
        stores.tick_at(store, time_ms)
        assert sent() == times[: turn + 1]
    stores.tick_at(store, START_MS)
    if stores.pair.durable:
        store = stores.reopen(store)
    stores.tick_at(store, times[80])
    assert sent() == times[:81], "each that passed has its own"
    assert store.schedules.list()[0].next_ms == times[81]
    assert store.schedules.delete("hourly")
    stores.tick_at(store, times[-1])
    assert sent() == times[:81]


@pytest.mark.clause("K1")
def test_i2_times_that_passed_have_one_message_where_that_was_asked_for(stores: Stores) -> None:
    """I2: without ``catch_up`` times that passed have one message together, of the first of them; those that follow stay as they were."""
    store = stores.open()
    store.topics.create(T)
    store.schedules.put("hourly", timedelta(hours=1), Message(T, b"x", queue_id=0), catch_up=False)
    sent = []
    for late_ms, first in ((2 * HOUR_MS + 1234, 1), (5 * HOUR_MS - 1, 3), (5 * HOUR_MS, 5), (9 * HOUR_MS + 59_000, 6)):
        assert stores.tick_at(store, START_MS + late_ms).scheduled == 1
        sent.append(START_MS + first * HOUR_MS)
        assert [int(each.properties["SCHEDULED_MS"]) for each in store.read(T, 0, 0, 1000).messages] == sent
        assert store.schedules.list()[0].next_ms == START_MS + (late_ms // HOUR_MS + 1) * HOUR_MS
        if stores.pair.durable:
            store = stores.reopen(store)
