"""A fixed workload of everyday calls, each of which may be made again when it failed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from rmqstore import AckOutcome, ChangeOutcome, InitMode, ManualClock, Message, PoppedMessage, Store
from rmqstore.store.dead_letters import DeadLetter
from rmqstore_conformance.faults.script import Notes, Script, messages_of

GROUPS: Final = ("g", "h", "f")
UPKEEP: Final = "tick that reclaims"
"""A call whose work is durable only with the next call; it may follow all others."""

_ALL: Final = 1000
"""As many as there are: which queue a plain pop takes first, and when it looks at the retry topic, is free."""


def _later(prefix: str, count: int, step_ms: int, body: bytes = b"") -> list[Message]:
    return _messages(prefix, count, due_ms=[200 + step_ms * (number + step_ms // 1000) for number in range(count)], body=body)


def _messages(prefix: str, count: int, *, due_ms: list[int] | None = None, body: bytes = b"") -> list[Message]:
    both = [messages_of(prefix, count, "t", body=body, due_ms=due_ms or (None,), queue_id=queue) for queue in (0, 1)]
    return [both[number % 2][number] for number in range(count)]


def _to_another(prefix: str) -> list[Message]:
    return messages_of(prefix, 2, "u", due_ms=(300,), keys=(f"{prefix}-key",))


def _in_order(prefix: str, count: int) -> list[Message]:
    # A resend goes to the queue of the message group, which is queue 0 for this one.
    return messages_of(prefix, count, "s", message_group="two")


class Workload(Script):
    """Sends, timers, cancels, pops, runs in order, dead letters, resets, deletions, ticks."""

    name: ClassVar[str] = "workload"

    def __init__(self, store: Store, clock: ManualClock, notes: Notes | None = None) -> None:
        super().__init__(store, clock, notes)
        self._handles: list[str] = []
        self._held: dict[str, list[PoppedMessage]] = {group: [] for group in GROUPS}
        noise = hashlib.shake_128(b"noise").digest(1500)
        self._add("send", "send", lambda: self._send(_messages("a", 1)[0]))
        self._add("send_batch", "send_batch", lambda: self._send_batch(_messages("b", 6)))
        self._add("send later", "send", lambda: self._send(_later("c", 1, 100)[0]))
        self._add("send_batch later", "send_batch", lambda: self._send_batch(_later("d", 20, 90)))
        self._add("send_batch later to two topics", "send_batch", lambda: self._send_batch(_later("m", 2, 90) + _to_another("n")))
        self._add("send_batch now and later", "send_batch", lambda: self._send_batch(_messages("e", 3) + _later("f", 4, 50)))
        self._add("cancel", "cancel", lambda: store.cancel(self._handles[0]), "CANCELLED")
        self._add("cancel many", "cancel", lambda: store.cancel(self._handles[3:6]), "CANCELLED")
        if self.has("cancel_by_key"):
            self._add("cancel_key", "cancel_key", lambda: store.cancel_key("t", "f-key"), "CANCELLED")
        # The first pop of a group says where it starts, so it waits for the disk under any setting.
        self._add("pop", "pop", lambda: self._pop("g", 3, 5_000, queue=0), is_promised=True)
        self._add("ack", "ack", lambda: self._ack("g", 1))
        self._add("pop more", "pop", lambda: self._pop("g", 2, 60_000, queue=1))
        self._add("change", "change_invisible", lambda: self._change("g"))
        self._add("release", "release", lambda: store.release(self._held["g"][-2]), "RELEASED")
        self.add_tick("tick that hands over", 2_500, size="some")
        self._add("pop by another", "pop", lambda: self._pop("h", _ALL, 60_000), is_promised=True)
        self._add("ack many", "ack", lambda: self._ack("h", 10))
        self._add("send_batch big", "send_batch", lambda: self._send_batch(_messages("i", 40, body=noise)))
        self._add("send_batch big later", "send_batch", lambda: self._send_batch(_later("j", 40, 500_000, body=noise)))
        self.add_tick("tick that revives", 6_000, size="some")
        self._add("pop what came back", "pop", lambda: self._pop("g", _ALL, 60_000))
        self._add("ack the rest", "ack", lambda: self._ack("g", 8))
        self._add("send in order", "send_batch", lambda: self._send_batch(_in_order("k", 6)))
        if self.has("fifo"):
            self._runs()
        self._add("delete the topic", "delete_topic", lambda: store.topics.delete("s"))
        if self.has("retention"):
            # All but the youngest messages are too old: nothing moves, and the queues are reclaimed.
            self.add_tick(UPKEEP, 27_000, is_promised=False, size="some")

    def _runs(self) -> None:
        store = self.store
        self._add("pop in order", "pop in order", lambda: self._pop_in_order(4), is_promised=True)
        self._add("ack in order", "ack", lambda: self._ack("f", 1))
        self.add_tick("tick that ends a run", 7_500, size="some")
        self._add("pop the run again", "pop in order", lambda: self._pop_in_order(4))
        self.add_tick("tick that buries the head", 9_000, size="some")
        self._add("resend", "resend_dead", lambda: self._remove(store.dead_letters.resend))
        self._add("pop in order once more", "pop in order", lambda: self._pop_in_order(4))
        self.add_tick("tick that buries another", 10_500, size="some")
        self._add("drop", "drop_dead", lambda: self._remove(store.dead_letters.drop))
        self._add("reset", "reset_offset", lambda: store.groups.reset_offset("s", "f", InitMode.MAX))
        self._add("send after the reset", "send_batch", lambda: self._send_batch(_in_order("l", 3)))
        self._add("pop after the reset", "pop in order", lambda: self._pop_in_order(2))
        self._add("delete the group", "delete_group", lambda: store.groups.delete("f"))

    def _add(self, name: str, operation: str, make: Callable[[], object], outcome: str = "", **more: Any) -> None:
        def noted() -> object:
            before = len(self._handles)
            answer = make()
            self.notes[name] = self._handles[before:]
            return answer

        self.add(name, operation, noted, outcome, size="some" if operation.endswith("batch") else "one", **more)

    def _send(self, message: Message) -> str:
        handle = self.store.send(message).handle
        self._handles += [handle] if handle else []
        return "APPLIED"

    def _send_batch(self, messages: list[Message]) -> str:
        self._handles += [receipt.handle for receipt in self.store.send_batch(messages) if receipt.handle]
        return "APPLIED"

    def _pop(self, group: str, count: int, invisible_ms: int, queue: int | None = None) -> str:
        popped = self.store.pop("t", group, max_messages=count, invisible_ms=invisible_ms, queue=queue)
        self._held[group] += sorted(popped, key=lambda each: each.message_id)
        return "GIVEN"

    def _pop_in_order(self, count: int) -> str:
        self._held["f"] = self.store.pop("s", "f", max_messages=count, invisible_ms=1_000, order=True, queue=0)
        assert len(self._held["f"]) == count, "a pop in order gave fewer messages than there are"
        return "GIVEN"

    def _remove(self, remove: Callable[[list[DeadLetter]], int]) -> str:
        # A call that is made again after it happened finds nothing any more.
        letters = self.store.dead_letters.list("f")
        assert remove(letters) == len(letters)
        return "REMOVED"

    def _ack(self, group: str, count: int) -> Sequence[AckOutcome]:
        outcomes = self.store.ack(self._held[group][:count])
        assert {each.name for each in outcomes} <= {"ACKED", "STALE"}
        del self._held[group][:count]
        return outcomes

    def _change(self, group: str) -> ChangeOutcome:
        return self.store.change_invisible(self._held[group][-1], invisible_ms=90_000).outcome
