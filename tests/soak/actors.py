"""The processes of a soak: ``python -m tests.soak.actors ROLE NAME STORE LEDGERS SEED``. Each ends when its stdin does.

A server is ``rmqstore serve`` with a clock that the soak moves. The others use the store through it, or, where there is none, share it.
They write a line to their ledger before each call that must not be lost or doubled, and one with its answer (``tests/soak/audit.py``).
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import rmqstore
from rmqstore import Flow, FlowControlError, Message, PoppedMessage, RmqstoreError, Store, StoreFullError, StoreUnavailableError
from rmqstore.server.connection import Connection

TOPICS: Final = ("kept", "freed")
GROUP: Final = "g"
_OFFSETS: Final = struct.Struct("<qq")
_INVISIBLE_S: Final = 3.0
_START_S: Final = 60.0
_CUT: Final = 0.02
"""The share of calls whose connection is cut."""

_PAUSED: Final = 0.01
"""The share of a producer's calls that hold up all sends for a moment."""

_REFUSALS: Final = (StoreFullError, StoreUnavailableError)


class MovedClock:
    """The machine's clock and an offset, which lies in a file, beside the highest that it ever had, so that other processes can move it."""

    def __init__(self, ledgers: Path) -> None:
        with open(ledgers / "clock", "a+b") as file:
            file.truncate(_OFFSETS.size)
            self._shown = mmap.mmap(file.fileno(), _OFFSETS.size)

    def offsets_ms(self) -> tuple[int, int]:
        """Return how far it is from the machine's clock, and how far it was at most."""
        offset_ms, highest_ms = _OFFSETS.unpack(self._shown[:])
        return offset_ms, highest_ms

    def now_ms(self) -> int:
        """Return the time in ms."""
        return time.time_ns() // 1_000_000 + self.offsets_ms()[0]

    def at_most_ms(self) -> int:
        """Return a time that the clock has never been beyond, in ms."""
        return time.time_ns() // 1_000_000 + self.offsets_ms()[1]

    def move(self, offset_ms: int) -> None:
        """Let it jump."""
        now_ms, highest_ms = self.offsets_ms()
        self._shown[:] = _OFFSETS.pack(now_ms, max(highest_ms, offset_ms))  # first, so that nobody sees a time beyond it
        self._shown[:] = _OFFSETS.pack(offset_ms, max(highest_ms, offset_ms))


class Ledger:
    """What one process writes down. A line is written by one call, so a kill leaves it whole, or torn at the end of the file."""

    def __init__(self, ledgers: Path, name: str) -> None:
        self._file = os.open(ledgers / f"{name}.ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, kind: str, *lines: Sequence[object]) -> None:
        """Write a line for each id and its words: the kind, the time, the id, the words."""
        now = time.monotonic_ns()
        os.write(self._file, "".join(" ".join(map(str, (kind, now, *words))) + "\n" for words in lines).encode())


def opened(path: Path, ledgers: Path, *, shared: bool) -> Store:
    """Reach the server of a store, or share the store; waits for a server that is just starting."""
    until_s = time.monotonic() + _START_S
    while True:
        try:
            return rmqstore.open(path, share=True, clock=MovedClock(ledgers)) if shared else rmqstore.connect(path)
        except _REFUSALS:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.05)


class Producer:
    """Sends now, later and in batches, waits where sends are paused, and cancels some of what is for later."""

    def __init__(self, store: Store, clock: MovedClock, ledger: Ledger, chance: random.Random, name: str) -> None:
        self._store, self._clock, self._ledger, self._chance, self._name = store, clock, ledger, chance, name
        self._sent = 0
        self._timers: list[tuple[str, str]] = []

    def step(self) -> None:
        """Make one call."""
        time.sleep(self._chance.choice((0.0, 0.0, 0.0, 0.1)))  # the more it is within a call, the more a kill meets one
        try:
            if self._chance.random() < _PAUSED:
                self._pause()
            self._cancel() if self._timers and self._chance.random() < 0.3 else self._send()
        except FlowControlError as error:
            self._ledger.write("refused", ("-", type(error).__name__))
            with suppress(*_REFUSALS):
                self._store.pauses.end(Flow.SENDS)  # who has begun it may be dead
        except _REFUSALS as error:
            self._ledger.write("refused", ("-", type(error).__name__))

    def _send(self) -> None:
        chance = self._chance
        ids = [f"{self._name}:{self._sent + number}" for number in range(chance.choice((1, 1, 1, 1, 2, 20)))]
        self._sent += len(ids)
        topic, delay_ms = chance.choice(TOPICS), chance.choice((0, 0, chance.randint(1, 500), chance.randint(500, 6000)))
        # A time of its own must reach the worker as it is; a delay counts from when the owner got the call.
        due_ms = self._clock.now_ms() + delay_ms if delay_ms and chance.random() < 0.5 else None
        times: dict[str, Any] = {"delay_ms": delay_ms} if due_ms is None else {"deliver_at_ms": due_ms}
        if chance.random() < 0.5:
            times["timeout"] = timedelta(seconds=chance.choice((0.1, 2)))
        messages = [Message(topic, each.encode() * chance.randint(1, 20), message_id=each) for each in ids]
        self._ledger.write("sending", *((each, topic, due_ms or "-") for each in ids))
        receipts = [self._store.send(messages[0], **times)] if len(ids) == 1 else self._store.send_batch(messages, **times)
        self._ledger.write("sent", *((each.message_id,) for each in receipts))
        self._timers = [*self._timers, *((each.message_id, each.handle) for each in receipts if each.handle is not None)][-200:]

    def _pause(self) -> None:
        self._store.pauses.begin(Flow.SENDS)
        time.sleep(self._chance.choice((0.0, 0.1)))
        self._store.pauses.end(Flow.SENDS)

    def _cancel(self) -> None:
        timers = [self._timers.pop(self._chance.randrange(len(self._timers))) for _ in range(min(len(self._timers), 2))]
        self._ledger.write("cancelling", *((each, "?") for each, _ in timers))
        outcomes = self._store.cancel([handle for _, handle in timers])
        self._ledger.write("cancel", *((each, outcome.name) for (each, _), outcome in zip(timers, outcomes, strict=True)))


