"""F4: a signal handler raises in the middle of a call, at any step: the call happened or did not, and the store goes on."""

from __future__ import annotations

import random
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqstore import ManualClock, Store
from rmqstore.errors import StorePoisonedError
from rmqstore_conformance.faults.interrupting import Interrupted, Interrupts, TimedOut
from rmqstore_conformance.faults.random_script import PREFIX, SETTLED_SHARE
from rmqstore_conformance.faults.recording import played
from rmqstore_conformance.faults.script import START_MS, Notes, Play, note_what_was_lost, open_script
from rmqstore_conformance.faults.scripts import script_of
from rmqstore_conformance.faults.showing import difference, show
from rmqstore_conformance.stores import Pair
from rmqstore_conformance.targets import Target

INTERRUPTS = 240

pytestmark = [pytest.mark.level("extended"), pytest.mark.timeout(3600)]


class Interruption:
    """One store in which a script is played whose calls are interrupted."""

    def __init__(self, path: Path, play: Play, settings: dict[str, Any], interrupts: Interrupts) -> None:
        self.came: Counter[str] = Counter()
        self.where = ""
        self._path = path
        self._play = play
        self._settings = settings
        self._interrupts = interrupts
        self._clock = ManualClock(START_MS)
        self._notes: Notes = {}
        self._store = self._opened()

    def _opened(self) -> Store:
        return open_script(self._path, self._play.pair, self._settings, self._clock)

    def run(self) -> None:
        """Make every call until it has happened; at the end the store shows what it shows when nothing disturbs it."""
        number = 1
        while number <= self._play.calls[-1]:
            number += self._happens(number)
        if self._play.pair.durable:
            self._store.close()
            self._store = self._opened()
        self._check(number - 1, number - 1)
        self._store.close()

    def _happens(self, number: int) -> bool:
        """Make a call that may be interrupted; returns whether it has happened."""
        step = self._play.steps[number]
        call = script_of(self._play.script)(self._store, self._clock, self._notes).calls[step.name]
        try:
            answer = self._interrupts.during(self._store, step.call.operation, call.make)
        except (Interrupted, TimedOut, StorePoisonedError) as error:
            self.where = "".join(traceback.format_tb(error.__traceback__)[-4:])
            self.came[step.call.operation] += 1
        else:
            assert answer == step.answer, f"step {number} ({step.name}) answered {answer}, and {step.answer} when nothing disturbs it"
            return True
        try:
            self._store.stats()
        except StorePoisonedError:
            self.came["and was poisoned"] += 1
            self._store.close()
            self._store = self._opened()
        self._let_others_through()
        if step.call.may_halt:
            call.make()
            self._check(number, number)
            return True
        if self._check(number - 1, number):
            note_what_was_lost(self._store, step.name, step.call, self._notes)
            return True
        return False

    def _let_others_through(self) -> None:
        """See that no lock is held: this thread might take it again, another one could not."""
        other = threading.Thread(target=lambda: (self._store.pending(), self._store.lag("t", "g")), daemon=True)
        other.start()
        other.join(60)
        assert not other.is_alive(), "another thread waits for what the interrupted call holds"

    def _check(self, first: int, last: int) -> bool:
        """Hold what the store shows against what it may show; returns whether the last step has happened and can be seen."""
        shown = show(self._store)
        before, behind = (self._play.steps[number] for number in (first, last))
        is_known = shown in (before.shown, behind.shown)
        assert is_known, f"in or behind step {last} ({behind.name}): {difference(shown, behind.shown)}"
        return shown != before.shown


@pytest.mark.clause("H1", "P4")
def test_f4_an_interrupted_call_happened_or_did_not(
    engine_pair: Pair, target: Target, seed: int, tmp_path: Path, tell: Callable[[object], None]
) -> None:
    """F4: calls are interrupted at any step: each happened or did not, what was answered is true, nothing blocks, ``verify`` is clean."""
    interrupts = Interrupts(random.Random(f"{engine_pair} {seed}"))
    settings = {**target.settings, **SETTLED_SHARE}
    came: Counter[str] = Counter()
    stores = 0
    while came.total() < target.times(INTERRUPTS) or stores < 2:
        play = played(engine_pair, settings, f"{PREFIX}{seed} interrupts {stores}")
        life = Interruption(tmp_path / f"store-{stores}", play, settings, interrupts)
        try:
            life.run()
        except BaseException as error:
            error.add_note(f"script {play.script!r} on {engine_pair}, interrupted here last:\n{life.where}")
            raise
        came += life.came
        stores += 1
    tell(f"interrupts: {', '.join(f'{count} in {operation}' for operation, count in came.most_common())}")
