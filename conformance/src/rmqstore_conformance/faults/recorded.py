"""What several cases of one run share: the undisturbed play of a pair of engines, and its recording, each made once in a process."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from rmqstore_conformance.faults.recording import Recorded, record
from rmqstore_conformance.faults.script import Play, play_of
from rmqstore_conformance.power.tracing import unusable
from rmqstore_conformance.stores import Pair, directory


def played(pair: Pair, settings: dict[str, Any]) -> Play:
    """Return the undisturbed play."""
    return _played(pair, json.dumps(settings, sort_keys=True))


@functools.cache
def _played(pair: Pair, settings: str) -> Play:
    return play_of(pair, json.loads(settings))


def recorded(pair: Pair, settings: dict[str, Any], *, lying: bool = False) -> Recorded:
    """Return a play as the disk saw it, with ``lying`` on a disk whose syncs do nothing; skips where that cannot be known."""
    need_strace()
    found = _recorded(pair, json.dumps(settings, sort_keys=True), lying)
    if found.recording.unknown:
        pytest.skip(f"not run: system calls that cannot be replayed: {'; '.join(sorted(found.recording.unknown))}")
    if found.unseen:
        pytest.skip(f"not run: system calls do not show what is written through a mapping to {', '.join(found.unseen)}")
    return found


@functools.cache
def _recorded(pair: Pair, settings: str, lying: bool) -> Recorded:
    with directory() as folder:
        return record(folder, pair, json.loads(settings), lying=lying)


def need_strace() -> None:
    """Skip without strace, or where it may not trace."""
    if reason := unusable():
        pytest.skip(f"not run: {reason}")
