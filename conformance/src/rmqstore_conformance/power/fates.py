"""Which of the states that a power loss may leave are looked at: all of the simple ones, and random ones of the others."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final

from rmqstore_conformance.power.volume import TORN, Fate, Volume, can_tear

_ALL_COMBINATIONS: Final = 4
_RANDOM: Final = 6
_OLD: Final = 4

Fates = dict[int, Fate]


def fates_of(volume: Volume, since: int, chance: random.Random) -> list[Fates]:
    """Return fates for all changes that are not durable, the plainest first.

    Those made by the calls from ``since`` on are taken one by one; what is older comes as a whole, but for a few.
    """
    pending = volume.pending()
    recent = [number for number in pending if volume.call_of[number] >= since]
    old = [number for number in pending if volume.call_of[number] < since]
    torn = {number for number, change in pending.items() if can_tear(change)}
    found: list[Fates] = [dict.fromkeys(pending, Fate.KEPT), dict.fromkeys(pending, Fate.DROPPED)]
    for rest in (Fate.KEPT, Fate.DROPPED) if old else (Fate.KEPT,):
        base = dict.fromkeys(old, rest)
        found += [{**base, **fates} for fates in _of_recent(recent, torn)]
    for number in chance.sample(old, min(_OLD, len(old))):
        found.append({**dict.fromkeys(pending, Fate.KEPT), number: Fate.DROPPED})
        found.append({**dict.fromkeys(pending, Fate.DROPPED), number: Fate.KEPT})
    for _ in range(_RANDOM):
        share = chance.choice((0.2, 0.5, 0.8))
        found.append({number: _any(number in torn, share, chance) for number in pending})
    return found


def _any(can_be_torn: bool, share: float, chance: random.Random) -> Fate:
    if can_be_torn and chance.random() < 0.3:
        return chance.choice(TORN)
    return Fate.KEPT if chance.random() < share else Fate.DROPPED


def _of_recent(recent: Sequence[int], torn: set[int]) -> Iterator[Fates]:
    if len(recent) <= _ALL_COMBINATIONS:
        for fates in product((Fate.KEPT, Fate.DROPPED), repeat=len(recent)):
            yield dict(zip(recent, fates, strict=True))
    for rest in (Fate.KEPT, Fate.DROPPED):
        base = dict.fromkeys(recent, rest)
        yield base
        for number in recent:
            yield {**base, number: Fate.DROPPED if rest is Fate.KEPT else Fate.KEPT}
            if number in torn:
                for fate in TORN:
                    yield {**base, number: fate}
