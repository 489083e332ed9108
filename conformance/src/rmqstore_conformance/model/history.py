"""Random histories: each is a plan and a list of steps, played on a store and its oracle, and made short when it fails.

A step is the name of an operation and a seed for what it draws, so a history may be played without some of its steps: what the others draw
stays the same as far as it is there. A history that fails comes with its plan, its steps, and a program that does the same by the
public API.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rmqstore.contract import Durability, Flush, Support
from rmqstore_conformance.model.chance import Chance, Plan
from rmqstore_conformance.model.coverage import Coverage, expected
from rmqstore_conformance.model.surroundings import WholeMachine
from rmqstore_conformance.probing import FLAGS
from rmqstore_conformance.stores import Pair, survives
from rmqstore_conformance.targets import capabilities_of

PRECISIONS_MS: Final = (1000, 500, 200, 100)


class Step(NamedTuple):
    """One operation of a history; in a ``small`` step it draws as little as it may."""

    operation: str
    seed: int
    small: bool = False

    def __str__(self) -> str:
        return f"{self.operation}{' (small)' * self.small} {self.seed}"


class Played(NamedTuple):
    steps: list[Step]
    error: Exception | None
    program: str


def support_of(pair: Pair) -> frozenset[str]:
    """Return the optional capabilities that both engines of a pair declare."""
    declared = capabilities_of(pair)
    return frozenset(name for name in FLAGS if all(getattr(each, name) is Support.FULL for each in declared))


def precisions_of(pair: Pair) -> tuple[int, ...]:
    """Return the precisions that the timers of a pair take, ms."""
    declared = capabilities_of(pair)[0]
    return tuple(each for each in PRECISIONS_MS if declared.min_precision_ms <= each <= declared.max_precision_ms)


class Histories:
    """Plays random histories of one pair of engines.

    Args:
        support: the optional capabilities that the histories use; those that the pair declares when None.
        settings: given to every store, in place of what is drawn.
        shrink_s: how long a history that fails is made shorter, s.
    """

    def __init__(
        self, pair: Pair, *, support: frozenset[str] | None = None, settings: dict[str, Any] | None = None, shrink_s: float = 20.0
    ) -> None:
        self.coverage = Coverage()
        self._pair = pair
        self._support = support_of(pair) if support is None else support
        self._settings = settings or {}
        self._shrink_s = shrink_s

    def told(self) -> str:
        """Say what was met, and what was not though it is expected."""
        flushes = [min(survives(name, flush) for name in self._pair) for flush in Flush]
        crashes = max(flushes) >= Durability.PROCESS_CRASH
        return self.coverage.told(expected(self._support, durable=self._pair.durable, survives_crashes=crashes))

    def run(self, seed: str, steps: int) -> None:
        """Play one history of so many steps.

        Raises:
            AssertionError: store and oracle differ; of the shortest history found that fails.
        """
        plan = Plan(seed, self._support, precisions_of(self._pair))
        played = self._play(plan, steps=steps)
        self.coverage.histories += 1
        self.coverage.steps += len(played.steps)
        if played.error is not None:
            plan, played = self._shortened(plan, played)
            told = "\n".join(map(str, played.steps))
            raise AssertionError(
                f"{played.error}\n\nhistory {seed!r} of {self._pair}, its plan: {plan}\n\nits steps:\n{told}\n\n{played.program}"
            ) from played.error

    def _play(self, plan: Plan, given: Sequence[Step] | None = None, *, steps: int = 0) -> Played:
        """Play the steps that are given, or so many drawn ones; ends with the first error."""
        chance = Chance(f"{plan.seed} steps")
        made: list[Step] = []
        machine: WholeMachine | None = None
        program = ""
        try:
            machine = WholeMachine(self._pair, plan, self.coverage if given is None else Coverage(), **self._settings)
            operations = {name: each for name, each in machine.operations.items() if set(each.needs) <= plan.support}
            weights = plan.weights({name: each.weight for name, each in operations.items()})
            for number in range(steps if given is None else len(given)):
                if given is None:
                    possible = {name: weight for name, weight in weights.items() if weight and operations[name].when(machine)}
                    step = Step(chance.weighted(possible or {"tick": 1}), chance.seed())
                else:
                    step = given[number]
                if not operations[step.operation].when(machine):
                    continue
                made.append(step)
                operations[step.operation].act(machine, Chance(str(step.seed), small=step.small))
                machine.look(whole=number % plan.look_every == 0)
            machine.look(whole=True)
            machine.drain()
        except Exception as error:  # whatever a wrong engine raises
            if machine is None:
                raise
            place = machine.transcript.saved()
            program = f"{place} does the same to a store of its own:\n\n{place.read_text(encoding='utf-8')}"
            return Played(made, error, program)
        finally:
            if machine is not None:
                machine.close()
        return Played(made, None, "")

    def _shortened(self, plan: Plan, played: Played) -> tuple[Plan, Played]:
        """Leave out steps, make steps small and parts of the plan plain, as long as it fails and there is time."""
        ends = time.monotonic() + self._shrink_s
        size = max(len(played.steps) // 2, 1)
        while time.monotonic() < ends:
            at = len(played.steps)
            fewer = False
            while at > 0 and time.monotonic() < ends:
                at -= size
                rest = [*played.steps[: max(at, 0)], *played.steps[max(at, 0) + size :]]
                again = self._play(plan, rest)
                if again.error is not None:
                    played, fewer = again, True
            if size > 1:
                size //= 2
            elif not fewer:
                break
        for part in plan.parts:
            if time.monotonic() < ends and (again := self._play(plan.without(part), played.steps)).error is not None:
                plan, played = plan.without(part), again
        for at in reversed(range(len(played.steps))):
            if at < len(played.steps) and time.monotonic() < ends:
                small = [*played.steps[:at], played.steps[at]._replace(small=True), *played.steps[at + 1 :]]
                if (again := self._play(plan, small)).error is not None:
                    played = again
        return plan, played
