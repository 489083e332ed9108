"""The suite as ``rmqstore conformance`` runs it: pytest below, a progress bar above, reports at the end."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from rmqstore.errors import IllegalArgumentError
from rmqstore_conformance.case import Case, case_of, has_its_turn
from rmqstore_conformance.clauses import clause
from rmqstore_conformance.plugin import COLLECTOR, PACKAGE, TARGET
from rmqstore_conformance.rendering import alone, evidence, not_run
from rmqstore_conformance.report import Outcome, Report
from rmqstore_conformance.targets import Level, Target

__all__ = ["evidence", "explanation", "failures", "known_cases", "not_run", "run"]

_LAST_LINES = 30


def own_options(directory: str | Path) -> list[str]:
    """Return options of pytest for a run of the suite in an empty directory.

    Nothing of the caller changes what runs: no configuration of pytest in the directory is read, and no ``conftest.py`` above the suite,
    as where the virtual environment is in a project.
    """
    # What differs is shown as it is; no -v can be passed to pytest here.
    (ini := Path(directory, "pytest.ini")).write_text("[pytest]\nverbosity_assertions = 1\n", encoding="utf-8")
    own = ["-c", str(ini), "--rootdir", str(directory), "--confcutdir", str(Path(__file__).parent)]
    return ["--pyargs", PACKAGE, *own, "-p", "no:cacheprovider", "-p", "no:terminal"]


def run(arguments: Sequence[str], *, workers: int = 1) -> list[Report]:
    """Run the cases with these options of pytest, a bar on stderr; returns a report for each pair of engines.

    Raises:
        IllegalArgumentError: the options do not go together, or an engine is not there.
    """
    bar = _Bar()
    with tempfile.TemporaryDirectory(prefix="rmqs-conformance-") as directory:
        own = own_options(directory)
        if workers > 1 and importlib.util.find_spec("xdist"):
            own += ["-n", str(workers), "--dist", "worksteal"]
        # What pytest refuses it says there, and ends with a number.
        with bar.shown(), contextlib.redirect_stderr(io.StringIO()) as said:
            status = pytest.main([*own, *arguments], plugins=[bar])
    refusal = bar.refusal or said.getvalue().strip().removeprefix("ERROR: ")
    if status == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise IllegalArgumentError(refusal or "no case is left: fewer words, or a newer suite version, leave more")
    if bar.refusal or status in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR):
        raise IllegalArgumentError(refusal or f"pytest ended with {status!r}")
    if status == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    return bar.reports


class _Bar:
    """A plug-in of the run that shows how far it is, and keeps what it found."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.refusal = ""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(file=sys.stderr)
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task: TaskID | None = None
        self._failed = 0

    def shown(self) -> Progress:
        return self._progress

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if self._task is None and session.items:
            self._task = self._progress.add_task("collected", total=len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        if self._task is None:
            self._task = self._progress.add_task("collected", total=len(ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed += report.failed
        if self._task is not None:
            name = report.nodeid.rpartition("/")[2].partition("::")[0].removeprefix("test_").removesuffix(".py")
            failed = f", [red]{self._failed} failed[/red]" if self._failed else ""
            self._progress.update(self._task, description=f"{name}{failed}", advance=report.when == "teardown")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.refusal = str(report.longrepr)

    def pytest_internalerror(self, excrepr: object) -> None:
        self.refusal = str(excrepr)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.config.stash[TARGET] is not None:
            self.reports = session.config.stash[COLLECTOR].reports()


def failures(report: Report) -> Iterator[str]:
    """Yield for each failed case what it tried, what was seen, and how to run it alone."""
    for result in report.results:
        if result.outcome is Outcome.FAIL and not (result.expected and result.reason):
            yield f"FAILED {result.case.id}: {result.case.text}"
            yield from (f"    {line}" for line in result.seen.splitlines()[-_LAST_LINES:])
            yield f"    alone: {alone(report, result)}"
            yield ""


# ---------------------------------------------------------------- explaining


def explanation(name: str) -> Iterator[str]:
    """Yield what a clause promises, why it is there, and the cases that try to refute it.

    Raises:
        IllegalArgumentError: there is no such clause.
    """
    found = clause(name)
    yield f"{found.id}: {found.title} (level {found.level})"
    yield ""
    yield _flowing(found.text)
    yield ""
    yield f"Why. {_flowing(found.why)}"
    yield ""
    yield f"Governed by {_flowing(found.governed_by)}"
    yield ""
    cases: dict[str, list[Case]] = {}
    for case in known_cases():
        if found.id in case.clauses:
            cases.setdefault(case.id.partition("[")[0], []).append(case)
    yield "Cases:" if cases else "No case of this suite; the tests of the engines have some."
    for name, each in cases.items():
        times = f", {len(each)} times" if len(each) > 1 else ""
        yield f"  {name} ({each[0].level}, since {each[0].since}{times})"
        yield f"    {each[0].text}"


def _flowing(text: str) -> str:
    return " ".join(text.split())


def known_cases() -> list[Case]:
    """Return every case there is, as for the engine ``memory`` if that is installed, else for the first that is."""
    found: list[Case] = []

    class Collecting:
        def pytest_collection_finish(self, session: pytest.Session) -> None:
            target: Target = session.config.stash[TARGET]  # type: ignore[assignment]
            found.extend(case for item in session.items if has_its_turn(case := case_of(item, target), target))

    with tempfile.TemporaryDirectory() as directory:
        aim = ["--rmq-engine", _any_engine(), "--rmq-level", str(Level.FULL)]
        pytest.main([*own_options(directory), "--collect-only", *aim], plugins=[Collecting()])
    return found


def _any_engine() -> str:
    from rmqstore_conformance.stores import installed

    names = installed()
    if not names:
        raise IllegalArgumentError("no engine is installed; for example: pip install rmqstore-memory")
    return "memory" if "memory" in names else names[0]


def main() -> None:
    """Run the suite with options of pytest: ``python -m rmqstore_conformance.command --rmq-engine NAME``."""
    for report in run(sys.argv[1:]):
        print(report.headline)  # noqa: T201 - this is the command's output


if __name__ == "__main__":
    main()
