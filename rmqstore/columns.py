"""Binary and string columns of Arrow as the bytes they are, for what Arrow's kernels do not do, or take longer for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from rmqstore.late import np, pa

_Ints: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

INT32_MAX: Final = 2**31 - 1


def pieces_of(data: Any, bounds: _Ints) -> pa.Array:
    """Lay a binary column over ``data``: element i goes from ``bounds[i]`` to ``bounds[i + 1]``."""
    kind: tuple[pa.DataType, Any] = (pa.large_binary(), np.int64) if len(data) > INT32_MAX else (pa.binary(), np.int32)
    offsets = np.ascontiguousarray(bounds, kind[1])
    return pa.Array.from_buffers(kind[0], len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def numbers_column(numbers: _Ints) -> pa.Array:
    """Lay a column over numbers.

    ``pa.array``, ``pa.scalar`` and ``to_numpy`` import pandas with the first of them, where it is installed: a second or more, for which no
    call holds a lock.
    """
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def codes_of(column: pa.DictionaryArray) -> _Ints:
    """Return which value of the dictionary each row of a column has that was just encoded, none of them null."""
    return np.frombuffer(column.indices.buffers()[1], np.int32, len(column))


def nulls_of(column: pa.Array) -> _Ints:
    """Return which rows of a column are null; :func:`numbers_column` says why not by ``to_numpy``."""
    valid = column.buffers()[0] if column.null_count else None
    if valid is None:
        return np.zeros(len(column), np.bool_)
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), count=column.offset + len(column), bitorder="little")
    found: _Ints = bits[column.offset :] == 0
    return found


def spread(values: Sequence[Any], counts: Sequence[int], kind: pa.DataType) -> pa.Array:
    """Return a column with each value so many times, one behind the other."""
    if len(values) == 1:
        return pa.repeat(pa.scalar(values[0], kind), counts[0])
    return pa.array(values, kind).take(pa.array(np.repeat(np.arange(len(counts)), np.array(counts, np.int64))))


def offsets_of(column: pa.Array) -> _Ints:
    """Return where the rows of a binary or string column start in its data buffer, and where the last one ends."""
    kind = np.int64 if pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type) else np.int32
    if not len(column):
        return np.zeros(1, kind)
    return np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column) + 1]


def lengths_of(column: pa.Array) -> _Ints:
    """Return how many bytes each row of a binary or string column has."""
    offsets = offsets_of(column)
    found: _Ints = offsets[1:] - offsets[:-1]
    return found


def bytes_of(column: pa.Array) -> Any:
    """Return the bytes of all rows, one row behind the other, without a copy."""
    offsets, data = offsets_of(column), column.buffers()[2]
    return b"" if data is None else data.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def constant_of(column: pa.Array) -> bytes | None:
    """Return what stands in every row of a binary or string column without nulls, of one row at least; None when they differ."""
    data = memoryview(bytes_of(column))
    width = len(data) // len(column)
    if len(column) > 1 and data[:width] != data[width : 2 * width]:
        return None
    first = bytes(data[:width])
    return first if bytes(data) == first * len(column) and (lengths_of(column) == width).all() else None
