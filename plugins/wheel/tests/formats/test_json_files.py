"""Check points, acks and the files of ``config/``: their bytes, what is read of old brokers, round trips, and what is refused.

They are JSON as fastjson has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from rmqstore.errors import CorruptStoreError, IllegalArgumentError
from rmqstore_wheel.formats import check_points, config_files
from rmqstore_wheel.formats.check_points import Ack, BatchAck, CheckPoint
from rmqstore_wheel.formats.config_files import ConsumerOffsets, DataVersion, OrderInfo, TimerCheck, TimerMetrics, TimingCount
from rmqstore_wheel.formats.fastjson import Int, Long, dumps, loads, read

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]
POINTS = (check_points.encode_check_point, check_points.decode_check_point)
ACKS = (check_points.encode_ack, check_points.decode_ack)
BATCHES = (check_points.encode_ack, check_points.decode_batch_ack)
OFFSETS = (config_files.encode_offsets, config_files.decode_offsets)
ORDERS = (config_files.encode_orders, config_files.decode_orders)
CHECKS = (config_files.encode_timer_check, config_files.decode_timer_check)

VERSION = DataVersion(counter=2, state_version=1, timestamp_ms=1_700_000_000_000)
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
ACK = Ack("orders", "g", 3, 100, 1_700_000_000_000, 104, "broker-a")
BATCH = BatchAck("orders", "g", 3, 100, 1_700_000_000_000, [100, 104])
INFO = OrderInfo(
    pop_ms=1_700_000_000_000,
    invisible_ms=60_000,
    offsets=[100, 101, 105],
    last_consume_ms=1_700_000_000_009,
    acked_bits=0b10,
    attempt_id="a1",
    visible_ms={105: 1_700_000_099_000},
    consumed={100: 1},
)
CHECK = TimerCheck(1_700_000_000_000, 104, 7, 6, DataVersion(counter=3, state_version=2, timestamp_ms=1_700_000_000_001))
CHECK_BYTES = bytes.fromhex(
    "0000018bcfe56800"  # last read time
    "0000000000000068"  # flushed position of the timer log
    "0000000000000007"  # next queue offset
    "0000000000000006"  # the master's
    "0000000000000002"  # state version
    "0000018bcfe56801"  # time of the version
    "0000000000000003"  # counter
)


@pytest.mark.parametrize(
    ("codec", "value", "data"),
    [
        pytest.param(POINTS, POINT, POINT_BYTES, id="a check point"),
        pytest.param(
            POINTS,
            CheckPoint("t", "g", 0, 5, 1, 2, 32, acked_bits=1 << 31, rewrites="2"),
            b'{"bm":-2147483648,"c":"g","it":2,"n":32,"pt":1,"q":0,"reviveTime":3,"ro":0,"rp":"2","so":5,"t":"t"}',
            id="a check point that was written again, and its top bit",
        ),
        pytest.param(ACKS, ACK, b'{"ao":104,"bn":"broker-a","c":"g","pt":1700000000000,"q":3,"so":100,"t":"orders"}', id="an ack"),
        pytest.param(BATCHES, BATCH, b'{"ao":0,"aol":[100,104],"c":"g","pt":1700000000000,"q":3,"so":100,"t":"orders"}', id="a batch ack"),
        pytest.param(
            OFFSETS,
            ConsumerOffsets({"orders@billing": {0: 12, 1: 7}, "orders@audit": {0: 3}, "odd": {}}, VERSION),
            b'{\n\t"dataVersion":{\n\t\t"counter":2,\n\t\t"stateVersion":1,\n\t\t"timestamp":1700000000000\n\t},\n'
            b'\t"groupTopicMap":{\n\t\t"billing":["orders"],\n\t\t"audit":["orders"]\n\t},\n'
            b'\t"offsetTable":{\n\t\t"orders@billing":{0:12,1:7\n\t\t},\n\t\t"orders@audit":{0:3\n\t\t},\n\t\t"odd":{}\n\t}\n}',
            id="consumerOffset.json",
        ),
        pytest.param(
            ORDERS,
            {"orders@billing": {3: INFO}},
            b'{\n\t"table":{\n\t\t"orders@billing":{3:{\n\t\t\t\t"a":"a1",\n\t\t\t\t"cm":2,\n\t\t\t\t"i":60000,\n'
            b'\t\t\t\t"l":1700000000009,\n\t\t\t\t"o":[\n\t\t\t\t\t100,\n\t\t\t\t\t1,\n\t\t\t\t\t5\n\t\t\t\t],\n'
            b'\t\t\t\t"oc":{100:1\n\t\t\t\t},\n\t\t\t\t"ot":{105:1700000099000\n\t\t\t\t},\n'
            b'\t\t\t\t"popTime":1700000000000\n\t\t\t}\n\t\t}\n\t}\n}',
            id="consumerOrderInfo.json",
        ),
        pytest.param(
            ORDERS,
            {"t@g": {0: OrderInfo(pop_ms=1, invisible_ms=None, offsets=[7], last_consume_ms=2, acked_bits=1 << 63)}},
            (
                b'{\n\t"table":{\n\t\t"t@g":{0:{\n\t\t\t\t"cm":-9223372036854775808,\n\t\t\t\t"l":2,\n\t\t\t\t"o":[\n\t\t\t\t\t7\n\t\t\t\t],\n'
                b'\t\t\t\t"popTime":1\n\t\t\t}\n\t\t}\n\t}\n}'
            ),
            id="what a run does not have is left out",
        ),
        pytest.param(CHECKS, CHECK, CHECK_BYTES, id="timercheck"),
    ],
)
def test_bytes(codec: tuple[Encode, Decode], value: object, data: bytes) -> None:
    encode, decode = codec
    assert encode(value) == data
    assert decode(data) == value


@pytest.mark.parametrize(
    ("decode", "data", "expected"),
    [
        (check_points.decode_check_point, b'{"t":"t","so":7,"n":2}', CheckPoint("t", "", 0, 7, 0, 0, 2)),
        (check_points.decode_ack, b"{}", Ack("", "", 0, 0, 0, 0)),
        (check_points.decode_batch_ack, b"{}", BatchAck("", "", 0, 0, 0, [])),
        (
            check_points.decode_ack,
            (
                b'{"ackOffset":104,"brokerName":"broker-a","consumerGroup":"g","popTime":1700000000000,"queueId":3,"startOffset":100,'
                b'"topic":"orders"}'
            ),
            ACK,
        ),
        (check_points.decode_batch_ack, b'{"ackOffsetList":[1,2],"topic":"t"}', BatchAck("t", "", 0, 0, 0, [1, 2])),
        (
            config_files.decode_offsets,
            b'{"offsetTable":{"TopicTest@g":{0:250,1:251},"quoted@g":{"0":1}}}',
            ConsumerOffsets({"TopicTest@g": {0: 250, 1: 251}, "quoted@g": {0: 1}}),
        ),
        (config_files.decode_offsets, b"{}", ConsumerOffsets()),
        (config_files.decode_offsets, b'{"offsetTable":null}', ConsumerOffsets()),
        (
            config_files.decode_metrics,
            (
                b'{"dataVersion":{"counter":2,"stateVersion":1,"timestamp":1700000000000},'
                b'"timingCount":{"orders":{"count":5,"timeStamp":1700000000000}}}'
            ),
            TimerMetrics({"orders": TimingCount(5, 1_700_000_000_000)}, VERSION),
        ),
        (config_files.decode_metrics, b"{}", TimerMetrics()),
        (config_files.decode_timer_check, CHECK_BYTES + bytes(4096 - 56), CHECK),
    ],
)
def test_what_other_brokers_write_is_read(decode: Decode, data: bytes, expected: object) -> None:
    assert decode(data) == expected


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
I64, I32, QUEUES = st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**31 - 1)
TIMES, BITS = st.integers(0, 2**61), st.integers(0, 2**32 - 1)
BROKERS = st.none() | NAMES
VERSIONS = st.builds(DataVersion, I64, I64, I64)
ANY_POINT = st.builds(
    CheckPoint, NAMES, NAMES, I32, I64, TIMES, TIMES, st.integers(0, 32), st.none() | st.lists(I32, max_size=4), BITS, I64, BROKERS, BROKERS
)
ANY_INFO = st.builds(
    OrderInfo,
    pop_ms=I64,
    invisible_ms=st.none() | I64,
    offsets=st.lists(st.integers(0, 2**62), max_size=4),
    last_consume_ms=I64,
    acked_bits=st.integers(0, 2**64 - 1),
    attempt_id=BROKERS,
    visible_ms=st.none() | st.dictionaries(I64, I64, max_size=3),
    consumed=st.none() | st.dictionaries(I64, QUEUES, max_size=3),
)


def of_queues(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, dict[int, Any]]]:
    return st.dictionaries(NAMES.filter(bool), st.dictionaries(QUEUES, values, max_size=3), max_size=4)


@pytest.mark.parametrize(
    ("codec", "values"),
    [
        (POINTS, ANY_POINT),
        (ACKS, st.builds(Ack, NAMES, NAMES, I32, I64, I64, I64, BROKERS)),
        (BATCHES, st.builds(BatchAck, NAMES, NAMES, I32, I64, I64, st.lists(I64), BROKERS)),
        (OFFSETS, st.builds(ConsumerOffsets, of_queues(I64), VERSIONS)),
        (ORDERS, of_queues(ANY_INFO)),
        (CHECKS, st.builds(TimerCheck, I64, I64, I64, I64, VERSIONS)),
    ],
)
@given(data=st.data())
def test_round_trips(codec: tuple[Encode, Decode], values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    value = data.draw(values)
    encode, decode = codec
    encoded = encode(value)
    assert decode(encoded) == value
    if codec in (POINTS, ACKS, BATCHES):
        assert list(json.loads(encoded)) == sorted(json.loads(encoded))


@pytest.mark.parametrize(
    ("decode", "data", "said"),
    [
        *((check_points.decode_check_point, POINT_BYTES[:length], "a check point") for length in range(len(POINT_BYTES))),
        *((config_files.decode_timer_check, CHECK_BYTES[:length], f"timercheck has {length} bytes") for length in range(56)),
        *(
            (config_files.decode_offsets, data, r"consumerOffset\.json")
            for data in (
                b'{"offsetTable":[]}',
                b'{"offsetTable":{"t@g":{0:"x"}}}',
                b'{"offsetTable":{"t@g":{x:0}}}',
                b'{"dataVersion":5}',
                b"[]",
            )
        ),
        *(
            (config_files.decode_orders, data, r"consumerOrderInfo\.json")
            for data in (b'{"table":5}', b'{"table":{"t@g":{0:5}}}', b'{"table":{"t@g":{0:{"o":5}}}}', b'{"table":{"t@g":{x:{}}}}')
        ),
    ],
)
def test_what_is_none_is_refused(decode: Decode, data: bytes, said: str) -> None:
    with pytest.raises(CorruptStoreError, match=said):
        decode(data)


def test_more_messages_than_bits_are_refused() -> None:
    with pytest.raises(IllegalArgumentError, match="up to 32 messages, not 33"):
        check_points.encode_check_point(CheckPoint("t", "g", 0, 0, 0, 0, 33))


def test_offsets_of_check_points_with_and_without_gaps() -> None:
    assert [POINT.index_of(offset) for offset in (99, 100, 101, 102, 104, 105)] == [None, 0, 1, None, 2, None]
    old = CheckPoint("t", "g", 0, 100, 0, 0, 3)
    assert [old.index_of(offset) for offset in (99, 100, 102, 103)] == [None, 0, 2, None]
    assert POINT.revive_ms == 1_700_000_060_000
    assert [INFO.is_acked(place) for place in range(3)] == [False, True, False]


def test_keys() -> None:
    assert POINT.unique_key() == "%RETRY%g+orders@3@100@g@1700000000000@broker-a@ck"
    assert ACK.unique_key() == "orders@3@104@g@1700000000000@broker-a@ack"
    assert CheckPoint("t", "g", 0, 1, 2, 3, 1).unique_key() == "t@0@1@g@2@null@ck"
    assert config_files.offsets_key("t", "g") == "t@g"
    assert config_files.split_offsets_key("t@g") == ("t", "g")
    assert config_files.split_offsets_key("t") is config_files.split_offsets_key("t@g@h") is None


VALUE = {"b": {0: 5, 1: None, 2: -7}, "a": ["x", 1, None, True], "n": None, "e": {}, "l": [], "s": {"q", "p"}}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (VALUE, '{\n\t"b":{0:5,2:-7\n\t},\n\t"a":[\n\t\t"x",\n\t\t1,\n\t\tnull,\n\t\ttrue\n\t],\n\t"e":{},\n\t"l":[],\n\t"s":["p","q"]\n}'),
        ({"q": {3: {"x": 1}}}, '{\n\t"q":{3:{\n\t\t\t"x":1\n\t\t}\n\t}\n}'),
        ('a"\\\n\x01\x7f/é\u2028', '"a\\"\\\\\\n\\u0001\\u007F/é\\u2028"'),
    ],
    ids=["pretty", "beans under bare keys", "strings"],
)
def test_texts(value: object, text: str) -> None:
    assert dumps(value) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"t@g":{0:12,1:7}}', {"t@g": {"0": 12, "1": 7}}),
        ("{ 0 : 5 ,\n\t-1:6}", {"0": 5, "-1": 6}),
        ("{name:{x:1}}", {"name": {"x": 1}}),
        ('{"a":"{0:1,b:2}","c":",d:1"}', {"a": "{0:1,b:2}", "c": ",d:1"}),
        ('{"a\\"{0:1":[1,2,{3:4}]}', {'a"{0:1': [1, 2, {"3": 4}]}),
        ('{"a":[1,2],3:4}', {"a": [1, 2], "3": 4}),
    ],
)
def test_bare_keys_are_read(text: str, expected: Any) -> None:
    assert loads(text, "it") == loads(text.encode(), "it") == expected


KEYS = st.text(max_size=6) | st.integers(-(2**63), 2**63 - 1)
VALUES = st.recursive(
    st.text(max_size=6) | st.integers(-(2**63), 2**63 - 1) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)


def stringed(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): stringed(item) for key, item in value.items()}
    return [stringed(item) for item in value] if isinstance(value, list) else value


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_what_is_written_is_read(value: dict[Any, Any]) -> None:
    assert loads(dumps(value).encode(), "it") == stringed(value)


@given(st.dictionaries(st.text(max_size=6), VALUES, max_size=4))
def test_standard_json_is_read(value: dict[str, Any]) -> None:
    assert loads(json.dumps(stringed(value)), "it") == stringed(value)


@pytest.mark.parametrize("text", ["", "[1]", "5", "null", "{", '{"a":1', '{"a":}', "{a:b}", '{"a" 1}', "{0:1}}", '"', "\xff", "{" * 5000])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(CorruptStoreError, match="it is"):
        loads(text.encode("latin-1"), "it")


@given(st.text('{}[]:,"\\0a \n', max_size=40))
def test_garbage_is_a_typed_error(text: str) -> None:
    try:
        assert isinstance(loads(text, "it"), dict)
    except CorruptStoreError as error:
        assert "it is" in str(error)


class Bean(msgspec.Struct):
    i: Int = 0
    text: str | None = None
    m: dict[Long, Long] = {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"i":5}', Bean(5)),
        ('{"i":"-6","text":"x"}', Bean(-6, "x")),
        ('{"old":7,"i":null,"text":null,"m":{0:"1",2:null}}', Bean(7, None, {0: 1})),
        ("{}", Bean()),
    ],
)
def test_structs_are_read(text: str, expected: Bean) -> None:
    assert read(text, Bean, "it", {"old": "i"}) == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"i":"x"}',
        '{"i":[]}',
        '{"i":1.5}',
        '{"i":2147483648}',
        '{"i":"2147483648"}',
        '{"m":{0:9223372036854775808}}',
        '{"m":{a:1}}',
        '{"m":5}',
        '{"text":[]}',
    ],
)
def test_wrong_fields_are_refused_by_name(text: str) -> None:
    with pytest.raises(CorruptStoreError, match=r"it: .* at `.*\$.(i|m|text)"):
        read(text, Bean, "it")
