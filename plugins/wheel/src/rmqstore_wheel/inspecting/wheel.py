"""The timer wheel's slots, and the precision that they were written with, which no file holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import numpy as np

from rmqstore_wheel.formats import timer_log, wheel
from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.formats.timer_log import UNIT_BYTES
from rmqstore_wheel.formats.wheel import SLOT, SLOT_BYTES, Slots
from rmqstore_wheel.inspecting.files import MOST_OF_A_KIND, FileSet, Findings, length_of, read
from rmqstore_wheel.inspecting.timer_units import LastUnits, TimerUnits

FILE_NAME: Final = "timerwheel"
_NAME = re.compile(rf"{FILE_NAME}(?:\.(\d{{1,19}}))?", re.ASCII)
_MOST_BYTES: Final = 256 * 1024**2
_SAMPLE_UNITS: Final = 2000
_YEAR_MS: Final = 366 * 86_400_000


def find(root: Path, findings: Findings) -> list[WheelFile]:
    """Return the wheel and its snapshots, ``timerwheel.`` and a position."""
    found = []
    for path in sorted(root.glob(f"{FILE_NAME}*")):
        match = _NAME.fullmatch(path.name)
        if match is not None and path.is_file():
            found.append(WheelFile(path, root, None if match[1] is None else int(match[1]), findings))
    return found


class WheelFile:
    """One wheel. ``slots`` is None when it cannot be read as one, ``position`` that of the timer log at which a snapshot was made."""

    def __init__(self, path: Path, root: Path, position: int | None, findings: Findings) -> None:
        self.position = position
        self.name = str(path.relative_to(root))
        self.length = length_of(path)
        self.slots: Slots | None = None
        if self.length == 0 or self.length % (2 * SLOT_BYTES) or self.length > _MOST_BYTES:
            what = f"the file has {self.length} bytes, which is no even number of slots of {SLOT_BYTES} bytes"
            findings.add(self.name, self.length, what if self.length <= _MOST_BYTES else f"{self.length} bytes are no length of a wheel")
            return
        data = read(path, 0, self.length)
        self.slots = np.frombuffer(data[: len(data) // SLOT_BYTES * SLOT_BYTES], SLOT)
        self.used = (self.slots["tick"] != 0) | (self.slots["first"] != 0) | (self.slots["last"] != 0)
        self._check_places(findings)

    def _check_places(self, findings: Findings) -> None:
        assert self.slots is not None
        ticks = self.slots["tick"]
        wrong = np.flatnonzero(self.used & ((ticks < 0) | (ticks % len(ticks) != np.arange(len(ticks)))))
        for place in wrong[:MOST_OF_A_KIND].tolist():
            tick = int(ticks[place])
            what = f"slot {place} holds tick {tick}, whose slot is {tick % len(ticks)}"
            findings.add(self.name, place * SLOT_BYTES, what, kind="slots that hold a foreign tick")
        if len(wrong) > MOST_OF_A_KIND:
            findings.count(self.name, "slots that hold a foreign tick", len(wrong) - MOST_OF_A_KIND)
        self.used = self.used & (ticks >= 0)

    @property
    def slot_count(self) -> int:
        """Slots of the ring, twice as many as the wheel spans."""
        return 0 if self.slots is None else len(self.slots)


def precision_of(slots: Slots, used: Any, units: FileSet, around_ms: int | None) -> tuple[int, str] | None:
    """Return the precision of a wheel, ms, and how it is known; None when nothing tells.

    The surest witnesses are units of the timer log, which hold the times of their slots: those whose slots are in the wheel, or else what
    divides all. Without any, it is the one that puts the wheel's newest tick nearest to ``around_ms``.
    """
    times = _some_times(units)
    hits = {precision: _hits(slots, times // precision) for precision in wheel.PRECISIONS_MS}
    best = max(hits.values(), default=0)
    if best:
        # A wheel of 1000 ms may by chance fit others; the widest that fits as well as any is the one that wrote it.
        precision = max(each for each, number in hits.items() if number == best)
        return precision, "from the units of the timer log"
    if len(times):
        dividing = [each for each in wheel.PRECISIONS_MS if not (times % each).any()]
        return max(dividing, default=wheel.PRECISIONS_MS[0]), "from the times in the timer log, as no slot fits them"
    if around_ms and used.any():
        newest = int(slots["tick"][used].max())
        nearest = min(wheel.PRECISIONS_MS, key=lambda each: abs(newest * each - around_ms))
        if abs(newest * nearest - around_ms) < _YEAR_MS:
            return nearest, "from the wheel's ticks beside the clock"
    return None


def _hits(slots: Slots, ticks: Ints) -> int:
    return int((slots["tick"][ticks % len(slots)] == ticks).sum()) if len(ticks) else 0


def _some_times(units: FileSet) -> Ints:
    """Return slot times of the newest units that are at the head of the last files."""
    found: list[Ints] = [np.zeros(0, np.int64)]
    for file in units.files[-2:]:
        times = timer_log.slot_times_ms(timer_log.scan(units.read(file.start, _SAMPLE_UNITS * UNIT_BYTES)).units)
        found.append(times[times > 0])
    return np.concatenate(found)


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
