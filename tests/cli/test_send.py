"""``rmqstore send``: one message with all its fields, when it is due, and what is refused."""

from __future__ import annotations

import os

import pytest

import rmqstore
from rmqstore.delays import DELAY_LEVELS_MS
from rmqstore_conformance.stores import HOUR_MS, START_MS
from tests.cli.conftest import ENGINE, Command

MINUTE_MS = 60_000


def test_a_store_that_does_not_exist_is_made_only_on_demand(cli: Command) -> None:
    said = cli.bad(1, "send", "data", "orders", "hi")
    assert "the directory does not exist" in said
    assert "--create" in said
    assert not cli.data.exists()
    cli.good("send", "data", "orders", "hi", "--create", "--engine", ENGINE, "--set", "precision_ms=100", "--set", "default_queues=3")
    with cli.owner() as store:
        assert store.engine.config.precision_ms == 100
        assert store.topics.list()[0].queues == 3


def test_a_directory_of_something_else_is_left_alone(cli: Command) -> None:
    cli.data.mkdir()
    assert "the directory is empty" in cli.bad(1, "send", "data", "orders", "hi")
    cli.file("data/other", "x")
    assert "is no store" in cli.bad(1, "send", "data", "orders", "hi")
    assert "is no store and not empty" in cli.bad(1, "send", "data", "orders", "hi", "--create", "--engine", ENGINE)


def test_an_empty_path_is_not_the_current_directory(cli: Command) -> None:
    assert "directory's name" in cli.bad(2, "send", "", "orders", "hi", "--create", "--engine", ENGINE)
    assert not cli.data.exists()


def test_all_fields(cli: Command) -> None:
    fields = ("--tag", "new", "-k", "42", "--key", "x", "-p", "region=eu", "-p", "a=b=c", "--group-key", "g", "--id", "m1", "--queue", "0")
    assert cli.good("send", "data", "orders", "close 42", *fields, "--create", "--engine", ENGINE).out == "id  m1\n"
    with cli.owner() as store:
        (message,) = store.pop("orders", "g")
    assert (message.body, message.tag, message.keys, message.message_id) == (b"close 42", "new", ("42", "x"), "m1")
    assert (dict(message.properties), message.message_group) == ({"region": "eu", "a": "b=c"}, "g")


def test_the_body_comes_from_the_command_line_a_file_or_stdin(cli: Command) -> None:
    cli.send(body="one")
    path = cli.file("body", b"\x00two\n")
    cli.good("send", "data", "orders", "--body-file", path)
    cli.good("send", "data", "orders", stdin=b"three\xff\n")
    with cli.owner() as store:
        assert [message.body for message in store.pop("orders", "g")] == [b"one", b"\x00two\n", b"three\xff\n"]
    assert "exclude each other" in cli.bad(2, "send", "data", "orders", "x", "--body-file", path)
    assert "cannot be read: No such file" in cli.bad(1, "send", "data", "orders", "--body-file", f"{path}.not")
    assert "body has 0 bytes" in cli.bad(1, "send", "data", "orders")


@pytest.mark.parametrize(
    ("option", "after_ms"),
    [
        (("--delay", "5m"), 5 * MINUTE_MS),
        (("-d", "90000ms"), 90_000),
        (("--at", f"{START_MS + HOUR_MS}ms"), HOUR_MS),
        (("--at", "2023-11-15T00:13:20+01:00"), HOUR_MS),
        (("--delay-level", "18"), DELAY_LEVELS_MS[17]),
    ],
)
def test_a_message_for_later_waits_for_its_time(cli: Command, option: tuple[str, str], after_ms: int) -> None:
    sent = cli.send(*option)
    assert sent["deliver_at_ms"] == START_MS + after_ms
    assert sent["handle"]
    with cli.owner() as store:
        assert store.pending().earliest_ms == START_MS + after_ms
        assert store.cancel(sent["handle"]) is rmqstore.CancelOutcome.CANCELLED


