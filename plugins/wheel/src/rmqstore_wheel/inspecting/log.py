"""The commit log, read from its first file to its last, some MiB at a time."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.formats import commit_log as log
from rmqstore_wheel.formats import log_reading
from rmqstore_wheel.formats import properties as texts
from rmqstore_wheel.formats.binary_columns import Ints, cells
from rmqstore_wheel.formats.log_columns import Columns
from rmqstore_wheel.formats.log_reading import Scan, Stop
from rmqstore_wheel.inspecting.files import FileSet, Findings, LogFile, first_written, read
from rmqstore_wheel.records import sums

WINDOW_BYTES: Final = 8 * 1024**2
_MOST_RECORD_BYTES: Final = 128 * 1024**2
"""A record that says it is longer is taken for damage; RocketMQ's limit is 4 MiB by default, and a setting."""

_MOST_UNSOUND: Final = 100
"""Records of one file that may be damaged before the rest of it is given up."""

UNWRITTEN: Final = "nothing was written so far"
ENDS_WITH_RECORD: Final = "the file ends with a record"
DAMAGED: Final = "damage"
EMPTY_FILE: Final = "the file is empty"

_SIZE = struct.Struct(">i")


class Records(NamedTuple):
    """Sound records that are one behind the other, but for damaged ones between them, whose places are ``damaged``."""

    columns: Columns
    sizes: Ints
    version_2: int
    damaged: tuple[int, ...]
    follows_gap: bool
    """Whether something before the first record could not be read as records."""

    @property
    def texts(self) -> pa.Array:
        """The properties of the records, as a binary column."""
        return self.columns.properties[0]

    def by_queue(self) -> Iterator[tuple[QueueName, Ints]]:
        """Yield the rows of each queue, in the order of the log."""
        for topic, queue, rows in log_reading.by_queue(self.columns):
            yield QueueName(topic, queue), rows


class FileReport:
    """What one file holds. Its valid range ends at ``valid_end``, for the reason ``why``; what is read behind damage ends at ``end``."""

    def __init__(self, file: LogFile) -> None:
        self.file = file
        self.records = 0
        self.first: int | None = None
        self.last: int | None = None
        self.end = file.start
        self.valid_end = file.start
        self.why = ""
        self.is_full = False
        self.unsound = 0

    def stop(self, position: int, why: str) -> None:
        """End the valid range, unless it ended before."""
        if not self.why:
            self.valid_end, self.why = position, why


