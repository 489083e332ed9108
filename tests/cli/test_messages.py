"""``rmqstore send`` and ``pop``: what sessions do not show, such as bodies of bytes, and what becomes of messages that are not printed."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

import pytest

import rmqstore
from rmqstore import Message
from rmqstore.cli import show
from rmqstore.contract import AckOutcome
from rmqstore.store.administration import Groups
from rmqstore_conformance.damaging import damage_messages
from tests.cli.conftest import ENGINE, Command

POP = ("pop", "data", "orders", "--group", "g")
MINUTE_MS = 60_000


def lag(cli: Command) -> tuple[int, int, int, int]:
    with cli.owner() as store:
        found = store.lag("orders", "g")
    return found.ready, found.in_flight, found.retry, found.dead


def popped(cli: Command, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cli.good(*POP, "--json", *arguments).lines]


# ---------------------------------------------------------------- sends


def test_a_directory_of_something_else_is_left_alone(cli: Command) -> None:
    assert "make one with --create" in cli.bad(1, "send", "data", "orders", "hi")
    cli.data.mkdir()
    assert "the directory is empty" in cli.bad(1, "send", "data", "orders", "hi")
    cli.file("data/other", "x")
    for path in (str(cli.data), cli.file("file", "x")):
        assert "is no store, and something else is there" in cli.bad(1, "send", path, "orders", "hi")
    assert "is no store and not empty" in cli.bad(1, "send", "data", "orders", "hi", "--create", "--engine", ENGINE)


def test_the_body_comes_from_the_command_line_a_file_or_stdin(cli: Command) -> None:
    cli.send(body="one")
    path = cli.file("body", b"\x00two\n")
    cli.good("send", "data", "orders", "--body-file", path)
    cli.good("send", "data", "orders", stdin=b"three\xff\n")
    with cli.owner() as store:
        assert [message.body for message in store.pop("orders", "g")] == [b"one", b"\x00two\n", b"three\xff\n"]


@pytest.mark.parametrize(
    ("holder", "said"),
    [
        (f"pid {os.getpid()}, started 1\n", f"by pid {os.getpid()}; processes that all"),
        ("pid 7623, started 793292\n", "by pid 7623; processes that all"),
        ("pid 7623", "by pid 7623; processes that all"),
        ("", "by a process that did not say who it is; processes that all"),
        ("\x1b[2J", "by a process that did not say who it is; processes that all"),
    ],
    ids=["our pid in another container", "another", "no start", "nobody", "no holder"],
)
def test_the_holder_is_named_without_what_nobody_can_read(cli: Command, holder: str, said: str) -> None:
    cli.send()
    with cli.owner():
        cli.file("data/LOCK", holder)
        assert f"is open elsewhere, {said}" in cli.bad(1, "send", "data", "orders", "x")


# ---------------------------------------------------------------- pops


def test_one_message_by_default_and_max_in_all(cli: Command) -> None:
    with cli.owner(engine=ENGINE) as store:
        store.send_batch([Message("orders", b"body", message_id=f"m{number}") for number in range(80)])
    assert [message["message_id"] for message in popped(cli)] == ["m0"]
    assert [message["message_id"] for message in popped(cli, "--max", "70")] == [f"m{number}" for number in range(1, 71)]
    assert len(popped(cli, "-n", "1000")) == 9
    assert popped(cli) == []


def test_bodies_that_are_no_text_or_would_drive_the_terminal_are_base64(cli: Command) -> None:
    cli.send(body="two\nlines\t!")
    for body in (b"\x00\xff", b"\x1b[2J"):
        cli.good("send", "data", "orders", stdin=body)
    lines = cli.good(*POP, "--max", "3").lines
    assert lines[1:3] == ["  two", "  lines\t!"]
    assert lines[4] == "  base64:AP8="
    assert lines[6] == "  base64:G1sySg=="


def test_texts_are_shown_without_control_characters(cli: Command) -> None:
    cli.send("--tag", "a\x9b31mb", "--property", "x=\x1b[2J")
    assert "tag=a\\x9b31mb  x=\\x1b[2J" in cli.good(*POP).out


def test_a_group_that_is_new_to_a_topic_is_told_where_it_begins(cli: Command) -> None:
    cli.send()
    cli.good("send", "data", "others", "x")
    new = "Group g is new to topic {} and begins with the first kept message.\n"
    assert cli.good(*POP).err.startswith(new.format("orders"))
    assert "new to" not in cli.good(*POP).err, "it has popped the topic, although there is nothing more"
    assert cli.good("pop", "data", "others", "-g", "g").err.startswith(new.format("others"))
    with cli.owner() as store:
        store.groups.reset_offset("orders", "moved", 1)
    assert "new to" not in cli.good("pop", "data", "orders", "-g", "moved").err, "reset_offset said where it begins"
    assert "new to" not in cli.good("pop", "data", "none", "-g", "g", "--wait", "1ms", "--create").err


# ---------------------------------------------------------------- when printing ends early


def test_what_was_not_printed_is_given_back(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        cli.send("--id", f"m{number}")
    printed = []
    json_line = show.json_line

    def failing(document: Any) -> None:
        if len(printed) == 2:
            raise BrokenPipeError(32, "Broken pipe")
        printed.append(document["message_id"])
        json_line(document)

    monkeypatch.setattr(show, "json_line", failing)
    result = cli(*POP, "--json", "--max", "5")
    assert result.code == 1
    assert result.err == "Group g is new to topic orders and begins with the first kept message.\n"
    assert lag(cli) == (3, 0, 0, 0) or lag(cli) == (0, 0, 3, 0)
    monkeypatch.setattr(show, "json_line", json_line)
    rest = popped(cli, "--max", "5")
    assert sorted(each["message_id"] for each in rest) == ["m2", "m3", "m4"]
    assert {each["attempt"] for each in rest} == {1}, "a lease that was given back does not count"


def test_an_ack_that_comes_too_late_is_told(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.send("--id", "m1")
    monkeypatch.setattr(rmqstore.Store, "ack", lambda store, messages: [AckOutcome.STALE for _ in messages])
    result = cli(*POP)
    assert result.code == 3
    assert "message m1 was not acked, the lease is stale; it may come again" in result.err


@pytest.mark.parametrize("command", ["ack", "cancel"])
def test_of_nothing_given_everything_is_done(cli: Command, command: str) -> None:
    cli.send()
    assert cli.good(command, "data", "-", "--json").json == {"items": [], "all_done": True}


# ---------------------------------------------------------------- what is where


def test_peek_counts_what_it_cannot_read(cli: Command) -> None:
    for body in ("first", "second", "third"):
        cli.send(body=body)
    with cli.owner() as store:
        damage_messages(store, b"second")
    result = cli.good("peek", "data", "orders")
    assert ("first" in result.out, "third" in result.out) == (True, True)
    assert f"1 message in between cannot be read; `rmqstore verify {cli.data}` says why." in result.err
    assert "cannot be read" not in cli.good("peek", "data", "orders", "--offset", "2").err


def test_lag_and_leases_tell_who_backs_off(cli: Command) -> None:
    cli.send()
    with cli.owner() as store:
        store.retry_later(store.pop("orders", "w"), timedelta(minutes=1), reason="no answer")
    assert "backing off" in cli.good("lag", "data", "-g", "w").out
    assert "no answer" in cli.good("leases", "data", "-g", "w").out


def test_a_group_is_known_by_its_dead_letters_alone(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQSTORE_MAX_RETRIES", "0")
    cli.send()
    cli.good(*POP, "--no-ack", "--invisible", "1s")
    cli.clock.advance(2000)
    cli.good(*POP)
    monkeypatch.setattr(Groups, "list", lambda groups: [])
    assert len(cli.good("dlq", "list", "data", "g", "--json").json["dead_letters"]) == 1
