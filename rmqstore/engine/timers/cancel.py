"""``Cancelling``: one call that cancels timers: what it answers for each, and what its one write changes.

A cancelled timer leaves a tombstone. Its run goes when the call cancels all that it ever held, otherwise a hole says which of its timers
is no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import compress
from typing import Final

from rmqstore.contract import CancelOutcome, TimerCursor
from rmqstore.engine.kv.base import OrderedKV, WriteBatch
from rmqstore.engine.records import deliver_at_of
from rmqstore.engine.schema import TIMERS, TRACES
from rmqstore.engine.timers import tombstones
from rmqstore.engine.timers.rows import Located, TimerRuns
from rmqstore.engine.timers.side import is_possible
from rmqstore.engine.timers.ticks import MINUTE_MS, Place

_UNKNOWN, _CANCELLED, _DELIVERED = CancelOutcome.UNKNOWN, CancelOutcome.CANCELLED, CancelOutcome.ALREADY_DELIVERED
_AT_ONCE: Final = 1024
"""The answers for so many are looked up together."""


class Cancelling:
    """A call that cancels.

    Args:
        sealed: what was closed, and so is on its way.
        last_seq: the largest that was given to a timer.

    Attributes:
        minutes: by how much it changes the counter of each minute.
        ticks: those of the timers that it ends.
    """

    def __init__(self, kv: OrderedKV, runs: TimerRuns, sealed: TimerCursor, last_seq: int) -> None:
        self._kv = kv
        self._runs = runs
        self._sealed = sealed
        self._last_seq = last_seq
        self.minutes: Counter[int] = Counter()
        self.ticks: list[int] = []
        self._answers: dict[Place, CancelOutcome] = {}
        self._ended: list[Place] = []
        self._gone: list[bytes] = []
        self._holes: dict[tuple[bytes, int], list[tuple[bytes, bytes]]] = {}
        self._index: list[bytes] = []

    def cancel_all(self, places: Sequence[Place | None]) -> list[CancelOutcome]:
        """Look up some timers and cancel those that are pending; None is an unknown place.

        Raises:
            CorruptStoreError: one of them may be where nothing can be read.
        """
        wanted = sorted({place for place in places if is_possible(place)})
        for at in range(0, len(wanted), _AT_ONCE):
            self._cancel(wanted[at : at + _AT_ONCE])
        return [self._answers[place] if is_possible(place) else _UNKNOWN for place in places]

    def _cancel(self, places: Sequence[Place]) -> None:
        """Cancel timers at sorted places."""
        holes: set[Place] | None = None
        gone: list[tuple[Place, bool]] = []
        for place, located in zip(places, self._runs.locate_each([place[:2] for place in places]), strict=True):
            tick, seq, epoch = place
            if located is None or located.put.epoch != epoch:
                gone.append((place, located is None))
                continue
            if holes is None and located.of > 1:
                holes = set(compress(places, tombstones.which_holes(self._kv, places)))
            # A timer that is alone in its run is cancelled by taking the run away.
            if located.of > 1 and holes is not None and place in holes:
                self._answers[place] = _CANCELLED
            elif self._sealed.covers(tick, seq):
                self._answers[place] = _DELIVERED
            else:
                self._answers[place] = _CANCELLED
                self._end(place, located)
        self._answer_gone(gone)

    def _answer_gone(self, gone: Sequence[tuple[Place, bool]]) -> None:
        """Say what became of timers that are not kept; with each comes whether nothing that can be read is at its place."""
        was_cancelled = tombstones.which_cancelled(self._kv, [place for place, _ in gone])
        for (place, is_empty), is_cancelled in zip(gone, was_cancelled, strict=True):
            if is_cancelled:
                self._answers[place] = _CANCELLED
            elif tombstones.was_delivered(self._kv, *place):
                self._answers[place] = _DELIVERED
            else:
                self._answers[place] = _UNKNOWN
                if is_empty and place[1] <= self._last_seq:
                    self._runs.check_place(*place[:2])

    def _end(self, place: Place, located: Located) -> None:
        tick, seq, _ = place
        self._ended.append(place)
        self.ticks.append(tick)
        if located.of == 1:
            self._gone.append(located.key)
        else:
            self._holes.setdefault((located.key, located.of), []).append((tombstones.hole_key(tick, seq), b""))
        self._index += tombstones.index_keys(located.put.record, tick, seq)
        due = deliver_at_of(located.put.record)
        self.minutes[(tick if due < 0 else due) // MINUTE_MS] -= 1

    def changes(self) -> WriteBatch:
        """Return what the call changes, but for the counters."""
        write = WriteBatch()
        # One that had a hole before is kept, as that lies in it.
        write.delete_many(TIMERS, [*self._gone, *[key for (key, of), holes in self._holes.items() if len(holes) == of]])
        write.put_many(TRACES, [hole for (_, of), holes in self._holes.items() if len(holes) < of for hole in holes])
        tombstones.put_cancelled(write, self._ended)
        write.delete_many(TRACES, self._index)
        return write
