"""Records of messages: what goes in comes out, one by one and by the batch, and lies in the log where it was placed."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from plugins.wheel.tests.made_records import MESSAGE, ROOM, V6, WHEEL, bare, encode_record, record_of, summed
from rmqstore.batch import MessageBatch, columns_of
from rmqstore.engine import records as ordered
from rmqstore.engine.records import Delivery, RecordFormat
from rmqstore.errors import IllegalArgumentError
from rmqstore.message import PARKED_TOPIC, Message, PoppedMessage, check_message, dlq_topic, retry_topic
from rmqstore.schemas import IN_SCHEMA
from rmqstore_wheel.formats import commit_log as log, log_columns, messages, properties
from rmqstore_wheel.formats.log_columns import Encoded, encode_columns, joined
from rmqstore_wheel.formats.log_reading import scan
from rmqstore_wheel.log import frames
from rmqstore_wheel.records import addressing, message_records as records, parts as record_parts

BATCH = st.lists(MESSAGE, min_size=1, max_size=6) | st.builds(lambda message, count: [message] * count, MESSAGE, st.integers(1, 4))
ATTEMPT = st.integers(0, 2**31 - 1)
FIRST_POP = st.just(-1) | st.integers(0, 2**62)


def fields_of(record: bytes) -> dict[str, Any]:
    """Return what the log's own reader finds in a record, whose CRC it checks."""
    return msgspec.structs.asdict(log.decode_record(record))


def by_rows(columns: dict[str, pa.Array]) -> list[dict[str, Any]]:
    rows = []
    for values in zip(*(column.to_pylist() for column in columns.values()), strict=True):
        row = dict(zip(columns, values, strict=True))
        rows.append(row | {"keys": tuple(row["keys"] or ()), "properties": dict(row["properties"] or ())})
    return rows


def popped(record: bytes, record_format: RecordFormat) -> PoppedMessage:
    return record_format.popped_message(record, Delivery("popped", 5, counted=1, first_pop_ms=88), 17, 99, None)


def popped_of(fields: dict[str, Any]) -> PoppedMessage:
    """Return the same, from what a format says of the record field by field."""
    given = {"topic": "popped", "queue_id": 5, "queue_offset": 17, "store_ms": 99, "attempt": fields["attempt"] + 1}
    return PoppedMessage(**fields | given | {"first_pop_ms": 88 if fields["first_pop_ms"] is None else fields["first_pop_ms"]})


@settings(max_examples=200)
@given(BATCH)
def test_messages_come_back_and_columns_have_the_bytes_of_single_records(batch: list[Message]) -> None:
    alone = [records.encode_message(message) for message in batch]
    assert records.encode_columns(columns_of(batch)) == alone
    assert records.encode_batch(MessageBatch(messages=batch)) == records.encode_batch(MessageBatch(columns=columns_of(batch))) == alone
    assert [records.decode_message(record) for record in alone] == batch
    for record, message in zip(alone, batch, strict=True):
        found = fields_of(record)
        assert (found["queue_offset"], found["physical_offset"], found["store_ms"]) == (0, 0, 0)
        assert records.route_of(record) == (message.topic.encode(), -1 if message.queue_id is None else message.queue_id)
        assert records.tag_of(record) == (message.tag or "").encode()
        assert records.message_id_of(record) == (message.message_id or "").encode()
        assert records.tag_of(memoryview(record)) == records.tag_of(record)


@settings(max_examples=200)
@given(BATCH, st.data())
def test_records_tell_the_same_as_those_of_other_engines(batch: list[Message], data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.tuples(ATTEMPT, FIRST_POP), min_size=len(batch), max_size=len(batch)))
    mine = [records.encode_message(message, *count) for message, count in zip(batch, counts, strict=True)]
    theirs = [ordered.encode_message(message, *count) for message, count in zip(batch, counts, strict=True)]
    for record, other in zip(mine, theirs, strict=True):
        assert records.decode_fields(record) == ordered.decode_fields(other)
        assert popped(record, records) == popped(other, ordered) == popped_of(records.decode_fields(record))
        for name in ("route_of", "attempt_of", "first_pop_of", "tag_of", "message_id_of", "decode_message"):
            assert getattr(records, name)(record) == getattr(ordered, name)(other), name
    found, expected = records.decode_columns(mine), ordered.decode_columns(theirs)
    assert {name: column.type for name, column in found.items()} == {name: column.type for name, column in expected.items()}
    assert by_rows(found) == by_rows({name: expected[name] for name in found}) == [records.decode_fields(record) for record in mine]
    names = ["UNIQ_KEY", "TAGS", "KEYS", "__SHARDINGKEY", "TIMER_DELIVER_MS", "1ST_POP_TIME", "user", "é", "missing"]
    names += [name for message in batch for name in message.properties]
    texts = [records.property_texts(record, names) for record in mine]
    assert texts == [ordered.property_texts(record, names) for record in theirs]
    assert records.tag_column(mine).to_pylist() == [row.get("TAGS") for row in texts]


