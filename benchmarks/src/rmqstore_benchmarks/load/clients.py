"""What the clients of a shard do in a round: a producer sends, consumers pop, ack or die, and a thread lets time pass and ticks.

A round has all three at the same time; the drain behind the last round sends nothing. They share an attempt: the open store, its simulated
clock, and a file of the ledger.
"""

from __future__ import annotations

import os
import queue
import random
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

import rmqstore
from rmqstore import AckOutcome, CancelOutcome, ChangeOutcome, MessageBatch
from rmqstore.contract import ChangeResult, Receipt, ReleaseOutcome
from rmqstore.errors import StoreUnavailableError
from rmqstore.store.receipts import LeasedMany, receipts_of
from rmqstore.store.sending import SendReceipts
from rmqstore_benchmarks.grid.load import Ids
from rmqstore_benchmarks.grid.named import START_MS
from rmqstore_benchmarks.load.ledger import Event, LedgerFile, last_ms
from rmqstore_benchmarks.load.owner import Owner, open_store
from rmqstore_benchmarks.load.plan import (
    GROUP,
    HELD_MS,
    HORIZON_MS,
    KEPT_TOPIC,
    LEASE_MS,
    LONGER_MS,
    TOPIC,
    Failure,
    Fate,
    Plan,
    ids_in,
    key_of,
    note_of,
    note_once,
    of_round,
)

_Answer = TypeVar("_Answer")
_DRAIN_CALLS: Final = 40
_STEP_MS: Final = 20_000


_LONGEST_WAIT_S: Final = 0.002


class InjectedFailureError(RuntimeError):
    """A failure that the load test asked for."""


class Injector:
    """Lets the failures of one attempt happen at calls that the seed chooses.

    Args:
        calls: about how many calls the attempt makes at least.

    Attributes:
        kills: what kills a process, by the failure that it is; without it the failure does not happen.
    """

    def __init__(self, directory: Path, due: tuple[Failure, ...], round_: int, shard: int, calls: int, seed: int) -> None:
        self._directory, self._round, self._shard = directory, round_, shard
        self._lock = threading.Lock()
        self._calls = 0
        rng = random.Random(f"{seed}/{round_}/{shard}")
        self._wait_s = rng.random() * _LONGEST_WAIT_S
        self._is_before = rng.random() < 0.5
        self.kills: dict[Failure, Callable[[], None]] = {Failure.WORKER: lambda: os.kill(os.getpid(), signal.SIGKILL)}
        self._at = {
            failure: rng.randint(2, max(calls, 3))
            for failure in (Failure.TASK, Failure.WORKER, Failure.OWNER)
            if failure in due and not note_of(directory, failure, round_, shard).exists()
        }

    @contextmanager
    def around(self, op: str) -> Iterator[None]:
        """Wrap one call of the store.

        Raises:
            InjectedFailureError: this is the call at which the task fails, before it is made or behind it.
        """
        with self._lock:
            self._calls += 1
            due = [failure for failure, at in self._at.items() if self._calls >= at]
            for failure in due:
                del self._at[failure]
        due = [failure for failure in due if note_once(self._directory, failure, self._round, self._shard)]
        for failure in due:
            if failure in self.kills:
                threading.Thread(target=self._kill, args=(self.kills[failure],), daemon=True).start()
        fails = Failure.TASK in due
        if fails and self._is_before:
            raise InjectedFailureError(f"shard {self._shard}, round {self._round}: the load test lets this task fail before {op}")
        yield
        if fails:
            raise InjectedFailureError(f"shard {self._shard}, round {self._round}: the load test lets this task fail behind {op}")

    def _kill(self, kill: Callable[[], None]) -> None:
        # A moment later, so that the call is under way or just done.
        threading.Event().wait(self._wait_s)
        kill()


class StoppedError(Exception):
    """Another thread of this attempt failed, so this one ends as well."""


