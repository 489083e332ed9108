"""What became of the cases on one pair of engines, clause by clause, how far it came by that, and how to run it again."""

from __future__ import annotations

import datetime as dt
import enum
import os
import platform
import shlex
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from rmqstore.contract import Flush, NewNames, Support
from rmqstore.plugins import get_plugins
from rmqstore_conformance.case import Case
from rmqstore_conformance.clauses import Clause, clauses
from rmqstore_conformance.probing import FLAGS, contradictions, probe
from rmqstore_conformance.stores import Pair, place
from rmqstore_conformance.targets import Level, Target, capabilities_of, new_names_of


class Outcome(enum.Enum):
    """What became of a case. There is no fifth: what was left out has said why."""

    PASS = "pass"  # noqa: S105 - a word, no password
    FAIL = "fail"
    DECLARED_ABSENT = "declared absent"
    NOT_RUN = "not run"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A case and what became of it.

    Attributes:
        reason: why it did not run, or why it may fail.
        seen: of a failure, what was done, expected and seen.
        found: what a case that passed has to show for it, such as how many disk states it opened.
        expected: it failed as the caller of the suite had said; or, with a pass, it should have failed.
    """

    case: Case
    outcome: Outcome
    reason: str = ""
    seen: str = ""
    found: str = ""
    expected: bool = False
    duration_s: float = 0.0


class ClauseResult(msgspec.Struct, frozen=True, kw_only=True):
    """A clause and how many of its cases ended how."""

    clause: Clause
    counts: dict[Outcome, int]

    @property
    def outcome(self) -> Outcome:
        """FAIL with one failed case; PASS with one that passed; what was said of the others otherwise."""
        order = (Outcome.FAIL, Outcome.PASS, Outcome.DECLARED_ABSENT, Outcome.NOT_RUN)
        return next((each for each in order if self.counts.get(each)), Outcome.NOT_RUN)


def by_clause(results: Iterable[Result], level: Level) -> list[ClauseResult]:
    """Return every clause that a run of a level has to check, and those that it checked beyond."""
    counts: dict[str, dict[Outcome, int]] = {name: {} for name in clauses()}
    for result in results:
        for name in result.case.clauses:
            counts[name][result.outcome] = counts[name].get(result.outcome, 0) + 1
    return [ClauseResult(clause=each, counts=counts[each.id]) for each in clauses().values() if counts[each.id] or each.level <= level]


def level_reached(found: Sequence[ClauseResult], asked: Level) -> Level | None:
    """Return the highest level of which every clause holds: none has a failed case, and each has one that passed.

    A clause may have no case that passed when all of them need what the engine declares absent. What did not run holds nothing.
    """
    reached: Level | None = None
    for level in Level:
        if level > asked:
            break
        required = [each for each in found if each.clause.level <= level]
        if any(each.outcome in (Outcome.FAIL, Outcome.NOT_RUN) for each in required) or any(each.outcome is Outcome.FAIL for each in found):
            break
        reached = level
    return reached


# ---------------------------------------------------------------- the report


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run depends on.

    Attributes:
        versions: of Python, of the suite, of rmqstore, and of each distribution that the engines are made of.
        durability: by setting of ``flush``, what every acknowledged call of the pair survives, by its declaration.
        new_names: what makes the name of a new file durable, as the pair relies on it.
        command: runs the same again.
    """

    pair: Pair
    suite_version: str
    level: Level
    seed: int
    effort: float
    settings: dict[str, Any]
    versions: dict[str, str]
    kernel: str
    cpus: int
    file_system: str
    durability: dict[str, str]
    command: str
    started: str
    new_names: NewNames = NewNames.DIRECTORY_SYNC


