"""An index file as RocketMQ puts into it and looks up in it (``IndexFile``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rmqstore_wheel.formats import index_file
from rmqstore_wheel.formats.index_file import HEADER_BYTES, SLOT_BYTES, Header


class BrokerIndex:
    """One file over a buffer; entries are (hash, offset in the log, store time)."""

    def __init__(self, buffer: bytearray, slots: int, entries: int | None = None) -> None:
        assert len(buffer) == index_file.file_bytes(slots, entries)
        self._buffer = buffer
        self._limit = slots * index_file.ENTRIES_PER_SLOT if entries is None else entries
        self._slots = np.frombuffer(buffer, ">i4", slots, HEADER_BYTES)
        self._entries = np.frombuffer(buffer, index_file.ENTRY, self._limit, HEADER_BYTES + slots * SLOT_BYTES)

    @property
    def header(self) -> Header:
        return index_file.header_of(self._buffer)

    def put(self, rows: Sequence[tuple[int, int, int]]) -> int:
        """Append entries, as many as there is room for; returns how many."""
        header = self.header
        rows = rows[: self._limit - header.next_entry]
        if rows:
            hashes, offsets, times = np.array(rows, np.int64).T
            made = index_file.plan(header, self._slots[hashes % len(self._slots)], len(self._slots), hashes, offsets, times)
            self._entries[header.next_entry : made.header.next_entry] = made.entries
            self._slots[made.places] = made.numbers
            self._buffer[:HEADER_BYTES] = index_file.encode_header(made.header)
        return len(rows)

    def lookup(self, hashed: int) -> list[int]:
        """Return the offsets of entries with a hash, newest first."""
        found = []
        number = int(self._slots[hashed % len(self._slots)])
        while 0 < number < self.header.next_entry:
            entry_hash, offset, _, previous = self._entries[number].item()
            found += [offset] if entry_hash == hashed else []
            assert previous < number
            number = previous
        return found
