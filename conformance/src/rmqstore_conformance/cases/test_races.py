"""X3: races of two and three calls for the same things, played by plan, line by line: what comes out, some order of the calls gives."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations, combinations_with_replacement

import pytest

from rmqstore_conformance.racing.arenas import Arena, KeyedTimers, Leases, Letters, Runs, Timers
from rmqstore_conformance.racing.disk import waits_for_the_disk
from rmqstore_conformance.racing.playing import player
from rmqstore_conformance.stores import Stores
from rmqstore_conformance.targets import Level, Target

Tell = Callable[[object], None]

PLACES = {Level.CORE: 2, Level.EXTENDED: 2, Level.FULL: 3}
"""At how many places, chosen by chance, the first call of a race is interrupted, besides those between two of its locks."""

RACES = {Level.CORE: 16, Level.EXTENDED: 48}
"""How many races of two different calls, of one kind and chosen by chance, a run plays besides those that are always played; a full run
plays them all."""

TRIPLES = 12


def is_of(kind: type[Arena], calls: tuple[str, ...]) -> bool:
    """Say whether a race is one of this kind: a call changes something, and no other world has it."""
    return not set(calls) <= {*kind.READS} and not set(calls) <= {*kind.ELSEWHERE}


def pairs_of(kind: type[Arena]) -> list[tuple[str, ...]]:
    """Return the races of two calls: each call against itself, and against the others."""
    return [each for each in combinations_with_replacement(kind.CALLS, 2) if is_of(kind, each)]


def some_of(kind: type[Arena], chance: random.Random, target: Target) -> list[tuple[str, ...]]:
    """Return those of each call against itself, those that are always played, and some others."""
    chosen = [*(each for each in pairs_of(kind) if each[0] == each[1]), *kind.ALWAYS]
    others = [each for each in pairs_of(kind) if each not in chosen]
    return chosen + chance.sample(others, min(len(others), target.times(RACES.get(target.level, len(others)))))


def races_of(kind: type[Arena], chance: random.Random, target: Target) -> list[tuple[str, ...]]:
    """Return the races of one kind; in a fuller run some of three calls, too."""
    pairs = some_of(kind, chance, target)
    triples = [each for each in combinations(kind.CALLS, 3) if is_of(kind, each) and not set(each) & {*kind.READS, "tick"}]
    return pairs if target.level is Level.CORE else pairs + chance.sample(triples, min(len(triples), target.times(TRIPLES)))


def play(stores: Stores, kind: type[Arena], seed: int, target: Target, tell: Tell) -> None:
    """Play the races of one kind."""
    chance = random.Random(f"{kind.__name__} {seed}")
    races = races_of(kind, chance, target)
    with player(stores, kind) as played:
        for calls in races:
            played.race(calls, seed, target.times(PLACES[target.level]))
    tell(f"{played.runs} runs of {len(races)} races")


@pytest.mark.timeout(600)
@pytest.mark.clause("P1", "P4", "P5", "P6", "P7", "P8", "P11", "P12", "P14")
def test_x3_races_for_leases(engine_stores: Stores, seed: int, target: Target, tell: Tell) -> None:
    """X3: calls that end, change, repeat, reset or delete the same leases: answers and what is left are those of some order of them."""
    play(engine_stores, Leases, seed, target, tell)


@pytest.mark.timeout(600)
@pytest.mark.clause("H4", "C1", "C2", "C4", "T10", "I1")
def test_x3_races_for_timers_and_marks(stores: Stores, seed: int, target: Target, tell: Tell) -> None:
    """X3: puts, cancels, repeats by mark and a tick meet: answers and what is left are those of some order of them."""
    play(stores, Timers, seed, target, tell)


@pytest.mark.timeout(600)
@pytest.mark.needs("cancel_by_key")
@pytest.mark.clause("C6", "H4")
def test_x3_races_for_timers_by_key(engine_stores: Stores, seed: int, target: Target, tell: Tell) -> None:
    """X3: cancels by key meet puts, cancels by handle and a tick: answers and what is left are those of some order of them."""
    play(engine_stores, KeyedTimers, seed, target, tell)


@pytest.mark.timeout(600)
@pytest.mark.clause("P7", "P14")
def test_x3_races_for_dead_letters(engine_stores: Stores, seed: int, target: Target, tell: Tell) -> None:
    """X3: operators resend and drop the same dead letters while their group goes on: each letter goes one way, once."""
    play(engine_stores, Letters, seed, target, tell)


@pytest.mark.timeout(600)
@pytest.mark.needs("fifo")
@pytest.mark.clause("P9")
def test_x3_races_for_runs_in_order(engine_stores: Stores, seed: int, target: Target, tell: Tell) -> None:
    """X3: calls on one run of leases in order meet pops, a reset and a tick: there is one run at a time, and none loses its place."""
    play(engine_stores, Runs, seed, target, tell)


# ---------------------------------------------------------------- syncs


@pytest.mark.timeout(600)
@pytest.mark.clause("C2", "I1", "P4", "P5")
def test_x3_no_answer_before_its_sync(engine_stores: Stores, seed: int, target: Target, tell: Tell) -> None:
    """X3: a call that comes while another one syncs answers when what it did, and what its answer rests on, is durable, never before."""
    runs = races = 0
    for kind in (Leases, Timers, Letters):
        chance = random.Random(f"{kind.__name__} {seed}")
        pairs = [each for each in some_of(kind, chance, target) if not set(each) & set(kind.READS)]
        with player(engine_stores, kind) as played:
            for calls in pairs:
                waits_for_the_disk(played, (calls[0], calls[1]), chance, target.times(PLACES[target.level]))
        runs, races = runs + played.runs, races + len(pairs)
    tell(f"{runs} runs of {races} races")
