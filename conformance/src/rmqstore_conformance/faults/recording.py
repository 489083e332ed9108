"""A play of a script, or the opening of a store, as a disk saw it."""

from __future__ import annotations

import functools
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import pytest

from rmqstore.contract import NewNames
from rmqstore_conformance.faults.script import Answer, Notes, Play
from rmqstore_conformance.faults.scripts import play_of
from rmqstore_conformance.faults.workload import Workload
from rmqstore_conformance.power import fusing, tracing
from rmqstore_conformance.power.content import Image, read_image, write_image
from rmqstore_conformance.power.fusing import MARK as FUSE_MARK, STORE, mounted, read_recording
from rmqstore_conformance.power.replaying import MARK, replayed
from rmqstore_conformance.power.tracing import MARKS, RECORDED, SYNCS, SystemCall, read_trace, strings_of, traced
from rmqstore_conformance.power.volume import Recording
from rmqstore_conformance.stores import ANNOUNCED, Pair, directory, own_environment
from rmqstore_conformance.targets import new_names_of


class Recorded(NamedTuple):
    """What was recorded, and what the process left.

    Attributes:
        answers: what each call of the script answered, without the opening.
        notes: the receipts and handles that it was given.
    """

    recording: Recording
    left: Image
    answers: list[Answer]
    notes: Notes


def run_victim(folder: Path, job: dict[str, Any], names: tuple[str, ...], injections: list[str], *, paths: bool = False) -> Path:
    """Do a job under strace; returns the trace.

    Raises:
        AssertionError: the program failed otherwise than by what was injected.
    """
    folder.mkdir(exist_ok=True)
    trace = folder / "trace"
    _run(traced(_command_of(folder, job), names, trace, injections, paths=paths))
    return trace


def _command_of(folder: Path, job: dict[str, Any]) -> list[str]:
    (file := folder / "job.json").write_text(json.dumps({**job, "plugins": ANNOUNCED}))
    return [sys.executable, "-m", "rmqstore_conformance.faults.victim", str(file)]


def _run(command: list[str]) -> None:
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=own_environment())
    assert run.returncode == 0, f"the recorded program failed with status {run.returncode}:\n{run.stderr[-2000:]}"


class Playing(NamedTuple):
    """What is recorded: a script, or the opening of a store that was left.

    Attributes:
        before: what was left; the store is then opened at ``now_ms``, and no script is played.
        send_to: a topic that a message is sent to once the store is open; empty: none is sent.
        lying: every sync answers that it is done and does nothing.
        eager: what an engine keeps back until somebody syncs goes to the disk at once, as if another thread had synced.
        together: several threads send at the same time, and no script is played.
    """

    pair: Pair
    settings: dict[str, Any]
    script: str = "workload"
    before: Image | None = None
    now_ms: int | None = None
    send_to: str = ""
    lying: bool = False
    eager: bool = False
    together: bool = False

    def job(self, path: Path, told: Path, **more: str) -> dict[str, Any]:
        do = "together" if self.together else "play" if self.before is None else "open"
        job = {"do": do, "path": str(path), "told": str(told), "pair": list(self.pair), **more}
        how = {"settings": self.settings, "script": self.script, "now_ms": self.now_ms, "send_to": self.send_to, "eager": self.eager}
        return {**job, **how}


def record(folder: Path, playing: Playing, recorder: str = "strace") -> Recorded:
    """Record a play, by system calls or by a file system of the suite's own, which sees writes through mappings too."""
    told = folder / "told.json"
    recording, left = _RECORDERS[recorder](folder, playing, told)
    found = json.loads(told.read_bytes()) if told.exists() else {"answers": [], "notes": {}}
    names_follow = new_names_of(playing.pair) is NewNames.FILE_SYNC
    return Recorded(recording._replace(names_follow=names_follow), left, [Answer(*each) for each in found["answers"]], found["notes"])


