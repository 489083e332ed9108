"""Binary Arrow columns as raw bytes, and the fast way to join many of them row by row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from zlib_ng.zlib_ng import crc32

Bytes: TypeAlias = bytes | bytearray | memoryview
Ints: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Part: TypeAlias = pa.Array | bytes
"""A binary column without nulls, or one piece that stands in every row."""

INT32_MAX: Final = 2**31 - 1
_CLOSE: Final = 10_000
_MAX_PIECE_BYTES: Final = 4096
_MAX_BLOCK_BYTES: Final = 64 * 1024


def offsets_of(column: pa.Array) -> Ints:
    """Return where the rows of a binary or string column start in its data buffer, and where the last one ends."""
    kind = np.int64 if pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type) else np.int32
    if not len(column):
        return np.zeros(1, kind)
    return np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column) + 1]


def bytes_of(column: pa.Array) -> Any:
    """Return the bytes of all rows, one row behind the other, without a copy."""
    offsets, data = offsets_of(column), column.buffers()[2]
    return b"" if data is None else data.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def fixed_column(blocks: Any) -> pa.Array:
    """Return equally long blocks, a contiguous numpy array, as a binary column, without a copy."""
    width = blocks.dtype.itemsize
    kind: Any = (pa.large_binary(), np.int64) if width * len(blocks) > INT32_MAX else (pa.binary(), np.int32)
    offsets = np.arange(0, width * len(blocks) + 1, width, dtype=kind[1])
    return pa.Array.from_buffers(kind[0], len(blocks), [None, pa.py_buffer(offsets), pa.py_buffer(blocks)])


def cells(data: Any, dtype: str | np.dtype[Any]) -> Any:
    """Return a view that has, at index i, the number (or block) that starts at byte i."""
    dtype = np.dtype(dtype)
    return np.ndarray((max(0, len(data) - dtype.itemsize + 1),), dtype, data, strides=(1,))


def crcs_of(data: Any, starts: Ints, ends: Ints, before: Ints | int = 0) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return the CRC-32 of pieces of a buffer; ``before`` is that of what goes before each."""
    widths = ends - starts
    width = int(widths[0]) if len(widths) else 0
    firsts = repeat(before) if isinstance(before, int) else before.tolist()
    if 0 < width <= _MAX_PIECE_BYTES and (widths == width).all():
        pieces = cells(data, np.dtype((np.void, width)))[starts].tolist()  # faster than slices, at the price of a copy
    else:
        view = memoryview(data)
        pieces = [view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.fromiter(map(crc32, pieces, firsts), np.uint32, len(starts))


def counted(values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct ones of some integers, rising, and how often each is there; without sorting where they lie close."""
    if not len(values):
        return values, values
    low = int(values.min())
    if int(values.max()) - low > max(_CLOSE, len(values)):
        return np.unique(values, return_counts=True)
    counts = np.bincount(values - low)
    found = np.flatnonzero(counts)
    return found + low, counts[found]


class Measured(NamedTuple):
    """A part, or a numpy array of equally long blocks, and the bytes of its rows: one number when all have as many."""

    part: Any
    lengths: Ints | int


def measure(part: Part) -> Measured:
    """Return a part, of one row at least, with its lengths."""
    if isinstance(part, bytes):
        return Measured(part, len(part))
    lengths = np.diff(offsets_of(part))
    first = int(lengths[0])
    return Measured(part, first if (lengths == first).all() else lengths.astype(np.int64))


def blocks(array: Any) -> Measured:
    """Return equally long blocks, a contiguous numpy array, as a part."""
    return Measured(array, array.dtype.itemsize)


def join_columns(parts: Sequence[Measured], rows: int, total_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the parts of row 0, one behind the other, then those of row 1, and so on: ``total_bytes`` bytes that may be written to.

    Neighbours whose rows are all equally long are first put together by numpy, which leaves little for Arrow's general join, or nothing.
    """
    merged: list[Any] = []
    run: list[Measured] = []
    for each in parts:
        if isinstance(each.lengths, int) and each.lengths <= _MAX_BLOCK_BYTES:
            if each.lengths:
                run.append(each)
            continue
        if run:
            merged.append(_side_by_side(run, rows))
        merged.append(each.part)
        run = []
    if run:
        merged.append(_side_by_side(run, rows))
    if len(merged) == 1 and isinstance(merged[0], np.ndarray):
        return merged[0].reshape(-1)
    kind = pa.large_binary() if total_bytes > INT32_MAX else pa.binary()
    joined = pc.binary_join_element_wise(*[_argument(part, kind) for part in merged], pa.scalar(b"", kind))
    data = np.frombuffer(joined.buffers()[2], np.uint8)[:total_bytes]
    return data if data.flags.writeable else data.copy()


def _argument(part: Any, kind: pa.DataType) -> Any:
    if isinstance(part, bytes):
        return pa.scalar(part, kind)
    column = fixed_column(part.view(f"V{part.shape[1]}").reshape(-1)) if isinstance(part, np.ndarray) else part
    return column if column.type == kind else column.cast(kind)


def _side_by_side(parts: list[Measured], rows: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a matrix with a row of bytes per row."""
    template = b"".join([part if isinstance(part, bytes) else bytes(int(width)) for part, width in parts])
    matrix = np.empty((rows, len(template)), np.uint8)
    matrix[:] = np.frombuffer(template, np.uint8)
    at = 0
    for part, width in parts:
        end = at + int(width)
        if not isinstance(part, bytes):
            data = part.view(np.uint8) if isinstance(part, np.ndarray) else np.frombuffer(bytes_of(part), np.uint8)
            matrix[:, at:end] = data.reshape(rows, end - at)
        at = end
    return matrix
