"""``rmqstore bench``: what it lists, what it refuses, and how it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.tests import conftest
from rmqstore_benchmarks.grid import harness
from rmqstore_benchmarks.grid.harness import Told
from rmqstore_benchmarks.grid.named import named_workloads

SPECS = Path(__file__).parents[1] / "specs"


def run(*arguments: str) -> int:
    return conftest.run_command("bench", *arguments)


def test_it_lists_every_workload(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("workloads") == 0
    listed = capsys.readouterr().out
    for workload in named_workloads().values():
        assert workload.name in listed


def test_a_wrong_specification_is_one_paragraph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.toml").write_text("sede = 1")
    assert run("run", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "out")) == 1
    assert "unknown field `sede`; did you mean 'seed'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_stores_need_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["run", str(SPECS / "small.toml"), "--out", str(tmp_path / "out"), "--stores", str(tmp_path / "missing")]
    assert run(*given) == 1
    assert "--stores" in capsys.readouterr().err


@pytest.mark.parametrize(("outcome", "code"), [("ok", 0), ("refused", 3), ("failed", 3)])
def test_the_exit_code_says_whether_all_was_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], outcome: str, code: int
) -> None:
    def run_grid(spec: Any, out: Path, stores: Path, *, tell: Any, **_: Any) -> dict[str, int]:
        tell(Told("a.b", 0, spec.runs))
        tell(Told("a.b", 1, spec.runs, outcome, "why"))
        return {outcome: 1}

    monkeypatch.setattr(harness, "run_grid", run_grid)
    assert run("run", str(SPECS / "small.toml"), "--out", str(tmp_path / "out"), "--stores", str(tmp_path)) == code
    shown = capsys.readouterr()
    assert f"a.b {outcome}: why" in shown.err
    assert f"1 run: 1 {outcome}" in shown.out
