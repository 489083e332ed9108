"""A script of answers: each outcome of each call, above all those that rest on what another call did a moment ago.

What is not synced yet is made by a call to the lower interface (:meth:`Answers._first`), whose ticket no call awaits, as if another
thread were about to. The public call that follows must wait for it before it answers.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Final

from rmqstore import InitMode, ManualClock, Message, MessageBatch, PoppedMessage, Store
from rmqstore.contract import Change, GroupSettings, PopRequest, PopTxn, Reject, Removal, TimerHandle
from rmqstore.message import dlq_topic, retry_topic
from rmqstore_conformance.faults.script import LONG_MS, START_MS, Answer, Notes, Script, messages_of, outcomes_of

UNSYNCED: Final = "unsynced "
FAR_MS: Final = 500_000

SETTLED: Final = "ack", "change_invisible", "release", "reject"
"""Calls that take a receipt and say what became of it."""


class Answers(Script):
    """See the module."""

    name: ClassVar[str] = "answers"

    def __init__(self, store: Store, clock: ManualClock, notes: Notes | None = None) -> None:
        super().__init__(store, clock, notes)
        self._sends()
        self._cancels()
        self._pops()
        self._pops_with_acks()
        self._settles()
        self._ends_of_leases()
        self._letters()
        self._arrangements()
        if self.has("fifo"):
            self._runs()
        self._schedules()
        self._hand_overs()

    # ------------------------------------------------------------ how calls are added

    def _first(self, name: str, make: Callable[[], object]) -> str:
        """Add a call whose ticket no call awaits; returns what rests on it."""

        def made() -> Answer:
            make()
            return Answer("")

        self.add(name, "", made, is_promised=False)
        return UNSYNCED + name

    @property
    def _now_ms(self) -> int:
        return self.clock.now_ms()

    # ------------------------------------------------------------ sends

    def _sends(self) -> None:
        for side, due_ms in (("now", None), ("later", FAR_MS)):
            one, other, many = (
                messages_of(f"{side}-{each}", count, "t", due_ms=(due_ms,)) for each, count in (("a", 1), ("b", 1), ("c", 3))
            )
            self.add_send(f"send {side}", one, [f"{side} a".encode()])
            self.add_send(f"send {side} again", one, [f"{side} a".encode()], "REPEATED", rests_on=f"send {side}")
            rests_on = self._first(f"a send {side} is on its way", self._below(other, [b"b", b"x"], due_ms))
            self.add_send(f"send {side} what is on its way", other, [b"b"], "REPEATED", rests_on)
            self.add_send(f"send {side} by its second mark", other, [b"x"], "REPEATED", rests_on)
            self.add_send(f"send_batch {side}", many, [f"{side} c".encode(), b"y"])
            self.add_send(f"send_batch {side} again", many, [b"y"], "REPEATED", rests_on=f"send_batch {side}")
            rests_on = self._first(
                f"a batch {side} is on its way", self._below(messages_of(f"{side}-d", 3, "t", due_ms=(due_ms,)), [b"d"], due_ms)
            )
            self.add_send(
                f"send_batch {side} what is on its way", messages_of(f"{side}-d", 3, "t", due_ms=(due_ms,)), [b"d"], "REPEATED", rests_on
            )
        self.add_send("send_batch now and later", messages_of("mixed", 4, "t", due_ms=(None, FAR_MS)), [b"mixed"])
        self.add_send("send without a mark", messages_of("plain", 1, "t"))
        for side, due_ms in (("now", None), ("later", FAR_MS)):
            # One side at a time: two engines promise no order between what one and the other has not synced.
            rests_on = self._first(
                f"a send {side} to be flushed", self._below(messages_of(f"behind-{side}", 1, "t", due_ms=(due_ms,)), [], due_ms)
            )
            self.add(f"flush of a send {side}", "flush", self.store.flush, "DONE", "DONE", rests_on)

    def _below(self, messages: list[Message], marks: list[bytes], due_ms: int | None) -> Callable[[], object]:
        batch = MessageBatch.of(messages)
        if due_ms is None:
            return lambda: self.store.engine.pops.append(batch, self._now_ms, marks)
        return lambda: self._note_timers(messages[0].message_id or "", self.store.engine.timers.put(batch, self._now_ms, marks)[0])

    def _note_timers(self, note: str, receipts: Any) -> None:
        self.notes[note] = [receipts.handle(row).text() for row in range(len(receipts))]

    # ------------------------------------------------------------ cancels

    def _handles(self, note: str) -> list[TimerHandle]:
        return [handle for handle in map(TimerHandle.parse, self.notes[note]) if handle is not None]

    def _put_below(self, note: str, due_ms: int, key: str = "k") -> Callable[[], object]:
        return self._below(messages_of(note, 2, "t", due_ms=(due_ms,), keys=(key,)), [], due_ms)

    def _cancel(self, name: str, note: str, outcome: str, rests_on: str = "") -> None:
        self.add(name, "cancel", lambda: self.store.cancel(self.notes[note]), outcome, outcome, rests_on, "some")

    def _cancels(self) -> None:
        timers = self.store.engine.timers
        self._cancel("cancel", "send_batch later", "CANCELLED", rests_on="send_batch later")
        self._cancel("cancel again", "send_batch later", "CANCELLED", rests_on="cancel")
        put = self._first("a put is on its way", self._put_below("p", FAR_MS))
        self._cancel("cancel a put on its way", "p0", "CANCELLED", put)
        self._first("another put", self._put_below("q", FAR_MS))
        cancel = self._first("a cancel is on its way", lambda: timers.cancel(self._handles("q0"), self._now_ms))
        self._cancel("cancel what is being cancelled", "q0", "CANCELLED", cancel)
        self.add("cancel what is no handle", "cancel", lambda: self.store.cancel("no handle"), "UNKNOWN", "UNKNOWN")
        if self.has("cancel_by_key"):
            self._first("a put with a key is on its way", self._put_below("r", FAR_MS, "r"))
            self._cancel_key(
                "cancel_key of a put on its way", "r", "CANCELLED", UNSYNCED + "a put with a key is on its way", again="NOTHING"
            )
            self._first("another put with a key", self._put_below("s", FAR_MS, "s"))
            keyed = self._first("a cancel_key is on its way", lambda: timers.cancel_keys("t", ["s"], self._now_ms))
            self._cancel_key("cancel_key of what is being cancelled", "s", "NOTHING", keyed, again="NOTHING")
            self._cancel("cancel what was cancelled by its key", "s0", "CANCELLED", keyed)

    def _cancel_key(self, name: str, key: str, outcome: str, rests_on: str, again: str) -> None:
        self.add(name, "cancel_key", lambda: self.store.cancel_key("t", key), outcome, again, rests_on, "some")

    # ------------------------------------------------------------ pops

    def _request(self, topic: str, group: str, count: int, **asked: Any) -> PopRequest:
        return PopRequest(topic, group, count, asked.pop("invisible_ms", LONG_MS), asked.pop("queue", 0), **asked)

    def _pop_and_ack(self, name: str, topic: str, note: str, outcome: str, rests_on: str, again: str | None = None, **asked: Any) -> None:
        asked = {"max_messages": 2, "invisible_ms": LONG_MS, "queue": 0, **asked}

        def make() -> Answer:
            found = self.store.pop(topic, "g", acks=self.notes[note], **asked)
            given, acked = self.given(name, found), outcomes_of(found.acks)
            return Answer(f"{given.outcome} {acked.outcome}", [given.detail, acked.detail])

        self.add(name, "pop and ack", make, outcome, again, rests_on, "some")

    def _pop_below(self, note: str, topic: str, group: str, count: int, **asked: Any) -> Callable[[], object]:
        def make() -> object:
            result, _ = self.store.engine.pops.pop(self._request(topic, group, count, **asked), self._now_ms)
            return self.given(note, result.messages.messages())

        return make

    def _pops(self) -> None:
        self.add_send("send what is popped", messages_of("w", 40, "w"), [b"w"])
        self.add("create_topic", "create_topic", lambda: self._created("empty", 2), "2", "2")
        self.add_pop("the first pop gives nothing", "empty", "g", 3, "NOTHING")
        self.add_pop("the second pop gives nothing", "empty", "g", 3, "NOTHING", rests_on="the first pop gives nothing")
        self.add_pop("pop", "w", "g", 2, again=False)
        self.add_pop("pop with an attempt", "w", "g", 2, attempt_id="a")
        self.add_pop("pop with the attempt again", "w", "g", 2, "GIVEN", "pop with an attempt", attempt_id="a")
        rests_on = self._first("a pop is on its way", self._pop_below("first of attempt", "w", "g", 2, attempt_id="b"))
        self.add_pop("pop with the attempt on its way", "w", "g", 2, "GIVEN", rests_on, attempt_id="b")
        self.add_pop("pop one", "w", "g", 1, again=False)

    def _created(self, name: str, queues: int) -> int:
        return self.store.topics.create(name, queues).queues

    # ------------------------------------------------------------ receipts

    def _settle(self, name: str, operation: str, note: str, outcome: str, rests_on: str = "", again: str = "STALE") -> None:
        def make() -> object:
            return self.settled(name, operation, self.notes[note], LONG_MS + 1, f"{name} – grund")

        self.add(name, operation, make, outcome, again if outcome in _DONE else outcome, rests_on)

    def _settle_below(self, operation: str, note: str) -> Callable[[], object]:
        def make() -> object:
            held = self.receipts(note)
            txn = {
                "ack": lambda: PopTxn(acks=held),
                "release": lambda: PopTxn(releases=held),
                "reject": lambda: PopTxn(rejects=[Reject(each, "below") for each in held]),
                "change_invisible": lambda: PopTxn(changes=[Change(each, LONG_MS + 2) for each in held]),
            }[operation]()
            result, _ = self.store.engine.pops.apply(txn, self._now_ms)
            self.notes[f"{note} changed"] = [each.receipt.text() for each in result.changes if each.receipt is not None]
            return result

        return make

    def _pops_with_acks(self) -> None:
        self.add_send("send what is popped on", messages_of("on", 20, "on"), [b"on"])
        self.add_pop("pop to go on from", "on", "g", 2, again=False)
        self._pop_and_ack("pop and ack", "on", "pop to go on from", "GIVEN ACKED", "pop to go on from")
        self._pop_and_ack("pop nothing and ack", "empty", "pop and ack", "NOTHING ACKED", "pop and ack", again="NOTHING ALREADY_ACKED")
        self.add_pop("pop to go on from again", "on", "g", 2, again=False)
        acked = self._first("an ack before a pop is on its way", self._settle_below("ack", "pop to go on from again"))
        self._pop_and_ack(
            "pop nothing and ack what is on its way", "empty", "pop to go on from again", "NOTHING ALREADY_ACKED", acked,
            again="NOTHING ALREADY_ACKED",
        )  # fmt: skip
        popped = self._first("a pop to go on from is on its way", self._pop_below("below to go on", "on", "g", 2))
        self._pop_and_ack(
            "pop with an attempt and ack", "on", "below to go on", "GIVEN ACKED", popped, again="GIVEN ALREADY_ACKED", attempt_id="on"
        )

    def _settles(self) -> None:
        self._settle("ack", "ack", "pop", "ACKED", "pop", again="ALREADY_ACKED")
        notes = [f"pop of {group} to ack together" for group in ("g", "two")]
        for note, group in zip(notes, ("g", "two"), strict=True):
            self.add_pop(note, "w", group, 2, again=False)
        self.add(
            "ack of two groups",
            "ack",
            lambda: self.store.ack([receipt for note in notes for receipt in self.notes[note]]),
            "ACKED",
            "ALREADY_ACKED",
            notes[1],
            "some",
        )
        for operation in SETTLED:
            name = f"{operation} of no receipt"
            self.add(name, operation, partial(self.settled, name, operation, ["none"], 1), "UNKNOWN", "UNKNOWN")
        for operation in SETTLED:
            answered = _DONE_BY[operation]
            again = "ALREADY_ACKED" if operation == "ack" else "STALE"
            if operation != "ack":
                self.add_pop(f"pop to {operation}", "w", "g", 1, again=False)
                self._settle(operation, operation, f"pop to {operation}", answered, f"pop to {operation}")
            self._settle(f"{operation} of an acked one", operation, "pop", "ALREADY_ACKED", "ack")
            # A lease on its way, then ended.
            rests_on = self._first(f"a pop before {operation}", self._pop_below(f"below {operation}", "w", "g", 1))
            self._settle(f"{operation} of a pop on its way", operation, f"below {operation}", answered, rests_on, again)
        for first in SETTLED:
            for then in SETTLED:
                note = f"to {first} then {then}"
                self._first(f"a pop {note}", self._pop_below(note, "w", "g", 1))
                rests_on = self._first(f"{first} on its way before {then}", self._settle_below(first, note))
                self._settle(f"{then} behind {first} on its way", then, note, "ALREADY_ACKED" if first == "ack" else "STALE", rests_on)
        self._settle(
            "ack by the receipt of a change", "ack", "to change_invisible then ack changed", "ACKED", "a change on its way", "ALREADY_ACKED"
        )
        popped: list[PoppedMessage] = []

        def pop() -> None:
            result, _ = self.store.engine.pops.pop(self._request("w", "g", 1), self._now_ms)
            popped[:] = result.messages.messages()

        def retry_later() -> object:
            return [each.outcome for each in self.store.retry_later(popped, timedelta(seconds=200), reason="später")]

        rests_on = self._first("a pop to retry later", pop)
        self.add("retry_later", "retry_later", retry_later, "CHANGED", None, rests_on)
        self.add("retry_later again", "retry_later", retry_later, "STALE", None, "retry_later")

    # ------------------------------------------------------------ leases whose time ends

    def _ends_of_leases(self) -> None:
        self.add_send("send what expires", messages_of("e", 8, "e"), [b"e"])
        self.add_send("send what dies", messages_of("d", 2, "d"), [b"dies"])
        for operation in SETTLED:
            self.add_pop(f"pop briefly to {operation}", "e", "g", 1, again=False, invisible_ms=100)
        rests_on = "pop whose time has ended"
        self._first("time passes", lambda: self.at(1_000))
        for operation in SETTLED:
            again = "ALREADY_ACKED" if operation == "ack" else "STALE"
            self._settle(f"{operation} after its time", operation, f"pop briefly to {operation}", _DONE_BY[operation], rests_on, again)
        self.add_pop("pop briefly", "d", "x", 2, again=False, invisible_ms=100)
        self._first("more time passes", lambda: self.at(2_000))
        revive = self._first("a revive is on its way", lambda: self.store.engine.pops.revive(self._now_ms, 100))
        for operation in SETTLED:
            self._settle(f"{operation} behind a revive on its way", operation, "pop briefly", "STALE", revive)
        self.add_pop("pop what was revived", "d", "x", 2, again=False, invisible_ms=100)
        self.add_tick("tick that buries", 3_000, "MOVED")
        self._settle("ack of what is dead", "ack", "pop what was revived", "STALE", "tick that buries")
        self.add_pop("pop a third time", "e", "y", 2, again=False, invisible_ms=100)
        self.add_tick("tick that revives", 4_000, "MOVED")
        self._settle("ack of what was revived", "ack", "pop a third time", "STALE", "tick that revives")
        self.add_tick("tick that moves nothing", 4_000, "NOTHING")

    # ------------------------------------------------------------ dead letters

    def _letters(self) -> None:
        queue = dlq_topic("x")

        def remove_below(offset: int, resend_to: str | None) -> Callable[[], object]:
            removal = Removal(queue, 0, offset, resend_to=resend_to, resend_queue=None if resend_to is None else 0)

            def remove() -> None:
                result, _ = self.store.engine.pops.apply(PopTxn(removals=[removal]), self._now_ms)
                assert result.removals == (True,)

            return remove

        found: list[Any] = []

        def letters() -> list[Any]:
            # Made again after a crash, the call is about what is there.
            return found or self.store.dead_letters.list("x")

        def resent() -> int:
            return self.store.dead_letters.resend(letters()[:1])

        def dropped() -> int:
            return self.store.dead_letters.drop(letters()[1:2] if found else letters())

        self._first("a look at the letters", lambda: found.extend(self.store.dead_letters.list("x")))
        self._first("a resend is on its way", remove_below(0, retry_topic("x", "d")))
        self.add("resend_dead what is on its way", "resend_dead", resent, "0", None, UNSYNCED + "a resend is on its way")
        self._first("a drop is on its way", remove_below(1, None))
        self.add("drop_dead what is on its way", "drop_dead", dropped, "0", "0", UNSYNCED + "a drop is on its way")
        self.add_pop("pop what was resent", "d", "x", 1, again=False)
        self._settle("reject what was resent", "reject", "pop what was resent", "REJECTED", "a resend")
        self.add("resend_dead", "resend_dead", lambda: self.store.dead_letters.resend(self.store.dead_letters.list("x")), "1", "0")
        self.add_pop("pop what was resent again", "d", "x", 1, again=False)
        self._settle("reject again", "reject", "pop what was resent again", "REJECTED", "resend_dead")
        self.add("drop_dead", "drop_dead", lambda: self.store.dead_letters.drop(self.store.dead_letters.list("x")), "1", "0")

    # ------------------------------------------------------------ topics and groups

    def _arrangements(self) -> None:
        pops = self.store.engine.pops
        settings = GroupSettings(max_retries=3, backoff_ms=(1_000, 2_000))
        backoff = [timedelta(seconds=1), timedelta(seconds=2)]

        def both(name: str, below: Callable[[], object], public: Callable[[], object]) -> None:
            rests_on = self._first(f"{name} is on its way", below)
            self.add(f"{name} what is on its way", name, public, "DONE", "DONE", rests_on)

        self.add("set_group", "set_group", lambda: self.store.groups.set("y", max_retries=2), "DONE", "DONE")
        both("set_group", lambda: pops.set_group("y", settings), lambda: self.store.groups.set("y", max_retries=3, backoff=backoff))
        rests_on = self._first("create_topic is on its way", lambda: pops.create_topic("made", 3))
        self.add("create_topic what is on its way", "create_topic", lambda: self._created("made", 3), "3", "3", rests_on)
        self.add("create_topic wider", "create_topic", lambda: self._created("made", 4), "4", "4", "create_topic")
        self.add_pop("pop before a reset", "e", "z", 2, again=False)
        self.add("reset_offset", "reset_offset", lambda: self.store.groups.reset_offset("e", "z", InitMode.MAX), "DONE", "DONE")
        self._settle("ack behind a reset", "ack", "pop before a reset", "STALE", "reset_offset")
        self.add_pop("pop before another reset", "w", "z", 2, again=False)
        both(
            "reset_offset",
            lambda: pops.reset_offset("w", "z", None, InitMode.MIN, self._now_ms),
            lambda: self.store.groups.reset_offset("w", "z", InitMode.MIN),
        )
        for operation in SETTLED:
            self._settle(f"{operation} behind a reset on its way", operation, "pop before another reset", "STALE", UNSYNCED + "a reset")
        both("delete_group", lambda: pops.delete_group("z"), lambda: self.store.groups.delete("z"))
        self.add("delete_group", "delete_group", lambda: self.store.groups.delete("y"), "DONE", "DONE")
        both("delete_topic", lambda: pops.delete_topic("w"), lambda: self.store.topics.delete("w"))
        self.add("delete_topic", "delete_topic", lambda: self.store.topics.delete("e"), "DONE", "DONE")

    # ------------------------------------------------------------ runs in order

    def _runs(self) -> None:
        self.add_send("send in order", messages_of("o", 8, "o", message_group="two"), [b"o"])
        self.add_pop("pop in order", "o", "f", 2, attempt_id="o", order=True)
        self.add_pop("pop in order again", "o", "f", 2, "GIVEN", "pop in order", attempt_id="o", order=True)
        self.add_pop("pop in order behind a run", "o", "f", 2, "NOTHING", "pop in order", order=True)
        rests_on = self._first("an ack in order is on its way", self._settle_below("ack", "pop in order"))
        self.add_pop("pop in order behind an ack on its way", "o", "f", 2, "GIVEN", rests_on, again=False, order=True)
        self._settle("ack in order again", "ack", "pop in order", "ALREADY_ACKED", rests_on)
        self._settle("release in order", "release", "pop in order behind an ack on its way", "RELEASED", "pop in order")
        rests_on = self._first("a pop in order is on its way", self._pop_below("below", "o", "f", 2, order=True, attempt_id="p"))
        self.add_pop("pop in order what is on its way", "o", "f", 2, "GIVEN", rests_on, order=True, attempt_id="p")
        self._settle("ack in order what is on its way", "ack", "below", "ACKED", rests_on, again="ALREADY_ACKED")
        self.add_pop("pop in order to reject", "o", "f", 1, again=False, order=True)
        self._settle("reject in order", "reject", "pop in order to reject", "REJECTED")

    # ------------------------------------------------------------ schedules

    def _schedules(self) -> None:
        message = Message("t", b"again", queue_id=0, born_ms=START_MS)

        def put() -> int:
            self.at(4_000)
            return self.store.schedules.put("s", timedelta(seconds=1), message).next_ms - START_MS

        def delete() -> bool:
            return self.store.schedules.delete("s")

        self.add("put a schedule", "schedules.put", put, "5000", "5000")
        self.add_tick("tick that sends for a schedule", 5_000, "MOVED")
        self.add("delete a schedule", "schedules.delete", delete, "True", "False")
        rests_on = self._first("a note is on its way", lambda: self.store.engine.pops.apply(PopTxn(notes={"n": b"n"}), self._now_ms))
        self.add("delete no schedule", "schedules.delete", delete, "False", "False", rests_on)

    # ------------------------------------------------------------ hand-over

    def _hand_overs(self) -> None:
        """Add what rests on seals and hand-overs; last, as timers are due by then."""
        timers = self.store.engine.timers
        for name, key, ms in (("u", "u", 6_000), ("v", "v", 7_000)):
            self._first(f"a put of {name}", self._put_below(name, ms, key))
            self._first(f"time comes to {name}", partial(self.at, ms))
            sealed = self._first(f"a seal of {name} is on its way", partial(timers.seal, START_MS + ms))
            if name == "u":
                self._cancel("cancel behind a seal on its way", "u0", "ALREADY_DELIVERED", sealed)
                self._cancel("cancel behind a seal again", "u0", "ALREADY_DELIVERED", "a seal")
            elif self.has("cancel_by_key"):
                self._cancel_key("cancel_key behind a seal on its way", "v", "ALREADY_DELIVERED", sealed, again="ALREADY_DELIVERED")
        # All is durable but the seal.
        self.add_send("send what is sealed", messages_of("sealed", 2, "t", due_ms=(7_000,)), [b"sealed"])
        sealed = self._first("a seal alone is on its way", partial(timers.seal, START_MS + 7_000))
        self._cancel("cancel behind a seal alone", "send what is sealed", "ALREADY_DELIVERED", sealed)
        self.add_tick("tick that hands over", 7_000, "MOVED")
        self._cancel("cancel behind a hand-over", "u0", "ALREADY_DELIVERED", "tick that hands over")
        self.add("flush of nothing", "flush", self.store.flush, "DONE", "DONE")


_DONE_BY: Final = {"ack": "ACKED", "change_invisible": "CHANGED", "release": "RELEASED", "reject": "REJECTED"}
_DONE: Final = frozenset(_DONE_BY.values())
