"""Every mutant that breaks its word in a crash is noticed by the cases that are named with it, which the sound engine passes."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from rmqstore_conformance.power import fusing, tracing
from rmqstore_conformance.proving import mutants_of_disks as kit
from rmqstore_conformance.proving.mutants_of_disks import MUTANTS, SOUND, DiskMutant

pytestmark = [
    pytest.mark.skipif(find_spec(SOUND) is None, reason=f"{SOUND} is not installed"),
    pytest.mark.timeout(300),
]


@cache
def results(engine: str, cases: tuple[str, ...], recorder: str = "strace") -> dict[str, list[dict[str, Any]]]:
    """Run cases on an engine, in a process of its own that alone hears of the mutants; returns their results by id."""
    with TemporaryDirectory(prefix="rmqs-mutants-") as directory:
        report = Path(directory, "report.json")
        selection = " or ".join(sorted({case.partition(".")[2] for case in cases}))
        options = [
            "--rmq-engine",
            engine,
            "--rmq-plugin",
            kit.__name__,
            "--rmq-level",
            "full",
            "--rmq-recorder",
            recorder,
            "--rmq-report",
            str(report),
        ]
        command = [sys.executable, "-m", "rmqstore_conformance.command", *options, "-k", selection]
        subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True)
        (found,) = json.loads(report.read_text(encoding="utf-8"))["reports"]
    by_case: dict[str, list[dict[str, Any]]] = {}
    for each in found["results"]:
        by_case.setdefault(each["case"]["id"].partition("[")[0], []).append(each)
    return by_case


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_cases_notice_the_mutant(mutant: DiskMutant) -> None:
    if reason := {"strace": tracing, "fuse": fusing}[mutant.recorder].unusable():
        pytest.skip(reason)
    found = results(mutant.engine, mutant.caught_by, mutant.recorder)
    broken = set()
    for case in mutant.caught_by:
        failures = [each for each in found[case] if each["outcome"] == "fail"]
        assert failures, f"{case} does not notice that {mutant.what[0].lower()}{mutant.what[1:]}"
        broken |= {clause for each in failures for clause in each["case"]["clauses"]}
    assert mutant.clause in broken


@pytest.mark.slow  # conformance-small runs these cases on it, too
@pytest.mark.skipif(tracing.unusable() is not None, reason=str(tracing.unusable()))
def test_the_sound_engine_passes_them() -> None:
    cases = tuple(sorted({case for each in MUTANTS for case in each.caught_by}))
    found = results(SOUND, cases)
    assert found.keys() == set(cases)
    assert {each["outcome"] for of_case in found.values() for each in of_case} == {"pass"}
