"""X3: recorded histories of threads that send, schedule, cancel, tick, pop, ack and release, checked message by message."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from rmqstore import Message, PoppedMessage, Store
from rmqstore_conformance.cases.test_threads import THREADS, together
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.histories import History, told_of_pop
from rmqstore_conformance.stores import START_MS, Stores, label, message

(T,) = topics(__name__.rpartition(".")[2], 1)
(G,) = groups(__name__.rpartition(".")[2], 1)

EACH = 120
"""How many messages one thread sends, and how many timers another."""

TICKS = 24


class Racers:
    """Threads on one store that share all that they hold, so that they ack and release each other's leases, and repeat what was done."""

    def __init__(self, stores: Stores, seed: int) -> None:
        self.store: Store = stores.open(hand_over_limit=7, reclaim="age")
        self.history = History()
        self._stores = stores
        self._seed = seed
        self._held: list[PoppedMessage] = []
        self._handles: list[tuple[str | None, str]] = []
        self._lock = threading.Lock()
        self._sending = threading.Barrier(THREADS, timeout=30)

    def run(self) -> None:
        """Let two threads send, one tick, and the others consume."""
        together(self._work, THREADS)
        self._leftovers()

    def _work(self, number: int) -> None:
        chance = random.Random(f"{self._seed} {number}")
        if number < 2:
            self._produce(number)
        elif number == 2:
            self._sending.wait()
            for _ in range(TICKS):
                self._tick()
        elif number == 3:
            self._sending.wait()
            self._cancel_all(chance)
        else:
            self._sending.wait()
            for _ in range(60):
                self._consume(chance)

    def _produce(self, number: int) -> None:
        for n in range(EACH):
            # Half of them come before the other threads go on, so that these find something, half of them race these.
            if n == EACH // 2:
                self._sending.wait()
            if number == 0:
                self._send(message(f"s{n}"), "send")
            else:
                self._send(message(f"t{n}", deliver_at_ms=START_MS + 1000 * (1 + n % TICKS)), "schedule")

    def _send(self, sent: Message, call: str) -> None:
        receipt = self.history.call(lambda: self.store.send(sent), lambda _: [(label(sent), call, "sent", "")])
        if receipt.handle:
            with self._lock:
                self._handles.append((label(sent), receipt.handle))

    def _tick(self) -> None:
        self._stores.clock.advance(1000)
        self.store.tick()

    def _cancel_all(self, chance: random.Random) -> None:
        for _ in range(EACH):
            with self._lock:
                name, handle = chance.choice(self._handles)
            self._cancel(name, handle)

    def _cancel(self, name: str | None, handle: str) -> None:
        self.history.call(lambda: self.store.cancel(handle), lambda outcome: [(name, "cancel", outcome.name, "")])

    def _consume(self, chance: random.Random) -> None:
        popped = self.history.call(lambda: self.store.pop(T, G, max_messages=4, invisible_ms=10**9), told_of_pop)
        with self._lock:
            self._held += popped
            chosen = chance.sample(self._held, min(3, len(self._held)))
        if not chosen:
            return
        if chance.random() < 0.3:
            one = chosen[0]
            self.history.call(lambda: self.store.release(one), lambda outcome: [(label(one), "release", outcome.name, one.receipt)])
            return
        self.history.call(
            lambda: self.store.ack(chosen),
            lambda outcomes: [(label(m), "ack", outcome.name, m.receipt) for m, outcome in zip(chosen, outcomes, strict=True)],
        )

    def _leftovers(self) -> None:
        """Say of every message where it is at the end; what is in its topic may have got there by any of the ticks."""
        store = self.store
        end = self.history.now()
        pending = {label(timer.message) for timer in store.scan(limit=10_000).timers}
        leased = {label(each) for each in store.leases(group=G)}
        ready = {label(each) for each in store.pop(T, G, max_messages=1024, invisible_ms=10**9)}
        delivered = {label(m) for q in range(store.topics()[0].queues) for m in store.read(T, q, 0, 10_000).messages}
        for name in self.history.names:
            if name.startswith("mt") and name in delivered:
                self.history.note(name, "deliver", "delivered", begin=0, end=end)
            where = [place for place, names in (("pending", pending), ("leased", leased), ("ready", ready)) if name in names]
            assert len(where) <= 1, f"message {name} is {' and '.join(where)}"
            self.history.note(name, "left", where[0] if where else "gone", begin=end, end=end)


@pytest.mark.clause("X3", "H4", "C1", "C2", "P1", "P4", "P5")
def test_x3_an_order_of_the_calls_explains_every_answer(stores: Stores, seed: int, tell: Callable[[object], None]) -> None:
    """X3: eight threads race on the same timers, leases and receipts: for each message some order of the calls explains all answers."""
    racers = Racers(stores, seed)
    racers.run()
    faults = racers.history.faults()
    tell(f"{racers.history.size} answers of {THREADS} threads")
    assert not faults, "no order of the calls explains the answers about\n" + "\n".join(faults[:3])
    assert racers.store.verify() == []
