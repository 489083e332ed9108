"""Ways to break a store of the ``wheel`` engine: killed owners, full disks, small files.

All of it works on the seam ``rmqstore_wheel.files.disk``, through which the engine reaches its files.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import rmqstore
from rmqstore import ManualClock, Store
from rmqstore.engine.kv.directory import copy_tree
from rmqstore_conformance.stores import START_MS, Pair, Stores, read_ids
from rmqstore_wheel.files.disk import DiskFile
from rmqstore_wheel.formats import timer_log
from rmqstore_wheel.log.ledger import Ledger, Sizes
from rmqstore_wheel.timers.index import TimerIndex


class WheelStores(Stores):
    """Opens stores of the wheel engine, and what a crash left of one."""

    def __init__(self, root: Path) -> None:
        super().__init__(Pair("wheel", "wheel"), root)
        self._copies = 0

    def path(self, store: Store) -> Path:
        """Return RocketMQ's store directory."""
        return store.path / "wheel" / "db"

    def killed(self, store: Store, change: Callable[[Path], object] = lambda db: None, **settings: Any) -> Store:
        """Open what a ``kill -9`` of the owner would leave at this moment, after ``change`` was done to it."""
        self._copies += 1
        name = f"copy{self._copies}"
        copy_tree(store.path, self.root / name)
        change(self.root / name / "wheel" / "db")
        return self.open(name, **settings)


def opened(path: Path, clock: ManualClock | None = None, **settings: Any) -> Store:
    """Open a store of the wheel engine."""
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


def rolls(store: Store) -> int:
    """Return how many times timers were put into a slot that is not their first, since the timer log was made."""
    index = index_of(store)
    puts = sum(int((facts["kind"] == 1).sum()) for facts in [index.facts.read(index.facts.first, index.facts.count - index.facts.first)])
    units = index.wheel.units
    cancels = int(((units.read(units.first, units.count - units.first)["flags"] & timer_log.DELETE) != 0).sum())
    return int(units.count) - puts - cancels


def everywhere(store: Store, topic: str = "t") -> list[str]:
    """Return the ids of the pending timers and of what lies in queue 0 of a topic, sorted: each timer must be in one of them, once."""
    pending = [each.message.message_id or "" for each in store.scan().timers]
    return sorted(pending + read_ids(store, topic))


def parked_reasons(store: Store) -> dict[str, str]:
    """Return the reason of each parked entry by where it lay."""
    return {each.origin_message_id: each.reason for each in store.dead_letters.parked()}


# ---------------------------------------------------------------- disks


@contextmanager
def refusing_writes() -> Iterator[None]:
    """Refuse the writes to files for want of room; half of each is written."""
    write_at = DiskFile.write_at

    def refuse(file: DiskFile, offset: int, data: Any) -> None:
        view = memoryview(data).cast("B")
        write_at(file, offset, view[: len(view) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with patch.object(DiskFile, "write_at", refuse):
        yield


@contextmanager
def small_files(log_file_bytes: int = 64 * 1024) -> Iterator[None]:
    """Open stores with files so small that many of them are made."""
    sizes = Sizes(log_file_bytes, 100, 50, check_point_bytes=2 * log_file_bytes, check_point_calls=100, index_slots=512, index_entries=64)
    with patch("rmqstore_wheel.engine.sizes_of", lambda options: sizes):
        yield
