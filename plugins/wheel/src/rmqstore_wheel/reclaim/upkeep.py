"""What a session does now and then, whichever of its sides is in use: check points, and files of the log that go."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rmqstore.contract import UpkeepReport
from rmqstore.engine.pops.store import LogFactory, OrderedPops
from rmqstore.engine.shared import Shared
from rmqstore_wheel.log.ledger import Ledger
from rmqstore_wheel.reclaim.reclaim import Reclaim
from rmqstore_wheel.timers.index import TimerIndex


class Upkeep:
    """Does a piece of it when a side is maintained, as a store may use the engine for timers alone, or for pops alone."""

    def __init__(self, ledger: Ledger, index: TimerIndex) -> None:
        self._ledger = ledger
        self._index = index
        self._begin()
        ledger.reopened.append(self._begin)

    def _begin(self) -> None:
        self._reclaim = Reclaim(self._ledger, self._index)

    def go_on(self, now_ms: int) -> int:
        """Do what is due; returns how much that was."""
        return self._ledger.upkeep(now_ms) + self._reclaim.go_on(now_ms)


class WheelPops(OrderedPops):
    """The pop side, whose upkeep is also that of the log."""

    def __init__(self, shared: Shared, open_log: LogFactory, upkeep: Callable[[int], int]) -> None:
        super().__init__(shared, open_log)
        self._upkeep = upkeep

    def maintain(self, now_ms: int, budget: int) -> UpkeepReport:
        with self._lock:
            report = super().maintain(now_ms, budget)
            with self._call:
                return msgspec.structs.replace(report, done=report.done + self._upkeep(now_ms))
