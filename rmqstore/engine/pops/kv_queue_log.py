"""``QueueLog`` over an ``OrderedKV``: the messages of one call for one queue are runs (``runs``) in the space ``queues``."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

from rmqstore.engine import records as ordered_format
from rmqstore.engine.kv.base import WriteBatch, is_last
from rmqstore.engine.pops.queue_log import Aged, DamagedRun, PlacedRun, QueueLog, Run
from rmqstore.engine.pops.state import Topic
from rmqstore.engine.records import RecordFormat
from rmqstore.engine.runs import DamagedRunError, count_of, decode_run, encode_run, is_damaged, run_lengths, runs_behind
from rmqstore.engine.schema import QUEUE, QUEUE_PREFIX, QUEUES, U32, U64
from rmqstore.engine.shared import Shared
from rmqstore.errors import CorruptStoreError

_CACHED_QUEUES = 64
_CACHED_RUNS = 4
_FEW_RUNS = 16
_FEW_BYTES = 64 * 1024
"""So much of a queue is looked at, run by run, when its head goes."""


class RunQueueLog(QueueLog):
    """The queues of a key-ordered database; the last runs of a queue are kept, since consumers take a run in several pops."""

    format: RecordFormat = ordered_format

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._kv = shared.kv
        self._recent: dict[tuple[int, int], list[Run]] = {}

    # ------------------------------------------------------------ reading

    def runs_from(self, topic: Topic, queue: int, offset: int) -> Iterator[Run | DamagedRun]:
        prefix = QUEUE_PREFIX.pack(topic.id, queue)
        start = prefix + U64.pack(offset)
        if (recent := self._recent.get((topic.id, queue))) and (cached := _holding(recent, offset)) is not None:
            yield cached
            start = prefix + U64.pack(cached.first + len(cached.records))
        elif (value := self._kv.get(QUEUES, start)) is not None:
            yield self._decoded(topic.id, queue, start, value)
            start += b"\x00"
        else:
            for key, value in self._kv.scan(QUEUES, prefix, start, 1, reverse=True):
                # Of a damaged run the count says nothing, so it may hold the offset, whatever it says.
                if offset < U64.unpack_from(key, 8)[0] + count_of(value) or is_damaged(value):
                    yield self._decoded(topic.id, queue, key, value)
        for key, value in self._kv.scan_all(QUEUES, start, QUEUE_PREFIX.pack(topic.id, queue + 1), 16):
            yield self._decoded(topic.id, queue, key, value)

    def _decoded(self, topic_id: int, queue: int, key: bytes, value: bytes) -> Run | DamagedRun:
        first: int = QUEUE.unpack(key)[2]
        try:
            decoded = decode_run(value)
        except DamagedRunError as error:
            return DamagedRun(first, value, str(error))
        run = Run(first, decoded.store_ms, decoded.records)
        if len(run.records) > 1:
            if len(self._recent) >= _CACHED_QUEUES and (topic_id, queue) not in self._recent:
                self._recent.pop(next(iter(self._recent)))
            runs = self._recent.setdefault((topic_id, queue), [])
            runs.append(run)
            del runs[:-_CACHED_RUNS]
        return run

    def _drop(self, topic: Topic, queue: int) -> None:
        """Keep nothing of a queue whose runs were rewritten or removed."""
        self._recent.pop((topic.id, queue), None)

    def aged(self, topic: Topic, queue: int, offset: int, before_ms: int, room_bytes: int) -> Aged:
        below = self._entry_below(topic, queue, offset)
        start = QUEUE.pack(topic.id, queue, offset) if below is None else below[0]
        stop = QUEUE_PREFIX.pack(topic.id, queue + 1)
        passed: list[DamagedRun] = []
        latest: list[DamagedRun] = []
        while room_bytes > 0 and (page := self._kv.scan(QUEUES, start, stop, 256)):
            for key, value in page:
                first: int = QUEUE.unpack(key)[2]
                try:
                    run = decode_run(value)
                except DamagedRunError as error:
                    latest.append(DamagedRun(first, value, str(error)))
                    continue
                if run.store_ms >= before_ms:
                    return Aged(latest[0].first if latest else first, run.store_ms, passed)
                passed += latest
                latest.clear()
                room_bytes -= len(value)
            start = page[-1][0] + b"\x00"
        return Aged(latest[0].first if latest else self._next_run(topic, queue, start), None, passed)

    def _entry_below(self, topic: Topic, queue: int, offset: int) -> tuple[bytes, bytes] | None:
        """Return the last run that begins at or below ``offset``."""
        key = QUEUE.pack(topic.id, queue, offset)
        entry = self._kv.floor(QUEUES, key)
        return None if entry is None or entry[0][:8] != key[:8] else entry

    def _next_run(self, topic: Topic, queue: int, key: bytes) -> int:
        """Return the first offset of the next run from ``key`` on, or the end of the queue."""
        later = self._kv.scan(QUEUES, key, QUEUE_PREFIX.pack(topic.id, queue + 1), 1)
        return int(QUEUE.unpack(later[0][0])[2]) if later else topic.next_offsets[queue]

    def stored(self, topics: Iterable[Topic], after: bytes | None, limit: int) -> Iterator[tuple[bytes, PlacedRun]]:
        known = {topic.id: topic for topic in topics}
        for key, run in runs_behind(self._kv, QUEUES, after, limit):
            topic_id, queue, first = QUEUE.unpack(key)
            if topic_id not in known:
                raise CorruptStoreError(f"the run at offset {first} belongs to no topic (number {topic_id})", offset=first)
            yield key, PlacedRun(known[topic_id], queue, Run(first, run.store_ms, run.records))

    # ------------------------------------------------------------ adding

    def append(self, write: WriteBatch, topic: Topic, queue: int, offset: int, records: Sequence[bytes], now_ms: int) -> int:
        if len(records) == 1:
            value = encode_run(self._shared.epoch, now_ms, records)
            write.put(QUEUES, QUEUE.pack(topic.id, queue, offset), value)
            return len(value)
        entries = self._entries(topic, queue, offset, records, now_ms)
        write.put_many(QUEUES, entries)
        return sum([len(value) for _, value in entries])

    def place(self, write: WriteBatch, runs: Iterable[PlacedRun]) -> None:
        entries = [entry for topic, queue, run in runs for entry in self._entries(topic, queue, run.first, run.records, run.store_ms)]
        write.put_many(QUEUES, sorted(entries))

    def _entries(self, topic: Topic, queue: int, offset: int, records: Sequence[bytes], store_ms: int) -> list[tuple[bytes, bytes]]:
        return [
            (QUEUE.pack(topic.id, queue, offset + start), encode_run(self._shared.epoch, store_ms, records[start:stop]))
            for start, stop in run_lengths([len(record) for record in records])
        ]

    # ------------------------------------------------------------ removing

    def remove(
        self, write: WriteBatch, topic: Topic, queue: int, offsets: Sequence[int], is_wanted: Callable[[int, bytes], bool]
    ) -> list[int]:
        removed: list[int] = []
        at = 0
        while at < len(offsets):
            entry = self._entry_below(topic, queue, offsets[at])
            try:
                run = None if entry is None else decode_run(entry[1])
            except DamagedRunError:
                run = None
            if entry is None or run is None:
                at += 1
                continue
            first: int = QUEUE.unpack(entry[0])[2]
            records = run.records
            behind = first + len(records)
            stop = bisect_left(offsets, behind, at)
            going = [offset for offset in offsets[at:stop] if is_wanted(offset, records[offset - first])]
            if going:
                write.delete(QUEUES, entry[0])
                for begin, end in zip([first, *(offset + 1 for offset in going)], [*going, behind], strict=True):
                    if begin < end:
                        piece = encode_run(run.epoch, run.store_ms, records[begin - first : end - first])
                        write.put(QUEUES, QUEUE.pack(topic.id, queue, begin), piece)
            removed += going
            at = max(stop, at + 1)
        if removed:
            self._drop(topic, queue)
        return removed

    def take_out(self, write: WriteBatch, topic: Topic, queue: int, damaged: DamagedRun) -> int:
        key = QUEUE.pack(topic.id, queue, damaged.first)
        write.delete(QUEUES, key)
        self._drop(topic, queue)
        return self._next_run(topic, queue, key + b"\x00")

    def cut(self, write: WriteBatch, topic: Topic, queue: int, first: int, target: int) -> None:
        prefix = QUEUE_PREFIX.pack(topic.id, queue)
        start, stop = prefix + U64.pack(first), prefix + U64.pack(target)
        found = self._kv.scan(QUEUES, start, stop + b"\x00", _FEW_RUNS, page_bytes=_FEW_BYTES)
        are_all = is_last(found, _FEW_RUNS, _FEW_BYTES)
        if not found or found[0][0] != start:
            # The queue was cut within a run before, which begins further down.
            found = self._kv.scan(QUEUES, prefix, start, 1, reverse=True) + found
        if not found:
            return
        last = found[-1][0] if are_all else (self._entry_below(topic, queue, target) or found[-1])[0]
        # The counts in runs are not trusted: a damaged one might say anything.
        if last != stop and target < topic.next_offsets[queue] and target < self._next_run(topic, queue, stop):
            stop = last
        write.delete_range(QUEUES, found[0][0], stop, [key for key, _ in found if key < stop] if are_all else ())
        self._recent.pop((topic.id, queue), None)

    def was_cut(self, topic: Topic, queue: int, target: int) -> None:
        """Nothing is remembered of where a queue begins."""

    def delete(self, write: WriteBatch, topic: Topic) -> None:
        write.delete_range(QUEUES, U32.pack(topic.id), U32.pack(topic.id + 1))
        for queue in range(topic.queues):
            self._drop(topic, queue)


def _holding(runs: Iterable[Run], offset: int) -> Run | None:
    """Return the run that holds an offset."""
    return next((run for run in runs if run.first <= offset < run.first + len(run.records)), None)
