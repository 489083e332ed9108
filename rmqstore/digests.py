"""Digests of tables that do not depend on the order of rows, nor on the engine that gave them.

A row's canonical bytes are its columns in the order of the schema: a byte that says whether it is null, then 8 bytes of a number, or the
number of bytes (u32) and the bytes of a text, or the number of entries (u32) and the entries of a list or map; all little-endian. The
digest of a table is the number of its rows and the sum modulo 2**128 of BLAKE2b-128 of each row. So the digest of two sets of rows
together is the sum of both: what a store holds after a load is what it held before plus what was loaded.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_MODULUS = 2**128
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")


class TableDigest(msgspec.Struct, frozen=True):
    """How many rows, and the sum of their digests; adds up."""

    rows: int = 0
    total: int = 0

    def __add__(self, other: TableDigest) -> TableDigest:
        return TableDigest(self.rows + other.rows, (self.total + other.total) % _MODULUS)

    def text(self) -> str:
        """Return ``rows:hex``."""
        return f"{self.rows}:{self.total:032x}"

    @classmethod
    def parse(cls, text: str) -> TableDigest:
        """Read what :meth:`text` gave; ``ValueError`` when it is something else."""
        rows, _, total = text.partition(":")
        return cls(int(rows), int(total, 16))


def digest_rows(rows: pa.RecordBatch) -> TableDigest:
    """Return the digest of some rows."""
    total = 0
    blake2b, from_bytes = hashlib.blake2b, int.from_bytes
    for row in canonical_rows(rows):
        total += from_bytes(blake2b(row, digest_size=16).digest(), "little")
    return TableDigest(len(rows), total % _MODULUS)


def canonical_rows(rows: pa.RecordBatch) -> Iterable[bytes]:
    """Yield the canonical bytes of each row."""
    if not len(rows):
        return ()
    columns = [_column(rows.column(at)) for at in range(rows.num_columns)]
    return map(b"".join, zip(*columns, strict=True))


def _column(column: pa.Array) -> Sequence[bytes]:
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return _numbers(column)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return [_text(value) for value in column.cast(pa.binary()).to_pylist()]
    if column.null_count == len(column):
        return [b"\x00"] * len(column)
    return [_list(value) for value in column.to_pylist()]


def _numbers(column: pa.Array) -> Sequence[bytes]:
    """Return 9 bytes a row: 0 and zeros for null, 1 and the number otherwise."""
    cells = np.zeros(len(column), np.dtype([("is_valid", "u1"), ("value", "<i8")]))
    cells["is_valid"] = column.is_valid().to_numpy(zero_copy_only=False)
    cells["value"] = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    data = cells.tobytes()
    return [data[at : at + 9] for at in range(0, len(data), 9)]


def _text(value: bytes | None) -> bytes:
    return b"\x00" if value is None else b"\x01" + _U32.pack(len(value)) + value


def _list(entries: Sequence[Any] | None) -> bytes:
    if entries is None:
        return b"\x00"
    return b"\x01" + _U32.pack(len(entries)) + b"".join(map(_entry, entries))


def _entry(entry: Any) -> bytes:
    if isinstance(entry, int):
        return _I64.pack(entry)
    if isinstance(entry, tuple):
        return b"".join(map(_entry, entry))
    return _text(entry if isinstance(entry, bytes) else entry.encode())