def test_what_is_printed_for_a_later_message(cli: Command) -> None:
    cli.send()
    result = cli.good("send", "data", "orders", "x", "--id", "m2", "--delay", "30m")
    assert [line.split()[0] for line in result.lines] == ["id", "handle"]
    assert result.lines[0] == "id      m2"
    assert "due 2023-11-14 22:43:20+00:00 (in 30 min)" in result.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--delay", "5 minutes"), "Invalid value for --delay: '5 minutes' is no duration; write 90s, 5m"),
        (("--at", "soon"), "Invalid value for --at: 'soon' is no time; write 2026-12-01"),
        (("--delay", "5m", "--at", "2026-12-01"), "--delay and --at exclude each other"),
        (("--delay=-5m",), "Invalid value for --delay: '-5m' is less than nothing; a duration must not be negative"),
        (("--delay-level", "99"), "Invalid value for --delay-level: it must be 1 to 18 (1 s to 2 h), not 99; give --delay"),
        (("--delay-level", "0"), "it must be 1 to 18 (1 s to 2 h), not 0"),
        (("--property", "x"), "'x' has no '='; write NAME=VALUE"),
        (("--queue", "-1"), "--queue"),
    ],
)
def test_a_command_line_that_is_not_understood(cli: Command, arguments: tuple[str, ...], said: str) -> None:
    cli.send()
    assert said in cli.bad(2, "send", "data", "orders", "x", *arguments)
    assert cli.good("topics", "data", "--json").json["topics"][0]["queues"] == [{"queue_id": 0, "min_offset": 0, "next_offset": 1}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--tag", "a b"), "tag 'a b' holds a blank"),
        (("--group-key", "g", "--delay", "5m"), "exclude each other"),
        (("--set", "precision_ms"), "write key=value"),
        (("--set", "precisoin_ms=100"), "did you mean precision_ms?"),
        (("--set", "precision_ms=7"), "precision_ms must be"),
        (("--engine", "no_such_engine"), "no engine is called 'no_such_engine'"),
    ],
)
def test_a_refused_message_or_setting_makes_no_store(cli: Command, arguments: tuple[str, ...], said: str) -> None:
    assert said in cli.bad(1, "send", "data", "orders", "x", "--create", *arguments)
    assert not (cli.data / "rmqstore.json").exists()


def test_a_topic_is_needed(cli: Command) -> None:
    cli.send()
    assert "give the topic" in cli.bad(2, "send", "data")
    assert "is not made of letters" in cli.bad(1, "send", "data", "a b", "x")


def test_a_store_that_is_in_use_names_its_holder(cli: Command) -> None:
    cli.send()
    with cli.owner():
        assert "is open elsewhere, by this process (pid" in cli.bad(1, "send", "data", "orders", "x")


@pytest.mark.parametrize(
    ("holder", "said"),
    [
        (f"pid {os.getpid()}, started 1\n", f"by pid {os.getpid()}; one process"),
        ("pid 7623, started 793292\n", "by pid 7623; one process"),
        ("pid 7623", "by pid 7623; one process"),
        ("", "by a process that did not say who it is; one process"),
        ("\x1b[2J", "by a process that did not say who it is; one process"),
    ],
    ids=["our pid in another container", "another", "no start", "nobody", "no holder"],
)
def test_the_holder_is_named_without_what_nobody_can_read(cli: Command, holder: str, said: str) -> None:
    cli.send()
    with cli.owner():
        cli.file("data/LOCK", holder)
        assert f"is open elsewhere, {said}" in cli.bad(1, "send", "data", "orders", "x")


def test_a_setting_that_cannot_change_is_refused(cli: Command) -> None:
    cli.send()
    assert "was made with precision_ms = 1000" in cli.bad(1, "send", "data", "orders", "x", "--set", "precision_ms=100")
