"""R1, C2, P5, I1: the power goes right behind each answer, which must stay true, above all when it rests on what was not synced yet."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rmqstore import ManualClock
from rmqstore.contract import Durability, Flush, Support
from rmqstore_conformance.cases.test_power_loss import judged, need_power_loss
from rmqstore_conformance.faults.answers import Answers
from rmqstore_conformance.faults.boundaries import answers_of, between_writes
from rmqstore_conformance.faults.cutting import states_of
from rmqstore_conformance.faults.probes import Probes
from rmqstore_conformance.faults.random_script import PREFIX, SETTLED_SHARE
from rmqstore_conformance.faults.recorded import played, recorded
from rmqstore_conformance.faults.script import START_MS, open_script
from rmqstore_conformance.faults.workload import Workload
from rmqstore_conformance.power.content import write_image
from rmqstore_conformance.power.volume import Fate
from rmqstore_conformance.stores import Pair, survives
from rmqstore_conformance.targets import Target, capabilities_of

OTHER_STATES = 60
RANDOM_SCRIPTS = 8
STATES_OF_A_RANDOM_SCRIPT = 40

pytestmark = [pytest.mark.level("full"), pytest.mark.timeout(1800)]


@pytest.mark.clause("I1", "C2", "C4", "P1", "P4", "P5", "P6", "P7", "P11")
def test_r1_each_answer_is_durable(durable_pair: Pair, target: Target, seed: int, tmp_path: Path, tell: Callable[[object], None]) -> None:
    """R1: power goes right behind each answer of each call: it is as it was said, and the call answers in accord when it is made again."""
    need_power_loss(durable_pair)
    plays = [played(durable_pair, target.settings, name) for name in (Workload.name, Answers.name)]
    absent = [
        name for name in ("fifo", "cancel_by_key") for each in capabilities_of(durable_pair) if getattr(each, name) is not Support.FULL
    ]
    probes = Probes(plays, absent)
    for play in plays:
        found = recorded(durable_pair, target.settings, target.recorder, play.script)
        differing = [step.name for step, answer in zip(play.steps[1:], found.answers, strict=True) if answer != step.answer]
        assert not differing, f"two plays of the same calls were answered differently: {', '.join(differing)}"
        others = states_of(found, play, target.times(OTHER_STATES), seed, steps=play.calls)
        verdict = judged(play, itertools.chain(answers_of(found, play), others), target, tmp_path, found.notes)
        tell(f"script {play.script}: {verdict}")
        assert not verdict.wrong, "\n".join([str(verdict), *verdict.wrong])
        probes.note(play, len(play.steps) - 1)
    tell(probes)
    assert not probes.missing(), f"the power was not cut behind: {', '.join(probes.missing())}"


@pytest.mark.clause("R2", "H1", "C2", "C4", "P4", "P5", "P6", "P7", "P9", "P11", "Q2")
def test_r1_calls_in_any_order_are_durable(
    durable_pair: Pair, target: Target, seed: int, tmp_path: Path, tell: Callable[[object], None]
) -> None:
    """R1: calls in a random order, and power goes behind each answer and within calls: what was answered is there."""
    need_power_loss(durable_pair)
    for number in range(target.times(RANDOM_SCRIPTS)):
        _play_and_cut(durable_pair, f"{PREFIX}{seed} {number}", Flush.SYNC, target, seed, tmp_path, tell)


@pytest.mark.clause("R2", "H1", "C2", "C4", "P4", "P5", "P6", "P7", "P9", "P11", "I1")
def test_r1_calls_in_any_order_outlive_a_kill(
    durable_engine: Pair, target: Target, seed: int, tmp_path: Path, tell: Callable[[object], None]
) -> None:
    """R1: so it is under flush = async with a kill, where an engine promises that a kill takes nothing."""
    if (weakest := min(survives(name, Flush.ASYNC) for name in durable_engine)) < Durability.PROCESS_CRASH:
        pytest.skip(f"declared absent: what is acknowledged survives {weakest.name} at most, with flush = async")
    for number in range(target.times(RANDOM_SCRIPTS // 2)):
        _play_and_cut(durable_engine, f"{PREFIX}{seed} async {number}", Flush.ASYNC, target, seed, tmp_path, tell)


def _play_and_cut(pair: Pair, script: str, flush: Flush, target: Target, seed: int, kept: Path, tell: Callable[[object], None]) -> None:
    """Cut a random script behind each answer and within calls, by a loss of power where everything is synced, else by kills."""
    power = flush is Flush.SYNC
    target = msgspec.structs.replace(target, settings={**target.settings, **SETTLED_SHARE, "flush": flush.value})
    play = played(pair, target.settings, script)
    found = recorded(pair, target.settings, target.recorder, script)
    differing = [step.name for step, answer in zip(play.steps[1:], found.answers, strict=True) if answer != step.answer]
    assert not differing, f"two plays of {script!r} were answered differently: {', '.join(differing)}"
    within = between_writes(found, play, 1, power=power)
    others = states_of(found, play, STATES_OF_A_RANDOM_SCRIPT, seed, steps=play.calls) if power else ()
    verdict = judged(play, itertools.chain(answers_of(found, play, power=power), within, others), target, kept, found.notes)
    tell(f"{script}: {verdict}")
    assert not verdict.wrong, "\n".join([f"script {script!r}: {', '.join(each.name for each in play.steps)}", *verdict.wrong])


@pytest.mark.clause("I1", "P4", "C5")
def test_r1_each_answer_outlives_a_kill(durable_engine: Pair, target: Target, tmp_path: Path, tell: Callable[[object], None]) -> None:
    """R1: under flush = async, where an engine promises that a kill takes nothing, it is killed right behind each answer."""
    if (weakest := min(survives(name, Flush.ASYNC) for name in durable_engine)) < Durability.PROCESS_CRASH:
        pytest.skip(f"declared absent: what is acknowledged survives {weakest.name} at most, with flush = async")
    unsynced = msgspec.structs.replace(target, settings={**target.settings, "flush": "async"})
    play = played(durable_engine, unsynced.settings, Answers.name)
    found = recorded(durable_engine, unsynced.settings, target.recorder, play.script)
    verdict = judged(play, answers_of(found, play, power=False), unsynced, tmp_path, found.notes)
    tell(verdict)
    assert not verdict.wrong, "\n".join([str(verdict), *verdict.wrong])


@pytest.mark.clause("P5")
def test_c6_what_the_power_took_names_nothing_that_comes_later(durable_engine: Pair, target: Target, tmp_path: Path) -> None:
    """C6: under flush = async the power goes, and takes all since the open: handles and receipts given out since are never given again."""
    need_power_loss(durable_engine)
    settings = {**target.settings, "flush": "async"}
    found = recorded(durable_engine, settings, target.recorder, Answers.name)
    volume = found.recording.volume()
    opened = next(mark.calls for mark in found.recording.marks if mark.event == "end" and mark.number == 0)
    for call in found.recording.calls[:opened]:
        volume.do(call)
    write_image(tmp_path / "store", volume.image(dict.fromkeys(volume.pending(), Fate.DROPPED)))
    clock = ManualClock(START_MS)
    with open_script(tmp_path / "store", durable_engine, settings, clock) as store:
        script = Answers(store, clock)
        for each in script.calls.values():
            each()
    assert script.notes.keys() == found.notes.keys()
    same = {name for name, texts in script.notes.items() if {*texts} & {*found.notes[name]} - {""}}
    assert not same, f"given out a second time: {', '.join(sorted(same))}"
