"""A play of the script, or the opening of a store, as a disk saw it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from rmqstore_conformance.faults.script import Answer
from rmqstore_conformance.power.content import Image, read_image, write_image
from rmqstore_conformance.power.fusing import MARK, STORE, FuseRecording, mounted, read_recording
from rmqstore_conformance.power.replaying import Recording
from rmqstore_conformance.power.tracing import RECORDED, SYNCS, read_trace, traced
from rmqstore_conformance.stores import ANNOUNCED, Pair, own_environment


class Recorded(NamedTuple):
    """What was recorded, and what the process left.

    Attributes:
        answers: what each call of the script answered, without the opening.
        notes: the receipts and handles that it was given.
    """

    recording: Recording | FuseRecording
    left: Image
    answers: list[Answer]
    notes: dict[str, list[str]]

    @property
    def unseen(self) -> list[str]:
        """Files that changed otherwise than by the recorded calls, but for mapped ones that were never synced, as locks are."""
        if isinstance(self.recording, FuseRecording):
            return self.recording.unseen(self.left)
        scratch = self.recording.mapped - self.recording.synced
        return [path for path in self.recording.unseen(self.left) if path not in scratch]


def run_victim(folder: Path, job: dict[str, Any], names: tuple[str, ...], injections: list[str], *, paths: bool = False) -> Path:
    """Do a job under strace; returns the trace.

    Raises:
        AssertionError: the program failed otherwise than by what was injected.
    """
    folder.mkdir(exist_ok=True)
    job_file, trace = folder / "job.json", folder / "trace"
    job_file.write_text(json.dumps({**job, "plugins": ANNOUNCED}))
    command = traced([sys.executable, "-m", "rmqstore_conformance.faults.victim", str(job_file)], names, trace, injections, paths=paths)
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=own_environment())
    assert run.returncode == 0, f"the traced program failed with status {run.returncode}:\n{run.stderr[-2000:]}"
    return trace


class Playing(NamedTuple):
    """What is recorded: a script, or the opening of a store that was left.

    Attributes:
        before: what was left; the store is then opened at ``now_ms``, and no script is played.
        send_to: a topic that a message is sent to once the store is open; empty: none is sent.
        lying: every sync answers that it is done and does nothing.
        eager: what an engine keeps back until somebody syncs goes to the disk at once, as if another thread had synced (:mod:`.eager`).
    """

    pair: Pair
    settings: dict[str, Any]
    script: str = "workload"
    before: Image | None = None
    now_ms: int | None = None
    send_to: str = ""
    lying: bool = False
    eager: bool = False

    def job(self, path: Path, told: Path, **more: str) -> dict[str, Any]:
        """Return what the recorded program is told to do."""
        job = {"do": "play" if self.before is None else "open", "path": str(path), "told": str(told), "pair": list(self.pair), **more}
        how = {"settings": self.settings, "script": self.script, "now_ms": self.now_ms, "send_to": self.send_to, "eager": self.eager}
        return {**job, **how}

    def recorded(self, recording: Recording | FuseRecording, left: Image, told: Path) -> Recorded:
        """Return what came out of it."""
        found = json.loads(told.read_bytes()) if told.exists() else {"answers": [], "notes": {}}
        return Recorded(recording, left, [Answer(*each) for each in found["answers"]], found["notes"])


def record_by_fuse(folder: Path, playing: Playing) -> Recorded:
    """Record as :func:`record` does, by a file system of the suite's own in place of strace, which sees writes through mappings too."""
    backing, mount, trace, job_file, told = (folder / name for name in ("backing", "mount", "calls", "job.json", "told.json"))
    backing.mkdir()
    if playing.before is not None:
        write_image(backing / STORE, playing.before)
    job_file.write_text(json.dumps({**playing.job(mount / STORE, told, mark=f"{mount}/{MARK}"), "plugins": ANNOUNCED}))
    command = [sys.executable, "-m", "rmqstore_conformance.faults.victim", str(job_file)]
    with mounted(backing, mount, trace):
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=own_environment())
    assert run.returncode == 0, f"the recorded program failed with status {run.returncode}:\n{run.stderr[-2000:]}"
    return playing.recorded(read_recording(trace, playing.before, lying=playing.lying), read_image(backing / STORE), told)


def record(folder: Path, playing: Playing) -> Recorded:
    """Record a play by its system calls; the store that is opened in its place is left at ``folder / "store"``."""
    path, told = folder / "store", folder / "told.json"
    injections = [f"{','.join(SYNCS)}:retval=0"] if playing.lying else []
    trace = run_victim(folder, playing.job(path, told), RECORDED, injections)
    recording = Recording(path, playing.before, lying=playing.lying)
    recording.take(read_trace(trace))
    trace.unlink()
    return playing.recorded(recording, read_image(path), told)


RECORDERS: Final[dict[str, Callable[[Path, Playing], Recorded]]] = {"strace": record, "fuse": record_by_fuse}
"""By the name that a run asks for."""
