"""What one task of the grid is told, and how it opens its store; also the null engine, which stores nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

import rmqstore
from rmqstore.contract import CancelOutcome, TimerHandle
from rmqstore.ticking import TickReport

NULL_ENGINE: Final = "null"
"""The engine that stores nothing: what is measured with it is what Spark and the load themselves cost."""

_PAGE_BYTES: Final = 16 * 1024 * 1024
_LEAST_PAGE: Final = 64

NULL_PHASES: Final = frozenset({"fill", "schedule", "cancel", "mixed", "open_50", "open_80", "open_95"})
"""What can be done without anything ever coming back."""


class ShardTask(msgspec.Struct, frozen=True, kw_only=True):
    """One shard of one run.

    Attributes:
        settings: of the engine, by dotted key.
        flush: "sync" or "async", what the durability of the cell asks for.
        backlog: timers pending on this shard.
        seconds: how long a timed phase lasts.
        directory: where the store goes; made by the task, removed when it ends.
        progress: a file that the task keeps up to date with where it is; "" for none.
    """

    run_id: str
    engine: str
    settings: dict[str, Any]
    workload: str
    body_bytes: int
    backlog: int
    flush: str
    shard: int
    seed: int
    seconds: float
    phases: tuple[str, ...]
    directory: str
    progress: str = ""


def open_store(task: ShardTask, clock: rmqstore.ManualClock) -> Any:
    """Open the task's store, or make it."""
    if task.engine == NULL_ENGINE:
        return NullStore()
    given = {key.replace(".", "__"): value for key, value in task.settings.items()}
    # Messages are handed over in pages of bounded bytes, not only of bounded number, as who stores large ones would set it.
    limit = page_messages(task.body_bytes, 4096)
    # Simulated months go by within a run, so nothing may go by its age; what was consumed goes.
    settings: dict[str, Any] = {
        "retention_ms": 0,
        "reclaim": "consumed",
        "group_expiry_ms": 0,
        "hand_over_limit": limit,
        "flush": task.flush,
    } | given
    return rmqstore.open(store_path(task), engine=task.engine, clock=clock, services=False, **settings)


def page_messages(body_bytes: int, most: int) -> int:
    """Return how many messages of this size are moved at once, at most ``most`` and about 16 MiB, but no fewer than 64."""
    return max(min(most, _PAGE_BYTES // body_bytes), _LEAST_PAGE)


def store_path(task: ShardTask) -> Path:
    """Return where the task's store lies."""
    return Path(task.directory, "store")


class _NullReceipts(Sequence[Any]):
    """Receipts of what was not stored."""

    def __init__(self, count: int, first_seq: int) -> None:
        self._count = count
        self._first_seq = first_seq

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: Any) -> Any:
        return _NullReceipt(self._first_seq + int(row))


class _NullReceipt(msgspec.Struct, frozen=True):
    seq: int

    @property
    def handle(self) -> str:
        return TimerHandle(0, 1, self.seq, 0).text()


class NullStore:
    """Takes the calls of a store and drops them; nothing is ever due."""

    def __init__(self) -> None:
        self._sent = 0

    def send_batch(self, columns: Any) -> Any:
        self._sent += len(columns)
        return _NullReceipts(len(columns), self._sent - len(columns) + 1)

    def cancel(self, handles: Sequence[Any]) -> list[CancelOutcome]:
        return [CancelOutcome.CANCELLED] * len(handles)

    def tick(self) -> TickReport:
        return TickReport()

    def pop(self, *_: Any, **__: Any) -> list[Any]:
        return []

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
