"""Exact numbers of pending timers, by minute of the due time (T10).

One counter a minute, changed in the same write as the timers it counts. The due time of a put is its deliver time; that of a message
sent without one is its tick.
"""

from __future__ import annotations

from collections.abc import Mapping

from rmqstore.engine.kv.base import OrderedKV, WriteBatch
from rmqstore.engine.schema import COUNT, META, U64, after_prefix

MINUTE_MS = 60_000
_CACHE_LIMIT = 8192


class MinuteCounts:
    """The counters of one store; changes are staged into a write and :meth:`commit`-ted after it."""

    def __init__(self, kv: OrderedKV) -> None:
        self._kv = kv
        self._cache: dict[int, int] = {}

    def of_minute(self, minute: int) -> int:
        """Return how many pending timers are due in ``minute`` (minutes since the epoch)."""
        count = self._cache.get(minute)
        if count is None:
            value = self._kv.get(META, COUNT + U64.pack(minute))
            count = int.from_bytes(value, "big") if value else 0
            if len(self._cache) >= _CACHE_LIMIT:
                self._cache.clear()
            self._cache[minute] = count
        return count

    def stage(self, batch: WriteBatch, deltas: Mapping[int, int]) -> dict[int, int]:
        """Add the changed counters to ``batch``; returns them for :meth:`commit`."""
        staged: dict[int, int] = {}
        changed: list[tuple[bytes, bytes]] = []
        emptied: list[bytes] = []
        for minute, delta in sorted(deltas.items()):
            if not delta:
                continue
            count = self.of_minute(minute) + delta
            staged[minute] = count
            if count > 0:
                changed.append((COUNT + U64.pack(minute), count.to_bytes(8, "big")))
            else:
                emptied.append(COUNT + U64.pack(minute))
        if changed:
            batch.put_many(META, changed)
        if emptied:
            batch.delete_many(META, emptied)
        return staged

    def commit(self, staged: Mapping[int, int]) -> None:
        """Take over what :meth:`stage` returned, once the write is done."""
        self._cache.update(staged)

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
