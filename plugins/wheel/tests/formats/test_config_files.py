"""The files of ``config/``: bytes and round trips."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.formats import config_files
from rmqstore_wheel.formats.config_files import ConsumerOffsets, DataVersion, OrderInfo, TimerCheck, TimerMetrics, TimingCount

I64 = st.integers(-(2**63), 2**63 - 1)
QUEUES = st.integers(0, 2**31 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10)
VERSIONS = st.builds(DataVersion, I64, I64, I64)
VERSION = DataVersion(counter=2, state_version=1, timestamp_ms=1_700_000_000_000)


# ---------------------------------------------------------------- consumerOffset.json

OFFSETS = ConsumerOffsets({"orders@billing": {0: 12, 1: 7}, "orders@audit": {0: 3}, "odd": {}}, VERSION)
OFFSETS_TEXT = (
    "{\n"
    '\t"dataVersion":{\n'
    '\t\t"counter":2,\n'
    '\t\t"stateVersion":1,\n'
    '\t\t"timestamp":1700000000000\n'
    "\t},\n"
    '\t"groupTopicMap":{\n'
    '\t\t"billing":["orders"],\n'
    '\t\t"audit":["orders"]\n'
    "\t},\n"
    '\t"offsetTable":{\n'
    '\t\t"orders@billing":{0:12,1:7\n'
    "\t\t},\n"
    '\t\t"orders@audit":{0:3\n'
    "\t\t},\n"
    '\t\t"odd":{}\n'
    "\t}\n"
    "}"
)


def test_offsets_bytes() -> None:
    assert config_files.encode_offsets(OFFSETS).decode() == OFFSETS_TEXT
    assert config_files.decode_offsets(OFFSETS_TEXT.encode()) == OFFSETS


def test_offsets_in_one_line_without_version_are_read() -> None:
    data = b'{"offsetTable":{"TopicTest@g":{0:250,1:251},"quoted@g":{"0":1}}}'
    assert config_files.decode_offsets(data) == ConsumerOffsets({"TopicTest@g": {0: 250, 1: 251}, "quoted@g": {0: 1}})


def test_offset_keys() -> None:
    assert config_files.offsets_key("t", "g") == "t@g"
    assert config_files.split_offsets_key("t@g") == ("t", "g")
    assert config_files.split_offsets_key("t") is config_files.split_offsets_key("t@g@h") is None


@given(st.builds(ConsumerOffsets, st.dictionaries(NAMES, st.dictionaries(QUEUES, I64, max_size=3), max_size=4), VERSIONS))
def test_offsets_round_trip(offsets: ConsumerOffsets) -> None:
    assert config_files.decode_offsets(config_files.encode_offsets(offsets)) == offsets


@pytest.mark.parametrize("data", [b"{}", b'{"offsetTable":null}'])
def test_no_offsets(data: bytes) -> None:
    assert config_files.decode_offsets(data) == ConsumerOffsets()


@pytest.mark.parametrize(
    "data", [b'{"offsetTable":[]}', b'{"offsetTable":{"t@g":{0:"x"}}}', b'{"offsetTable":{"t@g":{x:0}}}', b'{"dataVersion":5}', b"[]"]
)
def test_wrong_offsets_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptStoreError, match=r"consumerOffset\.json"):
        config_files.decode_offsets(data)


# ---------------------------------------------------------------- timermetrics


def test_metrics_bytes() -> None:
    metrics = TimerMetrics({"orders": TimingCount(5, 1_700_000_000_000)}, VERSION)
    text = (
        b'{"dataVersion":{"counter":2,"stateVersion":1,"timestamp":1700000000000},'
        b'"timingCount":{"orders":{"count":5,"timeStamp":1700000000000}}}'
    )
    assert config_files.decode_metrics(text) == metrics
    assert config_files.decode_metrics(b"{}") == TimerMetrics()


# ---------------------------------------------------------------- consumerOrderInfo.json


def test_order_info_bytes() -> None:
    info = OrderInfo(
        pop_ms=1_700_000_000_000,
        invisible_ms=60_000,
        offsets=[100, 101, 105],
        last_consume_ms=1_700_000_000_009,
        acked_bits=0b10,
        attempt_id="a1",
        visible_ms={105: 1_700_000_099_000},
        consumed={100: 1},
    )
    text = (
        "{\n"
        '\t"table":{\n'
        '\t\t"orders@billing":{3:{\n'
        '\t\t\t\t"a":"a1",\n'
        '\t\t\t\t"cm":2,\n'
        '\t\t\t\t"i":60000,\n'
        '\t\t\t\t"l":1700000000009,\n'
        '\t\t\t\t"o":[\n'
        "\t\t\t\t\t100,\n"
        "\t\t\t\t\t1,\n"
        "\t\t\t\t\t5\n"
        "\t\t\t\t],\n"
        '\t\t\t\t"oc":{100:1\n'
        "\t\t\t\t},\n"
        '\t\t\t\t"ot":{105:1700000099000\n'
        "\t\t\t\t},\n"
        '\t\t\t\t"popTime":1700000000000\n'
        "\t\t\t}\n"
        "\t\t}\n"
        "\t}\n"
        "}"
    )
    table = {"orders@billing": {3: info}}
    assert config_files.encode_orders(table).decode() == text
    assert config_files.decode_orders(text.encode()) == table
    assert [info.is_acked(place) for place in range(3)] == [False, True, False]


def test_order_info_leaves_out_what_is_not_there() -> None:
    info = OrderInfo(pop_ms=1, invisible_ms=None, offsets=[7], last_consume_ms=2, acked_bits=1 << 63)
    data = config_files.encode_orders({"t@g": {0: info}})
    assert b'"cm":-9223372036854775808' in data
    assert not any(name in data for name in (b'"a"', b'"i"', b'"oc"', b'"ot"'))
    assert config_files.decode_orders(data) == {"t@g": {0: info}}


INFOS = st.builds(
    OrderInfo,
    pop_ms=I64,
    invisible_ms=st.none() | I64,
    offsets=st.lists(st.integers(0, 2**62), max_size=4),
    last_consume_ms=I64,
    acked_bits=st.integers(0, 2**64 - 1),
    attempt_id=st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    visible_ms=st.none() | st.dictionaries(I64, I64, max_size=3),
    consumed=st.none() | st.dictionaries(I64, QUEUES, max_size=3),
)


@given(st.dictionaries(NAMES, st.dictionaries(QUEUES, INFOS, max_size=2), max_size=3))
def test_order_info_round_trip(table: config_files.OrderTable) -> None:
    assert config_files.decode_orders(config_files.encode_orders(table)) == table


@pytest.mark.parametrize(
    "data", [b'{"table":5}', b'{"table":{"t@g":{0:5}}}', b'{"table":{"t@g":{0:{"o":5}}}}', b'{"table":{"t@g":{x:{}}}}']
)
def test_wrong_order_info_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptStoreError, match=r"consumerOrderInfo\.json"):
        config_files.decode_orders(data)


# ---------------------------------------------------------------- timercheck

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


def test_timer_check_bytes() -> None:
    assert config_files.encode_timer_check(CHECK) == CHECK_BYTES
    assert config_files.decode_timer_check(CHECK_BYTES) == config_files.decode_timer_check(CHECK_BYTES + bytes(4096 - 56)) == CHECK


@pytest.mark.parametrize("length", range(56))
def test_a_timer_check_that_is_too_short_is_refused(length: int) -> None:
    with pytest.raises(CorruptStoreError, match=f"timercheck has {length} bytes"):
        config_files.decode_timer_check(CHECK_BYTES[:length])


@given(st.builds(TimerCheck, I64, I64, I64, I64, VERSIONS))
def test_timer_check_round_trip(check: TimerCheck) -> None:
    assert config_files.decode_timer_check(config_files.encode_timer_check(check)) == check
