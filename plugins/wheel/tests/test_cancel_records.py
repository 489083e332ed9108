"""Cancels as RocketMQ writes them: a message of the wheel's topic, and a unit behind the timer's in the chain of its slot."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from plugins.wheel.tests.breaking import WheelStores, index_of, ledger_of
from rmqstore import CancelOutcome, Message, Store
from rmqstore.batch import MessageBatch
from rmqstore_conformance.stores import DAY_MS, START_MS, message
from rmqstore_wheel.formats import log_reading, timer_log
from rmqstore_wheel.formats.commit_log import decode_record
from rmqstore_wheel.timers.records import encode_cancel, encode_cancels, encode_timers


@pytest.mark.parametrize("precision_ms", [1000, 100])
def test_one_cancel_is_the_same_as_many(precision_ms: int) -> None:
    rows = [
        Message("t", b"x", message_id="id"),
        Message("über", b"y", tag="a", keys=("k", "l"), message_id="ß", deliver_at_ms=START_MS + 50),
    ]
    found = encode_timers(MessageBatch(messages=rows), START_MS, precision_ms)
    read = log_reading.decode_columns(found.records.data.data, found.records.starts, found.records.sizes)
    (texts,) = read.properties
    assert isinstance(texts, pa.Array)
    for columns, row in ((texts, 0), (texts, 1), (pa.array([b""], pa.binary()), 0)):
        tick = int(found.ticks[row])
        seqs, ticks = np.full(len(columns), 9), np.full(len(columns), tick)
        many = encode_cancels(columns, seqs, ticks, START_MS, precision_ms)
        start, size = int(many.starts[row]), int(many.sizes[row])
        assert encode_cancel(columns[row].as_py(), 9, tick, START_MS, precision_ms) == many.data[start : start + size].tobytes()


def chain(store: Store, slot: int) -> list[tuple[str, bool]]:
    """Return (message id, whether it is a cancel) of the units of a slot, the oldest first, as a broker reads them."""
    index = index_of(store)
    ledger = ledger_of(store)
    row = index.wheel.slots[slot % index.wheel.ring.length]
    position, found = int(row["last"]), []
    while position != timer_log.NO_POSITION:
        unit = index.wheel.units.read(int(index.wheel.units.numbers(np.array([position]))[0]), 1)[0]
        record = decode_record(ledger.log.record(int(unit["log_offset"]), int(unit["message_bytes"])))
        is_cancel = bool(unit["flags"] & timer_log.DELETE)
        assert is_cancel == (b"TIMER_DEL_UNIQKEY" in record.properties)
        text = record.properties.split(b"TIMER_DEL_UNIQKEY\x01t+" if is_cancel else b"UNIQ_KEY\x01")[1]
        found.append((text.split(b"\x02")[0].decode(), is_cancel))
        position = int(unit["previous"])
    return found[::-1]


def test_a_broker_finds_the_cancel_of_a_timer_in_its_slot(stores: WheelStores) -> None:
    store = stores.open()
    receipts = [store.send(message(n), deliver_at_ms=START_MS + 5000) for n in range(6)]
    far = store.send(message("far"), deliver_at_ms=START_MS + 9 * DAY_MS)
    slot = index_of(store).wheel.slot_of(START_MS + 5000)
    timers = [(f"m{n}", False) for n in range(6)]
    assert store.cancel(receipts[2].handle) is CancelOutcome.CANCELLED
    assert store.cancel([receipts[4].handle, receipts[1].handle]) == [CancelOutcome.CANCELLED] * 2
    assert store.cancel(receipts[2].handle) is CancelOutcome.CANCELLED
    # What waits in another slot has no unit of its own for its cancel.
    assert store.cancel(far.handle) is CancelOutcome.CANCELLED
    expected = [*timers, ("m2", True), ("m4", True), ("m1", True)]
    assert chain(store, slot) == expected
    assert index_of(store).wheel.count_in(slot) == 3
    assert store.pending().total == 3
    assert store.next_wake_ms() == 5000
    store = stores.killed(store)
    assert sorted(chain(store, slot)) == sorted(expected)
    assert index_of(store).wheel.count_in(slot) == 3
    assert store.verify() == []
    stores.clock.advance(5000)
    assert store.tick().handed_over == 3
    assert store.next_wake_ms() is None
    assert store.verify() == []


def test_a_slot_that_cancels_emptied_begins_anew(stores: WheelStores) -> None:
    store = stores.open()
    handle = store.send(message(1), deliver_at_ms=START_MS + 5000).handle
    assert store.cancel(handle) is CancelOutcome.CANCELLED
    store.send(message(2), deliver_at_ms=START_MS + 5000)
    slot = index_of(store).wheel.slot_of(START_MS + 5000)
    assert chain(store, slot) == [("m2", False)]
    stores.clock.advance(5000)
    assert store.tick().handed_over == 1
    assert store.verify() == []
