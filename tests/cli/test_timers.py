"""``rmqstore timers``: exact counts by due time, round bars, and the list."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore import Message
from rmqstore.cli.timers import bar, edges_between
from rmqstore_conformance.stores import DAY_MS, HOUR_MS, START_MS
from tests.cli.conftest import ENGINE, Command

MINUTE_MS = 60_000


@pytest.fixture
def cli(cli: Command) -> Command:
    """A store with timers in 5, 15 and 16 minutes, in 2 hours, and two that are overdue."""
    with cli.owner(engine=ENGINE) as store:
        for delay_ms, topic in ((1000, "old"), (2000, "old"), (5 * MINUTE_MS, "a"), (15 * MINUTE_MS, "b"), (16 * MINUTE_MS, "b")):
            store.send(Message(topic, b"x", tag="new", keys=("1", "2"), message_id=f"m{delay_ms}"), delay_ms=delay_ms)
        store.send(Message("a", b"\xff", message_id="far"), delay_ms=2 * HOUR_MS)
        cli.clock.advance(10_000)
    return cli


def test_total_earliest_latest_and_bars(cli: Command) -> None:
    result = cli.good("timers", "data", "--buckets", "5")
    assert result.lines[:3] == [
        "pending   6 timers",
        "earliest  2023-11-14 22:13:21+00:00 (9 s ago)",
        "latest    2023-11-15 00:13:20+00:00 (in 2 h)",
    ]
    rows = [line.split() for line in result.lines[4:] if line]
    assert [row[0] for row in rows] == ["overdue", "now", *["2023-11-14"] * 3, "2023-11-15"]
    assert [int(row[-1]) for row in rows] == [2, 3, 0, 0, 0, 1]
    assert [row[1] for row in rows[2:]] == ["22:30", "23:00", "23:30", "00:00"]
    assert max(map(len, result.lines)) <= 80
    assert "Overdue timers are delivered as soon as" in result.err


def test_within_a_time_from_now(cli: Command) -> None:
    result = cli.good("timers", "data", "--within", "20m", "--buckets", "6")
    rows = {line.split()[0]: int(line.split()[-1]) for line in result.lines[4:] if line}
    assert rows == {"overdue": 2, "now": 0, "22:15": 1, "22:20": 0, "22:25": 2, "22:30": 0, "later": 1}
    assert "3 timers in all bars" in result.err


def test_between_two_times_and_for_one_topic(cli: Command) -> None:
    window = ("--from", "2023-11-14T22:00", "--to", "2023-11-14T23:00")
    document = cli.good("timers", "data", *window, "--buckets", "2", "--json").json
    assert (document["total"], document["before"], document["after"]) == (6, 0, 1)
    assert [bucket["count"] for bucket in document["buckets"]] == [5, 0]
    assert document["buckets"][1]["from_iso"] == "2023-11-14T22:30:00.000+00:00"
    assert (document["earliest_ms"], document["latest_ms"]) == (START_MS + 1000, START_MS + 2 * HOUR_MS)
    assert document["now_ms"] == START_MS + 10_000
    topic = cli.good("timers", "data", *window, "--topic", "a", "--json").json
    assert (topic["total"], sum(bucket["count"] for bucket in topic["buckets"]), topic["after"]) == (2, 1, 1)


def test_a_window_without_timers(cli: Command) -> None:
    result = cli.good("timers", "data", "--from", "2030-01-01", "--to", "2030-01-02")
    assert "No timer is due from 2030-01-01 00:00:00+00:00 to 2030-01-02 00:00:00+00:00." in result.err
    assert [line.split() for line in result.lines[4:] if line] == [["before", "6"]]


def test_when_every_timer_is_overdue(cli: Command) -> None:
    cli.clock.advance(3 * HOUR_MS)
    result = cli.good("timers", "data")
    assert "No timer is due from 2023-11-15 01:13:30+00:00 on." in result.err
    assert "Overdue timers are delivered" in result.err


def test_the_list(cli: Command) -> None:
    result = cli.good("timers", "data", "--list", "--within", "6m")
    assert result.lines[0].split() == ["due", "in", "topic", "tag", "keys", "id", "handle"]
    assert [line.split()[-2] for line in result.lines[1:]] == ["m1000", "m2000", "m300000"]
    assert result.lines[3].startswith("2023-11-14 22:18:20+00:00  in 5 min  a      new  1,2   m300000  ")
    handle = result.lines[3].split()[-1]
    assert cli.good("cancel", "data", handle).out == f"cancelled  {handle}\n"


def test_the_list_as_a_document(cli: Command) -> None:
    document = cli.good("timers", "data", "--list", "--json").json
    assert [timer["message_id"] for timer in document["timers"]] == ["m1000", "m2000", "m300000", "m900000", "m960000", "far"]
    far = document["timers"][-1]
    assert (far["body"], far["body_base64"], far["deliver_at_ms"]) == (None, "/w==", START_MS + 2 * HOUR_MS)


def test_a_long_list_comes_in_pages(cli: Command) -> None:
    with cli.owner() as store:
        store.send_batch([Message("many", b"x") for _ in range(2500)], delay_ms=DAY_MS)
    result = cli.good("timers", "data", "--list", "--topic", "many")
    assert len([line for line in result.lines if "many" in line]) == 2500
    assert len(cli.good("timers", "data", "--list", "--json", "--topic", "many").json["timers"]) == 2500


@pytest.mark.parametrize("shape", [(), ("--list",), ("--json",)])
def test_a_topic_is_known_by_its_timers_or_its_messages(cli: Command, shape: tuple[str, ...]) -> None:
    assert cli.good("timers", "data", "--topic", "old", *shape).out, "no message made this topic yet"
    assert cli.good("timers", "data", "--topic", "old", "--from", "2030-01-01", *shape).code == 0
    for wrong, hint in (("odl", "did you mean old?"), ("zzz", "it has a, b, old")):
        assert f"has no topic '{wrong}' and no timer for one; {hint}" in cli.bad(1, "timers", "data", "--topic", wrong, *shape)
    cli.good("pop", "data", "old", "-g", "g", "--max", "2")
    assert "No " in "".join(cli.good("timers", "data", "--topic", "old")[1:]), "it has messages, and no timer any more"


def test_narrow_terminals_get_long_columns_below(cli: Command, terminal: Callable[[int], None]) -> None:
    terminal(80)
    lines = cli.good("timers", "data", "--list", "--topic", "a").lines
    assert [line.split()[0] for line in lines] == ["due", "2023-11-14", "handle", "2023-11-15", "handle"]
    assert max(map(len, lines)) <= 80
    terminal(140)
    assert len(cli.good("timers", "data", "--list", "--topic", "a").lines) == 3
    assert max(map(len, cli.good("timers", "data").lines)) == 140


def test_no_timer_and_no_store(cli: Command) -> None:
    with cli.owner() as store:
        store.cancel([timer.handle for timer in store.scan().timers])
    assert cli.good("timers", "data").out == "No timer is pending.\n"
    assert cli.good("timers", "data", "--json").json["total"] == 0
    assert cli.good("timers", "data", "--list").err == "No such timer is pending.\n"
    assert "there is no store in" in cli.bad(1, "timers", str(cli.root / "other"))


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
