"""A store of ``wheel`` whose log has files of a few messages, so that many of them are made and go; the fixture ``run`` is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plugins.wheel.tests.breaking import ledger_of, opened
from rmqstore import ManualClock, Message, Store
from rmqstore.contract import TimerHandle
from rmqstore_wheel.log.ledger import Ledger, Sizes
from rmqstore_wheel.reclaim.reclaim import AGAIN_MS

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
FAR_MS = START_MS + 1000 * HOUR_MS
FILE_BYTES = 16 * 1024
SMALL = Sizes(
    log_file_bytes=FILE_BYTES,
    queue_file_units=64,
    timer_file_units=64,
    check_point_calls=40,
    slice_bytes=2 * FILE_BYTES,
    index_slots=64,
    index_entries=64,
)


class Run:
    """A store of short memory whose queues go as they are consumed."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.path = path
        self.clock = ManualClock(START_MS)
        self.settings = {
            "reclaim": "consumed",
            "cancel_memory_ms": 600_000,
            "retention_ms": 100 * HOUR_MS,
            "group_expiry_ms": 0,
            **settings,
        }
        self.calls = 0
        self.store = self.opened()

    def opened(self, path: Path | None = None) -> Store:
        return opened(path or self.path, self.clock, **self.settings)

    @property
    def ledger(self) -> Ledger:
        return ledger_of(self.store)

    @property
    def files(self) -> list[int]:
        """The numbers of the log's files."""
        return [start // FILE_BYTES for start in self.ledger.log.chain.starts]

    def reopen(self, *, rebuild: bool = False) -> None:
        self.store.close()
        if rebuild:
            drop_check_points(self.path)
        self.store = self.opened()

    def fill(self, files: int = 1, *, topic: str = "t", consume: bool = True) -> None:
        """Write messages until so many more files of the log are full, popped and acked as they come."""
        upto = self.ledger.log.tail + files * FILE_BYTES
        while self.ledger.log.tail < upto:
            self.store.send(Message(topic, b"x" * 700, message_id=f"f{self.calls}"))
            self.calls += 1
            if consume:
                self.consume(topic)

    def consume(self, topic: str = "t") -> list[str]:
        taken = self.store.pop(topic, "g", max_messages=32)
        if taken:
            self.store.ack([each.receipt for each in taken])
        return [each.message_id for each in taken]

    def far(self, *names: str, size: int = 100, due_ms: int = FAR_MS, **fields: Any) -> list[Any]:
        """Put timers for a far time; returns their handles."""
        rows = [Message("late", b"y" * size, message_id=name, keys=(f"k-{name}",), deliver_at_ms=due_ms, **fields) for name in names]
        return [self.store.send(row).handle for row in rows]

    def upkeep(self, rounds: int = 12) -> None:
        """Let time pass for everything to be looked at."""
        for _ in range(rounds):
            self.clock.advance(AGAIN_MS // 4)
            self.store.tick()

    def take_late(self) -> list[str]:
        """Go to the far time, and return what comes."""
        self.clock.set(max(FAR_MS + 1000, self.clock.now_ms()))
        self.store.tick()
        found: list[str] = []
        while taken := self.consume("late"):
            found += taken
        return sorted(found)


def handle_of(text: str) -> TimerHandle:
    found = TimerHandle.parse(text)
    assert found is not None
    return found


def drop_check_points(path: Path) -> None:
    for found in path.rglob("checkpoint*"):
        if found.parent.name == "rmqstore" and found.is_file():
            found.unlink()