class LogReader:
    """Reads a commit log. After ``records`` came to its end, ``reports`` and ``end`` are known; each call reads it again."""

    def __init__(self, files: FileSet, window_bytes: int = WINDOW_BYTES) -> None:
        self.files = files
        self._window_bytes = max(window_bytes, log.MIN_BYTES)
        self.reports: list[FileReport] = []
        self.end = files.start
        """Where the next record would go: the end of the last sound record, or of the blank one behind it."""

    def records(self, findings: Findings) -> Iterator[Records]:
        """Yield the sound records in their order; what is damaged is noted, and skipped up to the next record or the next file."""
        self.reports = []
        self.end = self.files.start
        follows_gap = False
        for file in self.files.files:
            report = FileReport(file)
            for records in self._of_file(file, report, findings):
                yield records._replace(follows_gap=follows_gap)
                follows_gap = False
            before = self.reports[-1] if self.reports else None
            if report.records and before is not None and not before.is_full and before.why in (UNWRITTEN, EMPTY_FILE):
                what = f"nothing is written from here on, but file {file.path.name} holds records behind it"
                findings.add(before.file.name, before.end - before.file.start, what)
            self.reports.append(report)
            follows_gap = follows_gap or not report.is_full
            if report.records:
                self.end = report.end

    def _of_file(self, file: LogFile, report: FileReport, findings: Findings) -> Iterator[Records]:
        at, length = 0, self._window_bytes
        while at < file.length:
            window, found, sound = _read_settled(file, at, min(length, file.length - at))
            yield from self._sound(window, found, sound, at, report, findings)
            if report.unsound > _MOST_UNSOUND:
                findings.add(file.name, at, f"more than {_MOST_UNSOUND} records are not sound; what follows in this file is not read")
                return
            is_last_window = at + len(window) >= file.length or len(window) < length
            at += found.end
            report.end = file.start + at
            rest = window[found.end :]
            length = self._window_bytes
            if not is_last_window and (found.stop is Stop.TORN or len(rest) < log.BLANK_BYTES):
                length = max(length, _SIZE.unpack_from(rest)[0]) if len(rest) >= log.BLANK_BYTES else length
                if length > _MOST_RECORD_BYTES:
                    _note(report, at, f"a record says that it has {length} bytes", findings)
                    return
            elif found.stop is not Stop.EMPTY or not _was_written_meanwhile(report, at, findings):
                _stopped(found.stop, rest, at, report, findings)
                return
        report.stop(report.end, ENDS_WITH_RECORD if report.records else EMPTY_FILE)
        report.is_full = bool(report.records)

    def _sound(self, window: bytes, found: Scan, row: int, at: int, report: FileReport, findings: Findings) -> Iterator[Records]:
        """Yield the sound records of a scan, of which the first ``row`` are known to be; those that are not are noted."""
        base = report.file.start + at
        starts, sizes = found.starts, found.sizes
        damaged: list[int] = []
        keep = np.ones(len(starts), bool)
        while row < len(starts) and report.unsound <= _MOST_UNSOUND:
            start = int(starts[row])
            keep[row] = False
            damaged.append(base + start)
            what = _reason(window, start, int(sizes[row]), base)
            if row == len(starts) - 1 and found.stop is Stop.EMPTY and report.file == self.files.files[-1]:
                what += "; it is the last of the log, which the next start cuts off"
            findings.add(report.file.name, at + start, what, kind="records that are not sound")
            report.stop(base + start, DAMAGED)
            report.unsound += 1
            row += 1
            row += log_reading.count_sound(window, Scan(starts[row:], sizes[row:], found.end, found.stop), log_offset=base)
        keep[row:] = False
        starts, sizes = starts[keep], sizes[keep]
        if not len(starts):
            return
        report.records += len(starts)
        report.first = base + int(starts[0]) if report.first is None else report.first
        report.last = base + int(starts[-1])
        magics = cells(np.frombuffer(window, np.uint8), ">i4")[starts + 4]
        for row in np.flatnonzero(sums.wrong_rows(np.frombuffer(window, np.uint8), starts, sizes)).tolist():
            what = f"the record at offset {base + int(starts[row])} has other times or properties than its property RMQS_CRC is of"
            findings.add(report.file.name, at + int(starts[row]), what, kind="records that are not sound")
        columns = log_reading.decode_columns(window, starts, sizes, log_offset=base, verify=False)
        yield Records(columns, sizes, int((magics == log.MAGIC_V2).sum()), tuple(damaged), follows_gap=False)

    def record_at(self, position: int, size: int) -> log.Record | str:
        """Read the one record that an index says is there; why it is none when it is not."""
        if not log.MIN_BYTES <= size <= _MOST_RECORD_BYTES:
            return f"{size} bytes is no size of a record"
        data = self.files.read(position, size)
        if not data:
            return "no file of the commit log holds that offset"
        try:
            record = log.decode_record(data, log_offset=position)
        except CorruptStoreError as error:
            return str(error)
        stated = _SIZE.unpack_from(data)[0]
        return record if stated == size else f"the record there has {stated} bytes, not {size}"


def _read_settled(file: LogFile, at: int, length: int) -> tuple[bytes, Scan, int]:
    """Read and scan a window, and count its first sound records; once more when a writer was about to change what looks wrong."""
    base = file.start + at
    window = read(file.path, at, length)
    found = log_reading.scan(window)
    sound = log_reading.count_sound(window, found, log_offset=base)
    if sound < len(found.starts) or found.stop in (Stop.TORN, Stop.DAMAGE):
        again = read(file.path, at, length)
        if again != window:
            found = log_reading.scan(again)
            return again, found, log_reading.count_sound(again, found, log_offset=base)
    return window, found, sound


