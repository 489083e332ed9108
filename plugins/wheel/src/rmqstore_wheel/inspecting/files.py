"""Chains of equally long files, listed and read without changing anything.

All reading is by ``pread``: a file that its owner cuts or removes meanwhile gives fewer bytes, where a memory map would end the process.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from rmqstore.contract import Damage
from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.formats.commit_log import start_offset

_WINDOW_BYTES: Final = 4 * 1024**2


def read(path: Path, at: int, length: int) -> bytes:
    """Return up to ``length`` bytes of a file from ``at`` on: fewer at its end, none when it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(descriptor, length, at)
    finally:
        os.close(descriptor)


def length_of(path: Path) -> int:
    """Return the bytes of a file; 0 when it is gone."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def first_written(path: Path, at: int, end: int) -> int | None:
    """Return the first byte from ``at`` on that is not zero; holes of the file are passed over unread."""
    with suppress(OSError), open(path, "rb", buffering=0) as file:
        while at < end:
            at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            if at >= end:
                return None
            window = np.frombuffer(os.pread(file.fileno(), min(_WINDOW_BYTES, end - at), at), np.uint8)
            if not len(window):
                return None
            written = np.flatnonzero(window)
            if len(written):
                return at + int(written[0])
            at += len(window)
    return None


class LogFile(NamedTuple):
    """One file of a set. ``name`` is relative to the directory that is looked at; ``start`` is where byte 0 is in the whole set."""

    path: Path
    name: str
    start: int
    length: int


class FileSet:
    """The files of one chain as they were when this was made, by their starts.

    ``file_bytes`` is what a file has when it is whole: the least distance of two names, or the length of the only file.
    """

    def __init__(self, directory: Path, root: Path, findings: Findings) -> None:
        self.directory = directory
        self.name = str(directory.relative_to(root))
        self.files: list[LogFile] = []
        self.strangers: list[str] = []
        for path in sorted(directory.iterdir()) if directory.is_dir() else []:
            try:
                start = start_offset(path.name)
            except CorruptStoreError:
                self.strangers.append(path.name)
                continue
            if path.is_file():  # its owner may have removed it meanwhile
                self.files.append(LogFile(path, str(path.relative_to(root)), start, length_of(path)))
        self._starts = [file.start for file in self.files]
        self.file_bytes = self._file_bytes()
        self._check_lengths(findings)

    def _file_bytes(self) -> int:
        longest = max((file.length for file in self.files), default=0)
        distances = [later.start - earlier.start for earlier, later in zip(self.files, self.files[1:], strict=False)]
        nearest = min(distances, default=longest)
        # Files are all of one length, so two that are several lengths apart have a missing one between them.
        return longest if longest and nearest % longest == 0 else nearest

    def _check_lengths(self, findings: Findings) -> None:
        expected = self.start
        for place, file in enumerate(self.files):
            if file.start != expected:
                findings.add(file.name, None, f"bytes {expected} to {file.start - 1} are in no file: a file before this one is missing")
            is_last = place == len(self.files) - 1
            if file.length > self.file_bytes or (file.length < self.file_bytes and not is_last):
                findings.add(file.name, file.length, f"the file has {file.length} bytes where {self.file_bytes} are expected")
            expected = file.start + self.file_bytes

    @property
    def start(self) -> int:
        return self.files[0].start if self.files else 0

    @property
    def end(self) -> int:
        return self.files[-1].start + self.files[-1].length if self.files else 0

    def file_of(self, position: int) -> LogFile | None:
        place = bisect_right(self._starts, position) - 1
        if place < 0 or position >= self.files[place].start + self.files[place].length:
            return None
        return self.files[place]

    def read(self, position: int, length: int) -> bytes:
        """Return up to ``length`` bytes from a position on, of one file: fewer at its end, none where there is no file."""
        file = self.file_of(position)
        return b"" if file is None else read(file.path, position - file.start, length)


MOST_OF_A_KIND: Final = 10
"""Places of one kind of damage that are told of one file; the others are counted."""


class Findings:
    """Damage in the order in which it was found."""

    def __init__(self) -> None:
        self._told: list[Damage] = []
        self._number: Counter[tuple[str, str]] = Counter()

    def add(self, file: str, offset: int | None, what: str, *, kind: str = "") -> None:
        """Note damage in ``file``. ``kind`` is what many places may have in common, of which the first are told."""
        if kind:
            self._number[file, kind] += 1
            if self._number[file, kind] > MOST_OF_A_KIND:
                return
        self._told.append(Damage(file, offset, what))

    def add_rows(self, file: str, kind: str, rows: Ints, base: int, row_bytes: int, what: Callable[[int], str]) -> None:
        """Note rows with the same fault, of which row 0 is at byte ``base``; ``what`` is asked of those that are told."""
        room = max(0, MOST_OF_A_KIND - self._number[file, kind])
        for row in rows[:room].tolist():
            self.add(file, base + row * row_bytes, what(row), kind=kind)
        self._number[file, kind] += len(rows[room:])

    def has_room(self, file: str, kind: str) -> bool:
        """Say whether one more place of this kind would be told."""
        return self._number[file, kind] < MOST_OF_A_KIND

    def all(self) -> tuple[Damage, ...]:
        """Return all of it, and for each kind that is not told in full how many more there are."""
        told = Counter({key: min(number, MOST_OF_A_KIND) for key, number in self._number.items()})
        more = [
            Damage(file, None, f"{number - told[file, kind]} more: {kind}")
            for (file, kind), number in self._number.items()
            if number > told[file, kind]
        ]
        return (*self._told, *more)
