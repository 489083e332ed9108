"""The scheduler of threads: what it finds, that it finds it again, and that it comes to an end; and each mutant of races, by many seeds."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from conformance.tests.mutant_runs import results_of
from rmqstore_conformance.proving import mutants as kit, mutants_of_races
from rmqstore_conformance.proving.planting import mutants_in
from rmqstore_conformance.racing.arenas import Leases
from rmqstore_conformance.racing.disk import waits_for_the_disk
from rmqstore_conformance.racing.locks import TurnLock, TurnRLock, turn_locks
from rmqstore_conformance.racing.playing import player
from rmqstore_conformance.racing.turns import Plan, Seat, Stuck, Turns
from rmqstore_conformance.stores import Pair, stores_of

# Those without a case of their own are strangers.
RACES = [each for each in mutants_in(mutants_of_races) if each.caught_by]


def steps_of(seat: Seat, count: int) -> None:
    """Take steps that stand for lines."""
    for line in range(count):
        seat.turns.step(seat, steps_of.__code__, line, 0)


class Counter:
    """A number that is read, and written some lines later."""

    def __init__(self, lock: TurnLock | None = None) -> None:
        self.number = 0
        self._lock = lock

    def add(self, seat: Seat) -> None:
        """Add 1."""
        if self._lock is None:
            self._add(seat)
            return
        with self._lock:
            self._add(seat)

    def _add(self, seat: Seat) -> None:
        before = self.number
        steps_of(seat, 3)
        self.number = before + 1


def number_after(plan: Plan, lock: TurnLock | None = None) -> tuple[int, list[str]]:
    counter = Counter(lock)
    turns = Turns(plan)
    turns.run([counter.add, counter.add])
    assert not turns.errors
    return counter.number, turns.switches


def test_a_switch_between_two_lines_loses_an_update() -> None:
    assert number_after(Plan((0, 1)))[0] == 2
    assert [number_after(Plan((0, 1), (at,)))[0] for at in (1, 2, 3, 4)] == [1, 1, 1, 2]
    assert number_after(Plan((1, 0), (2,))) == number_after(Plan((1, 0), (2,)))


@pytest.mark.parametrize("kind", [TurnLock, TurnRLock])
def test_a_lock_hands_the_turn_to_who_holds_it(kind: type[TurnLock]) -> None:
    for at in (1, 2, 3, 4, 5):
        number, switches = number_after(Plan((0, 1), (at,)), kind())
        assert number == 2
    number, switches = number_after(Plan((0, 1), (2,)), kind())
    assert any("waits for a lock" in each for each in switches)


def test_locks_in_two_orders_are_stuck_at_once() -> None:
    one, two = TurnLock(), TurnLock()

    def both(first: TurnLock, second: TurnLock) -> Callable[[Seat], None]:
        def work(seat: Seat) -> None:
            with first:
                steps_of(seat, 2)
                with second:
                    pass

        return work

    turns = Turns(Plan((0, 1), (1,)))
    begin = time.monotonic()
    with pytest.raises(Stuck, match="wait for each other's locks"):
        turns.run([both(one, two), both(two, one)])
    assert time.monotonic() - begin < 5
    assert not one.locked()
    assert not two.locked()


def test_a_condition_gives_the_turn_on() -> None:
    with turn_locks(lambda _: False):
        condition = threading.Condition()
        arrived: list[str] = []

        def wait(seat: Seat) -> None:
            with condition:
                condition.wait_for(lambda: arrived)
                arrived.append("seen")

        def tell(seat: Seat) -> None:
            steps_of(seat, 2)
            with condition:
                arrived.append("told")
                condition.notify_all()

        turns = Turns(Plan((0, 1)))
        turns.run([wait, tell])
    assert not turns.errors
    assert arrived == ["told", "seen"]


def test_a_wait_outside_of_python_lets_others_go_on() -> None:
    real = threading.Lock()
    real.acquire()

    def wait(seat: Seat) -> None:
        with real:
            steps_of(seat, 2)

    def free(seat: Seat) -> None:
        steps_of(seat, 2)
        real.release()

    turns = Turns(Plan((0, 1)))
    turns.run([wait, free])
    assert not turns.errors
    assert [step.thread for step in turns.steps] == [1, 1, 0, 0]


def test_locks_are_themselves_again_afterwards() -> None:
    lock, condition = threading.Lock, threading.Condition
    with turn_locks(lambda _: False):
        assert isinstance(threading.Lock(), TurnLock)
    assert (threading.Lock, threading.Condition) == (lock, condition)


def test_a_plan_is_played_alike_each_time() -> None:
    seen = set()
    with stores_of(Pair("memory", "memory")) as stores, player(stores, Leases) as played:
        for _ in range(3):
            run = played.played(("pop", "ack"), Plan((0, 1), (200, 500)))
            seen.add((run.outcome, run.schedule, tuple(map(str, run.steps))))
        assert len(seen) == 1
        played.race(("pop", "ack", "release"), 1, 2)


def test_what_is_durable_is_not_what_was_written_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """X3: a leader that looks behind its sync how far the writes are, and not before, vouches for one that nobody has synced."""
    with stores_of(Pair("lmdb", "lmdb")) as stores, player(stores, Leases) as played:
        waits_for_the_disk(played, ("send", "send"), random.Random(0), 100)
        commits: Any = stores._open[0].engine.pops._shared.kv
        sync_to_disk = commits._sync_to_disk
        monkeypatch.setattr(commits, "_sync_to_disk", lambda: sync_to_disk() and commits.position)
        with pytest.raises(AssertionError, match="nothing was synced since it wrote"):
            waits_for_the_disk(played, ("send", "send"), random.Random(0), 100)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(20))
def test_every_mutant_of_races_is_caught_by_every_seed(seed: int) -> None:
    results = results_of(kit.__name__, RACES, "--rmq-level", "extended", "--rmq-seed", str(seed))
    for mutant in RACES:
        for case in mutant.caught_by:
            assert {each["outcome"] for each in results[mutant.engine, case]} == {"fail"}, f"{case} does not notice {mutant.name}"
