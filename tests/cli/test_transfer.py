"""``rmqstore dump``, ``load`` and ``migrate``: what goes out, what comes in, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore import Message, transfer
from rmqstore_conformance.stores import HOUR_MS
from tests.cli.conftest import ENGINE, Command
from tests.pairs import DURABLE_PAIRS

OTHERS = [pair.timers for pair in DURABLE_PAIRS if pair.timers == pair.pops != ENGINE]


@pytest.fixture
def cli(cli: Command) -> Command:
    """A store with three messages in topic ``a``, of which group g holds one, and a timer."""
    with cli.owner(engine=ENGINE) as store:
        store.send_batch([Message("a", b"x", message_id=f"m{number}") for number in range(3)])
        store.pop("a", "g", max_messages=1, invisible_ms=HOUR_MS)
        store.send(Message("a", b"later", keys=("k",)), delay_ms=HOUR_MS)
    return cli


@pytest.fixture
def dumped(cli: Command) -> str:
    """A dump of that store."""
    path = str(cli.root / "dump")
    cli.good("dump", "data", path)
    return path


def contents(cli: Command, path: str) -> tuple[int, list[str], int]:
    """Return timers, message ids and leases of a store."""
    messages = cli.good("peek", path, "a", "--json").json["messages"]
    timers = cli.good("timers", path, "--json").json["total"]
    return timers, [message["message_id"] for message in messages], len(cli.good("leases", path, "--json").json["leases"])


# ---------------------------------------------------------------- dump


def test_dump_writes_files_and_says_how_many_rows(cli: Command) -> None:
    path = str(cli.root / "dump")
    result = cli.good("dump", "data", path)
    rows = dict(line.split() for line in result.lines[1:])
    assert (rows["messages"], rows["timers"], rows["leases"]) == ("3", "1", "1")
    assert f"`rmqstore load {path} STORE`" in result.err
    assert Path(path, "manifest.json").exists()
    assert "holds a dump already" in cli.bad(1, "dump", "data", path)


def test_an_interrupted_dump_goes_on_when_asked(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(cli.root / "dump")

    def interrupted(store: Any, dest: Any, *, progress: Any) -> Any:
        def stop(table: str, done: int, total: int) -> None:
            if table == "messages":
                raise KeyboardInterrupt

        return dump(store, dest, progress=stop)

    dump = transfer.dump
    monkeypatch.setattr(transfer, "dump", interrupted)
    assert cli("dump", "data", path).code == 130
    monkeypatch.setattr(transfer, "dump", dump)
    assert "holds an interrupted dump; --resume goes on with it" in cli.bad(1, "dump", "data", path)
    assert cli.good("dump", "data", path, "--resume", "--json").json["reused_files"] > 0
    cli.good("load", path, str(cli.root / "copy"))


def test_dump_shows_progress_on_a_terminal_only(cli: Command, terminal: Callable[[int], None]) -> None:
    assert "dumping" not in cli.good("dump", "data", str(cli.root / "one")).err
    terminal(100)
    assert "dumping" in cli.good("dump", "data", str(cli.root / "two")).err


# ---------------------------------------------------------------- load


def test_load_makes_a_store(cli: Command, dumped: str) -> None:
    copy = str(cli.root / "copy")
    (lease,) = cli.good("leases", "data", "--json").json["leases"]
    result = cli.good("load", dumped, copy)
    assert ["messages", "3"] in [line.split() for line in result.lines]
    assert f"`rmqstore doctor {copy} --deep`" in result.err
    assert contents(cli, copy) == contents(cli, "data") == (1, ["m0", "m1", "m2"], 1)
    assert cli.good("ack", copy, lease["receipt"]).out.startswith("acked"), "its receipts are still good"


def test_load_leaves_a_store_that_holds_something_as_it_is(cli: Command, dumped: str) -> None:
    other = str(cli.root / "other")
    cli.good("send", other, "a", "y", "--id", "own", "--create", "--engine", ENGINE)
    said = cli.bad(1, "load", dumped, other)
    assert f"store {other} is not empty, it holds 0 timers, 1 messages" in said
    assert "into an empty directory" in said
    assert "rmqstore send --from-file" in said
    assert contents(cli, other) == (0, ["own"], 0)


def test_load_fills_an_empty_store(cli: Command, dumped: str) -> None:
    other = str(cli.root / "other")
    rmqstore.open(other, engine=ENGINE, services=False, clock=cli.clock).close()
    document = cli.good("load", dumped, other, "--json").json
    assert document["path"] == other
    assert document["tables"]["timers"] == 1
    assert contents(cli, other) == contents(cli, "data")


def test_load_with_an_engine_a_precision_and_settings(cli: Command, dumped: str) -> None:
    copy = str(cli.root / "copy")
    engine = (OTHERS or [ENGINE])[0]
    cli.good("load", dumped, copy, "--engine", engine, "--precision", "100ms")
    document = {each["key"]: each["value"] for each in cli.good("config", copy, "--json").json["settings"]}
    assert (document["timer_engine"], document["precision_ms"]) == (engine, 100)
    assert contents(cli, copy) == contents(cli, "data")


@pytest.mark.parametrize("name", ["manifest.json", "messages-00000.parquet"])
def test_a_damaged_dump_is_refused_by_name(cli: Command, dumped: str, name: str) -> None:
    content = Path(dumped, name).read_bytes()
    Path(dumped, name).write_bytes(content[: len(content) // 2])
    assert name in cli.bad(1, "load", dumped, str(cli.root / "copy"))
    assert not (cli.root / "copy").exists()


# ---------------------------------------------------------------- migrate


@pytest.mark.parametrize("engine", OTHERS)
def test_migrate_to_another_engine_keeps_the_old_store(cli: Command, engine: str) -> None:
    before = contents(cli, "data")
    handle = cli.good("timers", "data", "--list", "--json").json["timers"][0]["handle"]
    result = cli.good("migrate", "data", "--engine", engine)
    assert json.loads((cli.data / "rmqstore.json").read_text())["baked"]["timer_engine"] == engine
    assert contents(cli, "data") == before
    (previous,) = cli.root.glob("data.before-*")
    assert f"is now {previous}; remove it when all is well." in result.err
    assert cli.good("cancel", "data", handle).out == f"cancelled  {handle}\n"


def test_migrate_the_precision_only(cli: Command) -> None:
    before = contents(cli, "data")
    document = cli.good("migrate", "data", "--precision", "100ms", "--json").json
    assert Path(document["previous"]).is_dir()
    with cli.owner() as store:
        assert (store.engine.config.precision_ms, store.engine.config.timer_engine) == (100, ENGINE)
    assert contents(cli, "data") == before
