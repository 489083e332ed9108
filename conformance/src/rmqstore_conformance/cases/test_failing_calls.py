"""R1, F1, F2, F3: system calls that fail, one at a time: the first of a kind, the second, and so on.

A fixed script is played again and again under strace, which makes one call fail, or kills the process there. What each call of the script
answers is compared with the contract, and what is left is opened again.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore_conformance.faults.failing import FAILURES, Failure, Run, crowds_of, faults_of, numbers_of, runs_of
from rmqstore_conformance.faults.opener import Opener
from rmqstore_conformance.faults.recording import need, played, recorded
from rmqstore_conformance.stores import Pair, directory
from rmqstore_conformance.targets import Target

PLAYS = 16
LEAST_PLAYS = PLAYS // 2
"""However little effort is asked for: about half of them fail in the opening or the close, where a play ends."""

SHOWN_FAULTS = 5

CROWDS = (
    ("send 0", "send 1"),
    ("send later 0", "send later 1"),
    ("cancel 0", "send later 0", "send 0"),
    ("ack 0", "ack 1", "pop 0", "pop 1"),
)

pytestmark = [pytest.mark.level("full"), pytest.mark.timeout(3600)]
Tell = Callable[[object], None]


def play_with(failure: Failure, pair: Pair, target: Target, seed: int, kept: Path, tell: Tell, *, until: str = "") -> None:
    """Play with each chosen call failing; goes on with others as long as no play was answered ``until``."""
    play = played(pair, target.settings).without_upkeep()
    seen = recorded(pair, target.settings).recording.seen
    wrong: list[str] = []
    came: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    with directory() as folder, Opener(pair, target.settings) as opener:
        for numbers in numbers_of(seen, failure, max(target.times(PLAYS), LEAST_PLAYS), seed):
            for run in runs_of(folder, play, target.settings, failure, numbers, seen):
                came[_first_error(run)] += 1
                failed[run.kind] += 1
                if faults := faults_of(run, failure, play, opener):
                    wrong += [fault.replace(str(folder), str(kept)) for fault in faults]
                    if run.path.exists() and len(wrong) <= SHOWN_FAULTS:
                        shutil.copytree(run.path, kept / run.path.name)
            if not until or came[until]:
                break
    if not failed:
        pytest.skip(f"not run: the script makes no system call of {', '.join(failure.kinds)}")
    counts = ", ".join(f"{kind} {count} of {seen[kind]}" for kind, count in failed.items())
    tell(f"{failure.name} at {counts}; answers: {', '.join(f'{count} {name}' for name, count in came.most_common())}")
    assert not wrong, "\n".join(wrong[:SHOWN_FAULTS])
    assert not until or came[until], f"of all calls that failed none was answered {until}"


def _first_error(run: Run) -> str:
    if not run.reports or (run.reports[-1][0] != "close" and run.reports[-1][1] in ("ok", "unchanged")):
        return "killed"
    return next((outcome for _, outcome, *_ in run.reports if outcome not in ("ok", "unchanged")), "all went well")


@pytest.mark.clause("R1", "R2", "X4")
def test_killed_at_a_call(durable_pair: Pair, target: Target, seed: int, tmp_path: Path, tell: Tell) -> None:
    """R1: killed at the n-th system call that writes, syncs or renames: what was acknowledged is there, the rest wholly or not at all."""
    play_with(FAILURES["killed"], durable_pair, target, seed, tmp_path, tell, until="killed")


@pytest.mark.clause("F1", "F3")
def test_no_room_at_a_call(durable_pair: Pair, target: Target, seed: int, tmp_path: Path, tell: Tell) -> None:
    """F1: the n-th write finds the disk full: the call raises StoreFullError, has changed nothing, and succeeds when it is made again."""
    play_with(FAILURES["no room"], durable_pair, target, seed, tmp_path, tell, until="StoreFullError")


@pytest.mark.clause("F1", "F2")
def test_a_sync_that_finds_no_room(durable_pair: Pair, target: Target, seed: int, tmp_path: Path, tell: Tell) -> None:
    """F1: the n-th sync finds no room: either nothing of the call is there, then or later, or the store is poisoned."""
    play_with(FAILURES["sync finds no room"], durable_pair, target, seed, tmp_path, tell)


@pytest.mark.clause("F2")
def test_a_sync_that_fails(durable_pair: Pair, target: Target, seed: int, tmp_path: Path, tell: Tell) -> None:
    """F2: the n-th sync fails: the store is poisoned, never asks again, and what was acknowledged is there at the next open."""
    play_with(FAILURES["sync fails"], durable_pair, target, seed, tmp_path, tell, until="StorePoisonedError")


@pytest.mark.clause("X3")
def test_f2_threads_that_wait_for_a_sync_that_fails(durable_engine: Pair, target: Target, in_memory: Path, tell: Tell) -> None:
    """F2: calls of several threads meet while every sync fails, slowly: none of them is acknowledged, whichever one syncs."""
    need("strace")
    answers = crowds_of(in_memory, durable_engine, target.settings, CROWDS)
    assert all(each.keys() == set(crowd) for crowd, each in zip(CROWDS, answers, strict=True)), f"calls did not come back: {answers}"
    raised = Counter(outcome for each in answers for outcome in each.values())
    tell(f"answers: {', '.join(f'{count} {name}' for name, count in raised.most_common())}")
    if set(raised) == {"ok"}:
        pytest.skip("not run: no thread that calls makes a sync, so none could be made to fail for it alone")
    lies = [f"{name!r} beside {crowd}" for crowd, each in zip(CROWDS, answers, strict=True) for name in crowd if each[name] == "ok"]
    assert not lies, f"acknowledged, though every sync that could have made it durable failed: {'; '.join(lies)}"
    assert set(raised) == {"StorePoisonedError"}, f"not all answered that the store is poisoned: {raised}"


def test_f2_a_sync_that_fails_in_a_close(durable_engine: Pair, target: Target, in_memory: Path) -> None:
    """F2: under flush = async a close makes durable what was answered, so it says when it cannot."""
    need("strace")
    settings = {**target.settings, "flush": "async", "flush_interval_ms": 3_600_000}
    ((outcome,),) = [[*answers.values()] for answers in crowds_of(in_memory, durable_engine, settings, [["close"]])]
    assert outcome == "StorePoisonedError"


@pytest.mark.clause("F3")
@pytest.mark.parametrize("name", ["write fails", "interrupted", "nothing written"])
def test_a_call_that_fails(durable_engine: Pair, target: Target, seed: int, tmp_path: Path, tell: Tell, name: str) -> None:
    """F3: the n-th write or sync fails with EIO or EINTR, or a write writes nothing: an error of rmqstore or none, and nothing is lost."""
    play_with(FAILURES[name], durable_engine, target, seed, tmp_path, tell)
