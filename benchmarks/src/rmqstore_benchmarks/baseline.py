"""What lies under each engine, without rmqstore: each ``put`` is one atomic batch, durable when it returns.

``batch`` and ``singles`` make what is put beforehand: for a database, entries with 16-byte keys (tick, seq); for the wheel, the very bytes
that its commit log gets, which a plain append writes as the log does: into space that was filled with zeros before, then fdatasync.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from rmqstore.batch import MessageBatch
from rmqstore_benchmarks.workloads import PRECISION_MS, Workload

Items = Sequence[tuple[bytes, bytes]]

_FILL_BYTES: Final = 4 * 1024 * 1024


class Raw(ABC):
    """A database, or a file, of its own in ``path``, which is not there yet."""

    @abstractmethod
    def __init__(self, path: Path) -> None: ...

    @staticmethod
    @abstractmethod
    def batch(work: Workload, number: int) -> Any:
        """Return what one put takes for a whole batch."""

    @staticmethod
    @abstractmethod
    def singles(work: Workload) -> list[Any]:
        """Return what the puts take for each timer of the first batch, in the order of their seqs."""

    @abstractmethod
    def put(self, items: Any) -> None:
        """Store something durably."""


class RawDatabase(Raw):
    """A key-ordered database."""

    @staticmethod
    def batch(work: Workload, number: int) -> Items:
        return work.raw(number)

    @staticmethod
    def singles(work: Workload) -> list[Items]:
        return [[entry] for entry in sorted(work.raw(0), key=lambda entry: entry[0][8:])]


class RawRocksDB(RawDatabase):
    """RocksDB: a write batch, then a sync of the WAL."""

    def __init__(self, path: Path) -> None:
        from rocksdict import Options, Rdict, WriteBatch

        self._db, self._batch = Rdict(str(path), Options(raw_mode=True)), WriteBatch

    def put(self, items: Items) -> None:
        batch = self._batch(raw_mode=True)
        for key, value in items:
            batch[key] = value
        self._db.write(batch)
        self._db.flush_wal(True)


class RawLMDB(RawDatabase):
    """LMDB: a transaction, committed with a sync."""

    def __init__(self, path: Path) -> None:
        import lmdb

        self._env = lmdb.open(str(path), map_size=1 << 36)

    def put(self, items: Items) -> None:
        with self._env.begin(write=True) as txn:
            txn.cursor().putmulti(items)


class PlainAppend(Raw):
    """A file: a positioned write, then fdatasync."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        self._end = self._filled = 0

    @staticmethod
    def batch(work: Workload, number: int) -> memoryview:
        return _encoded(work, number).data.data  # type: ignore[no-any-return]

    @staticmethod
    def singles(work: Workload) -> list[memoryview]:
        found = _encoded(work, 0)
        pairs = zip(found.starts.tolist(), found.sizes.tolist(), strict=True)
        return [found.data.data[start : start + size] for start, size in pairs]

    def put(self, items: memoryview) -> None:
        if self._end + len(items) > self._filled:
            os.pwrite(self._fd, bytes(_FILL_BYTES), self._filled)
            self._filled += _FILL_BYTES
        os.pwrite(self._fd, items, self._end)
        self._end += len(items)
        os.fdatasync(self._fd)


def _encoded(work: Workload, number: int) -> Any:
    """Return the records that a batch is in the wheel's commit log."""
    from rmqstore_wheel.timer_records import encode_timers

    columns = work.arrow(number)
    ids = pa.array([f"{row:034x}" for row in range(len(columns))])
    batch = MessageBatch.from_arrow(columns.append_column("message_id", ids))
    return encode_timers(batch, work.now_ms(number), PRECISION_MS).records


RAW: Final[dict[str, type[Raw]]] = {"wheel": PlainAppend, "rocksdb": RawRocksDB, "lmdb": RawLMDB}
