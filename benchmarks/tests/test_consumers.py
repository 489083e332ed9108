"""The consumer grid in small: every message once, and shares that are shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqstore import AckOutcome, Store
from rmqstore.plugins import EngineState, get_plugins
from rmqstore_benchmarks.consumers import main, measure

ENGINES = [entry.name for entry in get_plugins().engines() if entry.state is EngineState.OK]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_has_a_figure(engine: str, tmp_path: Path) -> None:
    cell = measure(engine, queues=4, threads=8, messages=4000, directory=tmp_path)
    assert (cell.engine, cell.queues, cell.threads) == (engine, 4, 8)
    assert 0.5 < cell.slowest_queue <= 1, "one queue was emptied long before another"
    assert 0 <= cell.slowest_thread <= 1
    assert cell.messages_per_s > 0


def test_the_page_has_a_table_an_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- consumers: begin -->\nold\n<!-- consumers: end -->\nafter\n")
    main(
        [
            "--engines",
            "memory",
            "--threads",
            "1",
            "2",
            "--queues",
            "1",
            "2",
            "--messages",
            "500",
            "--directory",
            str(tmp_path),
            "--markdown",
            str(page),
        ]
    )
    text = page.read_text()
    assert "**memory**" in text
    assert "| 2       |" in text
    assert "old" not in text
    assert "**memory**" in capsys.readouterr().out


def test_a_lost_message_gives_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ack = Store.ack

    def forgetful(self: Store, leased: object) -> object:
        outcomes = ack(self, leased)  # type: ignore[call-overload]
        return [AckOutcome.STALE, *outcomes[1:]]

    monkeypatch.setattr(Store, "ack", forgetful)
    with pytest.raises(SystemExit, match="not just once"):
        measure("memory", queues=1, threads=1, messages=100, directory=tmp_path)
