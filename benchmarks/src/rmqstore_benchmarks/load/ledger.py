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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from rmqstore_benchmarks.grid.load import Ids


class Event(enum.StrEnum):
    """What a row says, in small letters."""

    OPENED = enum.auto()
    WAITED = enum.auto()
    CLOSED = enum.auto()
    SENDING = enum.auto()
    SENT = enum.auto()
    REPEATED = enum.auto()
    CANCELLING = enum.auto()
    CANCELLED = enum.auto()
    CANCEL_LATE = enum.auto()
    CANCEL_MISSED = enum.auto()
    CANCEL_UNKNOWN = enum.auto()
    DELIVERED = enum.auto()
    EARLY = enum.auto()
    DAMAGED = enum.auto()
    ABANDONED = enum.auto()
    ACKING = enum.auto()
    ACKED = enum.auto()
    ACK_REPEATED = enum.auto()
    ACK_STALE = enum.auto()
    ACK_UNKNOWN = enum.auto()
    RELEASING = enum.auto()
    RELEASED = enum.auto()
    RELEASE_REFUSED = enum.auto()
    CHANGING = enum.auto()
    CHANGED = enum.auto()
    CHANGE_REFUSED = enum.auto()
    OLD_HONOURED = enum.auto()
    """A receipt was taken although a change had replaced it."""
    TIME = enum.auto()
    """The simulated time is about to move to ``to_ms``."""
    HELD = enum.auto()
    """A change gave ``HELD_MS``; CHANGED is one that gave ``LONGER_MS``."""
    COPIES = enum.auto()
    """A cancel by key found more than one timer with the key of one message."""


NO_ID: Final = -1
SCHEMA: Final = pa.schema(
    [("shard", pa.int32()), ("file", pa.int32()), ("id", pa.int64()), ("event", pa.string()), ("attempt", pa.int32())]
    + [(name, pa.int64()) for name in ("began", "ended", "from_ms", "to_ms")]
)
"""``began`` and ``ended`` number the moments before and behind the call over all attempts; ``from_ms`` and ``to_ms`` are the simulated time
then. ``attempt`` is that of the delivery, 0 where there is none."""

_FILE_BITS: Final = 40
_SUFFIX: Final = ".arrows"
_PAGE: Final = 50_000


class Moment(NamedTuple):
    """When a call began: a number, and the simulated time in ms."""

    number: int
    ms: int


class LedgerFile:
    """The file of one attempt; safe to share between threads."""

    def __init__(self, directory: Path, shard: int) -> None:
        """Make the next file of a shard; the caller holds the store's lock."""
        self._place = (shard, len(files_of(directory)))
        self._file = (directory / f"{self._place[1]:06d}{_SUFFIX}").open("xb")
        self._lock = threading.Lock()
        self._numbers = itertools.count(self._place[1] << _FILE_BITS)
        self._write(SCHEMA.serialize())

    def moment(self, now_ms: int) -> Moment:
        """Return the present moment, before a call."""
        return Moment(next(self._numbers), now_ms)

    def intend(self, event: Event, ids: Ids, now_ms: int, attempts: Ids | None = None) -> Moment:
        """Write what a client is about to do, durably, and return the moment."""
        began = self.moment(now_ms)
        self._append([event] * len(ids), ids, attempts, began, began)
        os.fdatasync(self._file.fileno())
        return began

    def tell(self, event: Event | Sequence[Event], ids: Ids, began: Moment, now_ms: int, attempts: Ids | None = None) -> None:
        """Write what a client was told by a call that began at ``began``; one event for all, or one per id."""
        if len(ids):
            self._append([event] * len(ids) if isinstance(event, Event) else event, ids, attempts, began, self.moment(now_ms))

    def say(self, event: Event, now_ms: int) -> None:
        """Write something that concerns no message, durably."""
        self.intend(event, np.array([NO_ID]), now_ms)

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()

    def _append(self, events: Sequence[Event], ids: Ids, attempts: Ids | None, began: Moment, ended: Moment) -> None:
        fixed = (began.number, ended.number, began.ms, ended.ms)
        columns = [*self._place, ids, events, 0 if attempts is None else attempts, *fixed]
        whole = [np.full(len(ids), each) if isinstance(each, int) else each for each in columns]
        arrays = [pa.array(column, field.type) for column, field in zip(whole, SCHEMA, strict=True)]
        self._write(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA).serialize())

    def _write(self, data: pa.Buffer) -> None:
        with self._lock:
            self._file.write(data)
            self._file.flush()


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


def table_of(directory: Path) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a shard, in batches of a size that Spark likes."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in itertools.chain.from_iterable(map(batches_of, files_of(directory))):
        waiting.append(batch)
        rows += len(batch)
        if rows >= _PAGE:
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting, rows = [], 0
    yield from pa.Table.from_batches(waiting, SCHEMA).combine_chunks().to_batches()
