"""``rmqstore dlq``: what lies there and why, giving it back, dropping it."""

from __future__ import annotations

import pytest

from rmqstore import Message
from rmqstore.store.administration import Groups
from rmqstore_conformance.stores import DAY_MS, START_MS
from tests.cli.conftest import ENGINE, Command

MINUTE_MS = 60_000


@pytest.fixture
def cli(cli: Command) -> Command:
    """A store in which group g gave up m0, and a day later m1 and m2."""
    with cli.owner(engine=ENGINE, max_retries=0) as store:
        for number in range(3):
            store.send(Message("orders", f"body {number}".encode(), message_id=f"m{number}"))
        for count in (1, 2):
            store.pop("orders", "g", max_messages=count, invisible_ms=MINUTE_MS)
            cli.clock.advance(MINUTE_MS)
            store.tick()
            cli.clock.advance(DAY_MS)
    return cli


def test_the_list_says_what_why_and_when(cli: Command) -> None:
    result = cli.good("dlq", "list", "data", "g")
    assert len(result.lines) == 4
    assert result.lines[0].split() == ["died", "ago", "origin", "topic", "attempts", "id", "reason", "body"]
    died = result.lines[1].split(maxsplit=8)
    assert died[:8] == ["2023-11-14", "22:14:20+00:00", "2", "d", "ago", "orders", "1", "m0"]
    assert died[8].endswith("without an ack  body 0")
    assert result.err.startswith("3 dead letters of group g; `rmqstore dlq resend -h`")
    first, *_ = cli.good("dlq", "list", "data", "g", "--json").json["dead_letters"]
    assert (first["group"], first["origin_topic"], first["died_ms"]) == ("g", "orders", START_MS + MINUTE_MS)
    assert first["died_iso"] == "2023-11-14T22:14:20.000+00:00"
    assert (first["attempts"], first["reason"].split()[0]) == (1, "delivered")
    assert (first["message"]["body"], first["message"]["message_id"]) == ("body 0", "m0")


def test_groups_that_have_any(cli: Command) -> None:
    cli.good("pop", "data", "orders", "-g", "well", "--max", "3")
    assert [line.split() for line in cli.good("dlq", "list", "data").lines[1:]] == [["g", "3"]]
    assert cli.good("dlq", "list", "data", "--json").json == {"groups": {"g": 3}}
    assert cli.good("dlq", "list", "data", "well").out == "Group well has no dead letters.\n"
    assert cli.good("lag", "data", "-g", "g", "--json").json["lags"][0]["dead"] == 3


def test_a_group_is_known_by_its_dead_letters_alone(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Groups, "list", lambda groups: [])
    assert len(cli.good("dlq", "list", "data", "g", "--json").json["dead_letters"]) == 3


def test_resend_gives_back_those_that_are_named(cli: Command) -> None:
    assert cli.good("dlq", "resend", "data", "g", "--id", "m1").out == "1 dead letter given back\n"
    result = cli.good("pop", "data", "orders", "-g", "g", "--max", "5")
    assert "m1" in result.lines[0]
    assert len(result.lines) == 2
    assert cli.good("dlq", "resend", "data", "g", "--all", "--json").json == {"done": 2, "not_found": []}
    assert cli.good("dlq", "list", "data", "g").out == "Group g has no dead letters.\n"


def test_an_id_that_is_not_there(cli: Command) -> None:
    result = cli("dlq", "resend", "data", "g", "--id", "m1", "--id", "none")
    assert (result.code, result.out) == (3, "1 dead letter given back\n")
    assert "There is none with id none." in result.err


def test_drop_by_id_age_and_all(cli: Command) -> None:
    assert cli.good("dlq", "drop", "data", "g", "--older-than", "36h").out == "1 dead letter dropped\n"
    assert cli.good("dlq", "drop", "data", "g", "--id", "m2").out == "1 dead letter dropped\n"
    assert [each["message"]["message_id"] for each in cli.good("dlq", "list", "data", "g", "--json").json["dead_letters"]] == ["m1"]
    assert cli.good("dlq", "drop", "data", "g", "--all", "--json").json == {"done": 1, "not_found": []}
    assert cli.good("dlq", "drop", "data", "g", "--all").out == "0 dead letters dropped\n"


def test_parked_entries(cli: Command) -> None:
    assert cli.good("dlq", "list", "data", "--parked").out == "Nothing is parked.\n"
    assert cli.good("dlq", "list", "data", "--parked", "--json").json["dead_letters"] == []
    assert cli.good("dlq", "drop", "data", "--parked", "--all").out == "0 dead letters dropped\n"
