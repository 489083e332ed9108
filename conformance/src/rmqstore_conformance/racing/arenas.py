"""What threads race for: small worlds in which some calls meet the same lease, message, timer, mark or letter.

A world is built again for each run, under names of its own within one store, so that a run finds the same whatever was there before. A call
answers with plain data. Names and receipts are told apart by where they turn up first, so that runs can be compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import msgspec

from rmqstore import AckOutcome, InitMode, Message, PoppedMessage, Store
from rmqstore.contract import ChangeResult
from rmqstore.errors import RmqstoreError
from rmqstore_conformance.stores import HOUR_MS, Stores

_LONG_MS = 10 * HOUR_MS


class Arena:
    """One small world.

    Attributes:
        CALLS: names of its calls, each a method.
        READS: those that change nothing.
        ALWAYS: races that even a short run plays.
    """

    CALLS: ClassVar[tuple[str, ...]] = ()
    READS: ClassVar[tuple[str, ...]] = ()
    ALWAYS: ClassVar[tuple[tuple[str, str], ...]] = ()

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
        """Do what comes before the race."""
        raise NotImplementedError

    def act(self, call: str) -> Callable[[], object]:
        """Return a call; what it raises is its answer."""
        method: Callable[[], object] = getattr(self, call.replace(" ", "_"))

        def answered() -> object:
            try:
                return method()
            except RmqstoreError as error:
                return (type(error).__name__, str(error))

        return answered

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
        """Return a message of the topic."""
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


class Leases(Arena):
    """Two leases, one of which has come to its end, and two messages that are ready; the group may hold three leases."""

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
    CALLS: ClassVar[tuple[str, ...]] = (
        "ack",
        "ack both",
        "ack ended",
        "change",
        "release",
        "retry later",
        "reject",
        "pop",
        "pop again",
        "pop anew",
        "pop tagged",
        "send",
        "send two",
        "tick",
        "reset",
        "delete topic",
        "delete group",
        "set group",
        "set other group",
        "create topic",
        *READS,
    )

    def build(self) -> None:
        self.store.topics.create(self.topic, 1)
        self.store.send_batch([self.message(f"m{n}", tag="ab"[n % 2]) for n in range(4)])
        (self.held,) = self.store.pop(self.topic, self.group, max_messages=1, invisible_ms=_LONG_MS, attempt_id="a")
        (self.ended,) = self.store.pop(self.topic, self.group, max_messages=1, invisible_ms=1000)
        self.clock.advance(2000)

    def ack(self) -> object:
        return self.store.ack(self.held).name

    def ack_both(self) -> object:
        return [each.name for each in self.store.ack([self.ended, self.held])]

    def ack_ended(self) -> object:
        return self.store.ack(self.ended).name

    def change(self) -> object:
        return self.changed(self.store.change_invisible(self.held, invisible_ms=_LONG_MS))

    def release(self) -> object:
        return self.store.release(self.held).name

    def retry_later(self) -> object:
        return self.changed(self.store.retry_later(self.held, delay_ms=_LONG_MS, reason="why"))

    def reject(self) -> object:
        return self.store.reject(self.held, reason="no").name

    def pop(self) -> object:
        return self.popped(self.store.pop(self.topic, self.group, max_messages=2, invisible_ms=_LONG_MS))

    def pop_again(self) -> object:
        return self.popped(self.store.pop(self.topic, self.group, max_messages=1, invisible_ms=_LONG_MS, attempt_id="a"))

    def pop_anew(self) -> object:
        return self.popped(self.store.pop(self.topic, self.group, max_messages=1, invisible_ms=_LONG_MS, attempt_id="b"))

    def pop_tagged(self) -> object:
        return self.popped(self.store.pop(self.topic, self.group, max_messages=1, invisible_ms=_LONG_MS, filter="b"))

    def send(self) -> object:
        return self.store.send(self.message("new", queue_id=0)).message_id

    def send_two(self) -> object:
        return [each.message_id for each in self.store.send_batch([self.message(f"new{n}", queue_id=0) for n in range(2)])]

    def tick(self) -> object:
        report = self.store.tick()
        return (report.retried, report.dead)

    def reset(self) -> None:
        self.store.groups.reset_offset(self.topic, self.group, InitMode.MIN)

    def delete_topic(self) -> None:
        self.store.topics.delete(self.topic)

    def delete_group(self) -> None:
        self.store.groups.delete(self.group)

    def set_group(self) -> None:
        self.store.groups.set(self.group, max_retries=0)

    def set_other_group(self) -> None:
        self.store.groups.set(self.named("h"), max_retries=1)

    def create_topic(self) -> object:
        return self.store.topics.create(self.topic, 2).queues

    def lag(self) -> object:
        return msgspec.structs.asdict(self.store.lag(self.topic, self.group))

    def leases(self) -> object:
        found = self.store.leases(self.topic, self.group)
        return [(each.message_id, each.attempt, f"<{each.receipt}>", each.is_backing_off) for each in found]

    def offsets(self) -> object:
        return [(each.topic, each.queue_id, each.next_offset, each.in_flight) for each in self.store.groups.offsets(self.group)]

    def seen(self) -> list[tuple[str, object]]:
        found = self.standing(self.group)
        found.append(("again", self.pop_again()))
        found.append(("acked", [self.store.ack(each).name for each in (self.held, self.ended)]))
        for group in (self.group, self.named("h")):
            found.append(("settings", msgspec.structs.asdict(self.store.groups.settings(group))))
        self.tick()
        found.append(("drained", self.drained(self.group)))
        found.append(("lag behind", self.lag()))
        return found


class Timers(Arena):
    """A timer that is due, a later one of the same key, and calls of both sides by one mark."""

    READS: ClassVar[tuple[str, ...]] = ("pending", "scan", "lag", "read")
    ALWAYS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("cancel", "tick"),
        ("cancel both", "tick"),
        ("cancel both", "scan"),
        ("schedule", "pending"),
        ("schedule past", "tick"),
        ("tick", "pending"),
    )
    CALLS: ClassVar[tuple[str, ...]] = (
        "cancel",
        "cancel later",
        "cancel both",
        "tick",
        "schedule",
        "schedule past",
        "send",
        "send for later by mark",
        "send by mark",
        *READS,
    )

    def build(self) -> None:
        self.due = self.store.send(self.message("due", keys=("k",)), delay_ms=1000).handle or ""
        self.far = self.store.send(self.message("far", keys=("k",)), delay_ms=HOUR_MS).handle or ""
        self.clock.advance(1000)

    def cancel(self) -> object:
        return self.store.cancel(self.due).name

    def cancel_later(self) -> object:
        return self.store.cancel(self.far).name

    def cancel_both(self) -> object:
        return [each.name for each in self.store.cancel([self.far, self.due])]

    def tick(self) -> object:
        return self.store.tick().handed_over

    def schedule(self) -> object:
        return bool(self.store.send(self.message("more", keys=("k",)), delay_ms=HOUR_MS).handle)

    def schedule_past(self) -> object:
        # Its tick is under what a running tick has sealed.
        rows = [
            self.message("late", deliver_at_ms=self.clock.now_ms() - 1),
            self.message("later", deliver_at_ms=self.clock.now_ms() + HOUR_MS),
        ]
        return [bool(each.handle) for each in self.store.send_batch(rows)]

    def send(self) -> object:
        return self.store.send(self.message("now")).message_id

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

    def scan(self) -> object:
        return [(each.message.message_id, f"<{each.handle.text()}>") for each in self.store.scan().timers]

    def lag(self) -> object:
        return self.store.lag(self.topic, self.group).ready

    def read(self) -> object:
        info = self.store.engine.pops.topic(self.topic)
        return [] if info is None else [f"<{each.message_id}>" for each in self.store.read(self.topic).messages]

    def seen(self) -> list[tuple[str, object]]:
        found: list[tuple[str, object]] = [("pending", self.pending()), ("scan", self.scan()), ("read", self.read())]
        found += [("repeated", (self.send_by_mark(), self.send_for_later_by_mark()))]
        self.tick()
        found += [("cancelled", self.cancel_both()), ("pending then", self.scan()), ("read then", self.read())]
        return found

    def tear_down(self) -> None:
        self.store.cancel([each.handle.text() for each in self.store.scan().timers])
        super().tear_down()


class KeyedTimers(Timers):
    """The same, with cancels by key."""

    CALLS: ClassVar[tuple[str, ...]] = ("cancel key", "cancel", "cancel both", "tick", "schedule", "pending")

    def cancel_key(self) -> object:
        return [each.name for each in self.store.cancel_key(self.topic, "k")]


class Letters(Arena):
    """Two dead letters that operators resend and drop at the same time, while their group goes on."""

    READS: ClassVar[tuple[str, ...]] = ("dead letters", "lag")
    ALWAYS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("resend", "drop"),
        ("resend both", "pop"),
        ("reject", "resend both"),
        ("reject", "lag"),
    )
    CALLS: ClassVar[tuple[str, ...]] = (
        "resend",
        "resend both",
        "drop",
        "pop letters",
        "pop",
        "ack",
        "reject",
        "delete group",
        "tick",
        *READS,
    )

    def build(self) -> None:
        self.store.send_batch([self.message(f"m{n}") for n in range(3)])
        *rejected, self.held = self.store.pop(self.topic, self.group, max_messages=3, invisible_ms=_LONG_MS)
        self.store.reject(rejected, reason="no")
        self.letters = self.store.dead_letters.list(self.group)

    def resend(self) -> object:
        return self.store.dead_letters.resend(self.letters[:1])

    def resend_both(self) -> object:
        return self.store.dead_letters.resend(self.letters)

    def drop(self) -> object:
        return self.store.dead_letters.drop(self.letters[:1])

    def pop_letters(self) -> object:
        return self.popped(self.store.pop(f"%DLQ%{self.group}", self.named("operators"), max_messages=1, invisible_ms=_LONG_MS))

    def pop(self) -> object:
        return self.popped(self.store.pop(self.topic, self.group, max_messages=2, invisible_ms=_LONG_MS))

    def ack(self) -> object:
        return self.store.ack(self.held).name

    def reject(self) -> object:
        return self.store.reject(self.held, reason="too").name

    def delete_group(self) -> None:
        self.store.groups.delete(self.group)

    def tick(self) -> object:
        return self.store.tick().moved

    def dead_letters(self) -> object:
        return [(each.message.message_id, each.reason) for each in self.store.dead_letters.list(self.group)]

    def lag(self) -> object:
        return msgspec.structs.asdict(self.store.lag(self.topic, self.group))

    def seen(self) -> list[tuple[str, object]]:
        found = self.standing(self.group)
        found += [("again", self.resend_both()), ("drained", self.drained(self.group)), ("lag behind", self.lag())]
        return found

    def tear_down(self) -> None:
        self.store.groups.delete(self.named("operators"))
        super().tear_down()


class Runs(Arena):
    """A run of two leases in order, of a queue with two more messages."""

    READS: ClassVar[tuple[str, ...]] = ("lag", "leases")
    CALLS: ClassVar[tuple[str, ...]] = (
        "ack first",
        "ack second",
        "ack both",
        "change",
        "release",
        "reject",
        "retry later",
        "pop",
        "pop again",
        "pop anew",
        "send",
        "tick",
        "reset",
        "delete group",
        *READS,
    )

    def build(self) -> None:
        self.store.topics.create(self.topic, 1)
        self.store.send_batch([self.message(f"m{n}", message_group="x") for n in range(4)])
        self.run = self.store.pop(self.topic, self.group, max_messages=2, invisible_ms=1000, order=True, attempt_id="a")
        self.clock.advance(2000)

    def ack_first(self) -> object:
        return self.store.ack(self.run[0]).name

    def ack_second(self) -> object:
        return self.store.ack(self.run[1]).name

    def ack_both(self) -> object:
        return [each.name for each in self.store.ack(self.run)]

    def change(self) -> object:
        return self.changed(self.store.change_invisible(self.run[0], invisible_ms=_LONG_MS))

    def release(self) -> object:
        return self.store.release(self.run[0]).name

    def reject(self) -> object:
        return self.store.reject(self.run[0], reason="no").name

    def retry_later(self) -> object:
        return self.changed(self.store.retry_later(self.run[1], delay_ms=_LONG_MS, reason="why"))

    def pop(self) -> object:
        return self.popped(self.store.pop(self.topic, self.group, max_messages=2, invisible_ms=_LONG_MS, order=True))

    def pop_again(self) -> object:
        found = self.store.pop(self.topic, self.group, max_messages=2, invisible_ms=_LONG_MS, order=True, attempt_id="a")
        return self.popped(found)

    def pop_anew(self) -> object:
        found = self.store.pop(self.topic, self.group, max_messages=2, invisible_ms=_LONG_MS, order=True, attempt_id="b")
        return self.popped(found)

    def send(self) -> object:
        return self.store.send(self.message("new", message_group="x")).message_id

    def tick(self) -> object:
        report = self.store.tick()
        return (report.retried, report.dead)

    def reset(self) -> None:
        self.store.groups.reset_offset(self.topic, self.group, InitMode.MIN)

    def delete_group(self) -> None:
        self.store.groups.delete(self.group)

    def lag(self) -> object:
        return msgspec.structs.asdict(self.store.lag(self.topic, self.group))

    def leases(self) -> object:
        found = self.store.leases(self.topic, self.group)
        return [(each.message_id, each.attempt, f"<{each.receipt}>", each.is_backing_off) for each in found]

    def seen(self) -> list[tuple[str, object]]:
        found = self.standing(self.group)
        found.append(("acked", [self.store.ack(each).name for each in self.run]))
        self.tick()
        found.append(("drained", self.drained(self.group, order=True)))
        found.append(("lag behind", self.lag()))
        return found
