"""Files of a chain whose entries, records or units, follow one another from its first byte on, read some MiB at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Final, Generic, Protocol, TypeVar

from rmqstore_wheel.formats.log_reading import Stop
from rmqstore_wheel.inspecting.files import FileSet, Findings, LogFile, first_written, read

MOST_BYTES: Final = 128 * 1024**2
"""An entry that says it is longer is taken for damage; RocketMQ's limit is 4 MiB by default, and a setting."""

UNWRITTEN: Final = "nothing was written so far"
DAMAGED: Final = "damage"
EMPTY_FILE: Final = "the file is empty"


class FileReport:
    """What one file holds. Its valid range ends at ``valid_end``, for the reason ``why``; what is read behind damage ends at ``end``.

    Of the log: the offsets of its first and its last sound record, and how many are not sound. Of the timer log: units that are to be
    rolled, cancels, and of those that wait the one that leads furthest into the commit log, where to, and its byte in the file.
    """

    def __init__(self, file: LogFile) -> None:
        self.file = file
        self.count = 0
        self.end = file.start
        self.valid_end = file.start
        self.why = ""
        self.is_full = False
        self.is_given_up = False
        self.first: int | None = None
        self.last: int | None = None
        self.unsound = 0
        self.rolled = 0
        self.cancels = 0
        self.furthest = (-1, 0)

    def stop(self, position: int, why: str) -> None:
        """End the valid range, unless it ended before."""
        if not self.why:
            self.valid_end, self.why = position, why


class Entries(Protocol):
    """Entries at the start of some bytes: up to byte ``end``, and why no further."""

    @property
    def end(self) -> int: ...

    @property
    def stop(self) -> Stop: ...


Found = TypeVar("Found", bound=Entries)


class ChainReader(ABC, Generic[Found]):
    """Reads a chain file by file; ``reports`` are those of the files that were read."""

    entry: ClassVar[str]
    blank_bytes: ClassVar[int]

    def __init__(self, files: FileSet, window_bytes: int) -> None:
        self.files = files
        self._window_bytes = window_bytes
        self.reports: list[FileReport] = []

    @abstractmethod
    def look(self, window: bytes, base: int) -> Found:
        """Find the entries of a window that starts at position ``base``."""

    def is_sound(self, found: Found) -> bool:
        """Say whether all of them are sound, as far as :meth:`look` does not say it."""
        return True

    def windows(self, report: FileReport, findings: Findings) -> Iterator[tuple[int, bytes, Found]]:
        """Yield (byte of the file, bytes from there on, what is in them), and note why the entries of the file end."""
        file = report.file
        at, length = 0, self._window_bytes
        while at < file.length:
            window, found = self._settled(file, at, min(length, file.length - at))
            yield at, window, found
            if report.is_given_up:
                return
            is_last = at + len(window) >= file.length or len(window) < length
            at += found.end
            report.end = file.start + at
            rest = window[found.end :]
            length = self._window_bytes
            if not is_last and (found.stop is Stop.TORN or len(rest) < self.blank_bytes):
                if len(rest) >= self.blank_bytes:
                    length = max(length, int.from_bytes(rest[:4], signed=True))
                if length > MOST_BYTES:
                    self._give_up(report, at, f"a {self.entry} says that it has {length} bytes", findings)
                    return
            elif found.stop is not Stop.EMPTY or not self._was_written_meanwhile(report, at, findings):
                self._stopped(found.stop, rest, at, report, findings)
                return
        report.stop(report.end, f"the file ends with a {self.entry}" if report.count else EMPTY_FILE)
        report.is_full = bool(report.count)

    def _settled(self, file: LogFile, at: int, length: int) -> tuple[bytes, Found]:
        """Read a window; once more when a writer was about to change what looks wrong."""
        window = read(file.path, at, length)
        found = self.look(window, file.start + at)
        if not self.is_sound(found) or found.stop in (Stop.TORN, Stop.DAMAGE):
            again = read(file.path, at, length)
            if again != window:
                return again, self.look(again, file.start + at)
        return window, found

    def _was_written_meanwhile(self, report: FileReport, at: int, findings: Findings) -> bool:
        """Say whether a writer went on at byte ``at``, where zeros were read; bytes behind zeros that stay are damage."""
        file = report.file
        written_at = first_written(file.path, at, file.length)
        if written_at is None:
            return False
        if any(read(file.path, at, self.blank_bytes)):
            return True
        what = f"zeros where a {self.entry} is expected, but bytes are written behind them, from byte {written_at} on"
        findings.add(file.name, at, what)
        report.stop(file.start + at, DAMAGED)
        return False

    def _stopped(self, stop: Stop, rest: bytes, at: int, report: FileReport, findings: Findings) -> None:
        """Note why the entries of a file end at byte ``at`` of it, where ``rest`` was read."""
        file = report.file
        if stop is Stop.BLANK:
            left = int.from_bytes(rest[:4])
            if at + left == file.length:
                report.end = file.start + file.length
                report.stop(report.end, f"a blank {self.entry} fills the file")
                report.is_full = True
            else:
                what = f"a blank {self.entry} says that {left} bytes are left in the file, where {file.length - at} are"
                self._give_up(report, at, what, findings)
        elif stop is Stop.END:
            report.stop(report.end, f"the file ends with a {self.entry}")
            report.is_full = True
        elif stop is Stop.EMPTY:
            report.stop(report.end, UNWRITTEN)
        elif stop is Stop.TORN:
            self._give_up(report, at, f"a {self.entry} does not end within the file", findings)
        else:
            self._give_up(report, at, f"neither a {self.entry} nor a blank one: it begins with 0x{rest[:8].hex()}", findings)

    def _give_up(self, report: FileReport, at: int, what: str, findings: Findings) -> None:
        report.stop(report.file.start + at, DAMAGED)
        report.is_given_up = True
        findings.add(report.file.name, at, f"{what}; what follows in this file is not read")

    def add_report(self, report: FileReport, findings: Findings) -> None:
        """Keep the report of a file that was read; the one before must not have ended early when there is something in this one."""
        before = self.reports[-1] if self.reports else None
        if report.count and before is not None and not before.is_full and before.why in (UNWRITTEN, EMPTY_FILE):
            what = f"nothing is written from here on, but file {report.file.path.name} holds {self.entry}s behind it"
            findings.add(before.file.name, before.end - before.file.start, what)
        self.reports.append(report)
