"""R1, R2, R3: the power goes; a disk keeps, drops or tears whatever was not synced, and the store must keep its word.

A play of a fixed script is recorded by its system calls. From them come the states that a disk may be left in behind any of the calls;
each is opened in a child process. See ``rmqstore_conformance.faults.cutting`` for what a store may then show.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from rmqstore.contract import Durability, Flush
from rmqstore_conformance.faults.boundaries import DURABLE, answers_of
from rmqstore_conformance.faults.cutting import Notes, State, Verdict, chosen_cuts, judge, moment_at, states_of
from rmqstore_conformance.faults.opener import Answer, Opener
from rmqstore_conformance.faults.recorded import played, recorded
from rmqstore_conformance.faults.recording import RECORDERS, Playing, Recorded
from rmqstore_conformance.faults.script import Play
from rmqstore_conformance.power.content import write_image
from rmqstore_conformance.power.fates import fates_of
from rmqstore_conformance.power.volume import Fate
from rmqstore_conformance.stores import Pair, directory, survives
from rmqstore_conformance.targets import Target

STATES = 200
STATES_OF_A_NEW_STORE = 60
RECOVERIES = 8
CUTS_OF_A_RECOVERY = 6
KILLS = 8
STATES_OF_A_KILL = 4
AFTERWARDS = "afterwards"
SHOWN_FAULTS = 5

pytestmark = [pytest.mark.level("full"), pytest.mark.timeout(1800)]


def need_power_loss(pair: Pair) -> None:
    """Skip engines that do not promise anything for the loss of power."""
    weakest = min(survives(name, Flush.SYNC) for name in pair)
    if weakest < Durability.POWER_LOSS:
        pytest.skip(f"declared absent: what is acknowledged survives {weakest.name} at most, with flush = sync")


def judged(
    play: Play, states: Iterator[State], target: Target, kept: Path, notes: Notes | None = None, opened_by: type[Opener] = Opener
) -> Verdict:
    """Open the states, and with ``notes`` make the last call again; those that are wrong are moved to ``kept``."""
    with directory() as folder, opened_by(play.pair, target.settings) as opener:
        verdict = judge(play, states, opener, folder, notes=notes, stop_at=SHOWN_FAULTS)
        for path in folder.iterdir():
            shutil.move(path, kept / path.name)
        return verdict._replace(wrong=[fault.replace(str(folder), str(kept)) for fault in verdict.wrong])


@pytest.mark.clause("R1", "R2", "H1", "P4", "C5")
def test_power_loss_at_every_call(durable_pair: Pair, target: Target, seed: int, tmp_path: Path, tell: Callable[[object], None]) -> None:
    """R1: behind any call to the disk the power goes: acknowledged calls are there, the one under way wholly or not at all."""
    need_power_loss(durable_pair)
    play = played(durable_pair, target.settings)
    states = states_of(recorded(durable_pair, target.settings, target.recorder), play, target.times(STATES), seed, steps=play.calls)
    verdict = judged(play, states, target, tmp_path)
    tell(verdict)
    assert not verdict.wrong, "\n".join([str(verdict), *verdict.wrong])
    assert verdict.undone, "no state showed a call undone that was under way, so the states prove nothing"


@pytest.mark.clause("R3")
def test_power_loss_while_it_is_made(
    durable_engine: Pair, target: Target, seed: int, tmp_path: Path, tell: Callable[[object], None]
) -> None:
    """R3: the power goes while a store is made: the next open makes it, empty."""
    need_power_loss(durable_engine)
    play = played(durable_engine, target.settings)
    states = states_of(
        recorded(durable_engine, target.settings, target.recorder), play, target.times(STATES_OF_A_NEW_STORE), seed, steps=(0,)
    )
    verdict = judged(play, states, target, tmp_path)
    tell(verdict)
    assert not verdict.wrong, "\n".join([str(verdict), *verdict.wrong])
    assert verdict.states, "making a store did not go to the disk"


@pytest.mark.clause("R1")
def test_a_lying_sync_is_seen(durable_engine: Pair, target: Target, seed: int, tmp_path: Path, tell: Callable[[object], None]) -> None:
    """R1: the suite can see loss: on a disk whose syncs do nothing some state lacks what was acknowledged, or does not open."""
    need_power_loss(durable_engine)
    play = played(durable_engine, target.settings)
    lying = recorded(durable_engine, target.settings, target.recorder, lying=True)
    verdict = judged(play, states_of(lying, play, target.times(STATES), seed, steps=play.calls), target, tmp_path)
    tell(f"with syncs that do nothing, loss is seen in state {verdict.states}")
    assert verdict.wrong, f"with syncs that do nothing {verdict.states} states show nothing wrong, so the states cannot refute this engine"


@pytest.mark.clause("R3", "T10")
def test_the_recovery_loses_power_too(
    durable_engine: Pair, target: Target, seed: int, tmp_path: Path, tell: Callable[[object], None]
) -> None:
    """R3: the power goes once more while the store recovers from the first time; it ends in the same state."""
    need_power_loss(durable_engine)
    play = played(durable_engine, target.settings)
    found = recorded(durable_engine, target.settings, target.recorder)
    # Behind a tick a recovery has most to do: what was handed over is not forgotten yet.
    ticks = [step for step in play.calls if play.steps[step].call.may_halt]
    moved = (state for state in answers_of(found, play) if state.moment.begun in ticks)
    first = chain(moved, *(states_of(found, play, target.times(RECOVERIES), seed, steps=steps) for steps in (ticks, play.calls)))
    verdict = judged(play, _during_recovery(first, play, target, seed), target, tmp_path, found.notes)
    tell(verdict)
    assert not verdict.wrong, "\n".join([str(verdict), *verdict.wrong])
    assert verdict.states, "no recovery went to the disk"


def _during_recovery(first: Iterator[State], play: Play, target: Target, seed: int) -> Iterator[State]:
    chance = random.Random(f"recovery {seed}")
    for state in first:
        with directory() as folder:
            write_image(folder / "store", state.image)
            now_ms = play.steps[state.moment.begun].now_ms
            recovery = RECORDERS[target.recorder](folder, Playing(play.pair, target.settings, before=state.image, now_ms=now_ms)).recording
        calls = recovery.calls
        cuts = chance.sample(range(1, len(calls) + 1), min(CUTS_OF_A_RECOVERY, len(calls)))
        # A recovery that is more than one step is cut behind each of them, with nothing of the next one.
        steps = [at for at, call in enumerate(calls, start=1) if call.kind in DURABLE]
        steps = chance.sample(steps, min(CUTS_OF_A_RECOVERY, len(steps)))
        volume = recovery.volume()
        for cut, call in enumerate(calls, start=1):
            volume.do(call)
            what = f"{state.what}; then behind call {cut} of the recovery"
            if cut in steps:
                yield state._replace(what=what, image=volume.image(dict.fromkeys(volume.pending(), Fate.DROPPED)))
            if cut in cuts:
                yield state._replace(what=what, image=volume.image(chance.choice(fates_of(volume, 0, chance))))


@pytest.mark.clause("R1", "R3")
def test_what_a_killed_one_wrote_is_durable_before_more_rests_on_it(
    durable_engine: Pair, target: Target, seed: int, tmp_path: Path, tell: Callable[[object], None]
) -> None:
    """R1: killed, opened again, a message sent, then the power goes: what the killed process never synced does not take it along."""
    need_power_loss(durable_engine)
    play = played(durable_engine, target.settings)
    states = _after_kills(recorded(durable_engine, target.settings, target.recorder), play, target, seed)
    verdict = judged(play, states, target, tmp_path, opened_by=_WithOneMore)
    tell(verdict)
    assert not verdict.wrong, "\n".join([str(verdict), *verdict.wrong])
    assert verdict.states, "no kill fell into a call"


def _after_kills(found: Recorded, play: Play, target: Target, seed: int) -> Iterator[State]:
    """Yield what the power leaves of a store that was killed, opened again, and sent a message to."""
    chance = random.Random(f"kills {seed}")
    moments = {cut: moment_at(found, play, cut) for cut in range(1, len(found.recording.calls) + 1)}
    within = {cut: moment for cut, moment in moments.items() if moment.begun in play.calls}
    for cut in sorted(chosen_cuts(within, target.times(KILLS), chance)):
        volume = found.recording.volume()
        for call in found.recording.calls[:cut]:
            volume.do(call)
        before = volume.image({})
        now_ms = play.steps[moments[cut].begun].now_ms
        with directory() as folder:
            write_image(folder / "store", before)
            playing = Playing(play.pair, target.settings, before=before, now_ms=now_ms, send_to=AFTERWARDS)
            again = RECORDERS[target.recorder](folder, playing).recording
        # The files that the killed process had open are not those of the next one.
        taken = max((call.file for call in found.recording.calls[:cut]), default=0)
        for call in again.calls:
            volume.do(call._replace(file=call.file + taken))
        fates = fates_of(volume, cut, chance)
        dropped = dict.fromkeys(volume.pending(), Fate.DROPPED)
        for each in [dropped, *chance.sample(fates, min(STATES_OF_A_KILL - 1, len(fates)))]:
            yield State(cut, moments[cut], "killed there, opened again and sent a message to", volume.image(each))


class _WithOneMore(Opener):
    """Opens stores that hold one message more, which it sees and does not show."""

    def open(self, *args: Any, **options: Any) -> Answer:
        answer = super().open(*args, **options)
        if answer.shown is not None and not any(rows for name, rows in answer.shown["queues"] if name == AFTERWARDS):
            answer.shown, answer.error = None, "the message that was sent after the kill is not there"
        for shown in (answer.shown, answer.gone_on):
            if shown is not None:
                shown["topics"] = [topic for topic in shown["topics"] if topic["name"] != AFTERWARDS]
                shown.update({part: [row for row in shown[part] if row[0] != AFTERWARDS] for part in ("queues", "lags")})
        return answer
