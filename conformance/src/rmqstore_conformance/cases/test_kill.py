"""R1, R3, X4: kill -9 at random moments: what was acknowledged is there exactly once, what was under way happened wholly or not at all."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqstore import ManualClock, Message
from rmqstore_conformance.faults.killing import Event, Killed, Lives
from rmqstore_conformance.faults.opener import Opener
from rmqstore_conformance.faults.random_script import PREFIX, SETTLED_SHARE
from rmqstore_conformance.faults.recording import played
from rmqstore_conformance.faults.script import START_MS, open_script
from rmqstore_conformance.stores import Pair
from rmqstore_conformance.targets import Target

ROUNDS = 20
KILLS_IN_A_ROW = 5

pytestmark = [pytest.mark.level("full"), pytest.mark.timeout(3600)]


@pytest.fixture(name="settings")
def _settings(target: Target) -> dict[str, Any]:
    return {**target.settings, **SETTLED_SHARE}


@pytest.fixture(scope="module")
def lives(seed: int) -> Iterator[Lives]:
    found = Lives(random.Random(f"kills {seed}"))
    yield found
    found.close()


def _behind(calls: int, *, between: bool) -> Callable[[Event], bool]:
    """Say when to kill: within, or right behind, the call that comes after so many."""
    left = calls

    def until(event: Event) -> bool:
        nonlocal left
        left -= event["begins"]
        return left <= 0 and bool(event["begins"]) != between

    return until


def _within(operation: str) -> Callable[[Event], bool]:
    return lambda event: bool(event["begins"]) and event["operation"] == operation


@pytest.mark.clause("R1", "R2", "H1", "P4", "C5", "X4")
def test_a_killed_store_keeps_its_word(
    in_memory: Path, lives: Lives, durable_pair: Pair, settings: dict[str, Any], target: Target, seed: int, tell: Callable[[object], None]
) -> None:
    """R1: calls of all kinds in a random order are killed: what they were answered is true afterwards, and they go on from there."""
    chance = random.Random(f"{durable_pair} {seed}")
    rounds = target.times(ROUNDS)
    kills: list[Any] = []
    stores = 0
    # Where a kill falls is a matter of time, so it goes on until enough of them fell into a call.
    while len(kills) < rounds or (sum(each.within for each in kills) < 0.6 * rounds and len(kills) < 5 * rounds):
        play = played(durable_pair, settings, f"{PREFIX}{seed} kill {stores}")
        killed = Killed(in_memory / f"store-{stores}", play, settings, lives)
        try:
            with Opener(durable_pair, settings) as opener:
                while not killed.is_over and len(killed.kills) < KILLS_IN_A_ROW:
                    killed.live(_behind(chance.randint(2, 16), between=chance.random() < 0.15))
                    killed.look(opener)
                killed.end(opener)
        except BaseException as error:
            error.add_note(f"script {play.script!r} at {killed.path}, killed {', '.join(map(str, killed.kills))}")
            raise
        kills += killed.kills
        stores += 1
    inside = sum(each.within for each in kills)
    where = ", ".join(f"{count} {place}" for place, count in Counter(map(str, kills)).most_common())
    tell(f"{len(kills)} kills of {stores} stores, {inside} within a call: {where}")
    assert inside >= 0.6 * rounds


@pytest.mark.clause("R3", "X4")
def test_killed_while_it_is_made(in_memory: Path, lives: Lives, durable_pair: Pair, settings: dict[str, Any], seed: int) -> None:
    """R3: a store that was killed while it was made is made by the next open."""
    play = played(durable_pair, settings, f"{PREFIX}{seed} made")
    Killed(in_memory / "whole", play, settings, lives).live(lambda event: False)
    stores = inside = 0
    while stores < 3 or (inside < 4 and stores < 30):
        killed = Killed(in_memory / f"store-{stores}", play, settings, lives)
        stores += 1
        for _ in range(4):
            killed.live(_within("open"), plays_on=False)
        inside += sum(each.within for each in killed.kills)
        for pops in (0, 1):
            with open_script(killed.path, durable_pair, settings, ManualClock(START_MS)) as store:
                assert store.verify() == []
                assert len(store.pop("t", "g") if store.topics.list() else ()) == pops
                store.send(Message("t", b"x"))
        assert not list(killed.path.rglob("*.new"))
    assert inside >= 4, f"{4 * stores} kills fell into the making of a store {inside} times"


@pytest.mark.clause("R3", "R1")
@pytest.mark.needs("snapshot")
@pytest.mark.parametrize("operation", ["open", "snapshot", "close"])
def test_killed_at_the_ends_of_its_life(
    in_memory: Path, lives: Lives, durable_pair: Pair, settings: dict[str, Any], seed: int, operation: str
) -> None:
    """R3: recovery may itself be killed; so may a snapshot, which is then no store, and a close."""
    play = played(durable_pair, settings, f"{PREFIX}{seed} ends")
    # One that nobody kills, to know how long each of these takes.
    Killed(in_memory / "whole", play, settings, lives).live(lambda event: False, copy=in_memory / "copy")
    killed = Killed(in_memory / "store", play, settings, lives)
    with Opener(durable_pair, settings) as opener:
        killed.live(_behind(30, between=False))
        if operation != "open":
            killed.look(opener)
        for number in range(5):
            copy = in_memory / f"copy-{number}"
            killed.live(_within(operation), plays_on=False, copy=copy if operation == "snapshot" else None)
            # A copy that was cut short is not there, one that was finished is whole.
            if copy.exists():
                step = play.steps[killed.done]
                assert opener.open(copy, step.now_ms).shown == step.shown
        killed.look(opener)
        killed.end(opener)
