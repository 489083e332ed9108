"""The timer log and the wheel: whether the chain of every slot leads through all of its units, and every slot to its newest one.

A chain is followed in the order of the file, not from unit to unit: what the unit before in the same slot was is kept in a ring like the
wheel's, so each unit is looked at once, and a chain that leads in a circle is seen by the unit that points to itself or forward.

rmqstore reads no slot that counts no timers, and lets its chain begin anew with the next one; what was in it before is not missed then.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np

from rmqstore_wheel.formats import timer_log, wheel
from rmqstore_wheel.formats.binary_columns import Flags, Ints, Rows
from rmqstore_wheel.formats.timer_log import NO_POSITION, UNIT_BYTES, Scan
from rmqstore_wheel.formats.wheel import SLOT, SLOT_BYTES
from rmqstore_wheel.inspecting.files import FileSet, Findings, length_of, read
from rmqstore_wheel.inspecting.reading import DAMAGED, ChainReader, FileReport

_WINDOW_UNITS: Final = 40_000
_CHAINS: Final = "units whose chain is broken"
_LOST: Final = "units whose message was removed"


class LastUnits:
    """The newest unit of every slot, position and time by place in the ring, and how many put timers there, as the wheel keeps them.

    ``slots`` are those of the wheel, which was read before; it knows the units before position ``settled``.
    """

    def __init__(self, slots: Rows, precision_ms: int, settled: int) -> None:
        self.precision_ms = precision_ms
        self.settled = settled
        self._slots = slots
        slot_count = len(slots)
        self.ticks = np.full(slot_count, -1, np.int64)
        self.positions = np.full(slot_count, NO_POSITION, np.int64)
        self.puts = np.zeros(slot_count, np.int64)

    def may_begin(self, ticks: Ints, positions: Ints) -> Flags:
        """Say where a chain may begin although its slot has older units: by all that the wheel knows it had been emptied."""
        held = self._slots.take(ticks % len(self._slots))
        begins: Flags = (positions >= self.settled) | (positions <= held["first"]) | (held["tick"] != ticks) | (held["timers"] <= 0)
        return begins

    def expected(self, ticks: Ints, positions: Ints, puts: Flags) -> Ints:
        """Return which unit each of these should point back to, -1 = none, and remember them; ``puts`` says which are no cancels."""
        places = ticks % len(self.ticks)
        order = np.argsort(places, kind="stable")
        places, ticks, positions = places[order], ticks[order], positions[order]
        before_ticks, before = np.roll(ticks, 1), np.roll(positions, 1)
        heads = np.append(True, places[1:] != places[:-1])
        before_ticks[heads], before[heads] = self.ticks[places[heads]], self.positions[places[heads]]
        found = np.empty(len(order), np.int64)
        found[order] = np.where(before_ticks == ticks, before, NO_POSITION)
        tails = np.append(heads[1:], True)
        slots = np.cumsum(heads) - 1
        is_newest = ticks == ticks[tails][slots]
        known = np.where(self.ticks[places[tails]] == ticks[tails], self.puts[places[tails]], 0)
        self.puts[places[tails]] = known + np.bincount(slots, puts[order] & is_newest, len(known)).astype(np.int64)
        self.ticks[places[tails]], self.positions[places[tails]] = ticks[tails], positions[tails]
        return found


class TimerUnits(ChainReader[Scan]):
    """Reads a timer log once.

    Args:
        last: what the wheel should hold; None checks the chains only for what no wheel is needed.
        log_start: a timer whose message is before it is lost; rmqstore, of whose stores it is 0, removes the messages of those only that
            were cancelled or copied.
    """

    entry = "unit"
    blank_bytes = timer_log.BLANK_BYTES

    def __init__(self, files: FileSet, findings: Findings, read_ms: int | None, last: LastUnits | None, log_start: int = 0) -> None:
        super().__init__(files, _WINDOW_UNITS * UNIT_BYTES)
        self.broken = 0
        self._findings = findings
        self._read_ms = read_ms
        self._last = last
        self._log_start = log_start
        self._unseen = [(0, files.start)]
        none = np.zeros(0, np.int64)
        self._rolled: list[Ints] = [none]
        self._waiting: list[Ints] = [none]
        for file in files.files:
            report = FileReport(file)
            for at, _, found in self.windows(report, findings):
                if len(found.units):
                    self._look_at(found.units, at, report)
            if report.why == DAMAGED:
                self._unseen.append((report.end, file.start + file.length))
            self.add_report(report, findings)
        self.superseded = np.setdiff1d(np.concatenate(self._rolled), np.concatenate(self._waiting))
        """Log offsets of messages that were rolled and wait no more: a broker puts a copy behind them, the engine only another unit."""
        self._rolled, self._waiting = [], []

    def look(self, window: bytes, base: int) -> Scan:
        return timer_log.scan(window)

    @property
    def read_from(self) -> int:
        """From here on every unit was read."""
        return self._unseen[-1][1]

    @property
    def end(self) -> int:
        """Where the next unit would go."""
        return max((report.end for report in self.reports if report.count), default=self.files.start)

    def time_at(self, position: int) -> int | None:
        """Return the slot time of the unit at a position; None when none is there."""
        file = self.files.file_of(position)
        if file is None or (position - file.start) % UNIT_BYTES:
            return None
        units = timer_log.scan(self.files.read(position, UNIT_BYTES)).units
        return int(timer_log.slot_times_ms(units)[0]) if len(units) else None

    def _look_at(self, units: Rows, at: int, report: FileReport) -> None:
        file = report.file
        is_rolled = (units["flags"] & timer_log.ROLL) != 0
        times = timer_log.slot_times_ms(units)
        # What was delivered is never followed again.
        waits = np.ones(len(units), bool) if self._read_ms is None else times >= self._read_ms
        offsets = units["log_offset"].astype(np.int64)
        report.count += len(units)
        report.rolled += int(is_rolled.sum())
        report.cancels += int((((units["flags"] & timer_log.DELETE) != 0) & ~is_rolled).sum())
        if waits.any():
            row = int(np.where(waits, offsets, -1).argmax())
            report.furthest = max(report.furthest, (int(offsets[row]), at + row * UNIT_BYTES))
        if self._read_ms is not None:
            self._rolled.append(offsets[is_rolled & ~waits])
            self._waiting.append(offsets[waits])
        self._findings.add_rows(
            file.name,
            _LOST,
            np.flatnonzero(waits & (offsets < self._log_start)),
            at,
            UNIT_BYTES,
            lambda row: f"the unit leads to log offset {offsets[row]}, before the first file of the commit log: its timer is lost",
        )
        positions = file.start + at + np.arange(len(units), dtype=np.int64) * UNIT_BYTES
        previous = units["previous"].astype(np.int64)
        wrong = (previous >= positions) | (previous < NO_POSITION)
        expected = np.full(len(units), NO_POSITION)
        if self._last is not None:
            is_put = (units["flags"] & timer_log.DELETE) == 0
            ticks = times // self._last.precision_ms
            expected = self._last.expected(ticks, positions, is_put)
            begins = (previous == NO_POSITION) & self._last.may_begin(ticks, positions)
            wrong |= (previous != expected) & ~begins & ~self._is_unseen(previous)
        wrong &= waits
        self.broken += int(wrong.sum())
        self._findings.add_rows(
            file.name,
            _CHAINS,
            np.flatnonzero(wrong),
            at,
            UNIT_BYTES,
            lambda row: self._broken(int(positions[row]), int(previous[row]), int(times[row]), int(expected[row])),
        )

    def _is_unseen(self, positions: Ints) -> Flags:
        """Say which positions are in what was reclaimed, or could not be read."""
        unseen = np.zeros(len(positions), bool)
        for start, end in self._unseen:
            unseen |= (positions >= start) & (positions < end)
        return unseen

    def _broken(self, position: int, previous: int, time_ms: int, expected: int) -> str:
        """Say in what way a unit points back wrongly."""
        what = f"the unit at position {position} points back to {previous}"
        if previous >= position:
            return f"{what}, which is not before it: its chain would lead in a circle"
        if previous < NO_POSITION:
            return f"{what}, which is no position"
        if previous != NO_POSITION:
            found = self.time_at(previous)
            if found is None:
                return f"{what}, where no unit is: the rest of its slot is lost"
            precision = 1 if self._last is None else self._last.precision_ms
            if found // precision != time_ms // precision:
                return f"{what}, which is a unit of another slot"
        if expected > previous:
            return f"{what} and so leaves out the one at {expected}, of the same slot"
        return f"{what}, which is not the unit before it in its slot"


# ---------------------------------------------------------------- the wheel

FILE_NAME: Final = "timerwheel"
_NAME = re.compile(rf"{FILE_NAME}(?:\.(\d{{1,19}}))?", re.ASCII)
_MOST_BYTES: Final = 256 * 1024**2
_FOREIGN: Final = "slots that hold a foreign tick"
_ASTRAY: Final = "slots that do not lead to their units"
_MISCOUNTED: Final = "slots that count too many timers"


def find_wheels(root: Path, findings: Findings) -> list[WheelFile]:
    """Return the wheel and its snapshots, ``timerwheel.`` and a position."""
    found = []
    for path in sorted(root.glob(f"{FILE_NAME}*")):
        match = _NAME.fullmatch(path.name)
        if match is not None and path.is_file():
            found.append(WheelFile(path, root, None if match[1] is None else int(match[1]), findings))
    return found


class WheelFile:
    """One wheel. ``slots`` is empty when it cannot be read as one, ``position`` that of the timer log at which a snapshot was made."""

    def __init__(self, path: Path, root: Path, position: int | None, findings: Findings) -> None:
        self.position = position
        self.name = str(path.relative_to(root))
        self.length = length_of(path)
        self.slots: Rows = np.zeros(0, SLOT)
        self.used: Flags = np.zeros(0, np.bool_)
        if self.length == 0 or self.length % (2 * SLOT_BYTES) or self.length > _MOST_BYTES:
            what = f"the file has {self.length} bytes, which is no even number of slots of {SLOT_BYTES} bytes"
            findings.add(self.name, self.length, what if self.length <= _MOST_BYTES else f"{self.length} bytes are no length of a wheel")
            return
        data = read(path, 0, self.length)
        self.slots = np.frombuffer(data[: len(data) // SLOT_BYTES * SLOT_BYTES], SLOT)
        ticks, count = self.slots["tick"], len(self.slots)
        used = (ticks != 0) | (self.slots["first"] != 0) | (self.slots["last"] != 0)
        self.used = used & (ticks >= 0)
        findings.add_rows(
            self.name,
            _FOREIGN,
            np.flatnonzero(used & ((ticks < 0) | (ticks % count != np.arange(count)))),
            0,
            SLOT_BYTES,
            lambda place: f"slot {place} holds tick {ticks[place]}, whose slot is {ticks[place] % count}",
        )


_SAMPLE_UNITS: Final = 2000
_YEAR_MS: Final = 366 * 86_400_000


def precision_of(slots: Rows, used: Flags, units: FileSet, around_ms: int | None) -> tuple[int, str] | None:
    """Return the precision of a wheel, ms, and how it is known, which no file says; None when nothing tells.

    The surest witnesses are units of the timer log, which hold the times of their slots: those whose slots are in the wheel, or else what
    divides all. Without any, it is the one that puts the wheel's newest tick nearest to ``around_ms``.
    """
    times = _some_times(units)
    hits = {precision: _hits(slots, times // precision) for precision in wheel.PRECISIONS_MS}
    best = max(hits.values())
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


def _hits(slots: Rows, ticks: Ints) -> int:
    return int((slots["tick"][ticks % len(slots)] == ticks).sum()) if len(ticks) else 0


def _some_times(units: FileSet) -> Ints:
    """Return slot times of units that are at the head of the last files."""
    found: list[Ints] = [np.zeros(0, np.int64)]
    for file in units.files[-2:]:
        times = timer_log.slot_times_ms(timer_log.scan(units.read(file.start, _SAMPLE_UNITS * UNIT_BYTES)).units)
        found.append(times[times > 0])
    return np.concatenate(found)


class WheelCheck:
    """Compares one wheel with the units that were read; it must know the settled ones, and count no more than they put.

    ``waiting`` slots are of ticks that are not delivered yet; ``timers`` are in them, by the wheel's own count.
    """

    def __init__(self, found: WheelFile, units: TimerUnits, last: LastUnits, read_ms: int | None) -> None:
        self.wheel = found
        self._slots = slots = found.slots
        self._units = units
        self._last = last
        self._from_tick = 0 if read_ms is None else -(-read_ms // last.precision_ms)
        self._settled = last.settled
        self.waiting = found.used & (slots["tick"] >= self._from_tick)
        self.timers = int(slots["timers"][self.waiting].sum())

    def run(self, findings: Findings) -> None:
        """Note every slot that waits and leads astray, and every tick with units of which the wheel knows nothing."""
        position, newest = self._slots["last"].astype(np.int64), self._last.positions
        has_units = self._last.ticks == self._slots["tick"]
        counting = self.waiting & (self._slots["timers"] > 0)
        astray = counting & (position >= 0) & ~(has_units & (newest == position))
        unknown = ~has_units & (self._last.ticks >= self._from_tick) & (newest < self._settled)
        for place in np.flatnonzero(astray | unknown).tolist():
            if not findings.has_room(self.wheel.name, _ASTRAY):
                break
            if unknown[place]:
                tick = int(self._last.ticks[place])
                what: str | None = f"slot {place} knows nothing of tick {tick}, whose newest unit lies at position {newest[place]}"
            else:
                what = self._astray(place, int(position[place]), bool(has_units[place]))
            if what:
                findings.add(self.wheel.name, place * SLOT_BYTES, what, kind=_ASTRAY)
        # The timer log was read later and cancels take off the count, so there may be more; of units that were not read nothing is known.
        counted = np.where(self._slots["first"] >= self._units.read_from, self._slots["timers"], 0)
        findings.add_rows(
            self.wheel.name,
            _MISCOUNTED,
            np.flatnonzero(counting & has_units & ~astray & (counted > self._last.puts)),
            0,
            SLOT_BYTES,
            lambda place: f"slot {place} counts {counted[place]} timers, but {self._last.puts[place]} were put there",
        )

    def _astray(self, place: int, position: int, has_units: bool) -> str | None:
        """Say where a slot leads wrongly; None when it was only looked at in another moment than the timer log."""
        tick = int(self._slots["tick"][place])
        newest = int(self._last.positions[place])
        what = f"slot {place}, tick {tick}, leads to position {position}"
        found = self._units.time_at(position)
        if found is None:
            end = self._units.end
            return f"{what}, behind the end of the timer log at {end}" if position >= end else f"{what}, where no unit is"
        if found // self._last.precision_ms != tick:
            return f"{what}, which is a unit of another slot"
        if has_units and position < newest < self._settled:
            return f"{what}, but its newest unit lies at {newest}: what came later is lost"
        return None
