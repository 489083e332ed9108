"""Finding records in the commit log, and reading them by the batch; ``commit_log`` draws the layout, ``log_columns`` is the way there."""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

import numpy as np

from rmqstore.errors import CorruptStoreError
from rmqstore.late import pa
from rmqstore_wheel.formats import commit_log as log
from rmqstore_wheel.formats.binary_columns import Bytes, Flags, Ints, Octets, Part, cells, stretches_of
from rmqstore_wheel.formats.log_columns import Columns, body_crcs

_I32X2 = struct.Struct(">ii")

# ---------------------------------------------------------------- finding records


class Stop(enum.Enum):
    """Why a scan went no further."""

    END = "the buffer ends behind a record"
    BLANK = "a blank record: the file ends here"
    EMPTY = "zeros, as in a file that was not written so far"
    TORN = "a record that does not end in the buffer"
    DAMAGE = "neither a message nor a blank record"


class Scan(NamedTuple):
    """Where records are in a buffer, and what comes behind the last one, at byte ``end``."""

    starts: Ints
    sizes: Ints
    end: int
    stop: Stop


def scan(buffer: Bytes, at: int = 0) -> Scan:
    """Follow the chain of sizes from byte ``at``. Only size and magic of each record are looked at; ``count_sound`` checks the rest."""
    data = memoryview(buffer)
    sizes: list[int] = []
    starts: list[int] = []
    length, unpack = len(data), _I32X2.unpack_from
    last = length - log.BLANK_BYTES
    magics = (log.MAGIC_V1, log.MAGIC_V2)
    stop = None
    while at <= last:
        size, magic = unpack(data, at)
        if magic not in magics or size < log.MIN_BYTES or size > length - at:
            stop = _stop(size, magic)
            break
        starts.append(at)
        sizes.append(size)
        at += size
    if stop is None:
        stop = Stop.END if at == length else Stop.EMPTY if not any(data[at:]) else Stop.TORN
    return Scan(np.array(starts, np.int64), np.array(sizes, np.int64), at, stop)


def _stop(size: int, magic: int) -> Stop:
    if magic == log.MAGIC_BLANK and size >= log.BLANK_BYTES:
        return Stop.BLANK
    if magic in (log.MAGIC_V1, log.MAGIC_V2) and size >= log.MIN_BYTES:
        return Stop.TORN
    return Stop.EMPTY if size == 0 and magic == 0 else Stop.DAMAGE


# ---------------------------------------------------------------- reading


class Layout(NamedTuple):
    """Where the parts of records start and end in a buffer."""

    head: Ints
    body: Ints
    body_end: Ints
    topic: Ints
    topic_end: Ints
    properties: Ints
    end: Ints
    sound: Flags


def layout_of(data: Octets, starts: Ints, sizes: Ints, log_offset: int | None = None) -> Layout:
    """Lay out records whose bytes may be anything; those that do not add up are not ``sound``. Bodies are not looked at."""
    i32, i16, i8 = cells(data, ">i4"), cells(data, ">i2"), cells(data, "i1")
    stated = i32[starts]
    magic = i32[starts + 4]
    sound = (stated == sizes) & ((magic == log.MAGIC_V1) | (magic == log.MAGIC_V2)) & (sizes >= log.MIN_BYTES)
    sys_flag = i32[starts + 36]
    more = log.HOST_V6_BYTES - log.HOST_V4_BYTES
    head = starts + log.FIXED_BYTES - 4
    head = head + np.where(sys_flag & log.BORN_HOST_V6, more, 0) + np.where(sys_flag & log.STORE_HOST_V6, more, 0)
    ends = starts + sizes

    def lengths_at(numbers: Ints, place: Ints, width: int, rows: Flags | bool = True) -> Ints:
        """Read the lengths of some rows; 0, and no longer sound, where length or piece would reach beyond the record."""
        nonlocal sound
        readable = sound & rows & (place + width <= ends)
        lengths = np.where(readable, numbers[np.where(readable, place, 0)], -1).astype(np.int64)
        good = readable & (lengths >= 0) & (place + width + lengths <= ends)
        sound = sound & (good | np.logical_not(rows))
        return np.where(good, lengths, 0)

    body = head + 4
    body_end = body + lengths_at(i32, head, 4)
    is_v1 = magic == log.MAGIC_V1
    topic_bytes = lengths_at(i8, body_end, 1, is_v1)
    if not is_v1.all():
        topic_bytes = topic_bytes + lengths_at(i16, body_end, 2, ~is_v1)
    topic = body_end + np.where(is_v1, 1, 2)
    topic_end = topic + topic_bytes
    properties = topic_end + 2
    end = properties + lengths_at(i16, topic_end, 2)
    sound = sound & (end == ends)
    if log_offset is not None:
        sound = sound & (cells(data, ">i8")[starts + log.PHYSICAL_OFFSET_AT] == starts + log_offset)
    return Layout(head, body, body_end, topic, topic_end, properties, end, sound)


