"""``store.pauses``: what an operator holds up, sends or the hand-over (``timerStopEnqueue``, ``timerStopDequeue`` of RocketMQ).

A pause is a note of the pop side (I2), so it lasts until it is ended, whoever owns the store meanwhile.
"""

from __future__ import annotations

import builtins
import enum
import threading
from collections.abc import Mapping
from typing import Final

import msgspec

from rmqstore.contract import PopStore, PopTxn
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
        return pauses_of(self._store.engine.pops.notes())

    def begin(self, flow: Flow, *, reason: str = "") -> None:
        """Refuse sends, with :class:`FlowControlError`, or hand nothing over, so that what is due waits and can still be cancelled.
        A send that has a ``timeout`` waits for the end of the pause.

        It holds until :meth:`end`, also for later owners. A send that is under way in another thread may still be stored.
        """
        store = self._store._as_owner("pauses.begin")
        self._set(flow, Pause(_checked(flow), store._clock.now_ms(), reason_text(reason)))

    def end(self, flow: Flow) -> None:
        """Let go on what was paused, if it was; what is due is handed over by the next tick."""
        self._set(_checked(flow), None)

    def _set(self, flow: Flow, pause: Pause | None) -> None:
        store = self._store._as_owner("pauses.end")
        value = None if pause is None else msgspec.msgpack.encode(pause)
        pops, held = store.engine.pops, store._held
        try:
            _, ticket = pops.apply(PopTxn(notes={_PREFIX + flow.value: value}), store._clock.now_ms())
            held.look()
            store._settle(pops, ticket)
        except BaseException:
            held.look()  # a disk that is full may have let go of it
            raise
        finally:
            store._waits.made_room()
        if not held.is_moving:
            with store._tick_lock:  # behind it no step of a hand-over is under way
                pass
        store._ticker_wake.notify()


class Held:
    """What is held up in a store that is open.

    Attributes:
        sends, hand_over: the pause of each; None while it goes on.
        is_moving: whether a hand-over that goes in steps may take the next one: it is not paused, and the store does not close.
    """

    def __init__(self, pops: PopStore) -> None:
        self._pops = pops
        self._lock = threading.RLock()  # what is looked at last is the latest
        self._seen: Mapping[str, bytes] = {}
        self._is_closing = False
        self.sends: Pause | None = None
        self.hand_over: Pause | None = None
        self.is_moving = True
        self.look()

    def look(self) -> Mapping[str, bytes]:
        """Know what the notes of the store say by now, and return them."""
        with self._lock:
            notes = self._pops.notes()
            if notes is not self._seen:
                found = {each.flow: each for each in pauses_of(notes)}
                self.sends, self.hand_over = found.get(Flow.SENDS), found.get(Flow.HAND_OVER)
                self.is_moving = self.hand_over is None and not self._is_closing
                self._seen = notes
            return notes

    def close(self) -> None:
        """Let no hand-over begin another step."""
        with self._lock:
            self._is_closing = True
            self.is_moving = False


def pauses_of(notes: Mapping[str, bytes]) -> list[Pause]:
    """Return what is paused, as the notes of a store have it."""
    return [msgspec.msgpack.decode(value, type=Pause) for name, value in sorted(notes.items()) if name.startswith(_PREFIX)]


def _checked(flow: Flow) -> Flow:
    if not isinstance(flow, Flow):
        raise IllegalArgumentTypeError(f"give Flow.SENDS or Flow.HAND_OVER, not {flow!r}")
    return flow
