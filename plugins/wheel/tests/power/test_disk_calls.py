"""One call to the seam of the disk fails (F1–F3). The suite lets system calls fail, but none that opens, makes or removes a file.

A write that fails has written its first half. What is answered, and what is there afterwards, the suite judges.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from plugins.wheel.tests.power.builds import build
from plugins.wheel.tests.power.playing import PAIR
from rmqstore_conformance.faults.failing import Failure, Run, faults_of
from rmqstore_conformance.faults.opener import Opener
from rmqstore_conformance.faults.scripts import play_of
from rmqstore_conformance.faults.victim import play_with_a_failure
from rmqstore_conformance.stores import directory
from rmqstore_wheel.files.disk import Disk, DiskFile

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

SYNCS: Final = ("sync", "sync_directory")
NAMES: Final = ("create", "open", "rename", "remove", "remove_tree", "make_directory")
FILES: Final = ("write_at", "set_aside", "truncate")
FAILURES: Final = {
    "no room": (errno.ENOSPC, (*NAMES, *FILES), Failure("no room", (), "", "StoreFullError")),
    "broken": (errno.EIO, (*NAMES, *FILES, *SYNCS), Failure("broken", (), "")),
}


class Calls:
    """How many calls there were, and which one failed."""

    def __init__(self) -> None:
        self.count = 0
        self.failed = ""


@contextmanager
def failing(kinds: tuple[str, ...], number: int, at: int) -> Iterator[Calls]:
    """Let the ``at``-th of the calls of some kinds fail within a ``with`` block."""
    calls = Calls()

    def counted(kind: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *given: Any) -> Any:
            calls.count += 1
            if calls.count != at:
                return method(self, *given)
            calls.failed = kind
            if kind == "write_at":
                offset, data = given
                view = memoryview(data).cast("B")
                method(self, offset, view[: len(view) // 2])
            raise OSError(number, os.strerror(number))

        return call

    with pytest.MonkeyPatch.context() as patch:
        for kind in kinds:
            owner: type = DiskFile if kind in (*FILES, "sync") else Disk
            patch.setattr(owner, kind, counted(kind, getattr(owner, kind)))
        yield calls


@pytest.mark.parametrize("stride", [131, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(3000)])])
@pytest.mark.parametrize("name", FAILURES)
def test_a_call_fails(name: str, stride: int) -> None:
    """Every so many of them, in a play each."""
    number, kinds, failure = FAILURES[name]
    found: list[str] = []
    failed = set()
    with build(), directory() as folder, Opener(PAIR, {}) as opener:
        play = play_of(PAIR, {}).without_upkeep()
        steps = [(step.name, step.call.may_halt, step.shown) for step in play.steps]
        job = {"pair": list(PAIR), "settings": {}, "steps": steps, "every_later": False}
        with failing(kinds, number, 0) as all_calls:
            play_with_a_failure(job, folder / "undisturbed", lambda *words: None)
        for at in range(1, all_calls.count + 1, stride):
            reports: list[list[str]] = []
            path: Path = folder / f"store-{at}"
            with failing(kinds, number, at) as calls:
                play_with_a_failure(job, path, lambda *words, reports=reports: reports.append(list(words)))
            failed.add(calls.failed)
            found += faults_of(Run(calls.failed, at, reports, [], path), failure, play, opener)
    assert failed
    assert found == []
