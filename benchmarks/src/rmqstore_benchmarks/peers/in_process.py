"""The systems that run in the process that measures them: rmqstore's engines, SQLite, and litequeue, a queue on it without delays."""

from __future__ import annotations

import importlib
import importlib.util
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from importlib import metadata
from typing import Any, ClassVar, Final

import msgspec

import rmqstore
from rmqstore_benchmarks.grid.named import START_MS, TOPIC
from rmqstore_benchmarks.peers.peer import (
    HAND_OVER_BATCH,
    LEASE_MS,
    SMALL_POP,
    Batch,
    Durability,
    Figures,
    Peer,
    PeerError,
    Taken,
    Task,
    expect,
    popped,
    rate,
)

GROUP: Final = "workers"
_STRUCTS_UP_TO: Final = 128
_FLUSH_EVERY_S: Final = 0.5


class Ours(Peer):
    """A store: batches are Arrow columns, single timers ``Message``; pops of up to 128 are structs, larger ones columns.

    A pop includes reading the bodies. Phases of its own, which are compared with what the others do instead: batches that are lists of
    ``Message``, cancels by key, and a pop that acks what the last one gave. Under ``flush = async`` everything is flushed each 500 ms, as
    the thread of the store would do.
    """

    engine: ClassVar[str]
    settings: ClassVar[dict[Durability, str]] = {Durability.POWER_LOSS: "flush = sync", Durability.PROCESS_CRASH: "flush = async"}

    @classmethod
    def version(cls) -> str | None:
        return rmqstore.__version__

    def start(self, stack: ExitStack) -> None:
        self._clock = rmqstore.ManualClock(START_MS)
        self._store = stack.enter_context(
            rmqstore.open(self.directory / "store", engine=self.engine, clock=self._clock, services=False, flush=self.setting)
        )
        self._sent: dict[int, Any] = {}
        self._held: Sequence[Any] = ()
        self._flushed_s = time.monotonic()

    def prepare(self, batch: Batch) -> Batch:
        return batch._replace(columns=_messages_of(batch)[0]) if len(batch.timers) == 1 else batch

    def schedule(self, batch: Batch) -> None:
        self._clock.set(batch.now_ms)
        if isinstance(batch.columns, rmqstore.Message):
            self._sent[batch.now_ms] = [self._store.send(batch.columns)]
        else:
            self._sent[batch.now_ms] = self._store.send_batch(batch.columns)
        self._keep_up()

    def handles(self, batch: Batch) -> list[Any]:
        return [receipt.handle for receipt in self._sent.pop(batch.now_ms)]

    def cancel(self, handles: list[Any]) -> int:
        outcomes = [self._store.cancel(handles[0])] if len(handles) == 1 else self._store.cancel(handles)
        self._keep_up()
        return outcomes.count(rmqstore.CancelOutcome.CANCELLED)

    def drain(self, now_ms: int) -> int:
        self._clock.set(now_ms)
        moved = self._store.tick().handed_over
        self._keep_up()
        return moved

    def pop(self, count: int) -> Taken:
        pop: Callable[..., Any] = self._store.pop if count <= _STRUCTS_UP_TO else self._store.pop_batch
        found = pop(TOPIC, GROUP, max_messages=count, invisible_ms=LEASE_MS)
        return Taken([message.body for message in found] if isinstance(found, list) else found.columns["body"].to_pylist(), found)

    def ack(self, leases: Any) -> None:
        self._check_acks(self._store.ack(leases), len(leases))

    def pop_ack_each(self, count: int) -> list[bytes]:
        bodies, leases = self.pop(count)
        self._check_acks([self._store.ack(lease) for lease in leases], len(leases))
        return bodies

    def pop_with_acks(self, count: int) -> list[bytes]:
        """Ack what the last call gave and pop what comes next, in one step; what the last of all gave stays leased."""
        found = self._store.pop(TOPIC, GROUP, max_messages=count, invisible_ms=LEASE_MS, acks=self._held)
        self._check_acks(found.acks, len(self._held))
        self._held = found
        return [message.body for message in found]

    def ways_to_pop(self) -> dict[str, Callable[[], list[bytes]]]:
        ways = super().ways_to_pop()
        return {"ack_one": ways.pop("ack_one"), "pop_32_acks": lambda: self.pop_with_acks(SMALL_POP), **ways}

    def _check_acks(self, outcomes: Sequence[rmqstore.AckOutcome], count: int) -> None:
        self._keep_up()
        if list(outcomes).count(rmqstore.AckOutcome.ACKED) != count:
            raise PeerError("not every ack was accepted")

    def _keep_up(self) -> None:
        if self.setting == "async" and time.monotonic() - self._flushed_s >= _FLUSH_EVERY_S:
            self._store.flush()
            self._flushed_s = time.monotonic()

    def measure(self, task: Task) -> Figures:
        # All of these are gone before the others come.
        own = msgspec.structs.replace(task, timers=max(task.timers // 5, task.batch)).batches()
        own = [batch for batch in own if len(batch.timers) > 1]
        lists = [batch._replace(columns=_messages_of(batch)) for batch in own]
        keyed = [batch._replace(columns=_messages_of(batch, has_keys=True)) for batch in own]
        count = sum(len(batch.timers) for batch in own)
        figures = {"schedule_list": rate(self.schedule, lists, count)}
        for batch in lists:
            expect(self.cancel(self.handles(batch)), len(batch.timers), "cancelled")
        for batch in keyed:
            self.schedule(batch)
            self.handles(batch)
        figures["cancel_keys"] = rate(
            self._cancel_keys, [[f"{timer.number}" for timer in batch.timers] for batch in keyed], count, "cancelled"
        )
        expect(self._store.pending().total, 0, "left")
        return figures | super().measure(task)

    def _cancel_keys(self, keys: list[str]) -> int:
        outcomes = self._store.cancel_keys(TOPIC, keys)
        self._keep_up()
        return outcomes.count([rmqstore.CancelOutcome.CANCELLED])


def _messages_of(batch: Batch, *, has_keys: bool = False) -> list[rmqstore.Message]:
    return [
        rmqstore.Message(TOPIC, timer.body, keys=(f"{timer.number}",) if has_keys else (), deliver_at_ms=timer.due_ms)
        for timer in batch.timers
    ]


ENGINES: Final[dict[str, type[Ours]]] = {
    engine: type(engine, (Ours,), {"name": engine, "engine": engine}) for engine in ("wheel", "rocksdb", "lmdb", "memory")
}


# ---------------------------------------------------------------- SQLite and litequeue

_TABLES: Final = """
CREATE TABLE bodies (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE timers (due_ms INTEGER, id INTEGER, PRIMARY KEY (due_ms, id)) WITHOUT ROWID;
CREATE TABLE ready (visible_ms INTEGER, id INTEGER, PRIMARY KEY (visible_ms, id)) WITHOUT ROWID;
"""

_NEXT: Final = """
SELECT visible_ms, ready.id, body FROM ready JOIN bodies USING (id)
WHERE visible_ms <= ? ORDER BY visible_ms, ready.id LIMIT ?
"""


class SQLite(Peer):
    """One connection to a database in WAL mode; each call is one transaction. A lease is a ready message that is visible later."""

    name = "sqlite"
    settings: ClassVar[dict[Durability, str]] = {
        Durability.POWER_LOSS: "WAL, synchronous = FULL",
        Durability.PROCESS_CRASH: "WAL, synchronous = NORMAL",
    }
    how_to_get = "it comes with Python"

    @classmethod
    def version(cls) -> str | None:
        return sqlite3.sqlite_version

    def start(self, stack: ExitStack) -> None:
        self._db = sqlite3.connect(self.directory / "timers.db", isolation_level=None)
        stack.callback(self._db.close)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(f"PRAGMA synchronous = {self.setting}")
        self._db.executescript(_TABLES)

    @contextmanager
    def _transaction(self) -> Any:
        self._db.execute("BEGIN IMMEDIATE")
        yield
        self._db.execute("COMMIT")

    def schedule(self, batch: Batch) -> None:
        with self._transaction():
            self._db.executemany("INSERT INTO bodies VALUES (?, ?)", [(timer.number, timer.body) for timer in batch.timers])
            self._db.executemany("INSERT INTO timers VALUES (?, ?)", sorted((timer.due_ms, timer.number) for timer in batch.timers))

    def handles(self, batch: Batch) -> list[Any]:
        return [(timer.due_ms, timer.number) for timer in batch.timers]

    def cancel(self, handles: list[Any]) -> int:
        with self._transaction():
            delete = "DELETE FROM timers WHERE due_ms = ? AND id = ?"
            cancelled = [(handle[1],) for handle in sorted(handles) if self._db.execute(delete, handle).rowcount]
            self._db.executemany("DELETE FROM bodies WHERE id = ?", sorted(cancelled))
        return len(cancelled)

    def hand_over(self, now_ms: int) -> int:
        with self._transaction():
            due = self._db.execute("SELECT due_ms, id FROM timers WHERE due_ms <= ? LIMIT ?", (now_ms, HAND_OVER_BATCH)).fetchall()
            if due:
                self._db.executemany("INSERT INTO ready VALUES (?, ?)", due)
                self._db.execute("DELETE FROM timers WHERE (due_ms, id) <= (?, ?)", due[-1])
        return len(due)

    def pop(self, count: int) -> Taken:
        until_ms = self.now_ms + LEASE_MS
        with self._transaction():
            found = self._db.execute(_NEXT, (self.now_ms, count)).fetchall()
            if found:
                self._db.execute("DELETE FROM ready WHERE (visible_ms, id) <= (?, ?)", found[-1][:2])
                self._db.executemany("INSERT INTO ready VALUES (?, ?)", sorted((until_ms, number) for _, number, _ in found))
        return Taken([body for _, _, body in found], sorted((until_ms, number) for _, number, _ in found))

    def ack(self, leases: Sequence[Any]) -> None:
        with self._transaction():
            self._db.executemany("DELETE FROM ready WHERE visible_ms = ? AND id = ?", leases)
            self._db.executemany("DELETE FROM bodies WHERE id = ?", [(number,) for _, number in leases])


MOST: Final = 5000
"""A pop of release 0.9 sorts all that is ready, so a large queue takes minutes: it is measured with so many messages at most."""


class LiteQueue(Peer):
    """litequeue as it comes: WAL with synchronous = NORMAL, one message a pop; it has no timers.

    Data are text, so a body is stored as one character a byte.
    """

    name = "litequeue"
    settings: ClassVar[dict[Durability, str]] = {Durability.PROCESS_CRASH: "its defaults: WAL, synchronous = NORMAL"}
    distributions = ("constant",)

    @classmethod
    def version(cls) -> str | None:
        return metadata.version("litequeue") if importlib.util.find_spec("litequeue") else None

    def start(self, stack: ExitStack) -> None:
        litequeue: Any = importlib.import_module("litequeue")
        self._queue = litequeue.LiteQueue(str(self.directory / "queue.db"))
        stack.callback(getattr(self._queue, "close", self._queue.conn.close))

    def put(self, bodies: list[bytes]) -> None:
        """Put messages in one transaction."""
        with self._queue.transaction():
            for body in bodies:
                self._queue.put(body.decode("latin-1"))

    def pop(self, count: int) -> Taken:
        """Lock messages one by one."""
        found: list[Any] = []
        while len(found) < count and (message := self._queue.pop()) is not None:
            found.append(message)
        return Taken([message.data.encode("latin-1") for message in found], found)

    def ack(self, leases: Sequence[Any]) -> None:
        """Mark messages as done in one transaction."""
        with self._queue.transaction():
            for message in leases:
                # Releases behind 0.9, which want Python 3.12, ask which claim is done.
                claim = {"claim_id": message.claim_id} if hasattr(message, "claim_id") else {}
                self._queue.done(message.message_id, **claim)

    def measure(self, task: Task) -> Figures:
        batches = [[timer.body for timer in batch.timers] for batch in task.batches()[: max(MOST // task.batch, 1)]]
        for batch in batches:
            self.put(batch)
        return popped(self, Counter(body for batch in batches for body in batch))