def _was_written_meanwhile(report: FileReport, at: int, findings: Findings) -> bool:
    """Say whether a writer went on at byte ``at``, where zeros were read; bytes behind zeros that stay are damage."""
    file = report.file
    written_at = first_written(file.path, at, file.length)
    if written_at is None:
        return False
    if any(read(file.path, at, log.BLANK_BYTES)):
        return True
    findings.add(file.name, at, f"zeros where a record is expected, but bytes are written behind them, from byte {written_at} on")
    report.stop(file.start + at, DAMAGED)
    return False


def _stopped(stop: Stop, rest: bytes, at: int, report: FileReport, findings: Findings) -> None:
    """Note why the records of a file end at byte ``at`` of it, where ``rest`` was read."""
    file = report.file
    if stop is Stop.BLANK:
        left = _SIZE.unpack_from(rest)[0]
        if at + left == file.length:
            report.end = file.start + file.length
            report.stop(report.end, "a blank record fills the file")
            report.is_full = True
        else:
            _note(report, at, f"a blank record says that {left} bytes are left in the file, where {file.length - at} are", findings)
    elif stop is Stop.END:
        report.stop(report.end, ENDS_WITH_RECORD)
        report.is_full = True
    elif stop is Stop.EMPTY:
        report.stop(report.end, UNWRITTEN)
    elif stop is Stop.TORN:
        _note(report, at, "a record does not end within the file", findings)
    else:
        _note(report, at, f"neither a message nor a blank record: its magic is 0x{rest[4:8].hex()}", findings)


def _note(report: FileReport, at: int, what: str, findings: Findings) -> None:
    report.stop(report.file.start + at, DAMAGED)
    findings.add(report.file.name, at, f"{what}; what follows in this file is not read")


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


class Tally:
    """What the log holds of one queue."""

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.first_ms = 2**63 - 1
        self.last_ms = -1


class Topics:
    """Counts messages while the records go by."""

    def __init__(self) -> None:
        self.tallies: dict[QueueName, Tally] = {}

    def take(self, name: QueueName, records: Records, rows: Ints) -> None:
        """Count records of one queue."""
        tally = self.tallies.setdefault(name, Tally())
        stored = np.asarray(records.columns.store_ms)[rows]
        tally.messages += len(rows)
        tally.bytes += int(records.sizes[rows].sum())
        tally.first_ms = min(tally.first_ms, int(stored.min()))
        tally.last_ms = max(tally.last_ms, int(stored.max()))


FRAME: Final = "RMQS_FRAME"


class Frames:
    """Counts frames while the records go by."""

    def __init__(self, files: FileSet, findings: Findings) -> None:
        self.whole = 0
        self.torn = 0
        self.outside = 0
        self.open_records = 0
        self._files = files
        self._findings = findings
        self._is_known = True  # whether every record since the last frame was seen

    def take(self, records: Records) -> None:
        """Look at the next records."""
        if records.follows_gap or records.damaged:
            self._is_known = False
        column: pa.Array = records.texts
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
        try:
            count = int(value.split(" ")[0], 16)
        except ValueError:
            self._torn(offset, f"the property {FRAME} is {value[:40]!r}, which does not begin with a number of records")
            return
        if count < 1 or count > since:
            if self._is_known and (self.whole or self.torn):
                self._torn(offset, f"a call of {count} records ends here, but only {since} are there: the call is torn")
            else:  # its first records were in a file that was reclaimed, or in what could not be read
                self.torn += 1
        else:
            self.whole += 1
            self.outside += since - count
        self._is_known = True

    def _torn(self, offset: int, what: str) -> None:
        self.torn += 1
        file = self._files.file_of(offset)
        if file is not None:
            self._findings.add(file.name, offset - file.start, what, kind="calls that are not whole")
