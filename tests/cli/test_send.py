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
