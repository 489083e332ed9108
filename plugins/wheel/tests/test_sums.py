"""Sums of records: the same by the column and alone, any other byte is seen, and what becomes of a message whose sum is wrong (R6, T12)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from plugins.wheel.tests.breaking import WheelStores
from plugins.wheel.tests.made_records import encode_record
from plugins.wheel.tests.summed import ROOM, summed, with_room
from rmqstore import CancelOutcome, CorruptStoreError, Store
from rmqstore.contract import TimerHandle
from rmqstore.errors import FormatVersionError
from rmqstore.message import PARKED_TOPIC
from rmqstore_conformance.damaging import damage_timers
from rmqstore_conformance.stores import message
from rmqstore_wheel.formats.commit_log import HOST_V6_BYTES, LOCAL_HOST, Record, decode_record
from rmqstore_wheel.formats.log_columns import joined
from rmqstore_wheel.formats.log_reading import scan
from rmqstore_wheel.log import frames
from rmqstore_wheel.records import sums
from rmqstore_wheel.records.parts import parts_of

FRAME = b"RMQS_FRAME\x01" + b"0" * 54 + b"\x02"
HOSTS = st.sampled_from([LOCAL_HOST, LOCAL_HOST, LOCAL_HOST, b"\x01" * HOST_V6_BYTES])
ENTRY = st.sampled_from([b"a\x01b\x02", b"TIMER_DELIVER_MS\x011790000000000\x02", b"RMQS_SEQ\x0112\x02", "ä\x01é\x02".encode()])
RECORD = st.builds(
    Record,
    topic=st.sampled_from([b"t", b"orders", b"t" * 128]),
    body=st.binary(max_size=40),
    properties=st.lists(ENTRY, max_size=3).map(b"".join),
    born_ms=st.integers(0, 2**62),
    store_ms=st.integers(0, 2**62),
    reconsume_times=st.integers(0, 16),
    born_host=HOSTS,
    store_host=HOSTS,
)
RECORDS = st.lists(RECORD, min_size=1, max_size=8) | st.builds(lambda record, count: [record] * count, RECORD, st.integers(1, 5))


def text_of(record: bytes) -> int:
    """Return where the properties start."""
    return parts_of(record)[3] + 2


# ---------------------------------------------------------------- the property


@settings(max_examples=150)
@given(RECORDS)
def test_the_sum_is_what_the_page_says_by_both_ways(made: list[Record]) -> None:
    expected = [encode_record(summed(record)) for record in made]
    empty = [encode_record(with_room(record)) for record in made]
    encoded = joined(empty)
    sums.fill(encoded)
    assert encoded.data.tobytes() == b"".join(expected)
    assert [sums.sealed(record, text_of(record)) for record in empty] == expected
    for record, sealed in zip(map(bytearray, empty), expected, strict=True):
        sums.seal(record, text_of(record))
        assert record == sealed


@settings(max_examples=150)
@given(RECORDS, st.lists(st.booleans(), min_size=8, max_size=8))
def test_a_sum_is_found_before_the_property_of_a_frame(made: list[Record], framed: list[bool]) -> None:
    whole = [summed(record, FRAME * ends) for record, ends in zip(made, framed, strict=False)]
    encoded = [encode_record(record) for record in whole]
    assert all(sums.is_good(record, text_of(record)) for record in encoded)
    assert [record[: sums.text_end(record)] for record in encoded] == [
        record[: len(record) - sums.PROPERTY_BYTES - len(FRAME) * ends] for record, ends in zip(encoded, framed, strict=False)
    ]
    held = joined(encoded)
    texts = held.starts + np.array([text_of(record) for record in encoded])
    assert sums.good_rows(held.data, held.starts, texts, held.starts + held.sizes).all()
    assert not sums.wrong_rows(held.data, held.starts, held.sizes).any()


@given(RECORDS)
def test_records_of_a_broker_have_no_sum_and_none_that_is_wrong(made: list[Record]) -> None:
    held = joined([encode_record(record) for record in made])
    assert not sums.wrong_rows(held.data, held.starts, held.sizes).any()
    assert not any(sums.is_good(encode_record(record), text_of(encode_record(record))) for record in made)


def test_the_room_is_what_the_page_says() -> None:
    assert sums.ROOM == ROOM
    assert sums.PROPERTY_BYTES == 18
    assert len(FRAME) == frames.PROPERTY_BYTES


# ---------------------------------------------------------------- in a store


def records_of(stores: WheelStores, store: Store) -> list[Record]:
    """Return all records of the log."""
    (file,) = (stores.path(store) / "commitlog").iterdir()
    content = file.read_bytes()
    return [decode_record(content, start, log_offset=0) for start in scan(content).starts.tolist()]


@pytest.fixture
def filled(stores: WheelStores) -> tuple[WheelStores, Store, list[TimerHandle]]:
    """Return a store with five timers behind a check point, each with a property of its own."""
    store = stores.open()
    store.send_batch([message(n, keys=("all", f"key{n}"), properties={"mark": f"mark {n}"}) for n in range(5)], delay_ms=1000)
    store = stores.reopen(store)
    return stores, store, [each.handle for each in store.scan().timers]


def test_every_message_has_a_sum_and_no_journal_record(stores: WheelStores) -> None:
    store = stores.open()
    store.send_batch([message(n) for n in range(60)], delay_ms=1000)
    store.cancel(store.send(message("gone"), delay_ms=2000).handle)
    store.send_batch([message(f"now{n}") for n in range(3)])
    stores.clock.advance(1000)
    store.tick()
    store.pop("t", "g", max_messages=5, invisible_ms=1000)
    stores.clock.advance(1000)
    store.tick()
    store.close()
    topics: dict[str, set[bool]] = {}
    for record in records_of(stores, store):
        encoded = encode_record(record)
        topics.setdefault(record.topic.decode(), set()).add(sums.is_good(encoded, text_of(encoded)))
    unread = {topic: found for topic, found in topics.items() if topic.startswith("rmq_sys_r") or "REVIVE" in topic}
    assert all(found == {False} for found in unread.values())
    assert len(unread) == 2
    read = {topic: found for topic, found in topics.items() if topic not in unread}
    assert all(found == {True} for found in read.values())
    assert {"t", "rmq_sys_wheel_timer", "%RETRY%g+t"} <= read.keys()


def test_what_is_asked_of_a_timer_with_another_property(filled: tuple[WheelStores, Store, list[TimerHandle]]) -> None:
    _, store, handles = filled
    damage_timers(store, b"mark 2")
    found = store.engine.timers.get(handles[2])
    assert found is not None
    assert (found.message.topic, found.handle) == (PARKED_TOPIC, handles[2])
    assert "times and properties" in found.message.properties["PARKED_REASON"]
    assert [each.message.topic for each in store.scan().timers] == ["t", "t", PARKED_TOPIC, "t", "t"]
    with pytest.raises(CorruptStoreError, match=r"timer 3: .*times and properties") as caught:
        store.engine.timers.export_state("timers", None, 10)
    assert caught.value.file
    assert caught.value.offset


def test_a_cancel_by_key_says_that_it_cannot_read_a_timer(filled: tuple[WheelStores, Store, list[TimerHandle]]) -> None:
    _, store, handles = filled
    damage_timers(store, b"mark 2")
    for key in ("all", "key2"):
        with pytest.raises(CorruptStoreError, match=r"timer 3: .*times and properties") as caught:
            store.cancel_key("t", key)
        assert caught.value.file
    with pytest.raises(CorruptStoreError, match=r"timer 3: .*times and properties"):
        store.cancel_keys("t", [f"key{number}" for number in range(20)])
    assert store.pending().total == 5
    assert store.cancel(handles[2]) is CancelOutcome.CANCELLED
    assert store.cancel_key("t", "key2") == []
    assert store.cancel_key("t", "all") == [CancelOutcome.CANCELLED] * 4
    assert store.pending().total == 0


def test_a_store_whose_messages_have_no_sums_is_refused(stores: WheelStores) -> None:
    store = stores.open()
    store.close()
    file = stores.path(store) / "FORMAT"
    assert file.read_text() == "rmqstore wheel 2\n"
    file.write_text("rmqstore wheel 1\n")
    with pytest.raises(FormatVersionError, match=r"reads 2$"):
        stores.open()
