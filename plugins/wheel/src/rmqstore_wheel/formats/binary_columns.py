"""Binary Arrow columns as raw bytes, and the fast way to join many of them row by row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from zlib_ng.zlib_ng import crc32

from rmqstore.columns import INT32_MAX, bytes_of, lengths_of, numbers_column, offsets_of, pieces_of
from rmqstore.late import pa, pc

Bytes: TypeAlias = bytes | bytearray | memoryview
Ints: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Flags: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
Octets: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Rows: TypeAlias = np.ndarray[Any, np.dtype[np.void]]
"""Structures, or blocks that are all as long."""

Part: TypeAlias = "pa.Array | bytes"
"""A binary column without nulls, or one piece that stands in every row."""

Piece: TypeAlias = "Part | Rows"
"""A part, or a numpy array of equally long blocks."""

_MAX_PIECE_BYTES: Final = 4096
_MAX_BLOCK_BYTES: Final = 64 * 1024


def fixed_column(blocks: Octets | Rows) -> pa.Array:
    """Return equally long blocks, a contiguous numpy array, as a binary column, without a copy."""
    width = blocks.dtype.itemsize
    kind: Any = (pa.large_binary(), np.int64) if width * len(blocks) > INT32_MAX else (pa.binary(), np.int32)
    offsets = np.arange(0, width * len(blocks) + 1, width, dtype=kind[1])
    return pa.Array.from_buffers(kind[0], len(blocks), [None, pa.py_buffer(offsets), pa.py_buffer(blocks)])


def stretches_of(data: Bytes | Octets, starts: Ints, ends: Ints) -> pa.Array:
    """Return a binary column of copies of stretches of ``data``, of which two are the same or do not overlap."""
    if not len(starts):
        return pieces_of(b"", np.zeros(1, np.int32))
    order = np.argsort(starts, kind="stable")
    pieces = pieces_of(data, np.stack((starts[order], ends[order]), axis=1).reshape(-1))
    return pieces.take(numbers_column(2 * np.argsort(order, kind="stable"))).cast(pa.binary())


def taken(pieces: pa.Array, picks: Ints) -> Octets:
    """Return the picked pieces one behind the other, to be written to."""
    column = pieces.take(numbers_column(picks.reshape(-1)))
    out = np.frombuffer(column.buffers()[2], np.uint8)[: int(offsets_of(column)[-1])]
    return out if out.flags.writeable else out.copy()


def cells(data: Bytes | Octets, dtype: str | np.dtype[Any]) -> Any:
    """Return a view that has, at index i, the number (or block) that starts at byte i."""
    dtype = np.dtype(dtype)
    return np.ndarray((max(0, len(data) - dtype.itemsize + 1),), dtype, data, strides=(1,))


def blocks_at(data: Bytes | Octets, starts: Ints, dtype: np.dtype[Any]) -> Any:
    """Return copies of the structures that start at some bytes; numpy's own way goes field by field, as in :func:`put_rows`."""
    return cells(data, f"V{dtype.itemsize}")[starts].view(dtype)


def matrix_at(data: Bytes | Octets, starts: Ints, width: int) -> Any:
    """Return copies of equally long pieces, a row of bytes each."""
    if not width or not len(starts):
        return np.zeros((len(starts), width), np.uint8)
    return cells(data, f"V{width}")[starts].view(np.uint8).reshape(-1, width)


def put_rows(array: Rows, rows: Ints, values: Rows) -> None:
    """Write structured ``values`` into some rows. Numpy's own way goes field by field, which takes eight times as long.

    For the same reason, rows are gathered with ``take`` where there are many.
    """
    block = f"V{array.dtype.itemsize}"
    # Numpy joins arrays in the byte order of the machine, so the values may have another than the array.
    array.view(block)[rows] = values.astype(array.dtype, copy=False).view(block)


def block_cells(array: Octets | Rows, at: int, dtype: str) -> Any:
    """Return a view of what starts at byte ``at`` of each of some equally long blocks, or rows of a matrix of bytes."""
    return np.ndarray((len(array),), dtype, array, at, (array.nbytes // len(array),))


def crcs_of(data: Any, starts: Ints, ends: Ints, before: Ints | int = 0) -> Ints:
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


class Measured(NamedTuple):
    """A piece, and the bytes of its rows: one number when all have as many."""

    part: Any
    lengths: Ints | int


def measure(part: Piece) -> Measured:
    """Return a piece, of one row at least, with its lengths."""
    if isinstance(part, bytes):
        return Measured(part, len(part))
    if isinstance(part, np.ndarray):
        return Measured(part, part.dtype.itemsize)
    lengths = lengths_of(part)
    first = int(lengths[0])
    return Measured(part, first if (lengths == first).all() else lengths.astype(np.int64))


def join_columns(parts: Sequence[Measured], rows: int, total_bytes: int) -> Octets:
    """Return the parts of row 0, one behind the other, then those of row 1, and so on: ``total_bytes`` bytes that may be written to.

    Neighbours whose rows are all equally long are first put together by numpy, which leaves little for Arrow's general join.
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
    if len(merged) == 1 and run:
        return merged[0]  # type: ignore[no-any-return]
    kind = pa.large_binary() if total_bytes > INT32_MAX else pa.binary()
    joined = pc.binary_join_element_wise(*[_argument(part, rows, kind) for part in merged], _scalar(b"", kind))
    data = np.frombuffer(joined.buffers()[2], np.uint8)[:total_bytes]
    return data if data.flags.writeable else data.copy()


def _argument(part: Any, rows: int, kind: pa.DataType) -> Any:
    if isinstance(part, bytes):
        return _scalar(part, kind)
    column = fixed_column(part.view(f"V{len(part) // rows}")) if isinstance(part, np.ndarray) else part
    return column if column.type == kind else column.cast(kind)


def _scalar(data: bytes, kind: pa.DataType) -> pa.Scalar:
    """Return one value of a binary type; ``numbers_column`` says why not by ``pa.scalar``."""
    return pieces_of(data, np.array([0, len(data)])).cast(kind)[0]


def _side_by_side(parts: list[Measured], rows: int) -> Octets:
    """Return rows of bytes, one behind the other."""
    template = b"".join([part if isinstance(part, bytes) else bytes(int(width)) for part, width in parts])
    matrix = np.tile(np.frombuffer(template, np.uint8), (rows, 1))
    at = 0
    for part, width in parts:
        if not isinstance(part, bytes):
            content = part if isinstance(part, np.ndarray) else np.frombuffer(bytes_of(part), np.uint8)
            block_cells(matrix, at, f"V{width}")[:] = content.view(f"V{width}")
        at += int(width)
    return matrix.reshape(-1)
