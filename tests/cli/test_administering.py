"""``rmqstore topics``, ``groups``, ``pause`` and ``schedules``."""

from __future__ import annotations

from datetime import timedelta

import pytest

import rmqstore
from rmqstore import Message, Store
from tests.cli.conftest import ENGINE, Command

START = "2023-11-14T22:13:20.000+00:00"


@pytest.fixture
def shop(cli: Command) -> Command:
    """A store with three messages in topic ``orders``, one of which group ``billing`` has acked and one leased."""
    with rmqstore.open(cli.data, engine=ENGINE, clock=cli.clock, services=False) as store:
        store.send_batch([Message("orders", str(number).encode()) for number in range(3)])
        store.ack(store.pop("orders", "billing", max_messages=1))
        store.pop("orders", "billing", max_messages=1)
    return cli


def test_a_topic_is_made_and_widened(shop: Command) -> None:
    assert shop.good("topics", "create", "data", "parcels").out == "topic parcels has 1 queue.\n"
    assert shop.good("topics", "create", "data", "parcels", "--queues", "4").out == "topic parcels has 4 queues.\n"
    assert len(shop.good("topics", "create", "data", "parcels", "-q", "2", "--json").json["queues"]) == 4
    names = [each["name"] for each in shop.good("topics", "list", "data", "--json").json["topics"]]
    assert names == ["orders", "parcels"]


def test_a_topic_is_removed(shop: Command) -> None:
    assert shop.good("topics", "delete", "data", "orders", "--yes").out == "topic orders is removed.\n"
    assert shop.good("topics", "list", "data", "--json").json["topics"] == []


def test_the_retries_of_a_running_owner_are_its_own(shop: Command) -> None:
    assert shop.good("group", "data", "billing").lines[0] == "max_retries  16 (of the store)"
    with shop.owner(max_retries=3):
        assert shop.good("group", "data", "billing").lines[0] == "max_retries  as the program that has the store open was told"


def test_groups_are_listed_and_removed(shop: Command) -> None:
    (found,) = shop.good("groups", "list", "data", "--json").json["groups"]
    assert (found["group"], found["topic"], found["is_ordered"]) == ("billing", "orders", False)
    assert "billing" in shop.good("groups", "list", "data").out
    assert shop.good("groups", "delete", "data", "billing", "-y").out == "group billing is removed.\n"
    assert shop.good("groups", "list", "data").out == "No group has popped yet; the first pop of a group makes it.\n"


@pytest.mark.parametrize(("to", "ready"), [("min", 3), ("max", 0), ("1", 2)])
def test_a_group_is_moved(shop: Command, to: str, ready: int) -> None:
    said = shop.good("groups", "reset-offset", "data", "orders", "billing", "--to", to, "--queue", "0", "--yes")
    assert said.out == f"group billing has {ready} message{'' if ready == 1 else 's'} ready in orders.\n"


def test_a_flow_is_paused_and_resumed(cli: Command) -> None:
    cli.send()
    assert cli.good("pause", "data", "sends", "--reason", "moving house").out == (f"sends are paused since {START}, moving house.\n")
    assert "moving house" in cli.bad(1, "send", "data", "orders", "x")
    assert cli.good("resume", "data", "sends").out == ("sends were paused since 2023-11-14T22:13:20.000+00:00, moving house; they go on.\n")
    assert cli.good("resume", "data", "hand-over").out == "hand-over was not paused.\n"
    cli.send()


def test_who_looks_for_what_a_pause_holds_up_is_told(cli: Command) -> None:
    cli.send()
    cli.good("pop", "data", "orders", "-g", "g")
    cli.send("--delay", "1s")
    cli.good("pause", "data", "hand-over", "--reason", "the bank is down")
    cli.clock.advance(5000)
    popped = cli("pop", "data", "orders", "-g", "g")
    assert f"The hand-over is paused since {START}, the bank is down; `rmqstore resume {cli.data} hand-over` ends that." in " ".join(
        popped.err.split()
    )
    told = " ".join(cli("doctor", "data").out.split())
    assert f"the bank is down; `rmqstore resume {cli.data} hand-over` ends that" in told
    assert "they wait for the end of the pause" in told
    cli.good("resume", "data", "hand-over")
    assert cli.good("pop", "data", "orders", "-g", "g").out


# ---------------------------------------------------------------- schedules


def names(store: Store) -> list[str]:
    return [each.name for each in store.schedules.list()]


def test_a_schedule_is_made_listed_and_ended(shop: Command) -> None:
    assert "There is no schedule" in shop.good("schedules", "list", "data").out
    nightly = ("nightly", "reports", "sum up", "--cron", "30 2 * * *", "--zone", "Europe/Berlin")
    assert shop.good("schedules", "put", "data", *nightly).out == (
        "schedule nightly sends to reports at 30 2 * * * Europe/Berlin; next 2023-11-15 01:30:00+00:00 (in 3 h).\n"
    )
    shop.good("schedules", "put", "data", "heart", "health", "ping", "--every", "90s", "--no-catch-up", "--tag", "a")
    heart, night = shop.good("schedules", "list", "data", "--json").json["schedules"]
    assert (night["cron"], night["zone"], night["every_ms"], night["catch_up"]) == ("30 2 * * *", "Europe/Berlin", None, True)
    assert (heart["every_ms"], heart["catch_up"], heart["message"]["body"], heart["message"]["tag"]) == (90_000, False, "ping", "a")
    assert [line.split()[0] for line in shop.good("schedules", "list", "data").lines] == ["schedule", "heart", "nightly"]
    assert shop.good("schedules", "delete", "data", "heart").out == "schedule heart is ended.\n"
    assert "There is no schedule heart" in shop.bad(3, "schedules", "delete", "data", "heart")
    with rmqstore.open(shop.data, services=False) as store:
        assert names(store) == ["nightly"]


def test_a_schedule_is_made_beside_the_owner(shop: Command) -> None:
    with rmqstore.open(shop.data, share=True) as store:
        store.schedules.put("a", timedelta(hours=1), Message("t", b"x"))
        shop.good("schedules", "put", "data", "b", "t", "x", "--every", "1h")
        assert names(store) == ["a", "b"]