@dataclass
class Attempt:
    """What producer, consumers and the thread that lets time pass have in common.

    Attributes:
        owner: the process that serves the store; None when it is this one.
    """

    plan: Plan
    number: int
    round: int
    store: rmqstore.Store
    clock: rmqstore.ManualClock
    ledger: LedgerFile
    owner: Owner | None
    is_stopped: bool = False

    def __post_init__(self) -> None:
        failures = of_round(self.plan.failures, self.round, self.plan.rounds)
        calls = 2 * len(self.plan.chunks_of_round(self.number, self.round)) or _DRAIN_CALLS
        self._injector = Injector(self.plan.injected_path(), failures, self.round, self.number, calls, self.plan.seed)
        if self.owner is not None:
            self._injector.kills[Failure.OWNER] = self.owner.kill
        self.consumers_die = Failure.CONSUMER in failures
        self.first_death = iter([True])  # of the first one that gets something, so that every round has such a death

    @property
    def now_ms(self) -> int:
        """The simulated time, which the store has reached."""
        return self.clock.now_ms()

    @property
    def latest_ms(self) -> int:
        """The simulated time that the store may have reached."""
        return self.now_ms if self.owner is None else self.owner.now_ms

    def owner_watch(self) -> Callable[[], bool]:
        """Return what tells whether the process that serves the store was killed since, or while, this was called."""
        owner, dead = self.owner, 0 if self.owner is None else self.owner.dead
        return lambda: owner is not None and owner.deaths > dead

    def move_to(self, now_ms: int) -> None:
        """Let simulated time be ``now_ms``, unless it is later already.

        It is written first: an attempt behind a process that died goes on from there, so that time is never set back.
        """
        if now_ms > self.now_ms:
            self.ledger.say(Event.TIME, now_ms)
            if self.owner is not None:
                self.owner.move_to(now_ms)
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

    def asked(
        self,
        op: str,
        intent: Event,
        ids: Ids,
        attempts: Ids | None,
        act: Callable[[], Sequence[_Answer]],
        event: Callable[[_Answer], Event],
    ) -> list[_Answer]:
        """Make a call that answers each of ``ids``: its intent is written before, and what ``event`` makes of each answer behind it.

        One whose owner was killed meanwhile stays in doubt where no answer came, which gives none, and where the answer is to its repeat:
        who acked first is not known then.
        """
        began, has_died = self.ledger.intend(intent, ids, self.now_ms, attempts), self.owner_watch()
        if (answered := self.call_once(op, act)) is None:
            return []
        answers = list(answered)
        told = [event(each) for each in answers]
        rows = [row for row, each in enumerate(told) if each is not Event.ACK_REPEATED or not has_died()]
        self.ledger.tell([told[row] for row in rows], ids[rows], began, self.latest_ms, None if attempts is None else attempts[rows])
        return answers

    def call_once(self, op: str, act: Callable[[], _Answer]) -> _Answer | None:
        """Make a call that a client does not repeat; None when its owner was killed meanwhile, and it may have been done."""
        has_died = self.owner_watch()
        try:
            return self.call(op, act)
        except StoreUnavailableError:
            if not has_died():
                raise
            return None


@contextmanager
def opened(plan: Plan, number: int, round_: int) -> Iterator[Attempt]:
    """Give the shard, its store opened; waits while another attempt, which may be dying, has it.

    Raises:
        StoreLockedError: it is still held after ``plan.patience_s``.
    """
    clock = rmqstore.ManualClock(START_MS)
    with ExitStack() as stack:
        owner = stack.enter_context(closing(Owner(plan, number))) if plan.is_served else None
        store, waited = open_store(plan, number, clock) if owner is None else (owner.store, owner.waited)
        stack.callback(store.close)
        # Time goes on from where the last attempt left it. The ledger is looked at under the store's lock, so nobody writes into it.
        now_ms = max(clock.now_ms(), last_ms(plan.ledger_path(number)))
        if owner is not None:
            owner.move_to(now_ms)
        clock.set(now_ms)
        ledger = stack.enter_context(closing(LedgerFile(plan.ledger_path(number), number)))
        ledger.say(Event.OPENED, now_ms)
        if waited:
            ledger.say(Event.WAITED, now_ms)
        yield Attempt(plan, number, round_, store, clock, ledger, owner)
        (store if owner is None else owner).close()
        ledger.say(Event.CLOSED, clock.now_ms())


# ---------------------------------------------------------------- rounds


def run_round(plan: Plan, number: int, round_: int) -> None:
    """Play a round of a shard; the round ``plan.rounds`` is the drain.

    Raises:
        InjectedFailureError: the load test lets this task fail.
        StoreLockedError: another attempt held the store for too long.
    """
    # Besides the consumers there are the producer, and who waits for the consumers.
    with opened(plan, number, round_) as shard, ThreadPoolExecutor(plan.consumers + 2) as pool:
        try:
            (_drain if round_ >= plan.rounds else _send)(shard, pool)
        except BaseException:
            shard.is_stopped = True
            raise


def _consume_all(shard: Attempt, pool: ThreadPoolExecutor) -> None:
    """Let all consumers consume, at the same time, until each finds nothing."""
    for _ in pool.map(partial(consume, shard), range(shard.plan.consumers)):
        pass


def _send(shard: Attempt, pool: ThreadPoolExecutor) -> None:
    """Send the chunks of the round while time passes and consumers consume; what is not due then is left to the next round."""
    sent: queue.SimpleQueue[bool] = queue.SimpleQueue()
    producing = pool.submit(produce, shard, shard.plan.chunks_of_round(shard.number, shard.round), lambda: sent.put(True))
    producing.add_done_callback(lambda _: sent.put(False))
    consuming = pool.submit(_consume_all, shard, pool)
    while sent.get():
        shard.call("tick", shard.store.tick)
        if consuming.done():
            consuming.result()
            consuming = pool.submit(_consume_all, shard, pool)
    producing.result()
    consuming.result()
    shard.call("tick", shard.store.tick)
    _consume_all(shard, pool)


