"""The suite's plays and recordings of a build, made anew for each; and a script that lets files of the log go.

In some of these something is pending or leased, which is copied before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from rmqstore import ManualClock, PoppedMessage, Store
from rmqstore_conformance.faults.recording import Playing, Recorded, record
from rmqstore_conformance.faults.script import Answer, Call, Play, Script, messages_of, outcomes_of
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

    def __init__(self, store: Store, clock: ManualClock, notes: dict[str, list[str]] | None = None) -> None:
        super().__init__(store, clock, notes)
        self._handles: list[str] = []
        self._held: list[PoppedMessage] = []
        for turn in range(8):
            self._add(f"send later {turn}", lambda turn=turn: self._send_later(turn))
            self._add(f"send {turn}", lambda turn=turn: self._send(turn))
            self._add(f"pop {turn}", self._pop)
            self._add(f"ack {turn}", lambda turn=turn: outcomes_of(store.ack(self._held[: 2 + turn % 2])))
            if turn % 3 == 1:
                self._add(f"cancel {turn}", lambda: outcomes_of([store.cancel(self._handles[-1])]))
            # What is too old goes with the upkeep, of which nothing is promised.
            tick = Call("tick", lambda turn=turn: self.tick(3000 * (turn + 1)), may_halt=True, is_promised=False)
            self.calls[f"tick {turn}"] = tick

    def _add(self, name: str, make: Any) -> None:
        self.calls[name] = Call(name.partition(" ")[0], make)

    def _send_later(self, turn: int) -> Answer:
        sent = self.store.send_batch(messages_of(f"later{turn}-", 2, "t", due_ms=(60_000, 61_000)))
        self._handles += [receipt.handle or "" for receipt in sent]
        return Answer("APPLIED")

    def _send(self, turn: int) -> Answer:
        self.store.send_batch(messages_of(f"m{turn}-", 3, "t", body=b"m" * 900))
        return Answer("APPLIED")

    def _pop(self) -> Answer:
        self._held = self.store.pop("t", "g", max_messages=3, invisible_ms=40_000)
        return Answer("GIVEN")
