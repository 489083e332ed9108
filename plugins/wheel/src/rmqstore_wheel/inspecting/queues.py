"""Consume queues beside the commit log: whether every unit leads to the record that it stands for.

While the log goes by, the unit of every record is read and compared; a queue in which fewer units are confirmed than lead into the log has
one that does not. Only then are its units followed one by one. What was written after the log had been read is followed, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from rmqstore_wheel.formats import consume_queue
from rmqstore_wheel.formats.binary_columns import Flags, Ints, Rows
from rmqstore_wheel.formats.consume_queue import FILL_SIZE, UNIT_BYTES
from rmqstore_wheel.inspecting.files import FileSet, Findings, LogFile
from rmqstore_wheel.inspecting.log import LogReader, QueueName, Records

_WINDOW_UNITS: Final = 50_000
_MISLED: Final = "units that do not lead to their message"
_MOST_FOLLOWED: Final = 1_000_000
"""Units of one queue that are followed one by one to find those that mislead."""


class Queue:
    """One queue. After ``check``, ``end`` is its next offset, ``least`` the first whose message is kept, ``units`` how many those are."""

    def __init__(self, name: QueueName, files: FileSet, log: LogReader, findings: Findings) -> None:
        self.name = name
        self.files = files
        self.confirmed = 0
        self.least: int | None = None
        self.end = 0
        self.units = 0
        self._log = log
        self._findings = findings
        self._inside = 0
        self._unwritten: tuple[LogFile, int] | None = None

    def units_at(self, first: int, count: int) -> Rows:
        """Read units from queue offset ``first`` on: fewer at the end of a file."""
        return consume_queue.decode(self.files.read(first * UNIT_BYTES, count * UNIT_BYTES))

    def confirm(self, records: Records, rows: Ints) -> None:
        """Count the records that their units lead to."""
        offsets = np.asarray(records.columns.queue_offset)[rows]
        places = np.asarray(records.columns.physical_offset)[rows]
        sizes = records.sizes[rows]
        order = np.argsort(offsets, kind="stable")
        offsets, places, sizes = offsets[order], places[order], sizes[order]
        at = int(np.searchsorted(offsets, 0))
        while at < len(offsets):
            first = int(offsets[at])
            units = self.units_at(first, min(int(offsets[-1]) - first + 1, _WINDOW_UNITS))
            if not len(units):
                at = int(np.searchsorted(offsets, first, side="right"))
                continue
            end = int(np.searchsorted(offsets, first + len(units)))
            mine = units[offsets[at:end] - first]
            self.confirmed += int(((mine["log_offset"] == places[at:end]) & (mine["size"] == sizes[at:end])).sum())
            at = end

    def check(self) -> None:
        """Read all units, after the log was read."""
        for file, at, units in self._windows():
            self._look(file, at, units)
        if self._inside == self.confirmed:
            return
        self._find_misled()

    def _find_misled(self) -> None:
        followed = 0
        for file, at, units in self._windows():
            inside = np.flatnonzero(self._leads_inside(units))
            for row in inside[: max(0, _MOST_FOLLOWED - followed)].tolist():
                self._follow(file, at, units, row)
            followed += len(inside)
            if not self._findings.has_room(file.name, _MISLED) or followed >= _MOST_FOLLOWED:
                return

    def _windows(self) -> Iterator[tuple[LogFile, int, Rows]]:
        """Yield the units of every file, and the byte at which they are in it."""
        files = self.files
        for file in files.files:
            at = 0
            while at < file.length:
                units = consume_queue.decode(files.read(file.start + at, min(_WINDOW_UNITS * UNIT_BYTES, file.length - at)))
                if not len(units):
                    break
                yield file, at, units
                at += units.nbytes
            if file.length % UNIT_BYTES and self._unwritten is None:
                what = f"the file ends within a unit: it has {file.length} bytes, no multiple of {UNIT_BYTES}"
                self._findings.add(file.name, file.length - file.length % UNIT_BYTES, what, kind="ends within a unit")

    def _leads_inside(self, units: Rows) -> Flags:
        offsets = units["log_offset"]
        return consume_queue.is_message(units) & (offsets >= self._log.files.start) & (offsets < self._log.end)

    def _look(self, file: LogFile, at: int, units: Rows) -> None:
        written = (units["size"] != 0) | (units["log_offset"] != 0) | (units["tags_code"] != 0)
        messages = consume_queue.is_message(units)
        fills = (units["size"] == FILL_SIZE) & (units["log_offset"] == 0)
        self._note_holes(file, at, written)
        self._findings.add_rows(
            file.name,
            "units that are none",
            np.flatnonzero(written & ~messages & ~fills),
            at,
            UNIT_BYTES,
            lambda row: (
                f"the unit of queue offset {self._offset(file, at, row)} is none: "
                f"log offset {units[row]['log_offset']}, {units[row]['size']} bytes"
            ),
        )
        present = np.flatnonzero(messages)
        kept = np.flatnonzero(messages & (units["log_offset"] >= self._log.files.start))
        self.units += len(kept)
        if len(present):
            self.end = self._offset(file, at, int(present[-1])) + 1
        if len(kept) and self.least is None:
            self.least = self._offset(file, at, int(kept[0]))
        inside = self._leads_inside(units)
        self._inside += int(inside.sum())
        for row in kept[~inside[kept]].tolist() if self._log.files.files else []:
            if not self._findings.has_room(file.name, _MISLED):
                break
            self._follow(file, at, units, row)

    def _note_holes(self, file: LogFile, at: int, written: Flags) -> None:
        """Note units that were never written although units behind them were."""
        rows = np.flatnonzero(written)
        if len(rows):
            first = int((~written).argmax()) if not written.all() else len(written)
            hole = self._unwritten or ((file, at + first * UNIT_BYTES) if first < rows[-1] else None)
            if hole is not None:
                end = self._offset(file, at, int(rows[0] if self._unwritten or first < rows[0] else rows[rows > first][0]))
                start = (hole[0].start + hole[1]) // UNIT_BYTES
                what = f"the units of queue offsets {start} to {end - 1} were never written, but later ones were"
                self._findings.add(hole[0].name, hole[1], what, kind="units that were never written")
            self._unwritten = None
        if len(written) and not written[-1] and self._unwritten is None:
            self._unwritten = (file, at + (int(rows[-1]) + 1 if len(rows) else 0) * UNIT_BYTES)

    def _follow(self, file: LogFile, at: int, units: Rows, row: int) -> None:
        """Read the record that a unit leads to, and note it when it is another one."""
        log_offset, size, _ = units[row].item()
        queue_offset = self._offset(file, at, row)
        found = self._log.record_at(log_offset, size)
        if isinstance(found, str):
            wrong = found
        else:
            name = QueueName(found.topic.decode(errors="replace"), found.queue_id)
            if name == self.name and found.queue_offset == queue_offset:
                return
            wrong = f"that is offset {found.queue_offset} of queue {name.queue_id} of topic {name.topic}"
        what = f"the unit of queue offset {queue_offset} leads to log offset {log_offset}: {wrong}"
        self._findings.add(file.name, at + row * UNIT_BYTES, what, kind=_MISLED)

    @staticmethod
    def _offset(file: LogFile, at: int, row: int) -> int:
        return (file.start + at) // UNIT_BYTES + row


class Queues:
    """All consume queues of a store."""

    def __init__(self, root: Path, log: LogReader, findings: Findings) -> None:
        found = _directories(root / "consumequeue")
        self.queues = {name: Queue(name, FileSet(path, root, findings), log, findings) for name, path in found}

    def of(self, name: QueueName) -> Queue | None:
        """Return a queue; None when it has no directory."""
        return self.queues.get(QueueName(consume_queue.directory_name(name.topic), name.queue_id))

    def take(self, name: QueueName, records: Records, rows: Ints) -> None:
        """Compare records of one queue with their units."""
        queue = self.of(name)
        if queue is not None and queue.files.files:
            queue.confirm(records, rows)


def _directories(path: Path) -> Iterator[tuple[QueueName, Path]]:
    for topic in sorted(path.iterdir()) if path.is_dir() else []:
        for queue in sorted(topic.iterdir()) if topic.is_dir() else []:
            if queue.name.isascii() and queue.name.isdigit() and queue.is_dir():
                yield QueueName(topic.name, int(queue.name)), queue
