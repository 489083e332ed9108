"""The shop of the demo: a day of orders that close after 30 minutes unless they are paid, and how that day is played and checked."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
import numpy as np

from rmqstore.clock import ManualClock
from rmqstore.contract import AckOutcome, CancelOutcome
from rmqstore.message import Message, PoppedMessage
from rmqstore.store import Store
from rmqstore.store.sending import SendReceipt

TOPIC: Final = "close-order"
GROUP: Final = "closers"
MINUTE_MS: Final = 60_000
DAY_MS: Final = 24 * 60 * MINUTE_MS
START_MS: Final = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp()) * 1000
CLOSE_AFTER_MS: Final = 30 * MINUTE_MS
LAST_PAID_MS: Final = 28 * MINUTE_MS
PAID_SHARE: Final = 0.85
BY_KEY_EVERY: Final = 100
"""One payment in so many knows only the order's number, not the handle, so it cancels by key."""

HANG_MS: Final = START_MS + 20 * 60 * MINUTE_MS
DEATH_MS: Final = HANG_MS + 5 * MINUTE_MS
"""In the evening peak the third consumer hangs: it pops and acks nothing any more, until it dies."""

FLUSH_EVERY_MS: Final = 5 * MINUTE_MS
INVISIBLE_MS: Final = 2 * MINUTE_MS
POP: Final = 32
HUNG_POP: Final = 256
_SETTLE_MINUTES: Final = 10
_SHOWN_IDS: Final = 3


class Order(msgspec.Struct, frozen=True):
    """One order; ``paid_ms`` is None when it is not paid."""

    number: str
    created_ms: int
    paid_ms: int | None
    body: bytes

    @property
    def closes_ms(self) -> int:
        """When it is closed unless it was paid."""
        return self.created_ms + CLOSE_AFTER_MS


def make_orders(count: int, seed: int) -> list[Order]:
    """Return a day of ``count`` orders by time of arrival: quiet nights, a peak at noon, a higher one in the evening."""
    rng = np.random.default_rng(seed)
    hour = (np.arange(1440) + 0.5) / 60
    rate = 0.15 + 1.1 * np.exp(-(((hour - 12.5) / 1.8) ** 2)) + 1.6 * np.exp(-(((hour - 20.0) / 2.2) ** 2)) + 0.4 * (hour > 8)
    minutes = rng.choice(1440, count, p=rate / rate.sum())
    created = np.sort(minutes * MINUTE_MS + rng.integers(0, MINUTE_MS, count)) + START_MS
    waited = np.minimum(rng.lognormal(np.log(4 * MINUTE_MS), 0.9, count), LAST_PAID_MS).astype(np.int64)
    is_paid = rng.random(count) < PAID_SHARE
    customers = rng.zipf(1.3, count) % 40_000
    cents = (100 * rng.lognormal(3.4, 0.8, count)).astype(np.int64) + 99
    orders = []
    for row, (at, wait, paid, customer, amount) in enumerate(
        zip(created.tolist(), waited.tolist(), is_paid.tolist(), customers.tolist(), cents.tolist(), strict=True)
    ):
        number = f"A{row:07d}"
        body = {"order": number, "customer": f"C{customer:05d}", "amount": f"{amount / 100:.2f}", "currency": "EUR", "created_ms": at}
        orders.append(Order(number, at, at + wait if paid else None, json.dumps(body).encode()))
    return orders


class Tally(msgspec.Struct):
    """What happened in one day, in messages; ``lost_leases`` were held by the consumer that hung and died."""

    orders: int = 0
    cancelled: int = 0
    by_key: int = 0
    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    lost_leases: int = 0
    seconds: float = 0.0

    @property
    def operations(self) -> int:
        """Messages sent, cancelled, popped and acked."""
        return self.orders + self.cancelled + self.delivered + self.redelivered + self.acked


