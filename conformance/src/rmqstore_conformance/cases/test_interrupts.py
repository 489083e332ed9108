"""F4: a signal handler raises in the middle of a call, at any step: the call happened or did not, and the store goes on."""

from __future__ import annotations

import itertools
import random
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmqstore import CancelOutcome, ManualClock, Message, Store
from rmqstore.errors import StorePoisonedError
from rmqstore_conformance.faults.interrupting import Interrupted, Interrupts, TimedOut, belongs_to, stepped
from rmqstore_conformance.faults.random_script import PREFIX, SETTLED_SHARE
from rmqstore_conformance.faults.recording import played
from rmqstore_conformance.faults.script import START_MS, Notes, Play, note_what_was_lost, open_script
from rmqstore_conformance.faults.scripts import script_of
from rmqstore_conformance.faults.showing import difference, show
from rmqstore_conformance.stores import Pair
from rmqstore_conformance.targets import Target

INTERRUPTS = 240
CLOSES = 60
_STRIDE, _LONG_STRIDE = 3, 7
"""So many steps are between two at which a call is interrupted that is followed by a close; the second with less than the whole effort."""

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
    engine_pair: Pair, target: Target, seed: int, in_memory: Path, tell: Callable[[object], None]
) -> None:
    """F4: calls are interrupted at any step: each happened or did not, what was answered is true, nothing blocks, ``verify`` is clean."""
    interrupts = Interrupts(random.Random(f"{engine_pair} {seed}"))
    settings = {**target.settings, **SETTLED_SHARE}
    came: Counter[str] = Counter()
    stores = 0
    while came.total() < target.times(INTERRUPTS) or stores < 2:
        play = played(engine_pair, settings, f"{PREFIX}{seed} interrupts {stores}")
        life = Interruption(in_memory / f"store-{stores}", play, settings, interrupts)
        try:
            life.run()
        except BaseException as error:
            error.add_note(f"script {play.script!r} on {engine_pair}, interrupted here last:\n{life.where}")
            raise
        came += life.came
        stores += 1
    tell(f"interrupts: {', '.join(f'{count} in {operation}' for operation, count in came.most_common())}")


def _interrupt() -> None:
    raise Interrupted


@pytest.mark.clause("P4")
@pytest.mark.parametrize("call", ["send", "ack"])
def test_f4_a_close_behind_an_interrupted_call(durable_pair: Pair, target: Target, in_memory: Path, call: str) -> None:
    """F4: a call is interrupted, and the next thing is the close: an open finds the call wholly or not at all, and ``verify`` is clean."""
    clock = ManualClock(START_MS)

    def opened() -> Store:
        return open_script(in_memory / "store", durable_pair, target.settings, clock)

    stride = _STRIDE if target.effort >= 1 else _LONG_STRIDE
    came = 0
    store = opened()
    for step in itertools.count(1, stride):
        topic = f"t{step}"
        store.send_batch([Message(topic, b"old", queue_id=0)] * 4)
        leased = store.pop(topic, "g", max_messages=2)
        calls: dict[str, Callable[[], object]] = {
            "send": partial(store.send, Message(topic, b"new", queue_id=0)),
            "ack": partial(store.ack, leased),
        }
        try:
            stepped(calls[call], step, _interrupt, belongs_to(store))
            break
        except Interrupted:
            came += 1
        store.close()
        store = opened()
        assert store.verify() == [], f"interrupted at step {step}"
        store.send(Message(topic, b"next", queue_id=0))
        bodies = [message.body for message in store.read(topic).messages]
        assert bodies in ([b"old"] * 4 + [b"next"], [b"old"] * 4 + [b"new", b"next"]), f"interrupted at step {step}"
        lag = store.lag(topic, "g")
        assert (lag.ready, lag.in_flight, lag.retry) in ((len(bodies) - 2, 2, 0), (len(bodies) - 2, 0, 0))
        store.topics.delete(topic)
    assert came > stride
    store.close()


def _time_out() -> None:
    raise TimedOut


@pytest.mark.clause("R1", "X1")
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_f4_a_close_that_is_interrupted_is_made_whole_by_the_next(
    durable_pair: Pair, target: Target, in_memory: Path, seed: int, flush: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F4: a close is interrupted at any step, and made again: an open of the same process finds it free, and all that was answered."""
    clock = ManualClock(START_MS)
    settings = {**target.settings, "flush": flush, "flush_interval_ms": 3_600_000}
    path = in_memory / "store"
    unheard: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unheard.append)  # what Python does with what is raised in a finalizer

    def close_at(step: int) -> int:
        """Close a store that holds something, interrupted at a step, and see that it is whole; returns how many steps there were."""
        store = open_script(path, durable_pair, settings, clock)
        store.send_batch([Message("t", b"acked", queue_id=0), Message("t", b"left", queue_id=0)])
        store.ack(store.pop("t", "g", max_messages=1))
        sent = store.send(Message("t", b"timer"), delay_ms=60_000)
        unheard.clear()
        try:
            _, steps = stepped(store.close, step, _time_out if step % 2 else _interrupt, belongs_to(store))
        except (Interrupted, TimedOut):
            steps = step
        else:
            assert not 0 < step <= steps or unheard, "nobody heard of the interrupt"
        store.close()
        with open_script(path, durable_pair, settings, clock) as store:
            assert store.verify() == []
            assert [message.body for message in store.pop("t", "g", max_messages=9)] == [b"left"]
            assert store.cancel(sent) is CancelOutcome.CANCELLED
            store.topics.delete("t")
        return steps

    close_at(0)  # the first one of a store makes what the others find
    stride = max(1, close_at(0) // target.times(CLOSES))
    first = random.Random(seed).randint(1, stride)
    for step in range(first, close_at(0) + 1, stride):
        try:
            close_at(step)
        except BaseException as error:
            error.add_note(f"interrupted at step {step}")
            raise
