"""One attempt on one shard: the open store, its simulated clock, its file of the ledger, and what its threads share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

import rmqstore
from rmqstore_benchmarks.grid.named import START_MS
from rmqstore_benchmarks.load.failures import Failure, Injector, of_round
from rmqstore_benchmarks.load.ledger import Event, LedgerFile, last_ms
from rmqstore_benchmarks.load.plan import SETTINGS, Plan

_Answer = TypeVar("_Answer")
_LOOK_AGAIN_S: Final = 0.05
_DRAIN_CALLS: Final = 40


class StoppedError(Exception):
    """Another thread of this attempt failed, so this one ends as well."""


@dataclass
class Attempt:
    """What producer, consumers and the thread that lets time pass have in common."""

    plan: Plan
    number: int
    round: int
    store: rmqstore.Store
    clock: rmqstore.ManualClock
    ledger: LedgerFile
    is_stopped: bool = False

    def __post_init__(self) -> None:
        self.failures = of_round(self.plan.failures, self.round, self.plan.rounds)
        calls = 2 * len(self.plan.chunks_of_round(self.number, self.round)) or _DRAIN_CALLS
        self._injector = Injector(self.plan.injected_path(), self.failures, self.round, self.number, calls, self.plan.seed)
        self.consumers_die = Failure.CONSUMER in self.failures
        self.first_death = iter([True])  # given to the first consumer that may die, and to no other

    @property
    def now_ms(self) -> int:
        """The simulated time."""
        return self.clock.now_ms()

    def move_to(self, now_ms: int) -> None:
        """Let simulated time be ``now_ms``, unless it is later already.

        It is written first: an attempt behind a process that died goes on from there, so that time is never set back.
        """
        if now_ms > self.now_ms:
            self.ledger.say(Event.TIME, now_ms)
            self.clock.set(now_ms)

    def call(self, op: str, act: Callable[[], _Answer]) -> _Answer:
        """Make a call of the store, as one at which failures are injected.

        Raises:
            StoppedError: another thread has failed.
        """
        if self.is_stopped:
            raise StoppedError
        with self._injector.around(op):
            return act()


@contextmanager
def opened(plan: Plan, number: int, round_: int) -> Iterator[Attempt]:
    """Give the shard, its store opened; waits while another attempt, which may be dying, has it.

    Raises:
        StoreLockedError: it is still held after ``plan.patience_s``.
    """
    clock = rmqstore.ManualClock(START_MS)
    store, waited = open_store(plan, number, clock)
    try:
        # Time goes on from where the last attempt left it. The ledger is looked at under the store's lock, so nobody writes into it.
        clock.set(max(clock.now_ms(), last_ms(plan.ledger_path(number))))
        ledger = LedgerFile(plan.ledger_path(number), number)
        try:
            ledger.say(Event.OPENED, clock.now_ms())
            if waited:
                ledger.say(Event.WAITED, clock.now_ms())
            yield Attempt(plan, number, round_, store, clock, ledger)
            store.close()
            ledger.say(Event.CLOSED, clock.now_ms())
        finally:
            ledger.close()
    finally:
        store.close()


def open_store(plan: Plan, number: int, clock: rmqstore.ManualClock) -> tuple[rmqstore.Store, bool]:
    """Return the open store of a shard, and whether another attempt, which may be dying, had it meanwhile.

    Raises:
        StoreLockedError: it is still held after ``plan.patience_s``.
    """
    until_s = time.monotonic() + plan.patience_s
    waited = False
    while True:
        try:
            store = rmqstore.open(plan.store_path(number), engine=plan.engine, clock=clock, services=False, **SETTINGS)
        except rmqstore.StoreLockedError:
            if time.monotonic() > until_s:
                raise
            waited = True
            time.sleep(_LOOK_AGAIN_S)
        else:
            return store, waited
