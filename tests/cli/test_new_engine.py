"""``rmqstore new-engine``: the project that it writes works as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rmqstore.cli import main


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def test_the_project_holds_an_engine_of_its_own_name(tmp_path: Path) -> None:
    assert run("new-engine", tmp_path / "work" / "acme_db") == 0
    texts = {str(path.relative_to(tmp_path / "work/acme_db")): path.read_text() for path in tmp_path.rglob("*.*") if path.is_file()}
    assert 'acme_db = "rmqstore_acme_db.plugin"' in texts["pyproject.toml"]
    assert 'name = "rmqstore-acme-db"' in texts["pyproject.toml"]
    assert 'factory="rmqstore_acme_db.engine:AcmeDbEngine"' in texts["src/rmqstore_acme_db/plugin.py"]
    assert not any("rmqstore_memory" in text or "MemoryKV" in text or '"memory"' in text for text in texts.values())


@pytest.mark.skipif(find_spec("rmqstore_conformance") is None, reason="the conformance suite is not installed")
def test_the_engine_works_at_once(tmp_path: Path) -> None:
    assert run("new-engine", tmp_path / "acme") == 0
    command = [sys.executable, "-m", "rmqstore", "conformance", "acme", "--plugin", "rmqstore_acme.plugin", "--case", "t1 or p4"]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "acme" / "src")}
    subprocess.run([*command, "--report", "report.json"], cwd=tmp_path, env=environ, check=False)
    (report,) = json.loads((tmp_path / "report.json").read_text())["reports"]
    outcomes = [result["outcome"] for result in report["results"]]
    assert set(outcomes) == {"pass", "declared absent"}
    assert outcomes.count("pass") > 10


@pytest.mark.parametrize(("arguments", "said"), [(("Acme",), "'Acme'"), (("memory",), "already"), (("acme",), "is there already")])
def test_what_cannot_be_written_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("acme").mkdir()
    assert run("new-engine", *arguments) == 1
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["acme"]
