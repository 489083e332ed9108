"""What one task of the grid is told, and the store that it opens: an engine's, what lies under one, or none at all.

Nothing comes back from ``null`` and from what lies under an engine (docs/grid.md), which takes one atomic batch a call, synced; the batch
is made before it is timed. A database gets 16-byte keys (tick, seq) in order and values as long as a stored timer; the file gets the very
bytes of the wheel's commit log, into space that was filled with zeros, with one fdatasync.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
from msgspec import Meta

import rmqstore
from rmqstore import MessageBatch
from rmqstore.contract import CancelOutcome, TimerHandle
from rmqstore.engine.records import HEADER_BYTES
from rmqstore.engine.runs import HEAD_BYTES
from rmqstore.store.tick import TickReport
from rmqstore_benchmarks.grid.named import PRECISION_MS

NULL_ENGINE: Final = "null"
NULL_PHASES: Final = frozenset({"fill", "schedule", "cancel", "warm_up", "mixed", "open_50", "open_80", "open_95"})
"""What can be done without anything ever coming back."""

RAW_PHASES: Final = frozenset({"fill", "schedule", "send_one"})
_PAGE_BYTES: Final = 16 * 1024 * 1024
_LEAST_PAGE: Final = 64
_FILL_BYTES: Final = 4 * 1024 * 1024
_ID_BYTES: Final = 34
_TICK_SEQ: Final = struct.Struct(">QQ")


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[[variants]]``: an engine with its settings, under a name."""

    name: Annotated[str, Meta(pattern="^[\\w-]+$")]
    engine: str
    settings: dict[str, Any] = {}


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One point of the grid. ``flush`` is what its durability asks of the engine, ``backlog`` that of all shards together."""

    variant: Variant
    workload: str
    body_bytes: int
    backlog: int
    durability: str
    flush: str
    shards: int
    phases: tuple[str, ...]
    repeats: int
    seconds: float

    @property
    def cell_id(self) -> str:
        """The cell in one word, a good name for a directory."""
        return f"{self.variant.name}.{self.workload}.{self.body_bytes}.{self.backlog}.{self.durability}.{self.shards}"


class Run(msgspec.Struct, frozen=True):
    """One repeat of one cell."""

    cell: Cell
    repeat: int
    seed: int

    @property
    def run_id(self) -> str:
        """The run in one word."""
        return f"{self.cell.cell_id}.{self.repeat}"


class ShardTask(Run, frozen=True):
    """One shard of one run; its store is made in ``directory`` by the task, and removed when it ends."""

    shard: int
    directory: str

    @property
    def engine(self) -> str:
        """The name of the engine, or of what is none."""
        return self.cell.variant.engine

    @property
    def backlog(self) -> int:
        """Timers pending on this shard."""
        return self.cell.backlog // self.cell.shards


def open_store(task: ShardTask, clock: rmqstore.ManualClock) -> Any:
    """Open the task's store, or make it."""
    if task.engine == NULL_ENGINE:
        return Hollow()
    if task.engine in RAW:
        return RAW[task.engine](store_path(task))
    given = {key.replace(".", "__"): value for key, value in task.cell.variant.settings.items()}
    # Messages are handed over in pages of bounded bytes, not only of bounded number, as who stores large ones would set it.
    limit = page_messages(task.cell.body_bytes, 4096)
    # Simulated months go by within a run, so nothing may go by its age; what was consumed goes.
    settings: dict[str, Any] = {
        "retention_ms": 0,
        "reclaim": "consumed",
        "group_expiry_ms": 0,
        "hand_over_limit": limit,
        "flush": task.cell.flush,
    } | given
    return rmqstore.open(store_path(task), engine=task.engine, clock=clock, services=False, **settings)


