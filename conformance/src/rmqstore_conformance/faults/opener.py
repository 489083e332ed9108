"""A child process that opens what is left of stores: a damaged file may take the process that reads it down, or hang it.

It reads a line of JSON for each store from its standard input: ``path``, ``pair``, ``settings``, ``now_ms``; with ``go_on_ms`` a tick
follows at that time; with ``again`` a call of a script is made once more, and at last ``known`` handles and receipts are asked for. It
answers with a line: what the store shows, or the error.
"""

from __future__ import annotations

import atexit
import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from rmqstore import ManualClock, RmqstoreError, Store
from rmqstore_conformance.faults.children import Child, say
from rmqstore_conformance.faults.script import Answer as Answered, Notes, open_script
from rmqstore_conformance.faults.scripts import script_of
from rmqstore_conformance.faults.showing import Shown, show
from rmqstore_conformance.stores import ANNOUNCED, Pair, own_environment
from rmqstore_conformance.targets import announce


class Answer(msgspec.Struct):
    """What became of opening a store.

    Attributes:
        shown: what it shows, None when it could not be opened or read.
        gone_on: what it shows after the tick that follows, or after the call that is made again.
        again: what that call answered.
        unknown: handles and receipts that the store does not know.
        error: the name of the error and its text; "died" or "hangs" for a process that did not answer.
        typed: whether the error is one of rmqstore's.
        place: the file and the offset that the error names.
    """

    shown: Shown | None = None
    gone_on: Shown | None = None
    again: Answered | None = None
    unknown: list[str] = []
    error: str = ""
    typed: bool = False
    place: tuple[str, str] = ("", "")

    def __str__(self) -> str:
        return self.error or str(self.shown)


class Again(NamedTuple):
    """A call to be made once more: of which script, its name there, and the notes of the play that made it first."""

    script: str
    step: str
    notes: Notes


_IDLE: dict[tuple[object, ...], Child] = {}
"""Children for the next one with the same environment and plug-ins: to start one takes longer than most of its work."""


@atexit.register
def _end_idle() -> None:
    for child in _IDLE.values():
        child.kill()


class Opener:
    """The child, started as needed; used within ``with``."""

    def __init__(self, pair: Pair, settings: dict[str, Any]) -> None:
        self._given = {"pair": list(pair), "settings": settings}
        self._surroundings = (*own_environment().items(), *ANNOUNCED)
        self._child: Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None and self._child is not None and self._surroundings not in _IDLE:
            _IDLE[self._surroundings], self._child = self._child, None
        self.close()

    def open(
        self, path: Path, now_ms: int, *, go_on_ms: int | None = None, again: Again | None = None, known: Sequence[str] = ()
    ) -> Answer:
        if self._child is None:
            self._child = _IDLE.pop(self._surroundings, None) or Child(__name__)
        self._child.tell({**self._given, "path": str(path), "now_ms": now_ms, "go_on_ms": go_on_ms, "again": again, "known": known})
        try:
            if (found := self._child.hear()) is not None:
                return msgspec.convert(found, Answer)
            error = f"died with status {self._child.status}"
        except TimeoutError as hanging:
            error = str(hanging)
        self.close()
        return Answer(error=f"the process that opened it {error}")

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None


def _unknown(store: Store, given_out: Sequence[str]) -> list[str]:
    """Cancel by handles and ack by receipts; returns those of which the store knows nothing."""
    handles = [text for text in given_out if " " not in text]
    receipts = [text for text in given_out if " " in text]
    outcomes = [*zip(handles, store.cancel(handles), strict=True), *zip(receipts, store.ack(receipts), strict=True)]
    return [text for text, outcome in outcomes if outcome.name == "UNKNOWN"]


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    clock = ManualClock(job["now_ms"])
    try:
        with open_script(job["path"], Pair(*job["pair"]), job["settings"], clock) as store:
            found: dict[str, Any] = {"shown": show(store)}
            if job["go_on_ms"] is not None:
                clock.set(job["go_on_ms"])
                store.tick()
                found["gone_on"] = show(store)
            if job["again"] is not None:
                again = Again(*job["again"])
                found["again"] = script_of(again.script)(store, clock, again.notes).calls[again.step].make()
                found["gone_on"] = show(store)
            found["unknown"] = _unknown(store, job["known"])
        return found
    except RmqstoreError as error:
        place = [str(getattr(error, name, "")) for name in ("file", "offset")]
        return {"error": f"{type(error).__name__}: {error}", "typed": True, "place": place}
    except Exception as error:
        *_, last = traceback.extract_tb(error.__traceback__)
        return {"error": f"{type(error).__name__}: {error}, at {last.filename}:{last.lineno}"}


def main() -> None:
    """Answer until there is nothing more to open."""
    for line in sys.stdin:
        job = json.loads(line)
        announce(job["plugins"])
        say(**_answer(job))


if __name__ == "__main__":
    main()
