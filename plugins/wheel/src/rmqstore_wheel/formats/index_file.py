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
from typing import Final, NamedTuple

import numpy as np

from rmqstore.late import pa
from rmqstore_wheel.formats.binary_columns import Bytes, Ints, Rows
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


def entries_of(data: Bytes) -> Rows:
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

    entries: Rows
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


def file_bytes(slots: int = SLOTS, entries: int | None = None) -> int:
    """Return the length of a file."""
    return HEADER_BYTES + slots * SLOT_BYTES + (slots * ENTRIES_PER_SLOT if entries is None else entries) * ENTRY_BYTES