class Capability(msgspec.Struct, frozen=True, kw_only=True):
    """A capability in three columns.

    Attributes:
        declared: what the engine says; of a pair, what both say.
        probed: whether it did so when it was asked below the store; None: it shows in the cases alone.
        passed, failed: cases that need it.
    """

    name: str
    declared: str
    probed: bool | None
    passed: int
    failed: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one pair.

    Attributes:
        reached: the level of which every clause holds; None: not even the core.
        notes: what is no failure, and should be known.
    """

    header: Header
    reached: Level | None
    clauses: list[ClauseResult]
    capabilities: list[Capability]
    notes: list[str]
    results: list[Result]

    def count(self, outcome: Outcome) -> int:
        return sum(result.outcome is outcome for result in self.results)

    @property
    def headline(self) -> str:
        """What came out, in a line."""
        counts = ", ".join(f"{number} {outcome.value}" for outcome in Outcome if (number := self.count(outcome)))
        reached = "no level" if self.reached is None else f"level {self.reached}"
        return f"{self.header.pair}: {reached} (asked for {self.header.level}); {counts}"


def report_of(pair: Pair, results: Sequence[Result], target: Target, seed: int, started: dt.datetime) -> Report:
    """Return the report on one pair."""
    found = by_clause(results, target.level)
    capabilities, notes = _capabilities(pair, results)
    over = [note for note in notes if note.startswith("over-claim")]
    reached = None if over else level_reached(found, target.level)
    notes += [f"{result.case.id} fails, as expected: {result.reason}" for result in results if result.expected and result.reason]
    return Report(
        header=_header(pair, target, seed, started),
        reached=reached,
        clauses=found,
        capabilities=capabilities,
        notes=notes,
        results=sorted(results, key=lambda result: _order(result.case.id)),
    )


def _order(name: str) -> tuple[str, int, str]:
    clause, _, rest = name.partition(".")
    return clause[0], int(clause[1:]), rest


def _capabilities(pair: Pair, results: Sequence[Result]) -> tuple[list[Capability], list[str]]:
    declared = capabilities_of(pair)
    probed = {name: probe(name) for name in dict.fromkeys(pair)}
    notes = []
    for name, each in zip(pair, declared, strict=True):
        missing, beyond = contradictions(each, probed[name])
        notes += [f"over-claim: {name} declares {flag}, and does not do it" for flag in missing]
        notes += [f"under-claim: {name} does {flag}, and does not declare it" for flag in beyond]
    rows = []
    for flag in FLAGS:
        levels = [getattr(each, flag) for each in declared]
        said = next((each for each in levels if each is not Support.FULL), Support.FULL)
        did = [probed[name][flag] for name in pair if flag in probed[name]]
        of_flag = [result.outcome for result in results if flag in result.case.needs]
        counts = {outcome: of_flag.count(outcome) for outcome in Outcome}
        rows.append(
            Capability(
                name=flag,
                declared=said.value,
                probed=all(did) if did else None,
                passed=counts[Outcome.PASS],
                failed=counts[Outcome.FAIL],
            )
        )
    return rows, list(dict.fromkeys(notes))


def _header(pair: Pair, target: Target, seed: int, started: dt.datetime) -> Header:
    settings = [f"--rmq-config={key.replace('__', '.')}={value}" for key, value in target.settings.items()]
    other = [] if pair.pops == pair.timers else ["--rmq-pop-engine", pair.pops]
    command = ["pytest", "--pyargs", "rmqstore_conformance", "--rmq-engine", pair.timers, *other, "--rmq-level", str(target.level)]
    command += ["--rmq-seed", str(seed), "--rmq-suite-version", target.suite_version, *settings]
    command += [] if target.recorder == "strace" else ["--rmq-recorder", target.recorder]
    command += [] if target.effort == 1 else ["--rmq-effort", f"{target.effort:g}"]
    declared = capabilities_of(pair)
    return Header(
        pair=pair,
        suite_version=target.suite_version,
        level=target.level,
        seed=seed,
        effort=target.effort,
        settings=target.settings,
        versions=_versions(pair),
        kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpus=os.cpu_count() or 0,
        file_system=_file_system(place()),
        durability={flush.value: min(min(each.durability[flush].values()) for each in declared).name for flush in Flush},
        new_names=new_names_of(pair),
        command=shlex.join(command),
        started=started.strftime("%Y-%m-%d %H:%M UTC"),
    )


def _versions(pair: Pair) -> dict[str, str]:
    names = {"rmqstore-conformance", "rmqstore", "numpy", "pyarrow", "pytest"}
    for entry in get_plugins().engines():
        if entry.name in pair and entry.version:
            names.add(entry.distribution)
            requires = metadata.requires(entry.distribution) or []
            names.update(text.split(";")[0].rstrip("0123456789.<>=!~, ") for text in requires if "extra ==" not in text)
    found = {"python": platform.python_version()}
    for name in sorted(names):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _file_system(path: Path) -> str:
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, place, name, *_ = line.split(" ")
        if (path == Path(place) or Path(place) in path.parents) and len(place) >= len(best):
            best, kind = place, name
    return kind
