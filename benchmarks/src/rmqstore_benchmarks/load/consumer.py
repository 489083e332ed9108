"""A consumer: pops, checks what it got, and acks; now and then it releases, changes a lease, or dies with all that it holds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from rmqstore import AckOutcome, ChangeOutcome, MessageBatch
from rmqstore.contract import ReleaseOutcome
from rmqstore.leased import LeasedMany, receipts_of
from rmqstore_benchmarks.load.ledger import Event
from rmqstore_benchmarks.load.plan import GROUP, HELD_MS, LEASE_MS, LONGER_MS, TOPIC, Ids, Mask, ids_in
from rmqstore_benchmarks.load.shard import Shard

_MOST: Final = 512
_DEATH_SHARE: Final = 0.03
_RELEASE_SHARE: Final = 0.02
_CHANGE_SHARE: Final = 0.02

_Answers = TypeVar("_Answers", bound=Sequence[Any])
_ACKS: Final = {
    AckOutcome.ACKED: Event.ACKED,
    AckOutcome.ALREADY_ACKED: Event.ACK_REPEATED,
    AckOutcome.STALE: Event.ACK_STALE,
    AckOutcome.UNKNOWN: Event.ACK_UNKNOWN,
}


def consume(shard: Shard, number: int) -> None:
    """Consume until the shard is stopped; a consumer that dies is followed by another one, which knows nothing of it."""
    rng = random.Random(f"{shard.plan.seed}/{shard.round}/{shard.number}/{number}/{shard.now_ms}")
    while not _Consumer(shard, number, rng).run():
        pass


class _Consumer:
    def __init__(self, shard: Shard, number: int, rng: random.Random) -> None:
        self._shard = shard
        self._ledger = shard.ledger
        self._plan = shard.plan
        self._number = number
        self._rng = rng
        # The first one of the first thread dies early, so that every round has such a death.
        self._dies_now = shard.consumers_die() and number == 0 and shard.take_first_death()

    def run(self) -> bool:
        """Consume; returns False when the consumer died, True when all is done."""
        while True:
            generation = self._shard.generation()
            began = self._ledger.moment(self._shard.now_ms)
            most = self._rng.choice((1, 32, _MOST, _MOST))
            popped = self._shard.call(
                "pop_batch", partial(self._shard.store.pop_batch, TOPIC, GROUP, max_messages=most, invisible_ms=LEASE_MS), len
            )
            if not len(popped):
                if not self._shard.rest(self._number, generation):
                    return True
                continue
            columns = popped.columns
            ids, attempts = ids_in(columns.column("message_id")), columns.column("attempt").to_numpy()
            now_ms = self._shard.now_ms
            self._ledger.tell(Event.DELIVERED, ids, began, now_ms, attempts)
            for event, rows in self._wrong(columns, ids, now_ms):
                self._ledger.tell(event, ids[rows], began, now_ms, attempts[rows])
            if self._dies_now or (self._shard.consumers_die() and self._rng.random() < _DEATH_SHARE):
                self._ledger.tell(Event.ABANDONED, ids, began, now_ms, attempts)
                return False
            self._settle(popped, ids, attempts)

    def _wrong(self, columns: pa.RecordBatch, ids: Ids, now_ms: int) -> list[tuple[Event, Mask]]:
        """Return which messages came early, and which are not what was sent."""
        is_damaged = self._plan.is_damaged(ids, columns.column("body"), columns.column("deliver_at_ms"))
        return [(Event.EARLY, now_ms < self._plan.due_ms(ids)), (Event.DAMAGED, is_damaged)]

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
        def events(outcomes: Sequence[AckOutcome]) -> list[Event]:
            return [_ACKS[each] for each in outcomes]

        self._call("ack", Event.ACKING, ids, attempts, lambda: self._shard.store.ack(leased), events)

    def _release(self, receipts: Sequence[Any], ids: Ids, attempts: Ids) -> None:
        def events(outcomes: Sequence[ReleaseOutcome]) -> list[Event]:
            return [Event.RELEASED if each is ReleaseOutcome.RELEASED else Event.RELEASE_REFUSED for each in outcomes]

        self._call("release", Event.RELEASING, ids, attempts, partial(self._shard.store.release, receipts), events)

    def _change(self, receipts: Sequence[Any], ids: Ids, attempts: Ids, invisible_ms: int, changed: Event) -> list[Any]:
        def events(results: Sequence[Any]) -> list[Event]:
            return [changed if each.outcome is ChangeOutcome.CHANGED else Event.CHANGE_REFUSED for each in results]

        act = partial(self._shard.store.change_invisible, receipts, invisible_ms=invisible_ms)
        return [each.receipt for each in self._call("change_invisible", Event.CHANGING, ids, attempts, act, events)]

    def _try_old(self, receipts: Sequence[Any], ids: Ids, attempts: Ids) -> None:
        """Ack by receipts that a change has replaced, which must do nothing (P6)."""
        began = self._ledger.moment(self._shard.now_ms)
        outcomes = self._shard.call("ack of an old receipt", lambda: self._shard.store.ack(receipts), len)
        honoured = np.array([outcome is AckOutcome.ACKED for outcome in outcomes])
        self._ledger.tell(Event.OLD_HONOURED, ids[honoured], began, self._shard.now_ms, attempts[honoured])

    def _call(self, op: str, intent: Event, ids: Ids, attempts: Ids, act: Callable[[], Any], events: Callable[[Any], list[Event]]) -> Any:
        began = self._ledger.intend(intent, ids, self._shard.now_ms, attempts)
        answers = self._shard.call(op, act, len)
        self._ledger.tell(np.array(events(answers)), ids, began, self._shard.now_ms, attempts)
        return answers
