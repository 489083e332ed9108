"""What the clients of a shard do in a round: a producer sends, consumers pop, ack or die, and a thread lets time pass and ticks.

A round has all three at the same time; the drain behind the last round sends nothing.
"""

from __future__ import annotations

import queue
import random
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import numpy as np

from rmqstore import AckOutcome, CancelOutcome, ChangeOutcome, MessageBatch
from rmqstore.contract import ReleaseOutcome
from rmqstore.store.receipts import LeasedMany, receipts_of
from rmqstore.store.sending import SendReceipts
from rmqstore_benchmarks.load.attempt import Attempt, opened
from rmqstore_benchmarks.load.ledger import Event
from rmqstore_benchmarks.load.plan import (
    GROUP,
    HELD_MS,
    HORIZON_MS,
    KEPT_TOPIC,
    LEASE_MS,
    LONGER_MS,
    TOPIC,
    Ids,
    Mask,
    Plan,
    ids_in,
    key_of,
)

# ---------------------------------------------------------------- rounds

_STEP_MS: Final = 20_000


def run_round(plan: Plan, number: int, round_: int) -> None:
    """Play a round of a shard; the round ``plan.rounds`` is the drain.

    Raises:
        InjectedFailureError: the load test lets this task fail.
        StoreLockedError: another attempt held the store for too long.
    """
    with opened(plan, number, round_) as shard, ThreadPoolExecutor(plan.consumers + 1) as pool:
        try:
            (_drain if round_ >= plan.rounds else _send)(shard, _Consumers(shard, pool), pool)
        except BaseException:
            shard.is_stopped = True
            raise


class _Consumers:
    """The consuming threads of a shard: each ends when it finds nothing, and is started again when something may have come.

    The first error of one is raised by the next call here.
    """

    def __init__(self, shard: Attempt, pool: ThreadPoolExecutor) -> None:
        self._shard = shard
        self._pool = pool
        self._working: dict[int, Future[None]] = {}

    def wake(self) -> None:
        """Start those that have ended."""
        for number in range(self._shard.plan.consumers):
            if number not in self._working or self._working[number].done():
                self._ended(number)
                self._working[number] = self._pool.submit(consume, self._shard, number)

    def wait_until_idle(self) -> None:
        """Return when each has found nothing since this call began: those that work may have looked before it."""
        for number in list(self._working):
            self._ended(number)
        self.wake()
        for number in list(self._working):
            self._ended(number)

    def _ended(self, number: int) -> None:
        if number in self._working:
            self._working.pop(number).result()


def _send(shard: Attempt, consumers: _Consumers, pool: ThreadPoolExecutor) -> None:
    """Send the chunks of the round while time passes and consumers consume; what is not due then is left to the next round."""
    sent: queue.SimpleQueue[bool] = queue.SimpleQueue()
    producing = pool.submit(produce, shard, shard.plan.chunks_of_round(shard.number, shard.round), lambda: sent.put(True))
    producing.add_done_callback(lambda _: sent.put(False))
    while sent.get():
        _tick(shard)
        consumers.wake()
    producing.result()
    _tick(shard)
    consumers.wait_until_idle()


def _drain(shard: Attempt, consumers: _Consumers, pool: ThreadPoolExecutor) -> None:
    """Let time pass until nothing is due within a day, or all that may take is over (the wheel also wakes to roll far timers)."""
    until_ms = shard.now_ms + shard.plan.drain_ms()
    while True:
        _tick(shard)
        consumers.wait_until_idle()
        ahead_ms = shard.store.next_wake_ms()
        if ahead_ms is None or ahead_ms > HORIZON_MS or shard.now_ms > until_ms:
            return
        shard.move_to(shard.now_ms + max(ahead_ms, _STEP_MS))


def _tick(shard: Attempt) -> None:
    shard.call("tick", shard.store.tick)


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
    shard.ledger.tell(Event.SENT, ids, began, shard.now_ms)
    if receipts.repeated:
        shard.ledger.tell(Event.REPEATED, ids, began, shard.now_ms)
    return receipts


def _cancel(shard: Attempt, ids: Ids, receipts: SendReceipts) -> None:
    rows = np.flatnonzero(shard.plan.cancelled_by_handle(ids))
    if len(rows):
        handles = [handle for row in rows.tolist() if (handle := receipts[row].handle) is not None]
        began = shard.ledger.intend(Event.CANCELLING, ids[rows], shard.now_ms)
        outcomes = shard.call("cancel", lambda: shard.store.cancel(handles))
        shard.ledger.tell([_CANCELS[outcome] for outcome in outcomes], ids[rows], began, shard.now_ms)
    for row in np.flatnonzero(shard.plan.cancelled_by_key(ids)).tolist():
        mine = ids[row : row + 1]
        topic = KEPT_TOPIC if shard.plan.is_kept(mine)[0] else TOPIC
        began = shard.ledger.intend(Event.CANCELLING, mine, shard.now_ms)
        found = shard.call("cancel_key", partial(shard.store.cancel_key, topic, key_of(int(mine[0]))))
        # None is found when the timer was delivered, or cancelled by an attempt that died before it was told.
        events = [_CANCELS[outcome] for outcome in found] or [Event.CANCEL_MISSED]
        shard.ledger.tell(events, np.repeat(mine, len(events)), began, shard.now_ms)
        if len(found) > 1:
            shard.ledger.tell(Event.COPIES, mine, began, shard.now_ms)


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
    while not _Consumer(shard, number, rng).run():
        pass