@settings(max_examples=100)
@given(BATCH)
def test_timers_wait_in_a_topic_of_their_own_and_tell_where_they_go(batch: list[Message]) -> None:
    columns = columns_of([msgspec.structs.replace(message, queue_id=at) for at, message in enumerate(batch)])
    system = messages.timer_parts(columns)
    encoded = encode_columns(messages.encode_batch(columns, store_ms=77, topic=WHEEL.decode(), queue_id=0, system=system))
    alone = [
        record_of(
            message,
            topic=WHEEL.decode(),
            queue_id=0,
            system=f"REAL_TOPIC\x01{message.topic}\x02REAL_QID\x01{queue_id}\x02".encode(),
            store_ms=77,
        )
        for queue_id, message in enumerate(batch)
    ]
    assert encoded.data.tobytes() == b"".join(map(encode_record, alone))
    found = [records.decode_fields(encode_record(record)) for record in alone]
    assert [(fields["topic"], fields["queue_id"]) for fields in found] == [(message.topic, at) for at, message in enumerate(batch)]


@pytest.mark.parametrize(
    ("text", "field", "expected"),
    [
        (
            b"user\x01u\x02TIMER_OUT_MS\x01999\x02POP_CK\x011 2\x02TIMER_DELAY_SEC\x011\x02RMQS_FRAME\x01x\x02__CRC32#\x010123456789\x02",
            "properties",
            {"user": "u"},
        ),
        (b"TIMER_OUT_MS\x01999\x02", "deliver_at_ms", 1000),
        (b"REAL_TOPIC\x01other\x02REAL_QID\x017\x02", "topic", "t"),
        (b"REAL_TOPIC\x01other\x02REAL_QID\x017\x02", "queue_id", 1),
    ],
    ids=["what others set is out of sight", "due a ms after its slot", "delivered", "delivered to a queue"],
)
def test_what_properties_of_others_tell(text: bytes, field: str, expected: object) -> None:
    assert records.decode_fields(encode_record(log.Record(topic=b"t", body=b"b", properties=text, queue_id=1)))[field] == expected


@given(MESSAGE, ATTEMPT, FIRST_POP, ATTEMPT, FIRST_POP)
def test_a_delivery_is_counted_in_a_copy(message: Message, attempt: int, first_pop: int, again: int, later: int) -> None:
    record = records.encode_message(message)
    counted = records.with_delivery(record, attempt, first_pop)
    assert counted == records.encode_message(message, attempt, first_pop)
    assert records.with_delivery(counted, again, later) == records.encode_message(message, again, later)
    assert records.with_delivery(memoryview(counted), 0, -1) == record
    lying = bytes(addressing.placed_one(counted, message.topic.encode(), message.queue_id or 0, 7, 9, 11))
    framed = frames.with_room(joined([lying]))[-1].data.tobytes()
    at_home = msgspec.structs.replace(message, queue_id=message.queue_id or 0)
    assert records.with_delivery(framed, again, later) == records.encode_message(at_home, again, later)


def test_no_records() -> None:
    columns = records.decode_columns([])
    assert {name: len(column) for name, column in columns.items()} == dict.fromkeys([*IN_SCHEMA.names, "attempt", "first_pop_ms"], 0)
    assert records.encode_columns(columns_of([])) == []
    assert records.tag_column([]).to_pylist() == []
    assert records.LogRecords([]).routes.topics == []
    assert len(addressing.placed([], b"t", 0, 0, 0).data) == 0
    assert len(addressing.for_delivery(b"", np.zeros(0, np.int64), np.zeros(0, np.int64))) == 0


