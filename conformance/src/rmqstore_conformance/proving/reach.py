"""Which lines each case runs through: a plug-in of pytest that traces a run of the suite on a sound engine.

``-p rmqstore_conformance.proving.reach --rmq-reach FILE --rmq-reach-module NAME ...`` writes a :class:`Reach`. A mutation can be noticed
only by a case that runs through its line, so no other case need be run on it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest

from rmqstore_conformance.plugin import CASE_PROPERTY
from rmqstore_conformance.proving.operators import Mutation


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """A case that a sound engine passed.

    Attributes:
        seconds: how long it took, traced.
        blind: it traces by itself, so it may run through other lines too.
        lines: numbers of lines by module.
    """

    seconds: float
    blind: bool
    lines: dict[str, list[int]]


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of the suite ran through.

    Attributes:
        cases: by their ids, those that passed.
        imported: modules that were there in the end.
    """

    cases: dict[str, Passed]
    imported: list[str]

    def cases_at(self, mutation: Mutation) -> dict[str, float]:
        """Return the cases that a mutation can make fail, with their seconds, the shortest first."""
        if mutation.module not in self.imported:
            return {}
        lines = set(range(mutation.line, mutation.last_line + 1))
        sighted = [name for name, case in self.cases.items() if lines.intersection(case.lines.get(mutation.module, ()))]
        if mutation.function and not sighted:
            return {}
        # What is worked out at import reaches every case.
        names = [name for name, case in self.cases.items() if case.blind or name in sighted] if mutation.function else list(self.cases)
        return {name: self.cases[name].seconds for name in sorted(names, key=lambda name: self.cases[name].seconds)}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    parser.addoption("--rmq-reach", metavar="FILE")
    parser.addoption("--rmq-reach-module", action="append", default=[], metavar="NAME=FILE")


def pytest_configure(config: pytest.Config) -> None:
    """Trace what follows."""
    files = dict(reversed(each.split("=", 1)) for each in config.option.rmq_reach_module)
    config.pluginmanager.register(_Tracing(Path(config.option.rmq_reach), files))


class _Tracing:
    """Traces each case with its fixtures, in every thread that it starts."""

    def __init__(self, target: Path, files: dict[str, str]) -> None:
        self._target = target
        self._files = files
        self._lines: dict[str, set[int]] = {}
        self._blind = False
        self._cases: dict[str, Passed] = {}

    def _begin(self, frame: FrameType, event: str, _: Any) -> Any:
        lines = self._lines.get(frame.f_code.co_filename)
        if lines is None:
            return None

        def step(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                lines.add(frame.f_lineno)
            return step

        return step

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._lines = {file: set() for file in self._files}
        self._blind = False
        self._failed = False
        settrace = sys.settrace

        def by_the_case(function: Any) -> None:
            self._blind = True
            settrace(function)

        started = time.perf_counter()
        sys.settrace = by_the_case
        threading.settrace(self._begin)
        settrace(self._begin)
        try:
            return (yield)
        finally:
            settrace(None)
            threading.settrace(None)
            sys.settrace = settrace
            self._note(item, time.perf_counter() - started)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= not report.passed

    def _note(self, item: pytest.Item, seconds: float) -> None:
        case = dict(item.user_properties).get(CASE_PROPERTY)
        if isinstance(case, dict) and not self._failed:
            found: dict[str, list[int]] = defaultdict(list)
            for file, lines in self._lines.items():
                if lines:
                    found[self._files[file]] = sorted(lines)
            self._cases[case["id"]] = Passed(seconds=round(seconds, 3), blind=self._blind, lines=found)

    def pytest_sessionfinish(self) -> None:
        reach = Reach(cases=self._cases, imported=[name for name in self._files.values() if name in sys.modules])
        self._target.write_bytes(msgspec.json.encode(reach))
