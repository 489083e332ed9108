"""What people write and read: times, durations, tables, bodies, and the bars and pages of ``rmqstore timers``."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies as st
from rich.text import Text

from rmqstore import Message
from rmqstore.cli import show
from rmqstore.cli.show import bar
from rmqstore.cli.timers import edges_between
from rmqstore.cli.times import clock_time, duration_text, iso, parse_duration, parse_time, relative
from rmqstore.errors import IllegalArgumentError
from rmqstore_conformance.stores import DAY_MS, HOUR_MS, START_MS
from tests.cli.conftest import ENGINE, Command

# ---------------------------------------------------------------- times and durations


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


# ---------------------------------------------------------------- tables and texts


ROWS = [
    {"name": "first", "n": 1, "id": "i" * 20, "receipt": "r" * 40},
    {"name": "second", "n": 1000, "id": "", "receipt": "r"},
]


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    show.table(ROWS, long=["id", "receipt"])
    return capsys.readouterr().out.splitlines()


def test_a_table_in_a_pipe(cli: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys) == [
        "name        n  id                    receipt",
        f"first       1  {'i' * 20}  {'r' * 40}",
        f"second  1,000  {' ' * 20}  r",
    ]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (77, ["name        n  id                    receipt", f"first       1  {'i' * 20}  {'r' * 40}"]),
        (76, ["name        n  id", f"first       1  {'i' * 20}", f"    receipt  {'r' * 40}"]),
        (30, ["name        n", "first       1", f"    id       {'i' * 20}", f"    receipt  {'r' * 40}"]),
        (5, ["name        n", "first       1", f"    id       {'i' * 20}", f"    receipt  {'r' * 40}"]),
    ],
)
def test_a_table_on_a_terminal(
    cli: Command,
    terminal: Callable[[int], None],
    capsys: pytest.CaptureFixture[str],
    columns: int,
    expected: list[str],
) -> None:
    terminal(columns)
    shown = [Text.from_ansi(line).plain for line in lines(capsys)]
    assert shown[: len(expected)] == expected


def test_cells_are_numbers_nothing_or_texts_that_drive_no_terminal(cli: Command, capsys: pytest.CaptureFixture[str]) -> None:
    show.table([{"a": 1234, "b": None, "c": "\x1b[2J"}])
    assert capsys.readouterr().out.splitlines()[1] == "1,234     \\x1b[2J"


def test_wide_characters_are_aligned(cli: Command, capsys: pytest.CaptureFixture[str]) -> None:
    show.table([{"a": "漢字", "b": "x"}, {"a": "abcd", "b": "y"}])
    assert capsys.readouterr().out == "a     b\n漢字  x\nabcd  y\n"


@pytest.mark.parametrize(
    ("body", "start"),
    [
        (b"short", "short"),
        (b"two\n lines\t!", "two lines !"),
        (b"x" * 100, "x" * 59 + "…"),
        ("ü".encode() * 1000, "ü" * 59 + "…"),
        (b"\x00", "base64:AA=="),
        (b"\xff" * 100, "base64:" + "/" * 60 + "…"),
        (b"\x1b[2J", "base64:G1sySg=="),
        (b"x" + "漢".encode() * 300, "x" + "漢" * 58 + "…"),
    ],
)
def test_the_start_of_a_body(body: bytes, start: str) -> None:
    assert show.body_start(body) == start


def test_counts() -> None:
    assert [show.count(number, "message") for number in (0, 1, 1234)] == ["0 messages", "1 message", "1,234 messages"]
    assert show.count(2, "batch", "batches") == "2 batches"


def test_a_document_with_a_list_of_any_length(cli: Command, capsys: pytest.CaptureFixture[str]) -> None:
    for items in ([], [{"a": 1}], [{"a": 1}, {"b": [2]}]):
        show.document_with({"first": {"x": []}}, "items", items)
        assert json.loads(capsys.readouterr().out) == {"first": {"x": []}, "items": items}


# ---------------------------------------------------------------- timers; sessions/timers.txt has the rest


def test_a_long_list_comes_in_pages(cli: Command) -> None:
    with cli.owner(engine=ENGINE) as store:
        store.send_batch([Message("many", b"x") for _ in range(2500)], delay_ms=DAY_MS)
    result = cli.good("timers", "data", "--list", "--topic", "many")
    assert len([line for line in result.lines if "many" in line]) == 2500
    assert len(cli.good("timers", "data", "--list", "--json", "--topic", "many").json["timers"]) == 2500


def test_one_bar_across_the_epoch_of_local_time(utc: Callable[[str], None]) -> None:
    for zone in ("America/New_York", "UTC", "Asia/Kolkata"):
        utc(zone)
        assert edges_between(0, START_MS, 1) == [0, START_MS]
        assert edges_between(0, 2**62, 1) == [0, 2**62]


@given(st.integers(0, 2**62 - 1), st.integers(1, 2**62), st.integers(1, 1000))
def test_edges_rise_and_cover_what_was_asked_for(start_ms: int, length_ms: int, buckets: int) -> None:
    end_ms = min(start_ms + length_ms, 2**62)
    edges = edges_between(start_ms, end_ms, buckets)
    assert (edges[0], edges[-1]) == (start_ms, end_ms)
    assert edges == sorted(set(edges))
    assert len(edges) - 1 <= buckets
    assert len({after - before for before, after in zip(edges[1:-2], edges[2:-1], strict=True)}) <= 1


def test_bars_start_at_round_local_times(utc: Callable[[str], None]) -> None:
    utc("Asia/Kolkata")
    edges = edges_between(START_MS, START_MS + DAY_MS, 24)
    assert len(edges) == 14
    assert {(edge + 19_800_000) % (2 * HOUR_MS) for edge in edges[1:-1]} == {0}


@given(st.integers(0, 10**9), st.integers(1, 10**9), st.integers(10, 200))
def test_a_bar_is_seen_and_never_too_long(number: int, more: int, width: int) -> None:
    most = number + more
    for drawn in (bar(number, most, width), bar(number, most, width, is_ascii=True)):
        assert len(drawn) <= width
        assert bool(drawn) == bool(number)
    assert bar(most, most, width) == "█" * width
