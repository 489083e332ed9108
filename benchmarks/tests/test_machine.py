"""What figures depend on is told, and how they get into a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmqstore_benchmarks.machine import described, replace_part, sentence, table


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