def page_messages(body_bytes: int, most: int) -> int:
    """Return how many messages of this size are moved at once, at most ``most`` and about 16 MiB, but no fewer than 64."""
    return max(min(most, _PAGE_BYTES // body_bytes), _LEAST_PAGE)


def store_path(task: ShardTask) -> Path:
    """Return where the task's store lies."""
    return Path(task.directory, "store")


class HollowReceipt(msgspec.Struct, frozen=True):
    """The receipt of what does not come back; all of a batch have that of the first."""

    timer: TimerHandle


Prepare = Callable[[pa.RecordBatch, int, int], Any]


class Hollow:
    """Takes the calls of a store; nothing is ever due.

    Args:
        put: stores durably what ``prepare`` made; returns how many timers that were.
        prepare: makes that of the columns of timers, how many came before, and the time, ms; not measured.
        close: ends it.
    """

    def __init__(
        self,
        put: Callable[[Any], int] = len,
        prepare: Prepare = lambda columns, sent, now_ms: columns,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._put, self._prepare, self.close = put, prepare, close
        self._sent = 0

    def prepared(self, columns: pa.RecordBatch, now_ms: int) -> Any:
        """Return what :meth:`send_batch` takes for these timers."""
        return self._prepare(columns, self._sent, now_ms)

    def send_batch(self, prepared: Any) -> list[HollowReceipt]:
        first_seq, count = self._sent + 1, self._put(prepared)
        self._sent += count
        return [HollowReceipt(TimerHandle(0, 1, first_seq, 0))] * count

    def cancel(self, handles: Sequence[Any]) -> list[CancelOutcome]:
        return [CancelOutcome.CANCELLED] * len(handles)

    def tick(self) -> TickReport:
        return TickReport()

    def pop(self, *_: Any, **__: Any) -> list[Any]:
        return []

    def flush(self) -> None:
        pass


def _entries(columns: pa.RecordBatch, sent: int, now_ms: int) -> list[tuple[bytes, bytes]]:
    """Return what a key-ordered database gets."""
    ticks = -(-columns.column("deliver_at_ms").to_numpy() // PRECISION_MS) * PRECISION_MS
    topics, bodies = columns.column("topic").to_pylist(), columns.column("body").to_pylist()
    head = bytes(HEAD_BYTES + HEADER_BYTES + _ID_BYTES)
    rows = zip(ticks.tolist(), range(sent, sent + len(columns)), topics, bodies, strict=True)
    return sorted((_TICK_SEQ.pack(tick, seq), head + topic.encode() + body) for tick, seq, topic, body in rows)


def _by_arrival(columns: pa.RecordBatch, sent: int, now_ms: int) -> list[tuple[bytes, bytes]]:
    """Return the same, under keys in the order of their arrival."""
    return [(_TICK_SEQ.pack(0, sent + at), value) for at, (_, value) in enumerate(_entries(columns, sent, now_ms))]


def _raw_rocksdb(path: Path, prepare: Prepare = _entries, *, compacts: bool = True) -> Hollow:
    """RocksDB: a write batch, then a sync of the WAL."""
    import rocksdict

    options = rocksdict.Options(raw_mode=True)
    options.set_disable_auto_compactions(not compacts)
    db = rocksdict.Rdict(str(path), options)

    def put(entries: list[tuple[bytes, bytes]]) -> int:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in entries:
            batch[key] = value
        db.write(batch)
        db.flush_wal(True)
        return len(entries)

    return Hollow(put, prepare, db.close)


def _raw_lmdb(path: Path) -> Hollow:
    """LMDB: a transaction, committed with a sync."""
    import lmdb

    env = lmdb.open(str(path), map_size=1 << 36)

    def put(entries: list[tuple[bytes, bytes]]) -> int:
        with env.begin(write=True) as txn:
            txn.cursor().putmulti(entries)
        return len(entries)

    return Hollow(put, _entries, env.close)


def _plain_append(path: Path) -> Hollow:
    """A file: a positioned write, then fdatasync."""
    from rmqstore_wheel.timers.records import encode_timers

    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    end = filled = 0

    def prepare(columns: pa.RecordBatch, sent: int, now_ms: int) -> tuple[int, memoryview]:
        ids = pa.array([f"{row:0{_ID_BYTES}x}" for row in range(len(columns))])
        batch = MessageBatch.from_arrow(columns.append_column("message_id", ids))
        return len(columns), encode_timers(batch, now_ms, PRECISION_MS).records.data.data

    def put(prepared: tuple[int, memoryview]) -> int:
        nonlocal end, filled
        count, data = prepared
        if end + len(data) > filled:
            os.pwrite(fd, bytes(_FILL_BYTES), filled)
            filled += _FILL_BYTES
        os.pwrite(fd, data, end)
        end += len(data)
        os.fdatasync(fd)
        return count

    return Hollow(put, prepare, lambda: os.close(fd))


RAW: Final[dict[str, Callable[[Path], Hollow]]] = {
    "raw-wheel": _plain_append,
    "raw-rocksdb": _raw_rocksdb,
    "raw-rocksdb-by-arrival": partial(_raw_rocksdb, prepare=_by_arrival),
    "raw-rocksdb-uncompacted": partial(_raw_rocksdb, compacts=False),
    "raw-lmdb": _raw_lmdb,
}
HOLLOW: Final = frozenset({NULL_ENGINE, *RAW})
"""The names that are no engine: nothing that was sent comes back from them, so there is nothing to account for."""
