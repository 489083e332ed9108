"""The records of RocksDB's logs: write-ahead logs, and MANIFESTs.

A log file is cut into blocks of 32 KiB. A record has a header of 7 bytes (CRC-32C u32, length u16, type u8, little-endian) and never
crosses a block; a longer one is given in parts (first, middle …, last). A whole record of a write-ahead log is a write batch: sequence
number of its first change u64, number of changes u32, changes.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import Final

import msgspec

BLOCK_BYTES: Final = 32 * 1024
HEADER: Final = struct.Struct("<IHB")
_BATCH: Final = struct.Struct("<QI")
FULL, FIRST, LAST = 1, 2, 4
_CASTAGNOLI: Final = 0x82F63B78


class Header(msgspec.Struct, gc=False):
    """The header of a part of a record: its place, its type, the first and last sequence number of a batch that begins there, or 0.

    ``is_end``: the record ends with this part. ``is_sound``: the part may be what the header says, and is all there.
    """

    at: int
    end: int
    kind: int
    first: int
    last: int
    is_end: bool
    is_sound: bool


def headers(data: bytes | mmap.mmap) -> Iterator[Header]:
    """Yield the headers of a log; after one that is not sound it goes on with the next block."""
    at = 0
    while at + HEADER.size <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < HEADER.size:
            at += left
            continue
        _, length, kind = HEADER.unpack_from(data, at)
        first = last = 0
        if kind in (FULL, FIRST):
            begin = at + HEADER.size
            head = data[begin : begin + min(length, left - HEADER.size, _BATCH.size)]
            if kind == FIRST and len(head) < _BATCH.size:
                # The block had room for a header and less than the head of a batch: the rest is behind the header of the next block.
                begin = at + left + HEADER.size
                head += data[begin : begin + _BATCH.size - len(head)]
            if len(head) == _BATCH.size:
                first, count = _BATCH.unpack(head)
                last = first + count - 1
        behind = at + HEADER.size + length
        is_sound = kind != 0 and behind <= min(at + left, len(data))
        yield Header(at, behind, kind, first, last, kind in (FULL, LAST), is_sound)
        at = behind if is_sound else at + left


def is_whole(data: bytes | mmap.mmap, header: Header) -> bool:
    """Whether a part of a record is as it was written; slow."""
    crc = 0xFFFFFFFF
    for byte in data[header.at + HEADER.size - 1 : header.end]:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_CASTAGNOLI if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    # It is kept masked, as it may itself be part of what has a checksum (RocksDB ``crc32c.h``).
    masked = (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF
    return header.is_sound and masked == HEADER.unpack_from(data, header.at)[0]
