"""``TimerAnswers``: what became of timers, which handles name by tick, seq and epoch; that is what a cancel says of them (C1–C6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rmqstore.contract import CancelOutcome, TimerCursor
from rmqstore.engine.timers import tombstones as traces
from rmqstore.engine.timers.side import is_possible
from rmqstore.engine.timers.ticks import Place
from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.log.ledger import Ledger
from rmqstore_wheel.timers.facts import TIMER, FactRows
from rmqstore_wheel.timers.index import TimerIndex


class Ending(NamedTuple):
    """The timers that a cancel ends, each once: their seqs and ticks."""

    seqs: Ints
    ticks: Ints


class TimerAnswers:
    """Answers for the timers of a session, those of one call together."""

    def __init__(self, ledger: Ledger, index: TimerIndex) -> None:
        self._ledger = ledger
        self._index = index

    def is_known(self, place: Place) -> bool:
        """Say whether the timer of a place is here, or is remembered."""
        return self.fact_of(place) is not None or (is_possible(place) and self._trace_of(place) is not CancelOutcome.UNKNOWN)

    def fact_of(self, place: Place) -> Any | None:
        """Return what is known of the timer at a place; None when it was never put here."""
        rows, facts = self._found(_columns([place]))
        return facts[0] if len(rows) else None

    def cancel(self, places: Sequence[Place | None], sealed: TimerCursor) -> tuple[list[CancelOutcome], Ending]:
        """Return what a cancel answers, None being a place that nobody knows, and what it ends.

        Args:
            sealed: what was closed, and so is on its way.
        """
        columns = _columns(places)
        _, ticks, seqs, _ = columns
        rows, _ = self._found(columns)
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

    def _found(self, columns: _Columns) -> tuple[Ints, FactRows]:
        """Return which of some places are those of timers that were put here and are answered for, and what is known of these."""
        facts, index = self._index.facts, self._index
        _, ticks, seqs, epochs = columns
        rows = np.flatnonzero((seqs > facts.first) & (seqs <= facts.count))
        found = facts.gather(seqs[rows] - 1)
        is_it = (found["kind"] == TIMER) & (found["tick"] == ticks[rows]) & (found["epoch"] == epochs[rows])
        is_it &= (ticks[rows] >= index.answered_from) | ~index.is_gone(seqs[rows], ticks[rows])
        return rows[is_it], found[is_it]

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
