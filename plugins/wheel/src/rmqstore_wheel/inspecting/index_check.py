"""Index files: what their headers say, and entries that lead nowhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np

from rmqstore_wheel.formats import index_file
from rmqstore_wheel.formats.binary_columns import Rows
from rmqstore_wheel.formats.index_file import ENTRIES_PER_SLOT, ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES, Header
from rmqstore_wheel.inspecting.files import Findings, length_of, read

_NAME = re.compile(r"\d{17}", re.ASCII)
_WINDOW_ENTRIES: Final = 50_000
_ENTRY_OF_SLOT: Final = SLOT_BYTES + ENTRIES_PER_SLOT * ENTRY_BYTES


class IndexReport:
    """One file, as it was when it was listed. ``slots`` is None when the file's length does not tell how many there are."""

    def __init__(self, path: Path, root: Path, header: Header) -> None:
        self.path = path
        self.name = str(path.relative_to(root))
        self.length = length_of(path)
        self.header = header
        slots, rest = divmod(self.length - HEADER_BYTES, _ENTRY_OF_SLOT)
        self.slots = None if rest else slots

    @property
    def entries(self) -> int:
        return max(0, self.header.next_entry - 1)


def find(root: Path, findings: Findings) -> list[IndexReport]:
    """List the index files, and read their headers."""
    directory = root / "index"
    reports = []
    for path in sorted(directory.iterdir()) if directory.is_dir() else []:
        if not _NAME.fullmatch(path.name) or not path.is_file():
            continue
        data = read(path, 0, HEADER_BYTES)
        if len(data) == HEADER_BYTES:
            reports.append(IndexReport(path, root, index_file.header_of(data)))
        else:
            what = f"the file has {len(data)} bytes, less than its header of {HEADER_BYTES}"
            findings.add(str(path.relative_to(root)), len(data), what)
    return reports


def check(reports: list[IndexReport], findings: Findings, log_end: int | None) -> None:
    """Look at the entries that there were; one at ``log_end`` or behind it leads nowhere, unless that is None."""
    for report in reports:
        if report.slots is None:
            what = f"{report.length} bytes are no length of an index file with {ENTRIES_PER_SLOT} entries a slot"
            findings.add(report.name, report.length, what)
        elif report.header.next_entry > report.slots * ENTRIES_PER_SLOT:
            what = f"the header says that the next entry is {report.header.next_entry} of {report.slots * ENTRIES_PER_SLOT}"
            findings.add(report.name, 36, what)
        else:
            base = HEADER_BYTES + report.slots * SLOT_BYTES
            for first in range(1, report.entries + 1, _WINDOW_ENTRIES):
                count = min(_WINDOW_ENTRIES, report.entries + 1 - first)
                entries = index_file.entries_of(read(report.path, base + first * ENTRY_BYTES, count * ENTRY_BYTES))
                _check_entries(report.name, entries, first, base + first * ENTRY_BYTES, findings, log_end)


def _check_entries(name: str, entries: Rows, first: int, at: int, findings: Findings, log_end: int | None) -> None:
    """Look at entries from number ``first`` on, which is at byte ``at``."""
    turned = (entries["previous"] >= first + np.arange(len(entries))) | (entries["previous"] < 0)
    behind = (entries["log_offset"] < 0) | (entries["log_offset"] >= log_end) if log_end is not None else np.zeros(len(entries), bool)

    def what(row: int) -> str:
        if turned[row]:
            return f"entry {first + row} is followed by {entries['previous'][row]}, which is not older: its chain would lead in a circle"
        return f"entry {first + row} leads to log offset {entries['log_offset'][row]}, which is not in the commit log"

    findings.add_rows(name, "entries that lead nowhere", np.flatnonzero(turned | behind), at, ENTRY_BYTES, what)
