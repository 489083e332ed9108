"""Cuts that are not left to chance: behind every answer, and between any two writes or syncs of one call."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rmqstore_conformance.faults.cutting import Moment, State
from rmqstore_conformance.faults.recording import Recorded
from rmqstore_conformance.faults.script import Play
from rmqstore_conformance.power.content import Image, digest_of
from rmqstore_conformance.power.volume import Call, Volume

_SYNCS: Final = ("sync", "names", "everything")
DURABLE: Final = (*_SYNCS, "settle")
"""Kinds of calls to the disk behind which something is durable: the end of a transaction may be a write that is so by itself."""

_MANY: Final = 4
_SILENT: Final = ("open", "forgotten")
"""Calls that change nothing that a cut could show."""


class Stretch(NamedTuple):
    """The calls to the disk that one step made: those from ``first`` on and before ``behind``."""

    step: int
    first: int
    behind: int


def stretches_of(recorded: Recorded, play: Play) -> list[Stretch]:
    """Return what each step behind the opening did to the disk."""
    begun: dict[int, int] = {}
    found = []
    for mark in recorded.recording.marks:
        if mark.event == "begin":
            begun[mark.number] = mark.calls
        elif mark.number in play.calls:
            found.append(Stretch(mark.number, begun[mark.number], mark.calls))
    return found


def answers_of(recorded: Recorded, play: Play, *, power: bool = True) -> Iterator[State]:
    """Yield for each answer what is left when the power goes right behind it and all goes with it that was not synced.

    Args:
        power: False: the process is killed, and all is left that was written.
    """
    what = "power lost, all dropped that was not synced" if power else "killed, all kept that was written"
    volume = recorded.recording.volume()
    stretches: dict[int, list[Stretch]] = {}
    for each in stretches_of(recorded, play):
        stretches.setdefault(each.behind, []).append(each)
    seen: set[tuple[bytes, str, bool]] = set()
    for done, call in enumerate([None, *recorded.recording.calls]):
        if call is not None:
            volume.do(call)
        for stretch in stretches.get(done, ()):
            image = volume.dropped() if power else volume.image()
            step = play.steps[stretch.step]
            asked = step.name if step.call.again is not None else json.dumps(step.shown)
            if (key := (digest_of(image), asked, step.call.is_promised)) not in seen:
                seen.add(key)
                yield State(done, Moment(stretch.step, stretch.step, stretch.first), what, image)


def between_writes(
    recorded: Recorded, play: Play, per_kind: int, *, power: bool, stretches: Sequence[Stretch] | None = None
) -> Iterator[State]:
    """Yield what is left when the process is killed, and with ``power`` when the power goes, between two writes or syncs of one step.

    Args:
        per_kind: at so many places at most for each kind of call, evenly spread over its steps, those beside a sync first.
        stretches: in these alone.
    """
    calls = recorded.recording.calls
    if stretches is None:
        stretches = stretches_of(recorded, play)
    places: dict[int, Stretch] = {}
    for _, alike in sorted(kinds_of(recorded, stretches, play).items()):
        chosen = _places(calls, alike, per_kind)
        places.update({place: each for each in alike for place in chosen if each.first < place < each.behind})
    seen: set[tuple[bytes, int]] = set()
    for done, _, volume in recorded.recording.replayed():
        if (stretch := places.get(done)) is None:
            continue
        moment = Moment(stretch.step - 1, stretch.step, stretch.first)
        for what, image in _left(volume, power=power):
            if (key := (digest_of(image), stretch.step)) not in seen:
                seen.add(key)
                yield State(done, moment, what, image)


def split_by_others(eager: Recorded, plain: Recorded, play: Play) -> list[Stretch]:
    """Return the public calls that another thread's sync can split: with an eager recorder they sync more often than with a plain one."""

    def syncs(recorded: Recorded, stretch: Stretch) -> int:
        return sum(call.kind in _SYNCS for call in recorded.recording.calls[stretch.first : stretch.behind])

    plainly = {each.step: syncs(plain, each) for each in stretches_of(plain, play)}
    found = [each for each in stretches_of(eager, play) if play.steps[each.step].call.operation]
    return [each for each in found if syncs(eager, each) > plainly[each.step]]


class Kind(NamedTuple):
    """What makes stretches alike: the operation and the size of their calls, and how often they went to the disk.

    Attributes:
        syncs: how often they made something durable. One that does so more often than others of its kind has parts.
        writes: how many writes, from four on as if they were four.
    """

    operation: str
    size: str
    syncs: int
    writes: int


def kinds_of(recorded: Recorded, stretches: Sequence[Stretch], play: Play) -> dict[Kind, list[Stretch]]:
    """Return stretches by their kinds."""
    calls = recorded.recording.calls
    found: dict[Kind, list[Stretch]] = {}
    for each in stretches:
        call = play.steps[each.step].call
        is_sync = [call.kind in _SYNCS for call in calls[each.first : each.behind] if call.kind not in _SILENT]
        kind = Kind(call.operation or "a call below", call.size, sum(is_sync), min(is_sync.count(False), _MANY))
        found.setdefault(kind, []).append(each)
    return found


def _places(calls: Sequence[Call], alike: Sequence[Stretch], wanted: int) -> list[int]:
    """Choose behind which calls of stretches there is a cut; none behind the last one of a stretch, which is for :func:`answers_of`."""
    telling = [at for each in alike for at in range(each.first + 1, each.behind) if calls[at - 1].kind not in _SILENT]
    beside = [at for at in telling if calls[at - 1].kind in DURABLE or calls[at].kind in _SYNCS]
    if len(beside) >= wanted:
        return _spread(beside, wanted)
    return [*beside, *_spread([at for at in telling if at not in beside], wanted - len(beside))]


def _spread(found: Sequence[int], wanted: int) -> list[int]:
    if len(found) <= wanted:
        return list(found)
    return [found[(2 * number + 1) * len(found) // (2 * wanted)] for number in range(wanted)]


def _left(volume: Volume, *, power: bool) -> Iterator[tuple[str, Image]]:
    yield "killed, all kept that was written", volume.image()
    if power:
        yield "power lost, all dropped that was not synced", volume.dropped()


def writes_told(recorded: Recorded, play: Play) -> str:
    """Say how many calls went to the disk in one write and one sync at most, and which made more."""
    many: Counter[str] = Counter()
    cheap = 0
    for kind, alike in sorted(kinds_of(recorded, stretches_of(recorded, play), play).items()):
        if max(kind.syncs, kind.writes) <= 1:
            cheap += len(alike)
        else:
            many[f"{kind.operation} ({kind.size})"] += len(alike)
    return (
        f"{cheap} calls of one write and one sync at most; more in {', '.join(f'{count} {name}' for name, count in many.items()) or 'none'}"
    )
