"""Power loss at every call to the disk: what was acknowledged is there; what was not, wholly or not at all, in its order (R1–R3, H1)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final

import pytest

from plugins.wheel.tests.power.enumeration import Run, State, Verdict, judge
from plugins.wheel.tests.power.life import abandon, open_store
from plugins.wheel.tests.power.recording import Trace, recorded
from plugins.wheel.tests.power.small_store import remove, scratch, small_wheel
from plugins.wheel.tests.power.workloads import WORKLOADS
from rmqstore_conformance.power.content import write_image
from rmqstore_conformance.power.fates import fates_of
from rmqstore_conformance.power.volume import Volume
from rmqstore_wheel.engine import WheelEngine

pytestmark = pytest.mark.crash

KINDS: Final = ("put", "cancel", "tick", "pop", "ack", "roll", "file roll-over", "check point", "revive", "reclaim", "creation")
PER_CUT: Final = 16
OF_A_KIND: Final = 500
IN_ALL: Final = 10_000
STRIDE: Final = 11


@cache
def run_of(name: str) -> Run:
    """Return a workload that was run; its calls are the same every time."""
    return Run(WORKLOADS[name], name)


@pytest.mark.parametrize("name", WORKLOADS)
def test_some_power_losses(name: str) -> None:
    verdict = Verdict()
    run = run_of(name)
    judge(run, run.states(1, stride=STRIDE), verdict)
    print(f"\n{name}: {verdict}")
    assert [str(wrong) for wrong in verdict.wrong] == []
    assert verdict.states > len(run.calls) // STRIDE // 2


def states_of(run: Run) -> Iterator[State]:
    """Yield the states of the long tier."""
    yield from run.states(PER_CUT)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", WORKLOADS)
def test_power_loss_at_every_call(name: str) -> None:
    verdict = Verdict()
    run = run_of(name)
    judge(run, states_of(run), verdict)
    print(f"\n{name}: {verdict}")
    assert [str(wrong) for wrong in verdict.wrong] == []


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_the_long_tier_meets_every_kind_of_call() -> None:
    kinds: Counter[str] = Counter()
    count = 0
    found = [states_of(run_of(name)) for name in WORKLOADS] + [states_of_creations()]
    for state in chain.from_iterable(found):
        kinds.update(state.kinds)
        count += 1
    print(f"\n{count} states: {sorted(kinds.items())}")
    assert {kind: kinds[kind] for kind in KINDS if kinds[kind] < OF_A_KIND} == {}
    assert count >= IN_ALL


# ---------------------------------------------------------------- crashes of the recovery itself


def states_of_recoveries(run: Run, states: Iterator[State], share: float, per_recovery: int) -> Iterator[State]:
    """Yield what is left when the recovery from some of the states loses power, too."""
    chance = random.Random(f"recovery {run.name}")
    with scratch() as base, small_wheel():
        for number, state in enumerate(states):
            if chance.random() >= share:
                continue
            root = base / str(number)
            write_image(root, state.image)
            trace = Trace(root)
            with recorded(trace) as disk:
                abandon(open_store(WheelEngine(disk, run.workload.sizes), root, run.settings))
            remove(root)
            for cut in chance.sample(range(1, len(trace) + 1), min(per_recovery, len(trace))):
                volume = Volume(state.image)
                for call in trace.calls[:cut]:
                    volume.do(call)
                yield state._replace(image=volume.image(chance.choice(fates_of(volume, 0, chance))))


def states_of_creations() -> Iterator[State]:
    """Yield what is left when a creation loses power that follows one that lost power."""
    run = run_of("timers")
    halves = (state for state in run.states(PER_CUT) if "creation" in state.kinds)
    yield from states_of_recoveries(run, halves, 1.0, 24)


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_a_creation_after_half_a_creation() -> None:
    verdict = Verdict()
    judge(run_of("timers"), states_of_creations(), verdict)
    print(f"\ncreations: {verdict}")
    assert [str(wrong) for wrong in verdict.wrong] == []


@pytest.mark.parametrize("name", ["timers", "files", "lazily"])
def test_some_crashes_of_recoveries(name: str) -> None:
    _judge_recoveries(name, stride=11, share=0.5, per_recovery=1)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", WORKLOADS)
def test_crashes_of_recoveries(name: str) -> None:
    _judge_recoveries(name, stride=1, share=0.5, per_recovery=3)


def _judge_recoveries(name: str, *, stride: int, share: float, per_recovery: int) -> None:
    verdict = Verdict()
    run = run_of(name)
    judge(run, states_of_recoveries(run, run.states(2, seed=1, stride=stride), share, per_recovery), verdict)
    print(f"\n{name}, recoveries: {verdict}")
    assert [str(wrong) for wrong in verdict.wrong] == []
    assert verdict.states > 5


def test_opening_again_and_again_changes_nothing(tmp_path: Path) -> None:
    """The recovery of a whole store changes nothing that a drain sees."""
    run = run_of("pops")
    whole = State(0, len(run.calls), frozenset(), run.left)
    write_image(tmp_path / "store", whole.image)
    with small_wheel():
        for _ in range(2):
            abandon(open_store(WheelEngine(sizes=run.workload.sizes), tmp_path / "store", run.settings))
        shown = run.drain_at(whole.cut).of(WheelEngine(sizes=run.workload.sizes), tmp_path / "store")
    assert run.faults(whole.cut, shown) == []
