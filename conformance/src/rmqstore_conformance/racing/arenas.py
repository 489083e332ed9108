"""What threads race for: small worlds in which some calls meet the same lease, message, timer, mark or letter.

A world is built again for each run, under names of its own within one store, so that a run finds the same whatever was there before. A call
answers with plain data. Names and receipts are told apart by where they turn up first, so that runs can be compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from rmqstore import AckOutcome, InitMode, Message, PoppedMessage, Store
from rmqstore.contract import ChangeResult
from rmqstore.errors import RmqstoreError
from rmqstore_conformance.stores import HOUR_MS, Stores

_LONG_MS: Final = 10 * HOUR_MS

Calls = Mapping[str, Callable[[Any], object]]
"""What can be called in a world, by name; what it gives is its answer."""


class Arena:
    """One small world.

    Attributes:
        CALLS: its calls.
        READS: those that change nothing.
        ALWAYS: races that even a short run plays.
        ELSEWHERE: those whose races with each other another world has.
    """

    CALLS: ClassVar[Calls] = {}
    READS: ClassVar[tuple[str, ...]] = ()
    ALWAYS: ClassVar[tuple[tuple[str, str], ...]] = ()
    ELSEWHERE: ClassVar[tuple[str, ...]] = ()

    def __init__(self, stores: Stores, store: Store, number: int) -> None:
        self.store = store
        self.clock = stores.clock
        self.sign = f"x{number:07}x"
        self.topic = self.named("t")
        self.group = self.named("g")
        self.build()

    def named(self, name: str) -> str:
        """Return a name that no other world has."""
        return f"{name}-{self.sign}"

    def build(self) -> None:
        raise NotImplementedError

    def act(self, call: str) -> Callable[[], object]:
        def answered() -> object:
            try:
                return self.made(call)
            except RmqstoreError as error:
                return (type(error).__name__, str(error))

        return answered

    def made(self, call: str) -> object:
        return self.CALLS[call](self)

    def outcome(self, answers: Iterable[object]) -> str:
        """Return the answers and everything that can be seen behind them, as a text that equal runs share."""
        return self.text([*answers, *self.seen()])

    def text(self, told: Sequence[object]) -> str:
        """Return what was told, a line each, with names and receipts as equal runs share them."""
        known: dict[str, str] = {}
        lines = "\n".join(map(str, told))
        return re.sub(r"<([^<>]*)>", lambda found: known.setdefault(found[1], f"receipt {len(known)}"), lines).replace(f"-{self.sign}", "")

    def seen(self) -> list[tuple[str, object]]:
        """Return what the race left behind, and what further calls answer."""
        raise NotImplementedError

    def tear_down(self) -> None:
        """Remove what would go on in the store."""
        self.store.topics.delete(self.topic)
        self.store.topics.delete(f"%DLQ%{self.group}")
        self.store.groups.delete(self.group)

    # ------------------------------------------------------------ telling

    def message(self, name: str, **fields: Any) -> Message:
        return Message(self.topic, f"body {name}".encode(), message_id=self.named(name), **fields)

    @staticmethod
    def popped(found: Iterable[PoppedMessage]) -> list[object]:
        """Tell messages that were popped."""
        return [(each.message_id, each.attempt, each.queue_id, each.queue_offset, f"<{each.receipt}>") for each in found]

    @staticmethod
    def changed(result: ChangeResult) -> object:
        """Tell what became of a change."""
        return (result.outcome.name, result.receipt and f"<{result.receipt.text()}>")

    def standing(self, group: str) -> list[tuple[str, object]]:
        """Tell where a group stands, and what is in its queues."""
        store = self.store
        kinds = ("", f"%RETRY%{group}+", "%DLQ%")
        names = [self.topic, kinds[1] + self.topic, kinds[2] + group]
        found: list[tuple[str, object]] = [("lag", msgspec.structs.asdict(store.lag(self.topic, group)))]
        leases = [
            (each.message_id, each.queue_offset, each.attempt, f"<{each.receipt}>", each.is_backing_off, each.reason)
            for each in store.leases(group=group)
        ]
        found += [("leases", leases), ("offsets", [(each.topic, each.queue_id, each.next_offset) for each in store.groups.offsets(group)])]
        for name in names:
            info = store.engine.pops.topic(name)
            pages = [] if info is None else [store.engine.pops.read(name, queue, 0, 100) for queue in range(info.queues)]
            lying = [(each.message_id, each.queue_offset) for page in pages for each in page.messages if isinstance(each, PoppedMessage)]
            found.append((f"in {name}", lying))
        found.append(("dead", [(each.message.message_id, each.reason, each.attempts) for each in store.dead_letters.list(group)]))
        return found

    def drained(self, group: str, **options: Any) -> list[object]:
        """Pop and ack until nothing comes any more."""
        found: list[object] = []
        while popped := self.store.pop(self.topic, group, max_messages=8, invisible_ms=_LONG_MS, **options):
            found += self.popped(popped)
            if set(self.store.ack(popped)) != {AckOutcome.ACKED}:
                found.append("not acked")
        return found

    # ------------------------------------------------------------ calls that many worlds have

    def pop(self, count: int, **options: Any) -> object:
        return self.popped(self.store.pop(self.topic, self.group, max_messages=count, invisible_ms=_LONG_MS, **options))

    def ack(self, *held: PoppedMessage) -> object:
        return [each.name for each in self.store.ack(held)]

    def change(self, held: PoppedMessage) -> object:
        return self.changed(self.store.change_invisible(held, invisible_ms=_LONG_MS))

    def revived(self) -> object:
        report = self.store.tick()
        return (report.retried, report.dead)

    def retry_later(self, held: PoppedMessage) -> object:
        return self.changed(self.store.retry_later(held, delay_ms=_LONG_MS, reason="why"))


_OF_ALL: Final[Calls] = {
    "delete group": lambda world: world.store.groups.delete(world.group),
    "lag": lambda world: msgspec.structs.asdict(world.store.lag(world.topic, world.group)),
}

_OF_LEASES: Final[Calls] = {
    **_OF_ALL,
    "tick": lambda world: world.revived(),
    "reset": lambda world: world.store.groups.reset_offset(world.topic, world.group, InitMode.MIN),
    "leases": lambda world: [
        (each.message_id, each.attempt, f"<{each.receipt}>", each.is_backing_off) for each in world.store.leases(world.topic, world.group)
    ],
}


class Leases(Arena):
    """Two leases, one of which has come to its end, and two messages that are ready; the group may hold three leases."""

    CALLS: ClassVar[Calls] = {
        "ack": lambda world: world.ack(world.held),
        "ack both": lambda world: world.ack(world.ended, world.held),
        "ack ended": lambda world: world.ack(world.ended),
        "change": lambda world: world.change(world.held),
        "release": lambda world: world.store.release(world.held).name,
        "retry later": lambda world: world.retry_later(world.held),
        "reject": lambda world: world.store.reject(world.held, reason="no").name,
        "pop": lambda world: world.pop(2),
        "pop again": lambda world: world.pop(1, attempt_id="a"),
        "pop anew": lambda world: world.pop(1, attempt_id="b"),
        "pop tagged": lambda world: world.pop(1, filter="b"),
        "send": lambda world: world.store.send(world.message("new", queue_id=0)).message_id,
        "send two": lambda world: [
            each.message_id for each in world.store.send_batch([world.message(f"new{n}", queue_id=0) for n in range(2)])
        ],
        "delete topic": lambda world: world.store.topics.delete(world.topic),
        "set group": lambda world: world.store.groups.set(world.group, max_retries=0),
        "set other group": lambda world: world.store.groups.set(world.named("h"), max_retries=1),
        "create topic": lambda world: world.store.topics.create(world.topic, 2).queues,
        "offsets": lambda world: [
            (each.topic, each.queue_id, each.next_offset, each.in_flight) for each in world.store.groups.offsets(world.group)
        ],
        **_OF_LEASES,
    }
    READS: ClassVar[tuple[str, ...]] = ("lag", "leases", "offsets")
    ALWAYS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("ack", "release"),
        ("ack", "change"),
        ("ack", "reject"),
        ("ack", "lag"),
        ("ack ended", "tick"),
        ("pop", "pop anew"),
        ("pop", "ack"),
        ("pop", "reset"),
        ("pop", "lag"),
        ("pop", "tick"),
        ("set group", "set other group"),
        ("send two", "pop"),
        ("send two", "lag"),
    )

    def build(self) -> None:
        self.store.topics.create(self.topic, 1)
        self.store.send_batch([self.message(f"m{n}", tag="ab"[n % 2]) for n in range(4)])
        (self.held,) = self.store.pop(self.topic, self.group, max_messages=1, invisible_ms=_LONG_MS, attempt_id="a")
        (self.ended,) = self.store.pop(self.topic, self.group, max_messages=1, invisible_ms=1000)
        self.clock.advance(2000)

    def seen(self) -> list[tuple[str, object]]:
        found = [*self.standing(self.group), ("again", self.made("pop again"))]
        found.append(("acked", [self.ack(each) for each in (self.held, self.ended)]))
        for group in (self.group, self.named("h")):
            found.append(("settings", msgspec.structs.asdict(self.store.groups.settings(group))))
        self.store.tick()
        return [*found, ("drained", self.drained(self.group)), ("lag behind", self.made("lag"))]


class Timers(Arena):
    """A timer that is due, a later one of the same key, and calls of both sides by one mark."""

    CALLS: ClassVar[Calls] = {
        "cancel": lambda world: world.store.cancel(world.due).name,
        "cancel later": lambda world: world.store.cancel(world.far).name,
        "cancel both": lambda world: [each.name for each in world.store.cancel([world.far, world.due])],
        "tick": lambda world: world.store.tick().handed_over,
        "schedule": lambda world: bool(world.store.send(world.message("more", keys=("k",)), delay_ms=HOUR_MS).handle),
        "schedule past": lambda world: world.schedule_past(),
        "send": lambda world: world.store.send(world.message("now")).message_id,
        "send for later by mark": lambda world: world.send_for_later_by_mark(),
        "send by mark": lambda world: world.send_by_mark(),
        "pending": lambda world: world.pending(),
        "scan": lambda world: [(each.message.message_id, f"<{each.handle.text()}>") for each in world.store.scan().timers],
        "lag": lambda world: world.store.lag(world.topic, world.group).ready,
        "read": lambda world: world.read(),
    }
    READS: ClassVar[tuple[str, ...]] = ("pending", "scan", "lag", "read")
    ALWAYS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("cancel", "tick"),
        ("cancel both", "tick"),
        ("cancel both", "scan"),
        ("schedule", "pending"),
        ("schedule past", "tick"),
        ("tick", "pending"),
    )

    def build(self) -> None:
        self.due = self.store.send(self.message("due", keys=("k",)), delay_ms=1000).handle or ""
        self.far = self.store.send(self.message("far", keys=("k",)), delay_ms=HOUR_MS).handle or ""
        self.clock.advance(1000)

    def schedule_past(self) -> object:
        # Its tick is under what a running tick has sealed.
        rows = [
            self.message("late", deliver_at_ms=self.clock.now_ms() - 1),
            self.message("later", deliver_at_ms=self.clock.now_ms() + HOUR_MS),
        ]
        return [bool(each.handle) for each in self.store.send_batch(rows)]

    def send_for_later_by_mark(self) -> object:
        receipt = self.store.send(self.message("marked", keys=("m",)), delay_ms=HOUR_MS, marks=[self.named("later").encode()])
        return (receipt.repeated, f"<{receipt.handle}>")

    def send_by_mark(self) -> object:
        receipt = self.store.send(Message(self.topic, b"marked now"), marks=[self.named("now").encode()])
        return (receipt.repeated, f"<{receipt.message_id}>")

    def pending(self) -> object:
        found = self.store.pending()
        now_ms = self.clock.now_ms()
        return (found.total, found.earliest_ms and found.earliest_ms - now_ms, found.latest_ms and found.latest_ms - now_ms)

    def read(self) -> object:
        info = self.store.engine.pops.topic(self.topic)
        return [] if info is None else [f"<{each.message_id}>" for each in self.store.read(self.topic).messages]

    def seen(self) -> list[tuple[str, object]]:
        found: list[tuple[str, object]] = [(each, self.made(each)) for each in ("pending", "scan", "read")]
        found.append(("repeated", (self.send_by_mark(), self.send_for_later_by_mark())))
        self.store.tick()
        return found + [(f"{each} then", self.made(each)) for each in ("cancel both", "scan", "read")]

    def tear_down(self) -> None:
        self.store.cancel([each.handle.text() for each in self.store.scan().timers])
        super().tear_down()


class KeyedTimers(Timers):
    """The same, with cancels by key."""

    ELSEWHERE: ClassVar[tuple[str, ...]] = ("cancel", "cancel both", "tick", "schedule", "pending")
    ALWAYS: ClassVar[tuple[tuple[str, str], ...]] = (("cancel key", "tick"), ("cancel key", "cancel both"), ("cancel key", "schedule"))
    CALLS: ClassVar[Calls] = {
        "cancel key": lambda world: [each.name for each in world.store.cancel_key(world.topic, "k")],
        **{name: Timers.CALLS[name] for name in ELSEWHERE},
    }

    def made(self, call: str) -> object:
        """What is left is told by all that timers have."""
        return {**Timers.CALLS, **self.CALLS}[call](self)


class Letters(Arena):
    """Two dead letters that operators resend and drop at the same time, while their group goes on."""

    CALLS: ClassVar[Calls] = {
        "resend": lambda world: world.store.dead_letters.resend(world.letters[:1]),
        "resend both": lambda world: world.store.dead_letters.resend(world.letters),
        "drop": lambda world: world.store.dead_letters.drop(world.letters[:1]),
        "pop letters": lambda world: world.popped(
            world.store.pop(f"%DLQ%{world.group}", world.named("operators"), max_messages=1, invisible_ms=_LONG_MS)
        ),
        "pop": lambda world: world.pop(2),
        "ack": lambda world: world.ack(world.held),
        "reject": lambda world: world.store.reject(world.held, reason="too").name,
        "tick": lambda world: world.store.tick().moved,
        "dead letters": lambda world: [(each.message.message_id, each.reason) for each in world.store.dead_letters.list(world.group)],
        **_OF_ALL,
    }
    READS: ClassVar[tuple[str, ...]] = ("dead letters", "lag")
    ALWAYS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("resend", "drop"),
        ("resend both", "pop"),
        ("reject", "resend both"),
        ("reject", "lag"),
    )

    def build(self) -> None:
        self.store.send_batch([self.message(f"m{n}") for n in range(3)])
        *rejected, self.held = self.store.pop(self.topic, self.group, max_messages=3, invisible_ms=_LONG_MS)
        self.store.reject(rejected, reason="no")
        self.letters = self.store.dead_letters.list(self.group)

    def seen(self) -> list[tuple[str, object]]:
        found = [*self.standing(self.group), ("again", self.made("resend both"))]
        return [*found, ("drained", self.drained(self.group)), ("lag behind", self.made("lag"))]

    def tear_down(self) -> None:
        self.store.groups.delete(self.named("operators"))
        super().tear_down()


class Runs(Arena):
    """A run of two leases in order, of a queue with two more messages."""

    CALLS: ClassVar[Calls] = {
        "ack first": lambda world: world.ack(world.run[0]),
        "ack second": lambda world: world.ack(world.run[1]),
        "ack both": lambda world: world.ack(*world.run),
        "change": lambda world: world.change(world.run[0]),
        "release": lambda world: world.store.release(world.run[0]).name,
        "reject": lambda world: world.store.reject(world.run[0], reason="no").name,
        "retry later": lambda world: world.retry_later(world.run[1]),
        "pop": lambda world: world.pop(2, order=True),
        "pop again": lambda world: world.pop(2, order=True, attempt_id="a"),
        "pop anew": lambda world: world.pop(2, order=True, attempt_id="b"),
        "send": lambda world: world.store.send(world.message("new", message_group="x")).message_id,
        **_OF_LEASES,
    }
    READS: ClassVar[tuple[str, ...]] = ("lag", "leases")

    def build(self) -> None:
        self.store.topics.create(self.topic, 1)
        self.store.send_batch([self.message(f"m{n}", message_group="x") for n in range(4)])
        self.run = self.store.pop(self.topic, self.group, max_messages=2, invisible_ms=1000, order=True, attempt_id="a")
        self.clock.advance(2000)

    def seen(self) -> list[tuple[str, object]]:
        found = [*self.standing(self.group), ("acked", [self.ack(each) for each in self.run])]
        self.store.tick()
        return [*found, ("drained", self.drained(self.group, order=True)), ("lag behind", self.made("lag"))]
