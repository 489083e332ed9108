"""Times and durations: what is read, what is refused, how they are shown."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies as st

from rmqstore.cli.times import clock_time, duration_text, iso, parse_duration, parse_time, relative
from rmqstore.errors import IllegalArgumentError

MOMENT_MS = int(datetime(2026, 12, 1, 7, tzinfo=UTC).timestamp()) * 1000


def test_durations() -> None:
    spellings = "250ms=250 90s=90000 5m=300000 2h=7200000 1d=86400000 1w=604800000 1h30m=5400000 1.5h=5400000 0.0001s=1 0s=0"
    for text, ms in (each.split("=") for each in spellings.split()):
        assert parse_duration(text) == parse_duration(f" {text} ") == int(ms)


@pytest.mark.parametrize("text", "|m|5 m|5x|- 5m|-|-5x|+5m|5m later|1e3|١m|m5|5mm|0x5|5.m|0|1500".split("|"))
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(IllegalArgumentError, match="is no duration; write 90s, 5m, 2h"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["-5m", " -5ms ", "-1h30m", "-0.5s"])
def test_a_negative_duration_is_refused_as_such(text: str) -> None:
    with pytest.raises(IllegalArgumentError, match="a duration must not be negative"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["99999999999999999999s", f"{2**62 + 1}ms", "99999999999999w"])
def test_a_duration_without_end_is_refused(text: str) -> None:
    with pytest.raises(IllegalArgumentError, match="too long"):
        parse_duration(text)


@given(st.integers(0, 2**62))
def test_a_duration_as_text_is_read_back(ms: int) -> None:
    assert parse_duration(duration_text(ms)) == ms


@pytest.mark.parametrize(
    "text", ["2026-12-01T08:00+01:00", "2026-12-01 07:00Z", "2026-12-01T07:00:00.000+00:00", f"{MOMENT_MS}ms", "2026-12-01T07:00"]
)
def test_times(utc: Callable[[str], None], text: str) -> None:
    assert parse_time(text) == MOMENT_MS


def test_a_time_without_an_offset_is_local(utc: Callable[[str], None]) -> None:
    utc("Asia/Tokyo")
    assert parse_time("2026-12-01T16:00") == MOMENT_MS
    assert clock_time(MOMENT_MS) == "2026-12-01 16:00:00+09:00"
    assert iso(MOMENT_MS) == "2026-12-01T16:00:00.000+09:00"


def test_a_part_of_a_millisecond_is_rounded_up(utc: Callable[[str], None]) -> None:
    assert parse_time("2026-12-01T07:00:00.000001Z") == MOMENT_MS + 1


@pytest.mark.parametrize(
    "text",
    ["", "now", "tomorrow", "2026-13-01", "12:00", "1969-12-31T00:00Z", "-5", "9" * 30 + "ms", "0001-01-01", "1796108400", "20261201"],
)
def test_what_is_no_time_is_refused_with_examples(utc: Callable[[str], None], text: str) -> None:
    with pytest.raises(IllegalArgumentError, match="is no time; write 2026-12-01T08:00"):
        parse_time(text)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "now"),
        (1, "in 1 ms"),
        (-999, "999 ms ago"),
        (90_000, "in 90 s"),
        (12 * 60_000, "in 12 min"),
        (-3 * 3_600_000, "3 h ago"),
        (3 * 86_400_000, "in 3 d"),
        (30 * 60_000 - 1, "in 30 min"),
        (-(30 * 60_000 + 1), "30 min ago"),
        (1499, "in 1 s"),
        (1500, "in 2 s"),
        (119_499, "in 119 s"),
        (119_500, "in 2 min"),
        (2 * 3_600_000 - 10_000, "in 2 h"),
        (-(2 * 3_600_000 + 56 * 60_000), "3 h ago"),
        (2 * 86_400_000 - 1, "in 2 d"),
        (2 * 365 * 86_400_000 - 1, "in 2 y"),
        (2**62, "in 146235604 y"),
    ],
)
def test_times_as_seen_from_now(ms: int, text: str) -> None:
    assert relative(10_000_000_000 + ms, 10_000_000_000) == text


def test_what_lies_beyond_the_calendar_is_shown_as_a_number(utc: Callable[[str], None]) -> None:
    assert clock_time(2**62) == f"{2**62} ms"
    assert iso(2**62) is None
    assert iso(None) is None


def test_a_time_that_a_clock_passes_over_is_the_one_behind_it(utc: Callable[[str], None]) -> None:
    """Not before it, which would be early."""
    utc("Europe/Berlin")
    assert parse_time("2027-03-28T02:30") == int(datetime(2027, 3, 28, 1, 30, tzinfo=UTC).timestamp()) * 1000
    assert parse_time("2027-03-28T03:30") == parse_time("2027-03-28T02:30")
    assert parse_time("2027-03-28T01:30") == int(datetime(2027, 3, 28, 0, 30, tzinfo=UTC).timestamp()) * 1000
