"""A store at work: makes calls to an engine, and writes each of them down with its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from plugins.wheel.tests.power.book import MAX_RETRIES, Event
from rmqstore.batch import MessageBatch
from rmqstore.contract import (
    AckOutcome,
    CancelOutcome,
    Change,
    Engine,
    EngineOptions,
    EngineSession,
    PopRequest,
    PopTxn,
    Receipt,
    Reclaim,
    Side,
    Ticket,
    TimerHandle,
)
from rmqstore.errors import StoreFullError
from rmqstore.handover import HandOver
from rmqstore.message import Message

START_MS: Final = 1_700_000_000_000
BATCH: Final = 5
"""Messages that a tick hands over at a time."""

Place = tuple[str, str]
T = TypeVar("T")


def options(precision_ms: int = 1000, **changes: Any) -> EngineOptions:
    """Return what an engine is opened with; nothing is remembered for a shorter time than a drain takes."""
    given = {"reclaim": Reclaim.AGE, "cancel_memory_ms": 2**50, "outcome_memory_ms": 2**50, "mark_memory_ms": 2**50, **changes}
    return EngineOptions(store_tag=7, broker="b", precision_ms=precision_ms, max_retries=MAX_RETRIES, **given)


def open_store(engine: Engine, path: Path, settings: EngineOptions) -> EngineSession:
    """Open a directory as ``rmqstore.opening`` does."""
    found = engine.open(path, settings)
    try:
        found.timers().recover(found.pops().durable_cursor())
    except BaseException:
        found.close()
        raise
    return found


def abandon(store: EngineSession) -> None:
    """Let go of a store's files without a last word, as a process does that is killed."""
    ledger = getattr(store, "_timers")._ledger  # noqa: B009
    if ledger.readers is not None:
        ledger.readers.close()
    ledger.timers.close()
    ledger.queues.close()
    ledger.log.close()
    ledger._home.close()


