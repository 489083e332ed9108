"""Runs the suite's cases on mutants: all of them at once, in a process of its own that alone hears of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from rmqstore_conformance import cases
from rmqstore_conformance.proving.planting import WrongEngine

Results = dict[tuple[str, str], list[dict[str, Any]]]
"""The results by engine and case."""


_OWN_FAULT = re.compile(r"^E +(AttributeError|NameError|TypeError|ImportError|RecursionError)\b", re.MULTILINE)
"""What a mutant must not fail with: then it would be broken, not wrong."""


def results_of(plugin: str, mutants: Sequence[WrongEngine], *options: str, sound: tuple[str, tuple[str, ...]] | None = None) -> Results:
    """Run the cases of each mutant on it, and those of ``sound`` on the engine that is named there."""
    parts = [(each.engine, each.caught_by) for each in mutants] + ([] if sound is None else [sound])
    # Only what is named is collected: of every case for every engine, collecting would take longer than running.
    places = _places()
    chosen = sorted({places.get(case) or places[_function(case)] for _, named in parts for case in named})
    engines = [option for name, _ in parts for option in ("--rmq-engine", name)]
    selection = " or ".join(f"({engine} and ({' or '.join(sorted({_function(case) for case in named}))}))" for engine, named in parts)
    with TemporaryDirectory(prefix="rmqs-mutants-") as directory:
        report, ini = Path(directory, "report.json"), Path(directory, "pytest.ini")
        ini.write_text("[pytest]\n", encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-c", str(ini), "--rootdir", directory, "-p", "no:cacheprovider", "--pyargs", *chosen]
        command += [*engines, "--rmq-plugin", plugin, *options, "--rmq-report", str(report), "-k", selection]
        done = subprocess.run(command, cwd=directory, check=False, capture_output=True, text=True)
        assert done.returncode in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), done.stdout + done.stderr
        reports = json.loads(report.read_text(encoding="utf-8"))["reports"]
    found: Results = defaultdict(list)
    for result in (each for one in reports for each in one["results"]):
        found[result["case"]["subject"][0], result["case"]["id"].partition("[")[0]].append(result)
    return found


def result_of(folder: Path, engine: str, plugin: str, level: str, *options: str) -> dict[str, Any]:
    """Return the one result of a run of the suite as a command, in a directory."""
    aim = ["--rmq-engine", engine, "--rmq-plugin", plugin, "--rmq-level", level, "--rmq-report", "report.json"]
    subprocess.run([sys.executable, "-m", "rmqstore_conformance.command", *aim, *options], cwd=folder, check=True, capture_output=True)
    (found,) = json.loads((folder / "report.json").read_text())["reports"][0]["results"]
    return found  # type: ignore[no-any-return]


def assert_noticed(mutant: WrongEngine, results: Results) -> None:
    """Show that each of its cases notices a mutant, and that its clause is among those that are broken."""
    broken = set()
    for case in mutant.caught_by:
        failures = [each for each in results[mutant.engine, case] if each["outcome"] == "fail"]
        assert failures, f"{case} does not notice that {mutant.what[0].lower()}{mutant.what[1:]}"
        assert not [each["seen"] for each in failures if _OWN_FAULT.search(each["seen"])]
        broken |= {clause for each in failures for clause in each["case"]["clauses"]}
    assert mutant.clause in broken


def _function(case: str) -> str:
    return case.partition(".")[2]


@cache
def _places() -> dict[str, str]:
    """Return what pytest calls each case, by its id, or by its name where that says no clause."""
    found = {}
    for file in Path(cases.__path__[0]).glob("test_*.py"):
        for clause, name in re.findall(r"^def test_([a-z]\d+_)?(\w+)\(", file.read_text(encoding="utf-8"), re.MULTILINE):
            id_ = f"{clause[:-1].upper()}.{name}" if clause else name
            found[id_] = f"{cases.__name__}.{file.stem}::test_{clause}{name}"
    return found