def _drain(shard: Attempt, pool: ThreadPoolExecutor) -> None:
    """Let time pass until nothing is due within a day, or all that may take is over (the wheel also wakes to roll far timers)."""
    until_ms = shard.now_ms + shard.plan.drain_ms()
    while True:
        shard.call("tick", shard.store.tick)
        _consume_all(shard, pool)
        ahead_ms = shard.store.next_wake_ms()
        if ahead_ms is None or ahead_ms > HORIZON_MS or shard.now_ms > until_ms:
            return
        shard.move_to(shard.now_ms + max(ahead_ms, _STEP_MS))


# ---------------------------------------------------------------- the producer

_CANCEL_LATER: Final = 2
"""So many chunks lie between a send and its cancels, so that some come too late."""

_CANCELS: Final = {
    CancelOutcome.CANCELLED: Event.CANCELLED,
    CancelOutcome.ALREADY_DELIVERED: Event.CANCEL_LATE,
    CancelOutcome.UNKNOWN: Event.CANCEL_UNKNOWN,
}


def produce(shard: Attempt, chunks: Sequence[int], sent: Callable[[], None]) -> None:
    """Send ``chunks`` in order, time passing as planned, and call ``sent`` behind each.

    An attempt behind one that died sends all of them again, under the same marks, and cancels again.
    """
    waiting: deque[tuple[Ids, SendReceipts]] = deque()
    for number in chunks:
        ids = shard.plan.ids(shard.number, number)
        shard.move_to(int(shard.plan.sent_ms(np.array([number]))[0]))
        waiting.append((ids, _send_chunk(shard, ids, number)))
        if len(waiting) > _CANCEL_LATER:
            _cancel(shard, *waiting.popleft())
        sent()
    while waiting:
        _cancel(shard, *waiting.popleft())


def _send_chunk(shard: Attempt, ids: Ids, number: int) -> SendReceipts:
    batch, mark = shard.plan.batch(ids), shard.plan.mark(shard.number, number)
    began = shard.ledger.intend(Event.SENDING, ids, shard.now_ms)
    receipts = shard.call("send_batch", partial(shard.store.send_batch, batch, marks=(mark,)))
    for event in (Event.SENT, Event.REPEATED) if receipts.repeated else (Event.SENT,):
        shard.ledger.tell(event, ids, began, shard.latest_ms)
    return receipts


def _cancel(shard: Attempt, ids: Ids, receipts: SendReceipts) -> None:
    rows = np.flatnonzero(shard.plan.has(ids, Fate.CANCELLED_BY_HANDLE))
    if len(rows):
        handles = [handle for row in rows.tolist() if (handle := receipts[row].handle) is not None]
        shard.asked("cancel", Event.CANCELLING, ids[rows], None, lambda: shard.store.cancel(handles), _CANCELS.__getitem__)
    for row in np.flatnonzero(shard.plan.has(ids, Fate.CANCELLED_BY_KEY)).tolist():
        mine = ids[row : row + 1]
        topic = KEPT_TOPIC if shard.plan.has(mine, Fate.KEPT)[0] else TOPIC
        began = shard.ledger.intend(Event.CANCELLING, mine, shard.now_ms)
        found = shard.call_once("cancel_key", partial(shard.store.cancel_key, topic, key_of(int(mine[0]))))
        if found is None:
            continue
        # None is found when the timer was delivered, or cancelled by an attempt that died before it was told.
        events = [_CANCELS[outcome] for outcome in found] or [Event.CANCEL_MISSED]
        events += [Event.COPIES] if len(found) > 1 else []
        shard.ledger.tell(events, np.repeat(mine, len(events)), began, shard.latest_ms)


# ---------------------------------------------------------------- consumers

_MOST: Final = 512
_DEATH_SHARE: Final = 0.03
_RELEASE_SHARE: Final = 0.02
_CHANGE_SHARE: Final = 0.02

_ACKS: Final = {
    AckOutcome.ACKED: Event.ACKED,
    AckOutcome.ALREADY_ACKED: Event.ACK_REPEATED,
    AckOutcome.STALE: Event.ACK_STALE,
    AckOutcome.UNKNOWN: Event.ACK_UNKNOWN,
}


def consume(shard: Attempt, number: int) -> None:
    """Consume until nothing is left; a consumer that dies is followed by another one, which knows nothing of it."""
    rng = random.Random(f"{shard.plan.seed}/{shard.round}/{shard.number}/{number}/{shard.now_ms}")
    while not _Consumer(shard, rng).run():
        pass