class Life:
    """A store from its creation to the moment at which power is lost.

    Args:
        calls: gives the number of calls to the disk so far.
    """

    def __init__(self, engine: Engine, path: Path, settings: EngineOptions, calls: Callable[[], int]) -> None:
        self.settings = settings
        self.now_ms = START_MS
        self.events: list[Event] = []
        self.handles: dict[str, TimerHandle] = {}
        self.receipts: dict[Place, dict[str, Receipt]] = {}
        self.is_lazy = False
        self.refusals: list[StoreFullError] = []
        self._engine = engine
        self._path = path
        self._calls = calls
        self._names = 0
        self._open("creation")

    def attempt(self, call: Callable[[], T]) -> T:
        """Make a call; once more when there was no room."""
        try:
            return call()
        except StoreFullError as error:
            self.refusals.append(error)
            return call()

    def _open(self, kind: str) -> None:
        with self._event(kind) as event:
            self.session = self.attempt(lambda: open_store(self._engine, self._path, self.settings))
        event.told = self._calls()
        self.timers, self.pops = self.session.timers(), self.session.pops()

    def die(self) -> None:
        """Be killed, and opened again."""
        abandon(self.session)
        self._open("open")

    @contextmanager
    def _event(self, kind: str) -> Iterator[Event]:
        event = Event(kind, self._calls(), self.now_ms)
        self.events.append(event)
        try:
            yield event
        finally:
            event.end = self._calls()

    def _settle(self, side: Side, ticket: Ticket | None, event: Event) -> None:
        """Wait until a call is durable, unless this life is lazy."""
        if not self.is_lazy:
            self.attempt(lambda: side.sync(ticket))
            event.end = event.told = self._calls()

    def settle(self) -> None:
        """Make all durable."""
        with self._event("sync") as event:
            self.attempt(self.pops.sync)
        event.told = self._calls()

    def fresh_names(self, count: int) -> list[str]:
        """Return names for new messages."""
        self._names += count
        return [f"m{number}" for number in range(self._names - count, self._names)]

    # ------------------------------------------------------------ timers

    def put(
        self,
        *delays_ms: int,
        topic: str = "T",
        body: bytes = b"body",
        keys: tuple[str, ...] = (),
        marks: Sequence[bytes] = (),
        tag: str | None = None,
    ) -> list[str]:
        """Put timers; returns their names."""
        names = self.fresh_names(len(delays_ms))
        batch = MessageBatch.of(
            [
                Message(topic, body + b" of " + name.encode(), tag, keys, deliver_at_ms=self.now_ms + delay, message_id=name)
                for name, delay in zip(names, delays_ms, strict=True)
            ]
        )
        with self._event("put") as event:
            receipts, ticket = self.attempt(lambda: self.timers.put(batch, self.now_ms, marks))
            ticks = {name: int(tick) for name, tick in zip(names, receipts.ticks, strict=True)}
            event.effect, event.arguments = "put", (topic, ticks, tuple(marks))
            self.handles.update({name: receipts.handle(row) for row, name in enumerate(names)})
            self._settle(self.timers, ticket, event)
        return names

    def cancel(self, *names: str) -> list[CancelOutcome]:
        """Cancel by handle."""
        with self._event("cancel") as event:
            outcomes, ticket = self.attempt(lambda: self.timers.cancel([self.handles[name] for name in names], self.now_ms))
            gone = [name for name, outcome in zip(names, outcomes, strict=True) if outcome is CancelOutcome.CANCELLED]
            event.effect, event.arguments = "cancel", (gone,)
            self._settle(self.timers, ticket, event)
        return outcomes

    def cancel_key(self, key: str, names: Sequence[str], topic: str = "T") -> None:
        """Cancel by key; ``names`` are those pending with it."""
        with self._event("cancel") as event:
            outcomes, ticket = self.attempt(lambda: self.timers.cancel_key(topic, key, self.now_ms))
            assert outcomes == [CancelOutcome.CANCELLED] * len(names), outcomes
            event.effect, event.arguments = "cancel", (list(names),)
            self._settle(self.timers, ticket, event)

    def tick(self, forward_ms: int = 0, *, revive: bool = True) -> int:
        """Move the clock and do what a tick does."""
        self.now_ms += forward_ms
        watched = _Watched(self)
        hand_over = HandOver(watched, watched, one_log=True, limit=BATCH, sync=True)  # type: ignore[arg-type]
        moved, ticket = self.attempt(lambda: hand_over.run(self.now_ms))
        if revive:
            with self._event("revive") as event:
                report, revived = self.attempt(lambda: self.pops.revive(self.now_ms, 1024))
                event.effect, event.arguments = "revive", (self.now_ms,)
                assert not report.more
                if revived.position:
                    self._settle(self.pops, revived, event)
        if ticket is not None and not self.is_lazy:
            with self._event("tick") as event:
                self.attempt(lambda: self.pops.sync(ticket))
            event.told = self._calls()
        with self._event("tick"):
            self.attempt(lambda: self.timers.forget(self.pops.durable_cursor()))
        return moved

    def maintain(self) -> None:
        """Do the upkeep."""
        with self._event("check point"):
            self.attempt(lambda: self.timers.maintain(self.now_ms, 1024))
        with self._event("reclaim" if self.settings.retention_ms else "upkeep") as event:
            self.attempt(lambda: self.pops.maintain(self.now_ms, 1024))
            event.effect = "reclaim"
            event.arguments = ({found.name: found.min_offsets[0] for found in self.pops.topics()},)

    # ------------------------------------------------------------ pops

    def append(self, count: int, topic: str = "T", marks: Sequence[bytes] = (), body: bytes = b"body") -> list[str]:
        """Append messages that are due now."""
        names = self.fresh_names(count)
        batch = MessageBatch.of([Message(topic, body + b" of " + name.encode(), message_id=name) for name in names])
        with self._event("append") as event:
            _, ticket = self.attempt(lambda: self.pops.append(batch, self.now_ms, marks))
            event.effect, event.arguments = "append", (topic, names, tuple(marks))
            self._settle(self.pops, ticket, event)
        return names

    def pop(self, count: int, topic: str = "T", group: str = "g", invisible_ms: int = 30_000) -> list[str]:
        """Lease messages; returns their names."""
        place = topic, group
        with self._event("pop") as event:
            result, ticket = self.attempt(lambda: self.pops.pop(PopRequest(topic, group, count, invisible_ms), self.now_ms))
            found = result.messages.messages()
            event.effect = "pop"
            event.arguments = (place, [(each.message_id, each.attempt) for each in found], self.now_ms + invisible_ms)
            names = [each.message_id for each in found]
            self.receipts.setdefault(place, {}).update(zip(names, result.messages.receipts(), strict=True))
            self._settle(self.pops, ticket, event)
        return names

    def ack(self, names: Sequence[str], topic: str = "T", group: str = "g") -> None:
        """Ack leases."""
        place = topic, group
        with self._event("ack") as event:
            outcomes, ticket = self.attempt(lambda: self.pops.ack([self.receipts[place][name] for name in names], self.now_ms))
            assert outcomes == [AckOutcome.ACKED] * len(names)
            event.effect, event.arguments = "ack", (place, list(names))
            self._settle(self.pops, ticket, event)

    def change(self, names: Sequence[str], invisible_ms: int, topic: str = "T", group: str = "g") -> None:
        """Let leases end at another time."""
        place = topic, group
        with self._event("change") as event:
            changes = [Change(self.receipts[place][name], invisible_ms) for name in names]
            results, ticket = self.attempt(lambda: self.pops.change_invisible(changes, self.now_ms))
            for name, result in zip(names, results, strict=True):
                assert result.receipt is not None
                self.receipts[place][name] = result.receipt
            event.effect, event.arguments = "change", (place, list(names), self.now_ms + invisible_ms)
            self._settle(self.pops, ticket, event)

    def release(self, names: Sequence[str], topic: str = "T", group: str = "g") -> None:
        """Give leases back."""
        place = topic, group
        with self._event("release") as event:
            _, ticket = self.attempt(lambda: self.pops.release([self.receipts[place][name] for name in names], self.now_ms))
            event.effect, event.arguments = "release", (place, list(names))
            self._settle(self.pops, ticket, event)

    def ack_and_append(self, names: Sequence[str], count: int, topic: str = "T", group: str = "g") -> list[str]:
        """Ack and append in one step."""
        fresh = self.fresh_names(count)
        batch = MessageBatch.of([Message(topic, b"body of " + name.encode(), message_id=name) for name in fresh])
        place = topic, group
        with self._event("ack") as event:
            txn = PopTxn(appends=batch, acks=[self.receipts[place][name] for name in names])
            _, ticket = self.attempt(lambda: self.pops.apply(txn, self.now_ms))
            event.effect, event.arguments = "several", ((("ack", (place, list(names))), ("append", (topic, fresh, ()))),)
            self._settle(self.pops, ticket, event)
        return fresh

    def close(self) -> None:
        """Close the store."""
        with self._event("close") as event:
            self.attempt(self.session.close)
        event.told = self._calls()


class _Watched:
    """Both sides of a store, as the hand-over sees them."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def seal(self, until_ms: int) -> None:
        with self._life._event("tick"):
            self._life.timers.seal(until_ms)

    def apply(self, txn: PopTxn, now_ms: int) -> Any:
        with self._life._event("tick") as event:
            found = self._life.pops.apply(txn, now_ms)
            assert txn.appends is not None
            event.effect = "hand_over"
            event.arguments = ([each.message_id for each in txn.appends.messages],)
        return found

    def sync(self, ticket: Ticket | None = None) -> None:
        with self._life._event("tick") as event:
            self._life.pops.sync(ticket)
        event.told = self._life._calls()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._life.pops if name in ("timer_cursor", "durable_cursor") else self._life.timers, name)
