"""What ``rmqstore new-engine`` and ``demo --store`` leave behind, and where they leave nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rmqstore.cli import demo
from rmqstore.cli.demo import check_place, leave_store
from rmqstore.errors import StorePathError
from rmqstore_conformance.stores import START_MS
from tests.cli.conftest import ENGINE, Command

# ---------------------------------------------------------------- new-engine


def test_the_project_holds_an_engine_of_its_own_name(cli: Command) -> None:
    project = cli.root / "work" / "acme_db"
    cli.good("new-engine", str(project))
    texts = {str(path.relative_to(project)): path.read_text() for path in project.rglob("*.*") if path.is_file()}
    assert 'acme_db = "rmqstore_acme_db.plugin"' in texts["pyproject.toml"]
    assert 'name = "rmqstore-acme-db"' in texts["pyproject.toml"]
    assert 'factory="rmqstore_acme_db.engine:AcmeDbEngine"' in texts["src/rmqstore_acme_db/plugin.py"]
    assert not any("rmqstore_memory" in text or "MemoryKV" in text or '"memory"' in text for text in texts.values())


@pytest.mark.skipif(find_spec("rmqstore_conformance") is None, reason="the conformance suite is not installed")
def test_the_engine_works_at_once(cli: Command, tmp_path: Path) -> None:
    cli.good("new-engine", str(tmp_path / "acme"))
    command = [sys.executable, "-m", "rmqstore", "conformance", "acme", "--plugin", "rmqstore_acme.plugin", "--case", "t1 or p4"]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "acme" / "src")}
    subprocess.run([*command, "--report", "report.json"], cwd=tmp_path, env=environ, check=False)
    (report,) = json.loads((tmp_path / "report.json").read_text())["reports"]
    outcomes = [result["outcome"] for result in report["results"]]
    assert set(outcomes) == {"pass", "declared absent"}
    assert outcomes.count("pass") > 10


# ---------------------------------------------------------------- demo --store


@pytest.fixture
def unplayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail as soon as the day is begun."""

    def begin(orders: int, seed: int) -> None:
        pytest.fail("the day was begun")

    monkeypatch.setattr(demo, "make_orders", begin)


@pytest.mark.usefixtures("unplayed")
def test_a_place_that_will_not_do_is_refused_before_the_day(cli: Command) -> None:
    cli.send()
    file = cli.file("file", "x")
    for place in (str(cli.data), file, str(cli.root)):
        assert f"{place} exists and was not made by the demo" in cli.bad(1, "demo", "--store", place)
    missing = cli.root / "no" / "where"
    assert f"{missing.parent} does not exist; make it first" in cli.bad(1, "demo", "--store", str(missing))
    assert len(cli.good("peek", "data", "orders", "--json").json["messages"]) == 1, "the store that is there is as it was"


def test_an_earlier_store_of_the_demo_is_replaced(cli: Command) -> None:
    for _ in range(2):
        leave_store(cli.data, ENGINE, START_MS)
        assert cli.good("timers", "data", "--json").json["total"] > 800
        cli.good("send", "data", "mine", "x")
    leave_store(cli.data, ENGINE, START_MS)
    assert "has no topic 'mine'" in cli.bad(1, "peek", "data", "mine")


def test_a_check_changes_nothing(tmp_path: Path) -> None:
    check_place(tmp_path / "new")
    with pytest.raises(StorePathError, match="was not made by the demo"):
        check_place(tmp_path)
    assert list(tmp_path.iterdir()) == []
