"""The comparison in small: what can run anywhere end to end, what is absent, and what loses or invents a message."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rmqstore_benchmarks.machine import default_directory, described, replace_part, sentence, table
from rmqstore_benchmarks.peers import PEERS, __main__ as command, measure
from rmqstore_benchmarks.peers.in_process import SQLite
from rmqstore_benchmarks.peers.peer import Durability, PeerError, Taken, Task
from rmqstore_benchmarks.peers.servers import running

PHASES = {"schedule", "schedule_one", "cancel", "cancel_one", "drain", "ack_one", "pop_32", "pop_1024", "done"}
OURS = PHASES | {"schedule_list", "cancel_keys", "pop_32_acks"}


def task(system: str, directory: Path, durability: Durability = Durability.PROCESS_CRASH) -> Task:
    return Task(system=system, durability=durability, directory=str(directory), distribution="uniform", timers=200, batch=100)


@pytest.mark.parametrize("durability", Durability)
@pytest.mark.parametrize("system", ["sqlite", "memory"])
def test_every_phase_has_a_rate(system: str, durability: Durability, tmp_path: Path) -> None:
    figures = measure(task(system, tmp_path, durability))
    assert set(figures) == (OURS if system == "memory" else PHASES)
    assert all(rate > 0 for rate in figures.values())


@pytest.mark.parametrize("name", [name for name in PEERS if name not in ("sqlite", "rocketmq")])
def test_a_peer_that_is_here_runs(name: str) -> None:
    if PEERS[name].version() is None:
        pytest.skip(f"{name} is not here: {PEERS[name].how_to_get}")
    # PostgreSQL runs as nobody when the tests run as root, who alone may look into pytest's directories.
    with tempfile.TemporaryDirectory(dir=default_directory()) as directory:
        figures = measure(task(name, Path(directory)))
    assert figures.keys() <= PHASES
    assert "pop_32" in figures or "schedule" in figures


def test_a_measurement_has_a_process_of_its_own_and_its_error_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(command.run(task("sqlite", tmp_path), tmp_path)) == PHASES
    assert "KeyError" in command.run(task("no-such", tmp_path), tmp_path)["error"]
    assert "no-such gives no figure: KeyError" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("durability", "synchronous"), [(Durability.POWER_LOSS, 2), (Durability.PROCESS_CRASH, 1)])
def test_sqlite_sets_its_durability(durability: Durability, synchronous: int, tmp_path: Path) -> None:
    with SQLite(tmp_path, durability).started() as peer:
        assert peer._db.execute("PRAGMA synchronous").fetchone() == (synchronous,)
        assert peer._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def losing(peer: SQLite, count: int) -> Taken:
    found = SQLite.pop(peer, count)
    return found._replace(bodies=found.bodies[:-1])


def repeating(peer: SQLite, count: int) -> Taken:
    found = SQLite.pop(peer, count)
    return found._replace(bodies=found.bodies + found.bodies[:1])


def forgetful(peer: SQLite, handles: list[object]) -> int:
    SQLite.cancel(peer, handles[1:])
    return len(handles)


def early(peer: SQLite, now_ms: int) -> int:
    return SQLite.drain(peer, now_ms) - 1


@pytest.mark.parametrize(
    ("call", "fault", "why"),
    [
        ("pop", losing, "did not come"),
        ("pop", repeating, "came twice"),
        ("cancel", forgetful, "handed over"),
        ("drain", early, "handed over"),
    ],
)
def test_a_peer_that_loses_or_invents_a_message_gets_no_figure(call: str, fault: Callable[..., Any], why: str, tmp_path: Path) -> None:
    kind = type("Wrong", (SQLite,), {call: fault})
    with kind(tmp_path, Durability.PROCESS_CRASH).started() as peer, pytest.raises(PeerError, match=why):
        peer.measure(task("sqlite", tmp_path))


def test_the_command_writes_the_table_and_names_what_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- peers: begin -->\nold\n<!-- peers: end -->\nafter\n")
    monkeypatch.setattr(PEERS["redis"], "version", classmethod(lambda cls: None))
    monkeypatch.setattr(command, "DISTRIBUTIONS", {"constant": None})
    monkeypatch.setattr(command, "run", lambda task, below: dict(figures[task.system]))
    figures = {"memory": dict.fromkeys(OURS, 400.0), "sqlite": dict.fromkeys(PHASES, 100.0)}
    options = ["--engines", "memory", "--peers", "sqlite", "redis", "--timers", "1000", "--rounds", "2", "--durability", "process-crash"]
    command.main([*options, "--directory", str(tmp_path), "--markdown", str(page)])
    shown = capsys.readouterr()
    assert "redis was not there: apt-get install redis-server" in shown.err
    text = page.read_text()
    assert "old" not in text
    assert "redis was not there: apt-get install redis-server" in text
    assert "4.00 × sqlite" in text
    assert shown.out.strip() in text
    assert "--markdown" not in text, "where the results go does not change them"


def results(**systems: list[dict[str, Any]]) -> pd.DataFrame:
    """Return what some rounds of each system gave: rates by phase, or an error."""
    rows = [
        ("power-loss", "constant", name, number, phase, *((None, value) if phase == "error" else (value, None)))
        for name, rounds in systems.items()
        for number, figures in enumerate(rounds)
        for phase, value in figures.items()
    ]
    return pd.DataFrame(rows, columns=command.COLUMNS)


def test_a_peer_without_a_figure_is_named_and_not_compared() -> None:
    good, half, bad = dict.fromkeys(PHASES, 100.0), dict.fromkeys(PHASES, 50.0), {"error": "3 of 9 messages did not come"}
    text = command.tables(results(wheel=[good, good], redis=[good, bad], sqlite=[half, half]))
    assert "No figure for redis: 3 of 9" in text
    assert "2.00 × sqlite" in text
    assert "× redis" not in text
    assert "No figure for lmdb" in command.tables(results(lmdb=[bad]))


def test_what_a_peer_does_not_write_is_not_compared() -> None:
    good = dict.fromkeys(PHASES, 100.0)
    text = command.tables(results(wheel=[good], beanstalkd=[good | {"drain": 9000.0}]))
    assert "(9.0 k)" in text
    assert "0.01 ×" not in text


def test_a_server_is_ended_and_one_that_fails_says_why(tmp_path: Path) -> None:
    with running([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path, lambda: None, signal.SIGINT) as pid:
        os.kill(pid, 0)
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)

    def refused() -> None:
        raise ConnectionRefusedError

    with (
        pytest.raises(PeerError, match=r"exit status 3.*no such option"),
        running([sys.executable, "-c", "import sys; print('no such option'); sys.exit(3)"], tmp_path, refused),
    ):
        pass


# ---------------------------------------------------------------- the machine, and pages


def test_a_page_without_markers_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing here")
    with pytest.raises(SystemExit, match="speed: begin"):
        replace_part(page, "speed", "new")
    assert page.read_text() == "nothing here"


def test_the_machine_is_described(tmp_path: Path) -> None:
    machine = described(tmp_path)
    text = sentence(json.loads(json.dumps(machine)))
    assert "pyarrow" in text
    assert f"{machine['cores']} cores" in text


def test_tables_are_aligned() -> None:
    lines = table(["", "rate"], [["lmdb", "1"], ["x", "12345"]]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[1].endswith("-: |")
