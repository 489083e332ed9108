"""R1, R2, R3: the power goes; a disk keeps, drops or tears whatever was not synced, and the store must keep its word.

A play of a fixed script, or of a random one, is recorded by its system calls. From them come the states that a disk may be left in: behind
any of the calls, right behind each answer, between each two writes or syncs of one call. Each is opened in a child process. See
``rmqstore_conformance.faults.cutting`` for what a store may then show.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rmqstore import ManualClock
from rmqstore.contract import Durability, Flush
from rmqstore_conformance.faults.answers import Answers
from rmqstore_conformance.faults.boundaries import DURABLE, answers_of, between_writes, split_by_others, writes_told
from rmqstore_conformance.faults.cutting import State, Verdict, chosen_cuts, judge, moment_at, states_of, torn_states
from rmqstore_conformance.faults.large import Large, Long
from rmqstore_conformance.faults.opener import Answer, Opener
from rmqstore_conformance.faults.random_script import PREFIX, SETTLED_SHARE
from rmqstore_conformance.faults.recording import Playing, Recorded, played, record_openings, recorded
from rmqstore_conformance.faults.script import POPS, START_MS, Notes, Play, open_script
from rmqstore_conformance.faults.victim import SENT_TOGETHER, keeps_back
from rmqstore_conformance.faults.workload import Workload
from rmqstore_conformance.power.content import write_image
from rmqstore_conformance.power.fates import fates_of
from rmqstore_conformance.power.volume import Fate
from rmqstore_conformance.stores import Pair, directory, read_ids, stores_of, survives
from rmqstore_conformance.targets import Target

STATES = 200
STATES_OF_A_NEW_STORE = 60
RECOVERIES = 8
CUTS_OF_A_RECOVERY = 6
KILLS = 8
STATES_OF_A_KILL = 4
STATES_OF_THE_ANSWERS = 60
RANDOM_SCRIPTS = 8
STATES_OF_A_RANDOM_SCRIPT = 40
CUTS_OF_A_KIND = 4
"""Places between two writes, for each operation, size, and number of syncs and writes."""

CUTS_OF_A_SPLIT = 8
AFTERWARDS = "afterwards"
SHOWN_FAULTS = 5

pytestmark = [pytest.mark.level("full"), pytest.mark.timeout(1800)]


class Cut:
    """Plays scripts on one pair of engines, and opens what is left where they are cut."""

    def __init__(self, pair: Pair, target: Target, seed: int, kept: Path, tell: Callable[[object], None]) -> None:
        self.pair, self.target, self.seed, self.kept, self.tell = pair, target, seed, kept, tell

    def under(self, **settings: Any) -> Cut:
        """Return one with these settings besides."""
        target = msgspec.structs.replace(self.target, settings={**self.target.settings, **settings})
        return Cut(self.pair, target, self.seed, self.kept, self.tell)

    def needing(self, flush: Flush, level: Durability) -> Cut:
        """Skip engines of which what is acknowledged survives less."""
        if (weakest := min(survives(name, flush) for name in self.pair)) < level:
            pytest.skip(f"declared absent: what is acknowledged survives {weakest.name} at most, with flush = {flush.value}")
        return self

    @property
    def outlives_power(self) -> bool:
        """Whether what is acknowledged survives a loss of power."""
        return all(survives(name, Flush.SYNC) >= Durability.POWER_LOSS for name in self.pair)

    def play(self, script: str = Workload.name) -> Play:
        """Return the undisturbed play of a script."""
        return played(self.pair, self.target.settings, script)

    def record(self, script: str = Workload.name, **how: bool) -> Recorded:
        """Return a play as the disk saw it."""
        return recorded(self.pair, self.target.settings, self.target.recorder, script, **how)

    def answered_alike(self, script: str) -> tuple[Play, Recorded]:
        """Return both, with the same answers."""
        play, found = self.play(script), self.record(script)
        differing = [step.name for step, answer in zip(play.steps[1:], found.answers, strict=True) if answer != step.answer]
        assert not differing, f"two plays of {script!r} were answered differently: {', '.join(differing)}"
        return play, found

    def states(self, found: Recorded, play: Play, count: int, steps: Sequence[int] | None = None) -> Iterator[State]:
        """Return what the disk may be left in behind any system call of these steps."""
        return states_of(found, play, self.target.times(count), self.seed, steps=play.calls if steps is None else steps)

    def opened(self, play: Play, states: Iterator[State], notes: Notes | None = None, opened_by: type[Opener] = Opener) -> Verdict:
        """Open the states, and with ``notes`` make the last call again; those that are wrong are moved to where they are kept."""
        with directory() as folder, opened_by(play.pair, self.target.settings) as opener:
            verdict = judge(play, states, opener, folder, notes=notes, stop_at=SHOWN_FAULTS)
            for path in folder.iterdir():
                shutil.move(path, self.kept / path.name)
            return verdict._replace(wrong=[fault.replace(str(folder), str(self.kept)) for fault in verdict.wrong])

    def check(self, play: Play, states: Iterator[State], notes: Notes | None = None, opened_by: type[Opener] = Opener) -> Verdict:
        """Open the states, none of which may be wrong."""
        verdict = self.opened(play, states, notes, opened_by)
        self.tell(f"script {play.script}: {verdict}")
        if verdict.wrong:
            steps = f"{play.script!r}: {', '.join(each.name for each in play.steps)}"
            raise AssertionError("\n".join([str(verdict), *verdict.wrong, steps]))
        return verdict

    def check_random(self, script: str, *, power: bool) -> None:
        """Cut a random script behind each answer and within calls, by a loss of power or by kills."""
        play, found = self.answered_alike(script)
        within = between_writes(found, play, 1, power=power)
        others = states_of(found, play, STATES_OF_A_RANDOM_SCRIPT, self.seed, steps=play.calls) if power else ()
        self.check(play, chain(answers_of(found, play, power=power), within, others), found.notes)


@pytest.fixture
def cut(request: pytest.FixtureRequest, target: Target, seed: int, tmp_path: Path, tell: Callable[[object], None]) -> Cut:
    """The cuts of the pair that a case is about."""
    name = next(name for name in ("durable_pair", "durable_engine") if name in request.fixturenames)
    return Cut(request.getfixturevalue(name), target, seed, tmp_path, tell)


@pytest.fixture
def unplugged(cut: Cut) -> Cut:
    """As before, of engines that promise something for the loss of power."""
    return cut.needing(Flush.SYNC, Durability.POWER_LOSS)


@pytest.fixture
def killed(cut: Cut) -> Cut:
    """As before, under flush = async, of engines that promise that a kill takes nothing."""
    return cut.needing(Flush.ASYNC, Durability.PROCESS_CRASH).under(flush="async")


# ---------------------------------------------------------------- behind any system call


@pytest.mark.clause("R1", "R2", "H1", "P4", "C5")
def test_power_loss_at_every_call(durable_pair: Pair, unplugged: Cut) -> None:
    """R1: behind any call to the disk the power goes: acknowledged calls are there, the one under way wholly or not at all."""
    play, found = unplugged.play(), unplugged.record()
    if not unplugged.check(play, unplugged.states(found, play, STATES)).undone:
        # With little effort that may be by chance, with all of it not.
        whole = unplugged.check(play, states_of(found, play, STATES, unplugged.seed, steps=play.calls))
        assert whole.undone, "no state showed a call undone that was under way, so the states prove nothing"


@pytest.mark.clause("R1", "X3")
def test_r1_what_several_threads_were_answered_is_there(durable_engine: Pair, unplugged: Cut) -> None:
    """R1: threads send at the same time; the power goes right behind an answer, and all goes with it that no sync took in as a whole."""
    recording = unplugged.record(together=True).recording
    volume, done, answered = recording.volume(), 0, set()
    for at, mark in enumerate(recording.marks):
        for call in recording.calls[done : mark.calls]:
            volume.do(call)
        done = mark.calls
        answered.add(f"m{mark.number}")
        if at % max(SENT_TOGETHER // unplugged.target.times(SENT_TOGETHER), 1):
            continue
        with directory() as folder:
            write_image(folder / "store", volume.dropped())
            with open_script(folder / "store", durable_engine, unplugged.target.settings, ManualClock(START_MS + 2000)) as store:
                store.tick()
                there = set(read_ids(store, "t"))
        assert answered <= there, f"behind call {done}: {', '.join(sorted(answered - there))} answered and gone"
    assert len(answered) == SENT_TOGETHER


@pytest.mark.clause("R1")
def test_r2_a_long_call_is_torn_anywhere(durable_engine: Pair, unplugged: Cut) -> None:
    """R2: some sectors of a call under way are on the disk and others are not, wherever its records begin and end: it never was."""
    play, found = unplugged.play(Long.name), unplugged.record(Long.name)
    assert unplugged.check(play, torn_states(found, play)).states, "no call wrote more than a sector"


@pytest.mark.clause("R3")
def test_power_loss_while_it_is_made(durable_engine: Pair, unplugged: Cut) -> None:
    """R3: the power goes while a store is made: the next open makes it, empty."""
    play = unplugged.play()
    verdict = unplugged.check(play, unplugged.states(unplugged.record(), play, STATES_OF_A_NEW_STORE, steps=(0,)))
    assert verdict.states, "making a store did not go to the disk"


@pytest.mark.clause("R1")
def test_a_lying_sync_is_seen(durable_engine: Pair, unplugged: Cut) -> None:
    """R1: the suite can see loss: on a disk whose syncs do nothing some state lacks what was acknowledged, or does not open."""
    play = unplugged.play()
    verdict = unplugged.opened(play, unplugged.states(unplugged.record(lying=True), play, STATES))
    unplugged.tell(f"with syncs that do nothing, loss is seen in state {verdict.states}")
    assert verdict.wrong, f"with syncs that do nothing {verdict.states} states show nothing wrong, so the states cannot refute this engine"


@pytest.mark.clause("R3", "T10")
def test_the_recovery_loses_power_too(durable_engine: Pair, unplugged: Cut) -> None:
    """R3: the power goes once more while the store recovers from the first time; it ends in the same state."""
    play, found = unplugged.play(), unplugged.record()
    # Behind a tick a recovery has most to do: what was handed over is not forgotten yet.
    ticks = [step for step in play.calls if play.steps[step].call.may_halt]
    moved = (state for state in answers_of(found, play) if state.moment.begun in ticks)
    first = chain(moved, *(unplugged.states(found, play, RECOVERIES, steps) for steps in (ticks, play.calls)))
    verdict = unplugged.check(play, _during_recovery(first, play, unplugged.target, unplugged.seed), found.notes)
    assert verdict.states, "no recovery went to the disk"


def _during_recovery(first: Iterator[State], play: Play, target: Target, seed: int) -> Iterator[State]:
    chance = random.Random(f"recovery {seed}")
    states = list(first)
    openings = [Playing(play.pair, target.settings, before=state.image, now_ms=play.steps[state.moment.begun].now_ms) for state in states]
    for state, recovery in zip(states, record_openings(openings, target.recorder), strict=True):
        calls = recovery.calls
        cuts = chance.sample(range(1, len(calls) + 1), min(CUTS_OF_A_RECOVERY, len(calls)))
        # A recovery that is more than one step is cut behind each of them, with nothing of the next one.
        steps = [at for at, call in enumerate(calls, start=1) if call.kind in DURABLE]
        steps = chance.sample(steps, min(CUTS_OF_A_RECOVERY, len(steps)))
        for cut, _, volume in recovery.replayed():
            what = f"{state.what}; then behind call {cut} of the recovery"
            if cut in steps:
                yield state._replace(what=what, image=volume.dropped())
            if cut in cuts:
                yield state._replace(what=what, image=volume.image(chance.choice(fates_of(volume, 0, chance))))


@pytest.mark.clause("R1", "R3")
def test_what_a_killed_one_wrote_is_durable_before_more_rests_on_it(durable_engine: Pair, unplugged: Cut) -> None:
    """R1: killed, opened again, a message sent, then the power goes: what the killed process never synced does not take it along."""
    play = unplugged.play()
    states = _after_kills(unplugged.record(), play, unplugged.target, unplugged.seed)
    assert unplugged.check(play, states, opened_by=_WithOneMore).states, "no kill fell into a call"


def _after_kills(found: Recorded, play: Play, target: Target, seed: int) -> Iterator[State]:
    """Yield what the power leaves of a store that was killed, opened again, and sent a message to."""
    chance = random.Random(f"kills {seed}")
    moments = {cut: moment_at(found, play, cut) for cut in range(1, len(found.recording.calls) + 1)}
    within = {cut: moment for cut, moment in moments.items() if moment.begun in play.calls}
    volumes = {cut: found.recording.volume(cut) for cut in sorted(chosen_cuts(within, target.times(KILLS), chance))}
    openings = [
        Playing(play.pair, target.settings, before=volume.image(), now_ms=play.steps[moments[cut].begun].now_ms, send_to=AFTERWARDS)
        for cut, volume in volumes.items()
    ]
    for (cut, volume), again in zip(volumes.items(), record_openings(openings, target.recorder), strict=True):
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


# ---------------------------------------------------------------- right behind each answer


@pytest.mark.clause("I1", "C2", "C4", "P1", "P4", "P5", "P6", "P7", "P11")
def test_r1_each_answer_is_durable(durable_pair: Pair, unplugged: Cut) -> None:
    """R1: power goes right behind each answer of each call: it is as it was said, and the call answers in accord when it is made again."""
    for script in (Workload.name, Answers.name):
        play, found = unplugged.answered_alike(script)
        unplugged.check(play, chain(answers_of(found, play), unplugged.states(found, play, STATES_OF_THE_ANSWERS)), found.notes)


@pytest.mark.clause("R2", "H1", "C2", "C4", "P4", "P5", "P6", "P7", "P9", "P11", "Q2")
def test_r1_calls_in_any_order_are_durable(durable_pair: Pair, unplugged: Cut) -> None:
    """R1: calls in a random order, and power goes behind each answer and within calls: what was answered is there."""
    for number in range(unplugged.target.times(RANDOM_SCRIPTS)):
        unplugged.under(**SETTLED_SHARE).check_random(f"{PREFIX}{unplugged.seed} {number}", power=True)


@pytest.mark.clause("R2", "H1", "C2", "C4", "P4", "P5", "P6", "P7", "P9", "P11", "I1")
def test_r1_calls_in_any_order_outlive_a_kill(durable_engine: Pair, killed: Cut) -> None:
    """R1: so it is under flush = async with a kill, where an engine promises that a kill takes nothing."""
    for number in range(killed.target.times(RANDOM_SCRIPTS // 2)):
        killed.under(**SETTLED_SHARE).check_random(f"{PREFIX}{killed.seed} async {number}", power=False)


@pytest.mark.clause("I1", "P4", "C5")
def test_r1_each_answer_outlives_a_kill(durable_engine: Pair, killed: Cut) -> None:
    """R1: under flush = async, where an engine promises that a kill takes nothing, it is killed right behind each answer."""
    play, found = killed.play(Answers.name), killed.record(Answers.name)
    killed.check(play, answers_of(found, play, power=False), found.notes)


@pytest.mark.clause("P3", "P4", "P5")
def test_r1_all_but_leases_is_durable_if_pops_do_not_wait(durable_engine: Pair, unplugged: Cut) -> None:
    """R1: under pop.flush = async power goes right behind each answer: leases may be gone, wholly, and nothing else is."""
    lazy = unplugged.under(pop__flush="async")
    play, found = lazy.answered_alike(Answers.name)
    assert any(not step.call.is_promised for step in play.steps if step.call.operation in POPS)
    lazy.check(play, chain(answers_of(found, play), lazy.states(found, play, STATES_OF_THE_ANSWERS)), found.notes)


@pytest.mark.clause("P4", "P5")
def test_r1_a_kill_takes_no_lease_if_pops_do_not_wait(durable_engine: Pair, cut: Cut) -> None:
    """R1: so it is, and with the leases, when it is killed, where an engine promises that under flush = async a kill takes nothing."""
    killed = cut.needing(Flush.ASYNC, Durability.PROCESS_CRASH).under(pop__flush="async")
    play, found = killed.play(Answers.name), killed.record(Answers.name)
    killed.check(play.all_promised(), answers_of(found, play, power=False), found.notes)


@pytest.mark.clause("P5")
def test_c6_what_the_power_took_names_nothing_that_comes_later(durable_engine: Pair, unplugged: Cut) -> None:
    """C6: under flush = async the power goes, and takes all since the open: handles and receipts given out since are never given again."""
    lazy = unplugged.under(flush="async")
    found = lazy.record(Answers.name)
    opened = next(mark.calls for mark in found.recording.marks if mark.event == "end" and mark.number == 0)
    write_image(lazy.kept / "store", found.recording.volume(opened).dropped())
    clock = ManualClock(START_MS)
    with open_script(lazy.kept / "store", durable_engine, lazy.target.settings, clock) as store:
        script = Answers(store, clock)
        for each in script.calls.values():
            each()
    assert script.notes.keys() == found.notes.keys()
    same = {name for name, texts in script.notes.items() if {*texts} & {*found.notes[name]} - {""}}
    assert not same, f"given out a second time: {', '.join(sorted(same))}"


# ---------------------------------------------------------------- between two writes or syncs of one call


def _between_writes(cut: Cut, script: str) -> None:
    play, found = cut.play(script), cut.record(script)
    cut.tell(writes_told(found, play))
    cut.check(play, between_writes(found, play, cut.target.times(CUTS_OF_A_KIND), power=cut.outlives_power), found.notes)


@pytest.mark.clause("R1", "F3", "H1", "H3", "C5", "T10", "P3", "P4", "P7", "P9", "P14")
def test_r2_an_everyday_call_is_cut_between_two_writes(durable_pair: Pair, cut: Cut) -> None:
    """R2: cut between any two writes or syncs that a call makes, in either engine, it happened wholly or not at all."""
    _between_writes(cut, Workload.name)


@pytest.mark.clause("R1", "F3", "I1", "C4", "C5", "P1", "P3", "P4", "P5", "P7", "P8", "P9", "P11", "P14", "T10")
@pytest.mark.parametrize("script", [Answers.name, Large.name])
def test_r2_a_call_is_cut_between_two_writes(durable_engine: Pair, script: str, cut: Cut) -> None:
    """R2: so it is with calls of every outcome, and with calls of over 1,000 rows or above 1 MiB; made again, they answer in accord."""
    _between_writes(cut, script)


@pytest.mark.clause("F3", "H1")
@pytest.mark.parametrize("script", [Answers.name, Large.name])
def test_r2_a_call_is_cut_where_another_thread_syncs(durable_engine: Pair, script: str, cut: Cut) -> None:
    """R2: an engine that keeps writes back is cut where another thread's sync comes between two of them, within one call."""
    with stores_of(durable_engine) as stores:
        if not keeps_back(stores.open(**cut.target.settings)):
            pytest.skip("declared absent: the engine has no seam that keeps writes back; its system calls show each of them")
    play, eager = cut.play(script), cut.record(script, eager=True)
    split = split_by_others(eager, cut.record(script), play)
    names = ", ".join(play.steps[each.step].name for each in split) or "no call"
    cut.tell(f"several writes, which another thread can sync one by one, are made by {names}")
    cut.check(play, between_writes(eager, play, cut.target.times(CUTS_OF_A_SPLIT), power=cut.outlives_power, stretches=split), eager.notes)
