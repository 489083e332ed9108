"""``rmqstore timers``: a list of many pages, and bars; ``sessions/timers.txt`` has the rest."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, strategies as st

from rmqstore import Message
from rmqstore.cli.timers import bar, edges_between
from rmqstore_conformance.stores import DAY_MS, HOUR_MS, START_MS
from tests.cli.conftest import ENGINE, Command


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
