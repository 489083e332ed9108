"""``TimerSide``: what all timer sides over an ``OrderedKV`` do alike, wherever they keep their timers.

That is the bounds between which ``seal`` and ``due`` look, what was sealed, where a timer that another store gave out has its place here,
and how marks and old answers go.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Sequence
from itertools import chain, islice
from typing import Final, TypeGuard

from rmqstore.contract import (
    EMPTY_CURSOR,
    CancelOutcome,
    Ticket,
    TimerCursor,
    TimerHandle,
    TimerReceipts,
    TimerStore,
    UpkeepReport,
    WriteStatus,
)
from rmqstore.contract.state import Adopted
from rmqstore.engine.kv.base import WriteBatch
from rmqstore.engine.marks import TIMER_SIDE, decode_ticks, drop_old_marks
from rmqstore.engine.schema import PAIR
from rmqstore.engine.shared import OrderedSide, Shared
from rmqstore.engine.state import giver_of
from rmqstore.engine.timers import tombstones
from rmqstore.engine.timers.ticks import Congestion, Place

_LIMIT: Final = 2**63


def is_possible(place: Place | None) -> TypeGuard[Place]:
    """Say whether a timer can have a place; that of a handle from ticks of another width may be too large."""
    return place is not None and 0 <= place[0] < _LIMIT and 0 <= place[1] < _LIMIT


class TimerSide(OrderedSide, TimerStore):
    """A timer side of a session.

    Attributes of its own, for those that derive from it:
        _sealed: what was closed, and what the receiver had when the store was opened.
        _adopted: stores whose state was loaded.
        _until_ms: of the last seal.
        _low_tick: no timer that ``due`` may have to give is of an earlier tick.
        _unsealed_tick: nor is any, that a seal may have to close, of an earlier one than this; None when there is none.
        _closed_tick: no timer that was closed and waits to be given is of an earlier tick; None when there is none.
        _forgotten: the cursor that was forgotten last.
        _change_position, _seal_position, _forget_position: where in the log the last of each is; 0 when there is none to wait for.
    """

    _sealed: TimerCursor
    _adopted: dict[int, Adopted]
    _low_tick: int
    _unsealed_tick: int | None

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.precision_ms = shared.options.precision_ms
        self._random = random.Random(shared.options.congestion_seed)
        self._until_ms = -1
        self._change_position = self._seal_position = self._forget_position = 0
        self._start_anew()

    def _start_anew(self) -> None:
        """Forget what was worked out from the state, which is read again."""
        self._congestion = Congestion(self._count_of_tick, self._options.congestion_limit, self._random)
        self._closed_tick: int | None = None
        self._forgotten = EMPTY_CURSOR
        # From which tick on, and beyond which cursor, the first closed timer was looked for, and its tick.
        self._looked_closed: tuple[int, TimerCursor, int | None] = (_LIMIT, EMPTY_CURSOR, None)

    @abstractmethod
    def _count_of_tick(self, tick: int) -> int:
        """Return how many timers a tick has."""

    @abstractmethod
    def _find_closed(self, from_tick: int, after: TimerCursor) -> int | None:
        """Return the tick of the first timer at or after ``from_tick`` that was closed and ``after`` does not cover; None for none."""

    def _first_closed_beyond(self, after: TimerCursor) -> int | None:
        """Return the first tick after ``until_ms`` that was closed before a clock was set back, and ``after`` does not cover.

        Until the clock is there again each tick asks, so it is looked for once.
        """
        if self._sealed.highest_tick <= self._until_ms:
            return None
        begin, (looked_from, looked_after, found) = self._until_ms + 1, self._looked_closed
        is_known = looked_from <= begin and (found is None or found >= begin)
        if is_known and (after == looked_after or (found is None and after.join(looked_after.corners) == after)):
            return found
        found = self._find_closed(begin, after)
        self._looked_closed = begin, after, found
        return found

    def _look_again_upto(self, until_ms: int) -> None:
        """Note that more timers up to a tick are closed; beyond it is what was there."""
        looked_from, after, found = self._looked_closed
        self._looked_closed = max(looked_from, until_ms + 1), after, found

    @abstractmethod
    def _is_known(self, tick: int, seq: int, epoch: int) -> bool:
        """Say whether a timer of this place is here, or is remembered."""

    def _is_damaged(self, tick: int, seq: int) -> bool:
        """Say whether a timer of this tick and seq may be here, and cannot be read."""
        return False

    @abstractmethod
    def _cancel(self, places: Sequence[Place | None], now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        """Cancel the timers at some places, None for an unknown one."""

    @abstractmethod
    def _places_of_keys(self, topic: str, keys: Sequence[str]) -> list[list[Place]]:
        """Return for each key the places of timers of a topic that carry it, in put order: pending ones, and others that are found."""

    def _repeated(self, answer: bytes) -> TimerReceipts:
        """Return the receipts of a put that came before, by what its marks remember."""
        epoch, first_seq = PAIR.unpack_from(answer)
        return TimerReceipts(WriteStatus.REPEATED, self._giver_of(first_seq), epoch, first_seq, decode_ticks(answer))

    def _note_ticks(self, ticks: Sequence[int]) -> None:
        """Lower the bounds that the new puts undercut."""
        if not ticks:
            return
        earliest = min(ticks)
        self._low_tick = min(self._low_tick, earliest)
        self._unsealed_tick = earliest if self._unsealed_tick is None else min(self._unsealed_tick, earliest)
        if self._options.congestion_limit:
            self._congestion.note(ticks, 1)

    def cancel(self, handles: Sequence[TimerHandle], now_ms: int) -> tuple[list[CancelOutcome], Ticket]:
        with self._lock, self._call:
            return self._cancel([self._place_of(handle) for handle in handles], now_ms)

    def cancel_keys(self, topic: str, keys: Sequence[str], now_ms: int) -> tuple[list[list[CancelOutcome]], Ticket]:
        with self._lock, self._call:
            places = self._places_of_keys(topic, keys)
            outcomes, ticket = self._cancel(list(chain.from_iterable(places)), now_ms)
            given = iter(outcomes)
            return [list(islice(given, len(each))) for each in places], ticket

    def _giver_of(self, seq: int) -> int:
        """Return the number of the store that gave a seq, which its handle carries."""
        return giver_of(seq, self._options.store_tag, self._adopted)

    def _place_of(self, handle: TimerHandle) -> Place | None:
        """Return where the put is that a handle names; None when the store that it names did not give it, or is not here."""
        if handle.store_tag != self._giver_of(handle.seq):
            return None
        own = (handle.tick, handle.seq, handle.epoch)
        record = self._adopted.get(handle.store_tag)
        if record is None:
            return own if handle.epoch <= self._shared.epoch else None
        places = [(tick, handle.seq, handle.epoch) for tick in record.ticks_of(handle.tick, self.precision_ms)]
        known = next((place for place in places if self._is_known(*place)), None)
        return known or next((place for place in places if self._is_damaged(*place[:2])), own)

    def next_tick_ms(self) -> int | None:
        ticks = [tick for tick in (self._unsealed_tick, self._closed_tick) if tick is not None]
        return min(ticks) if ticks else None

    def adopted(self) -> dict[int, Adopted]:
        with self._lock, self._call:
            return dict(self._adopted)

    def maintain(self, now_ms: int, budget: int) -> UpkeepReport:
        with self._lock, self._call as kv:
            write, floors = WriteBatch(), self._shared.floors
            done = drop_old_marks(kv, floors, write, TIMER_SIDE, now_ms, self._options.mark_memory_ms, budget)
            done += tombstones.drop_tombstones(floors, write, now_ms - self._options.cancel_memory_ms)
            if write.ops:
                self._shared.write(write)
            return UpkeepReport(done, more=done >= budget)
