"""Taking the power from a recorded play: which states a disk may be left in, and what a store that wakes up in one may show.

A cut behind call number c to the disk leaves all that was durable by then, and of the rest what the file system pleases. Let ``done``
be the last step that was acknowledged before the next call to the disk was made, ``begun`` the last one that was begun before call c.
What the store then shows is the state after step ``done``, or that after step ``begun``, which was under way: at most one step is
between them. Of the steps that may halt on the way (a tick), making the same call again must lead to the state after them. Steps that
promise nothing (a call that was not waited for, the upkeep) may be lost as long as no later one was acknowledged.

A store that shows the right state must go on from it as well: by a time at which all is due, every timer that it showed is handed over
and every lease is over.

What cannot be seen, such as a mark or a seal, shows when the call is made again: it must answer as a call does that happened before, or
that did not, in accord with what the store showed, and lead to the state after it.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from rmqstore_conformance.faults.opener import Again, Answer, Opener
from rmqstore_conformance.faults.recording import Recorded
from rmqstore_conformance.faults.script import LATER_MS, Notes, Play, Step
from rmqstore_conformance.faults.showing import Shown, difference
from rmqstore_conformance.power.content import Image, digest_of, write_image
from rmqstore_conformance.power.fates import Fates, fates_of
from rmqstore_conformance.power.volume import TORN, Fate, Volume, can_tear

PER_CUT: Final = 4
"""States at one cut, at least: all kept, all dropped, and others by chance."""


class Moment(NamedTuple):
    """Where a play stands behind a call to the disk; see the module's text."""

    done: int
    begun: int
    since: int

    def allowed(self, play: Play) -> list[Shown]:
        least = self.done
        while least and not play.steps[least].call.is_promised:
            least -= 1
        return [step.shown for step in play.steps[least : self.begun + 1]]

    def halts(self, play: Play) -> bool:
        """Say whether the step that is under way may halt between two steps of its own."""
        return self.begun > self.done and play.steps[self.begun].call.may_halt

    def asks_again(self, play: Play) -> bool:
        """Say whether the last call can be made again, which has to lead to the state after it."""
        is_known = play.steps[self.begun - (self.begun > self.done)].call.is_promised
        return is_known and play.steps[self.begun].call.again is not None


def moment_at(recorded: Recorded, play: Play, cut: int) -> Moment:
    """Return where the play stands when the power goes behind ``cut`` calls to the disk."""
    done = begun = since = 0
    for mark in recorded.recording.marks:
        if mark.event == "end" and mark.calls <= cut:
            done = mark.number
        if mark.event == "begin" and mark.calls < cut:
            begun, since = mark.number, mark.calls
    last = len(play.steps) - 1
    return Moment(min(done, last), min(max(begun, done), last), since)


class State(NamedTuple):
    """A directory that the power may leave."""

    cut: int
    moment: Moment
    what: str
    image: Image


def chosen_cuts(moments: dict[int, Moment], wanted: int, chance: random.Random) -> set[int]:
    """Choose cuts by chance, from all steps alike, however many calls to the disk they make."""
    by_step: dict[int, list[int]] = {}
    for cut, moment in moments.items():
        by_step.setdefault(moment.begun, []).append(cut)
    turns = [(turn, chance.random(), cut) for cuts in by_step.values() for turn, cut in enumerate(chance.sample(cuts, len(cuts)))]
    return {cut for _, _, cut in sorted(turns)[:wanted]}


