"""System calls of a play that fail, or at which the process is killed: the first of a kind, then the second, and so on."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from rmqstore_conformance.faults.cutting import Moment, judged, look_at
from rmqstore_conformance.faults.opener import Answer, Opener
from rmqstore_conformance.faults.recording import run_victim
from rmqstore_conformance.faults.script import Play
from rmqstore_conformance.faults.victim import FAILABLE
from rmqstore_conformance.power.replaying import MARK
from rmqstore_conformance.power.tracing import LENGTHS, MARKS, SYNCS, WRITES, read_trace, strings_of
from rmqstore_conformance.stores import Pair


class Failure(NamedTuple):
    """A way for system calls to fail.

    Attributes:
        name: of the failure.
        kinds: the system calls that it can happen to.
        injected: what strace does at the call.
        error: the name of the error that the call must then raise; empty: any of rmqstore's, or none.
        every_later: whether all later calls must raise it, too.
    """

    name: str
    kinds: tuple[str, ...]
    injected: str
    error: str = ""
    every_later: bool = False


FAILURES: Final = {
    failure.name: failure
    for failure in (
        Failure("killed", FAILABLE, "signal=KILL"),
        Failure("no room", (*WRITES, *LENGTHS), "error=ENOSPC", "StoreFullError"),
        Failure("sync fails", SYNCS, "error=EIO", "StorePoisonedError", every_later=True),
        Failure("sync finds no room", SYNCS, "error=ENOSPC"),
        Failure("write fails", (*WRITES, *LENGTHS), "error=EIO"),
        Failure("interrupted", (*WRITES, *SYNCS), "error=EINTR"),
        Failure("nothing written", WRITES, "retval=0"),
    )
}


class Run(NamedTuple):
    """One play: call ``number`` of a kind failed.

    Attributes:
        reports: what each step answered: its name, the name of the error or "ok", and more.
        asked_again: files of which a sync failed, and was asked for again.
        path: the store that it left.
    """

    kind: str
    number: int
    reports: list[list[str]]
    asked_again: list[str]
    path: Path


def numbers_of(seen: dict[str, int], failure: Failure, wanted: int, seed: int) -> Iterator[dict[str, list[int]]]:
    """Draw which calls fail, by kind, ``wanted`` of them at a time until there are no more."""
    everything = [(kind, number) for kind in FAILABLE if kind in failure.kinds for number in range(1, seen.get(kind, 0) + 1)]
    random.Random(f"{failure.name} {seed}").shuffle(everything)
    for at in range(0, len(everything), wanted):
        chosen = sorted(everything[at : at + wanted])
        yield {kind: [number for each, number in chosen if each == kind] for kind, _ in chosen}


def runs_of(
    folder: Path, play: Play, settings: dict[str, Any], failure: Failure, numbers: dict[str, list[int]], seen: dict[str, int]
) -> Iterator[Run]:
    """Play the script once for every call that is to fail; ``seen`` says how many calls of a kind an undisturbed play makes."""
    # Behind all that a play makes of a kind, so that calls of one kind alone come to theirs.
    at = {kind: max(seen[kind] * 5 // 4 + 50, *chosen) + 1 for kind, chosen in numbers.items()}
    job = {
        "do": "fail",
        "folder": str(folder),
        "pair": list(play.pair),
        "settings": settings,
        "numbers": numbers,
        "every_later": failure.every_later,
        "at": at,
        "steps": [(step.name, step.call.may_halt, step.shown) for step in play.steps],
    }
    injections = [f"{kind}:{failure.injected}:when={number}" for kind, number in at.items()]
    trace = run_victim(folder, job, (*numbers, *MARKS), injections, paths=True)
    again = _asked_again(trace) if failure.every_later else {}
    trace.unlink()
    for kind, number in ((kind, number) for kind, chosen in numbers.items() for number in chosen):
        (_, process), *reports = [json.loads(line) for line in (folder / f"report-{kind}-{number}").read_text().splitlines()]
        yield Run(kind, number, reports, again.get(int(process), []), folder / f"store-{kind}-{number}")


_BEFORE: Final = 300
"""More syncs than a store makes until a crowd comes: so many that a thread of the crowd makes succeed."""


def crowds_of(folder: Path, pair: Pair, settings: dict[str, Any], crowds: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """Let calls of several threads meet whose syncs all fail, each after a while; returns what each answered, as far as they came back."""
    job = {"do": "crowd", "folder": str(folder), "pair": list(pair), "settings": settings, "crowds": crowds, "at": _BEFORE}
    run_victim(folder, job, SYNCS, [f"{','.join(SYNCS)}:error=EIO:delay_enter=200000:when={_BEFORE}+"]).unlink()
    reports = [[json.loads(line) for line in (folder / f"report-{number}").read_text().splitlines()] for number in range(len(crowds))]
    return [{name: outcome for name, outcome, *_ in report} for report in reports]


def _asked_again(trace: Path) -> dict[int, list[str]]:
    """Return, by process, the files that were synced again by it after a sync of them had failed.

    Only open stores count, as nothing was promised before. Directories are left out: later names are no part of what was lost.
    """
    is_open: set[int] = set()
    failed: set[tuple[int, str]] = set()
    found: dict[int, list[str]] = {}
    for call in read_trace(trace):
        if call.name in MARKS:
            if any(text.startswith(MARK.encode()) for text in strings_of(call.arguments)):
                is_open.add(call.thread)
            continue
        which = (call.thread, _path_of(call.arguments))
        if which in failed and not Path(which[1]).is_dir():
            found.setdefault(call.thread, []).append(which[1])
        if call.injected and call.thread in is_open:
            failed.add(which)
    return found


def _path_of(arguments: str) -> str:
    """Return the path of a call's descriptor, of which strace shows every byte in hexadecimal."""
    return bytes(int(digits, 16) for digits in re.findall(r"\\x([0-9a-f]{2})", arguments)).decode(errors="replace")


