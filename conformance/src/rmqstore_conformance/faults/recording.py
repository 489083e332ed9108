"""A play of the script, or the opening of a store, as a disk saw it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from rmqstore_conformance.power.content import Image, read_image, write_image
from rmqstore_conformance.power.fusing import MARK, STORE, FuseRecording, mounted, read_recording
from rmqstore_conformance.power.replaying import Recording
from rmqstore_conformance.power.tracing import RECORDED, SYNCS, read_trace, traced
from rmqstore_conformance.stores import ANNOUNCED, Pair, own_environment


class Recorded(NamedTuple):
    """What was recorded, and what the process left."""

    recording: Recording | FuseRecording
    left: Image

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


def record_by_fuse(
    folder: Path, pair: Pair, settings: dict[str, Any], *, before: Image | None = None, now_ms: int | None = None, lying: bool = False
) -> Recorded:
    """Record as :func:`record` does, by a file system of the suite's own in place of strace, which sees writes through mappings too."""
    backing, mount, trace, job_file = (folder / name for name in ("backing", "mount", "calls", "job.json"))
    backing.mkdir()
    if before is not None:
        write_image(backing / STORE, before)
    job = {
        "do": "play" if before is None else "open",
        "path": str(mount / STORE),
        "mark": f"{mount}/{MARK}",
        "pair": list(pair),
        "settings": settings,
        "now_ms": now_ms,
        "plugins": ANNOUNCED,
    }
    job_file.write_text(json.dumps(job))
    command = [sys.executable, "-m", "rmqstore_conformance.faults.victim", str(job_file)]
    with mounted(backing, mount, trace):
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=own_environment())
    assert run.returncode == 0, f"the recorded program failed with status {run.returncode}:\n{run.stderr[-2000:]}"
    return Recorded(read_recording(trace, before, lying=lying), read_image(backing / STORE))


def record(
    folder: Path, pair: Pair, settings: dict[str, Any], *, before: Image | None = None, now_ms: int | None = None, lying: bool = False
) -> Recorded:
    """Record a play of the script; with ``before`` the opening of a store that is left at ``folder / "store"``.

    With ``lying`` every sync answers that it is done and does nothing.
    """
    path = folder / "store"
    job = {"do": "play" if before is None else "open", "path": str(path), "pair": list(pair), "settings": settings, "now_ms": now_ms}
    injections = [f"{','.join(SYNCS)}:retval=0"] if lying else []
    trace = run_victim(folder, job, RECORDED, injections)
    recording = Recording(path, before, lying=lying)
    recording.take(read_trace(trace))
    trace.unlink()
    return Recorded(recording, read_image(path))


RECORDERS: Final[dict[str, Callable[..., Recorded]]] = {"strace": record, "fuse": record_by_fuse}
"""By the name that a run asks for."""