def decode_columns(buffer: Bytes, starts: Ints, sizes: Ints, *, log_offset: int | None = None, verify: bool = True) -> Columns:
    """Read the records that start at the given bytes of ``buffer``, in that order.

    ``log_offset`` is where byte 0 of the buffer is in the log; when it is given, each record must say that it is at its place.
    ``verify`` checks the CRC of the bodies as well; sizes, lengths and magics are always checked.

    Raises:
        CorruptStoreError: a record is damaged; ``offset`` is the place of the first such row in the log.
    """
    layout = _sound_layout(buffer, starts, sizes, log_offset)
    ends = ((layout.body, layout.body_end), (layout.topic, layout.topic_end), (layout.properties, layout.end))
    body, topic, properties = (stretches_of(buffer, begin, end) for begin, end in ends)
    data = np.frombuffer(buffer, np.uint8)
    i32, i64 = cells(data, ">i4"), cells(data, ">i8")
    if verify:
        wrong = body_crcs(body) != i32[starts + 8]
        if wrong.any():
            row = int(wrong.argmax())
            _refuse(buffer, int(starts[row]), int(sizes[row]), log_offset)
    store_at = starts + log.STORE_MS_AT + np.where(i32[starts + 36] & log.BORN_HOST_V6, log.HOST_V6_BYTES - log.HOST_V4_BYTES, 0)
    return Columns(
        topic=topic,
        body=body,
        properties=(properties,),
        queue_id=i32[starts + 12].astype(np.int32),
        queue_offset=i64[starts + log.QUEUE_OFFSET_AT].astype(np.int64),
        physical_offset=i64[starts + log.PHYSICAL_OFFSET_AT].astype(np.int64),
        born_ms=i64[starts + 40].astype(np.int64),
        store_ms=i64[store_at].astype(np.int64),
        reconsume_times=i32[layout.head - 12].astype(np.int32),
    )


def _sound_layout(buffer: Bytes, starts: Ints, sizes: Ints, log_offset: int | None) -> Layout:
    """Lay out records; see :func:`decode_columns`."""
    data = np.frombuffer(buffer, np.uint8)
    outside = (starts < 0) | (sizes < log.MIN_BYTES) | (starts + sizes > len(data))
    if outside.any():
        _refuse(buffer, int(starts[outside.argmax()]), int(sizes[outside.argmax()]), log_offset)
    layout = layout_of(data, starts, sizes, log_offset)
    if not layout.sound.all():
        row = int((~layout.sound).argmax())
        _refuse(buffer, int(starts[row]), int(sizes[row]), log_offset)
    return layout


def _refuse(buffer: Bytes, start: int, size: int, log_offset: int | None) -> None:
    """Raise what reading the record alone finds, or else that its size in the index is wrong."""
    if start >= 0:
        log.decode_record(memoryview(buffer)[: start + max(size, 0)], start, log_offset=log_offset)
    place = start + (log_offset or 0)
    raise CorruptStoreError(f"no sound record at offset {place}: it does not have {size} bytes, as its index says", offset=place)


class QueueRows(NamedTuple):
    """Which rows of records that were read are of one queue, in their order."""

    topic: str
    queue: int
    rows: Ints


def by_queue(topics: Part, queues: Ints) -> list[QueueRows]:
    """Return the rows of each queue."""
    encoded = (topics if isinstance(topics, pa.Array) else pa.repeat(topics, len(queues))).dictionary_encode()
    names = [name.decode(errors="replace") for name in encoded.dictionary.to_pylist()]
    numbers = encoded.indices.to_numpy()
    order = np.lexsort((queues, numbers))
    bounds = np.flatnonzero((np.diff(numbers[order]) != 0) | (np.diff(queues[order]) != 0)) + 1
    return [QueueRows(names[numbers[rows[0]]], int(queues[rows[0]]), rows) for rows in np.split(order, bounds) if len(rows)]


def queues_of(buffer: Bytes, starts: Ints, sizes: Ints, *, log_offset: int) -> tuple[list[QueueRows], Ints]:
    """Return which records are of which queue, and the queue offset of each; nothing else is read. See :func:`decode_columns`."""
    layout = _sound_layout(buffer, starts, sizes, log_offset)
    data = np.frombuffer(buffer, np.uint8)
    topics = stretches_of(buffer, layout.topic, layout.topic_end)
    offsets: Ints = cells(data, ">i8")[starts + log.QUEUE_OFFSET_AT].astype(np.int64)
    return by_queue(topics, cells(data, ">i4")[starts + 12]), offsets


def count_sound(buffer: Bytes, starts: Ints, sizes: Ints, *, log_offset: int | None = None) -> int:
    """Return how many of some records, from the first one on, are sound to the last byte: what a recovery keeps."""
    data = np.frombuffer(buffer, np.uint8)
    if not len(starts):
        return 0
    layout = layout_of(data, starts, sizes, log_offset)
    count = len(layout.sound) if layout.sound.all() else int((~layout.sound).argmax())
    crcs = cells(data, ">i4")[starts[:count] + 8].tolist()
    view = memoryview(buffer)
    bodies = zip(layout.body[:count].tolist(), layout.body_end[:count].tolist(), crcs, strict=True)
    for row, (start, end, crc) in enumerate(bodies):
        if log.body_crc(view[start:end]) != crc:
            return row
    return count
