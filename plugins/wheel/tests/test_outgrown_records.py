"""Properties that outgrow a record: what the engine added gives way, and nothing of a user."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from plugins.wheel.tests.summed import ROOM
from rmqstore.batch import columns_of
from rmqstore.errors import IllegalArgumentError
from rmqstore.message import PARKED_TOPIC, Message, check_message, dlq_topic
from rmqstore_wheel.formats import log_columns, messages, properties
from rmqstore_wheel.log import frames
from rmqstore_wheel.records import addressing, message_records as records, parts as record_parts


def full(topic: str, message_id: str, **fields: Any) -> Message:
    """Return a message with the longest properties that it may have."""
    empty = Message(topic, b"b", message_id=message_id, born_ms=1, properties={"user": "é"}, **fields)
    room = 32_767
    with pytest.raises(IllegalArgumentError) as refused:
        check_message(msgspec.structs.replace(empty, properties={"user": "é" + "x" * room}))
    taken = int(str(refused.value).split(" take ")[1].split()[0])
    message = msgspec.structs.replace(empty, properties={"user": "é" + "x" * (2 * room - taken)})
    check_message(message)
    return message


def letter(message: Message, group: str, topic: str, attempts: int = 2**31 - 1) -> Message:
    told = {
        "DLQ_REASON": f"delivered {attempts} times without an ack",
        "DLQ_ATTEMPTS": str(attempts),
        "ORIGIN_TOPIC": topic,
        "ORIGIN_MESSAGE_ID": message.message_id or "",
    }
    return msgspec.structs.replace(message, topic=dlq_topic(group), queue_id=0, properties={**message.properties, **told})


@pytest.mark.parametrize("topic", ["t", "t" * 127])
def test_the_longest_timer_has_room_for_what_waiting_and_popping_add(topic: str) -> None:
    message = full(topic, "m" * 255, deliver_at_ms=2**62, queue_id=1023)
    columns = columns_of([message])
    waiting = [*messages.timer_parts(columns), *properties.property_part("TIMER_OUT_MS", pa.array([2**62], pa.int64())), ROOM]
    encoded = log_columns.encode_columns(
        messages.encode_batch(columns, store_ms=1, topic="rmq_sys_wheel_timer", queue_id=0, system=waiting)
    )
    text = record_parts.text_of(encoded.data.tobytes())
    assert 32_767 - len(text) == 89  # TIMER_ENQUEUE_MS and TIMER_ROLL_TIMES, which a broker adds, and 15 digits of REAL_QID
    (framed,) = frames.with_room(encoded)
    due = addressing.for_delivery(framed.data.tobytes(), framed.starts, framed.sizes).records[0]
    popped = records.with_delivery(due, 1, 2**62)
    assert records.decode_message(popped) == message
    assert records.first_pop_of(popped) == 2**62
    assert 32_767 - len(record_parts.text_of(popped)) == 82 + len(topic)
    assert frames.has_room_in(popped)


@pytest.mark.parametrize("topic", ["t", "t" * 127])
def test_the_longest_letter_with_an_id_of_ours_keeps_all(topic: str) -> None:
    dead = letter(full(topic, "0" * 34, deliver_at_ms=2**62), "g" * 127, topic)
    assert records.decode_message(records.encode_message(dead)) == dead


def test_a_letter_that_is_too_long_drops_the_origin_that_its_id_tells() -> None:
    dead = letter(full("t", "m" * 255), "g", "t")
    found = records.decode_message(records.encode_message(dead))
    expected = {name: value for name, value in dead.properties.items() if name != "ORIGIN_MESSAGE_ID"}
    assert found == msgspec.structs.replace(dead, properties=expected)
    assert records.encode_columns(columns_of([dead, dead])) == [records.encode_message(dead)] * 2


def test_then_it_shortens_the_reason_and_no_character_is_cut_in_two() -> None:
    message = full("t", "m" * 255)
    reason = "é" * 200
    dead = msgspec.structs.replace(letter(message, "g", "t"), properties={**message.properties, "DLQ_REASON": reason, "ORIGIN_TOPIC": "t"})
    record = records.encode_message(dead)
    found = records.decode_message(record).properties
    assert {**found, "DLQ_REASON": reason} == dead.properties
    assert found["DLQ_REASON"] == reason[: len(found["DLQ_REASON"])]
    assert 0 < len(found["DLQ_REASON"]) < 200
    assert 32_766 <= len(record_parts.text_of(record)) <= 32_767


def test_a_letter_that_dies_twice_keeps_its_properties_and_its_origin() -> None:
    message = full("t", "m" * 255, deliver_at_ms=2**62)
    again = letter(letter(message, "g", "t"), "h", dlq_topic("g" * 127))
    found = records.decode_message(records.encode_message(again))
    assert found == msgspec.structs.replace(
        again,
        deliver_at_ms=None,
        properties={**message.properties, "DLQ_ATTEMPTS": str(2**31 - 1), "ORIGIN_TOPIC": dlq_topic("g" * 127)},
    )
    popped = records.with_delivery(records.encode_message(again), 1, 2**62)
    assert records.decode_fields(popped)["properties"] == {**message.properties, "ORIGIN_TOPIC": dlq_topic("g" * 127)}
    assert records.first_pop_of(popped) == 2**62


def test_the_reason_of_a_parked_entry_is_shortened() -> None:
    parked = Message(PARKED_TOPIC, b"raw", properties={"PARKED_REASON": "r" * 40_000, "ORIGIN_MESSAGE_ID": "a b"}, message_id="a-b")
    found = records.decode_message(records.encode_message(parked)).properties
    assert found["ORIGIN_MESSAGE_ID"] == "a b"
    assert set(found["PARKED_REASON"]) == {"r"}
    assert len(record_parts.text_of(records.encode_message(parked))) == 32_767


def test_nothing_of_a_user_gives_way() -> None:
    message = Message("t", b"b", properties={"user": "x" * 40_000}, message_id="m", deliver_at_ms=5)
    with pytest.raises(IllegalArgumentError, match="properties have 40"):
        records.encode_message(message)
    with pytest.raises(IllegalArgumentError, match="properties have 40"):
        records.encode_columns(columns_of([message]))
    with pytest.raises(IllegalArgumentError, match="properties have 40"):
        records.encode_message(letter(message, "g", "t"))
