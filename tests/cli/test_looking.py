"""``rmqstore topics``, ``lag``, ``peek`` and ``leases``: what is where, and who holds it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from rmqstore import Message
from rmqstore_conformance.stores import START_MS
from tests.cli.conftest import ENGINE, Command

MINUTE_MS = 60_000


@pytest.fixture
def cli(cli: Command) -> Command:
    """Topic ``a`` with 5 messages of which group g acked one and holds two; topic ``b`` with one in each of two queues."""
    with cli.owner(engine=ENGINE) as store:
        for number in range(5):
            store.send(Message("a", f"body {number}".encode(), tag="new", keys=("k",), message_id=f"m{number}"))
        store.topics.create("b", 2)
        for queue in range(2):
            store.send(Message("b", b"x", queue_id=queue, message_id=f"b{queue}"))
        store.ack(store.pop("a", "g", max_messages=1))
        cli.clock.advance(1000)
        store.pop("a", "g", max_messages=2, invisible_ms=5 * MINUTE_MS)
    return cli


# ---------------------------------------------------------------- topics


def test_topics(cli: Command) -> None:
    result = cli.good("topics", "data")
    assert [line.split() for line in result.lines] == [
        ["topic", "queues", "messages", "first", "kept", "next", "offset"],
        ["a", "1", "5", "0", "5"],
        ["b", "2", "2", "0", "1"],
    ]
    document = cli.good("topics", "data", "--json").json
    assert document["topics"][1] == {
        "name": "b",
        "queues": [{"queue_id": queue, "min_offset": 0, "next_offset": 1} for queue in range(2)],
    }


def test_system_topics_on_demand(cli: Command) -> None:
    cli.clock.advance(6 * MINUTE_MS)
    cli.good("pop", "data", "a", "-g", "g")
    assert "%RETRY%g+a" not in cli.good("topics", "data").out
    assert "%RETRY%g+a" in cli.good("topics", "data", "--system").out


def test_a_store_without_topics(cli: Command) -> None:
    cli.good("send", str(cli.root / "new"), "t", "x", "--delay", "1h", "--create", "--engine", ENGINE)
    assert cli.good("topics", str(cli.root / "new")).out.startswith("There is no topic yet")
    assert cli.good("lag", str(cli.root / "new")).out == "No group has popped yet.\n"


# ---------------------------------------------------------------- lag


def test_lag(cli: Command) -> None:
    result = cli.good("lag", "data")
    assert [line.split() for line in result.lines[1:]] == [["g", "a", "2", "2", "0", "0"]]
    assert "rmqstore leases" in result.err
    (found,) = cli.good("lag", "data", "--json").json["lags"]
    assert found == {
        "group": "g",
        "topic": "a",
        "ready": 2,
        "in_flight": 2,
        "retry": 0,
        "dead": 0,
        "expired": 0,
        "backing_off": 0,
        "queues": [{"queue_id": 0, "next_offset": 3, "end_offset": 5, "in_flight": 2}],
    }


def test_lag_by_queue(cli: Command) -> None:
    cli.good("pop", "data", "b", "-g", "g", "--queue", "1")
    rows = [line.split() for line in cli.good("lag", "data", "--queues").lines[1:]]
    assert ["g", "a", "0", "3", "5", "2", "2"] in rows
    assert ["g", "b", "1", "1", "1", "0", "0"] in rows
    assert any(row[:3] == ["g", "b", "0"] for row in rows)


def test_lag_of_a_group_and_of_a_topic(cli: Command) -> None:
    cli.good("pop", "data", "b", "-g", "other")
    assert [line.split()[:2] for line in cli.good("lag", "data").lines[1:]] == [["g", "a"], ["other", "b"]]
    assert [line.split()[:2] for line in cli.good("lag", "data", "-g", "g").lines[1:]] == [["g", "a"]]
    assert [line.split()[:2] for line in cli.good("lag", "data", "-t", "b").lines[1:]] == [["other", "b"]]
    never = cli.good("lag", "data", "-g", "other", "-t", "a", "--json").json["lags"]
    assert [(each["ready"], each["queues"]) for each in never] == [(4, [])], "one was consumed by the only group that there was"
    assert "has no topic 'c'; it has a, b" in cli.bad(1, "lag", "data", "-t", "c")


def test_a_topic_or_group_without_leases_is_none(cli: Command) -> None:
    assert cli.good("leases", "data", "-t", "b").err == "No message is leased.\n"
    cli.good("pop", "data", "b", "-g", "other")
    assert cli.good("leases", "data", "-g", "other").err == "No message is leased.\n"


# ---------------------------------------------------------------- peek


def test_peek_reads_and_takes_nothing(cli: Command) -> None:
    result = cli.good("peek", "data", "a", "--max", "2")
    assert result.lines == [
        "a queue 0 offset 0  m0  tag=new  keys=k",
        "  came 2023-11-14 22:13:20+00:00 (1 s ago)",
        "  body 0",
        "a queue 0 offset 1  m1  tag=new  keys=k",
        "  came 2023-11-14 22:13:20+00:00 (1 s ago)",
        "  body 1",
    ]
    assert f"`rmqstore peek {cli.data} a --queue 0 --offset 2`" in result.err
    assert cli.good("lag", "data", "--json").json["lags"][0]["ready"] == 2


def test_peek_from_an_offset_and_in_a_queue(cli: Command) -> None:
    document = cli.good("peek", "data", "a", "--offset", "3", "--max", "1", "--json").json
    assert [message["queue_offset"] for message in document["messages"]] == [3]
    assert document["next_offset"] == 4
    assert cli.good("peek", "data", "a", "--offset", "4", "--json").json["next_offset"] is None
    assert [message["message_id"] for message in cli.good("peek", "data", "b", "--queue", "1", "--json").json["messages"]] == ["b1"]
    beyond = cli.good("peek", "data", "a", "--offset", "9")
    assert (beyond.out, beyond.err.split(";")[0]) == ("", "Nothing lies there")


def test_peek_by_id(cli: Command) -> None:
    assert cli.good("peek", "data", "--id", "b1").lines[0] == "b queue 1 offset 0  b1"
    missing = cli("peek", "data", "--id", "none")
    assert (missing.code, missing.out) == (3, "")
    assert "No message with id none is in a topic" in missing.err
    assert cli("peek", "data", "--id", "none", "--json").json == {"messages": [], "next_offset": None}


# ---------------------------------------------------------------- where


def test_where_says_for_each_group_how_far_it_is(cli: Command) -> None:
    document = cli.good("where", "data", "--id", "m1", "--json").json
    (found,) = document["places"]
    assert (found["state"], found["group"], found["topic"], found["attempt"]) == ("leased", "g", "a", 1)
    assert found["until_ms"] == START_MS + 1000 + 5 * MINUTE_MS
    lines = cli.good("where", "data", "--id", "m1", "-t", "a").lines
    assert [line.split()[0] for line in lines] == ["state", "leased"]
    assert cli.good("ack", "data", found["receipt"]).out.startswith("acked")


def test_where_tells_of_a_timer_how_it_is_cancelled(cli: Command) -> None:
    handle = cli.send("--delay", "5m", "--key", "later")["handle"]
    (found,) = cli.good("where", "data", "--key", "later", "--json").json["places"]
    assert (found["state"], found["handle"], found["queue_id"], found["queue_offset"]) == ("pending", handle, None, None)
    assert handle in cli.good("where", "data", "--key", "later").out


@pytest.mark.parametrize("asked", [("--id", "m99"), ("--id", "m1", "-t", "b"), ("--key", "nobody")])
def test_what_is_nowhere(cli: Command, asked: tuple[str, ...]) -> None:
    missing = cli("where", "data", *asked)
    assert (missing.code, missing.out) == (3, "")
    assert "every group is done with it" in missing.err


# ---------------------------------------------------------------- leases


def test_leases_say_who_holds_what_until_when(cli: Command) -> None:
    cli.clock.advance(MINUTE_MS)
    document = cli.good("leases", "data", "--json").json
    assert [(lease["group"], lease["topic"], lease["message_id"], lease["attempt"]) for lease in document["leases"]] == [
        ("g", "a", "m1", 1),
        ("g", "a", "m2", 1),
    ]
    first = document["leases"][0]
    assert (first["pop_time_ms"], first["expiry_ms"]) == (START_MS + 1000, START_MS + 1000 + 5 * MINUTE_MS)
    result = cli.good("leases", "data")
    assert "2023-11-14 22:18:21+00:00  in 4 min  m1" in result.lines[1]
    assert result.err == "2 leases, of 1 group.\n"
    assert cli.good("ack", "data", first["receipt"]).out.startswith("acked")
    assert len(cli.good("leases", "data", "--json").json["leases"]) == 1


def test_leases_of_one_message_group_or_topic(cli: Command) -> None:
    cli.good("pop", "data", "b", "-g", "other", "--no-ack")
    count = {
        option: len(cli("leases", "data", *option, "--json").json["leases"])
        for option in (("--id", "m2"), ("--group", "g"), ("--topic", "b"), ("--group", "g", "--topic", "b"))
    }
    assert list(count.values()) == [1, 2, 1, 0]
    missing = cli("leases", "data", "--id", "m0")
    assert (missing.code, missing.err) == (3, "No message with id m0 is leased.\n")


def test_leases_of_a_narrow_terminal(cli: Command, terminal: Callable[[int], None]) -> None:
    terminal(80)
    lines = cli.good("leases", "data", "--id", "m1").lines
    assert [line.split()[0] for line in lines] == ["group", "g", "popped", "receipt"]
    assert max(map(len, lines)) <= 80


def test_no_leases(cli: Command) -> None:
    with cli.owner() as store:
        store.groups.reset_offset("a", "g", 5)
    assert cli.good("leases", "data").err == "No message is leased.\n"


# ---------------------------------------------------------------- group


def test_a_group_is_shown_and_set(cli: Command) -> None:
    assert "max_retries  16 (of the store)" in cli.good("group", "data", "g").out
    assert "max_retries  3\n" in cli.good("group", "data", "g", "--max-retries", "3").out
    assert "backoff      1s, 5m\n" in cli.good("group", "data", "g", "--backoff", "1s,5m").out
    assert cli.good("group", "data", "g", "--json").json == {"group": "g", "max_retries": 3, "backoff_ms": [1000, 300_000]}
    assert "(of the store)" in cli.good("group", "data", "g", "--reset").out
    assert "--reset takes everything back" in cli("group", "data", "g", "--reset", "--max-retries", "1").err


def test_lag_and_leases_tell_who_backs_off(cli: Command) -> None:
    with cli.owner() as store:
        store.retry_later(store.pop("b", "w", max_messages=1), timedelta(minutes=1), reason="no answer")
    assert "backing off" in cli.good("lag", "data", "-g", "w").out
    assert "no answer" in cli.good("leases", "data", "-g", "w").out
