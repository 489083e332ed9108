"""Index files: from a key of a message to its place in the commit log (``IndexFile``, ``IndexHeader``, ``IndexService``).

A hash table over ``topic#key``; ``UNIQ_KEY`` is indexed as one of the keys. RocketMQ has 5 000 000 slots and four times as many entries::

    0    i64  store time of the first entry, ms       8    i64  of the last entry
    16   i64  commit-log offset of the first entry    24   i64  of the last entry
    32   i32  slots in use                            36   i32  number of the next entry, from 1
    40   i32 × slots   number of the newest entry of the slot, 0 = none
    +    20 bytes × entries; entry 0 is never used

    0    i32  hash of the key: |Java hash|, 0 for -2**31; its slot is hash mod slots
    4    i64  commit-log offset
    12   i32  seconds from the file's first store time to this one, at least 0
    16   i32  number of the entry before in the same slot, 0 = none

Files are named by the time they were made, ``yyyyMMddHHmmssSSS``. Different keys share a hash, so what a lookup finds must be compared.
"""

from __future__ import annotations

import datetime as dt
import struct
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.formats.binary_columns import Bytes, Ints
from rmqstore_wheel.formats.java_hash import java_hash, java_hashes

HEADER_BYTES: Final = 40
SLOT_BYTES: Final = 4
ENTRY_BYTES: Final = 20
SLOTS: Final = 5_000_000
ENTRIES_PER_SLOT: Final = 4
KEY_SEPARATOR: Final = "#"

