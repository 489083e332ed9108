"""What is asked of the timers: what became of those that handles name (C1–C6), what is pending, and whether the counters are right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from rmqstore.contract import CancelOutcome, PendingCounts, PendingTimer, ScanPage, TimerCursor, TimerHandle
from rmqstore.engine.kv.base import PAGE_BYTES
from rmqstore.engine.timers import tombstones as traces
from rmqstore.engine.timers.side import is_possible
from rmqstore.engine.timers.ticks import Place
from rmqstore.errors import CorruptStoreError, IllegalArgumentError
from rmqstore.message import Message
from rmqstore_wheel.formats import timer_log
from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.log.ledger import Ledger
from rmqstore_wheel.timers.fetching import Fetcher
from rmqstore_wheel.timers.index import TimerIndex
from rmqstore_wheel.timers.table import TIMER, Due, joined

_MOST_SLOT: Final = 2**62


class Ending(NamedTuple):
    """The timers that a cancel ends, each once: their seqs and ticks."""

    seqs: Ints
    ticks: Ints


class TimerAnswers:
    """What became of timers, which handles name by tick, seq and epoch; that is what a cancel says of them.

    Those of one call come together.
    """

    def __init__(self, ledger: Ledger, index: TimerIndex) -> None:
        self._ledger = ledger
        self._index = index

    def is_known(self, place: Place) -> bool:
        """Say whether the timer of a place is here, or is remembered."""
        return is_possible(place) and (self.is_here(place) or self._trace_of(place) is not CancelOutcome.UNKNOWN)

    def cancel(self, places: Sequence[Place | None], sealed: TimerCursor) -> tuple[list[CancelOutcome], Ending]:
        """Return what a cancel answers, None being a place that is unknown, and what it ends.

        Args:
            sealed: what was closed, and so is on its way.
        """
        columns = _columns(places)
        _, ticks, seqs, _ = columns
        rows = self._found(columns)
        outcomes = [CancelOutcome.UNKNOWN] * len(places)
        ticks, seqs = ticks[rows], seqs[rows]
        cancelled = self._index.cancelled.get_many(seqs)
        gone = ~cancelled & (sealed.covers_each(ticks, seqs) | self._index.forgotten.covers_each(ticks, seqs))
        for row, is_gone in zip(columns.rows[rows].tolist(), gone.tolist(), strict=True):
            outcomes[row] = CancelOutcome.ALREADY_DELIVERED if is_gone else CancelOutcome.CANCELLED
        if len(rows) < len(places):
            known = set(columns.rows[rows].tolist())
            for row, place in enumerate(places):
                if is_possible(place) and row not in known:
                    outcomes[row] = self._trace_of(place)
        pending = ~(cancelled | gone)
        ending = dict(zip(seqs[pending].tolist(), ticks[pending].tolist(), strict=True))
        return outcomes, Ending(np.array(list(ending), np.int64), np.array(list(ending.values()), np.int64))

    def cancel_one(self, place: Place | None, sealed: TimerCursor) -> tuple[CancelOutcome, tuple[int, int] | None]:
        """As :meth:`cancel`, of one: what it answers, and tick and seq of the timer that it ends."""
        if not is_possible(place):
            return CancelOutcome.UNKNOWN, None
        tick, seq, _ = place
        if not self.is_here(place):
            return self._trace_of(place), None
        if self._index.cancelled.get(seq):
            return CancelOutcome.CANCELLED, None
        if sealed.covers(tick, seq) or self._index.forgotten.covers(tick, seq):
            return CancelOutcome.ALREADY_DELIVERED, None
        return CancelOutcome.CANCELLED, (tick, seq)

    def is_here(self, place: Place) -> bool:
        """Say whether the timer of a place was put here and is answered for."""
        index = self._index
        tick, seq, epoch = place
        if not index.facts.first < seq <= index.facts.count:
            return False
        known_tick, known_epoch, _, kind, _ = index.facts.read_one(seq - 1)
        if (kind, known_tick, known_epoch) != (TIMER, tick, epoch):
            return False
        return tick >= index.answered_from or not (index.cancelled.get(seq) or index.forgotten.covers(tick, seq))

    def _found(self, columns: _Columns) -> Ints:
        """As :meth:`is_here`, of many places: which of them."""
        facts, index = self._index.facts, self._index
        _, ticks, seqs, epochs = columns
        rows = np.flatnonzero((seqs > facts.first) & (seqs <= facts.count))
        found = facts.gather(seqs[rows] - 1)
        is_it = (found["kind"] == TIMER) & (found["tick"] == ticks[rows]) & (found["epoch"] == epochs[rows])
        is_it &= (ticks[rows] >= index.answered_from) | ~index.is_gone(seqs[rows], ticks[rows])
        return rows[is_it]  # type: ignore[no-any-return]

    def _trace_of(self, place: Place) -> CancelOutcome:
        """Return what is remembered of a timer that another store had, and that was gone when its state was taken in."""
        if traces.was_cancelled(self._ledger, *place):
            return CancelOutcome.CANCELLED
        return CancelOutcome.ALREADY_DELIVERED if traces.was_delivered(self._ledger, *place) else CancelOutcome.UNKNOWN


class _Columns(NamedTuple):
    """Places by the column; ``rows`` says which of those that were given they are."""

    rows: Ints
    ticks: Ints
    seqs: Ints
    epochs: Ints


def _columns(places: Iterable[Place | None]) -> _Columns:
    """Return the places that there can be."""
    given = [(row, *place) for row, place in enumerate(places) if is_possible(place)]
    return _Columns(*np.array(given, np.int64).reshape(-1, 4).T)


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
        sizes = np.cumsum(self._fetcher.units(found.seqs)["size"], dtype=np.int64)
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
        messages = [each for each in self._fetcher.messages(found.seqs).messages if isinstance(each, Message)]
        epochs = self._index.facts.gather(found.seqs - 1)["epoch"].tolist()
        rows = zip(found.ticks.tolist(), found.seqs.tolist(), found.dues.tolist(), epochs, messages, strict=True)
        return [PendingTimer(TimerHandle(self._giver_of(seq), epoch, seq, tick), due, each) for tick, seq, due, epoch, each in rows]


def differences_in(index: TimerIndex) -> list[str]:
    """Recount the pending timers; one sentence a difference."""
    total = 0
    in_slots: Counter[int] = Counter()
    for piece in index.live():
        total += len(piece)
        own = ~index.rolled.get_many(piece.seqs)
        slots, counts = np.unique(index.wheel.slot_of(piece.ticks[own]), return_counts=True)
        in_slots.update(dict(zip(slots.tolist(), counts.tolist(), strict=True)))
    differences = [] if total == index.pending else [f"{total} timers are pending, the counter says {index.pending}"]
    for slot, count in sorted(in_slots.items()):
        if index.wheel.count_in(slot) < count:
            differences.append(
                f"slot {slot * index.precision_ms} ms: {count} timers are pending, the wheel says {index.wheel.count_in(slot)}"
            )
    try:
        # There may be fewer: what is handed over, rolls on, or is cancelled while it waits elsewhere leaves no unit.
        numbers, owners = index.wheel.walk(index.wheel.live_slots(0, _MOST_SLOT))
        is_cancel = (index.wheel.units.gather(numbers)["flags"] & timer_log.DELETE) != 0
    except CorruptStoreError as error:
        return [*differences, str(error)]
    left = Counter(owners[~is_cancel].tolist())
    left.subtract(owners[is_cancel].tolist())
    for slot, count in left.items():
        if index.wheel.count_in(slot) > count:
            differences.append(
                f"slot {slot * index.precision_ms} ms: the timer log has {count} timers, the wheel says {index.wheel.count_in(slot)}"
            )
    return differences