def record_openings(openings: Sequence[Playing], recorder: str) -> list[Recording]:
    """Record how stores that were left are opened; strace sees forks of one process, as a start under it takes longer than most opens."""
    with directory() as folder:
        places = [folder / str(number) for number in range(len(openings))]
        for place, each in zip(places, openings, strict=True):
            assert each.before is not None
            place.mkdir()
            write_image(place / STORE, each.before)
        if recorder != "strace":
            return [record(place, each, recorder).recording for place, each in zip(places, openings, strict=True)]
        jobs = [each.job(place / STORE, place) for place, each in zip(places, openings, strict=True)]
        calls = iter(read_trace(run_victim(folder, {"do": "each", "jobs": jobs}, RECORDED, [])))
        names_follow = bool(openings) and new_names_of(openings[0].pair) is NewNames.FILE_SYNC
        return [
            replayed(place / STORE, each.before, _up_to(f"{MARK}job-{number}", calls))._replace(names_follow=names_follow)
            for number, (place, each) in enumerate(zip(places, openings, strict=True))
        ]


def _up_to(mark: str, calls: Iterator[SystemCall]) -> Iterator[SystemCall]:
    return itertools.takewhile(lambda call: call.name not in MARKS or mark.encode() not in strings_of(call.arguments), calls)


def _by_strace(folder: Path, playing: Playing, told: Path) -> tuple[Recording, Image]:
    """Record the store at ``folder / "store"``, where one that is only opened was left."""
    path = folder / "store"
    injections = [f"{','.join(SYNCS)}:retval=0"] if playing.lying else []
    trace = run_victim(folder, playing.job(path, told), RECORDED, injections)
    recording = replayed(path, playing.before, read_trace(trace), lying=playing.lying)
    trace.unlink()
    return recording, read_image(path)


def _by_fuse(folder: Path, playing: Playing, told: Path) -> tuple[Recording, Image]:
    backing, mount, trace = (folder / name for name in ("backing", "mount", "calls"))
    backing.mkdir()
    if playing.before is not None:
        write_image(backing / STORE, playing.before)
    with mounted(backing, mount, trace):
        _run(_command_of(folder, playing.job(mount / STORE, told, mark=f"{mount}/{FUSE_MARK}")))
    return read_recording(trace, playing.before, lying=playing.lying), read_image(backing / STORE)


_RECORDERS: Final[dict[str, Callable[[Path, Playing, Path], tuple[Recording, Image]]]] = {"strace": _by_strace, "fuse": _by_fuse}
"""By the name that a run asks for."""


# ---------------------------------------------------------------- what several cases of one run share, made once in a process


def played(pair: Pair, settings: dict[str, Any], script: str = Workload.name) -> Play:
    """Return the undisturbed play of a script."""
    return _played(pair, json.dumps(settings, sort_keys=True), script)


@functools.cache
def _played(pair: Pair, settings: str, script: str) -> Play:
    return play_of(pair, json.loads(settings), script)


def recorded(pair: Pair, settings: dict[str, Any], recorder: str = "strace", script: str = Workload.name, **how: bool) -> Recorded:
    """Return a play as the disk saw it, as :class:`~.recording.Playing` has it; skips where that cannot be known."""
    need(recorder)
    found = _recorded(pair, json.dumps(settings, sort_keys=True), recorder, script, **how)
    if found.recording.unknown:
        pytest.skip(f"not run: system calls that cannot be replayed: {'; '.join(sorted(found.recording.unknown))}")
    if unseen := found.recording.unseen(found.left):
        pytest.skip(f"not run: system calls do not show what is written through a mapping to {', '.join(unseen)}; see --rmq-recorder fuse")
    return found


@functools.cache
def _recorded(pair: Pair, settings: str, recorder: str, script: str, **how: bool) -> Recorded:
    with directory() as folder:
        return record(folder, Playing(pair, json.loads(settings), script, **cast("dict[str, Any]", how)), recorder)


def need(recorder: str) -> None:
    """Skip without the tool that records, or where it may not do so."""
    if reason := {"strace": tracing, "fuse": fusing}[recorder].unusable():
        pytest.skip(f"not run: {reason}")
