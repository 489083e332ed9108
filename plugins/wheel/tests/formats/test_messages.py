"""Messages as records: every field comes back, one by one and by the batch, with the same bytes; also from a timer topic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from plugins.wheel.tests.made_records import MESSAGE, encode_record, record_of
from rmqstore.batch import IN_SCHEMA, columns_of
from rmqstore.message import Message
from rmqstore_wheel.formats import messages, properties
from rmqstore_wheel.formats.commit_log import Record, decode_record
from rmqstore_wheel.formats.log_columns import Columns, encode_columns
from rmqstore_wheel.formats.log_reading import decode_columns, scan

BATCHES = st.lists(MESSAGE, min_size=1, max_size=6) | st.builds(lambda message, count: [message] * count, MESSAGE, st.integers(1, 4))


def encode(batch: list[Message], **options: Any) -> tuple[bytes, Columns]:
    """Return a batch as bytes, and as it is read back."""
    data = encode_columns(messages.encode_batch(columns_of(batch), store_ms=77, **options)).data.tobytes()
    found = scan(data)
    return data, decode_columns(data, found.starts, found.sizes)


def batch_of(read: Columns) -> pa.RecordBatch:
    """Return what was read as a batch of messages."""
    found = messages.decode_batch(read)
    return pa.RecordBatch.from_arrays([found[name] for name in IN_SCHEMA.names], schema=IN_SCHEMA)


@settings(max_examples=300)
@given(BATCHES)
def test_messages_come_back_and_columns_have_the_bytes_of_single_records(batch: list[Message]) -> None:
    data, read = encode(batch)
    assert data == b"".join(encode_record(record_of(message, store_ms=77)) for message in batch)
    assert batch_of(read).equals(columns_of(batch))
    at = 0
    for message in batch:
        record = decode_record(data, at)
        fields = messages.decode_fields(record)
        assert Message(**{name: fields[name] for name in IN_SCHEMA.names}) == message
        at += len(encode_record(record))


@settings(max_examples=200)
@given(BATCHES)
def test_timers_find_home(batch: list[Message]) -> None:
    columns = columns_of(batch)
    queue_ids = np.arange(len(batch), dtype=np.int32)
    data, read = encode(batch, topic=messages.WHEEL_TOPIC, queue_id=0, system=messages.timer_parts(columns, queue_ids))
    found = messages.decode_batch(read)
    assert found["topic"].to_pylist() == [message.topic for message in batch]
    assert found["queue_id"].to_pylist() == queue_ids.tolist()
    at = 0
    for queue_id, message in enumerate(batch):
        record = decode_record(data, at)
        assert (record.topic, record.queue_id) == (b"rmq_sys_wheel_timer", 0)
        system = f"REAL_TOPIC\x01{message.topic}\x02REAL_QID\x01{queue_id}\x02".encode()
        alone = record_of(message, topic=messages.WHEEL_TOPIC, queue_id=0, system=system, store_ms=77)
        assert encode_record(alone) == encode_record(record)
        at += len(encode_record(record))


@settings(max_examples=200)
@given(
    st.lists(
        st.builds(
            Record,
            topic=st.sampled_from([b"t", b"rmq_sys_wheel_timer", b"SCHEDULE_TOPIC_XXXX"]),
            body=st.binary(max_size=5),
            properties=st.dictionaries(
                st.sampled_from([*properties.FIELDS, "POP_CK", "DELAY", "__CRC32#", "RMQS_FRAME", "user"]),
                st.sampled_from(["1", "12345", "a  b ", " ", "x", "9223372036854775808"]),
                max_size=6,
            ).map(properties.encode),
            queue_id=st.integers(-1, 5),
            queue_offset=st.integers(0, 9),
            reconsume_times=st.integers(0, 3),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_records_of_other_producers_read_alike_by_both_ways(records: list[Record]) -> None:
    data = b"".join(map(encode_record, records))
    found = scan(data)
    columns = messages.decode_batch(decode_columns(data, found.starts, found.sizes))
    by_name = {name: column.to_pylist() for name, column in columns.items()}
    for row, record in enumerate(records):
        fields = messages.decode_fields(record)
        read = {name: values[row] for name, values in by_name.items()}
        read["keys"] = tuple(read["keys"] or ())
        read["properties"] = dict(read["properties"] or ())
        assert read == fields


def test_system_properties_stay_out_of_sight() -> None:
    text = b"user\x01u\x02TIMER_OUT_MS\x01999\x02POP_CK\x011 2\x02TIMER_DELAY_SEC\x011\x02RMQS_FRAME\x01x\x02__CRC32#\x010123456789\x02"
    fields = messages.decode_fields(Record(topic=b"t", body=b"b", properties=text))
    assert fields["properties"] == {"user": "u"}


def test_a_timer_without_an_exact_time_is_due_a_ms_after_its_slot() -> None:
    fields = messages.decode_fields(Record(topic=b"t", body=b"b", properties=b"TIMER_OUT_MS\x01999\x02"))
    assert fields["deliver_at_ms"] == 1000


def test_delivered_messages_keep_their_topic_whatever_real_topic_says() -> None:
    record = Record(topic=b"t", body=b"b", queue_id=1, properties=b"REAL_TOPIC\x01other\x02REAL_QID\x017\x02")
    assert (messages.decode_fields(record)["topic"], messages.decode_fields(record)["queue_id"]) == ("t", 1)


def test_an_empty_batch() -> None:
    empty = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in IN_SCHEMA], schema=IN_SCHEMA)
    encoded = encode_columns(messages.encode_batch(empty, store_ms=1, system=messages.timer_parts(empty)))
    encoded.place(100)
    assert len(encoded.data) == len(encoded.starts) == 0
    assert batch_of(decode_columns(b"", encoded.starts, encoded.sizes)).num_rows == 0
