"""What one task of the grid is told, and the store that it opens: an engine's, what lies under one, or none at all.

Beside the engines there are four names from which nothing comes back. ``null`` stores nothing: what is measured with it is the load and
Spark themselves. ``raw-wheel``, ``raw-rocksdb`` and ``raw-lmdb`` are the file or the database under an engine: one atomic batch a call,
synced; the batch is made before it is timed. A database gets 16-byte keys (tick, seq) in order and values as long as a stored timer;
the file gets the very bytes of the wheel's commit log, into space that was filled with zeros, with one fdatasync.
"""

from __future__ import annotations

import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
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
NULL_PHASES: Final = frozenset({"fill", "schedule", "cancel", "mixed", "open_50", "open_80", "open_95"})
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


class ShardTask(msgspec.Struct, frozen=True):
    """One shard of one run; its store is made in ``directory`` by the task, and removed when it ends."""

    run: Run
    shard: int
    directory: str

    @property
    def cell(self) -> Cell:
        """The cell of the run."""
        return self.run.cell

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
        return NullStore()
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


class _NullReceipt(msgspec.Struct, frozen=True):
    """The receipt of what was not stored; all of a batch have that of the first."""

    handle: str


class NullStore:
    """Takes the calls of a store and drops them; nothing is ever due."""

    def __init__(self) -> None:
        self._sent = 0

    def send_batch(self, columns: Any) -> list[_NullReceipt]:
        return self._sent_now(len(columns))

    def _sent_now(self, count: int) -> list[_NullReceipt]:
        first_seq = self._sent + 1
        self._sent += count
        return [_NullReceipt(TimerHandle(0, 1, first_seq, 0).text())] * count

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


class Raw(NullStore, ABC):
    """What lies under an engine, made in ``path``."""

    def __init__(self, path: Path) -> None:
        super().__init__()

    @abstractmethod
    def prepared(self, columns: pa.RecordBatch, now_ms: int) -> Any:
        """Return what :meth:`send_batch` takes for these timers; not measured."""

    @abstractmethod
    def _put(self, prepared: Any) -> int:
        """Store it durably; returns how many timers that were."""

    def send_batch(self, prepared: Any) -> list[_NullReceipt]:
        return self._sent_now(self._put(prepared))


class _RawDatabase(Raw):
    """A key-ordered database."""

    def prepared(self, columns: pa.RecordBatch, now_ms: int) -> list[tuple[bytes, bytes]]:
        ticks = -(-columns.column("deliver_at_ms").to_numpy() // PRECISION_MS) * PRECISION_MS
        topics, bodies = columns.column("topic").to_pylist(), columns.column("body").to_pylist()
        seqs = range(self._sent, self._sent + len(columns))
        head = bytes(HEAD_BYTES + HEADER_BYTES + _ID_BYTES)
        rows = zip(ticks.tolist(), seqs, topics, bodies, strict=True)
        return sorted((_TICK_SEQ.pack(tick, seq), head + topic.encode() + body) for tick, seq, topic, body in rows)


class _RawRocksDB(_RawDatabase):
    """RocksDB: a write batch, then a sync of the WAL."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        import rocksdict

        self._batch = rocksdict.WriteBatch
        self._db = rocksdict.Rdict(str(path), rocksdict.Options(raw_mode=True))

    def _put(self, prepared: list[tuple[bytes, bytes]]) -> int:
        batch = self._batch(raw_mode=True)
        for key, value in prepared:
            batch[key] = value
        self._db.write(batch)
        self._db.flush_wal(True)
        return len(prepared)

    def close(self) -> None:
        self._db.close()


class _RawLMDB(_RawDatabase):
    """LMDB: a transaction, committed with a sync."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        import lmdb

        self._env = lmdb.open(str(path), map_size=1 << 36)

    def _put(self, prepared: list[tuple[bytes, bytes]]) -> int:
        with self._env.begin(write=True) as txn:
            txn.cursor().putmulti(prepared)
        return len(prepared)

    def close(self) -> None:
        self._env.close()


class _PlainAppend(Raw):
    """A file: a positioned write, then fdatasync."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        self._end = self._filled = 0

    def prepared(self, columns: pa.RecordBatch, now_ms: int) -> tuple[int, memoryview]:
        from rmqstore_wheel.timers.records import encode_timers

        ids = pa.array([f"{row:0{_ID_BYTES}x}" for row in range(len(columns))])
        batch = MessageBatch.from_arrow(columns.append_column("message_id", ids))
        return len(columns), encode_timers(batch, now_ms, PRECISION_MS).records.data.data

    def _put(self, prepared: tuple[int, memoryview]) -> int:
        count, data = prepared
        if self._end + len(data) > self._filled:
            os.pwrite(self._fd, bytes(_FILL_BYTES), self._filled)
            self._filled += _FILL_BYTES
        os.pwrite(self._fd, data, self._end)
        self._end += len(data)
        os.fdatasync(self._fd)
        return count

    def close(self) -> None:
        os.close(self._fd)


RAW: Final[dict[str, type[Raw]]] = {"raw-wheel": _PlainAppend, "raw-rocksdb": _RawRocksDB, "raw-lmdb": _RawLMDB}
HOLLOW: Final = frozenset({NULL_ENGINE, *RAW})
"""The names that are no engine: nothing that was sent comes back from them, so there is nothing to account for."""
