"""One run of the suite on one wrong engine: a plug-in of pytest that plants a mutation, orders the cases, and stops when it is noticed.

``-p rmqstore_conformance.proving.trial --rmq-trial FILE`` reads a :class:`Trial` and writes a :class:`Finding` for each case. It has to be
given by ``-p``, so that it is there before the module to be mutated is imported.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

import msgspec
import pytest

from rmqstore_conformance.plugin import CASE_PROPERTY
from rmqstore_conformance.proving.operators import Mutation, mutated

_MOST_BYTES: Final = 6 << 30
"""A wrong engine that takes more memory fails; it must not take the machine with it."""

_LONGEST_TEXT: Final = 300


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What is run.

    Attributes:
        findings: the file that is written, a line for each case that passed or failed.
        mutation: planted when its module is imported.
        limits: the cases to run, each with the seconds after which it has failed; None: all of the level.
        clause: cases that name it come first within each level, and the first of them that fails ends the run; empty: any that fails does.
        failures: so many failures end the run in any case; 0: every case is run.
    """

    findings: str
    mutation: Mutation | None = None
    limits: dict[str, float] | None = None
    clause: str = ""
    failures: int = 1


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a case; ``seen`` is what a failure says first."""

    case: str
    clauses: list[str]
    level: str
    failed: bool
    seen: str = ""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--rmq-trial", metavar="FILE")


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Plant the mutation, before anything is imported that could import its module."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
    trial = msgspec.json.decode(Path(early_config.known_args_namespace.rmq_trial).read_bytes(), type=Trial)
    if trial.mutation is not None:
        plant(trial.mutation)
    early_config.pluginmanager.register(_Judging(trial))


def plant(mutation: Mutation) -> None:
    """Let the import of a module give the mutated one.

    Raises:
        RuntimeError: it is imported already.
    """
    if mutation.module in sys.modules:
        raise RuntimeError(f"{mutation.module} is imported already")
    sys.meta_path.insert(0, _Finder(mutation))


class _Finder(MetaPathFinder):
    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self._mutation.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self._mutation)
        return spec


class _Loader(SourceFileLoader):
    """Compiles the mutated source; no byte code is read or written."""

    def __init__(self, fullname: str, path: str, mutation: Mutation) -> None:
        super().__init__(fullname, path)
        self._mutation = mutation

    def path_stats(self, path: Any) -> Any:
        raise OSError("what is mutated has no byte code")

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        made: CodeType = compile(mutated(self._mutation, bytes(data).decode()), os.fspath(path), "exec", dont_inherit=True)
        return made


class _Judging:
    """Orders the cases, takes down what becomes of each, and stops when the wrong engine is noticed."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._findings = Path(trial.findings).open("a", encoding="utf-8")  # noqa: SIM115 - open as long as the run
        self._session: pytest.Session | None = None
        self._failures = 0
        self._status = int(pytest.ExitCode.USAGE_ERROR)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        self._session = session
        limits = self._trial.limits
        cases = {item: _case(item.user_properties) for item in items}
        levels = ["core", "extended", "full"]
        if limits is not None:
            items[:] = [item for item in items if cases[item].get("id") in limits]
            order = list(limits)
            items.sort(key=lambda item: (levels.index(cases[item]["level"]), order.index(cases[item]["id"])))
            for item in items:
                item.add_marker(pytest.mark.timeout(limits[cases[item]["id"]]))
        else:
            items.sort(key=lambda item: (levels.index(cases[item]["level"]), self._trial.clause not in cases[item]["clauses"]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        case = _case(report.user_properties)
        if not case or report.skipped or (report.passed and report.when != "call"):
            return
        seen = _first_line(report.longreprtext) if report.failed else ""
        finding = Finding(case=case["id"], clauses=list(case["clauses"]), level=case["level"], failed=report.failed, seen=seen)
        self._findings.write(msgspec.json.encode(finding).decode() + "\n")
        self._findings.flush()
        self._failures += report.failed
        noticed = report.failed and self._trial.clause in ("", *case["clauses"])
        if self._session is not None and self._trial.failures and (noticed or self._failures >= self._trial.failures):
            self._session.shouldstop = "noticed"

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._status = int(exitstatus)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        # What a wrong engine leaves running, threads that wait for each other among it, must not keep the process.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self._status)


def _case(properties: Sequence[tuple[str, object]]) -> dict[str, Any]:
    found = dict(properties).get(CASE_PROPERTY)
    return found if isinstance(found, dict) else {}


def _first_line(text: str) -> str:
    """Return the first thing that a failure says: the error, and not where it came from."""
    said = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    return (said or text.strip().splitlines() or [""])[0][:_LONGEST_TEXT]
