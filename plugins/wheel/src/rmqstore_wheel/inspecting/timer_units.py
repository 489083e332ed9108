"""The timer log: its units, and whether the chain of every slot leads through all of them.

A chain is followed in the order of the file, not from unit to unit: what the unit before in the same slot was is kept in a ring like the
wheel's, so each unit is looked at once, and a chain that leads in a circle is seen by the unit that points to itself or forward.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from rmqstore_wheel.formats import timer_log
from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.formats.log_reading import Stop
from rmqstore_wheel.formats.timer_log import NO_POSITION, UNIT_BYTES, Units
from rmqstore_wheel.inspecting.files import FileSet, Findings, LogFile, first_written
from rmqstore_wheel.inspecting.log import DAMAGED, EMPTY_FILE, UNWRITTEN

DIRECTORY: Final = "timerlog"
_WINDOW_UNITS: Final = 40_000
_CHAINS: Final = "units whose chain is broken"
_LOST: Final = "units whose message was removed"


class UnitReport:
    """What one file holds."""

    def __init__(self, file: LogFile) -> None:
        self.file = file
        self.units = 0
        self.rolled = 0
        self.cancels = 0
        self.end = file.start
        self.why = ""


class LastUnits:
    """The newest unit of every slot: position and time by place in the ring, as the wheel itself keeps them."""

    def __init__(self, slot_count: int, precision_ms: int) -> None:
        self.precision_ms = precision_ms
        self.ticks = np.full(slot_count, -1, np.int64)
        self.positions = np.full(slot_count, NO_POSITION, np.int64)

    def expected(self, ticks: Ints, positions: Ints) -> Ints:
        """Return which unit each of these should point back to, -1 = none, and remember them."""
        places = ticks % len(self.ticks)
        order = np.argsort(places, kind="stable")
        places, ticks, positions = places[order], ticks[order], positions[order]
        before_ticks, before = np.roll(ticks, 1), np.roll(positions, 1)
        heads = np.append(True, places[1:] != places[:-1])
        before_ticks[heads], before[heads] = self.ticks[places[heads]], self.positions[places[heads]]
        found = np.empty(len(order), np.int64)
        found[order] = np.where(before_ticks == ticks, before, NO_POSITION)
        tails = np.append(heads[1:], True)
        self.ticks[places[tails]], self.positions[places[tails]] = ticks[tails], positions[tails]
        return found


class TimerUnits:
    """Reads a timer log once. ``last`` is what the wheel should hold; None checks the chains only for what no wheel is needed."""

    def __init__(self, files: FileSet, findings: Findings, read_ms: int | None, last: LastUnits | None, log_start: int = 0) -> None:
        self.files = files
        self.reports: list[UnitReport] = []
        self.broken = 0
        self.superseded = np.zeros(0, np.int64)
        """Log offsets of messages that were rolled and wait no more: a broker puts a copy behind them, the engine only another unit."""
        self.reach: list[tuple[LogFile, int, int]] = []
        """Per file with units that are not delivered yet, the byte of the unit that leads furthest into the commit log, and where to."""
        self._findings = findings
        self._read_ms = read_ms
        self._last = last
        self._log_start = log_start
        self._unseen = [(0, files.start)]
        rolled: list[Ints] = []
        self._waiting: list[Ints] = []
        for file in files.files:
            self.reports.append(self._read(file, rolled))
        self._check_ends()
        if rolled:
            self.superseded = np.setdiff1d(np.concatenate(rolled), np.concatenate(self._waiting))
        self._waiting.clear()

    @property
    def end(self) -> int:
        """Where the next unit would go."""
        return max((report.end for report in self.reports if report.units), default=self.files.start)

    def _read(self, file: LogFile, rolled: list[Ints]) -> UnitReport:
        report = UnitReport(file)
        at = 0
        furthest = (-1, 0)
        while at < file.length:
            # A blank unit needs 16 bytes more to be seen for one.
            window = self.files.read(file.start + at, _WINDOW_UNITS * UNIT_BYTES)
            found = timer_log.scan(window)
            if len(found.units):
                self._look(found.units, file, at, report, rolled)
                furthest = max(furthest, self._furthest(found.units, at))
            at += found.end
            report.end = file.start + at
            if found.end < len(window) or at >= file.length or not len(window):
                self._stopped(found.stop, window[found.end :], at, report)
                break
        else:
            report.why = EMPTY_FILE
        if furthest[0] >= 0:
            self.reach.append((file, furthest[1], furthest[0]))
        return report

    def _look(self, units: Units, file: LogFile, at: int, report: UnitReport, rolled: list[Ints]) -> None:
        flags = units["flags"]
        is_rolled = (flags & timer_log.ROLL) != 0
        report.units += len(units)
        report.rolled += int(is_rolled.sum())
        report.cancels += int((((flags & timer_log.DELETE) != 0) & ~is_rolled).sum())
        times = timer_log.slot_times_ms(units)
        if self._read_ms is not None:
            rolled.append(units["log_offset"][is_rolled & (times < self._read_ms)].astype(np.int64))
            self._waiting.append(units["log_offset"][times >= self._read_ms].astype(np.int64))
        positions = file.start + at + np.arange(len(units), dtype=np.int64) * UNIT_BYTES
        previous = units["previous"].astype(np.int64)
        wrong = (previous >= positions) | (previous < NO_POSITION)
        if self._last is not None:
            expected = self._last.expected(times // self._last.precision_ms, positions)
            wrong |= (previous != expected) & ~self._is_unseen(previous)
        waits = self._waits(times)
        self._note_lost(units, waits, file, at)
        wrong &= waits
        self.broken += int(wrong.sum())
        for row in np.flatnonzero(wrong).tolist():
            if not self._findings.has_room(file.name, _CHAINS):
                self._findings.count(file.name, _CHAINS, int(wrong[row:].sum()))
                break
            what = self._broken(
                int(positions[row]), int(previous[row]), int(times[row]), None if self._last is None else int(expected[row])
            )
            self._findings.add(file.name, at + row * UNIT_BYTES, what, kind=_CHAINS)

    def _note_lost(self, units: Units, waits: Any, file: LogFile, at: int) -> None:
        """Note timers that wait although the file of their message was removed."""
        for row in np.flatnonzero(waits & (units["log_offset"] < self._log_start)).tolist():
            if not self._findings.has_room(file.name, _LOST):
                return
            what = f"the unit leads to log offset {units['log_offset'][row]}, before the first file of the commit log: its timer is lost"
            self._findings.add(file.name, at + row * UNIT_BYTES, what, kind=_LOST)

    def _waits(self, times: Ints) -> Any:
        """Say which slots are still to be delivered; what was delivered is never followed again."""
        return np.ones(len(times), bool) if self._read_ms is None else times >= self._read_ms

    def _is_unseen(self, positions: Ints) -> Any:
        """Say which positions are in what was reclaimed, or could not be read."""
        unseen = np.zeros(len(positions), bool)
        for start, end in self._unseen:
            unseen |= (positions >= start) & (positions < end)
        return unseen

    def _furthest(self, units: Units, at: int) -> tuple[int, int]:
        """Return the greatest log offset of units that wait, and the byte of that unit."""
        rows = np.flatnonzero(self._waits(timer_log.slot_times_ms(units)))
        if not len(rows):
            return -1, 0
        row = int(rows[units["log_offset"][rows].argmax()])
        return int(units["log_offset"][row]), at + row * UNIT_BYTES

    def _broken(self, position: int, previous: int, time_ms: int, expected: int | None) -> str:
        """Say in what way a unit points back wrongly."""
        what = f"the unit at position {position} points back to {previous}"
        if previous >= position:
            return f"{what}, which is not before it: its chain would lead in a circle"
        if previous < NO_POSITION:
            return f"{what}, which is no position"
        if previous != NO_POSITION:
            units = timer_log.scan(self.files.read(previous, UNIT_BYTES)).units
            if not len(units) or not self._is_place_of_unit(previous):
                return f"{what}, where no unit is: the rest of its slot is lost"
            precision = 1 if self._last is None else self._last.precision_ms
            if int(timer_log.slot_times_ms(units)[0]) // precision != time_ms // precision:
                return f"{what}, which is a unit of another slot"
        if expected is not None and expected > previous:
            return f"{what} and so leaves out the one at {expected}, of the same slot"
        return f"{what}, which is not the unit before it in its slot"

    def _is_place_of_unit(self, position: int) -> bool:
        file = self.files.file_of(position)
        return file is not None and (position - file.start) % UNIT_BYTES == 0

    def _stopped(self, stop: Stop, rest: bytes, at: int, report: UnitReport) -> None:
        file = report.file
        if stop is Stop.BLANK:
            left = int.from_bytes(rest[:4])
            report.why = "a blank unit fills the file"
            report.end = file.start + file.length
            if at + left != file.length:
                what = f"a blank unit says that {left} bytes are left in the file, where {file.length - at} are"
                self._findings.add(file.name, at, what)
        elif stop is Stop.END:
            report.why = "the file ends with a unit"
        elif stop is Stop.EMPTY:
            report.why = UNWRITTEN
            written_at = first_written(file.path, at, file.length)
            if written_at is not None and not any(self.files.read(file.start + at, UNIT_BYTES)):
                report.why = DAMAGED
                what = f"zeros where a unit is expected, but bytes are written behind them, from byte {written_at} on"
                self._findings.add(file.name, at, what)
        else:
            report.why = DAMAGED
            what = "a unit does not end within the file" if stop is Stop.TORN else "neither a unit nor a blank one"
            self._findings.add(file.name, at, f"{what}; what follows in this file is not read")
        if report.why == DAMAGED:
            self._unseen.append((report.end, file.start + file.length))

    def _check_ends(self) -> None:
        """Note a file that ends before its end although there are units in a later one."""
        for earlier, later in zip(self.reports, self.reports[1:], strict=False):
            if later.units and earlier.why in (UNWRITTEN, EMPTY_FILE):
                what = f"nothing is written from here on, but file {later.file.path.name} holds units behind it"
                self._findings.add(earlier.file.name, earlier.end - earlier.file.start, what)
