"""Check points and acks as JSON, their keys, and what old brokers wrote."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore.errors import CorruptStoreError, IllegalArgumentError
from rmqstore_wheel.formats import check_points
from rmqstore_wheel.formats.check_points import Ack, BatchAck, CheckPoint

POINT = CheckPoint(
    topic="%RETRY%g+orders",
    group="g",
    queue_id=3,
    start_offset=100,
    pop_ms=1_700_000_000_000,
    invisible_ms=60_000,
    count=3,
    distances=[0, 1, 4],
    broker="broker-a",
)
POINT_BYTES = (
    b'{"bm":0,"bn":"broker-a","c":"g","d":[0,1,4],"it":60000,"n":3,"pt":1700000000000,"q":3,"reviveTime":1700000060000,"ro":0,"so":100,'
    b'"t":"%RETRY%g+orders"}'
)


def test_check_point_bytes() -> None:
    assert check_points.encode_check_point(POINT) == POINT_BYTES
    assert check_points.decode_check_point(POINT_BYTES) == POINT


def test_a_written_again_check_point_and_its_top_bit() -> None:
    point = CheckPoint("t", "g", 0, 5, 1, 2, 32, acked_bits=1 << 31, rewrites="2")
    data = check_points.encode_check_point(point)
    assert data == b'{"bm":-2147483648,"c":"g","it":2,"n":32,"pt":1,"q":0,"reviveTime":3,"ro":0,"rp":"2","so":5,"t":"t"}'
    assert check_points.decode_check_point(data) == point


def test_what_is_missing_has_defaults() -> None:
    assert check_points.decode_check_point(b'{"t":"t","so":7,"n":2}') == CheckPoint("t", "", 0, 7, 0, 0, 2)
    assert check_points.decode_ack(b"{}") == Ack("", "", 0, 0, 0, 0)
    assert check_points.decode_batch_ack(b"{}") == BatchAck("", "", 0, 0, 0, [])


def test_offsets_with_and_without_gaps() -> None:
    assert POINT.offsets() == [100, 101, 104]
    assert [POINT.index_of(offset) for offset in (99, 100, 101, 102, 104, 105)] == [None, 0, 1, None, 2, None]
    old = CheckPoint("t", "g", 0, 100, 0, 0, 3)
    assert old.offsets() == [100, 101, 102]
    assert [old.index_of(offset) for offset in (99, 100, 102, 103)] == [None, 0, 2, None]
    assert POINT.revive_ms == 1_700_000_060_000


def test_more_messages_than_bits_are_refused() -> None:
    with pytest.raises(IllegalArgumentError, match="up to 32 messages, not 33"):
        check_points.encode_check_point(CheckPoint("t", "g", 0, 0, 0, 0, 33))


ACK = Ack("orders", "g", 3, 100, 1_700_000_000_000, 104, "broker-a")
ACK_BYTES = b'{"ao":104,"bn":"broker-a","c":"g","pt":1700000000000,"q":3,"so":100,"t":"orders"}'
BATCH = BatchAck("orders", "g", 3, 100, 1_700_000_000_000, [100, 104])
BATCH_BYTES = b'{"ao":0,"aol":[100,104],"c":"g","pt":1700000000000,"q":3,"so":100,"t":"orders"}'


def test_ack_bytes() -> None:
    assert check_points.encode_ack(ACK) == ACK_BYTES
    assert check_points.decode_ack(ACK_BYTES) == ACK
    assert check_points.encode_batch_ack(BATCH) == BATCH_BYTES
    assert check_points.decode_batch_ack(BATCH_BYTES) == BATCH


def test_acks_with_names_in_full() -> None:
    long = b'{"ackOffset":104,"brokerName":"broker-a","consumerGroup":"g","popTime":1700000000000,"queueId":3,"startOffset":100,'
    long += b'"topic":"orders"}'
    assert check_points.decode_ack(long) == ACK
    assert check_points.decode_batch_ack(b'{"ackOffsetList":[1,2],"topic":"t"}').ack_offsets == [1, 2]


def test_unique_keys() -> None:
    assert POINT.unique_key() == "%RETRY%g+orders@3@100@g@1700000000000@broker-a@ck"
    assert ACK.unique_key() == "orders@3@104@g@1700000000000@broker-a@ack"
    assert BATCH.unique_key() == "orders@3@[100, 104]@g@1700000000000@bAck"
    assert CheckPoint("t", "g", 0, 1, 2, 3, 1).unique_key() == "t@0@1@g@2@null@ck"


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
I64, I32 = st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1)
TIMES = st.integers(0, 2**61)
BROKERS = st.none() | NAMES
POINTS = st.builds(
    CheckPoint,
    NAMES,
    NAMES,
    I32,
    I64,
    TIMES,
    TIMES,
    st.integers(0, 32),
    st.none() | st.lists(I32, max_size=4),
    st.integers(0, 2**32 - 1),
    I64,
    BROKERS,
    BROKERS,
)


@given(POINTS)
def test_check_point_round_trip(point: CheckPoint) -> None:
    data = check_points.encode_check_point(point)
    assert check_points.decode_check_point(data) == point
    assert list(json.loads(data)) == sorted(json.loads(data))


@given(st.builds(Ack, NAMES, NAMES, I32, I64, I64, I64, BROKERS), st.builds(BatchAck, NAMES, NAMES, I32, I64, I64, st.lists(I64), BROKERS))
def test_ack_round_trip(ack: Ack, batch: BatchAck) -> None:
    assert check_points.decode_ack(check_points.encode_ack(ack)) == ack
    assert check_points.decode_batch_ack(check_points.encode_batch_ack(batch)) == batch


@pytest.mark.parametrize("length", range(len(POINT_BYTES)))
def test_every_truncation_is_refused(length: int) -> None:
    with pytest.raises(CorruptStoreError, match="a check point"):
        check_points.decode_check_point(POINT_BYTES[:length])


@pytest.mark.parametrize("data", [b'{"n":128}', b'{"q":2147483648}', b'{"so":"x"}', b'{"d":5}', b'{"d":["x"]}', b'{"t":{}}'])
def test_wrong_fields_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptStoreError, match="a check point: Expected"):
        check_points.decode_check_point(data)
