"""What several cases of one run share: the undisturbed play of a pair of engines, and its recording, each made once in a process."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from rmqstore_conformance.faults.recording import RECORDERS, Recorded
from rmqstore_conformance.faults.script import Play, play_of
from rmqstore_conformance.power import fusing, tracing
from rmqstore_conformance.stores import Pair, directory


def played(pair: Pair, settings: dict[str, Any]) -> Play:
    """Return the undisturbed play."""
    return _played(pair, json.dumps(settings, sort_keys=True))


@functools.cache
def _played(pair: Pair, settings: str) -> Play:
    return play_of(pair, json.loads(settings))


def recorded(pair: Pair, settings: dict[str, Any], recorder: str = "strace", *, lying: bool = False) -> Recorded:
    """Return a play as the disk saw it, with ``lying`` on a disk whose syncs do nothing; skips where that cannot be known."""
    need(recorder)
    found = _recorded(pair, json.dumps(settings, sort_keys=True), recorder, lying)
    if found.recording.unknown:
        pytest.skip(f"not run: system calls that cannot be replayed: {'; '.join(sorted(found.recording.unknown))}")
    if found.unseen:
        pytest.skip(
            f"not run: system calls do not show what is written through a mapping to {', '.join(found.unseen)}; see --rmq-recorder fuse"
        )
    return found


@functools.cache
def _recorded(pair: Pair, settings: str, recorder: str, lying: bool) -> Recorded:
    with directory() as folder:
        return RECORDERS[recorder](folder, pair, json.loads(settings), lying=lying)


def need(recorder: str) -> None:
    """Skip without the tool that records, or where it may not do so."""
    if reason := {"strace": tracing, "fuse": fusing}[recorder].unusable():
        pytest.skip(f"not run: {reason}")
