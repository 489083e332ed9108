"""Runs of the suite from an empty directory: what is refused, what a report says, and that the core needs nothing optional."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

QUICK = "t1_a_deliver_time_within or s1_declared"

BOASTFUL = """
import msgspec
from rmqstore.contract import Support
from rmqstore.hookspecs import hookimpl
from rmqstore.plugins import get_plugins

def named(name, **declared):
    memory = get_plugins().load_engine("memory")[0]
    return msgspec.structs.replace(memory, name=name, settings=(), capabilities=msgspec.structs.replace(memory.capabilities, **declared))

@hookimpl
def rmqstore_engines():
    return [named("boastful", snapshot=Support.FULL), named("modest", fifo=Support.NOT_YET)]
"""


class Run(NamedTuple):
    """What a run gave: its exit code, all that it printed, and its report."""

    code: int
    text: str
    report: dict[str, Any]


@pytest.fixture(name="run")
def _run(tmp_path: Path) -> Any:
    def run(*options: str, engine: str = "memory", modules: str = "") -> Run:
        (tmp_path / "announced.py").write_text(modules, encoding="utf-8")
        given = ["--pyargs", "rmqstore_conformance", "-p", "no:cacheprovider", "--rmq-report", "report.json", *options]
        given += ["--rmq-engine", engine] if engine else []
        given += ["--rmq-plugin", "announced"] if modules else []
        command = [sys.executable, "-m", "pytest", *given]
        done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        file = tmp_path / "report.json"
        return Run(done.returncode, done.stdout, json.loads(file.read_text())["reports"][0] if file.exists() else {})

    return run


def outcomes(found: Run) -> dict[str, str]:
    return {result["case"]["id"]: result["outcome"] for result in found.report["results"]}


@pytest.mark.timeout(300)  # all cases of the core
def test_the_core_needs_nothing_optional(run: Any) -> None:
    found = run("--rmq-plugin", "rmqstore_conformance.proving.bare", "--rmq-effort", "0.02", engine="bare")
    assert found.code == 0, found.text
    assert found.report["reached"] == "core"
    assert {each["declared"] for each in found.report["capabilities"]} == {"not yet"}
    assert set(outcomes(found).values()) == {"pass", "declared absent"}


def test_a_report_says_all_that_a_run_depends_on_and_pages_hold_the_same(run: Any, tmp_path: Path) -> None:
    pages = ("--rmq-report", "report.md", "--rmq-report", "deep/report.html")
    found = run("-k", QUICK, "--rmq-seed", "7", "--rmq-config", "precision_ms=500", *pages)
    assert found.code == 0, found.text
    header = found.report["header"]
    assert header["seed"] == 7
    assert header["settings"] == {"precision_ms": 500}
    assert header["durability"] == {"sync": "NONE", "async": "NONE"}
    assert {"python", "rmqstore", "rmqstore-conformance", "rmqstore-memory", "pyarrow"} <= set(header["versions"])
    for part in ("--rmq-engine memory", "--rmq-level core", "--rmq-seed 7", "--rmq-config=precision_ms=500"):
        assert part in header["command"]
    assert outcomes(found)["T1.a_deliver_time_within_the_present_tick_waits"] == "pass"
    assert found.report["reached"] is None, "most of the core was not run"
    assert not found.report["notes"]
    for page in ((tmp_path / "report.md").read_text(), (tmp_path / "deep/report.html").read_text()):
        assert found.report["headline"] in page
        assert "never early" in page
        assert "Linux" in page
        assert "sql92_filter" in page


def test_who_declares_too_much_reaches_no_level(run: Any) -> None:
    found = run("-k", "s1_declared", engine="boastful", modules=BOASTFUL)
    assert found.code == 1
    assert outcomes(found)["S1.declared_is_offered_and_absent_is_refused[snapshot]"] == "fail"
    assert "over-claim: boastful declares snapshot, and does not do it" in found.report["notes"]
    assert found.report["reached"] is None
    (capability,) = (each for each in found.report["capabilities"] if each["name"] == "snapshot")
    assert (capability["declared"], capability["probed"]) == ("full", False)
    assert "broken: S1" in found.text


def test_who_declares_too_little_is_told(run: Any) -> None:
    found = run("-k", "s1_declared or p9_nothing_more", "--rmq-level", "extended", engine="modest", modules=BOASTFUL)
    assert found.code == 0, found.text
    assert found.report["notes"] == ["under-claim: modest does fifo, and does not declare it"]
    assert outcomes(found)["P9.nothing_more_before_the_run_is_acked"] == "declared absent"
    (reason,) = {result["reason"] for result in found.report["results"] if result["outcome"] == "declared absent"}
    assert reason == "fifo is declared NOT_YET"


def test_a_failure_that_is_expected_must_happen(run: Any) -> None:
    found = run("-k", QUICK, "--rmq-expect-failure", "T1.a_deliver_time_within_the_present_tick_waits=it is slow")
    assert found.code == 1
    (result,) = (each for each in found.report["results"] if each["outcome"] == "fail")
    assert "it is slow" in result["seen"]


@pytest.mark.parametrize(
    ("options", "engine", "said"),
    [
        ((), "", "--rmq-engine NAME"),
        ((), "memroy", "did you mean 'memory'"),
        (("--rmq-pop-engine", "memory"), "all", "exactly one --rmq-engine"),
        (("--rmq-config", "precision=3"), "memory", "precision"),
        (("--rmq-suite-version", "99.0"), "memory", "99.0"),
        (("--rmq-suite-version", "new"), "memory", "'new'"),
        (("--rmq-report", "report.pdf"), "memory", ".json, .md, .html"),
        (("--rmq-expect-failure", "T1.x"), "memory", "CASE=REASON"),
        (("--rmq-expect-failure", "T1.x=y"), "memory", "no case of this id"),
        (("--rmq-plugin", "nowhere"), "memory", "nowhere"),
    ],
)
def test_what_does_not_go_together_is_refused(run: Any, options: tuple[str, ...], engine: str, said: str) -> None:
    found = run(*options, engine=engine)
    assert found.code == pytest.ExitCode.USAGE_ERROR, found.text
    assert said in found.text
    assert not found.report


def test_a_failed_case_is_run_alone_by_the_command_that_stands_with_it(tmp_path: Path) -> None:
    given = ["conformance", "mutant_fires_early", "--plugin", "rmqstore_conformance.proving.mutants", "--case", "t1_t2_never"]
    done = subprocess.run([sys.executable, "-m", "rmqstore", *given], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    command = next(line for line in done.stdout.splitlines() if "alone: " in line).partition("alone: ")[2]
    arguments = [*shlex.split(command)[1:], "--rmq-plugin", "rmqstore_conformance.proving.mutants", "-p", "no:cacheprovider"]
    again = subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 failed in" in again.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("memroy",), "rmqstore: no engine is called 'memroy'; did you mean 'memory'?"),
        (("memory", "--case", "nothing_like_it"), "rmqstore: no case is left"),
        (("memory", "--report", "report.pdf"), ".json, .md, .html"),
        (("--explain", "Z9"), "there is no clause 'Z9'"),
    ],
)
def test_the_command_says_in_one_paragraph_what_is_wrong(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    command = [sys.executable, "-m", "rmqstore", "conformance", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert "ExitCode" not in done.stderr


# ---------------------------------------------------------------- cases of others

OFFERING = """
from rmqstore.hookspecs import hookimpl

@hookimpl
def rmqstore_conformance_cases():
    return ["{module}"]
"""

OFFERED = '''
import pytest

@pytest.mark.clause("T1")
def test_t1_one_of_our_own(stores):
    """T1: a case of another distribution."""
    assert stores.open().tick().handed_over == {moved}
'''


@pytest.mark.parametrize("moved", [0, 1])
def test_cases_that_a_plugin_offers_run_beside_those_of_the_suite(run: Any, tmp_path: Path, moved: int) -> None:
    (tmp_path / "acme_cases.py").write_text(OFFERED.format(moved=moved), encoding="utf-8")
    found = run("-k", f"{QUICK} or one_of_our_own", modules=OFFERING.format(module="acme_cases"))
    assert found.code == moved, found.text
    assert outcomes(found)["T1.one_of_our_own"] == ("pass", "fail")[moved]
    assert len(outcomes(found)) > 1


def test_a_module_of_cases_that_is_not_there_is_refused(run: Any) -> None:
    found = run("-k", QUICK, modules=OFFERING.format(module="acme_cases_that_are_not_there"))
    assert found.code == pytest.ExitCode.USAGE_ERROR
    assert "offers 'acme_cases_that_are_not_there' as conformance cases" in found.text
