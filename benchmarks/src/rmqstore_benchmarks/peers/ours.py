"""rmqstore itself, through its public API and one engine."""

from __future__ import annotations

import contextlib
import time
from typing import Any, ClassVar, Final

import rmqstore
from rmqstore_benchmarks.grid.named import START_MS, TOPIC
from rmqstore_benchmarks.peers.peer import LEASE_MS, Batch, Durability, Figures, PeerError, Task, TimerPeer, expect, scheduled

GROUP: Final = "workers"
_STRUCTS_UP_TO = 128
_FLUSH_EVERY_S = 0.5


class Ours(TimerPeer):
    """A store: batches are Arrow columns; pops of up to 128 are structs, larger ones columns. A pop includes reading the bodies.

    Under ``flush = async`` everything is flushed each 500 ms, as the thread of the store would do.
    """

    engine: ClassVar[str]
    settings: ClassVar[dict[Durability, str]] = {Durability.POWER_LOSS: "flush = sync", Durability.PROCESS_CRASH: "flush = async"}
    how_to_get: ClassVar[str] = "pip install 'rmqstore[all]'"

    @classmethod
    def version(cls) -> str | None:
        return rmqstore.__version__

    def start(self, stack: contextlib.ExitStack) -> None:
        self._clock = rmqstore.ManualClock(START_MS)
        self._store = stack.enter_context(
            rmqstore.open(self.directory / "store", engine=self.engine, clock=self._clock, services=False, flush=self.setting)
        )
        self._receipts: dict[int, Any] = {}
        self._flushed_s = time.monotonic()

    def prepare(self, batch: Batch) -> tuple[int, Any]:
        return batch.now_ms, batch.made.columns

    def schedule(self, batch: tuple[int, Any]) -> None:
        now_ms, timers = batch
        self._clock.set(now_ms)
        self._receipts[now_ms] = self._store.send_batch(timers)
        self._keep_up()

    def handles(self, batch: tuple[int, Any]) -> list[Any]:
        return [receipt.handle for receipt in self._receipts.pop(batch[0])]

    def cancel(self, handles: list[Any]) -> int:
        outcomes = self._store.cancel(handles)
        self._keep_up()
        return outcomes.count(rmqstore.CancelOutcome.CANCELLED)

    def drain(self, now_ms: int) -> int:
        self._clock.set(now_ms)
        moved = self._store.tick().handed_over
        self._keep_up()
        return moved

    def pop_ack(self, count: int) -> list[bytes]:
        if count <= _STRUCTS_UP_TO:
            messages = self._store.pop(TOPIC, GROUP, max_messages=count, invisible_ms=LEASE_MS)
            bodies = [message.body for message in messages]
            outcomes = self._store.ack(messages) if messages else []
        else:
            batch = self._store.pop_batch(TOPIC, GROUP, max_messages=count, invisible_ms=LEASE_MS)
            bodies = batch.columns["body"].to_pylist() if len(batch) else []
            outcomes = self._store.ack(batch) if len(batch) else []
        self._keep_up()
        if outcomes.count(rmqstore.AckOutcome.ACKED) != len(bodies):
            raise PeerError("not every ack was accepted")
        return bodies

    def _keep_up(self) -> None:
        if self.setting == "async" and time.monotonic() - self._flushed_s >= _FLUSH_EVERY_S:
            self._store.flush()
            self._flushed_s = time.monotonic()


class FromRows(Ours):
    """The same, scheduled by lists of ``Message``, which is what a program without Arrow has; nothing else is measured again."""

    def prepare(self, batch: Batch) -> tuple[int, Any]:
        return batch.now_ms, [rmqstore.Message(TOPIC, timer.body, deliver_at_ms=timer.due_ms) for timer in batch.rows()]

    def measure(self, task: Task) -> Figures:
        figures, kept = scheduled(self, task)
        expect(self._store.pending().total, kept.total(), "pending")
        return {"schedule": figures["schedule"]}


def _engines() -> dict[str, type[TimerPeer]]:
    made: dict[str, type[TimerPeer]] = {}
    for engine in ("wheel", "rocksdb", "lmdb", "memory"):
        for kind, name in ((Ours, engine), (FromRows, f"{engine}{LIST}")):
            made[name] = type(name, (kind,), {"name": name, "engine": engine})
    return made


LIST: Final = ", list"
"""Behind the name of an engine that is given lists."""

ENGINES: Final = _engines()
