"""The measurements that are no cells of a grid print a row of their table."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqstore_benchmarks import burst, single_calls


def test_single_calls_give_a_figure_for_each_kind_of_call_and_for_a_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    single_calls.measure("memory", tmp_path, 50)
    (row,) = capsys.readouterr().out.splitlines()
    name, *figures, start = row.strip("| ").split(" | ")
    assert (name, len(figures)) == ("memory", 5)
    assert all(0 < int(each) < 100_000 for each in figures)
    assert start.endswith("MiB")


def test_a_burst_tells_when_its_first_message_was_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    burst.measure("memory", tmp_path, 20_000)
    (row,) = capsys.readouterr().out.splitlines()
    assert row.count("|") == 8
    assert int(row.split(" | ")[2]) >= 0
