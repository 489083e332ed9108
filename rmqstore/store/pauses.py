"""``store.pauses``: what an operator holds up, sends or the hand-over (``timerStopEnqueue``, ``timerStopDequeue`` of RocketMQ).

A pause is a note of the pop side (I2), so it lasts until it is ended, whoever owns the store meanwhile.
"""

from __future__ import annotations

import builtins
import enum
from typing import Final

import msgspec

from rmqstore.contract import PopStore, PopTxn, Ticket
from rmqstore.errors import IllegalArgumentTypeError
from rmqstore.message import reason_text
from rmqstore.store.administration import Part
from rmqstore.when import moment

_PREFIX: Final = "pause/"


class Flow(enum.Enum):
    """What can be paused: sends, which are refused then; or the hand-over of timers and of what schedules send, which waits."""

    SENDS = "sends"
    HAND_OVER = "hand-over"


class Pause(msgspec.Struct, frozen=True):
    """What is paused, since when (ms since the epoch), and why."""

    flow: Flow
    since_ms: int
    reason: str = ""

    def __str__(self) -> str:
        what = "sends are" if self.flow is Flow.SENDS else "the hand-over is"
        return f"{what} paused since {moment(self.since_ms)}{f', {self.reason}' if self.reason else ''}"


class Pauses(Part):
    """What is paused in a store. Pops and acks never are; ``health`` tells of a pause."""

    def list(self) -> builtins.list[Pause]:
        """List what is paused."""
        self._store._check_open()
        return pauses_in(self._store.engine.pops)

    def begin(self, flow: Flow, *, reason: str = "") -> None:
        """Refuse sends, with :class:`FlowControlError`, or hand nothing over, so that what is due waits and can still be cancelled.

        It holds until :meth:`end`, also for later owners.
        """
        store = self._store._as_owner("pauses.begin")
        self._set(flow, Pause(_checked(flow), store._clock.now_ms(), reason_text(reason)))

    def end(self, flow: Flow) -> None:
        """Let go on what was paused, if it was; what is due is handed over by the next tick."""
        self._set(_checked(flow), None)

    def _set(self, flow: Flow, pause: Pause | None) -> None:
        store = self._store._as_owner("pauses.end")
        with store._tick_lock:  # behind it no hand-over is under way
            store._settle(store.engine.pops, store._held.set(flow, pause, store._clock.now_ms()))
        store._ticker_wake.notify()


class Held:
    """What is held up in a store that is open.

    Attributes:
        sends, hand_over: the pause of each; None while it goes on.
    """

    def __init__(self, pops: PopStore) -> None:
        self._pops = pops
        self.sends: Pause | None = None
        self.hand_over: Pause | None = None
        self.reload()

    def reload(self) -> None:
        """Read the notes anew, as others may have come in."""
        found = {each.flow: each for each in pauses_in(self._pops)}
        self.sends, self.hand_over = found.get(Flow.SENDS), found.get(Flow.HAND_OVER)

    def set(self, flow: Flow, pause: Pause | None, now_ms: int) -> Ticket:
        """Hold something up, or let it go on."""
        value = None if pause is None else msgspec.msgpack.encode(pause)
        _, ticket = self._pops.apply(PopTxn(notes={_PREFIX + flow.value: value}), now_ms)
        self.reload()
        return ticket


def pauses_in(pops: PopStore) -> list[Pause]:
    """Return what is paused, as the notes of a store have it."""
    notes = sorted(pops.notes().items())
    return [msgspec.msgpack.decode(value, type=Pause) for name, value in notes if name.startswith(_PREFIX)]


def _checked(flow: Flow) -> Flow:
    if not isinstance(flow, Flow):
        raise IllegalArgumentTypeError(f"give Flow.SENDS or Flow.HAND_OVER, not {flow!r}")
    return flow