def states_of(recorded: Recorded, play: Play, wanted: int, seed: int, *, steps: Collection[int]) -> Iterator[State]:
    """Yield at most ``wanted`` different states within some steps; there is a cut behind every call when there is room for it."""
    chance = random.Random(f"{play.pair} {seed}")
    moments = {cut: moment_at(recorded, play, cut) for cut in range(1, len(recorded.recording.calls) + 1)}
    moments = {cut: moment for cut, moment in moments.items() if moment.begun in steps}
    chosen = chosen_cuts(moments, max(1, wanted // PER_CUT), chance)
    per_cut = max(PER_CUT, wanted // max(1, len(moments)))
    seen: set[tuple[bytes, int]] = set()
    for cut, _, volume in recorded.recording.replayed():
        if cut not in chosen:
            continue
        moment = moments[cut]
        fates = fates_of(volume, moment.since, chance)
        plain, rest = fates[:2], fates[2:]
        taken = 0
        for each in plain + chance.sample(rest, len(rest)):
            image = volume.image(each)
            key = (digest_of(image), moment.done)
            if key in seen:
                continue
            seen.add(key)
            yield State(cut, moment, _told(volume, each), image)
            if (taken := taken + 1) == per_cut:
                break


def torn_states(recorded: Recorded, play: Play) -> Iterator[State]:
    """Yield what is left when the power goes behind a write that tears, and everything before it was kept."""
    seen: set[tuple[bytes, int]] = set()
    for cut, call, volume in recorded.recording.replayed():
        pending = volume.pending()
        last = max(pending, default=0)
        if call.kind != "write" or last not in pending or not can_tear(pending[last]):
            continue
        moment = moment_at(recorded, play, cut)
        for fate in TORN:
            image = volume.image({last: fate})
            if (key := (digest_of(image), moment.done)) not in seen:
                seen.add(key)
                yield State(cut, moment, f"{fate.value} of the last write", image)


def _told(volume: Volume, fates: Fates) -> str:
    """Say what became of what was not durable."""
    counts = Counter(fates.get(number, Fate.KEPT) for number in volume.pending())
    return ", ".join(f"{count} {fate.value}" for fate, count in counts.items()) or "nothing was un-synced"


def look_at(path: Path, moment: Moment, play: Play, opener: Opener, notes: Notes | None = None, *, goes_on: bool = False) -> Answer:
    """Open what is left at a moment, and go on: a step that may halt is made again.

    With ``notes`` so is one that then changes nothing, and what was given out is asked for; without them all becomes due, unless the play
    ``goes_on`` in this store.
    """
    step = play.steps[moment.begun]
    if notes is None:
        return opener.open(path, step.now_ms, go_on_ms=step.now_ms if moment.halts(play) else None if goes_on else LATER_MS)
    again = Again(play.script, step.name, notes) if moment.asks_again(play) else None
    known = play.given_out(moment.done, notes)
    return opener.open(path, step.now_ms, go_on_ms=step.now_ms if moment.halts(play) else None, again=again, known=known)


def judged(answer: Answer, moment: Moment, play: Play) -> str:
    """Say what is wrong with what a store showed; empty when nothing is."""
    allowed = moment.allowed(play)
    steps = sorted({moment.done, moment.begun})
    expected = " or ".join(f"the state after step {number} ({play.steps[number].name})" for number in steps)
    if answer.shown is None:
        return f"expected {expected}; seen: {answer.error}"
    last = play.steps[moment.begun]
    if moment.halts(play):
        assert answer.gone_on is not None
        wrong = answer.shown["wrong"] + answer.shown["contradictions"]
        if answer.gone_on == last.shown and not wrong:
            return _judged_unknown(answer)
        # Of a call before that may be lost, the tick finds something else to do when it is lost.
        if answer.shown in allowed and not play.steps[moment.begun - 1].call.is_promised:
            return _judged_unknown(answer)
        return f"expected {expected} once the tick is made again; seen: {difference(answer.gone_on, last.shown)}, wrong {wrong}"
    if answer.shown not in allowed:
        seen = play.number_of(answer.shown) or min((difference(answer.shown, each) for each in allowed), key=len)
        return f"expected {expected}; seen: {seen}"
    if answer.again is None:
        return _judged_unknown(answer) or ("" if answer.gone_on is None else _judged_later(answer.shown, answer.gone_on))
    happened = moment.done == moment.begun
    return _judged_again(answer, last, play.steps[moment.begun - 1].shown, happened=happened) or _judged_unknown(answer)


def _judged_unknown(answer: Answer) -> str:
    """Say what is wrong with what the store knows of what was given out (C4, P5)."""
    return f"{len(answer.unknown)} handles or receipts that were given out are UNKNOWN: {answer.unknown[0]}" if answer.unknown else ""


def _judged_later(shown: Shown, later: Shown) -> str:
    """Say what is wrong with what a store shows when all that it showed before is due."""
    came = _given_to_topics(later) - _given_to_topics(shown)
    found = []
    if came != shown["pending"]["total"] or later["pending"]["total"]:
        found.append(f"of {shown['pending']['total']} timers {came} are handed over, and {later['pending']['total']} are pending still")
    found += [f"{name}: {later[name]}" for name in ("leases", "parked", "contradictions", "wrong") if later[name]]
    return f"it shows what it should, but not once all of it is due: {'; '.join(found)}" if found else ""


def _given_to_topics(shown: Shown) -> int:
    """Return how many messages came to topics so far, system topics left out."""
    return sum(sum(topic["max_offsets"]) for topic in shown["topics"] if not topic["name"].startswith("%"))


def _judged_again(answer: Answer, step: Step, before: Shown, *, happened: bool) -> str:
    """Say what is wrong with what the last call answered when it was made again, and with what the store shows then."""
    if answer.again is None or answer.gone_on is None:
        return ""
    outcomes = {step.call.again, step.answer.outcome}
    if happened or answer.shown != before:
        outcomes = {step.call.again}
    elif answer.shown != step.shown:
        outcomes = {step.answer.outcome}
    if answer.again.outcome not in outcomes:
        return f"{step.call.operation} made again: expected {' or '.join(map(str, outcomes))}; seen: {answer.again.outcome}"
    if answer.again.outcome == step.answer.outcome and answer.again.detail != step.answer.detail:
        return f"{step.call.operation} made again: expected {step.answer.detail}; seen: {answer.again.detail}"
    if answer.gone_on != step.shown:
        return f"{step.call.operation} made again, answered {answer.again.outcome}: {difference(answer.gone_on, step.shown)}"
    return ""


class Verdict(NamedTuple):
    """What came out of opening many states.

    Attributes:
        states: how many there were.
        undone: in how many of them a step that was under way had not happened.
        wrong: what was wrong, a line each.
    """

    states: int
    undone: int
    wrong: list[str]
    seconds: float

    def __str__(self) -> str:
        return f"{self.states} disk states in {self.seconds:.1f} s, {self.states / self.seconds:.0f} a second; {len(self.wrong)} wrong"


def judge(play: Play, states: Iterator[State], opener: Opener, folder: Path, *, notes: Notes | None = None, stop_at: int = 5) -> Verdict:
    """Open states and look at them; those that are wrong are kept in ``folder``."""
    begun_s = time.perf_counter()
    wrong: list[str] = []
    count = undone = 0
    for count, state in enumerate(states, start=1):
        path = folder / f"state-{count}"
        write_image(path, state.image)
        moment = state.moment
        answer = look_at(path, moment, play, opener, notes)
        if fault := judged(answer, moment, play):
            shutil.rmtree(path)
            write_image(path, state.image)
            step = f"step {moment.begun} ({play.steps[moment.begun].name})"
            wrong.append(f"power lost behind call {state.cut} to the disk, in or after {step}, {state.what}: {fault}; {path}")
            if len(wrong) >= stop_at:
                break
            continue
        undone += answer.shown == play.steps[moment.done].shown and moment.begun > moment.done
        shutil.rmtree(path)
    return Verdict(count, undone, wrong, time.perf_counter() - begun_s)
