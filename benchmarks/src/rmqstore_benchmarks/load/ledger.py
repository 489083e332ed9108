"""What the clients of a shard were told: one append-only file of Arrow batches per attempt, which outlives the attempt's process.

Before a call that changes something its *intent* is written and synced; behind the call its answer. A process that dies in between leaves
an intent without an answer: the call is in doubt. Files are numbered in the order in which the attempts owned the store, and are made while
its lock is held. A file without a CLOSED row belongs to an attempt that died.
"""

from __future__ import annotations

import enum
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from rmqstore_benchmarks.load.plan import Ids


class Event(enum.IntEnum):
    """What a row says; the names in small letters are those of the table for Spark."""

    OPENED = 0
    WAITED = 1
    CLOSED = 2
    SENDING = 3
    SENT = 4
    REPEATED = 5
    CANCELLING = 6
    CANCELLED = 7
    CANCEL_LATE = 8
    CANCEL_MISSED = 9
    CANCEL_UNKNOWN = 10
    DELIVERED = 11
    EARLY = 12
    DAMAGED = 13
    ABANDONED = 14
    ACKING = 15
    ACKED = 16
    ACK_REPEATED = 17
    ACK_STALE = 18
    ACK_UNKNOWN = 19
    RELEASING = 20
    RELEASED = 21
    RELEASE_REFUSED = 22
    CHANGING = 23
    CHANGED = 24
    CHANGE_REFUSED = 25
    OLD_HONOURED = 26
    """A receipt was taken although a change had replaced it."""
    TIME = 27
    """The simulated time is about to move to ``to_ms``."""
    HELD = 28
    """A change gave ``HELD_MS``; CHANGED is one that gave ``LONGER_MS``."""
    COPIES = 29
    """A cancel by key found more than one timer with the key of one message."""


NO_ID: Final = -1
SCHEMA: Final = pa.schema(
    [("id", pa.int64()), ("event", pa.int8()), ("attempt", pa.int32())]
    + [(name, pa.int64()) for name in ("began", "ended", "from_ms", "to_ms")]
)
"""``began`` and ``ended`` number the moments before and behind the call over all attempts; ``from_ms`` and ``to_ms`` are the simulated time
then. ``attempt`` is that of the delivery, 0 where there is none."""

TABLE: Final = "shard int, file int, id long, event string, attempt int, began long, ended long, from_ms long, to_ms long"
"""The rows as a table for Spark."""

_NAMES: Final = pa.array([event.name.lower() for event in Event])
_FILE_BITS: Final = 40
_SUFFIX: Final = ".arrows"
_PAGE: Final = 50_000


class Moment(NamedTuple):
    """When a call began: a number, and the simulated time in ms."""

    number: int
    ms: int


class LedgerFile:
    """The file of one attempt; safe to share between threads."""

    def __init__(self, directory: Path) -> None:
        """Make the next file of a shard; the caller holds the store's lock."""
        number = len(list(directory.glob(f"*{_SUFFIX}")))
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(directory / f"{number:06d}{_SUFFIX}", flags)
        self._lock = threading.Lock()
        self._numbers = itertools.count(number << _FILE_BITS)
        self._write(SCHEMA.serialize())

    def moment(self, now_ms: int) -> Moment:
        """Return the present moment, before a call."""
        return Moment(next(self._numbers), now_ms)

    def intend(self, event: Event, ids: Ids, now_ms: int, attempts: Ids | None = None) -> Moment:
        """Write what a client is about to do, durably, and return the moment."""
        began = self.moment(now_ms)
        self._append(np.full(len(ids), event, np.int8), ids, attempts, began, began)
        os.fdatasync(self._fd)
        return began

    def tell(self, event: Event | Ids, ids: Ids, began: Moment, now_ms: int, attempts: Ids | None = None) -> None:
        """Write what a client was told by a call that began at ``began``; one event for all, or one per id."""
        if len(ids):
            events = np.full(len(ids), event, np.int8) if isinstance(event, Event) else event.astype(np.int8)
            self._append(events, ids, attempts, began, self.moment(now_ms))

    def say(self, event: Event, now_ms: int) -> None:
        """Write something that concerns no message, durably."""
        self.intend(event, np.array([NO_ID]), now_ms)

    def close(self) -> None:
        """Close the file; idempotent."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _append(self, events: np.ndarray[Any, Any], ids: Ids, attempts: Ids | None, began: Moment, ended: Moment) -> None:
        count = len(ids)
        moments = (began.number, ended.number, began.ms, ended.ms)
        columns = [ids, events, np.zeros(count, np.int32) if attempts is None else attempts.astype(np.int32)]
        columns += [np.full(count, value, np.int64) for value in moments]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        self._write(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA).serialize())

    def _write(self, data: pa.Buffer) -> None:
        rest = memoryview(data)
        with self._lock:
            while rest:
                rest = rest[os.write(self._fd, rest) :]


def batches_of(file: Path) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one attempt; a last one that its writer did not finish is left out.

    Raises:
        OSError: a file that was closed cannot be read to its end.
    """
    is_closed = False
    with pa.memory_map(str(file)) as source:
        try:
            reader = pa.ipc.open_stream(source)
            for batch in reader:
                is_closed = batch.num_rows == 1 and batch.column("event")[0].as_py() == Event.CLOSED
                yield batch
        except (OSError, pa.ArrowInvalid) as error:
            if is_closed:
                raise OSError(f"{file} was closed, but something behind its end cannot be read: {error}") from error


def files_of(directory: Path) -> list[Path]:
    """Return the files of a shard in the order of its attempts."""
    return sorted(directory.glob(f"*{_SUFFIX}"))


def last_ms(directory: Path) -> int:
    """Return the last simulated time that was written for a shard, ms; 0 without any."""
    for file in reversed(files_of(directory)):
        latest = max((batch.column("to_ms")[-1].as_py() for batch in batches_of(file)), default=0)
        if latest:
            return int(latest)
    return 0


def table_of(directory: Path, shard: int) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a shard in the form of :data:`TABLE`, in batches of a size that Spark likes."""
    for number, file in enumerate(files_of(directory)):
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for batch in batches_of(file):
            waiting.append(batch)
            rows += len(batch)
            if rows >= _PAGE:
                yield _as_table(waiting, shard, number)
                waiting, rows = [], 0
        if waiting:
            yield _as_table(waiting, shard, number)


def _as_table(batches: list[pa.RecordBatch], shard: int, file: int) -> pa.RecordBatch:
    (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    columns = dict(zip(whole.schema.names, whole.columns, strict=True))
    columns["event"] = _NAMES.take(columns["event"])
    place = {"shard": shard, "file": file}
    return pa.record_batch({name: pa.array(np.full(len(whole), value, np.int32)) for name, value in place.items()} | columns)
