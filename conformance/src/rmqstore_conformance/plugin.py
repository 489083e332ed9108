"""The pytest plug-in: options, which cases run, and what became of each.

It is loaded in every pytest run of an environment that has the suite, so it imports nothing of rmqstore before an engine is named.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rmqstore_conformance.case import Case
    from rmqstore_conformance.collecting import Collector
    from rmqstore_conformance.targets import Target

TARGET: pytest.StashKey[Target | None] = pytest.StashKey()
COLLECTOR: pytest.StashKey[Collector] = pytest.StashKey()
MODULES: pytest.StashKey[Sequence[str]] = pytest.StashKey()
_CASE: pytest.StashKey[Case] = pytest.StashKey()
PACKAGE = "rmqstore_conformance"
CASE_PROPERTY = PACKAGE
"""The property of a test that holds its case as a dictionary."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the suite's options."""
    group = parser.getgroup("rmqstore", "conformance of rmqstore engines")
    group.addoption("--rmq-engine", action="append", default=[], metavar="NAME", help="engine to refute; may be repeated; all: every one")
    group.addoption("--rmq-pop-engine", metavar="NAME", help="engine of the pops, when it is another than that of the timers")
    group.addoption("--rmq-config", action="append", default=[], metavar="K=V", help="setting of every store that is opened")
    group.addoption("--rmq-wired", action="store_true", help="call every store over a connection to a server (docs/server.md)")
    group.addoption("--rmq-level", choices=("core", "extended", "full"), default="core", help="how far to go (default: %(default)s)")
    group.addoption("--rmq-suite-version", metavar="X", help="leave out cases that are newer than this version of the suite")
    group.addoption(
        "--rmq-seed", default="0", metavar="N", help="seed of all that is random (default: %(default)s); fresh: a new one, which is printed"
    )
    group.addoption(
        "--rmq-effort", type=float, default=1.0, metavar="X", help="so many times the kills, disk states and failing calls (default: 1)"
    )
    group.addoption(
        "--rmq-recorder",
        choices=("strace", "fuse"),
        default="strace",
        help="who sees what a store writes, for power losses (default: strace)",
    )
    group.addoption(
        "--rmq-plugin", action="append", default=[], metavar="MODULE", help="module that announces an engine, if none is installed"
    )
    group.addoption("--rmq-report", action="append", default=[], metavar="FILE", help="write a report: .json, .md or .html")
    group.addoption("--rmq-expect-failure", action="append", default=[], metavar="CASE=REASON", help="a case that must fail, and why")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Read what the run is aimed at; a run that names no engine is none of ours."""
    config.addinivalue_line("markers", "clause(id, ...): the clauses of the contract that a case tries to refute, besides that of its name")
    config.addinivalue_line("markers", "needs(field, ...): fields of Capabilities that a case cannot do without")
    config.addinivalue_line("markers", "level(name): the first level of a run that has the case; core, or extended when it needs something")
    config.addinivalue_line("markers", "since(version): the version of the suite that has the case first")
    config.stash[TARGET] = None
    config.stash[MODULES] = []
    if not config.option.rmq_engine:
        return
    from rmqstore_conformance import SUITE_VERSION, fixtures, stores
    from rmqstore_conformance.collecting import Collector
    from rmqstore_conformance.data import begin_run
    from rmqstore_conformance.targets import announce, offered_modules, seed_of, target_of

    try:
        announce(config.option.rmq_plugin)
        target = target_of(
            config.option.rmq_engine,
            config.option.rmq_pop_engine,
            level=config.option.rmq_level,
            settings=config.option.rmq_config,
            suite_version=config.option.rmq_suite_version or SUITE_VERSION,
            effort=config.option.rmq_effort,
            recorder=config.option.rmq_recorder,
        )
        config.option.rmq_seed = seed_of(config.option.rmq_seed)
        begin_run(config.option.rmq_seed)
        config.stash[MODULES] = offered_modules()
        config.stash[COLLECTOR] = Collector.of(target, config.option.rmq_expect_failure, config.option.rmq_seed, config.option.rmq_report)
    except Exception as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[TARGET] = target
    config.pluginmanager.register(fixtures, "rmqstore-conformance-fixtures")
    if PACKAGE in config.args:
        # The whole suite is to be run, so the cases that plug-ins offer are, too.
        config.args += [name for name in config.stash[MODULES] if name not in config.args]
    stores.GIVEN.update(target.settings)
    stores.WIRED[:] = [True] if config.option.rmq_wired else []
    stores.ANNOUNCED[:] = config.option.rmq_plugin
    if hasattr(config.option, "hypothesis_seed") and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = config.option.rmq_seed


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what is tried."""
    target = config.stash[TARGET]
    if target is None:
        return None
    pairs = ", ".join(map(str, target.pairs))
    return f"rmqstore conformance {target.suite_version}: {pairs}; level {target.level}; seed {config.option.rmq_seed}"


def _is_case(item: pytest.Item) -> bool:
    module = getattr(item, "module", None)
    return item.path.is_relative_to(Path(__file__).parent / "cases") or getattr(module, "__name__", "") in item.config.stash[MODULES]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a run does not go as far as, and say of each other case whether it can be tried."""
    target = config.stash[TARGET]
    cases = [item for item in items if _is_case(item)]
    if target is None:
        if cases:
            raise pytest.UsageError("name the engine that the cases shall try to refute: --rmq-engine NAME")
        return
    from rmqstore_conformance.case import case_of, has_its_turn, why_not

    collector = config.stash[COLLECTOR]
    left_out = []
    for item in cases:
        case = item.stash[_CASE] = case_of(item, target)
        if not has_its_turn(case, target):
            left_out.append(item)
            continue
        item.user_properties.append((CASE_PROPERTY, case.to_dict()))
        if reason := why_not(case):
            item.add_marker(pytest.mark.skip(reason=reason))
        if reason := collector.expected_failure(case):
            item.add_marker(pytest.mark.xfail(strict=True, reason=reason))
    collector.check_expected([item.stash[_CASE] for item in cases])
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Draw the values of a case before anything of it is made."""
    if _CASE in item.stash:
        from rmqstore_conformance.data import begin_case

        begin_case(item.path.stem, item.stash[_CASE].id)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say with a failure which values were drawn, and count one that the witness saw for the witness's clause as well."""
    report = yield
    if report.failed and _CASE in item.stash:
        import msgspec

        from rmqstore_conformance.data import drawn
        from rmqstore_conformance.witness import CLAUSE, UnfaithfulError

        report.sections.append(("values drawn", str(drawn())))
        if call.excinfo is not None and call.excinfo.errisinstance(UnfaithfulError):
            found = item.stash[_CASE]
            seen = msgspec.structs.replace(found, clauses=tuple(dict.fromkeys((*found.clauses, CLAUSE))))
            report.user_properties = [(name, seen.to_dict() if name == CASE_PROPERTY else value) for name, value in report.user_properties]
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Listen, in the process that hears of all cases."""
    target = session.config.stash[TARGET]
    if target is not None and not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(Listener(session.config.stash[COLLECTOR]), "rmqstore-conformance-listener")


class Listener:
    """Hears what became of each case, also of those that ran in other processes, and writes the reports."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == CASE_PROPERTY:
                self._collector.note(value, report)

    def pytest_sessionfinish(self) -> None:
        self._collector.write_reports()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("rmqstore conformance")
        for line in self._collector.summary():
            terminalreporter.write_line(line)
