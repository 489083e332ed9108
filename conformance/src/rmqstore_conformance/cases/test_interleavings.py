"""H4: puts, cancels and sends race a tick: every place of every call between the steps of the hand-over, played one by one.

Each history is played on a store and its oracle side by side (:mod:`rmqstore_conformance.model`), which say whether every answer is true
and everything comes once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import combinations_with_replacement, product
from typing import Final

import pytest

from rmqstore import Message
from rmqstore_conformance.model.chance import PLAIN, Plan
from rmqstore_conformance.model.coverage import Coverage
from rmqstore_conformance.model.history import support_of
from rmqstore_conformance.model.surroundings import WholeMachine
from rmqstore_conformance.stores import START_MS, Pair
from rmqstore_conformance.targets import Target

NOW: Final = START_MS + 2000


def send(machine: WholeMachine, deliver_at_ms: int | None = None) -> None:
    machine.sent += 1
    message = Message("t", b"body", keys=("k",), message_id=f"m{machine.sent}", deliver_at_ms=deliver_at_ms, queue_id=0)
    machine.transmit([message], (), {"single": True})


def send_late(machine: WholeMachine) -> None:
    """Send while the clock stands further back, so that the tick is under what the running seal closed."""
    machine.clock.set(START_MS)
    send(machine, START_MS + 1500)
    machine.clock.set(NOW)


CALLS: Final[dict[str, Callable[[WholeMachine], None]]] = {
    "put": lambda machine: send(machine, NOW + 3000),
    "late": send_late,
    "send": send,
    "cancel": lambda machine: machine.cancelled([machine.oracle.timers[1]]),
    "cancel own": lambda machine: machine.cancelled([machine.oracle.timers[-1]]),
    "cancel key": lambda machine: machine.cancelled_by_keys("t", ["k"]),
}


def calls_of(pair: Pair) -> list[str]:
    """Return the calls that a pair of engines can do."""
    return [call for call in CALLS if call != "cancel key" or "cancel_by_key" in support_of(pair)]


def play(pair: Pair, calls: Sequence[str], places: Sequence[int], limit: int) -> bool:
    """Play one history; False when a place is behind the last step."""
    waiting = list(zip(places, calls, strict=True))
    plan = Plan("interleavings", support_of(pair), plain=PLAIN)
    with closing(WholeMachine(pair, plan, Coverage(), hand_over_limit=limit, flush="async")) as machine:
        for due_ms in (1000, 2000, 2000, 1000):
            send(machine, START_MS + due_ms)
        machine.clock.set(NOW)

        def call_those_at(place: int) -> None:
            while waiting and waiting[0][0] == place:
                CALLS[waiting.pop(0)[1]](machine)

        call_those_at(0)
        machine.tick_in_steps(1000, call_those_at)
        for now_ms in (NOW, NOW + 60_000):
            machine.clock.set(now_ms)
            machine.ticked()
        machine.cancelled(machine.oracle.timers)
        machine.look(whole=True)
    return not waiting


@pytest.mark.clause("H1", "T3", "C1", "C2")
@pytest.mark.parametrize("limit", [1, 2])
def test_h4_every_call_at_every_place(pair: Pair, limit: int) -> None:
    """H4: exactly once, and true answers, wherever a put, a late put, a send or a cancel falls into a running hand-over."""
    for call in calls_of(pair):
        places = 0
        while play(pair, [call], [places], limit):
            places += 1
        assert places >= 7


@pytest.mark.clause("H1", "C1", "C2")
@pytest.mark.timeout(300)
def test_h4_every_pair_of_calls_at_every_two_places(first_pair: Pair, target: Target, seed: int) -> None:
    """H4: two racing calls, in both orders, at any two places; its steps are the same on all engines, so one will do."""
    every = list(product(product(calls_of(first_pair), repeat=2), combinations_with_replacement((0, 1, 2, 3, 5, 7), 2)))
    some = random.Random(f"interleavings {seed}").sample(every, min(len(every), target.times(len(every))))
    played = sum(play(first_pair, calls, places, 1) for calls, places in some)
    assert played >= (0.8 if len(some) == len(every) else 0.5) * len(some)