class OrderDay:
    """Plays the day against one store, minute by minute, and keeps what it saw by order number."""

    def __init__(self, store: Store, clock: ManualClock, orders: Sequence[Order]) -> None:
        self._store = store
        self._clock = clock
        self._orders = orders
        self._receipts: dict[str, SendReceipt] = {}
        self._payments = sorted((order.paid_ms, order.number) for order in orders if order.paid_ms is not None)
        self._paid = 0
        self._deliveries: Counter[str] = Counter()
        self._acks: Counter[str] = Counter()
        self._cancelled: set[str] = set()
        self._problems: list[str] = []
        self.tally = Tally()

    def play(self, progress: Callable[[int], None]) -> Tally:
        """Play it through; ``progress`` is told the orders that arrived and the payments that came in each minute."""
        start_s = time.perf_counter()
        for now_ms, arrived in self._minutes():
            self._clock.set(now_ms)
            before = self._paid
            self._schedule(arrived)
            self._cancel_paid(now_ms)
            self._store.tick()
            self._consume(now_ms)
            if (now_ms - START_MS) % FLUSH_EVERY_MS == 0:
                self._store.flush()
            progress(len(arrived) + self._paid - before)
        self.tally.seconds = time.perf_counter() - start_s
        return self.tally

    def _minutes(self) -> Iterator[tuple[int, list[Order]]]:
        """Yield the end of each minute with the orders that came in it; goes on until all are closed and expired leases are back."""
        at = 0
        for now_ms in range(START_MS + MINUTE_MS, START_MS + DAY_MS + CLOSE_AFTER_MS + _SETTLE_MINUTES * MINUTE_MS, MINUTE_MS):
            first = at
            while at < len(self._orders) and self._orders[at].created_ms < now_ms:
                at += 1
            yield now_ms, list(self._orders[first:at])

    def _schedule(self, orders: list[Order]) -> None:
        if orders:
            sent = self._store.send_batch(
                [Message(TOPIC, order.body, keys=(order.number,), deliver_at_ms=order.closes_ms) for order in orders]
            )
            self._receipts.update(zip((order.number for order in orders), sent, strict=True))
            self.tally.orders += len(orders)

    def _cancel_paid(self, now_ms: int) -> None:
        by_handle: dict[str, str] = {}
        while self._paid < len(self._payments) and self._payments[self._paid][0] < now_ms:
            number = self._payments[self._paid][1]
            receipt = self._receipts.pop(number)
            if self._paid % BY_KEY_EVERY == 0:
                self._note_cancel(number, self._store.cancel_key(TOPIC, number))
                self.tally.by_key += 1
            else:
                by_handle[number] = receipt.handle or ""
            self._paid += 1
        for number, outcome in zip(by_handle, self._store.cancel(list(by_handle.values())), strict=True):
            self._note_cancel(number, [outcome])

    def _note_cancel(self, number: str, outcomes: list[CancelOutcome]) -> None:
        if outcomes == [CancelOutcome.CANCELLED]:
            self.tally.cancelled += 1
            self._cancelled.add(number)
        else:
            self._problems.append(f"cancelling order {number} before its time gave {outcomes}")

    def _consume(self, now_ms: int) -> None:
        """Three consumers take turns until nothing is left; the third hangs, then dies, holding what it popped."""
        healthy = 3 if now_ms < HANG_MS else 2
        if HANG_MS <= now_ms < DEATH_MS:
            held = self._store.pop(TOPIC, GROUP, max_messages=HUNG_POP, invisible_ms=INVISIBLE_MS)
            self._note_deliveries(held)
            self.tally.lost_leases += len(held)
        busy = True
        while busy:
            busy = False
            for _ in range(healthy):
                popped = self._store.pop(TOPIC, GROUP, max_messages=POP, invisible_ms=INVISIBLE_MS)
                if popped:
                    busy = True
                    self._note_deliveries(popped)
                    self._note_acks(popped, self._store.ack(popped))

    def _note_deliveries(self, popped: Sequence[PoppedMessage]) -> None:
        for message in popped:
            number = message.keys[0]
            due_ms = message.deliver_at_ms or 0
            if message.attempt == 1:
                self.tally.delivered += 1
                if message.store_ms < due_ms:
                    self._problems.append(f"order {number} was handed over {due_ms - message.store_ms} ms early")
                elif message.store_ms - due_ms > MINUTE_MS:
                    self._problems.append(f"order {number} was handed over {message.store_ms - due_ms} ms late, a tick is {MINUTE_MS} ms")
            else:
                self.tally.redelivered += 1
            self._deliveries[number] += 1
            if json.loads(message.body)["order"] != number:
                self._problems.append(f"order {number} came with the body of another one")

    def _note_acks(self, popped: Sequence[PoppedMessage], outcomes: Sequence[AckOutcome]) -> None:
        for message, outcome in zip(popped, outcomes, strict=True):
            if outcome is AckOutcome.ACKED:
                self.tally.acked += 1
                self._acks[message.keys[0]] += 1
            else:
                self._problems.append(f"the ack of order {message.keys[0]} gave {outcome.value}")

    def problems(self) -> list[str]:
        """Check the day by order number; returns one sentence for each broken promise."""
        problems = self._problems
        paid = {order.number for order in self._orders if order.paid_ms is not None}
        unpaid = {order.number for order in self._orders} - paid
        self._expect(paid == self._cancelled, "orders were paid but not cancelled", paid - self._cancelled)
        self._expect(not paid & self._deliveries.keys(), "paid orders were delivered", paid & self._deliveries.keys())
        self._expect(unpaid == self._deliveries.keys(), "unpaid orders were never delivered", unpaid - self._deliveries.keys())
        self._expect(unpaid == self._acks.keys(), "unpaid orders were never acked", unpaid - self._acks.keys())
        twice = {number for number, count in self._acks.items() if count != 1}
        self._expect(not twice, "orders were acked more than once", twice)
        again = sum(self._deliveries.values()) - len(self._deliveries)
        if again != self.tally.lost_leases:
            problems.append(f"{self.tally.lost_leases} leases were held by the consumer that died, but {again} messages came again")
        lag = self._store.lag(TOPIC, GROUP)
        if (lag.ready, lag.in_flight, lag.retry, lag.dead) != (0, 0, 0, 0):
            problems.append(f"the group is not done: {lag}")
        if pending := self._store.pending().total:
            problems.append(f"{pending} timers are still pending")
        problems += [f"verify: {difference}" for difference in self._store.verify()]
        return problems

    def _expect(self, holds: bool, what: str, numbers: set[str]) -> None:
        if not holds:
            self._problems.append(f"{len(numbers)} {what}, for example {', '.join(sorted(numbers)[:_SHOWN_IDS]) or '(others)'}")
