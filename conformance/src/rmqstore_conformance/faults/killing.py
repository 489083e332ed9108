"""A process that plays a script and is killed, over and over: its answers stay true, what was under way happened wholly or not at all.

One store goes through many lives. In each the script is played on from where the last one was cut, by a process that says what it
begins and what it was answered. Behind each kill another process looks at the store, which is judged as after a loss of power
(:mod:`.cutting`). Run as a program this is the process that is killed.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rmqstore import ManualClock
from rmqstore_conformance.faults.children import Child, import_all, say
from rmqstore_conformance.faults.cutting import Moment, judged, look_at
from rmqstore_conformance.faults.opener import Opener
from rmqstore_conformance.faults.script import Answer, Notes, Play, note_what_was_lost, open_script
from rmqstore_conformance.faults.scripts import script_of
from rmqstore_conformance.stores import Pair
from rmqstore_conformance.targets import announce

Event = dict[str, Any]
"""What a process says: whether something ``begins``, which operation, which step of the script, and behind it answer and notes."""


class Lives:
    """Starts processes that are killed, as forks of one that has imported all, and knows how long their calls take.

    Args:
        chance: draws the moments of the kills.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._seconds: dict[str, float] = {}
        self._parent = Child(__name__)
        self._process = 0

    def begin(self, job: dict[str, Any]) -> None:
        self._parent.tell(job)
        self._process = self.hear()["process"]

    def hear(self) -> Event:
        """Return what the process says next.

        Raises:
            AssertionError: it ended by itself.
        """
        heard = self._parent.hear()
        if heard is None or "ended" in heard:
            self._process = 0
            raise AssertionError(f"the process ended by itself: {heard}")
        return heard

    def kill(self) -> list[Event]:
        """End the process as ``kill -9`` does, and return what it had said that was not heard yet."""
        said: list[Event] = []
        if self._process:
            os.kill(self._process, signal.SIGKILL)
            said += itertools.takewhile(lambda heard: "ended" not in heard, iter(self._parent.hear, None))
        self._parent.tell({})
        return said

    def saw(self, operation: str, seconds: float) -> None:
        self._seconds[operation] = 0.7 * self._seconds.get(operation, seconds) + 0.3 * seconds

    def wait_within(self, operation: str) -> None:
        """Let time pass until a random moment within a call that has just begun."""
        until_s = time.perf_counter() + self._chance.random() * self._seconds.get(operation, 0.002)
        time.sleep(max(until_s - time.perf_counter() - 0.001, 0))
        while time.perf_counter() < until_s:
            pass

    def close(self) -> None:
        self._parent.kill()


class Kill(NamedTuple):
    """Where a kill fell: within an operation, or behind it."""

    operation: str
    within: bool

    def __str__(self) -> str:
        return f"{'in' if self.within else 'after'} {self.operation}"


