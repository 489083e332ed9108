"""What several cases of one run share: the undisturbed plays of a pair of engines, and their recordings, each made once in a process."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from rmqstore_conformance.faults.recording import RECORDERS, Playing, Recorded
from rmqstore_conformance.faults.script import Play
from rmqstore_conformance.faults.scripts import play_of
from rmqstore_conformance.faults.workload import Workload
from rmqstore_conformance.power import fusing, tracing
from rmqstore_conformance.stores import Pair, directory


def played(pair: Pair, settings: dict[str, Any], script: str = Workload.name) -> Play:
    """Return the undisturbed play of a script."""
    return _played(pair, json.dumps(settings, sort_keys=True), script)


@functools.cache
def _played(pair: Pair, settings: str, script: str) -> Play:
    return play_of(pair, json.loads(settings), script)


def recorded(
    pair: Pair, settings: dict[str, Any], recorder: str = "strace", script: str = Workload.name, *, lying: bool = False, eager: bool = False
) -> Recorded:
    """Return a play as the disk saw it, as :class:`~.recording.Playing` has it; skips where that cannot be known."""
    need(recorder)
    found = _recorded(pair, json.dumps(settings, sort_keys=True), recorder, script, lying, eager)
    if found.recording.unknown:
        pytest.skip(f"not run: system calls that cannot be replayed: {'; '.join(sorted(found.recording.unknown))}")
    if found.unseen:
        pytest.skip(
            f"not run: system calls do not show what is written through a mapping to {', '.join(found.unseen)}; see --rmq-recorder fuse"
        )
    return found


@functools.cache
def _recorded(pair: Pair, settings: str, recorder: str, script: str, lying: bool, eager: bool) -> Recorded:
    with directory() as folder:
        return RECORDERS[recorder](folder, Playing(pair, json.loads(settings), script, lying=lying, eager=eager))


def need(recorder: str) -> None:
    """Skip without the tool that records, or where it may not do so."""
    if reason := {"strace": tracing, "fuse": fusing}[recorder].unusable():
        pytest.skip(f"not run: {reason}")