class _Consumer:
    def __init__(self, shard: Attempt, number: int, rng: random.Random) -> None:
        self._shard = shard
        self._ledger = shard.ledger
        self._plan = shard.plan
        self._rng = rng
        # The first one of the first thread dies early, so that every round has such a death.
        self._dies_now = shard.consumers_die and number == 0 and next(shard.first_death, False)

    def run(self) -> bool:
        """Consume; returns False when the consumer died, True when nothing is left."""
        while True:
            began = self._ledger.moment(self._shard.now_ms)
            most = self._rng.choice((1, 32, _MOST, _MOST))
            pop = partial(self._shard.store.pop_batch, TOPIC, GROUP, max_messages=most, invisible_ms=LEASE_MS)
            popped = self._shard.call("pop_batch", pop)
            if not len(popped):
                return True
            columns = popped.columns
            ids, attempts = ids_in(columns.column("message_id")), columns.column("attempt").to_numpy()
            now_ms = self._shard.now_ms
            self._ledger.tell(Event.DELIVERED, ids, began, now_ms, attempts)
            is_damaged = self._plan.is_damaged(ids, columns.column("body"), columns.column("deliver_at_ms"))
            for event, rows in ((Event.EARLY, now_ms < self._plan.due_ms(ids)), (Event.DAMAGED, is_damaged)):
                self._ledger.tell(event, ids[rows], began, now_ms, attempts[rows])
            if self._dies_now or (self._shard.consumers_die and self._rng.random() < _DEATH_SHARE):
                self._ledger.tell(Event.ABANDONED, ids, began, now_ms, attempts)
                return False
            self._settle(popped, ids, attempts)

    def _settle(self, popped: MessageBatch, ids: Ids, attempts: Ids) -> None:
        """Say what became of the messages: some nobody acks, some are held, released or given more time, all others are acked."""
        receipts = receipts_of(popped).receipts
        drawn = np.random.default_rng(self._rng.getrandbits(32)).random(len(ids))
        poison, held = self._plan.is_poison(ids), self._plan.is_held(ids)
        free = ~poison & ~held
        released = free & (drawn < _RELEASE_SHARE)
        changed = free & ~released & (drawn < _RELEASE_SHARE + _CHANGE_SHARE)
        acked = free & ~released & ~changed

        def part(mask: Mask) -> tuple[Sequence[Any], Ids, Ids]:
            return [receipts[row] for row in np.flatnonzero(mask).tolist()], ids[mask], attempts[mask]

        if acked.all():
            self._ack(popped, ids, attempts)
        elif acked.any():
            self._ack(*part(acked))
        if released.any():
            self._release(*part(released))
        if held.any():
            self._change(*part(held), HELD_MS, Event.HELD)
        if changed.any():
            old, its_ids, its_attempts = part(changed)
            new = self._change(old, its_ids, its_attempts, LONGER_MS, Event.CHANGED)
            self._try_old(old, its_ids, its_attempts)
            rows = [row for row, receipt in enumerate(new) if receipt is not None]
            if rows:
                self._ack([new[row] for row in rows], its_ids[rows], its_attempts[rows])

    def _ack(self, leased: LeasedMany, ids: Ids, attempts: Ids) -> None:
        self._call("ack", Event.ACKING, ids, attempts, partial(self._shard.store.ack, leased), _ACKS.__getitem__)

    def _release(self, receipts: Sequence[Any], ids: Ids, attempts: Ids) -> None:
        def event(outcome: ReleaseOutcome) -> Event:
            return Event.RELEASED if outcome is ReleaseOutcome.RELEASED else Event.RELEASE_REFUSED

        self._call("release", Event.RELEASING, ids, attempts, partial(self._shard.store.release, receipts), event)

    def _change(self, receipts: Sequence[Any], ids: Ids, attempts: Ids, invisible_ms: int, changed: Event) -> list[Any]:
        def event(result: Any) -> Event:
            return changed if result.outcome is ChangeOutcome.CHANGED else Event.CHANGE_REFUSED

        act = partial(self._shard.store.change_invisible, receipts, invisible_ms=invisible_ms)
        return [each.receipt for each in self._call("change_invisible", Event.CHANGING, ids, attempts, act, event)]

    def _try_old(self, receipts: Sequence[Any], ids: Ids, attempts: Ids) -> None:
        """Ack by receipts that a change has replaced, which must do nothing (P6)."""
        began = self._ledger.moment(self._shard.now_ms)
        outcomes = self._shard.call("ack of an old receipt", lambda: self._shard.store.ack(receipts))
        honoured = np.array([outcome is AckOutcome.ACKED for outcome in outcomes])
        self._ledger.tell(Event.OLD_HONOURED, ids[honoured], began, self._shard.now_ms, attempts[honoured])

    def _call(self, op: str, intent: Event, ids: Ids, attempts: Ids, act: Callable[[], Any], event: Callable[[Any], Event]) -> Any:
        began = self._ledger.intend(intent, ids, self._shard.now_ms, attempts)
        answers = self._shard.call(op, act)
        self._ledger.tell([event(each) for each in answers], ids, began, self._shard.now_ms, attempts)
        return answers
