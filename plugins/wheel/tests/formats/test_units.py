"""Units of one size: slots of the timer wheel, units of the timer log and of a consume queue, entries of an index file."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from plugins.wheel.tests.broker_view import BrokerIndex
from rmqstore.errors import IllegalArgumentError
from rmqstore_wheel.formats import consume_queue as cq, index_file, timer_log, wheel
from rmqstore_wheel.formats.java_hash import java_hash, java_hashes
from rmqstore_wheel.formats.log_reading import Stop

NOW = 1_700_000_000_000
SLOT = bytes.fromhex(
    "00000000 6553f100"  # tick 1 700 000 000
    "0000000000000034"  # first unit at 52
    "00000000000000d0"  # newest unit at 208
    "00000004"  # four timers
    "00000000"  # magic
)
TIMER = bytes.fromhex(
    "00000034"  # 52 bytes
    "ffffffffffffffff"  # no unit before
    "00000003"  # default, to be rolled
    "0000018bcfe56800"  # written at 1 700 000 000 000
    "00001388"  # its slot 5000 ms later
    "0000000040000000"  # commit-log offset 1 GiB
    "00000068"  # 104 bytes
    "0027a807"  # Java hash of "TagA", as if it were a topic
    "0000000000000000"  # reserved
)
MESSAGE = bytes.fromhex(
    "0000000040000000"  # commit-log offset 1 GiB
    "00000068"  # 104 bytes
    "000000000027a807"  # hash of "TagA": 2 598 919
)
TAGGED = bytes.fromhex("0000000040000068 0000005b ffffffff80000000")  # "polygenelubricants": -2**31, sign-extended

FIELDS = {
    SLOT: (1_700_000_000, 52, 208, 4, 0),
    TIMER: (52, -1, timer_log.DEFAULT | timer_log.ROLL, 1_700_000_000_000, 5000, 1 << 30, 104, 2598919, 0),
    MESSAGE: (1 << 30, 104, 2598919),
}


@pytest.mark.parametrize(("unit", "dtype"), [(SLOT, wheel.SLOT), (TIMER, timer_log.UNIT), (MESSAGE, cq.UNIT)])
def test_bytes(unit: bytes, dtype: Any) -> None:
    assert np.array([FIELDS[unit]], dtype).tobytes() == unit
    assert np.frombuffer(unit, dtype)[0].item() == FIELDS[unit]


def test_one_and_many_have_the_same_bytes() -> None:
    size, *fields = FIELDS[TIMER]
    assert timer_log.encode_one(size, *fields) == TIMER
    previous, flags, write_ms, delta_ms, offset, message_bytes, topic_hash, reserved = fields
    one = np.ones(1, np.int64)
    many = timer_log.rows_of(previous * one, flags, write_ms, delta_ms * one, offset, message_bytes * one, topic_hash, reserved * one)
    assert many.tobytes() == TIMER
    assert timer_log.slot_times_ms(many).tolist() == [1_700_000_005_000]
    assert cq.encode_one(*FIELDS[MESSAGE]) == MESSAGE
    codes = cq.tags_codes(pa.array(["TagA", "polygenelubricants"]))
    assert cq.rows_of(np.array([1 << 30, (1 << 30) + 104]), np.array([104, 91]), codes).tobytes() == MESSAGE + TAGGED


def test_sizes_of_rocketmq() -> None:
    assert (wheel.Ring().length, wheel.Ring().file_bytes) == (1_209_600, 38_707_200)
    assert cq.FILE_UNITS * cq.UNIT_BYTES == 6_000_000
    assert index_file.file_bytes() == 40 + 5_000_000 * 4 + 20_000_000 * 20


# ---------------------------------------------------------------- consume queue


def test_no_tag_is_0() -> None:
    assert cq.tags_code(None) == cq.tags_code("") == 0
    assert cq.tags_code("TagA") == 2598919
    assert cq.tags_codes(pa.array([None, "TagA", ""])).tolist() == [0, 2598919, 0]
    assert cq.tags_codes(pa.nulls(2, pa.string())).tolist() == [0, 0]


def test_fill_units() -> None:
    assert bytes.fromhex("0000000000000000 7fffffff 0000000000000000") * 2 == cq.FILL * 2
    units = cq.decode(cq.FILL + MESSAGE + TAGGED + bytes(20) + struct.pack(">qiq", -1, 5, 0))
    assert cq.is_message(units).tolist() == [False, True, True, False, False]


def test_a_torn_unit_is_left_out() -> None:
    assert [len(cq.decode((MESSAGE + TAGGED)[:length])) for length in (0, 19, 20, 39, 40)] == [0, 0, 1, 1, 2]


# ---------------------------------------------------------------- timer log


def test_blank_bytes() -> None:
    assert timer_log.encode_blank(0x44) == bytes.fromhex("00000044 0000000000000000 cbd43194")
    with pytest.raises(IllegalArgumentError, match="15 bytes are left"):
        timer_log.encode_blank(15)


@pytest.mark.parametrize(
    ("behind", "stop"),
    [
        (b"", Stop.END),
        (timer_log.encode_blank(16), Stop.BLANK),
        (timer_log.encode_blank(60) + bytes(44), Stop.BLANK),
        (bytes(200), Stop.EMPTY),
        (b"\x07" * 52, Stop.DAMAGE),
        *((TIMER[:length], Stop.TORN if any(TIMER[:length]) else Stop.EMPTY) for length in range(1, 52)),
        *((TIMER[:at] + bytes((TIMER[at] ^ 0x10,)) + TIMER[at + 1 :] + TIMER, Stop.DAMAGE) for at in (0, 1, 2, 3, 12, 13, 14)),
    ],
)
@pytest.mark.parametrize("whole", [0, 1, 2])
def test_where_a_scan_stops(whole: int, behind: bytes, stop: Stop) -> None:
    found = timer_log.scan(TIMER * whole + behind)
    assert (len(found.units), found.end, found.stop) == (whole, whole * 52, stop)


TIMES, NUMBERS = st.integers(0, 2**60), st.integers(-(2**31), 2**31 - 1)
ROWS = st.tuples(st.integers(-1, 2**40), st.integers(0, 15), TIMES, NUMBERS, TIMES, st.integers(1, 2**31 - 1), NUMBERS, TIMES)


@given(st.lists(ROWS, max_size=10))
def test_round_trip(rows: list[tuple[int, ...]]) -> None:
    columns: Any = [np.array([row[at] for row in rows], np.int64) for at in range(8)]
    found = timer_log.scan(timer_log.rows_of(*columns).tobytes())
    assert found.stop is Stop.END
    assert [row.item() for row in found.units] == [(52, *row) for row in rows]
    assert timer_log.slot_times_ms(found.units).tolist() == [row[2] + row[3] for row in rows]
    offsets, sizes, codes = columns[4], columns[5], columns[0]
    units = cq.decode(cq.rows_of(offsets, sizes, codes).tobytes())
    assert [unit.item() for unit in units] == list(zip(offsets.tolist(), sizes.tolist(), codes.tolist(), strict=True))


# ---------------------------------------------------------------- index file


def test_bytes_of_an_index_file() -> None:
    buffer = bytearray(index_file.file_bytes(4, 8))
    index = BrokerIndex(buffer, 4, 8)
    index.put([(6, 100, NOW), (3, 200, NOW + 1500), (2, 300, NOW + 2999)])
    expected = bytes.fromhex(
        "0000018bcfe56800"  # first store time
        "0000018bcfe573b7"  # last: 2999 ms later
        "0000000000000064"  # first offset: 100
        "000000000000012c"  # last offset: 300
        "00000002"  # slots in use: 2 and 3
        "00000004"  # next entry
        "00000000 00000000 00000003 00000002"  # slot 2: entry 3, slot 3: entry 2
        + "00" * 20  # entry 0 is never used
        + "00000006 0000000000000064 00000000 00000000"  # entry 1
        + "00000003 00000000000000c8 00000001 00000000"  # entry 2: a second later
        + "00000002 000000000000012c 00000002 00000001"  # entry 3: behind entry 1 in slot 2
        + "00" * 80
    )
    assert buffer == expected
    assert index.lookup(6) == [100]
    assert index_file.index_key("orders", "42") == "orders#42"
    assert index_file.file_name(NOW + 7) == "20231114221320007"


KNOWN = {
    "": 0,
    "a": 97,
    "Aa": 2112,
    "BB": 2112,
    "hello": 99162322,
    "TagA": 2598919,
    "polygenelubricants": -(2**31),
    "中文": 20013 * 31 + 25991,
    "\U0001f600": 0xD83D * 31 + 0xDE00,  # two UTF-16 units
}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def test_known_values_alone_and_by_column() -> None:
    assert [java_hash(text) for text in KNOWN] == list(KNOWN.values())
    assert java_hashes(pa.array(list(KNOWN))).tolist() == list(KNOWN.values())
    assert index_file.key_hashes(pa.array(list(KNOWN))).tolist() == [abs(value) % 2**31 for value in KNOWN.values()]


@given(st.lists(st.none() | TEXTS, max_size=12), st.sampled_from([pa.string(), pa.large_string()]), st.data())
def test_a_column_is_every_single_one_from_its_own_start_on(texts: list[str | None], kind: pa.DataType, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(texts)))
    assert java_hashes(pa.array(texts, kind).slice(start)).tolist() == [java_hash(text or "") for text in texts[start:]]
    there = [text or "" for text in texts]
    assert index_file.key_hashes(pa.array(there, kind)).tolist() == [index_file.key_hash(text) for text in there]
