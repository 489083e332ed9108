"""The hand-over: due timers become messages of their topics, exactly once (docs/handover.md has the argument).

The steps and their order are those of the explicit-state model in tests/model; change them only together.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from rmqstore.contract import MAX_CORNERS, PopTxn

if TYPE_CHECKING:
    from rmqstore.contract import Ticket
    from rmqstore.store.store import Store

HAND_OVER: Final = 0
"""Stands for the hand-over among the threads that do something in steps."""

_SMALL: Final = 512
"""Messages in a batch when others call; one of thousands keeps them waiting for 10 to 30 ms."""

_QUIET: Final = 8
"""After so many small batches in which nobody called they are large again. In fewer a caller may just not have had its turn."""

_GIVE_WAY_S: Final = 0.0002
"""So long it waits between two batches then. The lock of an engine is not fair: without that nobody else would get it."""

_STAND_BACK_S: Final = 0.0002
"""So long each call waits first while some call goes on in steps: the lock of an engine is not fair, nor is the interpreter's, so that a
thread that calls in a loop would keep the steps out for seconds, and steps that follow at once would keep it out."""

_UNSYNCED_BATCHES = 32
"""After so many batches of one tick a sync lets the timers be reclaimed, so that a backlog is not on disk twice."""


class HandOver:
    """Moves due timers of a store from one side to the other.

    It is one of those who do something in steps from its second batch of a tick on.

    Attributes:
        moved: what the last hand-over has moved, also one that ended by an error.
        meets_others: somebody has called the store since the last batch began; the next ones are small.
    """

    def __init__(self, store: Store) -> None:
        self._timers = store.engine.timers
        self._pops = store.engine.pops
        self._one_log = store.engine.one_log  # whose order replaces the sync between the sides
        self._limit = store.engine.config.hand_over_limit
        self._sync = store._sync_calls
        self._in_steps = store._in_steps
        self._held = store._held
        self._synced = store._synced
        self._arrived = store._arrived
        self.moved = 0
        self.meets_others = False
        self._gives_way = False  # to the end of the tick: who called long ago may still wait for the lock

    def meet(self) -> None:
        """Let somebody else who does something in steps have a turn, before a call, or have one of the hand-over's."""
        others = len(self._in_steps)
        if HAND_OVER in self._in_steps:
            self.meets_others = True
            others -= 1
        if others:
            time.sleep(_STAND_BACK_S)

    def run(self, now_ms: int) -> tuple[int, Ticket | None]:
        """Hand over all that is due at ``now_ms``; returns how many messages moved, and the ticket of the last batch."""
        self.moved = 0
        ticket: Ticket | None = None
        try:
            for step in self.steps(now_ms):
                if isinstance(step, tuple):
                    self.moved, ticket = step
                    self._in_steps.add(HAND_OVER)
                    if self.meets_others or self._gives_way:
                        time.sleep(_GIVE_WAY_S)
        finally:
            self._in_steps.discard(HAND_OVER)
            self.meets_others = self._gives_way = False
        return self.moved, ticket

    def steps(self, now_ms: int) -> Generator[str | tuple[int, Ticket], None, None]:
        """Do the hand-over step by step: yields the name of each step after it was done, and (moved so far, ticket) after each batch.

        Tests interleave other calls between the steps.
        """
        timers, pops = self._timers, self._pops
        timers.seal(now_ms)
        yield "seal"
        moved = batches = small = 0
        while True:
            small = max(small - 1, 0)
            if self.meets_others:
                small, self._gives_way, self.meets_others = _QUIET, True, False
            limit = min(self._limit, _SMALL) if small else self._limit
            batch = timers.due(pops.timer_cursor(), limit)
            if len(batch.cursor.corners) > MAX_CORNERS:
                self._shorten()
                batch = timers.due(pops.timer_cursor(), limit)
            yield "due"
            count = len(batch.messages)
            if not count:
                return
            if batch.soft and not self._one_log:
                self._synced(timers.sync)
                yield "timers.sync"
            _, ticket = pops.apply(PopTxn(appends=batch.messages, timer_cursor=batch.cursor), now_ms)
            moved += count
            batches += 1
            if batch.more:  # behind the last one, the tick tells all
                self._arrived()
            yield moved, ticket
            if self._sync and batches % _UNSYNCED_BATCHES == 0:
                self._synced(pops.sync, ticket)
                yield "pops.sync"
            timers.forget(pops.durable_cursor())
            yield "forget"
            if not self._held.is_moving:
                return
            if self._sync and not batch.more:
                # The last ``forget`` of the tick tells the timers that nothing is due; without a sync only an empty ``due`` does.
                return

    def _shorten(self) -> None:
        """Reclaim durably what is handed over, so that ``due`` can drop the corners that cover nothing any more."""
        self._synced(self._pops.sync)
        self._timers.forget(self._pops.durable_cursor())
        self._synced(self._timers.sync)
