"""A fixed workload, and what a store shows of itself after each of its calls."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import rmqstore
from rmqstore import InitMode, ManualClock, Message, Store
from rmqstore.contract import Support
from rmqstore.deadletters import DeadLetter
from rmqstore_conformance.stores import Pair, directory
from rmqstore_conformance.targets import capabilities_of

START_MS = 1_700_000_000_000
SETTINGS: dict[str, Any] = {
    "precision_ms": 100,
    "default_queues": 2,
    "services": False,
    "max_retries": 1,
    "retention_ms": 20_000,
    "reclaim": "age",
}
GROUPS = ("g", "h", "f")
PLACES = (("t", "g"), ("t", "h"), ("s", "f"))
UPKEEP = "tick that reclaims"
"""A call whose work is durable only with the next call; it may follow all others."""

MAY_HALT = ("tick", UPKEEP)
"""Calls of many steps, each of which is whole by itself: cut short, the same call goes on where they stopped."""

Shown = dict[str, Any]


def _messages(prefix: str, count: int, *, step_ms: int | None = None, body: bytes = b"", topic: str = "t") -> list[Message]:
    return [
        Message(
            topic,
            f"{prefix}{number}".encode() + body,
            message_id=f"{prefix}{number}",
            keys=(f"{prefix}-key",),
            deliver_at_ms=None if step_ms is None else START_MS + 200 + step_ms * (number + step_ms // 1000),
            queue_id=number % 2 if topic == "t" else 0,
            # A resend goes to the queue of the message group, which is queue 0 for this one.
            message_group=None if topic == "t" else "two",
        )
        for number in range(count)
    ]


_NEEDS: dict[str, tuple[str, ...]] = {
    "cancel_by_key": ("cancel_key",),
    "fifo": (
        "pop in order",
        "ack in order",
        "pop the run again",
        "resend",
        "pop in order once more",
        "drop",
        "reset",
        "pop after the reset",
        "delete the group",
    ),
    "retention": (UPKEEP,),
}
"""Calls of the script that need something optional, by the field of ``Capabilities``."""


class Script:
    """The workload on one store.

    Attributes:
        calls: to be made one after the other; one that raises may be made again. Those that need what an engine does not declare are
            left out.
    """

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self._store = store
        self._clock = clock
        self._handles: list[str] = []
        self._held: dict[str, list[Any]] = {group: [] for group in GROUPS}
        capabilities = capabilities_of(Pair(store.stats().timer_engine, store.stats().pop_engine))
        noise = hashlib.shake_128(b"noise").digest(1500)
        calls: dict[str, Callable[[], None]] = {
            "send": lambda: self._send(_messages("a", 1)[0]),
            "send_batch": lambda: self._send_batch(_messages("b", 6)),
            "send later": lambda: self._send(_messages("c", 1, step_ms=100)[0]),
            "send_batch later": lambda: self._send_batch(_messages("d", 20, step_ms=90)),
            "send_batch now and later": lambda: self._send_batch(_messages("e", 3) + _messages("f", 4, step_ms=50)),
            "cancel": lambda: self._cancel(self._handles[0]),
            "cancel many": lambda: self._cancel(self._handles[3:6]),
            "cancel_key": lambda: self._cancel_key("f-key"),
            "pop": lambda: self._pop("g", 3, 5_000),
            "ack": lambda: self._ack("g", 1),
            "pop more": lambda: self._pop("g", 4, 60_000),
            "change": lambda: self._change("g"),
            "release": lambda: self._release("g"),
            "tick that hands over": lambda: self._tick(2_500),
            "pop by another": lambda: self._pop("h", 10, 60_000),
            "ack many": lambda: self._ack("h", 10),
            "send_batch big": lambda: self._send_batch(_messages("i", 40, body=noise)),
            "send_batch big later": lambda: self._send_batch(_messages("j", 40, step_ms=500_000, body=noise)),
            "tick that revives": lambda: self._tick(6_000),
            "pop what came back": lambda: self._pop("g", 8, 60_000),
            "ack the rest": lambda: self._ack("g", 8),
            "send in order": lambda: self._send_batch(_messages("k", 6, topic="s")),
            "pop in order": lambda: self._pop_in_order(4),
            "ack in order": lambda: self._ack("f", 1),
            "tick that ends a run": lambda: self._tick(7_500),
            "pop the run again": lambda: self._pop_in_order(4),
            "tick that buries the head": lambda: self._tick(9_000),
            "resend": lambda: self._remove(self._store.resend_dead),
            "pop in order once more": lambda: self._pop_in_order(4),
            "tick that buries another": lambda: self._tick(10_500),
            "drop": lambda: self._remove(self._store.drop_dead),
            "reset": lambda: self._store.reset_offset("s", "f", InitMode.MAX),
            "send after the reset": lambda: self._send_batch(_messages("l", 3, topic="s")),
            "pop after the reset": lambda: self._pop_in_order(2),
            "delete the group": lambda: self._store.delete_group("f"),
            "delete the topic": lambda: self._store.delete_topic("s"),
            # All but the youngest messages are too old: nothing moves, and the queues are reclaimed.
            UPKEEP: lambda: self._tick(27_000),
        }
        absent = {name for name in _NEEDS if any(getattr(each, name) is not Support.FULL for each in capabilities)}
        left_out = {call for name in absent for call in _NEEDS[name]}
        self.calls = {name: call for name, call in calls.items() if name not in left_out}

    def _send(self, message: Message) -> None:
        handle = self._store.send(message).handle
        self._handles += [handle] if handle else []

    def _send_batch(self, messages: list[Message]) -> None:
        self._handles += [receipt.handle for receipt in self._store.send_batch(messages) if receipt.handle]

    def _cancel(self, handles: str | list[str]) -> None:
        outcomes = self._store.cancel(handles)
        assert {outcomes} if isinstance(handles, str) else set(outcomes) == {rmqstore.CancelOutcome.CANCELLED}

    def _cancel_key(self, key: str) -> None:
        assert self._store.cancel_key("t", key)

    def _pop(self, group: str, count: int, invisible_ms: int) -> None:
        self._held[group] += self._store.pop("t", group, max_messages=count, invisible_ms=invisible_ms)

    def _pop_in_order(self, count: int) -> None:
        self._held["f"] = self._store.pop("s", "f", max_messages=count, invisible_ms=1_000, order=True, queue=0)
        assert len(self._held["f"]) == count, "a pop in order gave fewer messages than there are"

    def _remove(self, remove: Callable[[list[DeadLetter]], int]) -> None:
        # A call that is made again after it happened finds nothing any more.
        letters = self._store.dead_letters("f")
        assert remove(letters) == len(letters)

    def _ack(self, group: str, count: int) -> None:
        outcomes = self._store.ack(self._held[group][:count])
        assert set(outcomes) <= {rmqstore.AckOutcome.ACKED, rmqstore.AckOutcome.STALE}
        del self._held[group][:count]

    def _change(self, group: str) -> None:
        result = self._store.change_invisible(self._held[group][-1], invisible_ms=90_000)
        assert result.outcome is rmqstore.ChangeOutcome.CHANGED

    def _release(self, group: str) -> None:
        assert self._store.release(self._held[group][-2]) is rmqstore.ReleaseOutcome.RELEASED

    def _tick(self, ms: int) -> None:
        # Times are absolute, so that a tick that is made again does the same.
        self._clock.set(START_MS + ms)
        self._store.tick()


def show(store: Store) -> Shown:
    """Return all that matters of a store, as JSON has it: timers, queues, where the groups stand, letters, leases, and what is wrong."""
    queues = [
        [topic.name, queue, _digest(store, topic.name, queue)]
        for topic in store.topics()
        for queue in range(topic.queues)
        if topic.max_offsets[queue]
    ]
    lags = [store.lag(topic, group) for topic, group in PLACES]
    shown = {
        "timers": [[timer.message.message_id, timer.deliver_at_ms] for timer in store.scan(limit=10_000).timers],
        "pending": store.pending().total,
        "queues": queues,
        "lags": [[lag.ready, lag.in_flight, lag.retry, lag.dead] for lag in lags],
        "letters": [letter.origin_message_id for letter in store.dead_letters("f")],
        # Which queue a plain pop takes first is free, so a pop that failed and is made again may hold other messages.
        "leases": [[each.message_id, each.attempt, each.expiry_ms] for each in store.leases(group="f")],
        "parked": len(store.parked()),
        "wrong": store.verify(),
    }
    found: Shown = json.loads(json.dumps(shown))
    return found


def _digest(store: Store, topic: str, queue: int) -> str:
    rows = store.read(topic, queue, 0, 10_000).messages
    return hashlib.md5(repr([(row.message_id, row.body) for row in rows]).encode(), usedforsecurity=False).hexdigest()


def difference(shown: Shown, expected: Shown) -> str:
    """Say in a line what is different."""
    parts = [f"{name} {shown[name]} in place of {expected[name]}" for name in expected if shown[name] != expected[name]]
    return "; ".join(part if len(part) < 400 else f"{part[:400]} …" for part in parts)


def open_script(path: Path | str, pair: Pair, settings: dict[str, Any], clock: ManualClock) -> Store:
    """Open a store as everything does that has to do with the script."""
    engines = {"timer_engine": pair.timers, "pop_engine": pair.pops}
    store: Store = rmqstore.open(path, clock=clock, **{**SETTINGS, **engines, **settings})
    return store


class Step(NamedTuple):
    """A call of the script: at which time it is made, and what the store shows after it."""

    name: str
    now_ms: int
    shown: Shown


class Play(NamedTuple):
    """The script as it goes on a pair of engines when nothing disturbs it; step 0 is the opening of the new store."""

    pair: Pair
    steps: list[Step]

    @property
    def calls(self) -> range:
        """The numbers of the steps behind the opening."""
        return range(1, len(self.steps))

    def without_upkeep(self) -> Play:
        """Return the play without its last step: what is reclaimed depends on which messages are held, which is free after a failure."""
        return self._replace(steps=[step for step in self.steps if step.name != UPKEEP])

    def number_of(self, shown: Shown) -> str:
        """Say after which step the store shows this."""
        return ", ".join(f"as after step {number} ({step.name})" for number, step in enumerate(self.steps) if step.shown == shown)


def play_of(pair: Pair, settings: dict[str, Any]) -> Play:
    """Play the script undisturbed; whether the steps do what they should is for the other cases to say."""
    clock = ManualClock(START_MS)
    with directory() as root, open_script(root / "store", pair, settings, clock) as store:
        steps = [Step("open", START_MS, show(store))]
        for name, call in Script(store, clock).calls.items():
            call()
            steps.append(Step(name, clock.now_ms(), show(store)))
    assert not any(step.shown["wrong"] or step.shown["parked"] for step in steps), "the undisturbed store is damaged"
    return Play(pair, steps)
