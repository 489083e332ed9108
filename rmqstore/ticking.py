"""What one tick does, in its order: hand over, revive, make it durable, forget, upkeep."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rmqstore.contract import Side, Ticket
from rmqstore.errors import ClockStepError
from rmqstore.handover import HandOver
from rmqstore.opening import Opened

_REVIVE_PAGE = 1024
_MAINTAIN_BUDGET = 1024
_UPKEEP_INTERVAL_MS = 1000


class TickReport(msgspec.Struct, frozen=True):
    """What one tick did: messages handed over to their topics, leases given to retry topics, to dead letter queues, and parked."""

    handed_over: int = 0
    retried: int = 0
    dead: int = 0
    parked: int = 0

    @property
    def moved(self) -> int:
        """All messages that moved."""
        return self.handed_over + self.retried + self.dead + self.parked


class Ticking:
    """Runs ticks; the caller lets one run at a time.

    Args:
        settle: waits for a ticket where the settings ask for it.
    """

    def __init__(self, opened: Opened, hand_over: HandOver, settle: Callable[[Side, Ticket], None]) -> None:
        self._timers = opened.timers
        self._pops = opened.pops
        self._hand_over = hand_over
        self._settle = settle
        self._max_step_ms = opened.config.clock_max_step_ms
        self._revive_turn = Turn(opened.config.revive_interval_ms)
        self._upkeep_turn = Turn(_UPKEEP_INTERVAL_MS)
        self._last_ms: int | None = None

    def run(self, now_ms: int, *, always: bool) -> TickReport:
        """Do a tick; ``always``: revive and upkeep too, whether it is their turn or not.

        Raises:
            ClockStepError: the clock went forward by more than ``clock.max_step_ms`` (K2).
        """
        self._check_step(now_ms)
        moved, ticket = self._hand_over.run(now_ms)
        report = TickReport(handed_over=moved)
        if self._revive_turn.take(now_ms) or always:
            report, ticket = self._revive(report, now_ms, ticket)
        if ticket is not None:
            self._settle(self._pops, ticket)
            self._timers.forget(self._pops.durable_cursor())
        if self._upkeep_turn.take(now_ms) or always:
            self._timers.maintain(now_ms, _MAINTAIN_BUDGET)
            self._pops.maintain(now_ms, _MAINTAIN_BUDGET)
        self._last_ms = now_ms
        return report

    def confirm(self, now_ms: int) -> None:
        """Accept ``now_ms`` however far it is from the last tick."""
        self._last_ms = now_ms

    def _revive(self, report: TickReport, now_ms: int, ticket: Ticket | None) -> tuple[TickReport, Ticket | None]:
        while True:
            revived, revive_ticket = self._pops.revive(now_ms, _REVIVE_PAGE)
            ticket = revive_ticket if revive_ticket.position else ticket
            report = TickReport(
                report.handed_over, report.retried + revived.retried, report.dead + revived.dead, report.parked + revived.parked
            )
            if not revived.more:
                return report, ticket

    def _check_step(self, now_ms: int) -> None:
        if self._max_step_ms and self._last_ms is not None and now_ms - self._last_ms > self._max_step_ms:
            raise ClockStepError(
                f"the clock went from {self._last_ms} to {now_ms} ms, more than clock.max_step_ms = {self._max_step_ms}; the hand-over "
                "waits until the clock is right again or confirm_clock_step() is called"
            )


class Turn:
    """Says when a recurring duty is due again, by any clock: a step back in time makes it due at once."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._last_ms: int | None = None

    def take(self, now_ms: int) -> bool:
        """Return whether it is due, and count from now on if it is."""
        if self._last_ms is not None and 0 <= now_ms - self._last_ms < self._interval_ms:
            return False
        self._last_ms = now_ms
        return True