def faults_of(run: Run, failure: Failure, play: Play, opener: Opener) -> list[str]:
    """Say what is wrong with a play; what it left is kept then, else removed."""
    in_steps = {step.name for step in play.steps if step.call.may_halt}
    found = [fault for entry in _by_step(run.reports) for fault in _faults_of_step(entry, failure, in_steps)]
    found += [f"a sync of {file} failed, and was asked for again" for file in run.asked_again]
    moment = _moment(run, play)
    answer = Answer(shown=play.steps[0].shown) if not run.path.exists() else look_at(run.path, moment, play, opener)
    if fault := judged(answer, moment, play):
        found.append(f"then opened again: {fault}")
    if not found:
        shutil.rmtree(run.path, ignore_errors=True)
    return [f"{failure.name} at {run.kind} number {run.number}: {fault}; {run.path}" for fault in found]


def _by_step(reports: list[list[str]]) -> Iterator[list[list[str]]]:
    """Yield what belongs together: a step that failed, the look behind it, and what was tried next."""
    found: list[list[str]] = []
    for entry in reports:
        if found and entry[0] not in ("look", "again") and not entry[0].startswith("then "):
            yield found
            found = []
        found.append(entry)
    if found:
        yield found


def _faults_of_step(entries: list[list[str]], failure: Failure, in_steps: Collection[str]) -> Iterator[str]:
    (name, outcome, *rest), *later = entries
    if outcome == "ok":
        return
    step = f"step {name!r} raised {outcome}: {rest[0] if rest else ''}"
    if "typed" not in rest:
        yield f"{step}, which is no error of rmqstore"
    if failure.error and outcome != failure.error and name not in ("open", "close"):
        yield f"{step}, not {failure.error}"
    for what, answered, *_ in later:
        if failure.every_later:
            if not answered.startswith(failure.error):
                yield f"{step}; then {what.removeprefix('then ')!r} answered {answered}, not {failure.error}"
        elif what == "look" and answered.startswith("changed") and name not in in_steps:
            yield f"{step}, and yet it {answered}"
        elif failure.error and what == "again" and answered != "ok":
            yield f"{step}; made again, when there was no failure any more, it raised {answered}"


def _moment(run: Run, play: Play) -> Moment:
    """Return between which steps the store must stand that a play left."""
    names = {step.name: number for number, step in enumerate(play.steps)}
    done = 0
    for name, outcome, *_ in run.reports:
        if name in names and name != "open" and outcome == "ok":
            done = names[name]
        elif name == "again" and outcome == "ok":
            done += 1
    last = len(play.steps) - 1
    failed = any(name in names and name != "open" and outcome != "ok" for name, outcome, *_ in run.reports)
    ended = any(name == "close" for name, *_ in run.reports)
    is_under_way = (failed and done < last) or not ended
    return Moment(done, min(done + 1, last) if is_under_way else done, 0)
