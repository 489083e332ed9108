"""What is pending in the wheel, counted and looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from rmqstore.contract import PendingCounts, PendingTimer, ScanPage, TimerCursor, TimerHandle
from rmqstore.engine.kv.base import PAGE_BYTES
from rmqstore.errors import IllegalArgumentError
from rmqstore.message import Message
from rmqstore_wheel.timers.due import Due, joined
from rmqstore_wheel.timers.fetching import Fetcher
from rmqstore_wheel.timers.index import TimerIndex


class PendingTimers:
    """Reads of the timer side; see ``TimerStore`` for what they are asked. ``handed`` covers what is pending no more.

    Args:
        giver_of: returns the number of the store that gave a seq.
    """

    def __init__(self, index: TimerIndex, fetcher: Fetcher, giver_of: Callable[[int], int]) -> None:
        self._index = index
        self._fetcher = fetcher
        self._giver_of = giver_of

    def count(self, edges_ms: Sequence[int], handed: TimerCursor) -> PendingCounts:
        """Count by due time.

        Raises:
            IllegalArgumentError: the edges do not rise.
        """
        edges = list(edges_ms)
        if any(low >= high for low, high in pairwise(edges)):
            raise IllegalArgumentError(f"edges_ms must rise, not {edges}")
        below = np.zeros(len(edges), np.int64)
        total = 0
        earliest: int | None = None
        latest: int | None = None
        for piece in self._index.live(handed):
            total += len(piece)
            below += np.searchsorted(np.sort(piece.dues), edges)
            low, high = int(piece.dues.min()), int(piece.dues.max())
            earliest = low if earliest is None else min(earliest, low)
            latest = high if latest is None else max(latest, high)
        counts = tuple(np.diff(below).tolist()) if len(edges) > 1 else ()
        return PendingCounts(counts, total, earliest, latest)

    def page(self, from_ms: int, to_ms: int, after: tuple[int, int] | None, limit: int, handed: TimerCursor) -> ScanPage:
        """Return timers of a span of due times.

        Raises:
            IllegalArgumentError: the span or the limit is none.
        """
        if from_ms < 0 or limit < 1:
            raise IllegalArgumentError(f"from_ms must be at least 0 and limit at least 1, not {from_ms} and {limit}")
        found = self._first_behind(from_ms, to_ms, after, limit + 1, handed)
        sizes = np.cumsum(self._fetcher.locate(found.seqs).sizes)
        count = min(limit, int(np.searchsorted(sizes, PAGE_BYTES, "right")) + 1)
        timers = tuple(self.timers(found.select(slice(0, count))))
        last = (int(found.ticks[count - 1]), int(found.seqs[count - 1])) if len(found) > count else None
        return ScanPage(timers, last)

    def _first_behind(self, from_ms: int, to_ms: int, after: tuple[int, int] | None, limit: int, handed: TimerCursor) -> Due:
        """Return the first ``limit`` pending timers of a span of due times, by tick and seq."""
        best = joined([])
        for piece in self._index.live(handed):
            keep = (piece.dues >= from_ms) & (piece.dues < to_ms)
            if after is not None:
                keep &= (piece.ticks > after[0]) | ((piece.ticks == after[0]) & (piece.seqs > after[1]))
            if keep.any():
                best = joined([best, piece.select(keep)]).in_order().select(slice(0, limit))
        return best

    def timers(self, found: Due) -> list[PendingTimer]:
        """Return timers with their messages."""
        messages = [each for each in self._fetcher.messages(found.seqs).messages if isinstance(each, Message)]
        epochs = self._index.facts.gather(found.seqs - 1)["epoch"].tolist()
        rows = zip(found.ticks.tolist(), found.seqs.tolist(), found.dues.tolist(), epochs, messages, strict=True)
        return [PendingTimer(TimerHandle(self._giver_of(seq), epoch, seq, tick), due, each) for tick, seq, due, epoch, each in rows]
