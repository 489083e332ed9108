"""Runs the suite's cases on mutants: all of them at once, in a process of its own that alone hears of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import pytest

Results = dict[tuple[str, str], list[dict[str, Any]]]
"""The results by engine and case."""


PARTS_OF_ALL = 6
"""Every sixth mutant is tried in each run of the tests, the others by ``make crash``."""


def in_parts(mutants: Sequence[Any]) -> list[Any]:
    """Return the parameters of a test: (part, mutant), all but those of part 0 for the slow tier."""
    return [
        pytest.param(at % PARTS_OF_ALL, each, id=each.name, marks=() if at % PARTS_OF_ALL == 0 else pytest.mark.slow)
        for at, each in enumerate(mutants)
    ]


class Wrong(Protocol):
    """A mutant, as far as it matters here."""

    @property
    def engine(self) -> str: ...
    @property
    def caught_by(self) -> tuple[str, ...]: ...


def results_of(plugin: str, mutants: Sequence[Wrong], *options: str, sound: tuple[str, tuple[str, ...]] | None = None) -> Results:
    """Run the cases of each mutant on it, and those of ``sound`` on the engine that is named there."""
    parts = [(each.engine, each.caught_by) for each in mutants] + ([] if sound is None else [sound])
    engines = [option for name, _ in parts for option in ("--rmq-engine", name)]
    selection = " or ".join(f"({engine} and ({' or '.join(sorted({_function(case) for case in cases}))}))" for engine, cases in parts)
    with TemporaryDirectory(prefix="rmqs-mutants-") as directory:
        report = Path(directory, "report.json")
        command = [sys.executable, "-m", "rmqstore_conformance.command", *engines, "--rmq-plugin", plugin, *options]
        command += ["--rmq-report", str(report), "-k", selection]
        subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True)
        reports = json.loads(report.read_text(encoding="utf-8"))["reports"]
    found: Results = defaultdict(list)
    for result in (each for one in reports for each in one["results"]):
        found[result["case"]["subject"][0], result["case"]["id"].partition("[")[0]].append(result)
    return found


def _function(case: str) -> str:
    return case.partition(".")[2]