def cut_connections(ledger: Ledger, chance: random.Random) -> None:
    """Cut the connections of some calls: when one was just sent, so that a copy of it may come late, or when it was answered."""
    answer = Connection._answer

    def cut_answer(self: Connection, wanted: int) -> Any:
        drawn = chance.random() / _CUT
        found = answer(self, wanted) if drawn > 0.5 else None
        if drawn < 1:
            ledger.write("cut", ("-",))
            raise ConnectionResetError("the soak cut this connection")
        return found

    Connection._answer = cut_answer  # type: ignore[method-assign]


def watch(store: Store, clock: MovedClock, ledger: Ledger) -> None:
    """Let all pops and acks of a store, also those that its workers make, be written down."""
    pop, ack = store.pop, store.ack

    def write_acks(leased: Sequence[Any], outcomes: Sequence[Any]) -> None:
        ids = [getattr(each, "message", each).message_id for each in leased]  # what was extended holds its message
        ledger.write("acked", *((each, outcome.name) for each, outcome in zip(ids, outcomes, strict=True)))

    def watched_pop(*arguments: Any, acks: Sequence[Any] = (), **named: Any) -> Any:
        begun = time.monotonic_ns()
        popped = pop(*arguments, acks=acks, **named)
        write_acks(acks, popped.acks)
        ledger.write("popped", *((each.message_id, begun, each.deliver_at_ms or 0, clock.at_most_ms()) for each in popped))
        return popped

    def watched_ack(leased: Sequence[Any]) -> Any:
        outcomes = ack(leased)
        write_acks(leased, outcomes)
        return outcomes

    store.pop, store.ack = watched_pop, watched_ack  # type: ignore[method-assign, assignment] # of this object only


def handle(ledger: Ledger, chance: random.Random, message: PoppedMessage) -> None:
    """Be the handler of a worker: mostly quick, at times slower than a lease, at times failing."""
    drawn = chance.random()
    if drawn < 0.002:
        time.sleep(_INVISIBLE_S * 1.5)
    elif drawn < 0.02:
        raise rmqstore.Retry(after=timedelta(milliseconds=300))
    ledger.write("handled", (message.message_id,))


def consume(store: Store, ledger: Ledger, chance: random.Random, ended: threading.Event) -> None:
    """Be a worker of ``store.consume``; one whose connection is cut while it gives back what it has not begun says so, and is well."""
    handler, invisible = partial(handle, ledger, chance), timedelta(seconds=_INVISIBLE_S)
    with suppress(*_REFUSALS), store.consume(TOPICS, GROUP, handler, threads=2, batch=16, invisible=invisible) as worker:
        while not ended.is_set() and not worker.join(0.2):
            pass


def pop_and_ack(store: Store, ledger: Ledger, chance: random.Random) -> None:
    """Pop and ack once; some it gives back, some it forgets."""
    topic, most, invisible = chance.choice(TOPICS), chance.choice((1, 8, 64)), timedelta(seconds=_INVISIBLE_S)
    try:
        popped = store.pop(topic, GROUP, max_messages=most, invisible=invisible, wait=timedelta(seconds=1))
        ledger.write("handled", *((each.message_id,) for each in popped))
        drawn = chance.random()
        if drawn < 0.05:
            store.release(popped)
        elif drawn > 0.08:
            store.ack(popped)
    except _REFUSALS:
        time.sleep(0.1)


def act(role: str, name: str, path: Path, ledgers: Path, seed: str, ended: threading.Event) -> None:
    """Play a role until the event is set."""
    clock = MovedClock(ledgers)
    if role == "server":
        from rmqstore import cli  # no other role needs it
        from rmqstore.cli import stores

        stores.clock_factory = lambda: clock
        cli.main(["serve", str(path)])
    chance = random.Random(f"{seed}/{name}")
    with opened(path, ledgers, shared="shared" in name) as store:
        ledger = Ledger(ledgers, name)  # which says that this process is ready
        cut_connections(ledger, chance)
        watch(store, clock, ledger)
        producer = Producer(store, clock, ledger, chance, name)
        while not ended.is_set():
            if role == "producer":
                producer.step()
            elif role == "popper":
                pop_and_ack(store, ledger, chance)
            else:
                consume(store, ledger, chance, ended)


def main() -> None:
    """Act until stdin ends, which it also does when who started this process is gone."""
    role, name, path, ledgers, seed = sys.argv[1:]
    ended = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        ended.set()
        if role == "server":
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=listen, daemon=True).start()
    try:
        act(role, name, Path(path), Path(ledgers), seed, ended)
    except RmqstoreError as error:
        sys.exit(f"{name} ended by {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
