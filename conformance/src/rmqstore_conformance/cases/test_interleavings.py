"""H4: puts, cancels and sends race a tick: every place of every call between the steps of the hand-over, played one by one.

Each history is played on a store and its oracle side by side (:mod:`rmqstore_conformance.model`), which say whether every answer is true
and everything comes once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import combinations_with_replacement, product
from typing import Final

import pytest

from rmqstore import Message
from rmqstore_conformance.model.chance import PLAIN, Plan
from rmqstore_conformance.model.coverage import Coverage
from rmqstore_conformance.model.history import support_of
from rmqstore_conformance.model.surroundings import WholeMachine
from rmqstore_conformance.model.timer_oracle import Timer
from rmqstore_conformance.stores import Pair
from rmqstore_conformance.targets import Target


class Racing:
    """Histories that are played on one store and its oracle, one behind the other; each begins without messages and pending timers.

    Attributes:
        now_ms: when the hand-over runs; the clock stands there.
    """

    def __init__(self, machine: WholeMachine) -> None:
        self.machine = machine
        self.now_ms = machine.now
        self._first = 0

    @property
    def timers(self) -> list[Timer]:
        """The timers of this history."""
        return self.machine.oracle.timers[self._first :]

    def send(self, deliver_at_ms: int | None = None) -> None:
        machine = self.machine
        machine.sent += 1
        message = Message("t", b"body", keys=("k",), message_id=f"m{machine.sent}", deliver_at_ms=deliver_at_ms, queue_id=0)
        machine.transmit([message], (), {"single": True})

    def send_late(self) -> None:
        """Send while the clock stands further back, so that the tick is under what the running seal closed."""
        self.machine.clock.set(self.now_ms - 2000)
        self.send(self.now_ms - 500)
        self.machine.clock.set(self.now_ms)

    def play(self, calls: Sequence[str], places: Sequence[int]) -> bool:
        """Play one history; False when a place is behind the last step."""
        machine = self.machine
        waiting = list(zip(places, calls, strict=True))
        self._first, begin_ms = len(machine.oracle.timers), machine.now
        self.now_ms = begin_ms + 2000
        for due_ms in (1000, 2000, 2000, 1000):
            self.send(begin_ms + due_ms)
        machine.clock.set(self.now_ms)

        def call_those_at(place: int) -> None:
            while waiting and waiting[0][0] == place:
                CALLS[waiting.pop(0)[1]](self)

        call_those_at(0)
        machine.tick_in_steps(1000, call_those_at)
        for now_ms in (self.now_ms, self.now_ms + 60_000):
            machine.clock.set(now_ms)
            machine.ticked()
        machine.cancelled(self.timers)
        machine.look(whole=True)
        machine.store.topics.delete("t")
        machine.oracle.delete_topic("t")
        return not waiting


CALLS: Final[dict[str, Callable[[Racing], None]]] = {
    "put": lambda racing: racing.send(racing.now_ms + 3000),
    "late": Racing.send_late,
    "send": Racing.send,
    "cancel": lambda racing: racing.machine.cancelled([racing.timers[1]]),
    "cancel own": lambda racing: racing.machine.cancelled([racing.timers[-1]]),
    "cancel key": lambda racing: racing.machine.cancelled_by_keys("t", ["k"]),
}


def calls_of(pair: Pair) -> list[str]:
    """Return the calls that a pair of engines can do."""
    return [call for call in CALLS if call != "cancel key" or "cancel_by_key" in support_of(pair)]


@contextmanager
def racing(pair: Pair, limit: int) -> Iterator[Racing]:
    """Give histories on one pair, whose hand-overs move so many messages a step."""
    plan = Plan("interleavings", support_of(pair), plain=PLAIN)
    with closing(WholeMachine(pair, plan, Coverage(), hand_over_limit=limit, flush="async")) as machine:
        yield Racing(machine)


@pytest.mark.clause("H1", "T3", "C1", "C2")
@pytest.mark.parametrize("limit", [1, 2])
def test_h4_every_call_at_every_place(pair: Pair, limit: int) -> None:
    """H4: exactly once, and true answers, wherever a put, a late put, a send or a cancel falls into a running hand-over."""
    with racing(pair, limit) as histories:
        for call in calls_of(pair):
            places = 0
            while histories.play([call], [places]):
                places += 1
            assert places >= 7


@pytest.mark.clause("H1", "C1", "C2")
@pytest.mark.timeout(300)
def test_h4_every_pair_of_calls_at_every_two_places(first_pair: Pair, target: Target, seed: int) -> None:
    """H4: two racing calls, in both orders, at any two places; its steps are the same on all engines, so one will do."""
    every = list(product(product(calls_of(first_pair), repeat=2), combinations_with_replacement((0, 1, 2, 3, 5, 7), 2)))
    some = random.Random(f"interleavings {seed}").sample(every, min(len(every), target.times(len(every))))
    with racing(first_pair, 1) as histories:
        played = sum(histories.play(calls, places) for calls, places in some)
    assert played >= (0.8 if len(some) == len(every) else 0.5) * len(some)
