"""Units of the timer log: bytes, room in a file, and where a scan stops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore.errors import IllegalArgumentError
from rmqstore_wheel.formats import timer_log
from rmqstore_wheel.formats.log_reading import Stop

UNIT = bytes.fromhex(
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


def test_one_and_many_have_the_same_bytes() -> None:
    flags = timer_log.DEFAULT | timer_log.ROLL
    one = np.ones(1, np.int64)
    assert timer_log.rows_of(-one, flags, 1_700_000_000_000, 5000 * one, one << 30, 104 * one, 2598919, 0 * one).tobytes() == UNIT
    assert timer_log.encode_one(52, -1, flags, 1_700_000_000_000, 5000, 1 << 30, 104, 2598919, 0) == UNIT


def test_bytes() -> None:
    units = timer_log.decode(UNIT)
    assert units[0].item() == (52, -1, 3, 1_700_000_000_000, 5000, 1 << 30, 104, 2598919, 0)
    assert timer_log.slot_times_ms(units).tolist() == [1_700_000_005_000]


def test_blank_bytes() -> None:
    assert timer_log.encode_blank(0x44) == bytes.fromhex("00000044 0000000000000000 cbd43194")
    with pytest.raises(IllegalArgumentError, match="15 bytes are left"):
        timer_log.encode_blank(15)


def stop_of(data: bytes) -> tuple[int, int, Stop]:
    found = timer_log.scan(data)
    return len(found.units), found.end, found.stop


def test_scan() -> None:
    two = UNIT * 2
    assert stop_of(two) == (2, 104, Stop.END)
    assert stop_of(two + timer_log.encode_blank(16)) == (2, 104, Stop.BLANK)
    assert stop_of(two + timer_log.encode_blank(60) + bytes(44)) == (2, 104, Stop.BLANK)
    assert stop_of(two + bytes(200)) == (2, 104, Stop.EMPTY)
    assert stop_of(two + b"\x07" * 52) == (2, 104, Stop.DAMAGE)
    assert stop_of(b"") == (0, 0, Stop.END)


@pytest.mark.parametrize("length", range(len(UNIT) * 2))
def test_every_truncation_keeps_the_whole_units(length: int) -> None:
    whole = length // 52
    count, end, stop = stop_of((UNIT * 2)[:length])
    rest = (UNIT * 2)[whole * 52 : length]
    assert (count, end) == (whole, whole * 52)
    assert stop is (Stop.END if not rest else Stop.TORN if any(rest) else Stop.EMPTY)


@pytest.mark.parametrize("at", [0, 1, 2, 3, 12, 13, 14])
def test_a_damaged_size_or_flag_stops_the_scan(at: int) -> None:
    damaged = bytearray(UNIT * 3)
    damaged[52 + at] ^= 0x10
    assert stop_of(bytes(damaged)) == (1, 52, Stop.DAMAGE)


ROWS = st.tuples(
    st.integers(-1, 2**40), st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**60), st.integers(1, 2**31 - 1), st.integers(0, 15)
)


@given(st.integers(0, 2**60), st.lists(ROWS, max_size=10))
def test_round_trip(write_ms: int, rows: list[tuple[int, ...]]) -> None:
    previous, delta, offset, size, flags = (np.array([row[at] for row in rows], np.int64) for at in range(5))
    units = timer_log.rows_of(previous, flags, write_ms, delta, offset, size, 0, np.zeros(len(rows), np.int64))
    found = timer_log.scan(units.tobytes())
    assert found.stop is Stop.END
    read = found.units
    assert [row.item() for row in read] == [(52, p, f, write_ms, d, o, s, 0, 0) for p, d, o, s, f in rows]
    assert timer_log.slot_times_ms(read).tolist() == (write_ms + delta).tolist()
