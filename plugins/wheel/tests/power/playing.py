"""The suite's plays and recordings of a build, made anew for each; and a script that lets files of the log go.

In some of these something is pending or leased, which is copied before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from rmqstore import ManualClock, Store
from rmqstore_conformance.faults.recording import Playing, Recorded, record
from rmqstore_conformance.faults.script import Notes, Play, Script, messages_of
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


SETTINGS: Final[dict[str, Any]] = {"retention_ms": 4000, "default_queues": 1}


class Reclaiming(Script):
    """Sends, timers far off, cancels, pops, acks and leases, for as long as it takes until most of it is too old."""

    name: ClassVar[str] = "reclaiming"

    def __init__(self, store: Store, clock: ManualClock, notes: Notes | None = None) -> None:
        super().__init__(store, clock, notes)
        for turn in range(8):
            self.add_send(f"send later {turn}", messages_of(f"later{turn}-", 2, "t", due_ms=(60_000, 61_000)))
            self.add_send(f"send {turn}", messages_of(f"m{turn}-", 3, "t", body=b"m" * 900))
            self.add_pop(f"pop {turn}", "t", "g", 3, again=False, invisible_ms=40_000)
            self.add(f"ack {turn}", "ack", lambda turn=turn: store.ack(self.notes[f"pop {turn}"][: 2 + turn % 2]))
            if turn % 3 == 1:
                self.add(f"cancel {turn}", "cancel", lambda turn=turn: store.cancel(self.notes[f"send later {turn}"][-1]))
            # What is too old goes with the upkeep, of which nothing is promised.
            self.add_tick(f"tick {turn}", 3000 * (turn + 1), is_promised=False)