class _Consumer:
    def __init__(self, shard: Attempt, rng: random.Random) -> None:
        self._shard, self._store, self._ledger, self._plan = shard, shard.store, shard.ledger, shard.plan
        self._rng = rng

    def run(self) -> bool:
        """Consume; returns False when the consumer died, True when nothing is left."""
        while True:
            began = self._ledger.moment(self._shard.now_ms)
            most = self._rng.choice((1, 32, _MOST, _MOST))
            pop = partial(self._store.pop_batch, TOPIC, GROUP, max_messages=most, invisible_ms=LEASE_MS)
            popped = self._shard.call("pop_batch", pop)
            if not len(popped):
                return True
            columns, now_ms = popped.columns, self._shard.latest_ms
            ids, attempts = ids_in(columns.column("message_id")), columns.column("attempt").to_numpy()
            is_damaged = self._plan.is_damaged(ids, columns.column("body"), columns.column("deliver_at_ms"))
            dies = self._shard.consumers_die and (next(self._shard.first_death, False) or self._rng.random() < _DEATH_SHARE)
            for event, rows in (
                (Event.DELIVERED, np.ones(len(ids), bool)),
                (Event.EARLY, now_ms < self._plan.due_ms(ids)),
                (Event.DAMAGED, is_damaged),
                (Event.ABANDONED, np.full(len(ids), dies)),
            ):
                self._ledger.tell(event, ids[rows], began, now_ms, attempts[rows])
            if dies:
                return False
            self._settle(popped, ids, attempts)

    def _settle(self, popped: MessageBatch, ids: Ids, attempts: Ids) -> None:
        """Say what became of the messages: some nobody acks, some are held, released or given more time, all others are acked."""
        receipts = receipts_of(popped).names
        drawn = np.random.default_rng(self._rng.getrandbits(32)).random(len(ids))
        held = self._plan.has(ids, Fate.HELD)
        free = ~self._plan.has(ids, Fate.POISON) & ~held
        released = free & (drawn < _RELEASE_SHARE)
        changed = free & ~released & (drawn < _RELEASE_SHARE + _CHANGE_SHARE)
        acked = free & ~released & ~changed
        if acked.all():
            self._ack(popped, ids, attempts)
            return
        hold = partial(self._change, invisible_ms=HELD_MS, changed=Event.HELD)
        for mask, settle in ((acked, self._ack), (released, self._release), (held, hold), (changed, self._take_longer)):
            if mask.any():
                settle([receipts[row] for row in np.flatnonzero(mask).tolist()], ids[mask], attempts[mask])

    def _ack(self, leased: LeasedMany, ids: Ids, attempts: Ids) -> None:
        self._shard.asked("ack", Event.ACKING, ids, attempts, lambda: self._store.ack(leased), _ACKS.__getitem__)

    def _release(self, receipts: Sequence[Receipt], ids: Ids, attempts: Ids) -> None:
        def event(outcome: ReleaseOutcome) -> Event:
            return Event.RELEASED if outcome is ReleaseOutcome.RELEASED else Event.RELEASE_REFUSED

        self._shard.asked("release", Event.RELEASING, ids, attempts, lambda: self._store.release(receipts), event)

    def _take_longer(self, old: Sequence[Receipt], ids: Ids, attempts: Ids) -> None:
        """Ask for more time; then ack by the receipts that this replaced, which must do nothing (P6), and by those that it gave."""
        new = self._change(old, ids, attempts, invisible_ms=LONGER_MS, changed=Event.CHANGED)
        if not new:
            return  # whether the old ones were replaced is not known
        began = self._ledger.moment(self._shard.now_ms)
        outcomes = self._shard.call("ack of an old receipt", lambda: self._store.ack(old))
        honoured = np.array([outcome is AckOutcome.ACKED for outcome in outcomes])
        self._ledger.tell(Event.OLD_HONOURED, ids[honoured], began, self._shard.latest_ms, attempts[honoured])
        given = {row: receipt for row, receipt in enumerate(new) if receipt is not None}
        if rows := list(given):
            self._ack(list(given.values()), ids[rows], attempts[rows])

    def _change(self, receipts: Sequence[Receipt], ids: Ids, attempts: Ids, *, invisible_ms: int, changed: Event) -> list[Receipt | None]:
        def event(result: ChangeResult) -> Event:
            return changed if result.outcome is ChangeOutcome.CHANGED else Event.CHANGE_REFUSED

        def act() -> list[ChangeResult]:
            return self._store.change_invisible(receipts, invisible_ms=invisible_ms)

        return [each.receipt for each in self._shard.asked("change_invisible", Event.CHANGING, ids, attempts, act, event)]