class Killed:
    """One store directory and the play of a script that goes on there.

    Attributes:
        done: the last step that is known to have happened; with an answer that was lost, its receipts and handles come from the store.
    """

    def __init__(self, path: Path, play: Play, settings: dict[str, Any], lives: Lives) -> None:
        self.path = path
        self.done = 0
        self.kills: list[Kill] = []
        self._play = play
        self._settings = settings
        self._lives = lives
        self._notes: Notes = {}
        self._begun = 0

    @property
    def is_over(self) -> bool:
        return self.done == self._play.calls[-1]

    def live(self, until: Callable[[Event], bool], *, plays_on: bool = True, copy: Path | None = None) -> None:
        """Play on in a process of its own, and kill it at the first event of which ``until`` says so, within a call that begins then.

        The process closes the store when there is no more to play; it copies it before, if a place for that is given.
        """
        job: dict[str, Any] = {
            "path": str(self.path),
            "pair": list(self._play.pair),
            "settings": self._settings,
            "script": self._play.script,
            "now_ms": self._play.steps[self.done].now_ms,
            "done": self.done,
            "plays_on": plays_on,
            "notes": self._notes,
            "copy": str(copy or ""),
        }
        self._lives.begin(job)
        try:
            event = self._heard(until)
        finally:
            said = self._lives.kill()
        for event in said:
            self._follow(event)
        self.kills.append(Kill(event["operation"], event["begins"]))

    def _heard(self, until: Callable[[Event], bool]) -> Event:
        """Follow a process up to the moment at which it is killed, and return the last event before."""
        begun_s = time.perf_counter()
        event: Event = {}
        while not event or not (until(event) or _is_end(event)):
            event = self._lives.hear()
            if event["begins"]:
                begun_s = time.perf_counter()
            else:
                self._lives.saw(event["operation"], time.perf_counter() - begun_s)
            self._follow(event)
        if event["begins"]:
            self._lives.wait_within(event["operation"])
        return event

    def _follow(self, event: Event) -> None:
        number = event["step"]
        if event["begins"]:
            self._begun = max(number, self._begun)
        elif "answer" in event:
            step, answer = self._play.steps[number], Answer(*event["answer"])
            assert answer == step.answer, f"step {number} ({step.name}) answered {answer}, and {step.answer} when nothing disturbs it"
            self.done, self._notes = number, event["notes"]

    def look(self, opener: Opener) -> None:
        """See whether the store shows what it may, and find out whether the step that was under way happened.

        Raises:
            AssertionError: it shows something else.
        """
        moment = Moment(self.done, self._begun, 0)
        before, step = self._play.steps[self.done].shown, self._play.steps[self._begun]
        answer = look_at(self.path, moment, self._play, opener, goes_on=True)
        if fault := judged(answer, moment, self._play):
            raise AssertionError(f"killed {self.kills[-1]}: {fault}")
        if moment.halts(self._play) or (answer.shown == step.shown and step.shown != before):
            self.done = self._begun
            with open_script(self.path, self._play.pair, self._settings, ManualClock(step.now_ms)) as store:
                note_what_was_lost(store, step.name, step.call, self._notes)

    def end(self, opener: Opener) -> None:
        """See that what was given out is known, and that all comes to its end when its time comes.

        Raises:
            AssertionError: it does not.
        """
        moment = Moment(self.done, self.done, 0)
        copy = self.path.with_name(f"{self.path.name}-copy")
        shutil.copytree(self.path, copy)
        for path, notes in ((copy, self._notes), (self.path, None)):
            if fault := judged(look_at(path, moment, self._play, opener, notes), moment, self._play):
                raise AssertionError(f"killed {', '.join(map(str, self.kills))}: {fault}")
            shutil.rmtree(path)


def _is_end(event: Event) -> bool:
    return not event["begins"] and event["operation"] == "close"


# ---------------------------------------------------------------- the process that is killed


def live(job: dict[str, Any]) -> None:
    """Open a store, play a script on, and close the store, saying so."""

    def made(operation: str, step: int, act: Callable[[], Any]) -> Any:
        say(begins=True, operation=operation, step=step)
        found = act()
        say(begins=False, operation=operation, step=step, **({"answer": found, "notes": notes} if isinstance(found, Answer) else {}))
        return found

    clock, notes, done = ManualClock(job["now_ms"]), job["notes"], job["done"]
    store = made("open", done, lambda: open_script(job["path"], Pair(*job["pair"]), job["settings"], clock))
    calls = list(script_of(job["script"])(store, clock, notes).calls.values())
    for call in calls[done:] if job["plays_on"] else ():
        done += 1
        made(call.operation, done, call)
    if job["copy"]:
        made("snapshot", done, lambda: store.snapshot(job["copy"]))
    made("close", done, store.close)


def main() -> None:
    """Let a fork do each job; it says when that has ended, and stays there to be killed until the next line comes."""
    while line := sys.stdin.readline():
        job = json.loads(line)
        announce(job["plugins"])
        import_all(job["pair"])
        if (child := os.fork()) == 0:
            say(process=os.getpid())
            live(job)
            os._exit(0)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        say(ended=True)
        sys.stdin.readline()
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
