"""The scripts, by their names, and how one goes when nothing disturbs it."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, Protocol

from rmqstore import ManualClock, Store
from rmqstore_conformance.faults.answers import Answers
from rmqstore_conformance.faults.large import Large, Long
from rmqstore_conformance.faults.random_script import PREFIX, RandomScript
from rmqstore_conformance.faults.script import START_MS, Answer, Call, Notes, Play, Script, Step, open_script
from rmqstore_conformance.faults.showing import show
from rmqstore_conformance.faults.workload import Workload
from rmqstore_conformance.stores import Pair, directory

SCRIPTS: Final[dict[str, type[Script]]] = {each.name: each for each in (Workload, Answers, Large, Long)}


class _Made(Protocol):
    def __call__(self, store: Store, clock: ManualClock, notes: Notes | None = None) -> Script:
        """Make a script for a store."""
        ...


def script_of(name: str) -> _Made:
    """Return what makes the script of a name."""
    return partial(RandomScript, name=name) if name.startswith(PREFIX) else SCRIPTS[name]


def play_of(pair: Pair, settings: dict[str, Any], script: str = Workload.name) -> Play:
    """Play a script undisturbed; whether its calls do what they should is for the other cases to say."""
    clock = ManualClock(START_MS)
    opening = Call("open", lambda: Answer("DONE"))
    with directory() as root, open_script(root / "store", pair, settings, clock) as store:
        steps = [Step("open", opening, START_MS, Answer("DONE"), show(store))]
        for name, call in script_of(script)(store, clock).calls.items():
            try:
                answer = call()
            except AssertionError as error:
                error.add_note(f"undisturbed, on {pair}: step {len(steps)} ({name})")
                raise
            steps.append(Step(name, call, clock.now_ms(), answer, show(store)))
    for step in steps:
        wrong = step.shown["wrong"] + step.shown["contradictions"] + step.shown["parked"]
        assert not wrong, f"the undisturbed store is damaged after {step.name}: {wrong}"
    return Play(pair, script, steps)
