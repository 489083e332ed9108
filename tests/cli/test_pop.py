"""``rmqstore pop``, ``ack`` and ``cancel``: what is printed, what is settled, and what becomes of the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest

import rmqstore
from rmqstore.cli import show
from rmqstore.contract import AckOutcome
from rmqstore_conformance.stores import START_MS
from tests.cli.conftest import Command

POP = ("pop", "data", "orders", "--group", "g")
MINUTE_MS = 60_000


def lag(cli: Command) -> tuple[int, int, int, int]:
    with cli.owner() as store:
        found = store.lag("orders", "g")
    return found.ready, found.in_flight, found.retry, found.dead


def popped(cli: Command, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cli.good(*POP, "--json", *arguments).lines]


def test_a_message_is_printed_and_acked(cli: Command) -> None:
    cli.send("--id", "m1", "--tag", "new", "--key", "1", "--key", "2", "--property", "region=eu", body='{"close": 42}')
    result = cli.good(*POP)
    assert result.lines == ["2023-11-14 22:13:20+00:00  m1  tag=new  keys=1,2  region=eu", '  {"close": 42}']
    assert result.err == "Group g is new to topic orders and begins with the first kept message.\n1 message, acked.\n"
    assert lag(cli) == (0, 0, 0, 0)


def test_one_message_by_default_and_max_in_all(cli: Command) -> None:
    for number in range(80):
        cli.send("--id", f"m{number}")
    assert [message["message_id"] for message in popped(cli)] == ["m0"]
    assert [message["message_id"] for message in popped(cli, "--max", "70")] == [f"m{number}" for number in range(1, 71)]
    assert len(popped(cli, "-n", "1000")) == 9
    assert popped(cli) == []


def test_nothing_ready_is_said_on_stderr(cli: Command) -> None:
    cli.send()
    cli.good(*POP)
    result = cli.good(*POP)
    assert result.out == ""
    assert result.err.startswith("Nothing is ready in topic orders for group g; `rmqstore lag ")


def test_without_ack_the_receipt_and_the_end_of_the_lease_are_printed(cli: Command) -> None:
    cli.send("--id", "m1")
    result = cli.good(*POP, "--no-ack", "--invisible", "5m")
    receipt = result.lines[2].removeprefix("  receipt: ")
    assert result.lines[3] == "  lease ends 2023-11-14 22:18:20+00:00 (in 5 min)"
    assert lag(cli) == (0, 1, 0, 0)
    acked = cli.good("ack", "data", receipt)
    assert acked.out == f"acked  {receipt}\n"
    assert lag(cli) == (0, 0, 0, 0)
    again = cli("ack", "data", receipt)
    assert (again.code, again.out) == (3, f"already acked  {receipt}\n")


def test_the_document_of_a_message(cli: Command) -> None:
    cli.send("--id", "m1", "--tag", "new", body="ü")
    cli.good("send", "data", "orders", "--id", "m2", stdin=b"\xff")
    first, second = popped(cli, "--max", "2", "--no-ack")
    assert (first["body"], first["body_base64"], first["tag"], first["attempt"]) == ("ü", None, "new", 1)
    assert (second["body"], second["body_base64"], second["keys"], second["properties"]) == (None, "/w==", [], {})
    assert (first["store_ms"], first["store_iso"]) == (START_MS, "2023-11-14T22:13:20.000+00:00")
    assert (first["lease_end_ms"], first["first_pop_ms"]) == (START_MS + MINUTE_MS, START_MS)
    assert rmqstore.Receipt.parse(first["receipt"]) is not None


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


def test_what_is_due_or_expired_is_moved_first(cli: Command) -> None:
    cli.send("--id", "later", "--delay", "10m")
    assert "has no topic 'orders'" in cli.bad(1, *POP)
    cli.clock.advance(10 * MINUTE_MS)
    assert popped(cli, "--no-ack")[0]["message_id"] == "later"
    cli.clock.advance(MINUTE_MS + 1000)
    again = cli.good(*POP)
    assert "  attempt 2" in again.lines[0]


def test_options_go_to_the_store(cli: Command) -> None:
    cli.send("--tag", "old", "--set", "default_queues=2", "--queue", "0", "--id", "m0")
    cli.good("send", "data", "orders", "x", "--tag", "new", "--queue", "1", "--id", "m1")
    assert [message["message_id"] for message in popped(cli, "--filter", "new", "--no-ack", "--max", "5")] == ["m1"]
    with cli.owner() as store:
        store.groups.reset_offset("orders", "g", 0)
    assert [message["message_id"] for message in popped(cli, "--queue", "0", "--no-ack")] == ["m0"]


def test_filters_by_properties(cli: Command) -> None:
    cli.send("--property", "region=eu", "--property", "amount=5", "--id", "m0")
    cli.send("--property", "region=eu", "--property", "amount=50", "--id", "m1")
    assert [each["message_id"] for each in popped(cli, "--filter", "region = 'eu' AND amount > 10", "--max", "5")] == ["m1"]


def test_pops_in_order(cli: Command) -> None:
    for number in range(3):
        cli.send("--group-key", "k", "--id", f"m{number}")
    assert [each["message_id"] for each in popped(cli, "--order", "--no-ack", "--max", "2")] == ["m0", "m1"]
    assert popped(cli, "--order") == [], "one run at a time"
    cli.clock.advance(MINUTE_MS)
    assert [each["message_id"] for each in popped(cli, "--order", "--max", "5")] == ["m0", "m1", "m2"]
    assert "pops topic 'orders' in order, as its first pop fixed; add --order, or use another group" in cli.bad(1, *POP)


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


def test_only_who_asks_for_it_makes_a_topic_and_a_group_with_it(cli: Command) -> None:
    cli.send()
    cli.good("pop", "data", "order", "-g", "typo", "--wait", "1ms", "--create")
    with cli.owner() as store:
        assert ([topic.name for topic in store.topics.list()], store.groups.list()) == (["order", "orders"], ["typo"])


def test_a_new_group_that_begins_at_the_end_is_told_so(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.send()
    monkeypatch.setenv("RMQSTORE_INIT", "max")
    result = cli.good(*POP)
    assert result.out == ""
    assert result.err.startswith("Group g is new to topic orders and begins after the last message, since init is max.\n")


def test_an_attempt_that_is_repeated_gives_the_same_leases(cli: Command) -> None:
    cli.send("--id", "m0")
    cli.send("--id", "m1")
    first = popped(cli, "--attempt-id", "a1", "--no-ack", "--max", "2")
    assert len(first) == 2
    assert [each["receipt"] for each in popped(cli, "--attempt-id", "a1", "--no-ack", "--max", "2")] == [each["receipt"] for each in first]


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


# ---------------------------------------------------------------- acks and cancels


def test_receipts_without_quotes_are_put_together(cli: Command) -> None:
    cli.send()
    cli.send()
    receipts = [each["receipt"] for each in popped(cli, "--no-ack", "--max", "2")]
    assert cli.good("ack", "data", *" ".join(receipts).split()).out == "".join(f"acked  {receipt}\n" for receipt in receipts)


def test_receipts_from_stdin(cli: Command) -> None:
    cli.send()
    (receipt,) = [each["receipt"] for each in popped(cli, "--no-ack")]
    document = cli("ack", "data", "-", "--json", stdin=f"{receipt}\n\nno receipt\n")
    assert document.code == 3
    assert document.json == {
        "items": [{"receipt": receipt, "outcome": "acked"}, {"receipt": "no receipt", "outcome": "unknown"}],
        "all_done": False,
    }


def test_a_bad_receipt_is_unknown(cli: Command) -> None:
    cli.send()
    result = cli("ack", "data", "1 2 3", "\x1b[2J")
    assert (result.code, result.out) == (3, "unknown  1 2 3\nunknown  \\x1b[2J\n")
    assert result.err == "2 unknown.\n"


def test_cancel_by_handle(cli: Command) -> None:
    first, second = (cli.send("--delay", "5m")["handle"] for _ in range(2))
    assert cli.good("cancel", "data", first).out == f"cancelled  {first}\n"
    cli.clock.advance(6 * MINUTE_MS)
    cli.good(*POP)
    result = cli("cancel", "data", first, second, "none")
    assert result.code == 3
    assert result.lines == [f"cancelled          {first}", f"already delivered  {second}", "unknown            none"]
    assert result.err == "1 cancelled, 1 already delivered, 1 unknown.\n"
    assert cli.good("cancel", "data", "-", "--json", stdin=f"{first}\n").json["all_done"] is True


def test_cancel_by_key(cli: Command) -> None:
    for _ in range(2):
        cli.send("--delay", "5m", "--key", "42")
    assert cli.good("cancel", "data", "--topic", "orders", "--key", "42").out == "cancelled  42\ncancelled  42\n"
    cli.send()  # from now on the topic is there
    result = cli("cancel", "data", "--topic", "orders", "--key", "42")
    assert (result.code, result.out) == (3, "")
    assert "No timer of topic orders with key 42 is pending." in result.err
    assert cli("cancel", "data", "-t", "orders", "-k", "42", "--json").json == {"items": [], "all_done": False}


def test_cancel_by_key_of_a_topic_that_is_not_there(cli: Command) -> None:
    cli.send("--delay", "5m", "--key", "42")
    wrong = ("cancel", "data", "-t", "odrers", "-k", "42")
    assert "has no topic 'odrers' and no timer for one; did you mean orders?" in cli.bad(1, *wrong)
    assert "did you mean orders?" in cli.bad(1, *wrong, "--json")
    assert cli("cancel", "data", "-t", "orders", "-k", "43").code == 3, "its timers make it known, although no message is there"
    cli.good("cancel", "data", "-t", "orders", "-k", "42")
