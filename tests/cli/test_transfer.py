"""``rmqstore dump`` and ``load`` that are interrupted, on a terminal, and of what is damaged; ``sessions/transfer.txt`` has the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqstore import Message, transfer
from rmqstore_conformance.stores import HOUR_MS
from tests.cli.conftest import ENGINE, Command


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


@pytest.mark.parametrize("name", ["manifest.json", "messages-00000.parquet"])
def test_a_damaged_dump_is_refused_by_name(cli: Command, dumped: str, name: str) -> None:
    content = Path(dumped, name).read_bytes()
    Path(dumped, name).write_bytes(content[: len(content) // 2])
    assert name in cli.bad(1, "load", dumped, str(cli.root / "copy"))
    assert not (cli.root / "copy").exists()