_HEADER = struct.Struct(">qqqqii")
ENTRY: Final = np.dtype([("hash", ">i4"), ("log_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_MAX_SECONDS: Final = 2**31 - 1


class Header(NamedTuple):
    """The header. ``next_entry`` is 1 in an empty file."""

    first_ms: int = 0
    last_ms: int = 0
    first_offset: int = 0
    last_offset: int = 0
    used_slots: int = 0
    next_entry: int = 1


def encode_header(header: Header) -> bytes:
    """Return the bytes of a header."""
    return _HEADER.pack(*header)


def header_of(data: Bytes) -> Header:
    """Return the header at the start of a file; one of zeros is that of an empty file."""
    header = Header(*_HEADER.unpack_from(data))
    return header if header.next_entry > 0 else header._replace(next_entry=1)


def entries_of(data: Bytes) -> np.ndarray[Any, np.dtype[np.void]]:
    """Return the whole entries of a buffer that begins with one: fields ``hash``, ``log_offset``, ``seconds``, ``previous``."""
    return np.frombuffer(data, ENTRY, len(memoryview(data)) // ENTRY_BYTES)


def index_key(topic: str, key: str) -> str:
    """Return what is hashed for a key of a message."""
    return f"{topic}{KEY_SEPARATOR}{key}"


def key_hash(text: str) -> int:
    """Return the hash of one ``topic#key``, 0 to 2**31 - 1."""
    value = abs(java_hash(text))
    return value if value < 2**31 else 0


def key_hashes(texts: pa.Array) -> Ints:
    """Return the hash of every ``topic#key`` of a column."""
    values = np.abs(java_hashes(texts).astype(np.int64))
    return np.where(values < 2**31, values, 0)


def file_name(made_ms: int) -> str:
    """Return the name of a file that is made at this time, in UTC (RocketMQ: in the broker's time zone)."""
    made = dt.datetime.fromtimestamp(made_ms // 1000, dt.UTC)
    return f"{made:%Y%m%d%H%M%S}{made_ms % 1000:03d}"


class Plan(NamedTuple):
    """What entries change: themselves, the slots ``places`` that get the ``numbers`` of new entries, and the header."""

    entries: np.ndarray[Any, np.dtype[np.void]]
    places: Ints
    numbers: Ints
    header: Header


def plan(header: Header, heads: Ints, slots: int, hashes: Ints, log_offsets: Ints, store_ms: Ints) -> Plan:
    """Return what it takes to append entries in their order; there is one at least.

    Args:
        header: as it is now.
        heads: the number that the slot of each entry has now; one that there is no entry of counts as none.
    """
    count = len(hashes)
    numbers = header.next_entry + np.arange(count)
    places = hashes % slots
    order = np.argsort(places, kind="stable")
    sorted_places, sorted_numbers = places[order], numbers[order]
    starts_group = np.append(True, sorted_places[1:] != sorted_places[:-1])
    ends_group = np.append(starts_group[1:], True)
    heads = heads[order][starts_group].astype(np.int64)
    heads[(heads < 0) | (heads >= header.next_entry)] = 0
    previous = np.empty(count, np.int64)
    chained = np.append(0, sorted_numbers[:-1])
    chained[starts_group] = heads
    previous[order] = chained
    first = header.next_entry <= 1
    # As in RocketMQ, the first entry counts from the time that the header held before, its followers from the first entry.
    base = np.full(count, store_ms[0] if first else header.first_ms, np.int64)
    base[0] = header.first_ms
    rows = np.empty(count, ENTRY)
    rows["seconds"] = np.where(base > 0, np.clip((store_ms - base) // 1000, 0, _MAX_SECONDS), 0)
    rows["hash"], rows["log_offset"], rows["previous"] = hashes, log_offsets, previous
    changed = header._replace(
        first_ms=int(store_ms[0]) if first else header.first_ms,
        first_offset=int(log_offsets[0]) if first else header.first_offset,
        last_ms=int(store_ms[-1]),
        last_offset=int(log_offsets[-1]),
        used_slots=header.used_slots + int((heads == 0).sum()),
        next_entry=header.next_entry + count,
    )
    return Plan(rows, sorted_places[ends_group], sorted_numbers[ends_group], changed)


class IndexFile:
    """One file, over a buffer that may be written to (an mmap or a bytearray); nothing is kept beside it.

    Raises:
        CorruptStoreError: the buffer has the wrong length for these numbers, or its header makes no sense.
    """

    def __init__(self, buffer: Bytes | Any, slots: int = SLOTS, entries: int | None = None) -> None:
        self._limit = slots * ENTRIES_PER_SLOT if entries is None else entries
        self._buffer = memoryview(buffer).cast("B")
        expected = file_bytes(slots, self._limit)
        if len(self._buffer) != expected:
            raise CorruptStoreError(
                f"the index file has {len(self._buffer)} bytes; {slots} slots and {self._limit} entries take {expected}",
                offset=len(self._buffer),
            )
        self._slots = np.frombuffer(self._buffer, ">i4", slots, HEADER_BYTES)
        self._entries = np.frombuffer(self._buffer, ENTRY, self._limit, HEADER_BYTES + slots * SLOT_BYTES)
        if self.header.next_entry > self._limit:
            raise CorruptStoreError(f"the index file says that it has {self.header.next_entry} of {self._limit} entries", offset=36)

    @property
    def header(self) -> Header:
        """The header as it stands in the buffer; a file of zeros is an empty one."""
        return header_of(self._buffer)

    @property
    def room(self) -> int:
        """How many entries can still be put."""
        return self._limit - self.header.next_entry

    def put(self, hashes: Ints, log_offsets: Ints, store_ms: Ints) -> int:
        """Append entries in their order, as many as there is room for; returns how many."""
        header = self.header
        count = min(len(hashes), self.room)
        if not count:
            return 0
        heads = self._slots[hashes[:count] % len(self._slots)]
        made = plan(header, heads, len(self._slots), hashes[:count], log_offsets[:count], store_ms[:count])
        self._entries[header.next_entry : made.header.next_entry] = made.entries
        self._slots[made.places] = made.numbers
        self._write_header(made.header)
        return count

    def continue_from(self, log_offset: int, store_ms: int) -> None:
        """Write into the header of an empty file where the file before it ended, as RocketMQ does."""
        self._write_header(Header(store_ms, store_ms, log_offset, log_offset))

    def _write_header(self, header: Header) -> None:
        _HEADER.pack_into(self._buffer, 0, *header)

    def may_hold(self, from_ms: int, to_ms: int) -> bool:
        """Say whether entries of this span of time may be here, unless the clock was set back meanwhile (``isTimeMatched``)."""
        header = self.header
        return header.next_entry > 1 and from_ms <= header.last_ms and to_ms >= header.first_ms

    def lookup(self, hashed: int, limit: int, from_ms: int = 0, to_ms: int = 2**63 - 1) -> list[int]:
        """Return commit-log offsets of entries with this hash and a store time in the span, newest first, at most ``limit``.

        What is outside of the span by what an entry cannot tell is among them: entries hold whole seconds, and 0 also for a time before
        the file's first. Unlike RocketMQ's, the search does not end at the first entry before the span: the clock may have been set back.

        Raises:
            CorruptStoreError: the chain of the slot does not lead to older and older entries.
        """
        header = self.header
        found: list[int] = []
        number = int(self._slots[hashed % len(self._slots)])
        if number >= header.next_entry:  # a slot that was written ahead of the header, before a crash
            number = 0
        while number > 0 and len(found) < limit:
            entry_hash, log_offset, seconds, previous = self._entries[number].item()
            stored_ms = header.first_ms + seconds * 1000
            in_time = (from_ms <= stored_ms + 999 or seconds == _MAX_SECONDS) and (stored_ms <= to_ms or seconds == 0)
            if entry_hash == hashed and in_time:
                found.append(log_offset)
            if previous >= number:
                at = HEADER_BYTES + len(self._slots) * SLOT_BYTES + number * ENTRY_BYTES
                raise CorruptStoreError(f"index entry {number} is followed by {previous}, which is not older", offset=at)
            number = previous
        return found


def file_bytes(slots: int = SLOTS, entries: int | None = None) -> int:
    """Return the length of a file."""
    return HEADER_BYTES + slots * SLOT_BYTES + (slots * ENTRIES_PER_SLOT if entries is None else entries) * ENTRY_BYTES
