"""The timers' check point file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.formats import config_files
from rmqstore_wheel.formats.config_files import DataVersion, TimerCheck

CHECK = TimerCheck(1_700_000_000_000, 104, 7, 6, DataVersion(counter=3, state_version=2, timestamp_ms=1_700_000_000_001))
BYTES = bytes.fromhex(
    "0000018bcfe56800"  # last read time
    "0000000000000068"  # flushed position of the timer log
    "0000000000000007"  # next queue offset
    "0000000000000006"  # the master's
    "0000000000000002"  # state version
    "0000018bcfe56801"  # time of the version
    "0000000000000003"  # counter
)


def test_bytes() -> None:
    assert config_files.encode_timer_check(CHECK) == BYTES
    assert config_files.decode_timer_check(BYTES) == config_files.decode_timer_check(BYTES + bytes(4096 - 56)) == CHECK


def test_the_old_form_has_no_version() -> None:
    assert config_files.decode_timer_check(BYTES[:32]) == TimerCheck(1_700_000_000_000, 104, 7, 6)


@pytest.mark.parametrize("length", sorted(set(range(56)) - {32}))
def test_every_other_truncation_is_refused(length: int) -> None:
    with pytest.raises(CorruptStoreError, match=f"timercheck has {length} bytes"):
        config_files.decode_timer_check(BYTES[:length])


I64 = st.integers(-(2**63), 2**63 - 1)


@given(st.builds(TimerCheck, I64, I64, I64, I64, st.builds(DataVersion, I64, I64, I64)))
def test_round_trip(check: TimerCheck) -> None:
    assert config_files.decode_timer_check(config_files.encode_timer_check(check)) == check
