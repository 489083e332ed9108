"""Arrow data on the wire: IPC streams that stand for no more than a frame may hold.

A few bytes can stand for gigabytes: as compressed buffers, which are unpacked when they are read, as views of one and the same text, or as
nulls, which are only counted. So the first are refused, and the others are weighed by what they become as the columns of messages.
"""

from __future__ import annotations

import struct
from typing import Final

from rmqstore.errors import IllegalArgumentError
from rmqstore.late import np, pa

_DICTIONARY, _RECORDS = 2, 3
"""Kinds of messages in a stream that hold buffers (``MessageHeader`` in Arrow's Message.fbs)."""

_PLACE: Final = struct.Struct("<I")
_BACK: Final = struct.Struct("<i")
_SMALL: Final = struct.Struct("<H")

_NULL_BYTES: Final = 4
_VIEW_FIELDS: Final = 4
"""A null becomes an offset, of so many bytes. A view is so many int32, the first of which is its length."""


def stream_of(data: pa.RecordBatch | pa.Table) -> memoryview:
    """Return Arrow data as an IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write(data)
    return memoryview(sink.getvalue())


def table_in(data: memoryview, most_bytes: int) -> pa.Table:
    """Return the Arrow data of an IPC stream, checked as a whole: else their offsets may lead anywhere in memory.

    Raises:
        IllegalArgumentError: they are compressed, or stand for more than ``most_bytes``.
        pa.ArrowInvalid: they are damaged.
    """
    buffer = pa.py_buffer(data)
    if any(_is_compressed(each.metadata) for each in pa.ipc.MessageReader.open_stream(buffer)):
        raise IllegalArgumentError("Arrow data come with their buffers compressed; send them as they are")
    table = pa.ipc.open_stream(buffer).read_all()
    table.validate(full=True)
    size = sum(_plain_bytes(chunk) for column in table.columns for chunk in column.chunks)
    if size > most_bytes:
        raise IllegalArgumentError(f"Arrow data stand for {size} bytes, and one call takes {most_bytes}; send less at a time")
    return table


def _plain_bytes(column: pa.Array) -> int:
    """Return how many bytes the views and nulls of a column stand for."""
    kind = column.type
    if not len(column):
        return 0
    if pa.types.is_null(kind):
        return _NULL_BYTES * len(column)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        views = np.frombuffer(column.buffers()[1], np.int32)[::_VIEW_FIELDS][column.offset : column.offset + len(column)]
        # Where there is none, a view may say anything.
        return int(views[column.is_valid().to_numpy(zero_copy_only=False)].sum(dtype=np.int64))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _plain_bytes(column.values)
    if pa.types.is_map(kind):
        return _plain_bytes(column.keys) + _plain_bytes(column.items)
    return 0  # as many as have come, or nothing that messages have


def _is_compressed(message: memoryview) -> bool:
    """Say whether the buffers of a message of a stream are compressed; pyarrow does not tell."""
    table = _behind(message, 0)
    kind, header = _field(message, table, 1), _field(message, table, 2)
    if not kind or not header or message[kind] not in (_DICTIONARY, _RECORDS):
        return False
    batch = _behind(message, header)
    if message[kind] == _DICTIONARY:
        batch = _behind(message, _field(message, batch, 1))
    return bool(_field(message, batch, 3))


def _behind(message: memoryview, at: int) -> int:
    """Return the place that is named at one, in the way of flat buffers: as its distance."""
    return at + int(_PLACE.unpack_from(message, at)[0])


def _field(message: memoryview, table: int, number: int) -> int:
    """Return the place of a field of a table, 0 if it is not there."""
    places = table - _BACK.unpack_from(message, table)[0]
    at = _SMALL.size * (2 + number)
    if at >= _SMALL.unpack_from(message, places)[0]:
        return 0
    distance: int = _SMALL.unpack_from(message, places + at)[0]
    return table + distance if distance else 0
