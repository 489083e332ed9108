"""``QueueLog`` of the wheel engine: messages are records of the commit log, consume queues say where they are.

A record is checked when a consume queue leads to it: its size and offset, its queue and its number there, its topic, the CRC of its body,
and that of the rest (``sums``). One that fails is damaged and gets parked; nothing that is behind it is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np

from rmqstore.batch import MessageBatch
from rmqstore.engine.kv.base import PAGE_BYTES, WriteBatch
from rmqstore.engine.pops.queue_log import Aged, DamagedRun, PlacedRun, QueueLog, Run
from rmqstore.engine.pops.state import Topic
from rmqstore.engine.records import RecordFormat
from rmqstore.engine.schema import QUEUE
from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.formats import commit_log as log_format
from rmqstore_wheel.formats.binary_columns import Ints, Rows, cells
from rmqstore_wheel.formats.consume_queue import FILL_SIZE
from rmqstore_wheel.log.call import Few, LogBatch, appended, parts_of
from rmqstore_wheel.log.journal import ClearOffsets, DropQueue
from rmqstore_wheel.log.ledger import Ledger
from rmqstore_wheel.queues.soundness import fault_of, sound_rows
from rmqstore_wheel.records import message_records as log_records
from rmqstore_wheel.records.message_records import LogRecords

_FIRST_PAGE: Final = 32
_LAST_PAGE: Final = 512
_CACHED_QUEUES: Final = 64
_CACHED_BYTES: Final = 4 * PAGE_BYTES
_BY_COLUMN: Final = 8
"""From so many on, records are read by the column."""


class _Page(msgspec.Struct, frozen=True, gc=False):
    """Runs of a queue that were read, the offset behind them, and their bytes."""

    first: int
    behind: int
    size: int
    runs: list[Run | DamagedRun]


class WheelQueueLog(QueueLog):
    """The queues of a ledger; the last page of a queue is kept, since consumers take it in several pops."""

    format: RecordFormat = log_records

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._recent: dict[tuple[str, int], _Page] = {}
        self._recent_bytes = 0

    # ------------------------------------------------------------ reading

    def runs_from(self, topic: Topic, queue: int, offset: int) -> Iterator[Run | DamagedRun]:
        page = self._recent.get((topic.name, queue))
        if page is not None and page.first <= offset < page.behind:
            for run in page.runs:
                if isinstance(run, DamagedRun) or run.first + len(run.records) > offset:
                    yield run
            offset = page.behind
        # A caller that goes on behind the last page takes more of it.
        size = _FIRST_PAGE if page is None or page.behind != offset else min(2 * max(page.behind - page.first, _FIRST_PAGE), _LAST_PAGE)
        while (page := self._read(topic.name, queue, offset, size)) is not None:
            self._forget((topic.name, queue))
            while self._recent and (len(self._recent) >= _CACHED_QUEUES or self._recent_bytes + page.size > _CACHED_BYTES):
                self._forget(next(iter(self._recent)))
            self._recent[topic.name, queue] = page
            self._recent_bytes += page.size
            yield from page.runs
            offset = page.behind
            size = min(2 * size, _LAST_PAGE)

    def _forget(self, name: tuple[str, int]) -> None:
        page = self._recent.pop(name, None)
        if page is not None:
            self._recent_bytes -= page.size

    def record_at(self, topic: Topic, queue: int, offset: int) -> tuple[bytes, int] | DamagedRun | None:
        page = self._read(topic.name, queue, offset, 1)
        if page is None or page.first != offset or not page.runs:
            return None
        run = page.runs[0]
        return run if isinstance(run, DamagedRun) else (run.records[0], run.store_ms)

    def _read(self, topic: str, queue: int, offset: int, count: int) -> _Page | None:
        """Read up to ``count`` offsets, fewer where messages are large; None at the end of the queue."""
        first, units = self._ledger.queues.read(topic, queue, offset, count)
        if not len(units):
            return None
        page = self._page_of(topic, queue, first, units) if len(units) >= _BY_COLUMN else None
        return self._page_one_by_one(topic, queue, first, units) if page is None else page

    def _page_of(self, topic: str, queue: int, first: int, units: Rows) -> _Page | None:
        """Return the messages of some units, read by the column; None unless they are in one file and are all sound."""
        log = self._ledger.log
        sizes = units["size"].astype(np.int64)
        behind = sizes.cumsum()
        count = max(int(behind.searchsorted(PAGE_BYTES, "right")), 1)
        offsets, sizes = units["log_offset"][:count].astype(np.int64), sizes[:count]
        file_start = int(offsets[0]) // log.file_bytes * log.file_bytes
        starts = offsets - file_start
        # A fill unit leads into no file.
        if not (sizes >= log_format.MIN_BYTES).all() or (starts < 0).any() or (starts >= log.file_bytes).any():
            return None
        if not sound_rows(log, file_start, starts, sizes, topic.encode(), queue, first + np.arange(count)).all():
            return None
        view = log.chain.view(file_start, int((starts + sizes).max()))
        records = _pieces(view, starts, sizes)
        times = cells(np.frombuffer(view, np.uint8), ">i8")[starts + log_format.STORE_MS_AT]
        bounds = [0, *(np.flatnonzero(np.diff(times)) + 1).tolist(), len(records)]
        runs: list[Run | DamagedRun] = [Run(first + begin, int(times[begin]), records[begin:stop]) for begin, stop in pairwise(bounds)]
        return _Page(first, first + count, int(behind[count - 1]), runs)

    def _page_one_by_one(self, topic: str, queue: int, first: int, units: Rows) -> _Page:
        log, name = self._ledger.log, topic.encode()
        runs: list[Run | DamagedRun] = []
        current: list[bytes] = []
        begin, behind = -1, first
        page_bytes = 0
        stored = b""
        for log_offset, size, _ in units.tolist():
            at, behind = behind, behind + 1
            if size == FILL_SIZE:
                begin = -1
                continue
            if page_bytes + size > PAGE_BYTES and at > first:
                behind = at
                break
            page_bytes += size
            found = log.record(log_offset, size)
            reason = fault_of(found, log_offset, name, queue, at) if found else "no message lies there"
            if reason is not None:
                runs.append(DamagedRun(at, found, f"offset {log_offset} of the log: {reason}"))
                begin = -1
                continue
            store_ms = found[log_format.STORE_MS_AT : log_format.STORE_MS_AT + 8]
            if begin < 0 or store_ms != stored:
                begin, stored, current = at, store_ms, []
                runs.append(Run(begin, int.from_bytes(store_ms, "big"), current))
            current.append(found)
        return _Page(first, behind, page_bytes, runs)

    def aged(self, topic: Topic, queue: int, offset: int, before_ms: int, room_bytes: int) -> Aged:
        passed: list[DamagedRun] = []
        latest: list[DamagedRun] = []
        while room_bytes > 0 and (page := self._read(topic.name, queue, offset, _LAST_PAGE)) is not None:
            for run in page.runs:
                if isinstance(run, DamagedRun):
                    latest.append(run)
                    continue
                if run.store_ms >= before_ms:
                    return Aged(latest[0].first if latest else run.first, run.store_ms, passed)
                passed += latest
                latest.clear()
                room_bytes -= sum(map(len, run.records))
            offset = page.behind
        return Aged(latest[0].first if latest else min(offset, topic.next_offsets[queue]), None, passed)

    def stored(self, topics: Iterable[Topic], after: bytes | None, limit: int) -> Iterator[tuple[bytes, PlacedRun]]:
        start = (0, 0, 0) if after is None else QUEUE.unpack(after)
        found = size = 0
        for topic in sorted(topics, key=lambda each: each.id):
            for queue in range(topic.queues):
                if (topic.id, queue) < start[:2]:
                    continue
                offset = start[2] if (topic.id, queue) == start[:2] else 0
                while found < limit and size < PAGE_BYTES and (page := self._read(topic.name, queue, offset, _LAST_PAGE)) is not None:
                    for run in page.runs:
                        if isinstance(run, DamagedRun):
                            where = f"{topic.name}/{queue}/{run.first}"
                            raise CorruptStoreError(
                                f"the message {where} is damaged ({run.reason}); deliver or pop it first, which parks it", offset=where
                            )
                        found += len(run.records)
                        yield QUEUE.pack(topic.id, queue, run.first + len(run.records)), PlacedRun(topic, queue, run)
                    offset = page.behind
                    size += page.size
                if found >= limit or size >= PAGE_BYTES:
                    return

    # ------------------------------------------------------------ adding

    def new_batch(self, consumes_at_ms: int | None) -> LogBatch:
        return LogBatch(consumes_at_ms=consumes_at_ms)

    def encode(self, batch: MessageBatch) -> Sequence[bytes]:
        source = batch.source
        return source if isinstance(source, LogRecords) else super().encode(batch)

    def routed(self, records: Sequence[bytes]) -> Iterable[tuple[bytes, int, Sequence[bytes]]]:
        return records.by_route() if isinstance(records, LogRecords) else super().routed(records)

    def append(self, write: WriteBatch, topic: Topic, queue: int, offset: int, records: Sequence[bytes], now_ms: int) -> int:
        part = appended(topic.name, queue, offset, records, now_ms)
        parts_of(write).append(part)
        return sum(map(len, part.records)) if isinstance(part, Few) else len(part.records.data)

    def place(self, write: WriteBatch, runs: Iterable[PlacedRun]) -> None:
        parts_of(write).extend([appended(topic.name, queue, run.first, run.records, run.store_ms) for topic, queue, run in runs])

    # ------------------------------------------------------------ removing

    def remove(
        self, write: WriteBatch, topic: Topic, queue: int, offsets: Sequence[int], is_wanted: Callable[[int, bytes], bool]
    ) -> list[int]:
        removed = []
        for offset in offsets:
            found = self.record_at(topic, queue, offset)
            if found is not None and not isinstance(found, DamagedRun) and is_wanted(offset, found[0]):
                removed.append(offset)
        if removed:
            parts_of(write).append(ClearOffsets(topic.name, queue, removed))
            self._forget((topic.name, queue))
        return removed

    def take_out(self, write: WriteBatch, topic: Topic, queue: int, damaged: DamagedRun) -> int:
        parts_of(write).append(ClearOffsets(topic.name, queue, [damaged.first]))
        self._forget((topic.name, queue))
        return self._next(topic, queue, damaged.first + 1)

    def _next(self, topic: Topic, queue: int, offset: int) -> int:
        """Return the first offset from ``offset`` on that holds something, or the end of the queue."""
        for run in self.runs_from(topic, queue, offset):
            return run.first
        return topic.next_offsets[queue]

    def cut(self, write: WriteBatch, topic: Topic, queue: int, first: int, target: int) -> None:
        self._forget((topic.name, queue))

    def was_cut(self, topic: Topic, queue: int, target: int) -> None:
        self._ledger.queues.trim(topic.name, queue, target)

    def delete(self, write: WriteBatch, topic: Topic) -> None:
        for queue in range(topic.queues):
            parts_of(write).append(DropQueue(topic.name, queue))
            self._forget((topic.name, queue))


def _pieces(view: memoryview, starts: Ints, sizes: Ints) -> list[bytes]:
    """Return copies of parts of a file, by one copy when they are near to one another."""
    begin, stop = int(starts.min()), int((starts + sizes).max())
    if stop - begin > 2 * int(sizes.sum()):
        return [bytes(view[start : start + size]) for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)]
    data = bytes(view[begin:stop])
    return [data[start : start + size] for start, size in zip((starts - begin).tolist(), sizes.tolist(), strict=True)]
