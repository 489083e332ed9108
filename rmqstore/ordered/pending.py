"""Reading pending timers: counts by due time, listing, and the recount behind ``verify`` (T10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from rmqstore.contract import EMPTY_CURSOR, PendingCounts, TimerCursor
from rmqstore.errors import IllegalArgumentError
from rmqstore.message import Message
from rmqstore.ordered import traces
from rmqstore.ordered.counts import MINUTE_MS, MinuteCounts
from rmqstore.ordered.kv import OrderedKV
from rmqstore.ordered.layout import HOLE, TICK_SEQ, TIMERS, TRACES, U64, after_prefix
from rmqstore.ordered.records import decode_message, deliver_at_of
from rmqstore.ordered.runs import DamagedRunError, decode_run

_PAGE = 512


class LivePut(msgspec.Struct, frozen=True):
    """A kept, uncancelled put."""

    tick: int
    seq: int
    epoch: int
    record: bytes

    @property
    def due_ms(self) -> int:
        """Its deliver time, or its tick when it was sent without one."""
        deliver = deliver_at_of(self.record)
        return self.tick if deliver < 0 else deliver

    def message(self) -> Message:
        """Its message, decoded."""
        return decode_message(self.record)


def live_puts(
    kv: OrderedKV, start: bytes, stop: bytes | None, handed: TimerCursor = EMPTY_CURSOR, damaged: list[str] | None = None
) -> Iterator[LivePut]:
    """Yield the live puts of a key range in (tick, seq) order, without those that ``handed`` covers.

    Damaged runs are named in ``damaged`` and passed over.
    """
    while page := kv.scan(TIMERS, start, stop, _PAGE):
        start = page[-1][0] + b"\x00"
        holes = traces.holes_between(kv, page[0][0], U64.unpack_from(page[-1][0])[0])
        for key, value in page:
            tick, first_seq = TICK_SEQ.unpack(key)
            try:
                run = decode_run(value)
            except DamagedRunError as error:
                if damaged is not None:
                    damaged.append(f"timer run {tick}/{first_seq}: {error}")
                continue
            for step, record in zip(run.deltas, run.records, strict=True):
                if (tick, first_seq + step) not in holes and not handed.covers(tick, first_seq + step):
                    yield LivePut(tick, first_seq + step, run.epoch, record)


class Pending:
    """Answers ``TimerStore.pending``: whole minutes from the counters, the edges of each bucket by reading them.

    The counters follow ``forget``, which waits until the receiver holds a message durably; what ``handed`` covers beyond that is read and
    taken off, so a message is never counted in both places.
    """

    def __init__(self, kv: OrderedKV, counts: MinuteCounts, total: int, handed: TimerCursor, precision_ms: int) -> None:
        self._kv = kv
        self._counts = counts
        self._total = total
        self._handed = handed
        self._precision_ms = precision_ms
        self._gone = [put.due_ms for put in live_puts(kv, b"", U64.pack(handed.highest_tick + 1)) if handed.covers(put.tick, put.seq)]

    def count(self, edges_ms: Sequence[int]) -> PendingCounts:
        """Count by buckets between rising edges."""
        edges = list(edges_ms)
        if any(low >= high for low, high in pairwise(edges)):
            raise IllegalArgumentError(f"edges_ms must rise, not {edges}")
        below = [self._due_before(edge) for edge in edges]
        buckets = tuple(high - low for low, high in pairwise(below))
        total = self._total - len(self._gone)
        return PendingCounts(buckets, total, self._earliest() if total else None, self._latest() if total else None)

    def _due_before(self, edge_ms: int) -> int:
        if edge_ms <= 0:
            return 0
        minute = edge_ms // MINUTE_MS
        first_ms = minute * MINUTE_MS
        count = self._counts.between(0, minute) - sum(due_ms < first_ms for due_ms in self._gone)
        if edge_ms > first_ms:
            # A put of due time d has d <= tick < d + precision.
            puts = live_puts(self._kv, U64.pack(first_ms), U64.pack(edge_ms + self._precision_ms), self._handed)
            count += sum(first_ms <= put.due_ms < edge_ms for put in puts)
        return count

    def _earliest(self) -> int | None:
        earliest: int | None = None
        for put in live_puts(self._kv, b"", None, self._handed):
            if earliest is not None and put.tick - self._precision_ms >= earliest:
                break
            earliest = put.due_ms if earliest is None else min(earliest, put.due_ms)
        return earliest

    def _latest(self) -> int | None:
        """Walk back from the last run: the last ticks may hold nothing but holes."""
        stop: bytes | None = None
        while entry := self._kv.scan(TIMERS, b"", stop, 1, reverse=True):
            tick = U64.unpack_from(entry[0][0])[0]
            start = U64.pack(max(tick - self._precision_ms, 0))
            latest = max((put.due_ms for put in live_puts(self._kv, start, stop, self._handed)), default=None)
            if latest is not None or tick <= self._precision_ms:
                return latest
            stop = start
        return None


def scan_live(
    kv: OrderedKV, from_ms: int, to_ms: int, after: tuple[int, int] | None, limit: int, precision_ms: int, handed: TimerCursor
) -> list[LivePut]:
    """Answer ``TimerStore.scan``: up to ``limit`` live puts due in ``from_ms <= due < to_ms``, behind ``after``."""
    if from_ms < 0 or limit < 1:
        raise IllegalArgumentError(f"from_ms must be at least 0 and limit at least 1, not {from_ms} and {limit - 1}")
    start = U64.pack(from_ms)
    if after is not None:
        # The run that holds ``after`` starts at or before it.
        entry = kv.floor(TIMERS, TICK_SEQ.pack(*after))
        start = max(start, entry[0] if entry is not None else start)
    found = []
    for put in live_puts(kv, start, U64.pack(max(to_ms, 0) + precision_ms), handed):
        if from_ms <= put.due_ms < to_ms and (after is None or (put.tick, put.seq) > after):
            found.append(put)
            if len(found) == limit:
                break
    return found


def count_all(kv: OrderedKV, damaged: list[str] | None = None) -> tuple[Counter[int], int]:
    """Count every live put by reading it: (by minute, total)."""
    minutes: Counter[int] = Counter()
    total = 0
    for put in live_puts(kv, b"", None, damaged=damaged):
        minutes[put.due_ms // MINUTE_MS] += 1
        total += 1
    return minutes, total


def verify(kv: OrderedKV, counts: MinuteCounts, total: int) -> list[str]:
    """Compare the counters with what is there; one sentence a difference."""
    differences: list[str] = []
    minutes, live = count_all(kv, differences)
    if live != total:
        differences.append(f"{live} timers are pending, the counter says {total}")
    stored = counts.all_minutes()
    for minute in sorted(minutes.keys() | stored.keys()):
        if minutes[minute] != stored.get(minute, 0):
            differences.append(
                f"minute {minute * MINUTE_MS} ms: {minutes[minute]} timers are pending, the counter says {stored.get(minute, 0)}"
            )
    for key, _ in kv.scan_all(TRACES, HOLE, after_prefix(HOLE)):
        tick, seq = TICK_SEQ.unpack_from(key, 1)
        entry = kv.floor(TIMERS, key[1:])
        if entry is None or entry[0][:8] != key[1:9]:
            differences.append(f"hole {tick}/{seq} lies in no run")
    return differences
