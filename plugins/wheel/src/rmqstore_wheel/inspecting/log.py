"""The commit log, read from its first file to its last, some MiB at a time."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.formats import commit_log as log, log_reading, properties as texts
from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.formats.log_columns import Columns
from rmqstore_wheel.formats.log_reading import Stop
from rmqstore_wheel.inspecting.files import FileSet, Findings
from rmqstore_wheel.inspecting.reading import DAMAGED, MOST_BYTES, ChainReader, FileReport
from rmqstore_wheel.records import sums

_WINDOW_BYTES: Final = 8 * 1024**2
_MOST_UNSOUND: Final = 100
"""Records of one file that may be damaged before the rest of it is given up."""


class Records(NamedTuple):
    """Sound records, one behind the other but for what could not be read, of which ``LogReader.gaps`` tells."""

    columns: Columns
    sizes: Ints

    def by_queue(self) -> Iterator[tuple[QueueName, Ints]]:
        for topic, queue, rows in log_reading.by_queue(self.columns.topic, np.asarray(self.columns.queue_id)):
            yield QueueName(topic, queue), rows


class _Found(NamedTuple):
    """As ``log_reading.Scan``; the first ``sound`` records are known to be sound."""

    starts: Ints
    sizes: Ints
    end: int
    stop: Stop
    sound: int


class LogReader(ChainReader[_Found]):
    """Reads a commit log. After ``records`` came to its end, ``reports`` and ``end`` are known; each call reads it again."""

    entry = "record"
    blank_bytes = log.BLANK_BYTES

    def __init__(self, files: FileSet, window_bytes: int = _WINDOW_BYTES) -> None:
        super().__init__(files, max(window_bytes, log.MIN_BYTES))
        self.gaps: list[int] = []
        """Where something is that could not be read as records, rising, as far as the log was read."""

        self.end = files.start
        """Where the next record would go: the end of the last sound record, or of the blank one behind it."""

    def look(self, window: bytes, base: int) -> _Found:
        found = log_reading.scan(window)
        return _Found(*found, log_reading.count_sound(window, found.starts, found.sizes, log_offset=base))

    def is_sound(self, found: _Found) -> bool:
        return found.sound == len(found.starts)

    def records(self, findings: Findings) -> Iterator[Records]:
        """Yield the sound records in their order; what is damaged is noted, and skipped up to the next record or the next file."""
        self.reports = []
        self.gaps = []
        self.end = self.files.start
        for file in self.files.files:
            report = FileReport(file)
            for at, window, found in self.windows(report, findings):
                records = self._sound(window, found, at, report, findings)
                if records is not None:
                    yield records
                if report.unsound > _MOST_UNSOUND:
                    self._give_up(report, at, f"more than {_MOST_UNSOUND} records are not sound", findings)
            self.add_report(report, findings)
            if not report.is_full:
                self.gaps.append(report.end)
            if report.count:
                self.end = report.end

    def _sound(self, window: bytes, found: _Found, at: int, report: FileReport, findings: Findings) -> Records | None:
        """Return the sound records of a window; those that are not are noted."""
        base = report.file.start + at
        starts, sizes, row = found.starts, found.sizes, found.sound
        keep = np.ones(len(starts), bool)
        while row < len(starts) and report.unsound <= _MOST_UNSOUND:
            start = int(starts[row])
            keep[row] = False
            self.gaps.append(base + start)
            what = _reason(window, start, int(sizes[row]), base)
            if row == len(starts) - 1 and found.stop is Stop.EMPTY and report.file == self.files.files[-1]:
                what += "; it is the last of the log, which the next start cuts off"
            findings.add(report.file.name, at + start, what, kind="records that are not sound")
            report.stop(base + start, DAMAGED)
            report.unsound += 1
            row += 1
            row += log_reading.count_sound(window, starts[row:], sizes[row:], log_offset=base)
        keep[row:] = False
        starts, sizes = starts[keep], sizes[keep]
        if not len(starts):
            return None
        report.count += len(starts)
        report.first = base + int(starts[0]) if report.first is None else report.first
        report.last = base + int(starts[-1])
        for row in np.flatnonzero(sums.wrong_rows(np.frombuffer(window, np.uint8), starts, sizes)).tolist():
            what = f"the record at offset {base + int(starts[row])} has other times or properties than its property RMQS_CRC is of"
            findings.add(report.file.name, at + int(starts[row]), what, kind="records that are not sound")
        columns = log_reading.decode_columns(window, starts, sizes, log_offset=base, verify=False)
        return Records(columns, sizes)

    def record_at(self, position: int, size: int) -> log.Record | str:
        """Read the one record that an index says is there; why it is none when it is not."""
        if not log.MIN_BYTES <= size <= MOST_BYTES:
            return f"{size} bytes is no size of a record"
        data = self.files.read(position, size)
        if not data:
            return "no file of the commit log holds that offset"
        try:
            record = log.decode_record(data, log_offset=position)
        except CorruptStoreError as error:
            return str(error)
        stated = int.from_bytes(data[:4])
        return record if stated == size else f"the record there has {stated} bytes, not {size}"


def _reason(window: bytes, start: int, size: int, base: int) -> str:
    try:
        log.decode_record(window[start : start + size], log_offset=base + start)
    except CorruptStoreError as error:
        return str(error)
    return f"no sound record at offset {base + start}"


class QueueName(NamedTuple):
    """A queue of a topic."""

    topic: str
    queue_id: int


class Tally(msgspec.Struct):
    """What the log holds of one queue, counted while the records go by."""

    messages: int = 0
    bytes: int = 0
    first_ms: int = 2**63 - 1
    last_ms: int = -1

    def take(self, records: Records, rows: Ints) -> None:
        stored = np.asarray(records.columns.store_ms)[rows]
        self.messages += len(rows)
        self.bytes += int(records.sizes[rows].sum())
        self.first_ms = min(self.first_ms, int(stored.min()))
        self.last_ms = max(self.last_ms, int(stored.max()))


FRAME: Final = "RMQS_FRAME"


class Frames:
    """Counts frames while the records go by."""

    def __init__(self, log: LogReader, findings: Findings) -> None:
        self.whole = 0
        self.torn = 0
        self.outside = 0
        self.open_records = 0
        self._log = log
        self._findings = findings
        self._last = 0  # offset of the last record that ends a frame

    def take(self, records: Records) -> None:
        column = records.columns.text
        rows = np.flatnonzero(pc.match_substring(column, f"{FRAME}\x01").to_numpy(zero_copy_only=False))
        offsets = np.asarray(records.columns.physical_offset)
        behind = 0
        for row, text in zip(rows.tolist(), column.take(pa.array(rows)).to_pylist(), strict=True):
            value = texts.decode(text).get(FRAME)
            if value is not None:
                self._end(value, self.open_records + row + 1 - behind, int(offsets[row]))
                self.open_records, behind = 0, row + 1
        self.open_records += len(records.columns) - behind

    def _end(self, value: str, since: int, offset: int) -> None:
        """Note a frame whose last record is at ``offset``; ``since`` records were read after the frame before it."""
        all_are_read = bisect(self._log.gaps, self._last) == bisect(self._log.gaps, offset)
        self._last = offset
        try:
            count = int(value.split(" ")[0], 16)
        except ValueError:
            self._torn(offset, f"the property {FRAME} is {value[:40]!r}, which does not begin with a number of records")
            return
        if count < 1 or count > since:
            if all_are_read and (self.whole or self.torn):
                self._torn(offset, f"a call of {count} records ends here, but only {since} are there: the call is torn")
            else:  # its first records were in a file that was reclaimed, or in what could not be read
                self.torn += 1
        else:
            self.whole += 1
            self.outside += since - count

    def _torn(self, offset: int, what: str) -> None:
        self.torn += 1
        file = self._log.files.file_of(offset)
        if file is not None:
            self._findings.add(file.name, offset - file.start, what, kind="calls that are not whole")
