"""The suite's plays and recordings of a build, made anew for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from rmqstore_conformance.faults.recording import Playing, Recorded, record
from rmqstore_conformance.faults.script import Play
from rmqstore_conformance.faults.scripts import play_of
from rmqstore_conformance.faults.workload import Workload
from rmqstore_conformance.stores import Pair

PAIR: Final = Pair("wheel", "wheel")
STORE: Final = "wheel/db"


class Run(NamedTuple):
    """A script as it goes undisturbed, and as the disk saw it; the suite's one of everyday calls, when no other is named."""

    play: Play
    recorded: Recorded

    @classmethod
    def of(cls, folder: Path, script: str = Workload.name, **settings: Any) -> Run:
        """Play and record; every change of every file must be seen."""
        run = cls(play_of(PAIR, settings, script), record(folder, Playing(PAIR, settings, script)))
        assert not run.recorded.recording.unknown
        assert run.recorded.recording.unseen(run.recorded.left) == []
        return run