@given(
    st.lists(
        st.builds(
            log.Record,
            topic=st.sampled_from([b"t", WHEEL, b"SCHEDULE_TOPIC_XXXX", b"%RETRY%" + b"g" * 130]),
            body=st.binary(max_size=5),
            properties=st.builds(
                lambda pairs, end: ("\x02".join(f"{name}\x01{value}" for name, value in pairs) + end).encode(),
                st.lists(
                    st.tuples(
                        st.sampled_from([*properties.FIELDS, "POP_CK", "RMQS_FRAME", "user", ""]),
                        st.sampled_from(["1", "-5", "12345", "a  b ", " ", "x", "", "9223372036854775808"]),
                    ),
                    max_size=6,
                ),
                st.sampled_from(["\x02", ""]),
            ),
            queue_id=st.integers(-1, 5),
            reconsume_times=st.integers(0, 3),
            born_host=st.sampled_from([log.LOCAL_HOST, V6]),
            store_host=st.sampled_from([log.LOCAL_HOST, V6]),
            store_ms=st.just(5),
            queue_offset=st.just(6),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_records_of_other_brokers_read_alike_by_both_ways(made: list[log.Record]) -> None:
    encoded = [encode_record(record) for record in made]
    fields = [records.decode_fields(record) for record in encoded]
    assert by_rows(records.decode_columns(encoded)) == fields
    log_records = records.LogRecords(encoded)
    topics, numbers, queue_ids = log_records.routes
    for row, (record, found) in enumerate(zip(encoded, fields, strict=True)):
        queue_id = -1 if found["queue_id"] is None else found["queue_id"]
        assert records.route_of(record) == (found["topic"].encode(), queue_id)
        assert (topics[numbers[row]], queue_ids[row]) == records.route_of(record)
        assert records.first_pop_of(record) == (-1 if found["first_pop_ms"] is None else found["first_pop_ms"])
        assert records.attempt_of(record) == found["attempt"] == made[row].reconsume_times
        assert records.tag_of(record).decode() == (found["tag"] or "")
        assert records.message_id_of(record).decode() == found["message_id"]
        again = records.with_delivery(record, 9, 77)
        assert log.decode_record(again).store_ms == log.decode_record(again).queue_offset == 0
        assert records.decode_fields(again) == found | {"attempt": 9, "first_pop_ms": 77}
        assert popped(record, records) == popped_of(found)
    names = [*properties.FIELDS, "user", "RMQS_FRAME"]
    for record, tag in zip(encoded, records.tag_column(encoded).to_pylist(), strict=True):
        texts = records.property_texts(record, names)
        assert texts.get("TAGS") == tag
        assert texts.keys().isdisjoint({"RMQS_FRAME", "REAL_TOPIC"})


def test_a_batch_of_records_is_taken_as_it_is() -> None:
    made = [Message("t", b"b", message_id="m", born_ms=1), Message("u", b"c", message_id="n", born_ms=2, queue_id=3)]
    source = records.LogRecords([records.encode_message(message) for message in made])
    batch = MessageBatch(source=source)
    assert records.encode_batch(batch) is source.records
    assert list(batch.messages) == made
    assert batch.columns.equals(columns_of(made))
    assert source.routes.topics == [b"t", b"u"]
    assert source.routes.queue_ids.tolist() == [-1, 3]


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from(["t", "u", "u" * 200]), st.sampled_from([None, 0, 7, 2**31 - 1])), max_size=30),
    st.sampled_from([1, 20]),
)
def test_records_are_grouped_by_where_they_go(routes: list[tuple[str, int | None]], times: int) -> None:
    """Few of a queue one by one, many together."""
    expected: dict[tuple[bytes, int], list[bytes]] = {}
    made = []
    for row, (topic, queue_id) in enumerate(routes * times):
        made.append(records.encode_message(Message(topic, b"b" * (row % 3), message_id=str(row), queue_id=queue_id)))
        expected.setdefault((topic.encode(), -1 if queue_id is None else queue_id), []).append(made[-1])
    source = records.LogRecords(made)
    found = source.by_route()
    assert {(topic, queue_id): list(group) for topic, queue_id, group in found} == expected
    assert [(topic, queue_id) for topic, queue_id, _ in found] == list(expected)
    if times == 20:
        assert all(isinstance(group, records.LogRecords) for _, _, group in found)
    assert source.records == made


# ---------------------------------------------------------------- placing

LONG = retry_topic("g" * 100, "t" * 100).encode()


def lie(encoded: Encoded) -> list[log.Record]:
    """Return the records as the log reads them at byte 1000."""
    encoded.place(1000)
    data = encoded.data.tobytes()
    assert scan(data).starts.tolist() == encoded.starts.tolist()
    assert scan(data).end == len(data)
    return [log.decode_record(data, start, log_offset=1000) for start in encoded.starts.tolist()]


@settings(max_examples=150)
@given(BATCH, st.sampled_from([b"orders", b"a", LONG, b"t" * 127, b"t" * 128]), st.sampled_from([1, 30]), st.booleans(), st.booleans())
def test_records_are_addressed(batch: list[Message], topic: bytes, times: int, same_topic: bool, foreign: bool) -> None:
    if same_topic:
        batch = [msgspec.structs.replace(message, topic=topic.decode()) for message in batch]
    made = [records.with_delivery(records.encode_message(message), 2, 5) for message in batch * times]
    if foreign:
        made = [encode_record(msgspec.structs.replace(log.decode_record(made[0]), born_host=V6)), *made]
    expected = [
        summed(msgspec.structs.replace(bare(log.decode_record(record)), topic=topic, queue_id=3, queue_offset=2**40 + at, store_ms=2**41))
        for at, record in enumerate(made)
    ]
    at = 1000
    for record in expected:
        record.physical_offset = at
        at += len(encode_record(record))
    source = records.LogRecords(made)
    for given_records in (made, source, source):
        assert lie(addressing.placed(given_records, topic, 3, 2**40, 2**41)) == expected
    alone = [addressing.placed_one(made[row], topic, 3, 2**40 + row, 2**41, record.physical_offset) for row, record in enumerate(expected)]
    assert alone == [encode_record(record) for record in expected]


def test_records_of_many_queues_are_addressed_in_place() -> None:
    made = [records.encode_message(Message(topic, b"b", message_id="m")) for topic in ("t", "u", "v")]
    encoded = joined(made)
    addressing.address(encoded, np.array([2, 0, 1]), np.array([7, 8, 9]), 5)
    found = lie(encoded)
    assert [(each.topic, each.queue_id, each.queue_offset, each.store_ms) for each in found] == [
        (b"t", 2, 7, 5),
        (b"u", 0, 8, 5),
        (b"v", 1, 9, 5),
    ]


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
