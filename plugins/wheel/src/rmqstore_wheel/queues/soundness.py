"""Whether records of the log are those that a queue says are there: by the column, or of one why not."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np
from zlib_ng.zlib_ng import crc32

from rmqstore_wheel.formats import commit_log as log_format
from rmqstore_wheel.formats.binary_columns import Flags, Ints, Octets, blocks_at, cells, crcs_of
from rmqstore_wheel.formats.log_columns import HEAD
from rmqstore_wheel.log.commit_log import CommitLog
from rmqstore_wheel.records import sums
from rmqstore_wheel.records.parts import HOST_BITS, V6_MORE

OTHER_SUM: Final = f"the CRC-32 of its times and properties is another than its last property {sums.PROPERTY[:-1].decode()} says"
"""Why a record is not taken whose parts add up."""

_MOST_ROOM: Final = 2
"""Times as many bytes as the records have, up to which a copy gives each of them as many as the longest one."""

_MOST_COPIED_BYTES: Final = 128 * 1024 * 1024

_MOST_SPREAD: Final = 4
"""Times as many bytes as the records have, over which they may be spread to be read as what is side by side."""

_FIRST: Final = struct.Struct(">iiii")
_I32: Final = struct.Struct(">i")
_I64X2: Final = struct.Struct(">qq")


def sound_rows(log: CommitLog, file_start: int, starts: Ints, sizes: Ints, topic: bytes, queue_id: int, queue_offsets: Ints) -> Flags:
    """Say which records of one file are what they should be; not so are those too that only a look at each one can tell.

    Args:
        starts, sizes: where in the file they are.
        topic, queue_id, queue_offsets: what they should say of themselves.
    """
    data, inside = held(log, file_start, starts, sizes)
    return _sound_of(data, inside, starts, sizes, starts + file_start, topic, queue_id, queue_offsets)


class Gathered(NamedTuple):
    """Records in memory, and which of them are sound; those that are not may be anywhere."""

    data: Octets
    starts: Ints
    sound: Flags


def gather(log: CommitLog, file_start: int, starts: Ints, sizes: Ints, topic: bytes, queue_id: int, queue_offsets: Ints) -> Gathered:
    """As :func:`sound_rows`, for records that are read then: those that are all over the file are copied side by side before.

    A look at a record far from the last one waits for the memory, at its head, at its body, at its properties, and again with the
    next look. A copy waits once.
    """
    data, inside = held(log, file_start, starts, sizes)
    places, at = starts + file_start, starts
    stops = starts + sizes
    width, total = int(sizes.max()), int(sizes.sum())
    in_order = bool((starts[1:] >= stops[:-1]).all())
    if not inside.all() or (in_order and int(stops[-1] - starts[0]) <= _MOST_SPREAD * total):
        return Gathered(data, at, _sound_of(data, inside, at, sizes, places, topic, queue_id, queue_offsets))
    with log.scattered.of(log.chain.file(file_start), starts, stops):
        if not in_order and width * len(sizes) <= min(_MOST_ROOM * total, _MOST_COPIED_BYTES):
            # Behind a record, up to the next one, is what is behind it in the file.
            first = np.minimum(starts, len(data) - width)
            data = cells(data, f"V{width}")[first].view(np.uint8)
            at = np.arange(len(starts)) * width + (starts - first)
        return Gathered(data, at, _sound_of(data, inside, at, sizes, places, topic, queue_id, queue_offsets))


def held(log: CommitLog, file_start: int, starts: Ints, sizes: Ints) -> tuple[Octets, Flags]:
    """Return a file of the log, and which records can be in it.

    Nothing behind the end of the log is looked at: an owner may cut it off there, and a map of what is gone cannot be read.
    """
    stops = starts + sizes
    length = max(log.tail - file_start, 0)
    view = log.chain.view(file_start, min(int(stops.max(initial=0)), length)) if file_start in log.chain.starts else memoryview(b"")
    data = np.frombuffer(view, np.uint8)[:length]
    return data, (starts >= 0) & (sizes >= log_format.MIN_BYTES) & (stops <= len(data))


def _sound_of(
    data: Octets, inside: Flags, at: Ints, sizes: Ints, places: Ints, topic: bytes, queue_id: int, queue_offsets: Ints
) -> Flags:  # fmt: skip
    """Say which records of a buffer, of those that are ``inside``, are what they should be; they are at ``places`` of the log."""
    sound = np.zeros(len(at), np.bool_)
    rows = np.flatnonzero(inside)
    if not len(rows):
        return sound
    if len(rows) < len(at):
        at, sizes, places, queue_offsets = (each[rows] for each in (at, sizes, places, queue_offsets))
    stops = at + sizes
    heads = blocks_at(data, at, HEAD)
    good = (heads["size"] == sizes) & (heads["magic"] == log_format.magic_of(topic)) & (heads["queue_id"] == queue_id)
    good &= (heads["queue_offset"] == queue_offsets) & (heads["physical_offset"] == places)
    good &= (heads["sys_flag"] & HOST_BITS == 0) & (heads["body_bytes"] >= 0)
    bodies = at + log_format.FIXED_BYTES
    ends = bodies + heads["body_bytes"]
    field = log_format.topic_field(topic)
    texts = ends + len(field)
    good &= texts + 2 <= stops
    if not good.all():
        kept = np.flatnonzero(good)
        rows, at, stops, heads, bodies, ends, texts = (each.take(kept) for each in (rows, at, stops, heads, bodies, ends, texts))
    behind = blocks_at(data, ends, np.dtype([("topic", f"S{len(field)}"), ("text_bytes", ">i2")]))
    good = (behind["topic"] == field) & (texts + 2 + behind["text_bytes"] == stops)
    good &= crcs_of(data, bodies, ends) & 0x7FFFFFFF == heads["crc"]
    sound[rows] = good & sums.good_rows(data, at, texts + 2, stops)
    return sound


def fault_of(record: bytes, log_offset: int, topic: bytes, queue_id: int, queue_offset: int) -> str | None:
    """Return why a record is not the one that should be at an offset of the log and of a queue; None when it is."""
    if len(record) < log_format.MIN_BYTES:
        return "the log is cut off there"
    size, magic, crc, queue = _FIRST.unpack_from(record)
    if size != len(record) or magic not in (log_format.MAGIC_V1, log_format.MAGIC_V2):
        return "it does not begin as a message"
    found, place = _I64X2.unpack_from(record, log_format.QUEUE_OFFSET_AT)
    if (queue, found, place) != (queue_id, queue_offset, log_offset):
        return f"it says that it is number {found} of queue {queue}, at offset {place}"
    body = log_format.FIXED_BYTES + V6_MORE * (record[39] & HOST_BITS).bit_count()
    end = body + int(_I32.unpack_from(record, body - 4)[0])
    if not body <= end < size or crc32(memoryview(record)[body:end]) & 0x7FFFFFFF != crc:
        return "the CRC-32 of the body is another"
    width = 1 if magic == log_format.MAGIC_V1 else 2
    if record[end + width : end + width + len(topic) + 2][: len(topic)] != topic or int.from_bytes(record[end : end + width]) != len(topic):
        return "it belongs to another topic"
    text = end + width + len(topic)
    if text + 2 + int.from_bytes(record[text : text + 2]) != size:
        return "its properties end elsewhere"
    return None if sums.is_good(record, text + 2) else OTHER_SUM
