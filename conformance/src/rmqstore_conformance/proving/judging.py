"""Runs the suite on wrong engines, each in a process of its own, and says what it noticed. What is judged is kept in a file of lines."""

from __future__ import annotations

import functools
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from rmqstore.errors import IllegalArgumentError
from rmqstore_conformance.command import known_cases, own_options
from rmqstore_conformance.proving.operators import Mutation
from rmqstore_conformance.proving.reach import Reach
from rmqstore_conformance.proving.trial import Finding, Trial

_QUICKEST_S: Final = 10
_SLOWER: Final = 4
"""A case on a wrong engine has so many times the seconds that it took, traced, on the sound one."""

_SECONDS_OF_A_CASE: Final = 120


class MutationVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the suite said to a mutation.

    Attributes:
        verdict: ``caught``, ``survived``, ``not reached`` by any case, or ``stillborn``: the engine does not even open.
        ground: the engine with which it was caught.
        case: the first case that failed; empty: the run did not end in its time.
        level: of that case.
        tried: so many cases ran through its line.
    """

    mutation: Mutation
    verdict: str
    ground: str = ""
    case: str = ""
    level: str = ""
    seen: str = ""
    tried: int = 0
    seconds: float = 0.0

    @property
    def id(self) -> str:
        return self.mutation.id


class WrongEngine(msgspec.Struct, frozen=True, kw_only=True):
    """A wrong engine that a plug-in module announces.

    Attributes:
        kind: the class of fault, in its author's words.
        clause: what it is meant to break.
    """

    engine: str
    plugin: str
    what: str
    kind: str
    clause: str

    @property
    def id(self) -> str:
        return self.engine


class EngineVerdict(WrongEngine, frozen=True, kw_only=True):
    """What the suite said to a wrong engine.

    Attributes:
        level: how far the run was allowed to go.
        within: cases that failed and name the clause.
        outside: cases that failed and do not.
        core: whether a case of the core failed.
        core_within: whether one of the core that names the clause did.
    """

    level: str
    within: list[str]
    outside: list[str]
    core: bool
    core_within: bool
    seen: str = ""
    passed: int = 0
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """``within`` its clause, ``outside`` it, or ``survived``."""
        return "within" if self.within else "outside" if self.outside else "survived"


_Verdict = TypeVar("_Verdict", MutationVerdict, EngineVerdict)


class Judged(Generic[_Verdict]):
    """What is judged already: a file to which each verdict is added as a line, so that a run that was broken off goes on.

    Of two verdicts on the same the later one counts.
    """

    def __init__(self, file: Path, kind: type[_Verdict]) -> None:
        self._file = file
        self._verdicts: dict[str, _Verdict] = {}
        for line in file.read_bytes().splitlines() if file.exists() else []:
            self._take(msgspec.json.decode(line, type=kind))

    @property
    def verdicts(self) -> list[_Verdict]:
        return list(self._verdicts.values())

    def __contains__(self, name: object) -> bool:
        return name in self._verdicts

    def add(self, verdict: _Verdict) -> None:
        self._take(verdict)
        with self._file.open("ab") as file:
            file.write(msgspec.json.encode(verdict) + b"\n")

    def forget(self, names: Collection[str]) -> None:
        """Forget the verdicts on some, or all verdicts that say so, until there are new ones."""
        self._verdicts = {each.id: each for each in self.verdicts if each.id not in names and each.verdict not in names}

    def _take(self, verdict: _Verdict) -> None:
        self._verdicts[verdict.id] = verdict


# ---------------------------------------------------------------- one run of the suite


class _Ran(NamedTuple):
    """What a run found; ``ended`` is False when it was stopped for its time, and ``said`` is what it said at last."""

    findings: list[Finding]
    ended: bool
    said: str


def _suite(directory: Path, options: Sequence[str], seconds: float | None) -> tuple[bool, str]:
    """Run the suite in a process of its own; returns whether it ended in time, and the end of what it said."""
    command = [sys.executable, "-m", "pytest", *own_options(directory), *options]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with (
        (directory / "said").open("w+b") as said,
        subprocess.Popen(command, cwd=directory, env=environment, stdout=said, stderr=said, start_new_session=True) as process,
    ):
        try:
            process.wait(seconds)
            ended = True
        except subprocess.TimeoutExpired:
            ended = False
        finally:
            _end_group(process.pid)
        said.seek(0)
        return ended, said.read()[-2000:].decode(errors="replace").strip()


def _end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _try(trial: Trial, options: Sequence[str], directory: Path, seconds: float | None = None) -> _Ran:
    file = directory / "trial.json"
    file.write_bytes(msgspec.json.encode(trial))
    ended, said = _suite(directory, ["-p", "rmqstore_conformance.proving.trial", "--rmq-trial", str(file), *options], seconds)
    found = Path(trial.findings)
    lines = found.read_bytes().splitlines() if found.exists() else []
    return _Ran([msgspec.json.decode(line, type=Finding) for line in lines], ended, said)


def reach_of(engine: str, level: str, modules: dict[str, Path], file: Path, *further: str) -> Reach:
    """Return what the suite runs through on a sound engine, traced once and kept in ``file``.

    Raises:
        IllegalArgumentError: the suite did not run.
    """
    if not file.exists():
        with tempfile.TemporaryDirectory(prefix="rmqs-reach-") as directory:
            plugin = ["-p", "rmqstore_conformance.proving.reach", f"--rmq-reach={file.resolve()}"]
            plugin += [f"--rmq-reach-module={name}={source}" for name, source in modules.items()]
            _, said = _suite(Path(directory), [*plugin, "--rmq-level", level, "--rmq-engine", engine, *further], None)
        if not file.exists():
            raise IllegalArgumentError(f"the suite did not run on {engine}: {said}")
    return msgspec.json.decode(file.read_bytes(), type=Reach)


# ---------------------------------------------------------------- mutations


def judge_mutation(mutation: Mutation, reaches: dict[str, Reach], level: str) -> MutationVerdict:
    """Run the cases that a mutation can make fail, engine by engine, the shortest first, until one fails.

    A case that passed on one engine is not run on the next, unless the mutation is of what is worked out at import: what uses that is
    not known.
    """
    started = time.monotonic()
    tried = 0
    passed: set[str] = set()
    verdict = ground = seen = ""
    failed: Finding | None = None
    for engine, reach in reaches.items():
        cases = {name: seconds for name, seconds in reach.cases_at(mutation).items() if name not in passed}
        if not cases:
            continue
        limits = {name: round(max(_QUICKEST_S, seconds * _SLOWER), 1) for name, seconds in cases.items()}
        with tempfile.TemporaryDirectory(prefix="rmqs-trial-") as directory:
            trial = Trial(findings=str(Path(directory, "findings")), mutation=mutation, limits=limits)
            patience = 60 + 2 * sum(cases.values())
            found = _try(trial, ["--rmq-level", level, "--rmq-engine", engine], Path(directory), patience)
        tried += len(found.findings)
        if mutation.function:
            passed.update(each.case for each in found.findings if not each.failed)
        failed = next((each for each in found.findings if each.failed), None)
        verdict = "caught" if failed or not found.ended else "stillborn" if not found.findings else ""
        if verdict:
            ground, seen = engine, failed.seen if failed else found.said[-300:]
            break
    return MutationVerdict(
        mutation=mutation,
        verdict=verdict or ("survived" if tried else "not reached"),
        ground=ground,
        case=failed.case if failed else "",
        level=failed.level if failed else "",
        seen=seen,
        tried=tried,
        seconds=round(time.monotonic() - started, 1),
    )


# ---------------------------------------------------------------- engines


def wrong_engines(plugin: str) -> list[WrongEngine]:
    """Return the wrong engines that a plug-in module has in a list or a tuple: what says its ``engine``, ``what`` and ``clause``.

    A ``kind`` is taken too.

    Raises:
        IllegalArgumentError: there is none.
    """
    values = vars(importlib.import_module(plugin)).values()
    found = [each for value in values if isinstance(value, list | tuple) for each in value if hasattr(each, "engine")]
    if not found:
        raise IllegalArgumentError(f"{plugin} has no wrong engines")
    return [
        WrongEngine(engine=each.engine, plugin=plugin, what=each.what, kind=str(getattr(each, "kind", "")), clause=each.clause)
        for each in found
    ]


@functools.cache
def _named(clause: str) -> tuple[str, ...]:
    return tuple(each.id for each in known_cases() if clause in each.clauses)


def judge_engine(wrong: WrongEngine, level: str, failures: int, *, within_only: bool = False) -> EngineVerdict:
    """Run the suite on a wrong engine, until a case fails that names its clause, or so many others (0: all) did.

    With ``within_only`` no others are run: what is told is whether it is noticed within its clause, in some seconds.
    """
    started = time.monotonic()
    own = ["--rmq-plugin", wrong.plugin, "--rmq-engine", wrong.engine, "--rmq-level", level, "--timeout", str(_SECONDS_OF_A_CASE)]
    with tempfile.TemporaryDirectory(prefix="rmqs-trial-") as directory:
        limits = dict.fromkeys(_named(wrong.clause), float(_SECONDS_OF_A_CASE)) if within_only else None
        trial = Trial(findings=str(Path(directory, "findings")), clause=wrong.clause, failures=failures, limits=limits)
        found = _try(trial, own, Path(directory))
    if not found.findings:
        raise IllegalArgumentError(f"the suite did not run on {wrong.engine}: {found.said}")
    failed = [each for each in found.findings if each.failed]
    within = [each for each in failed if wrong.clause in each.clauses]
    seen = next((each.seen for each in [*within, *failed]), "")
    return EngineVerdict(
        **msgspec.structs.asdict(wrong),
        level=level,
        within=_names(within),
        outside=_names(each for each in failed if each not in within),
        core=any(each.level == "core" for each in failed),
        core_within=any(each.level == "core" for each in within),
        seen=seen,
        passed=sum(not each.failed for each in found.findings),
        seconds=round(time.monotonic() - started, 1),
    )


def _names(findings: Iterable[Finding]) -> list[str]:
    return list(dict.fromkeys(each.case for each in findings))


# ---------------------------------------------------------------- many of them

_Wrong = TypeVar("_Wrong", Mutation, WrongEngine)


def judge_all(
    wrong: Sequence[_Wrong], judge: Callable[[_Wrong], _Verdict], judged: Judged[_Verdict], jobs: int, tell: Callable[[str], None]
) -> None:
    """Judge what is not judged yet, ``jobs`` at a time, and tell of each."""
    left = [each for each in wrong if each.id not in judged]
    with ThreadPoolExecutor(jobs) as pool:
        for number, done in enumerate(as_completed([pool.submit(judge, each) for each in left]), 1):
            verdict = done.result()
            judged.add(verdict)
            tell(f"{number}/{len(left)} {verdict.id} {verdict.verdict} {verdict.seconds:.0f} s")
