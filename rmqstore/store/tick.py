"""What one tick does, in its order: hand over, revive, make it durable, forget, upkeep, schedules."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING

import msgspec

from rmqstore.contract import Expired, Flush, Ticket
from rmqstore.errors import ClockStepError, LostCallsError, RmqstoreError, StoreClosedError, StoreFullError, StorePoisonedError

if TYPE_CHECKING:
    from rmqstore.store.store import Store

_log = logging.getLogger("rmqstore")

_REVIVE_PAGE = 256
_MAINTAIN_BUDGET = 1024
_MAINTAIN_STEPS = 32
"""So many steps of upkeep a side does a tick of the background thread, not to let the hand-over wait for all."""

_UPKEEP_INTERVAL_MS = 1000


class TickReport(msgspec.Struct, frozen=True):
    """What one tick did: messages handed over to their topics, leases given to retry topics, to dead letter queues, and parked;
    messages that schedules sent.

    ``expired`` counts, for each group on its own, the messages that retention took before the group had popped them (Q1).
    """

    handed_over: int = 0
    retried: int = 0
    dead: int = 0
    parked: int = 0
    expired: int = 0
    scheduled: int = 0

    @property
    def moved(self) -> int:
        """All messages that moved."""
        return self.handed_over + self.retried + self.dead + self.parked + self.scheduled


class Ticking:
    """Runs the ticks of a store, which lets one run at a time.

    Attributes:
        report: of the last tick; of one that ended by an error, :attr:`done` is the whole one.
        made_room: whether the last tick forgot what one before it had handed over, as that is durable by now.
    """

    def __init__(self, store: Store) -> None:
        config = store.engine.config
        self._timers = store.engine.timers
        self._pops = store.engine.pops
        self._hand_over = store._hand_over
        self._scheduler = store._scheduler
        self._held = store._held
        self._settle = store._settle
        self._wake = store._waits.anything
        self._max_step_ms = config.clock_max_step_ms
        self._revive_turn = Turn(config.revive_interval_ms)
        self._upkeep_turn = Turn(_UPKEEP_INTERVAL_MS)
        self._is_async = config.flush is Flush.ASYNC  # then what was handed over becomes durable, and may be forgotten, behind its tick
        self._keeps_handed_over = False
        self.made_room = False
        self.report = TickReport()
        self._has_more = False
        self._last_ms: int | None = None
        self._failed: list[RmqstoreError] = []

    def run(self, now_ms: int, *, always: bool) -> TickReport:
        """Do a tick; ``always``: revive and upkeep too, whether it is their turn or not.

        Raises:
            ClockStepError: the clock went forward by more than ``clock.max_step_ms`` (K2).
            IllegalArgumentError: the times of a schedule cannot be told on this machine; all else was done.
            RmqstoreError: a part of it failed; the others were done.
        """
        self.made_room = False
        self.report = TickReport()
        self._hand_over.moved = self._scheduler.sent = 0
        self._failed.clear()
        if self._max_step_ms:  # most stores save the call
            self.check_step(now_ms)
        self._last_ms = now_ms
        if self._held.look() is not self._scheduler.seen:
            self._scheduler.look()
        ticket: Ticket | None = None
        try:
            if self._held.is_moving:
                moved, ticket = self._hand_over.run(now_ms)
                self.report = TickReport(moved)
        except RmqstoreError as error:
            self._go_on_behind(error)
        try:
            if self._revive_turn.take(now_ms) or always:
                ticket = self._revive(now_ms, ticket)
            if ticket is not None:
                self._settle(self._pops, ticket)
                self._timers.forget(self._pops.durable_cursor())
                self._keeps_handed_over = self._is_async
            elif self._keeps_handed_over:
                self._timers.forget(durable := self._pops.durable_cursor())
                self._keeps_handed_over = durable != self._pops.timer_cursor()
                self.made_room = not self._keeps_handed_over
        except RmqstoreError as error:
            self._go_on_behind(error)
        if (self._upkeep_turn.take(now_ms) or self._has_more or always) and (
            expired := self._maintain(now_ms, steps=None if always else _MAINTAIN_STEPS)
        ):
            _log.warning("retention took messages that groups had not popped: %s", "; ".join(map(_told, expired)))
            self.report = msgspec.structs.replace(self.report, expired=sum(each.messages for each in expired))
        if (due_ms := self._scheduler.next_ms) is not None and due_ms <= now_ms and self._held.is_moving:
            try:
                scheduled, ticket, failed = self._scheduler.run(now_ms)
                self._settle(self._pops, ticket)
                self.report = msgspec.structs.replace(self.report, scheduled=scheduled)
                if failed is not None:
                    raise failed
            except RmqstoreError as error:
                self._go_on_behind(error)
        if self._failed:
            # More than a want of room goes first.
            raise self._with_the_others(next((each for each in self._failed if type(each) is not StoreFullError), self._failed[0]))
        return self.report

    def _go_on_behind(self, error: RmqstoreError) -> None:
        """Keep an error for the end of the tick: one part that fails must not keep the others from leases, room and schedules (F1).

        What ends the store, or takes calls back that were answered, is raised at once.
        """
        self._failed.append(error)
        if isinstance(error, LostCallsError | StorePoisonedError | StoreClosedError):
            raise self._with_the_others(error)

    def _with_the_others(self, worst: RmqstoreError) -> RmqstoreError:
        """Return an error of this tick, with notes of the others."""
        for other in self._failed:
            if other is not worst:
                worst.add_note(f"another part of the same tick failed, too: {other}")
        self._failed.clear()  # their frames hold the store
        return worst

    @property
    def done(self) -> TickReport:
        """What the last tick has done, also one that ended by an error within a step."""
        return msgspec.structs.replace(self.report, handed_over=self._hand_over.moved, scheduled=self._scheduler.sent)

    def next_wake_ms(self, now_ms: int) -> int | None:
        """Return when a tick may have something to do next, in ms since the epoch; None when nothing is waiting.

        An expired lease waits for the turn of the revive; to run before that would be for nothing.
        """
        expiry_ms = self._pops.next_expiry_ms()
        if expiry_ms is not None:
            expiry_ms = max(expiry_ms, self._revive_turn.next_ms(now_ms))
        if self._held.hand_over:
            return expiry_ms
        return min((at for at in (self._timers.next_tick_ms(), expiry_ms, self._scheduler.next_ms) if at is not None), default=None)

    def confirm(self, now_ms: int) -> None:
        """Accept ``now_ms`` however far it is from the last tick."""
        self._last_ms = now_ms

    def _revive(self, now_ms: int, ticket: Ticket | None) -> Ticket | None:
        while True:
            revived, revive_ticket = self._pops.revive(now_ms, _REVIVE_PAGE)
            ticket = revive_ticket if revive_ticket.position else ticket
            before = self.report
            self.report = TickReport(
                before.handed_over, before.retried + revived.retried, before.dead + revived.dead, before.parked + revived.parked
            )
            if revived.gone:  # which frees the queue of an ordered group, and is in no report
                self._wake()
            if not revived.more:
                return ticket
            if before.retried + before.dead + before.parked == 0:  # the others are told behind the last page
                self._wake()

    def _maintain(self, now_ms: int, steps: int | None) -> list[Expired]:
        """Let each side forget all that it need not remember any more, in up to ``steps`` steps, between which other calls have their turn.

        What is left comes with the next tick. So what is remembered follows from how long it is to be remembered, whatever the load was.
        """
        expired: list[Expired] = []
        self._has_more = False
        for side in (self._timers, self._pops):
            try:
                for step in itertools.count(1):
                    report = side.maintain(now_ms, _MAINTAIN_BUDGET)
                    expired += report.expired
                    if not report.more:
                        break
                    if step == steps:
                        self._has_more = True
                        break
            except RmqstoreError as error:
                self._go_on_behind(error)
        return expired

    def check_step(self, now_ms: int) -> None:
        """Refuse a time that is too far from that of the last tick; :class:`ClockStepError`."""
        if self._max_step_ms and self._last_ms is not None and now_ms - self._last_ms > self._max_step_ms:
            raise ClockStepError(
                f"the clock went from {self._last_ms} to {now_ms} ms, more than clock.max_step_ms = {self._max_step_ms}; the hand-over "
                "waits until the clock is right again or confirm_clock_step() is called"
            )


def _told(expired: Expired) -> str:
    return f"{expired.messages} of topic {expired.topic} from group {expired.group}"


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

    def next_ms(self, now_ms: int) -> int:
        """Return from when on it is due, as of ``now_ms``."""
        waits = self._last_ms is not None and 0 <= now_ms - self._last_ms < self._interval_ms
        return self._last_ms + self._interval_ms if waits and self._last_ms is not None else now_ms
