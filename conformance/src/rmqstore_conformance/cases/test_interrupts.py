"""F4: a signal handler raises in the middle of a call, at any step: the call happened or did not, and the store goes on."""

from __future__ import annotations

import random
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqstore.errors import StorePoisonedError
from rmqstore_conformance.faults.interrupting import Interrupted, Interrupts, TimedOut
from rmqstore_conformance.kills.census import Census
from rmqstore_conformance.kills.consumer import Consumer
from rmqstore_conformance.kills.ledger import Book
from rmqstore_conformance.kills.worker import Worker, open_store
from rmqstore_conformance.stores import GIVEN, START_MS, Pair
from rmqstore_conformance.targets import Target

INTERRUPTS = 240
OF_ONE_STORE = 40

pytestmark = [pytest.mark.level("extended"), pytest.mark.needs("cancel_by_key", "fifo", "retention"), pytest.mark.timeout(3600)]


class Life:
    """One store whose calls are interrupted, and the book that follows them."""

    def __init__(self, path: Path, engines: dict[str, Any], book: Book | Census, chance: random.Random, interrupts: Interrupts) -> None:
        self.book = book
        self._path = str(path)
        self._engines = engines
        self._interrupts = interrupts
        self.came: Counter[str] = Counter()
        self.where = ""
        job = {"path": self._path, "engines": engines, "seed": chance.randrange(1 << 30), "prefix": "i", **book.state_of()}
        self._worker = (Consumer if isinstance(book, Census) else Worker)(job, self._follow, self._act)

    def _follow(self, event: str, **fields: Any) -> None:
        self.book.begin(fields) if event == "begin" else self.book.end(fields)

    def _act(self, call: Callable[[], Any]) -> Any:
        assert self.book.open_call is not None
        return self._interrupts.during(self._worker.store, self.book.open_call["op"], call)

    def go_on(self) -> None:
        """Make calls until one is interrupted, and see what is there then; a store that refuses to go on is opened again."""
        try:
            self._worker.run(1000)
        except (Interrupted, TimedOut, StorePoisonedError) as error:
            self.where = "".join(traceback.format_tb(error.__traceback__)[-4:])
            assert self.book.open_call is not None
            self.came[self.book.open_call["op"]] += 1
        try:
            self._worker.store.stats()
        except StorePoisonedError:
            self.came["and was poisoned"] += 1
            self._reopen()
        self._let_others_through()
        self.book.check(self._worker.store)

    def _let_others_through(self) -> None:
        """See that no lock is held: this thread might take it again, another one could not."""
        store = self._worker.store
        other = threading.Thread(target=lambda: (store.pending(), store.lag("t", "g")), daemon=True)
        other.start()
        other.join(60)
        assert not other.is_alive(), "another thread waits for what the interrupted call holds"

    def _reopen(self) -> None:
        self._worker.store.close()
        self._worker.store = open_store(self._path, self._engines, self._worker.clock, **self.book.settings)

    def end(self, *, durable: bool) -> None:
        """Close the store; everything in it comes to its end first, once it was opened again where that keeps anything."""
        if durable:
            self._reopen()
        self.book.drain(self._worker.store, self._worker.clock)
        self._worker.store.close()


@pytest.mark.clause("H1", "P4")
def test_f4_an_interrupted_call_happened_or_did_not(
    engine_pair: Pair, target: Target, seed: int, tmp_path: Path, tell: Callable[[object], None]
) -> None:
    """F4: calls are interrupted at any step: what was answered is true, each message comes once, nothing blocks, ``verify`` is clean."""
    chance = random.Random(f"{engine_pair} {seed}")
    interrupts = Interrupts(chance)
    engines = {"timer_engine": engine_pair.timers, "pop_engine": engine_pair.pops, **GIVEN}
    came: Counter[str] = Counter()
    for number in range(max(target.times(INTERRUPTS) // OF_ONE_STORE, 2)):
        life = Life(tmp_path / f"store-{number}", engines, (Census if number % 2 else Book)(START_MS), chance, interrupts)
        try:
            for _ in range(OF_ONE_STORE):
                life.go_on()
            life.end(durable=engine_pair.durable)
        except BaseException as error:
            error.add_note(f"store {number}, seed {seed}, engines {engine_pair}, interrupted here last:\n{life.where}")
            raise
        came += life.came
    tell(f"interrupts: {', '.join(f'{count} in {op}' for op, count in came.most_common())}")
