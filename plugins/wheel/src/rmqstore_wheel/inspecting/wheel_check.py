"""The wheel beside the timer log: whether the slots that wait lead to the newest unit of their ticks.

The wheel may be behind: what was appended after the position in ``timercheck`` is put into it again at the next start.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rmqstore_wheel.formats import timer_log
from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.formats.timer_log import UNIT_BYTES
from rmqstore_wheel.formats.wheel import SLOT_BYTES
from rmqstore_wheel.inspecting.findings import Findings
from rmqstore_wheel.inspecting.timer_units import LastUnits, TimerUnits
from rmqstore_wheel.inspecting.wheel_slots import WheelFile

_ASTRAY: Final = "slots that do not lead to their units"


class WheelCheck:
    """Compares one wheel with the units that were read; it must know those before position ``settled``.

    ``waiting`` slots are of ticks that are not delivered yet.
    """

    def __init__(self, wheel: WheelFile, units: TimerUnits, last: LastUnits, read_ms: int | None, settled: int) -> None:
        assert wheel.slots is not None
        self.wheel = wheel
        self._slots = wheel.slots
        self._units = units
        self._last = last
        self._from_tick = 0 if read_ms is None else -(-read_ms // last.precision_ms)
        self._settled = settled
        self.waiting = wheel.used & (self._slots["tick"] >= self._from_tick)

    @property
    def timers(self) -> int:
        """Timers of the slots that wait, by the wheel's own count."""
        return int(self._slots["timers"][self.waiting].sum())

    def run(self, findings: Findings) -> None:
        """Note every slot that waits and leads astray, and every tick with units of which the wheel knows nothing."""
        position, newest = self._slots["last"].astype(np.int64), self._last.positions
        has_units = self._last.ticks == self._slots["tick"]
        astray = self.waiting & (position >= 0) & ~(has_units & (newest == position))
        unknown = ~has_units & (self._last.ticks >= self._from_tick) & (newest < self._settled)
        for place in np.flatnonzero(astray | unknown).tolist():
            if not findings.has_room(self.wheel.name, _ASTRAY):
                return
            what = self._unknown(place) if unknown[place] else self._astray(place, int(position[place]), bool(has_units[place]))
            if what:
                findings.add(self.wheel.name, place * SLOT_BYTES, what, kind=_ASTRAY)

    def _unknown(self, place: int) -> str:
        tick = int(self._last.ticks[place])
        return f"slot {place} knows nothing of tick {tick}, whose newest unit lies at position {int(self._last.positions[place])}"

    def _astray(self, place: int, position: int, has_units: bool) -> str | None:
        """Say where a slot leads wrongly; None when it was only looked at in another moment than the timer log."""
        tick = int(self._slots["tick"][place])
        newest = int(self._last.positions[place])
        what = f"slot {place}, tick {tick}, leads to position {position}"
        found = self._times_at(position)
        if not len(found):
            end = self._units.end
            return f"{what}, behind the end of the timer log at {end}" if position >= end else f"{what}, where no unit is"
        if int(found[0]) // self._last.precision_ms != tick:
            return f"{what}, which is a unit of another slot"
        if has_units and newest > position and newest < self._settled:
            return f"{what}, but its newest unit lies at {newest}: what came later is lost"
        return None

    def _times_at(self, position: int) -> Ints:
        """Return the slot time of the unit at a position; nothing when none is there."""
        file = self._units.files.file_of(position)
        if file is None or (position - file.start) % UNIT_BYTES:
            return np.zeros(0, np.int64)
        return timer_log.slot_times_ms(timer_log.scan(self._units.files.read(position, UNIT_BYTES)).units)
