"""Scripts of what is large: calls of over 1,000 rows or above 1 MiB, which an engine may split, and records longer than a sector."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, ClassVar, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore import ManualClock, Message, Store
from rmqstore.contract import Side
from rmqstore_conformance.faults.script import LONG_MS, Notes, Script, messages_of

ROWS: Final = 1_100
MOST: Final = 1_024
"""One pop gives no more."""

_FAR_MS: Final = 500_000
_TOPIC: Final = "large"
_IMPORTED: Final = "imported"
_FREE_SEQ: Final = 1_000_000
_LONG_RECORDS: Final = 32
_STEP_BYTES: Final = 23


class Large(Script):
    """Large calls; what a call left is removed before the next kind, so that there is never much to look at."""

    name: ClassVar[str] = "large"
    usual_size: ClassVar[str] = "large"

    def __init__(self, store: Store, clock: ManualClock, notes: Notes | None = None) -> None:
        super().__init__(store, clock, notes)
        self._send("send_batch", messages_of("a", ROWS, _TOPIC, body=hashlib.shake_128(b"noise").digest(1_100)))
        plain = messages_of("p", ROWS, "plain")
        self.add("send_batch without a mark", "send_batch", lambda: len(store.send_batch(plain)), str(ROWS))
        self.add("delete what was sent without a mark", "delete_topic", lambda: store.topics.delete("plain"), "DONE", "DONE")
        later = messages_of("l", ROWS, _TOPIC, due_ms=(_FAR_MS, _FAR_MS + 70))
        self.add_send("send_batch later without a mark", later)
        self.add(
            "cancel what has no mark",
            "cancel",
            lambda: store.cancel(self.notes["send_batch later without a mark"]),
            "CANCELLED",
            "CANCELLED",
        )
        if self.has("import_state"):
            self._import("import messages", store.engine.pops, {"topics": _moved, "messages": _moved})
            self.add("delete what was imported", "delete_topic", lambda: store.topics.delete(_IMPORTED), "DONE", "DONE")
        self._settled()
        self._buried()
        self._revived()
        self.add("delete_topic", "delete_topic", lambda: store.topics.delete(_TOPIC), "DONE", "DONE")
        self._timers()

    def _send(self, name: str, messages: list[Message]) -> None:
        self.add_send(name, messages, [f"{name} {number}".encode() for number in range(2)])

    def _import(self, name: str, side: Side, tables: dict[str, Callable[[pa.RecordBatch], pa.RecordBatch]]) -> None:
        """Add one step of a load: what is in the topic comes in once more, as if it were of another store."""

        def make() -> None:
            ours = [(table, side.export_state(table, None, 10 * ROWS).rows) for table in tables]
            own = [(table, rows.filter(pc.equal(rows.column("topic"), _TOPIC))) for table, rows in ours]
            side.sync(side.import_state([(table, tables[table](rows)) for table, rows in own], self.clock.now_ms(), [name.encode()]))

        self.add(name, "import_state", make, "DONE", "DONE")

    def _pop(self, name: str, group: str, invisible_ms: int = LONG_MS) -> None:
        self.add_pop(name, _TOPIC, group, MOST, invisible_ms=invisible_ms, attempt_id=name.replace(" ", "-"))

    def _settle(self, name: str, operation: str, note: str, outcome: str) -> None:
        self.add(name, operation, lambda: self.settled(name, operation, self.notes[note], LONG_MS + 1, "x" * 1_000), outcome, "STALE")

    def _settled(self) -> None:
        store, notes = self.store, self.notes
        self._pop("pop to ack", "a")
        self._pop("pop the rest to ack", "a")
        self.add(
            "ack over several pops",
            "ack",
            lambda: store.ack(notes["pop to ack"] + notes["pop the rest to ack"]),
            "ACKED",
            "ALREADY_ACKED",
        )
        self._pop("pop to change", "b")
        self._settle("change", "change_invisible", "pop to change", "CHANGED")
        self._settle("release", "release", "change", "RELEASED")
        self.add("delete_group", "delete_group", lambda: store.groups.delete("b"), "DONE", "DONE")

    def _buried(self) -> None:
        store = self.store
        self._pop("pop to reject", "c")
        self._settle("reject", "reject", "pop to reject", "REJECTED")
        self.add("resend_dead", "resend_dead", lambda: store.dead_letters.resend(store.dead_letters.list("c")), str(MOST), "0")
        self._pop("pop what was resent", "c")
        self._settle("reject again", "reject", "pop what was resent", "REJECTED")
        self.add("drop_dead", "drop_dead", lambda: store.dead_letters.drop(store.dead_letters.list("c")), str(MOST), "0")
        self.add("delete the group of letters", "delete_group", lambda: store.groups.delete("c"), "DONE", "DONE")

    def _revived(self) -> None:
        self._pop("pop briefly", "d", 100)
        self.add_tick("tick that revives", 1_000, "MOVED")
        self._pop("pop what was revived", "d", 100)
        self.add_tick("tick that buries", 2_000, "MOVED")

    def _timers(self) -> None:
        store, notes = self.store, self.notes
        sent = "send_batch later"
        self._send(sent, messages_of("t", ROWS, _TOPIC, due_ms=(_FAR_MS, _FAR_MS + 70), keys=("t",)))
        if self.has("import_state", "cancel_by_key"):
            self._import("import timers", store.engine.timers, {"timers": _behind})
            self.add("cancel_key of the imported", "cancel_key", lambda: store.cancel_key(_TOPIC, "t"), "CANCELLED", "NOTHING")
            sent = "send_batch later again"
            self._send(sent, messages_of("t", ROWS, _TOPIC, due_ms=(_FAR_MS, _FAR_MS + 70), keys=("t",)))
        self.add("cancel", "cancel", lambda: store.cancel(notes[sent][20:]), "CANCELLED", "CANCELLED")
        self._send("send_batch now and later", messages_of("u", ROWS, _TOPIC, due_ms=(3_000, 3_050, None), keys=("u",)))
        if self.has("cancel_by_key"):
            for key in "vw":
                self._send(f"send_batch with key {key}", messages_of(key, ROWS // 2, _TOPIC, due_ms=(_FAR_MS,), keys=(key,)))
            self.add("cancel_keys", "cancel_key", lambda: [*chain(*store.cancel_keys(_TOPIC, ("v", "w")))], "CANCELLED", "NOTHING")
        self.add_tick("tick that hands over", 4_000, "MOVED")


def _moved(rows: pa.RecordBatch) -> pa.RecordBatch:
    return _with(rows, "topic", [_IMPORTED] * len(rows))


def _behind(rows: pa.RecordBatch) -> pa.RecordBatch:
    return _with(rows, "seq", range(_FREE_SEQ, _FREE_SEQ + len(rows)))


def _with(rows: pa.RecordBatch, name: str, values: Sequence[Any]) -> pa.RecordBatch:
    at = rows.schema.get_field_index(name)
    return rows.set_column(at, rows.schema.field(name), pa.array(values, rows.schema.field(name).type))


class Long(Script):
    """Messages with properties longer than a sector, sent one a call: at once and as timers in turns.

    Each is some bytes longer than the one before, so that the end of some of them, which says that they are whole, is in two sectors.
    """

    name: ClassVar[str] = "long"

    def __init__(self, store: Store, clock: ManualClock, notes: Notes | None = None) -> None:
        super().__init__(store, clock, notes)
        for number in range(_LONG_RECORDS):
            (plain,) = messages_of(f"{number}-", 1, "long", due_ms=(50_000 if number % 2 else None,))
            self._send(f"send {number}", msgspec.structs.replace(plain, properties={"long": "v" * (1_000 + _STEP_BYTES * number)}))

    def _send(self, name: str, message: Message) -> None:
        self.add(name, "send", lambda: self.sent(name, [self.store.send(message)]))
