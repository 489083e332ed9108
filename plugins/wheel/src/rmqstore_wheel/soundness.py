"""Whether records of the log are those that a queue says lie there, by the column; of one, ``record_parts.fault_of`` says why not."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from rmqstore_wheel.commit_log import CommitLog
from rmqstore_wheel.formats import commit_log as log_format
from rmqstore_wheel.formats.binary_columns import Ints, cells
from rmqstore_wheel.record_parts import HOST_BITS

Flags = np.ndarray[Any, np.dtype[np.bool_]]


def sound_rows(log: CommitLog, file_start: int, starts: Ints, sizes: Ints, topic: bytes, queue_id: int, queue_offsets: Ints) -> Flags:
    """Say which records of one file are what they should be; not so are those too that only a look at each one can tell.

    Args:
        starts, sizes: where in the file they lie.
        topic, queue_id, queue_offsets: what they should say of themselves.
    """
    view = log.chain.view(file_start) if file_start in log.chain.starts else memoryview(b"")
    end = min(log.tail - file_start, len(view))
    inside: Flags = (starts >= 0) & (sizes >= log_format.MIN_BYTES) & (starts + sizes <= end)
    rows = np.flatnonzero(inside)
    if not len(rows):
        return inside
    data = np.frombuffer(view, np.uint8)
    at, stops = starts[rows], starts[rows] + sizes[rows]
    i32, i64 = cells(data, ">i4"), cells(data, ">i8")
    field = log_format.topic_field(topic)
    good = (i32[at] == sizes[rows]) & (i32[at + 4] == log_format.magic_of(topic)) & (i32[at + 12] == queue_id)
    good &= (i64[at + log_format.QUEUE_OFFSET_AT] == queue_offsets[rows]) & (i64[at + log_format.PHYSICAL_OFFSET_AT] == at + file_start)
    good &= data[at + 39] & HOST_BITS == 0
    bodies = at + log_format.FIXED_BYTES
    ends = bodies + i32[bodies - 4]
    texts = ends + len(field)
    good &= (ends >= bodies) & (texts + 2 <= stops)
    if not good.all():
        kept = np.flatnonzero(good)
        rows, at, stops, bodies, ends, texts = rows[kept], at[kept], stops[kept], bodies[kept], ends[kept], texts[kept]
    block = np.dtype(f"V{len(field)}")
    sound: Flags = cells(data, block)[ends] == np.frombuffer(field, block)[0]
    sound &= texts + 2 + cells(data, ">u2")[texts] == stops
    bounds = zip(bodies.tolist(), ends.tolist(), strict=True)
    crcs = np.fromiter([zlib.crc32(view[begin:stop]) for begin, stop in bounds], np.uint32, len(at)) & 0x7FFFFFFF
    inside[:] = False
    inside[rows] = sound & (crcs == i32[at + 8])
    return inside
