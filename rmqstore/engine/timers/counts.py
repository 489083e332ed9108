"""How many timers are pending, exactly: counters by minute of the due time, listing, and the recount behind ``verify`` (T10).

There is one counter a minute, changed in the same write as the timers it counts. The due time of a put is its deliver time; that of a
message sent without one is its tick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from itertools import pairwise

from rmqstore.contract import PendingCounts, TimerCursor
from rmqstore.engine.kv.base import PAGE_BYTES, OrderedKV, WriteBatch
from rmqstore.engine.schema import COUNT, HOLE, META, TICK_SEQ, TRACES, U64, after_prefix
from rmqstore.engine.timers.rows import LivePut, OnDamage, TimerRuns, pass_over
from rmqstore.engine.timers.ticks import MINUTE_MS
from rmqstore.errors import IllegalArgumentError

_CACHE_LIMIT = 8192


class MinuteCounts:
    """The counters of one store.

    Attributes:
        known: those that were read; who writes what :meth:`add_to` added takes it over here once that is done.
    """

    def __init__(self, kv: OrderedKV) -> None:
        self._kv = kv
        self.known: dict[int, int] = {}

    def of_minute(self, minute: int) -> int:
        """Return how many pending timers are due in ``minute`` (minutes since the epoch)."""
        count = self.known.get(minute)
        if count is None:
            count = int.from_bytes(self._kv.get(META, COUNT + U64.pack(minute)) or b"", "big")
            if len(self.known) >= _CACHE_LIMIT:
                self.known.clear()
            self.known[minute] = count
        return count

    def add_to(self, batch: WriteBatch, deltas: Mapping[int, int]) -> dict[int, int]:
        """Add the changed counters to ``batch``, and return them."""
        counts: dict[int, int] = {}
        changed: list[tuple[bytes, bytes]] = []
        emptied: list[bytes] = []
        for minute, delta in sorted(deltas.items()):
            if not delta:
                continue
            count = self.of_minute(minute) + delta
            counts[minute] = count
            if count > 0:
                changed.append((COUNT + U64.pack(minute), count.to_bytes(8, "big")))
            else:
                emptied.append(COUNT + U64.pack(minute))
        if changed:
            batch.put_many(META, changed)
        if emptied:
            batch.delete_many(META, emptied)
        return counts

    def between(self, first_minute: int, stop_minute: int) -> int:
        """Return how many pending timers are due in ``first_minute <= minute < stop_minute``."""
        if first_minute >= stop_minute:
            return 0
        entries = self._kv.scan_all(META, COUNT + U64.pack(first_minute), COUNT + U64.pack(stop_minute))
        return sum(int.from_bytes(value, "big") for _, value in entries)

    def all_minutes(self) -> dict[int, int]:
        """Return every counter, for ``verify``."""
        entries = self._kv.scan_all(META, COUNT, after_prefix(COUNT))
        return {int.from_bytes(key[1:], "big"): int.from_bytes(value, "big") for key, value in entries}


class Pending:
    """Answers ``TimerStore.pending``: whole minutes from the counters, the edges of each bucket by reading them.

    The counters follow ``forget``, which waits until the receiver holds a message durably; what ``handed`` covers beyond that is read and
    taken off, so a message is never counted in both places.
    """

    def __init__(self, runs: TimerRuns, counts: MinuteCounts, total: int, handed: TimerCursor, precision_ms: int) -> None:
        self._runs = runs
        self._counts = counts
        self._total = total
        self._handed = handed
        self._precision_ms = precision_ms
        under = runs.live_puts((0, 0), handed.highest_tick + 1, pass_over)
        self._gone = [put.due_ms for put in under if handed.covers(put.tick, put.seq)]

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
            puts = self._runs.live_puts((first_ms, 0), edge_ms + self._precision_ms, pass_over, self._handed)
            count += sum(first_ms <= put.due_ms < edge_ms for put in puts)
        return count

    def _earliest(self) -> int | None:
        """A put that is due before the first one has a tick less than a precision behind."""
        first = next(self._runs.live_puts((0, 0), None, pass_over, self._handed), None)
        if first is None:
            return None
        return min(put.due_ms for put in self._runs.live_puts((first.tick, 0), first.tick + self._precision_ms, pass_over, self._handed))

    def _latest(self) -> int | None:
        """Walk back from the last tick: the last ones may hold nothing but holes. A put is due at its tick or before."""
        latest = -1
        stop: int | None = None
        while (tick := self._runs.last_tick(stop)) is not None and tick > latest:
            start = max(tick - self._precision_ms, 0)
            puts = self._runs.live_puts((start, 0), stop, pass_over, self._handed)
            latest = max((put.due_ms for put in puts if put.due_ms > latest), default=latest)
            stop = start
        return None if latest < 0 else latest


def scan_live(
    runs: TimerRuns,
    from_ms: int,
    to_ms: int,
    after: tuple[int, int] | None,
    limit: int,
    precision_ms: int,
    handed: TimerCursor,
) -> tuple[list[LivePut], bool]:
    """Answer ``TimerStore.scan``: a page of live puts due in ``from_ms <= due < to_ms``, behind ``after``, and whether more follow."""
    if from_ms < 0 or limit < 1:
        raise IllegalArgumentError(f"from_ms must be at least 0 and limit at least 1, not {from_ms} and {limit}")
    start = (from_ms, 0) if after is None else max((from_ms, 0), after)
    found: list[LivePut] = []
    room_bytes = PAGE_BYTES
    for put in runs.live_puts(start, max(to_ms, 0) + precision_ms, pass_over, handed):
        if from_ms <= put.due_ms < to_ms and (after is None or (put.tick, put.seq) > after):
            if len(found) == limit or room_bytes < 0:
                return found, True
            found.append(put)
            room_bytes -= len(put.record)
    return found, False


def count_all(runs: TimerRuns, on_damage: OnDamage = pass_over, without: Set[tuple[int, int]] = frozenset()) -> tuple[Counter[int], int]:
    """Count every live put by reading it, but for those at the places ``without``: (by minute, total)."""
    minutes: Counter[int] = Counter()
    total = 0
    for put in runs.live_puts((0, 0), None, on_damage):
        if (put.tick, put.seq) not in without:
            minutes[put.due_ms // MINUTE_MS] += 1
            total += 1
    return minutes, total


def verify(kv: OrderedKV, runs: TimerRuns, counts: MinuteCounts, total: int) -> list[str]:
    """Compare the counters with what is there; one sentence a difference."""
    differences: list[str] = []
    minutes, live = count_all(runs, lambda where, reason: differences.append(f"{where}: {reason}"))
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
        if not runs.has_place(tick, seq):
            differences.append(f"hole {tick}/{seq} lies in no run")
    return differences
