"""Plays races by plan, and holds what comes out against serial runs: it must be what some order of the calls gives, on the same engine.

So what a call means does not have to be written down a second time: other cases check that the engine does each call right by itself.
A tick is no single step (H4): its serial runs are those in which the other calls come whole between two calls that it makes to its sides.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise, permutations
from typing import NamedTuple, TypeVar

from rmqstore import Store
from rmqstore.plugins import get_plugins
from rmqstore_conformance.racing.arenas import Arena
from rmqstore_conformance.racing.locks import turn_locks
from rmqstore_conformance.racing.steps import Scope, Stepping
from rmqstore_conformance.racing.turns import Call, Plan, Seat, Step, Stuck, Turns, schedule_of
from rmqstore_conformance.stores import Stores

_T = TypeVar("_T")

_IN_STEPS = "tick"

_SYNC = "sync"
"""The call whose places are left out: it changes nothing but what is durable."""

_INTO_STEPS = 8
"""So many times the places chosen by chance another call goes on in the middle of a tick, at most."""

_MOST_BETWEEN = 24
"""So many places between two locks of a call are tried at most; where an engine takes its locks once a call there is none."""


class Answer(NamedTuple):
    """What one call of a run answered, and what was durable then.

    Attributes:
        tickets: by side, the position that it had to wait for.
        others: the same of each other call of the run, as far as that had come.
        durable: by side, the position that was durable when it answered.
        wrote, syncs: what is seen of the disk, where it is watched (:class:`.steps.Stepping`); ``syncs`` of all threads.
    """

    text: str
    tickets: dict[str, int]
    others: list[dict[str, int]]
    durable: dict[str, int]
    wrote: int = -1
    syncs: tuple[int, ...] = ()

    @property
    def undurable(self) -> str:
        """What it should have waited for, and did not."""
        return ", ".join(f"{side} {at} of {self.durable[side]}" for side, at in self.tickets.items() if at > self.durable[side])


class Run(NamedTuple):
    """What came out of one run, and how it went."""

    outcome: str
    answers: list[Answer]
    schedule: str
    steps: list[Step]
    calls: list[Call]


class Player:
    """Plays races of one kind on one store."""

    def __init__(self, stores: Stores, store: Store, kind: type[Arena]) -> None:
        self._stores = stores
        self._store = store
        self._kind = kind
        self._scope = Scope(store)
        self._number = 0
        self._alone: dict[str, Answer] = {}
        self.runs = 0

    def _arena(self) -> Arena:
        self._number += 1
        # What earlier runs left is over by now, and is dealt with here.
        self._stores.clock.advance(60_000)
        self._store.tick()
        return self._kind(self._stores, self._store, self._number)

    def played(self, calls: tuple[str, ...], plan: Plan, *, looks: bool = True) -> Run:
        """Play one run; unless it ``looks``, its outcome is the answers alone, and the disk is watched.

        Raises:
            AssertionError: a call failed, or answered before what it did was durable.
        """
        self.runs += 1
        arena = self._arena()
        told: list[object] = [None] * len(calls)
        answers: list[Answer] = [Answer("", {}, [], {})] * len(calls)
        turns = Turns(plan)
        threads: dict[int, Stepping] = {}

        def work(seat: Seat) -> None:
            number = seat.number
            act = arena.act(calls[number])

            def acted() -> None:
                told[number] = act()

            threads[number] = Stepping(seat, self._scope)
            threads[number].run(acted, watches_disk=not looks)
            own, durable = threads[number], self._durable()
            others = [dict(each.tickets) for at, each in threads.items() if at != number]
            syncs = tuple(moment for each in threads.values() for moment in each.syncs)
            answers[number] = Answer(arena.text([told[number]]), own.tickets, others, durable, own.wrote, syncs)

        gc.disable()  # what it finds of earlier stores would take steps in the middle of this one, each time elsewhere
        try:
            turns.run([work] * len(calls))
        except Stuck as error:
            raise AssertionError(f"{' and '.join(map(repr, calls))} get stuck:\n{schedule_of(turns, plan)}\n{error}") from None
        finally:
            gc.enable()
        schedule = schedule_of(turns, plan)
        for number, raised in turns.errors.items():
            raise AssertionError(f"{calls[number]!r} fails:\n{schedule}") from raised
        for number, answer in enumerate(answers):
            assert not answer.undurable, f"{calls[number]!r} answers before it is durable ({answer.undurable}):\n{schedule}"
        run = Run(arena.outcome(told) if looks else arena.text(told), answers, schedule, turns.steps, turns.calls)
        arena.tear_down()
        return run

    def alone(self, call: str) -> Answer:
        """Return the answer of a call that races with none; it is played once."""
        if call not in self._alone:
            self._alone[call] = self.played((call,), Plan((0,)), looks=False).answers[0]
        return self._alone[call]

    def _durable(self) -> dict[str, int]:
        return {"timers": self._store.engine.timers.durable_position, "pops": self._store.engine.pops.durable_position}

    def race(self, calls: tuple[str, ...], seed: int, places: int) -> None:
        """Play a race by many plans: at each place between two locks of one call, and at so many others of each order.

        Raises:
            AssertionError: what came out, no order of the calls gives.
        """
        chance = random.Random(f"{calls} {seed}")
        expected: dict[str, str] = {}
        plans: list[Plan] = []
        runs: dict[tuple[int, ...], Run] = {}
        for order in permutations(range(len(calls))):
            run = runs[order] = self.played(calls, Plan(order))
            expected.setdefault(run.outcome, " then ".join(calls[number] for number in order))
            if calls[order[0]] == _IN_STEPS:
                self._between_steps(calls, run, order, expected)
        for order in orders_of(calls):
            plans += self._plans(runs[order], order, chance, places)
            if calls[order[-1]] == _IN_STEPS:
                plans += _some(_into_steps(runs[order], runs[order[::-1]], order), _INTO_STEPS * places, chance)
        for plan in plans:
            run = self.played(calls, plan)
            if run.outcome not in expected:
                raise AssertionError(f"seed {seed}: {_told(calls, run, expected)}")

    def _between_steps(self, calls: tuple[str, ...], alone: Run, order: tuple[int, ...], expected: dict[str, str]) -> None:
        """Add what comes out when the others run between two steps of the first call, of which ``alone`` is the run without that."""
        for step in [each for each in alone.calls if each.thread == order[0]]:
            run = self.played(calls, Plan(order, (step.begin + 1,)))
            expected.setdefault(run.outcome, f"the others before the call of {step.name} that {calls[order[0]]!r} makes")

    def _plans(self, run: Run, order: tuple[int, ...], chance: random.Random, places: int) -> list[Plan]:
        """Choose where the thread that goes first is interrupted, and sometimes the next one, too."""
        own = [(at, step) for at, step in enumerate(run.steps, 1) if step.thread == order[0]]
        between = _between_locks(own, run.calls)[:_MOST_BETWEEN]
        bare = [at for at, step in own if step.call >= 0 and not step.locks and run.calls[step.call].name != _SYNC and at not in between]
        nested = _before_another_lock(own)
        rest = [at for at, step in own if at not in between and at not in bare]
        chosen = [
            *between,
            *_some(bare, places, chance),
            *_some(nested, places, chance),
            *_some(rest, (places + 1) // 3, chance),
        ]
        plans = [Plan(order, (place,)) for place in chosen]
        behind = len(run.steps) - len(own)
        return plans + [
            Plan(order, (place, place + chance.randint(1, max(behind, 1)))) for place in _some(between + bare, places // 3, chance)
        ]


def orders_of(calls: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the orders of some calls, by their numbers, in which they differ: of two calls that are the same one, one comes first."""
    found = {tuple(calls[number] for number in order): order for order in permutations(range(len(calls)))}
    return list(found.values())


