"""The backlog benchmark at a tiny size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmqstore_benchmarks import backlog
from rmqstore_benchmarks.backlog import PARTS

TINY = {"rounds": 1, "slot": 1000, "cancels": 1000, "messages": 1000, "backlog": 20_000, "reopen": (1000, 2000), "tail": 1000}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_gives_a_table(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rmqstore_wheel")
    monkeypatch.setattr(backlog, "SMALL", TINY)
    page, figures = tmp_path / "page.md", tmp_path / "figures.json"
    page.write_text(f"before\n\n<!-- {part}: begin -->\n\nold\n\n<!-- {part}: end -->\n\nbehind\n")
    options = ["--small", "--engines", "wheel", "--parts", part, "--directory", str(tmp_path)]
    backlog.main([*options, "--markdown", str(page), "--json", str(figures)])
    text = page.read_text()
    assert "old" not in text
    assert text.endswith("behind\n")
    assert "--small --engines wheel" in text
    assert str(page) not in text
    assert capsys.readouterr().out.count("\n| ") >= 2
    assert json.loads(figures.read_text())["results"][part]


def test_an_engine_that_is_not_installed_is_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="installed"):
        backlog.main(["--engines", "no-such", "--directory", str(tmp_path)])
