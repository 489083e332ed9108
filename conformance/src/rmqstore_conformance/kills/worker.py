"""A child process that works on a store until it is killed: it says ``begin`` before each mutating call and ``end`` after it.

Reads one job, a line of JSON, from its standard input; writes one line of JSON an event to its standard output.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa

import rmqstore
from rmqstore import ManualClock, Message, MessageBatch, Store

TOPIC = "orders"
GROUPS = ("a", "b")
KEYS = 6
PRECISION_MS = 100
SETTINGS: dict[str, Any] = {"precision_ms": PRECISION_MS, "default_queues": 2, "max_retries": 1000, "hand_over_limit": 5, "reclaim": "age"}

Job = dict[str, Any]


def say(event: str, **fields: object) -> None:
    """Write one line in one system call."""
    os.write(1, (json.dumps({"event": event, **fields}) + "\n").encode())


def make(call: Callable[[], Any]) -> Any:
    """Make a call; others do something to it meanwhile."""
    return call()


def open_store(path: str, engines: dict[str, str], clock: ManualClock, **settings: Any) -> Store:
    """Open the store as every process of these tests does; ``settings`` are those of its kind of worker."""
    everything: dict[str, Any] = {**engines, **SETTINGS, **settings}
    store: Store = rmqstore.open(path, clock=clock, services=False, **everything)
    return store


def lags(store: Store) -> dict[str, list[int]]:
    """Return ready, in flight, retry and dead of every group."""
    found = {group: store.lag(TOPIC, group) for group in GROUPS}
    return {group: [lag.ready, lag.in_flight, lag.retry, lag.dead] for group, lag in found.items()}


class Worker:
    """Random calls on one store.

    It tells ``say`` of each call before and after it, and has it made by ``act``.
    ``leases`` holds [receipt, message id] by group, ``handles`` [handle, message id], both as the ledger knows them.
    """

    def __init__(self, job: Job, say: Callable[..., None] = say, act: Callable[[Callable[[], Any]], Any] = make) -> None:
        self._say = say
        self._act = act
        self._random = random.Random(job["seed"])
        self.clock = ManualClock(job["now"])
        self._prefix = job["prefix"]
        self._made = 0
        self._handles: list[list[str]] = job["handles"]
        self._leases: dict[str, list[list[str]]] = job["leases"]
        self._say("begin", op="open", now=job["now"])
        self.store = open_store(job["path"], job["engines"], self.clock)
        self._say("end", lag=lags(self.store))

    def run(self, calls: int) -> None:
        """Make ``calls`` calls."""
        makers: list[Callable[[], bool]] = [
            *[self._send] * 4,
            *[self._send_batch] * 3,
            *[self._tick] * 3,
            *[self._pop] * 5,
            *[self._ack] * 3,
            *[self._cancel] * 2,
            self._cancel_key,
            self._change,
            self._release,
        ]
        while calls:
            calls -= self._random.choice(makers)()

    def _call(self, op: str, act: Callable[[], Any], **detail: object) -> Any:
        self._say("begin", op=op, now=self.clock.now_ms(), **detail)
        result = self._act(act)
        self._say("end", result=result, lag=lags(self.store))
        return result

    # ------------------------------------------------------------ sending

    def _message(self, *, later: bool) -> Message:
        self._made += 1
        name = f"{self._prefix}-{self._made}"
        deliver_ms = self.clock.now_ms() + self._random.randint(-50, 1500) if later else None
        return Message(TOPIC, name.encode(), message_id=name, keys=(f"k{self._random.randrange(KEYS)}",), deliver_at_ms=deliver_ms)

    def _send(self) -> bool:
        message = self._message(later=self._random.random() < 0.6)
        self._sent("send", [message], lambda: [self.store.send(message).handle])
        return True

    def _send_batch(self) -> bool:
        share = self._random.choice((0.0, 0.7, 1.0))
        messages = [self._message(later=self._random.random() < share) for _ in range(self._random.randint(2, 12))]
        batch: MessageBatch | pa.RecordBatch | list[Message] = messages
        if self._random.random() < 0.5:
            batch = MessageBatch.of(messages).columns
        self._sent("send_batch", messages, lambda: [receipt.handle for receipt in self.store.send_batch(batch)])
        return True

    def _sent(self, op: str, messages: list[Message], act: Callable[[], list[str | None]]) -> None:
        rows = [[message.message_id, message.deliver_at_ms, message.keys[0]] for message in messages]
        handles = self._call(op, act, messages=rows)
        self._handles += [[handle, str(row[0])] for handle, row in zip(handles, rows, strict=True) if handle is not None]

    # ------------------------------------------------------------ cancelling, moving on

    def _cancel(self) -> bool:
        if not self._handles:
            return False
        recent = self._handles[-40:]
        chosen = self._random.sample(recent, min(len(recent), self._random.randint(1, 4)))
        self._call(
            "cancel",
            lambda: [outcome.name for outcome in self.store.cancel([handle for handle, _ in chosen])],
            ids=[each[1] for each in chosen],
        )
        return True

    def _cancel_key(self) -> bool:
        key = f"k{self._random.randrange(KEYS)}"
        self._call("cancel_key", lambda: [outcome.name for outcome in self.store.cancel_key(TOPIC, key)], key=key)
        return True

    def _tick(self) -> bool:
        self.clock.advance(self._random.randint(0, 400))
        self._call("tick", lambda: self.store.tick().handed_over)
        return True

    # ------------------------------------------------------------ leasing

    def _pop(self) -> bool:
        group = self._random.choice(GROUPS)
        wanted, invisible_ms = self._random.randint(1, 8), self._random.randint(150, 2500)

        def act() -> list[list[str | None]]:
            popped = self.store.pop(TOPIC, group, max_messages=wanted, invisible_ms=invisible_ms)
            return [[message.receipt, message.message_id] for message in popped]

        self._leases[group] += self._call("pop", act, group=group, wanted=wanted, invisible=invisible_ms)
        return True

    def _some_leases(self) -> tuple[str, list[list[str]]]:
        group = self._random.choice(GROUPS)
        recent = self._leases[group][-30:]
        return group, self._random.sample(recent, min(len(recent), self._random.randint(1, 6)))

    def _ack(self) -> bool:
        group, chosen = self._some_leases()
        if not chosen:
            return False
        self._call(
            "ack",
            lambda: [outcome.name for outcome in self.store.ack([each[0] for each in chosen])],
            group=group,
            receipts=[r for r, _ in chosen],
        )
        self._drop(group, chosen)
        return True

    def _release(self) -> bool:
        group, chosen = self._some_leases()
        if not chosen:
            return False
        receipts = [receipt for receipt, _ in chosen]
        self._call("release", lambda: [outcome.name for outcome in self.store.release(receipts)], group=group, receipts=receipts)
        self._drop(group, chosen)
        return True

    def _change(self) -> bool:
        group, chosen = self._some_leases()
        if not chosen:
            return False
        receipts, invisible_ms = [receipt for receipt, _ in chosen], self._random.randint(100, 4000)

        def act() -> list[list[str | None]]:
            results = self.store.change_invisible(receipts, invisible_ms=invisible_ms)
            return [[result.outcome.name, result.receipt.text() if result.receipt else None] for result in results]

        results = self._call("change", act, group=group, receipts=receipts, invisible=invisible_ms)
        self._leases[group] += [[new, name] for (_, new), (_, name) in zip(results, chosen, strict=True) if new is not None]
        return True

    def _drop(self, group: str, chosen: list[list[str]]) -> None:
        """Forget most of the receipts that were used; some are used again, to see that the answer stays true."""
        self._leases[group] = [each for each in self._leases[group] if each not in chosen or self._random.random() < 0.2]


def end_of_life(job: Job) -> None:
    """Open, take a snapshot if asked, and close, saying so."""
    say("begin", op="open")
    store = open_store(job["path"], job["engines"], ManualClock(job["now"]))
    say("end")
    if job["do"] == "snapshot":
        say("begin", op="snapshot")
        store.snapshot(job["snapshot"])
        say("end")
    say("begin", op="close")
    store.close()
    say("end")


def main() -> None:
    """Do the one job."""
    # As a program this file has only its own folder on the path.
    from rmqstore_conformance.kills.consumer import Consumer
    from rmqstore_conformance.targets import announce

    say("warm")
    job = json.loads(sys.stdin.readline())
    announce(job["plugins"])
    if job["do"] == "work":
        Worker(job).run(job["calls"])
    elif job["do"] == "consume":
        Consumer(job).run(job["calls"])
    else:
        end_of_life(job)


if __name__ == "__main__":
    main()
