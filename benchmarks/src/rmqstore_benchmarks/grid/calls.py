"""The calls of one shard: each is timed, noted in the phase, and entered in the ledger with what the store answered."""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import numpy as np

import rmqstore
from rmqstore.contract import TimerHandle
from rmqstore.message import MAX_POP
from rmqstore.store.sending import SendReceipt
from rmqstore.tables import State
from rmqstore_benchmarks.grid.account import Account
from rmqstore_benchmarks.grid.load import Calendar, Ids, Load, Made, Mask, ends_of, ids_in, ticks_of
from rmqstore_benchmarks.grid.named import BATCH, INVISIBLE_MS, POP_MESSAGES, PRECISION_MS, TOPIC
from rmqstore_benchmarks.grid.recording import Phase, every
from rmqstore_benchmarks.grid.stores import Hollow, HollowReceipt, page_messages

GROUP: Final = "workers"
_FLUSH_S: Final = 0.5
_CALENDAR_DAYS: Final = 512


class Form(enum.Enum):
    """How timers are given to a store."""

    COLUMNS = enum.auto()
    LIST = enum.auto()
    ONE = enum.auto()


class Calls:
    """The store of a shard with its clock, its load and its account.

    Attributes:
        ready: messages that wait in the topic or its retry topic.
        handed: messages that were handed over.
        hand_over_ms, hand_over_ns: simulated time and real end of every tick that moved something.
    """

    def __init__(self, store: Any, clock: rmqstore.ManualClock, load: Load, seed: int) -> None:
        self.store = store
        self.clock = clock
        self.load = load
        self.account = Account()
        self.calendar = Calendar(int(load.mean_wait_ms) // _CALENDAR_DAYS)
        self.ready = 0
        self.handed = 0
        self.hand_over_ms: list[int] = []
        self.hand_over_ns: list[int] = []
        self._handed_by: list[int] = []
        self._chance = np.random.default_rng((seed, 7))
        self._name = (0, 0)  # store tag and epoch, the same for all handles of one open

    @property
    def pending(self) -> int:
        """How many timers are neither cancelled nor handed over."""
        return self.account.made - self.account.cancelled - self.handed

    # ------------------------------------------------------------ one call each

    def send(self, phase: Phase, made: Made, intended_ns: int | None = None, form: Form = Form.COLUMNS) -> None:
        """Store a batch; one timer in the form ONE."""
        given: Any = made.columns
        if isinstance(self.store, Hollow):
            given = self.store.prepared(made.columns, self.clock.now_ms())
        elif form is not Form.COLUMNS:
            given = messages_of(made)
        is_one = form is Form.ONE and not isinstance(self.store, Hollow)
        begin_ns = time.perf_counter_ns()
        receipts = [self.store.send(given[0])] if is_one else self.store.send_batch(given)
        phase.call("schedule", begin_ns, time.perf_counter_ns(), len(made.ids), intended_ns)
        self.sent(made, receipts)

    def sent(self, made: Made, receipts: Sequence[SendReceipt | HollowReceipt]) -> None:
        """Enter timers that were stored by one call."""
        first = receipts[0].timer
        if first is None or len(receipts) != len(made.ids):
            raise RuntimeError(f"a batch of {len(made.ids)} timers was answered with {len(receipts)} receipts, the first {receipts[0]}")
        self._name = (first.store_tag, first.epoch)
        self.account.make(made.ids, ticks_of(made.due_ms), first.seq)
        self.calendar.add(made.ids, made.cancel_ms)

    def cancel(self, phase: Phase, ids: Ids, intended_ns: int | None = None) -> None:
        """Cancel those of the timers that are not due yet."""
        ids = self.account.waiting(ids, self.clock.now_ms())
        if not len(ids):
            return
        handles = [TimerHandle(*self._name, seq, tick) for seq, tick in zip(*self.account.places(ids), strict=True)]
        begin_ns = time.perf_counter_ns()
        outcomes = self.store.cancel(handles)
        end_ns = time.perf_counter_ns()
        cancelled = ids[are(outcomes, rmqstore.CancelOutcome.CANCELLED)]
        self.account.refuse("unknown to the store", ids[are(outcomes, rmqstore.CancelOutcome.UNKNOWN)])
        self.account.cancel(cancelled)
        phase.call("cancel", begin_ns, end_ns, len(cancelled), intended_ns)

    def tick(self, phase: Phase, now_ms: int, intended_ns: int | None = None, *, counted: bool = True) -> int:
        """Let the store hand over what is due at ``now_ms``; returns how many messages moved. A tick that moves nothing is not noted."""
        self.clock.set(now_ms)
        begin_ns = time.perf_counter_ns()
        report = self.store.tick()
        end_ns = time.perf_counter_ns()
        if report.handed_over:
            phase.call("hand_over", begin_ns, end_ns, report.handed_over if counted else 0, intended_ns)
            self.hand_over_ms.append(now_ms)
            self.hand_over_ns.append(end_ns)
            self._handed_by.append(self.handed + report.handed_over)
        self.handed += report.handed_over
        self.ready += report.handed_over + report.retried
        return int(report.handed_over)

    def pop(self, phase: Phase, intended_ns: int | None = None, most: int = POP_MESSAGES) -> tuple[int, Ids]:
        """Pop once and ack, unless the consumer dies; returns how many came, and the ticks of those that came for the first time."""
        lives = self.load.workload.acked == 1 or self._chance.random() < self.load.workload.acked
        return self._pop_ack(phase, self.store.pop, most, lives, intended_ns)

    def pop_many(self, phase: Phase) -> int:
        """Pop a large batch as columns and ack all of it; returns how many came."""
        return self._pop_ack(phase, self.store.pop_batch, page_messages(self.load.body_bytes, MAX_POP), True)[0]

    def _pop_ack(self, phase: Phase, pop: Callable[..., Any], most: int, lives: bool, intended_ns: int | None = None) -> tuple[int, Ids]:
        begin_ns = time.perf_counter_ns()
        popped = pop(TOPIC, GROUP, max_messages=most, invisible_ms=INVISIBLE_MS)
        popped_ns = time.perf_counter_ns()
        if not len(popped):
            return 0, np.zeros(0, np.int64)
        outcomes = self.store.ack(popped) if lives else None
        return len(popped), self.taken(phase, begin_ns, popped_ns, time.perf_counter_ns(), popped, outcomes, intended_ns)

    def taken(
        self,
        phase: Phase,
        begin_ns: int,
        popped_ns: int,
        acked_ns: int,
        popped: rmqstore.MessageBatch | Sequence[rmqstore.PoppedMessage],
        outcomes: list[rmqstore.AckOutcome] | None,
        intended_ns: int | None = None,
    ) -> Ids:
        """Enter a pop and the ack of all that it gave, if there was one; returns the ticks of messages that came for the first time."""
        phase.call("pop", begin_ns, popped_ns, len(popped), intended_ns)
        self.ready -= len(popped)
        if isinstance(popped, rmqstore.MessageBatch):
            bodies, attempts = popped.columns.column("body"), popped.columns.column("attempt").to_numpy().astype(np.int64)
            ids, (lengths, tails) = ids_in(bodies), ends_of(bodies)
        else:  # by Arrow it would take twice as long
            word = partial(int.from_bytes, byteorder="little", signed=True)
            rows = [(word(m.body[:8]), m.attempt, len(m.body), word(m.body[-8:])) for m in popped]
            ids, attempts, lengths, tails = np.asarray(rows, np.int64).T
        ticks = self.note_pops(ids, attempts, lengths, tails, np.full(len(popped), self.clock.now_ms()))
        if outcomes is not None:
            phase.call("ack", popped_ns, acked_ns, len(popped))
            self.note_acks(ids, outcomes)
        return ticks

    def note_pops(self, ids: Ids, attempts: Ids, lengths: Ids, tails: Ids, now_ms: Ids) -> Ids:
        """Enter deliveries in the ledger, bodies checked by their ends; returns the ticks of those that came for the first time."""
        self.account.refuse("damaged", ids[self.load.frayed(ids, lengths, tails)])
        return self.account.pop(ids, attempts, now_ms)

    def note_acks(self, ids: Ids, outcomes: list[rmqstore.AckOutcome]) -> None:
        """Enter what the store said of acks, all of which were within their lease."""
        are_acked = are(outcomes, rmqstore.AckOutcome.ACKED)
        self.account.refuse("acked within their lease and refused", ids[~are_acked])
        self.account.ack(ids[are_acked])

    # ------------------------------------------------------------ several

    def fill(self, phase: Phase, backlog: int, origin_ms: int, give_up_s: float) -> int:
        """Store timers until so many are pending; returns how many that took.

        Raises:
            TimeoutError: that takes longer than ``give_up_s``.
        """
        before, until_s = self.account.made, time.perf_counter() + give_up_s
        while (missing := backlog - self.pending) > 0:
            self.send(phase, self.load.found(origin_ms, min(missing, self.load.batch_rows)))
            if time.perf_counter() > until_s:
                raise TimeoutError(f"only {self.pending:,} of {backlog:,} timers were stored in {give_up_s:.0f} s")
        return self.account.made - before

    def make_ready(self, phase: Phase, count: int) -> None:
        """Let the topic hold so many ready messages, and no others."""
        self.drain_ready(phase)
        due_ms = int(ticks_of(np.asarray(self.clock.now_ms()))) + PRECISION_MS
        while count > 0:
            made = self.load.due_at(due_ms, min(count, self.load.batch_rows))
            self.send(phase, made)
            count -= len(made.ids)
        self.tick(phase, due_ms)

    def cancel_all(self, phase: Phase, ids: Ids, seconds: float = math.inf) -> None:
        """Cancel these in batches, for so long at most."""
        until_s = time.perf_counter() + seconds
        for first in range(0, len(ids), BATCH):
            if time.perf_counter() < until_s:
                self.cancel(phase, ids[first : first + BATCH])

    def drain_ready(self, phase: Phase) -> None:
        """Pop and ack all that is ready."""
        while self.pop_many(phase):
            pass

    def settle(self, phase: Phase) -> None:
        """Hand over what is due, let the leases of dead consumers run out, ack all, and compare what is held with the account."""
        self.tick(phase, self.clock.now_ms())
        self.drain_ready(phase)
        while (lag := self.store.lag(TOPIC, GROUP)).in_flight or lag.retry or lag.ready:
            self.tick(phase, self.clock.now_ms() + INVISIBLE_MS + PRECISION_MS)
            self.drain_ready(phase)
        self.ready = 0
        self._compare_ticks()
        self.account.settle(self.held(), self.clock.now_ms())

    def _compare_ticks(self) -> None:
        """Compare how much each tick had handed over with what was due by then (T2): what is cancelled is so before it is due."""
        due_by = self.account.due_by(np.asarray(self.hand_over_ms, np.int64))
        wrong = np.flatnonzero(due_by != np.asarray(self._handed_by, np.int64))
        if len(wrong):
            row = int(wrong[0])
            self.account.fail(
                f"{len(wrong)} ticks did not hand over what was due: behind the first, at {self.hand_over_ms[row]}, "
                f"{self._handed_by[row]:,} messages were handed over and {due_by[row]:,} were due"
            )

    def held(self) -> Ids:
        """Return the numbers of all pending timers, read from the store; their bodies are compared with what was sent."""
        found = [np.zeros(0, np.int64)]
        for _, page in State(self.store.engine.timers, self.store.engine.pops).pages("timers"):
            bodies = page.column("body")
            ids = ids_in(bodies)
            self.account.refuse("damaged", ids[self.load.damaged(ids, bodies)])
            found.append(ids)
        return np.concatenate(found)


def messages_of(made: Made) -> list[rmqstore.Message]:
    """Return a batch as a program without Arrow has it."""
    return [rmqstore.Message(**{**row, "keys": tuple(row.get("keys", ()))}) for row in made.columns.to_pylist()]


def are(outcomes: Sequence[object], outcome: object) -> Mask:
    """Say which outcomes are this one."""
    return np.fromiter((each is outcome for each in outcomes), bool, len(outcomes))


@contextmanager
def flushing(store: Any, flush: str) -> Iterator[None]:
    """Under ``flush = async``, flush as a store's own thread does; every half a second."""
    if flush != "async":
        yield
        return
    with every(_FLUSH_S, store.flush, "bench-flushing"):
        yield
