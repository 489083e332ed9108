"""Stores with a past: timers, pops, acks, retries, dead letters, marks, FIFO runs, gaps; and what callers hold of it all."""

from __future__ import annotations

import random
from typing import Any

from rmqstore import IllegalArgumentError, Message, Store
from rmqstore.contract import PopTxn, Removal
from rmqstore_conformance.stores import Stores, message, pop_all

TOPICS = ("a", "b")
GROUPS = ("g", "h")
SETTINGS: dict[str, Any] = {
    "max_retries": 1,
    "default_queues": 2,
    "outcome_memory_ms": 120_000,
    "cancel_memory_ms": 600_000,
    "reclaim": "consumed",
}


class Past:
    """Makes calls on a store and remembers what callers hold: handles, receipts, marks."""

    def __init__(self, stores: Stores, seed: int, prefix: str = "") -> None:
        self.stores = stores
        self.random = random.Random(seed)
        self.prefix = prefix
        self.handles: list[str] = []
        self.receipts: list[str] = []
        self.marks: dict[bytes, tuple[list[Message], list[str | None]]] = {}
        self.attempts: dict[str, tuple[str, str, set[str]]] = {}
        self._number = 0

    @property
    def now_ms(self) -> int:
        return self.stores.clock.now_ms()

    def live(self, store: Store, calls: int) -> None:
        """Make that many calls, of all kinds."""
        sending = (self.send, self.send, self.send_later, self.send_later, self.send_later, self.cancel)
        popping = (self.pop, self.pop, self.pop, self.pop_in_order, self.ack, self.ack, self.change, self.release)
        kinds = (*sending, *popping, self.advance, self.advance, self.drop_dead_letters, self.drop_dead_letters)
        for _ in range(calls):
            self.random.choice(kinds)(store)

    def _messages(self, topic: str) -> list[Message]:
        made = []
        for _ in range(self.random.randint(1, 12)):
            self._number += 1
            fields: dict[str, Any] = {}
            if self.random.random() < 0.3:
                fields["keys"] = (f"k{self._number}", "shared")
            if self.random.random() < 0.3:
                fields["tag"] = self.random.choice(("x", "y"))
            if self.random.random() < 0.3:
                fields["properties"] = {"colour": "grün", "n": str(self._number)}
            made.append(message(f"{self.prefix}{self._number}", topic, **fields))
        return made

    def send(self, store: Store) -> None:
        batch = self._messages(self.random.choice(TOPICS))
        mark = b"now-%d-%s" % (self._number, self.prefix.encode())
        store.send_batch(batch, marks=[mark])

    def send_later(self, store: Store) -> None:
        batch = self._messages(self.random.choice(TOPICS))
        due_ms = self.now_ms + self.random.choice((300, 1000, 5000, 60_000, 3_600_000))
        later = [_at(each, due_ms + self.random.randint(0, 3) * 700) for each in batch]
        mark = b"later-%d-%s" % (self._number, self.prefix.encode())
        sent = store.send_batch(later, marks=[mark])
        handles = [each.handle for each in sent]
        self.handles += [handle for handle in handles if handle]
        self.marks[mark] = (later, handles)

    def cancel(self, store: Store) -> None:
        for handle in self.random.sample(self.handles, min(3, len(self.handles))):
            store.cancel(handle)

    def pop(self, store: Store) -> None:
        topic, group = self.random.choice(TOPICS), self.random.choice(GROUPS)
        attempt_id = f"attempt-{self.prefix}{self.random.randint(0, 10**6)}" if self.random.random() < 0.3 else None
        invisible_ms = self.random.choice((500, 1000, 20_000, 10**6))
        popped = store.pop(topic, group, max_messages=self.random.randint(1, 8), invisible_ms=invisible_ms, attempt_id=attempt_id)
        self.receipts += [each.receipt for each in popped]
        if attempt_id is not None and popped:
            self.attempts[attempt_id] = (topic, group, {each.receipt for each in popped})

    def pop_in_order(self, store: Store) -> None:
        popped = store.pop("ordered", "fifo", max_messages=3, invisible_ms=5000, order=True)
        if not popped and self.random.random() < 0.5:
            store.send_batch([message(f"{self.prefix}o{self._number}-{n}", "ordered", message_group="one") for n in range(4)])
            self._number += 1
        self.receipts += [each.receipt for each in popped]

    def ack(self, store: Store) -> None:
        store.ack(self._some())

    def change(self, store: Store) -> None:
        for receipt in self._some():
            changed = store.change_invisible(receipt, invisible_ms=30_000)
            if changed.receipt is not None:
                self.receipts.append(changed.receipt.text())

    def release(self, store: Store) -> None:
        store.release(self._some())

    def _some(self) -> list[str]:
        recent = self.receipts[-20:]
        return self.random.sample(recent, min(3, len(recent)))

    def advance(self, store: Store) -> None:
        self.stores.clock.advance(self.random.choice((200, 1500, 25_000)))
        store.tick()

    def drop_dead_letters(self, store: Store) -> None:
        group = self.random.choice(GROUPS)
        try:
            letters = store.read(f"%DLQ%{group}", limit=3).messages
        except IllegalArgumentError:
            return
        if letters:
            place = Removal(f"%DLQ%{group}", 0, self.random.choice(letters).queue_offset)
            store.engine.pops.apply(PopTxn(removals=[place]), self.now_ms)


def _at(each: Message, due_ms: int) -> Message:
    return Message(each.topic, each.body, each.tag, each.keys, each.properties, None, due_ms, each.message_id)


def shown(store: Store) -> dict[str, Any]:
    """What a user sees of a store, in words that do not depend on seqs and queues."""
    groups = [*GROUPS, "fifo"]
    return {
        "pending": store.pending(),
        "scan": sorted((timer.deliver_at_ms, timer.message.message_id) for timer in store.scan(limit=10**6).timers),
        "lag": {(topic, group): store.lag(topic, group) for topic in (*TOPICS, "ordered") for group in groups},
        "groups": store.groups.list(),
        "topics": sorted(topic.name for topic in store.topics.list(system=True)),
        "messages": sorted(everything(store)),
        "verify": store.verify(),
    }


def everything(store: Store) -> list[tuple[str, str]]:
    """Return (topic, message id) of all that lies in queues."""
    found = []
    for topic in store.topics.list(system=True):
        for queue in range(topic.queues):
            found += [(topic.name, each.message_id or "") for each in store.engine.pops.read(topic.name, queue, 0, 10**6).messages]
    return found


def drained(store: Store, stores: Stores) -> dict[str, list[str]]:
    """Let everything become due, expire and be consumed; return what each group got, by topic."""
    got: dict[str, list[str]] = {}
    for _ in range(6):
        stores.clock.advance(3_700_000)
        store.tick()
        for topic in TOPICS:
            for group in GROUPS:
                got.setdefault(f"{topic}/{group}", []).extend(each.message_id or "" for each in pop_all(store, topic, group))
        got.setdefault("ordered/fifo", []).extend(each.message_id or "" for each in pop_all(store, "ordered", "fifo", order=True))
    return {place: ids if place.startswith("ordered") else sorted(ids) for place, ids in got.items()}