def _into_steps(run: Run, turned: Run, order: tuple[int, ...]) -> list[Plan]:
    """Let the first thread stop where it is about to take its first lock in a call, and go on between any two calls that a tick makes.

    So what it had read before is as old as it can be, and what the tick did is half done. ``turned`` is the run in which the tick is first.
    """
    own = [(at, step) for at, step in enumerate(run.steps, 1) if step.thread == order[0]]
    before: dict[int, int] = {}
    for (at, step), (_, behind) in pairwise(own):
        if step.call >= 0 and step.call == behind.call and not step.locks and behind.locks:
            before.setdefault(step.call, at)
    begins = [call.begin for call in turned.calls if call.thread == order[-1]]
    return [Plan(order, (at, at + behind)) for at in before.values() for behind in begins if behind]


def _between_locks(own: list[tuple[int, Step]], calls: list[Call]) -> list[int]:
    """Return the places within a call where no lock is held, with one that was held before and one that will be."""
    found: list[int] = []
    waiting: list[int] = []
    call, has_locked = -1, False
    for at, step in own:
        if step.call != call:
            call, has_locked, waiting = step.call, False, []
        if step.call < 0 or calls[step.call].name == _SYNC:
            continue
        if step.locks:
            found += waiting
            has_locked, waiting = True, []
        elif has_locked:
            waiting.append(at)
    return found


def _before_another_lock(own: list[tuple[int, Step]]) -> list[int]:
    """Return the places, each once, where a lock is held and another one is about to be taken: two orders of two locks get stuck there."""
    found = {(step.code, step.line): at for (at, step), (_, behind) in pairwise(own) if 0 < step.locks < behind.locks}
    return sorted(found.values())


def _some(places: Sequence[_T], count: int, chance: random.Random) -> list[_T]:
    return chance.sample(places, min(len(places), count))


def _told(calls: tuple[str, ...], run: Run, expected: dict[str, str]) -> str:
    """Say what no order explains: the run beside the serial one that is nearest."""
    seen = run.outcome.splitlines()
    nearest = min(expected, key=lambda each: sum(a != b for a, b in zip(seen, each.splitlines(), strict=False)))
    lines = [f"no order of {' and '.join(map(repr, calls))} gives what came out of this run:", run.schedule, "it differs"]
    lines[-1] += f" from {expected[nearest]!r} in"
    for a, b in zip(seen, nearest.splitlines(), strict=False):
        if a != b:
            lines += [f"    seen   {a}", f"    serial {b}"]
    return "\n".join(lines)


def _is_engine(name: str, packages: set[str]) -> bool:
    own = name.partition(".")[0]
    if own == "rmqstore_conformance":
        return name.startswith("rmqstore_conformance.proving")
    return own in packages or own.startswith("rmqstore")


@contextmanager
def player(stores: Stores, kind: type[Arena]) -> Iterator[Player]:
    """Open a store whose locks give the turn on."""
    packages = {type(get_plugins().load_engine(name)[1]).__module__.partition(".")[0] for name in stores.pair}
    with turn_locks(lambda name: _is_engine(name, packages)):
        store = stores.open(f"races {kind.__name__}", max_in_flight=3, reclaim="age")
        yield Player(stores, store, kind)
        assert store.verify() == []
        store.close()
