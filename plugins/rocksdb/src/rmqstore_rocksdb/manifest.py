"""What a MANIFEST says of sequence numbers: RocksDB tells the same only of a database that is open.

A MANIFEST is written as a log is (``wal``). A record of it is a version edit: tags, varint32, each with what it says. An edit begins with
what is short (``VersionEdit::EncodeTo``); behind the last sequence number come the table files, which nobody here asks for.

The number that RocksDB notes with an edit is no less than that of any write in the tables which are listed by then
(``VersionEdit::AddFile``; in some versions it is that of the last write of all). A log goes when tables have what was in it, and a table
has the last write of a log, since this engine makes none that a flush leaves out (a flush keeps deletions; it drops pairs of a write and
its *single* deletion). So the first log that is there begins no later than right behind that number, or one that is needed is missing.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from rmqstore_rocksdb.log_format import FIRST, FULL, HEADER, headers

_NAME: Final = re.compile(r"MANIFEST-\d+")

_LAST_SEQUENCE: Final = 4
_NUMBERS: Final = frozenset((2, 3, 9, 10, 203))
"""Tags before it with a number each: log, next file, log before, first log to keep, last column family."""

_COMPARATOR: Final = 1
_IGNORABLE: Final = 1 << 13
"""Tags with this bit, the identity of the database for one, are followed by their length, as the comparator is."""

_SHORT_BYTES: Final = 256
"""The begin of an edit is never so long."""


def last_sequence(directory: Path) -> int | None:
    """Return the last sequence number that version edits say; None when none says one, or there is no MANIFEST."""
    try:
        name = (directory / "CURRENT").read_text(encoding="ascii", errors="replace").strip()
        data = (directory / name).read_bytes() if _NAME.fullmatch(name) else b""
    except FileNotFoundError:
        return None
    found: list[int] = []
    edit = b""
    for header in headers(data):
        if not header.is_sound:
            break
        if header.kind in (FULL, FIRST):
            edit = b""
        if len(edit) < _SHORT_BYTES:
            edit += data[header.at + HEADER.size : header.end]
        if (number := _said_by(edit)) is not None:
            found.append(number)
    return max(found, default=None)


def _said_by(edit: bytes) -> int | None:
    """Return the last sequence number that an edit says; None when it does not, or not in the part of it that is there."""
    at = 0
    try:
        while at < len(edit):
            tag, at = _varint(edit, at)
            number, behind = _varint(edit, at)
            if tag == _LAST_SEQUENCE:
                return number
            if tag == _COMPARATOR or tag & _IGNORABLE:
                at = behind + number
            elif tag in _NUMBERS:
                at = behind
            else:
                break
    except IndexError:
        pass
    return None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of 7 bits a byte, the lowest first, and where it ends."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
