"""Records of messages: what goes in comes out, one by one and by the batch; and what becomes of them on their way through the queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plugins.wheel.tests.summed import ROOM, summed, with_room
from rmqstore.batch import IN_SCHEMA, MessageBatch, columns_of
from rmqstore.errors import IllegalArgumentError
from rmqstore.message import PARKED_TOPIC, Message, PoppedMessage, check_message, dlq_topic, retry_topic
from rmqstore.ordered import records as ordered
from rmqstore.ordered.recordformat import Delivery, RecordFormat
from rmqstore_wheel import addressing, record_parts, records
from rmqstore_wheel.formats import commit_log as log
from rmqstore_wheel.formats import log_columns, messages, properties
from rmqstore_wheel.formats.log_columns import Encoded, joined
from rmqstore_wheel.formats.log_reading import scan

V6 = bytes.fromhex("20010db800000000000000000000000100002a9f")
WHEEL = b"rmq_sys_wheel_timer"
FRAME = b"RMQS_FRAME\x01" + b"f" * 54 + b"\x02"

WORD = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Z"], exclude_characters="|"), min_size=1, max_size=12)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=12)
NAME = TEXT.filter(lambda name: not properties.is_hidden(name))
TOPIC = st.sampled_from(["a", "orders", "t" * 127]) | st.from_regex(r"[A-Za-z0-9_%|-]{1,127}", fullmatch=True)
MESSAGE = st.builds(
    Message,
    topic=TOPIC,
    body=st.binary(min_size=1, max_size=80),
    tag=st.none() | WORD,
    keys=st.lists(WORD, max_size=3).map(tuple),
    properties=st.dictionaries(st.sampled_from(["user", "é"]) | NAME, TEXT, max_size=3),
    message_group=st.none() | WORD,
    deliver_at_ms=st.none() | st.integers(0, 2**62),
    message_id=WORD,
    born_ms=st.integers(0, 2**62),
    queue_id=st.none() | st.integers(0, 1023),
)
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


# ---------------------------------------------------------------- messages


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
    columns = records.property_columns(mine, names)
    assert columns == ordered.property_columns(theirs, names)
    texts = [records.property_texts(record, names) for record in mine]
    assert texts == [ordered.property_texts(record, names) for record in theirs]
    for name in names:
        assert columns[name].to_pylist() == [row.get(name) for row in texts]


@given(MESSAGE, ATTEMPT, FIRST_POP, ATTEMPT, FIRST_POP)
def test_a_delivery_is_counted_in_a_copy(message: Message, attempt: int, first_pop: int, again: int, later: int) -> None:
    record = records.encode_message(message)
    counted = records.with_delivery(record, attempt, first_pop)
    assert counted == records.encode_message(message, attempt, first_pop)
    assert records.with_delivery(counted, again, later) == records.encode_message(message, again, later)
    assert records.with_delivery(memoryview(counted), 0, -1) == record
    lying = bytes(addressing.placed_one(counted, message.topic.encode(), message.queue_id or 0, 7, 9, 11))
    framed = joined([lying]).with_last_property(FRAME).data.tobytes()
    at_home = msgspec.structs.replace(message, queue_id=message.queue_id or 0)
    assert records.with_delivery(framed, again, later) == records.encode_message(at_home, again, later)


@given(MESSAGE)
def test_what_a_message_does_not_have_is_none(message: Message) -> None:
    bare = Message(message.topic, message.body)
    fields = records.decode_fields(records.encode_message(bare))
    absent = dict.fromkeys(("tag", "message_group", "deliver_at_ms", "queue_id", "first_pop_ms"))
    assert fields == absent | {
        "topic": message.topic,
        "body": message.body,
        "keys": (),
        "properties": {},
        "message_id": "",
        "born_ms": 0,
        "attempt": 0,
    }
    assert by_rows(records.decode_columns([records.encode_message(bare)] * 2)) == [fields, fields]


def test_no_records() -> None:
    columns = records.decode_columns([])
    assert {name: len(column) for name, column in columns.items()} == dict.fromkeys([*IN_SCHEMA.names, "attempt", "first_pop_ms"], 0)
    assert records.encode_columns(columns_of([])) == []
    assert records.property_columns([], ["a"])["a"].to_pylist() == []
    assert records.LogRecords.of([]).routes.topics == []
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
    encoded = [log.encode_record(record) for record in made]
    fields = [records.decode_fields(record) for record in encoded]
    assert by_rows(records.decode_columns(encoded)) == fields
    log_records = records.LogRecords.of(encoded)
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
    columns = records.property_columns(encoded, names)
    for row, record in enumerate(encoded):
        texts = records.property_texts(record, names)
        assert {name: column[row].as_py() for name, column in columns.items()} == {name: texts.get(name) for name in names}
    assert columns["RMQS_FRAME"].null_count == columns["REAL_TOPIC"].null_count == len(encoded)


def test_a_batch_of_records_is_taken_as_it_is() -> None:
    made = [Message("t", b"b", message_id="m", born_ms=1), Message("u", b"c", message_id="n", born_ms=2, queue_id=3)]
    source = records.LogRecords.of([records.encode_message(message) for message in made])
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
    source = records.LogRecords.of(made)
    found = source.by_route()
    assert {(topic, queue_id): list(group) for topic, queue_id, group in found} == expected
    assert [(topic, queue_id) for topic, queue_id, _ in found] == list(expected)
    if times == 20:
        assert all(isinstance(group, records.LogRecords) for _, _, group in found)
    assert source.records == made


# ---------------------------------------------------------------- properties that outgrow a record


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
    waiting = [*messages.timer_parts(columns, 1023), *properties.property_part("TIMER_OUT_MS", pa.array([2**62], pa.int64())), ROOM]
    encoded = log_columns.encode_columns(
        messages.encode_batch(columns, store_ms=1, topic="rmq_sys_wheel_timer", queue_id=0, system=waiting)
    )
    text = record_parts.text_of(encoded.data.tobytes())
    assert 32_767 - len(text) == 89  # TIMER_ENQUEUE_MS and TIMER_ROLL_TIMES, which a broker adds, and 15 digits of REAL_QID
    framed = encoded.with_last_property(FRAME)
    due = addressing.for_delivery(framed.data.tobytes(), framed.starts, framed.sizes).records[0]
    popped = records.with_delivery(due, 1, 2**62)
    assert records.decode_message(popped) == message
    assert records.first_pop_of(popped) == 2**62
    assert 32_767 - len(record_parts.text_of(popped)) == 82 + len(topic)
    joined([popped]).with_last_property(FRAME)


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


# ---------------------------------------------------------------- placing

LONG = retry_topic("g" * 100, "t" * 100).encode()


def bare(record: log.Record) -> log.Record:
    """Return a record that is not placed yet without the room for its sum."""
    assert record.properties.endswith(ROOM)
    return msgspec.structs.replace(record, properties=record.properties.removesuffix(ROOM))


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
        made = [log.encode_record(msgspec.structs.replace(log.decode_record(made[0]), born_host=V6)), *made]
    expected = [
        summed(msgspec.structs.replace(bare(log.decode_record(record)), topic=topic, queue_id=3, queue_offset=2**40 + at, store_ms=2**41))
        for at, record in enumerate(made)
    ]
    at = 1000
    for record in expected:
        record.physical_offset = at
        at += len(log.encode_record(record))
    for encoded in (
        addressing.placed(made, topic, 3, 2**40, 2**41),
        addressing.placed(records.LogRecords.of(made), topic, 3, 2**40, 2**41),
    ):
        assert lie(encoded) == expected
    alone = [addressing.placed_one(made[row], topic, 3, 2**40 + row, 2**41, record.physical_offset) for row, record in enumerate(expected)]
    assert alone == [log.encode_record(record) for record in expected]


def test_placing_leaves_the_records_as_they_are() -> None:
    source = records.LogRecords.of([records.encode_message(Message("t", b"b", message_id="m"))] * 30)
    before = source.encoded.data.tobytes()
    addressing.placed(source, b"t", 1, 2, 3)
    addressing.placed(source, b"other", 1, 2, 3)
    assert source.encoded.data.tobytes() == before


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


# ---------------------------------------------------------------- due timers


def waiting(message: Message, out_ms: int, noted: bytes = b"", behind: bytes = b"", **fields: Any) -> bytes:
    """Return a timer as the engine writes it into the wheel topic; ``noted`` stands before its sum, and ``behind`` after it."""
    queue_id = -1 if message.queue_id is None else message.queue_id
    system = f"REAL_TOPIC\x01{message.topic}\x02REAL_QID\x01{queue_id}\x02TIMER_OUT_MS\x01{out_ms}\x02".encode()
    record = messages.encode_message(
        message, topic=WHEEL.decode(), queue_id=0, system=system + noted, store_ms=8, queue_offset=6, physical_offset=77, **fields
    )
    return log.encode_record(summed(record, behind))


def expected_of(message: Message, out_ms: int) -> bytes:
    """Return the record of a timer that came home, made from the message."""
    record = messages.encode_message(message, system=f"TIMER_OUT_MS\x01{out_ms}\x02".encode())
    return log.encode_record(with_room(record))


def deliver(made: Sequence[bytes], rows: Sequence[int] | None = None, gap: bytes = b"") -> records.LogRecords:
    """Return the timers of some rows of a buffer."""
    sizes = np.array([len(record) for record in made], np.int64)
    starts = np.cumsum(sizes + len(gap)) - sizes
    picked = np.arange(len(made)) if rows is None else np.array(rows, np.int64)
    return addressing.for_delivery(b"".join(gap + record for record in made), starts[picked], sizes[picked])


TIMER = st.builds(lambda message, due: msgspec.structs.replace(message, deliver_at_ms=due), MESSAGE, st.integers(0, 2**62))
NOTED = st.sampled_from([b"", b"RMQS_TICK\x011000\x02RMQS_EPOCH\x013\x02"])
OUT = st.sampled_from([0, 7, 1_790_000_000_000, 2**62]) | st.integers(1_000_000_000_000, 9_999_999_999_999)


@settings(max_examples=150)
@given(
    st.lists(st.tuples(TIMER, OUT, NOTED, st.booleans()), min_size=1, max_size=6),
    st.sampled_from([1, 10, 30]),
    st.sampled_from([b"", b"gap"]),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_due_timers_come_home(timers: list[tuple[Message, int, bytes, bool]], times: int, gap: bytes, random: Any, twice: bool) -> None:
    timers = timers * times
    made = [waiting(message, out_ms, noted, FRAME * framed) for message, out_ms, noted, framed in timers]
    expected = [expected_of(message, out_ms) for message, out_ms, _, _ in timers]
    assert deliver(made, gap=gap).records == expected
    rows = list(range(len(timers))) + [0] * twice
    random.shuffle(rows)
    found = deliver(made, rows, gap)
    assert found.records == [expected[row] for row in rows]
    assert list(found.messages()) == [timers[row][0] for row in rows]
    topics, numbers, queue_ids = found.routes
    assert [(topics[number], queue_id) for number, queue_id in zip(numbers, queue_ids.tolist(), strict=True)] == [
        records.route_of(expected[row]) for row in rows
    ]


def test_regular_timers_are_not_cut_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    alone: list[int] = []
    one_by_one = addressing._one_by_one

    def count(buffer: Any, starts: Any, sizes: Any) -> Any:
        alone.append(len(starts))
        return one_by_one(buffer, starts, sizes)

    monkeypatch.setattr(addressing, "_one_by_one", count)
    timers = [(Message(f"topic-{'x' * (row % 20)}{row % 100}", b"b" * row, message_id="m"), 10 ** (row % 15)) for row in range(1, 3000)]
    made = [waiting(message, out_ms, behind=FRAME * (row % 7 == 0)) for row, (message, out_ms) in enumerate(timers)]
    assert deliver(made).records == [expected_of(*timer) for timer in timers]
    assert alone == []
    made[5] = waiting(*timers[5], b"TIMER_ROLL_TIMES\x011\x02")
    assert deliver(made).records == [expected_of(*timer) for timer in timers]
    assert alone == [1]


ENTRY = st.tuples(
    st.sampled_from(["REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS", "TIMER_ROLL_TIMES", "TIMER_ENQUEUE_MS", "RMQS_FRAME", "RMQS_X", "user", ""]),
    st.sampled_from(["1", "-1", "-2", "99999999999", "orders", "", "a\x01b", "f" * 50, "t" * 128, "RMQS_", "\x02"]),
).map(lambda pair: f"{pair[0]}\x01{pair[1]}\x02")


@settings(max_examples=300)
@given(
    st.lists(
        st.builds(
            log.Record,
            topic=st.sampled_from([WHEEL, WHEEL, WHEEL, b"t", b"SCHEDULE_TOPIC_XXXX", b"t" * 200]),
            body=st.sampled_from([b"", b"body", b"\x02REAL_TOPIC\x01t\x02"]),
            properties=st.tuples(
                st.lists(ENTRY, max_size=4).map("".join),
                st.sampled_from(["", "UNIQ_KEY\x01m\x02"]),
                st.sampled_from(["", "REAL_TOPIC\x01orders\x02REAL_QID\x013\x02TIMER_OUT_MS\x01123\x02"]),
                st.lists(ENTRY, max_size=2).map("".join),
                st.sampled_from(["", "", "user\x01open", "RMQS_FRAME\x01x", "\x02"]),
            ).map(lambda parts: "".join(parts).encode()),
            queue_id=st.integers(-1, 3),
            queue_offset=st.just(5),
            physical_offset=st.just(6),
            store_ms=st.just(7),
            prepared_offset=st.just(8),
            flag=st.just(9),
            born_host=st.sampled_from([log.LOCAL_HOST, V6]),
        ),
        min_size=1,
        max_size=6,
    )
)
@example([log.Record(topic=WHEEL, body=b"b", properties=b"REAL_TOPIC\x01orders\x02REAL_QID\x013\x02TIMER_OUT_MS\x01123\x02")])
@example([log.Record(topic=WHEEL, body=b"b", properties=b"u\x01v\x02REAL_TOPIC\x01\x02REAL_QID\x013\x02TIMER_OUT_MS\x01123\x02")])
@example(
    [log.Record(topic=WHEEL, body=b"b", properties=b"u\x01v\x02REAL_TOPIC\x01t\x02REAL_QID\x013\x02TIMER_OUT_MS\x01" + b"1\x02A\x01b\x02")]
)
@example(
    [
        log.Record(
            topic=WHEEL, body=b"b", properties=b"u\x01v\x02REAL_TOPIC\x01" + b"t" * 200 + b"\x02REAL_QID\x013\x02TIMER_OUT_MS\x011\x02"
        )
    ]
)
@example(
    [  # as long as one another, but the second one ends with two properties
        log.Record(topic=WHEEL, body=b"b", properties=b"u\x01v\x02REAL_TOPIC\x01abcde\x02REAL_QID\x013\x02TIMER_OUT_MS\x011\x02"),
        log.Record(topic=WHEEL, body=b"b", properties=b"u\x01v\x02REAL_TOPIC\x01a\x02b\x01c\x02REAL_QID\x013\x02TIMER_OUT_MS\x011\x02"),
    ]
)
def test_timers_of_other_brokers_come_home_alike_by_both_ways(made: list[log.Record]) -> None:
    # None of ours is without the end of its last property, which a sum stands behind.
    ours = [msgspec.structs.replace(record, properties=record.properties.removesuffix(b"user\x01open")) for record in made]
    ours = [record for record in ours if record.properties[-1:] in (b"", b"\x02")]
    encoded = [log.encode_record(record) for record in (*made, *map(summed, ours))]
    alone = [records.as_delivered(record) for record in encoded]
    assert deliver(encoded * 30).records == alone * 30
    for record, before, after in zip(made + ours, encoded, alone, strict=True):
        found = log.decode_record(after)
        topic, queue_id = records.route_of(before)
        entries = [
            entry
            for entry in record.properties.decode().split("\x02")
            if not entry.startswith(("REAL_TOPIC\x01", "REAL_QID\x01", "TIMER_ROLL_TIMES\x01", "RMQS_"))
        ]
        assert [entry for entry in bare(found).properties.decode().split("\x02") if entry] == [entry for entry in entries if entry]
        assert found == msgspec.structs.replace(
            record,
            topic=topic,
            queue_id=queue_id,
            properties=found.properties,
            queue_offset=0,
            physical_offset=0,
            store_ms=0,
            sys_flag=found.sys_flag,
        )


def test_a_timer_by_hand() -> None:
    text = b"user\x01RMQS_\x02UNIQ_KEY\x01m\x02TIMER_ROLL_TIMES\x012\x02TIMER_ENQUEUE_MS\x015\x02REAL_TOPIC\x01orders\x02REAL_QID\x01-1\x02"
    record = log.Record(topic=WHEEL, body=b"b", properties=text + b"TIMER_OUT_MS\x01999\x02", queue_id=0, store_ms=3)
    (found,) = deliver([log.encode_record(summed(record, FRAME))]).records
    assert log.decode_record(found) == log.Record(
        topic=b"orders",
        body=b"b",
        properties=b"user\x01RMQS_\x02UNIQ_KEY\x01m\x02TIMER_ENQUEUE_MS\x015\x02TIMER_OUT_MS\x01999\x02" + ROOM,
        queue_id=-1,
    )


def test_the_crc_is_carried_over_and_not_made_anew() -> None:
    message = Message("orders", b"body" * 9, message_id="m", deliver_at_ms=5)
    record = bytearray(waiting(message, 4))
    record[8:12] = b"\x12\x34\x56\x78"
    for found in (*deliver([bytes(record)]).records, *deliver([bytes(record)] * 30).records):
        assert found[8:12] == b"\x12\x34\x56\x78"
