"""``rmqstore schedules``: what is made, listed and ended."""

from __future__ import annotations

from datetime import timedelta

import pytest

import rmqstore
from rmqstore import Message, Store
from tests.cli.conftest import ENGINE, Command


@pytest.fixture(autouse=True)
def made(cli: Command) -> None:
    rmqstore.open(cli.data, engine=ENGINE, services=False).close()


def names(store: Store) -> list[str]:
    return [each.name for each in store.schedules.list()]


def test_a_schedule_is_made_listed_and_ended(cli: Command) -> None:
    assert "There is no schedule" in cli.good("schedules", "list", "data").out
    nightly = ("nightly", "reports", "sum up", "--cron", "30 2 * * *", "--zone", "Europe/Berlin")
    assert cli.good("schedules", "put", "data", *nightly).out == (
        "schedule nightly sends to reports at 30 2 * * * Europe/Berlin; next 2023-11-15 01:30:00+00:00 (in 3 h).\n"
    )
    cli.good("schedules", "put", "data", "heart", "health", "ping", "--every", "90s", "--no-catch-up", "--tag", "a")
    heart, night = cli.good("schedules", "list", "data", "--json").json["schedules"]
    assert (night["cron"], night["zone"], night["every_ms"], night["catch_up"]) == ("30 2 * * *", "Europe/Berlin", None, True)
    assert (heart["every_ms"], heart["catch_up"], heart["message"]["body"], heart["message"]["tag"]) == (90_000, False, "ping", "a")
    assert [line.split()[0] for line in cli.good("schedules", "list", "data").lines] == ["schedule", "heart", "nightly"]
    assert cli.good("schedules", "delete", "data", "heart").out == "schedule heart is ended.\n"
    assert "There is no schedule heart" in cli.bad(3, "schedules", "delete", "data", "heart")
    with rmqstore.open(cli.data, services=False) as store:
        assert names(store) == ["nightly"]


def test_it_works_beside_the_owner(cli: Command) -> None:
    with rmqstore.open(cli.data, share=True) as store:
        store.schedules.put("a", timedelta(hours=1), Message("t", b"x"))
        cli.good("schedules", "put", "data", "b", "t", "x", "--every", "1h")
        assert names(store) == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ((), 2, "give --cron or --every"),
        (("--cron", "* * * * *", "--every", "1h"), 2, "give --cron or --every"),
        (("--every", "1ms"), 2, "--every"),
        (("--cron", "1 2 3"), 1, "five fields"),
        (("--cron", "* * * * *", "--zone", "Mars/Olympus"), 1, "tzdata"),
    ],
)
def test_what_is_refused(cli: Command, arguments: tuple[str, ...], code: int, told: str) -> None:
    assert told in cli.bad(code, "schedules", "put", "data", "s", "t", "x", *arguments)
    assert cli.good("schedules", "list", "data", "--json").json == {"schedules": []}
