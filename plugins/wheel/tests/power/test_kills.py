"""A process is killed at any call, the store is opened again, then power is lost: what the killed one wrote it never synced itself."""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import chain
from typing import Final

import pytest

from plugins.wheel.tests.power.book import Event
from plugins.wheel.tests.power.draining import Drain
from plugins.wheel.tests.power.enumeration import Run, settings_of
from plugins.wheel.tests.power.life import START_MS, Life, abandon
from plugins.wheel.tests.power.recording import Killed, Trace, recorded
from plugins.wheel.tests.power.small_store import remove, scratch, small_wheel
from plugins.wheel.tests.power.workloads import FAR, SECOND, WORKLOADS
from rmqstore.errors import RmqstoreError
from rmqstore_conformance.power.content import write_image
from rmqstore_conformance.power.fates import fates_of
from rmqstore_conformance.power.volume import Fate, Volume
from rmqstore_wheel.engine import WheelEngine

pytestmark = pytest.mark.crash

NAMES: Final = ("timers", "files", "lazily", "check points")
STRIDE: Final = 19


def faults_after(run: Run, kill_at: int, chance: random.Random, states: int) -> list[str]:
    """Kill a run behind so many calls, go on, take the power from it behind the last call, and say what is wrong."""
    found: list[str] = []
    settings = settings_of(run.workload)
    with scratch() as base, small_wheel():
        trace = Trace(base / "store")
        trace.root.mkdir()
        with recorded(trace) as disk:
            life = Life(WheelEngine(disk, run.workload.sizes), trace.root, settings, lambda: len(trace))
            trace.kill_at = kill_at
            with suppress(Killed):
                run.workload.run(life)
            trace.kill_at = None
            number = len(life.events) - 1
            life.is_lazy = False
            life.fresh_names(100)
            life.die()
            life.put(700 * SECOND)
            life.append(1)
            life.maintain()
            abandon(life.session)
        volume = Volume()
        for call in trace.calls:
            volume.do(call)
        # The call that was killed is in the log or not; a run that was not killed says what it does.
        without, within = list(life.events), list(life.events)
        without[number] = Event("killed", 0)
        within[number] = run.events[number]
        fates = fates_of(volume, kill_at, chance)
        all_dropped = dict.fromkeys(volume.pending(), Fate.DROPPED)
        for at, each in enumerate([all_dropped, *chance.sample(fates, min(states - 1, len(fates)))]):
            root = base / str(at)
            write_image(root, volume.image(each))
            drain = Drain(settings, run.workload.places, life.now_ms, [START_MS + 600 * SECOND, START_MS + FAR, START_MS + 2 * FAR])
            try:
                shown = drain.of(WheelEngine(sizes=run.workload.sizes), root)
                wrong = min((shown.differences(drain.expected(events)) for events in (without, within)), key=len)
            except RmqstoreError as error:
                wrong = [f"{type(error).__name__}: {error}"]
            finally:
                remove(root)
            if wrong:
                found.append(f"{run.name}, killed behind call {kill_at} ({run.events[number].kind}), image {at}: {wrong}"[:900])
    return found


@pytest.mark.parametrize("name", NAMES)
def test_some_kills_before_a_power_loss(name: str) -> None:
    run = Run(WORKLOADS[name], name)
    chance = random.Random(f"kills {name}")
    cuts = range(run.events[0].end + 1, len(run.calls) - 20, STRIDE)
    assert list(chain.from_iterable(faults_after(run, cut, chance, 1) for cut in cuts)) == []


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", NAMES)
def test_kills_before_a_power_loss(name: str) -> None:
    run = Run(WORKLOADS[name], name)
    chance = random.Random(f"more kills {name}")
    cuts = range(run.events[0].end + 1, len(run.calls) - 20)
    assert list(chain.from_iterable(faults_after(run, cut, chance, 4) for cut in cuts)) == []
