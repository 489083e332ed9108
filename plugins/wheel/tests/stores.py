"""Stores of the wheel engine: opened and killed, looked into, on disks that refuse writes, and with files of a few messages.

A broken disk is one to the seam ``rmqstore_wheel.files.disk``, through which the engine reaches its files.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import rmqstore
from rmqstore import ManualClock, Message, Store
from rmqstore.engine.kv.directory import copy_tree
from rmqstore_conformance.stores import HOUR_MS, START_MS, Pair, Stores
from rmqstore_wheel.files.disk import DiskFile
from rmqstore_wheel.log.ledger import Ledger, Sizes
from rmqstore_wheel.reclaim.reclaim import AGAIN_MS
from rmqstore_wheel.timers.index import TimerIndex

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


class WheelStores(Stores):
    """Opens stores of the wheel engine, and what a crash left of one."""

    def __init__(self, root: Path) -> None:
        super().__init__(Pair("wheel", "wheel"), root)
        self._copies = 0

    def path(self, store: Store) -> Path:
        return store.path / "wheel" / "db"

    def killed(self, store: Store, change: Callable[[Path], object] = lambda db: None, **settings: Any) -> Store:
        """Open what a ``kill -9`` of the owner would leave at this moment, after ``change`` was done to it."""
        self._copies += 1
        name = f"copy{self._copies}"
        copy_tree(store.path, self.root / name)
        change(self.root / name / "wheel" / "db")
        return self.open(name, **settings)


def opened(path: Path, clock: ManualClock | None = None, **settings: Any) -> Store:
    return rmqstore.open(path, engine="wheel", services=False, clock=clock or ManualClock(START_MS), **settings)


def ledger_of(store: Store) -> Ledger:
    """Return what both sides of a store are kept in."""
    session: Any = store.engine.sessions["wheel"]
    ledger: Ledger = session._shared.kv
    return ledger


def index_of(store: Store) -> TimerIndex:
    """Return all that the timer side of a store derives from its log."""
    timers: Any = store.engine.timers
    index: TimerIndex = timers._index
    return index


def noted(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, note: Callable[..., Any] = lambda *_: None) -> list[Any]:
    """Return a list of all calls of a function from now on: what ``note`` makes of what each gave, and of what it was given."""
    notes: list[Any] = []
    real = getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        found = real(*given, **named)
        notes.append(note(found, *given))
        return found

    monkeypatch.setattr(owner, name, call)
    return notes


def meanwhile(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, happens: Callable[..., object]) -> None:
    """Let something happen before each call of a function from now on; it is told what the call was given."""
    real = getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        happens(*given)
        return real(*given, **named)

    monkeypatch.setattr(owner, name, call)


def overwrite(path: Path, at: int, data: bytes) -> None:
    """Change bytes of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path: Path, at: int, bits: int = 0x55) -> None:
    """Change some bits of a byte of a file."""
    overwrite(path, at, bytes((path.read_bytes()[at] ^ bits,)))


@contextmanager
def refusing(left: int = 0) -> Iterator[None]:
    """Refuse writes and syncs of files for want of room once there were so many; half of each write is written."""
    calls = count()

    def refused(method: Callable[..., None]) -> Callable[..., None]:
        def call(file: DiskFile, *given: Any) -> None:
            if next(calls) < left:
                method(file, *given)
                return
            if given:
                view = memoryview(given[1]).cast("B")
                method(file, given[0], view[: len(view) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return call

    with patch.object(DiskFile, "write_at", refused(DiskFile.write_at)), patch.object(DiskFile, "sync", refused(DiskFile.sync)):
        yield


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

    def resize(self, monkeypatch: pytest.MonkeyPatch, **sizes: int) -> None:
        """Go on with other sizes than :data:`SMALL` has."""
        monkeypatch.setattr("rmqstore_wheel.engine.sizes_of", lambda _: SMALL._replace(**sizes))
        self.reopen()

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


def sync_queues(store: Store) -> None:
    """Have check points sync the files of all queues, and hold no unit of them, until the store is closed."""
    ledger_of(store).queues._most_unsynced = 0


def drop_check_points(path: Path) -> None:
    for found in path.rglob("checkpoint*"):
        if found.parent.name == "rmqstore" and found.is_file():
            found.unlink()
