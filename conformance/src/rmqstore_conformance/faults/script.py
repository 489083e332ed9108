"""What a script is: calls with fixed arguments, made one after the other, and what a store shows after each when nothing disturbs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

import rmqstore
from rmqstore import ManualClock, Message, PoppedMessage, Store
from rmqstore.contract import ChangeResult, Flush, Receipt, Support, TimerHandle
from rmqstore_conformance.faults.showing import Shown, rows_of
from rmqstore_conformance.stores import DAY_MS, Pair
from rmqstore_conformance.targets import capabilities_of

START_MS: Final = 1_700_000_000_000
LATER_MS: Final = START_MS + 30 * DAY_MS
"""By then every timer of a script was due, and every lease is over."""

LONG_MS: Final = 300_000
"""How long a lease runs that ends with no script."""

POPS: Final = ("pop", "pop in order")
"""The operations that lease; under ``pop.flush = async`` a loss of power may undo them."""

_ALL: Final = 100_000

SETTINGS: Final[dict[str, Any]] = {
    "precision_ms": 100,
    "default_queues": 2,
    "services": False,
    "max_retries": 1,
    "retention_ms": 20_000,
    "reclaim": "age",
}


Notes = dict[str, list[str]]
"""The receipts and handles that a play was given, by the names of its steps."""


class Answer(NamedTuple):
    """What a call answered.

    Attributes:
        outcome: in a word; many different ones with a plus between.
        detail: all the rest of the answer that is the same in every play, as JSON has it.
    """

    outcome: str
    detail: Any = None


class Call(msgspec.Struct, frozen=True):
    """One call of a script.

    Attributes:
        operation: which call of a store it is; empty for one below the store whose answer is not told.
        make: makes it.
        outcome: what it must answer; empty: the call checks that itself.
        again: what the same call answers when it is made once more after it happened, and then changes nothing; None: it would do more.
        rests_on: what the answer rests on that another call did; "unsynced …" when that call did not wait for the disk.
        size: how much it moves: one, some, or large.
        may_halt: it goes in steps, each of which is whole by itself: cut short, the same call goes on where they stopped.
        is_promised: it is durable once it was answered; else with the next call that is.
        takes: of receipts, what it deletes: topic or group, and its name. No clause says that they are known afterwards.
    """

    operation: str
    make: Callable[[], Answer]
    outcome: str = ""
    again: str | None = None
    rests_on: str = ""
    size: str = "one"
    may_halt: bool = False
    is_promised: bool = True
    takes: tuple[str, str] = ("", "")

    def __call__(self) -> Answer:
        """Make the call, which must answer as it should."""
        answer = self.make()
        assert not self.outcome or answer.outcome == self.outcome, f"answered {answer.outcome}, not {self.outcome}"
        return answer


class Script:
    """Calls on one store.

    Args:
        notes: receipts and handles that an earlier play of the script was given, by a name of its own for each.

    Attributes:
        calls: by name, in their order. Those that need what an engine does not declare are left out.
        notes: likewise, as far as this play went.
    """

    name: ClassVar[str]
    usual_size: ClassVar[str] = ""
    """Of its calls; empty: one, or some where a call takes several messages."""

    def __init__(self, store: Store, clock: ManualClock, notes: Notes | None = None) -> None:
        self.store = store
        self.clock = clock
        self.notes: Notes = {} if notes is None else notes
        self.calls: dict[str, Call] = {}
        self._declared = capabilities_of(Pair(store.stats().timer_engine, store.stats().pop_engine))

    def has(self, *needs: str) -> bool:
        return all(getattr(each, name) is Support.FULL for each in self._declared for name in needs)

    def at(self, ms: int) -> None:
        """Set the clock; times are absolute, so that a call that is made again does the same."""
        self.clock.set(START_MS + ms)

    def receipts(self, note: str) -> list[Receipt]:
        """Return receipts that a pop or a change noted, as the lower interface takes them."""
        return [receipt for receipt in map(Receipt.parse, self.notes[note]) if receipt is not None]

    def given(self, note: str, messages: Sequence[PoppedMessage]) -> Answer:
        self.notes[note] = in_order(each.receipt or "" for each in messages)
        return Answer("GIVEN" if messages else "NOTHING", rows_of(messages))

    def changed(self, note: str, results: Sequence[ChangeResult]) -> Answer:
        self.notes[note] = in_order(each.receipt.text() for each in results if each.receipt is not None)
        return outcomes_of([each.outcome for each in results])

    def sent(self, note: str, receipts: Sequence[Any]) -> Answer:
        self.notes[note] = [each.handle or "" for each in receipts]
        return Answer("REPEATED" if receipts[0].repeated else "APPLIED", [each.message_id for each in receipts])

    def settled(self, note: str, operation: str, held: Sequence[str], invisible_ms: int, reason: str = "") -> object:
        """End leases, or change them and note what holds them then."""
        if operation == "ack":
            return self.store.ack(held)
        if operation == "release":
            return self.store.release(held)
        if operation == "reject":
            return self.store.reject(held, reason=reason)
        if operation == "change_invisible":
            return self.changed(note, self.store.change_invisible(held, invisible_ms=invisible_ms))
        return self.changed(note, self.store.retry_later([_held_by(each) for each in held], delay_ms=invisible_ms, reason=reason))

    def tick(self, ms: int) -> str:
        self.at(ms)
        report = self.store.tick()
        return "MOVED" if report.moved or report.expired else "NOTHING"

    # ------------------------------------------------------------ how calls are added

    def add(
        self,
        name: str,
        operation: str,
        make: Callable[[], object],
        outcome: str = "",
        again: str | None = None,
        rests_on: str = "",
        size: str = "",
        **more: Any,
    ) -> None:
        """Add a call; the arguments are the attributes of :class:`Call`, and what it gives is made an answer."""
        assert name not in self.calls, name
        if operation in POPS and self.store.engine.config.pop_flush is Flush.ASYNC:
            more.setdefault("is_promised", False)
        self.calls[name] = Call(operation, lambda: answer_of(make()), outcome, again, rests_on, size or self._size(1), **more)

    def _size(self, count: int) -> str:
        return self.usual_size or ("one" if count == 1 else "some")

    def add_send(
        self, name: str, messages: list[Message], marks: Sequence[bytes] = (), outcome: str = "APPLIED", rests_on: str = ""
    ) -> None:
        """Add a send of one message or of a batch; with marks it can be made again."""
        is_one = len(messages) == 1

        def make() -> Answer:
            receipts = [self.store.send(messages[0], marks=marks)] if is_one else self.store.send_batch(messages, marks=marks)
            return self.sent(name, receipts)

        operation = ("send" if is_one else "send_batch") + ("" if messages[0].deliver_at_ms is None else " later")
        self.add(name, operation, make, outcome, "REPEATED" if marks else None, rests_on, self._size(len(messages)))

    def add_pop(
        self, name: str, topic: str, group: str, count: int, outcome: str = "GIVEN", rests_on: str = "", *, again: bool = True, **asked: Any
    ) -> None:
        """Add a pop, for a long time and of queue 0 if nothing else is asked."""
        asked = {"invisible_ms": LONG_MS, "queue": 0, **asked}

        def make() -> Answer:
            return self.given(name, self.store.pop(topic, group, max_messages=count, **asked))

        operation = "pop in order" if asked.get("order") else "pop"
        self.add(name, operation, make, outcome, outcome if again else None, rests_on, self._size(count))

    def add_tick(self, name: str, ms: int, outcome: str = "", **more: Any) -> None:
        self.add(name, "tick", lambda: self.tick(ms), outcome, may_halt=True, **more)


def _held_by(receipt: str) -> PoppedMessage:
    """Return a message under a receipt; to put it off to a given time nothing else of it counts."""
    return PoppedMessage("", b"", None, (), {}, None, None, "", 0, 0, 0, 0, 1, None, Receipt.parse(receipt))


def answer_of(given: object) -> Answer:
    """Return what a call gave as an answer: outcomes by their names, DONE when it gave nothing, and anything else as a word."""
    if isinstance(given, Answer):
        return given
    if isinstance(given, Enum):
        return outcomes_of([given])
    if isinstance(given, list | tuple):
        return outcomes_of(given)
    return Answer("DONE" if given is None else str(given))


def outcomes_of(outcomes: Sequence[Any]) -> Answer:
    """Return the answer of a call that gives one outcome each."""
    names = [each.name for each in outcomes]
    return Answer("+".join(dict.fromkeys(names)) or "NOTHING", names)


def in_order(texts: Iterable[str]) -> list[str]:
    """Return handles in the order of their puts, and receipts by what they hold: in an order that the store can be asked for."""

    def key(text: str) -> Any:
        if (handle := TimerHandle.parse(text)) is not None:
            return (handle.epoch, handle.seq)
        receipt = Receipt.parse(text)
        assert receipt is not None
        return (receipt.group, receipt.topic, receipt.retry_flag, receipt.queue_id, receipt.queue_offset)

    return sorted(texts, key=key)


def note_what_was_lost(store: Store, name: str, call: Call, notes: Notes) -> None:
    """Note what a call gave and took of which the answer was lost: what it gave the store knows, and no note of another call has it."""
    take(call, notes)
    # The play itself may have been interrupted behind its note.
    notes.pop(name, None)
    given = [timer.handle.text() for timer in store.scan(limit=_ALL).timers] + [lease.receipt for lease in store.leases()]
    known = {text for texts in notes.values() for text in texts}
    notes[name] = in_order(text for text in given if text not in known)


def take(call: Call, notes: Notes) -> None:
    """Remove from notes what a call deletes."""
    field, name = call.takes
    for step, texts in notes.items() if field else ():
        notes[step] = [text for text in texts if getattr(Receipt.parse(text), field, "") != name]


def messages_of(
    prefix: str, count: int, topic: str, *, body: bytes = b"", due_ms: Sequence[int | None] = (None,), **fields: Any
) -> list[Message]:
    """Return messages that have something in every field.

    Args:
        due_ms: when they are due, from the start of the script, in turns; None: now.
    """
    fields = {"queue_id": 0, "keys": (f"{prefix}-key", "ключ"), "born_ms": START_MS - 5, **fields}
    return [
        Message(
            topic,
            f"{prefix}{number}".encode() + b"\x00\xff" + body,
            tag=f"tag-{number % 3}",
            properties={"n": str(number), "größe": "ü\u2028\U0001f600"},
            message_id=f"{prefix}{number}",
            deliver_at_ms=None if due is None else START_MS + due,
            **fields,
        )
        for number in range(count)
        for due in (due_ms[number % len(due_ms)],)
    ]


def open_script(path: Path | str, pair: Pair, settings: dict[str, Any], clock: ManualClock) -> Store:
    """Open a store as everything does that has to do with a script."""
    engines = {"timer_engine": pair.timers, "pop_engine": pair.pops}
    store: Store = rmqstore.open(path, clock=clock, **{**SETTINGS, **engines, **settings})
    return store


class Step(NamedTuple):
    """A call of a script as it was made: at which time, what it answered, and what the store shows after it."""

    name: str
    call: Call
    now_ms: int
    answer: Answer
    shown: Shown


class Play(NamedTuple):
    """A script as it goes on a pair of engines when nothing disturbs it; step 0 is the opening of the new store."""

    pair: Pair
    script: str
    steps: list[Step]

    @property
    def calls(self) -> range:
        return range(1, len(self.steps))

    def given_out(self, done: int, notes: Notes) -> list[str]:
        """Return the handles and receipts that the steps up to ``done`` gave, as a play noted them."""
        steps = [step for step in self.steps[: done + 1] if step.call.is_promised or step.call.operation in POPS]
        return [text for step in steps for text in notes.get(step.name, ()) if text]

    def all_promised(self) -> Play:
        """Return the play as what a kill must leave of it if it takes nothing: every step is durable once it was answered."""
        return self._replace(
            steps=[step._replace(call=msgspec.structs.replace(step.call, is_promised=step.call.operation != "")) for step in self.steps]
        )

    def without_upkeep(self) -> Play:
        """Return the play without steps that promise nothing: what is reclaimed depends on which messages are held, which is free."""
        return self._replace(steps=[step for step in self.steps if step.call.is_promised])

    def number_of(self, shown: Shown) -> str:
        """Say after which step the store shows this."""
        return ", ".join(f"as after step {number} ({step.name})" for number, step in enumerate(self.steps) if step.shown == shown)
