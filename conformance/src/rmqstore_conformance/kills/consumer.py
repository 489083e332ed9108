"""The second kind of worker: FIFO pops, dead letters, retention, resets and deletes, until it is killed (see ``worker``).

Each topic has one group, so that each message has one fate: group ``a`` pops ``orders`` in any order, group ``f`` pops ``steps`` in order.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from rmqstore import InitMode, ManualClock, Message, Store
from rmqstore_conformance.kills.worker import PRECISION_MS, Job, make, open_store, say

GROUP_OF = {"orders": "a", "steps": "f"}
TOPIC_OF = {group: topic for topic, group in GROUP_OF.items()}
IN_ORDER = "f"
MAX_RETRIES = 1
RETENTION_MS = 2500
SETTINGS: dict[str, Any] = {"max_retries": MAX_RETRIES, "retention_ms": RETENTION_MS, "outcome_memory_ms": 86_400_000}


def lags(store: Store) -> dict[str, list[int]]:
    """Return ready, in flight, retry and dead of each group on its topic."""
    found = {group: store.lag(topic, group) for topic, group in GROUP_OF.items()}
    return {group: [lag.ready, lag.in_flight, lag.retry, lag.dead] for group, lag in found.items()}


def do_tick(store: Store) -> dict[str, Any]:
    """Tick, and say what moved; with the names of all dead letters when some came."""
    report = store.tick()
    letters = {group: [each.origin_message_id for each in store.dead_letters.list(group)] for group in TOPIC_OF} if report.dead else None
    return {"handed_over": report.handed_over, "retried": report.retried, "dead": report.dead, "letters": letters}


def do_pop(store: Store, group: str, wanted: int, invisible_ms: int) -> list[list[Any]]:
    """Pop as the group does; returns receipt, name and attempt of each message."""
    popped = store.pop(TOPIC_OF[group], group, max_messages=wanted, invisible_ms=invisible_ms, order=group == IN_ORDER)
    return [[message.receipt, message.message_id, message.attempt] for message in popped]


class Consumer:
    """Random calls on one store; ``receipts`` holds those of each group that may still be good, newest last."""

    def __init__(self, job: Job, say: Callable[..., None] = say, act: Callable[[Callable[[], Any]], Any] = make) -> None:
        self._say = say
        self._act = act
        self._random = random.Random(job["seed"])
        self.clock = ManualClock(job["now"])
        self._prefix = job["prefix"]
        self._made = job["made"]
        self._receipts: dict[str, list[str]] = job["receipts"]
        self._say("begin", op="open", now=job["now"])
        self.store = open_store(job["path"], job["engines"], self.clock, **SETTINGS)
        self._say("end", lag=lags(self.store))

    def run(self, calls: int) -> None:
        """Make ``calls`` calls."""
        makers: list[Callable[[], bool]] = [
            *[self._send] * 5,
            *[self._tick] * 5,
            *[self._pop] * 7,
            *[self._ack] * 4,
            self._release,
            self._change,
            *[self._remove] * 3,
            self._reset,
            self._delete,
        ]
        while calls:
            calls -= self._random.choice(makers)()

    def _call(self, op: str, act: Callable[[], Any], **detail: object) -> Any:
        self._say("begin", op=op, now=self.clock.now_ms(), **detail)
        result = self._act(act)
        self._say("end", result=result, lag=lags(self.store))
        return result

    def _send(self) -> bool:
        topic, later = self._random.choice(sorted(GROUP_OF)), self._random.random() < 0.3
        messages = []
        for _ in range(self._random.choice((1, 2, 8))):
            self._made += 1
            name = f"{self._prefix}-{self._made}"
            due_ms = self.clock.now_ms() + self._random.randint(1, 900) if later else None
            messages.append(Message(topic, name.encode(), message_id=name, deliver_at_ms=due_ms))
        rows = [[message.message_id, message.deliver_at_ms] for message in messages]
        self._call("send", lambda: len(self.store.send_batch(messages)), topic=topic, messages=rows)
        return True

    def _tick(self) -> bool:
        self.clock.advance(self._random.choice((100, 300, 500, 800, 1500)) + self._random.randint(0, PRECISION_MS))
        self._call("tick", lambda: do_tick(self.store))
        return True

    def _group(self) -> str:
        return self._random.choice(sorted(TOPIC_OF))

    def _pop(self) -> bool:
        group, wanted, invisible_ms = self._group(), self._random.randint(1, 8), self._random.randint(50, 900)
        popped = self._call(
            "pop", lambda: do_pop(self.store, group, wanted, invisible_ms), group=group, wanted=wanted, invisible=invisible_ms
        )
        self._receipts[group] += [receipt for receipt, _, _ in popped]
        return True

    def _some(self, group: str) -> list[str]:
        recent = self._receipts[group][-12:]
        return self._random.sample(recent, min(len(recent), self._random.randint(1, 5)))

    def _ack(self) -> bool:
        group = self._group()
        if chosen := self._some(group):
            self._call("ack", lambda: [each.name for each in self.store.ack(chosen)], group=group, receipts=chosen)
        return bool(chosen)

    def _release(self) -> bool:
        group = self._group()
        if chosen := self._some(group):
            self._call("release", lambda: [each.name for each in self.store.release(chosen)], group=group, receipts=chosen)
        return bool(chosen)

    def _change(self) -> bool:
        group, invisible_ms = self._group(), self._random.randint(100, 3000)

        def act() -> list[list[str | None]]:
            results = self.store.change_invisible(chosen, invisible_ms=invisible_ms)
            return [[result.outcome.name, result.receipt.text() if result.receipt else None] for result in results]

        if chosen := self._some(group):
            results = self._call("change", act, group=group, receipts=chosen, invisible=invisible_ms)
            self._receipts[group] += [new for _, new in results if new is not None]
        return bool(chosen)

    def _remove(self) -> bool:
        group = self._group()
        letters = self.store.dead_letters.list(group)
        if not letters:
            return False
        chosen = self._random.sample(letters, min(len(letters), self._random.randint(1, 4)))
        resend = self._random.random() < 0.6
        self._call(
            "resend" if resend else "drop",
            lambda: (self.store.dead_letters.resend if resend else self.store.dead_letters.drop)(chosen),
            group=group,
            names=[letter.origin_message_id for letter in chosen],
        )
        return True

    def _reset(self) -> bool:
        group = self._group()
        if self._random.random() < 0.5 or TOPIC_OF[group] not in [topic.name for topic in self.store.topics.list()]:
            return False
        self._call("reset", lambda: self.store.groups.reset_offset(TOPIC_OF[group], group, InitMode.MAX), group=group)
        return True

    def _delete(self) -> bool:
        """Delete a topic, and often its group, which then has no place to go back to."""
        group = self._group()
        if self._random.random() < 0.6:
            return False
        self._call("delete_topic", lambda: self.store.topics.delete(TOPIC_OF[group]), group=group)
        if self._random.random() < 0.6:
            self._call("delete_group", lambda: self.store.groups.delete(group), group=group)
        return True
