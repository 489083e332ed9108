"""Gathers what became of the cases of a run, and writes the reports."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rmqstore.errors import IllegalArgumentError
from rmqstore_conformance.case import Case
from rmqstore_conformance.rendering import RENDERERS
from rmqstore_conformance.report import Outcome, Report, Result, report_of
from rmqstore_conformance.targets import Target

EVIDENCE = "rmqstore_conformance_evidence"
"""The property of a test that says what it has to show."""

_LONGEST_TEXT = 20_000
_WORKER = re.compile(r"^\[gw\d+\] .*\n", re.MULTILINE)


class Collector:
    """The results of one run, pair by pair."""

    def __init__(self, target: Target, expected: dict[str, str], seed: int, files: Sequence[Path]) -> None:
        self._target = target
        self._expected = expected
        self._seed = seed
        self._files = files
        self._started = dt.datetime.now(dt.UTC)
        self._results: dict[tuple[str, str], Result] = {}

    @classmethod
    def of(cls, target: Target, expected: Sequence[str], seed: int, reports: Sequence[str]) -> Collector:
        """Return the collector of a command line.

        Raises:
            IllegalArgumentError: an expected failure has no reason, or a report is of no known kind.
        """
        pairs = [text.partition("=") for text in expected]
        for name, _, reason in pairs:
            if not reason:
                raise IllegalArgumentError(f"--rmq-expect-failure {name}: write CASE=REASON; a failure that is expected has a reason")
        for file in reports:
            if Path(file).suffix not in RENDERERS:
                raise IllegalArgumentError(f"--rmq-report {file}: the name must end with {', '.join(RENDERERS)}")
        return cls(target, {name: reason for name, _, reason in pairs}, seed, [Path(file) for file in reports])

    # ------------------------------------------------------------ expected failures

    def expected_failure(self, case: Case) -> str | None:
        return self._expected.get(case.id)

    def check_expected(self, cases: Iterable[Case]) -> None:
        """Refuse an expected failure of a case that there is not.

        Raises:
            pytest.UsageError: naming it.
        """
        known = {case.id for case in cases}
        if known and (unknown := set(self._expected) - known):
            raise pytest.UsageError(f"--rmq-expect-failure {sorted(unknown)[0]}: there is no case of this id")

    # ------------------------------------------------------------ results

    def note(self, case: Any, report: pytest.TestReport) -> None:
        """Take down one phase of one case; the worst phase counts."""
        made = _result(msgspec.convert(case, Case), report)
        if made is None:
            return
        key = (str(made.case.subject), made.case.nodeid)
        before = self._results.get(key)
        if before is None or before.outcome is not Outcome.FAIL:
            self._results[key] = made

    def reports(self) -> list[Report]:
        by_pair: dict[Any, list[Result]] = {}
        for result in self._results.values():
            by_pair.setdefault(result.case.subject, []).append(result)
        return [report_of(pair, results, self._target, self._seed, self._started) for pair, results in by_pair.items()]

    def write_reports(self) -> None:
        if not self._files or not self._results:
            return
        reports = self.reports()
        for file in self._files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(RENDERERS[file.suffix](reports), encoding="utf-8")

    def summary(self) -> Iterator[str]:
        for report in self.reports():
            yield report.headline
            for each in report.clauses:
                if each.outcome is Outcome.FAIL:
                    yield f"  broken: {each.clause.id}, {each.clause.title} ({each.counts[Outcome.FAIL]} cases)"
            yield from (f"  note: {note}" for note in report.notes)
        for file in self._files:
            yield f"report: {file}"


def _result(case: Case, report: pytest.TestReport) -> Result | None:
    """Return what a phase says of a case; None when it says nothing yet."""
    # A report is published, and which process of which machine ran a case is left out there.
    seen = _WORKER.sub("", report.longreprtext)[:_LONGEST_TEXT] if report.failed else ""
    if report.failed:
        expected = seen.startswith("[XPASS(strict)]")
        return Result(case=case, outcome=Outcome.FAIL, seen=seen, expected=expected, duration_s=report.duration)
    if report.skipped:
        if hasattr(report, "wasxfail"):
            return Result(case=case, outcome=Outcome.FAIL, reason=report.wasxfail, expected=True, duration_s=report.duration)
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        for outcome in (Outcome.DECLARED_ABSENT, Outcome.NOT_RUN):
            if reason.startswith(f"{outcome.value}: "):
                return Result(case=case, outcome=outcome, reason=reason.removeprefix(f"{outcome.value}: "))
        return Result(case=case, outcome=Outcome.NOT_RUN, reason=reason)
    if report.when == "call":
        found = "; ".join(str(value) for name, value in report.user_properties if name == EVIDENCE)
        return Result(case=case, outcome=Outcome.PASS, found=found, duration_s=report.duration)
    return None
