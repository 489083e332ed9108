"""Records on their way to a queue: due timers become records of their real topic, and records are given topic, queue, offset and time.

Many go by the column and few one by one; both give the same bytes. All of them end with room for their sums (``sums``), which are filled in
with the store time. Where a record lies in the log is written last, by ``Encoded.place``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.columns import bytes_of
from rmqstore_wheel.formats import commit_log as log
from rmqstore_wheel.formats import properties as texts
from rmqstore_wheel.formats.binary_columns import Bytes, Ints, cells, matrix_at, pieces_of, taken
from rmqstore_wheel.formats.log_columns import Encoded, joined
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.records import alike, sums
from rmqstore_wheel.records.message_records import NONE, TAGS, LogRecords, as_delivered, one_topic
from rmqstore_wheel.records.parts import (
    HOST_BITS,
    OF_WAITING,
    parts_of,
    store_ms_at,
    store_ms_places,
    topic_bounds,
    topic_places,
)

TICK: Final = f"{texts.OWN_PREFIX}TICK"
EPOCH: Final = f"{texts.OWN_PREFIX}EPOCH"
"""Properties of a timer that another store had: its tick and its epoch."""

_BEHIND: Final = (EPOCH, TICK)
"""What may stand between ``TIMER_OUT_MS`` and the sum, the last one first."""

_FEW: Final = 24
_LENGTHS_TRIED: Final = 160
_ROWS_PASSED_OVER: Final = 16
_WHEEL_FIELD: Final = log.topic_field(WHEEL_TOPIC.encode())
_LENGTH_BYTES: Final = 2
_MAX_DIGITS: Final = 9
_END: Final = 2
_MAGIC_V1: Final = log.MAGIC_V1.to_bytes(4, signed=True)
_TOPIC, _QUEUE, _OUT = (f"\x02{name}\x01".encode() for name in (texts.REAL_TOPIC, texts.REAL_QUEUE_ID, texts.OUT_MS))
_SIZE_MAGIC: Final = struct.Struct(">ii")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_I64X2: Final = struct.Struct(">qq")

Flags = np.ndarray[Any, np.dtype[np.bool_]]


# ---------------------------------------------------------------- placing


def placed_one(record: Bytes, topic: bytes, queue_id: int, queue_offset: int, store_ms: int, physical_offset: int = 0) -> bytearray:
    """Return one record with its topic, queue, offset, store time and sum; ``physical_offset`` is where it will lie in the log."""
    _, at, _, end = parts_of(record)
    field = log.topic_field(topic)
    if record[at : at + len(field)] == field and record[7] == log.magic_of(topic) & 0xFF:
        copy = bytearray(record)
    else:
        copy = bytearray().join((record[:at], field, record[end:]))
        _SIZE_MAGIC.pack_into(copy, 0, len(copy), log.magic_of(topic))
    _I32.pack_into(copy, 12, queue_id)
    _I64X2.pack_into(copy, log.QUEUE_OFFSET_AT, queue_offset, physical_offset)
    _I64.pack_into(copy, store_ms_at(record), store_ms)
    sums.seal(copy, at + len(field) + 2)
    return copy


def placed(records: Sequence[bytes] | LogRecords, topic: bytes, queue_id: int, first_queue_offset: int, store_ms: int) -> Encoded:
    """Return records of whatever topics as records of one queue, one behind the other from ``first_queue_offset`` on.

    Only what lies at a fixed place is written into a record that has the topic already; any other is built again around the same body and
    properties. The records are copied; physical offsets are 0 until ``Encoded.place``.
    """
    if isinstance(records, LogRecords):
        held = Encoded(records.encoded.data.copy(), records.encoded.starts, records.encoded.sizes)
    elif len(records) <= _FEW:
        return joined([placed_one(record, topic, queue_id, first_queue_offset + at, store_ms) for at, record in enumerate(records)])
    else:
        held = joined(records)
    if len(held.starts):
        if not _all_have(held, topic):
            held = _with_topic(held, topic)
        address(held, queue_id, first_queue_offset + np.arange(len(held.starts)), store_ms)
        sums.fill(held)
    return held


def address(held: Encoded, queue_ids: Ints | int, queue_offsets: Ints, store_ms: int) -> None:
    """Write queue, queue offset and store time into records that keep their topics, in place."""
    data, starts = held.data, held.starts
    i64 = cells(data, ">i8")
    cells(data, ">i4")[starts + 12] = queue_ids
    i64[starts + log.QUEUE_OFFSET_AT] = queue_offsets
    i64[starts + log.PHYSICAL_OFFSET_AT] = 0
    i64[store_ms_places(data, starts)] = store_ms


def _all_have(held: Encoded, topic: bytes) -> bool:
    data, starts, sizes = held.data, held.starts, held.sizes
    field = log.topic_field(topic)
    if (sizes < log.FIXED_BYTES + len(field) + _LENGTH_BYTES).any() or (cells(data, ">i4")[starts + 4] != log.magic_of(topic)).any():
        return False
    at = np.minimum(topic_places(data, starts), len(data) - len(field))
    return bool((cells(data, f"S{len(field)}")[at] == field).all())


def _with_topic(held: Encoded, topic: bytes) -> Encoded:
    data, starts, sizes = held.data, held.starts, held.sizes
    field = log.topic_field(topic)
    at = topic_places(data, starts)
    old = topic_bounds(data, starts)[1]
    pool = np.concatenate((data, np.frombuffer(field, np.uint8)))
    bounds = np.stack((starts, at, old), axis=1).reshape(-1)
    picks = np.arange(3 * len(starts)).reshape(-1, 3)
    picks[:, 1] = len(bounds)
    bounds = np.concatenate((bounds, (len(data), len(pool))))
    sizes = sizes + (at - old + len(field))
    made = Encoded(taken(pieces_of(pool, bounds), picks), np.cumsum(sizes) - sizes, sizes)
    cells(made.data, ">i4")[made.starts] = sizes
    cells(made.data, ">i4")[made.starts + 4] = log.magic_of(topic)
    return made


# ---------------------------------------------------------------- due timers


def for_delivery(buffer: Bytes, starts: Ints, sizes: Ints) -> LogRecords:
    """Return due timers, records of the wheel topic that lie in ``buffer``, as records of the topics that they wait for, in this order.

    The same bytes as ``records.as_delivered`` gives for each. A record whose last properties are ``REAL_TOPIC``, ``REAL_QID``,
    ``TIMER_OUT_MS`` and its sum, with nothing more but what the engine noted, is cut there by the column; any other goes alone.
    """
    if len(starts) <= _FEW:
        return LogRecords(joined(_one_by_one(buffer, starts, sizes)))
    data, starts, sizes, rows = _in_order(buffer, starts, sizes)
    if rows is None and (delivered := _cut_alike(data, starts, sizes)) is not None:
        return delivered
    found, may_have_tags = _find_waiting(data, starts, starts + sizes)
    if found.regular.all():
        return LogRecords(_cut(data, starts, found, rows), may_have_tags=may_have_tags)
    regular = np.flatnonzero(found.regular)
    made: list[Bytes] = [b""] * len(starts)
    if len(regular):
        cut = _cut(data, starts[regular], Waiting(*(column[regular] for column in found)), None)
        for row, record in zip(regular.tolist(), LogRecords(cut).records, strict=True):
            made[row] = record
    others = np.flatnonzero(~found.regular)
    for row, alone in zip(others.tolist(), _one_by_one(data.data, starts[others], sizes[others]), strict=True):
        made[row] = alone
    return LogRecords(joined(made if rows is None else [made[row] for row in rows.tolist()]))


def _one_by_one(buffer: Bytes, starts: Ints, sizes: Ints) -> list[Bytes]:
    view = memoryview(buffer)
    return [as_delivered(view[start:end]) for start, end in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)]


def _in_order(buffer: Bytes, starts: Ints, sizes: Ints) -> tuple[Any, Ints, Ints, Ints | None]:
    """Return the records so that each starts behind the end of the one before it, and which of them is row i; None when it is the i-th."""
    data = np.frombuffer(buffer, np.uint8)
    ends = starts + sizes
    if (starts[1:] >= ends[:-1]).all():
        return data, starts, sizes, None
    order = np.argsort(starts, kind="stable")
    starts, sizes = starts[order], sizes[order]
    rows = np.argsort(order, kind="stable")
    if (starts[1:] >= (starts + sizes)[:-1]).all():
        return data, starts, sizes, rows
    copy = joined([data.data[start:end] for start, end in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)])
    return copy.data, copy.starts, copy.sizes, rows


class Waiting(NamedTuple):
    """Where the parts of timers lie whose last properties are the regular ones; rows that are not ``regular`` hold anything.

    ``kept`` are the properties up to ``REAL_TOPIC``, ``topic`` is the value of that, ``out`` the property ``TIMER_OUT_MS``, and ``sum`` is
    where the sum starts.
    """

    topic_field: Ints
    kept: Ints
    kept_end: Ints
    topic: Ints
    topic_end: Ints
    out: Ints
    out_end: Ints
    sum: Ints
    queue_ids: Ints
    regular: Flags


def _find_waiting(data: Any, starts: Ints, ends: Ints) -> tuple[Waiting, bool]:
    """Return where the parts of timers lie, and whether one of the regular ones may have a tag."""
    at = topic_places(data, starts)
    field = cells(data, f"S{len(_WHEEL_FIELD)}")[np.minimum(at, len(data) - len(_WHEEL_FIELD))]
    regular = (field == _WHEEL_FIELD) & (cells(data, ">i4")[starts + 4] == log.MAGIC_V1)
    low = at + len(_WHEEL_FIELD) + _LENGTH_BYTES
    low = np.where(regular, low, ends)
    sum_at = sums.places_of(data, low, ends)
    regular &= sum_at >= 0
    out_end = np.where(regular, sum_at, low)
    out = _find_entries(data, low, out_end, texts.OUT_MS)
    for name in _BEHIND:
        rest = np.flatnonzero(regular & (out < 0))
        if not len(rest):
            break
        found = _find_entries(data, low[rest], out_end[rest], name)
        rest, found = rest[found >= 0], found[found >= 0]
        out_end[rest] = found
        out[rest] = _find_entries(data, low[rest], found, texts.OUT_MS)
    regular &= out >= 0
    queue = _find_entries(data, low, np.where(regular, out, low), texts.REAL_QUEUE_ID)
    regular &= queue >= 0
    topic = _find_entries(data, low, np.where(regular, queue, low), texts.REAL_TOPIC)
    regular &= topic >= 0
    queue_ids, is_number = _numbers(data, np.where(regular, queue + len(texts.REAL_QUEUE_ID) + 1, 0), np.where(regular, out - 1, 0))
    value = topic + len(texts.REAL_TOPIC) + 1
    topic_bytes = queue - 1 - value
    regular &= is_number & (topic_bytes > 0) & (topic_bytes <= log.MAX_V1_TOPIC_BYTES)
    leftovers, may_have_tags = _look_through(data, np.where(regular, low, 0), np.where(regular, topic, 0))
    regular &= ~leftovers
    return Waiting(at, low, topic, value, queue - 1, out, out_end, sum_at, queue_ids, regular), may_have_tags


def _find_entries(data: Any, low: Ints, ends: Ints, name: str) -> Ints:
    """Return where the property of this name starts that ends at ``ends``, not before ``low`` and not as the first one; -1 where none does.

    Its length is learned from one row and then tried on all others, as there are few lengths.
    """
    found = np.full(len(ends), -1)
    start = f"\x02{name}\x01".encode()
    at_name = cells(data, f"S{len(start)}")
    todo = np.flatnonzero((ends - low > len(start)) & (data[ends - 1] == _END))
    passed_over = 0
    for _ in range(_LENGTHS_TRIED):
        if not len(todo):
            break
        text = data[int(low[todo[0]]) : int(ends[todo[0]])].tobytes()
        at = text.rfind(start)
        if at < 0 or text.find(b"\x02", at + 1) != len(text) - 1:
            passed_over += 1
            if passed_over > _ROWS_PASSED_OVER:
                break
            todo = todo[1:]
            continue
        length = len(text) - at
        places = ends[todo] - length
        good = (places >= low[todo]) & (at_name[np.maximum(places, 0)] == start)
        right = todo[good]
        inside = matrix_at(data, places[good] + len(start), length - len(start) - 1)
        clean = (inside != _END).all(axis=1)
        found[right[clean]] = places[good][clean] + 1
        todo = todo[~good]
    return found


def _numbers(data: Any, starts: Ints, ends: Ints) -> tuple[Ints, Flags]:
    """Read decimal numbers, and -1; the other answer is whether there is one that is not too long."""
    numbers = np.full(len(starts), NONE, np.int64)
    good = np.zeros(len(starts), bool)
    lengths = ends - starts
    for width in np.unique(lengths).tolist():
        if not 0 < width <= _MAX_DIGITS:
            continue
        rows = np.flatnonzero(lengths == width)
        digits = matrix_at(data, starts[rows], width)
        is_number = ((digits >= ord("0")) & (digits <= ord("9"))).all(axis=1)
        numbers[rows] = np.where(is_number, (digits.astype(np.int64) - ord("0")) @ 10 ** np.arange(width)[::-1], NONE)
        good[rows] = is_number | ((digits == np.frombuffer(b"-1", np.uint8)).all(axis=1) if width == len(b"-1") else False)
    return numbers, good


def _look_through(data: Any, starts: Ints, ends: Ints) -> tuple[Flags, bool]:
    """Say where the properties that are to be kept may hold one that is not, and whether a tag may be among them.

    Where none lies, both bounds are 0.
    """
    rows = np.flatnonzero(ends)
    found = np.zeros(len(starts), bool)
    may_have_tags = False
    if len(rows):
        kept = pieces_of(data, np.stack((starts[rows], ends[rows]), axis=1).reshape(-1)).take(pa.array(2 * np.arange(len(rows))))
        whole = bytes(bytes_of(kept))
        may_have_tags = TAGS in whole
        for name in OF_WAITING:
            if name in whole:
                found[rows] |= pc.match_substring(kept, name).to_numpy(zero_copy_only=False)
    return found, may_have_tags


def _cut_alike(data: Any, starts: Ints, sizes: Ints) -> LogRecords | None:
    """Return timers as records of their topics, when nearly all are alike and the others become as long as these; None otherwise."""
    width = alike.common_bytes(sizes)
    if width is None:
        return None
    # In place of each other record stands one that is alike, until it is written over.
    is_other = sizes != width
    matrix = matrix_at(data, np.where(is_other, starts[is_other.argmin()], starts), width)
    layout = _layout_of(matrix[0].tobytes())
    same = alike.same_columns(matrix)
    if layout is None or not alike.are_alike(matrix, same, layout):
        return None
    firsts = np.arange(len(alike.telling_rows(matrix, same, layout.queue, layout.out - 1))) * width
    queue_ids, are_numbers = _numbers(matrix.reshape(-1), firsts + layout.queue, firsts + layout.out - 1)
    queue_ids = np.broadcast_to(queue_ids, len(sizes)).copy()
    kept = alike.side_by_side(alike.telling_rows(matrix, same, layout.kept, layout.kept_end), ((layout.kept, layout.kept_end),)).tobytes()
    if not are_numbers.all() or any(name in kept for name in OF_WAITING):
        return None
    front, topic_bytes = layout.topic_field, layout.topic_end - layout.topic
    made = alike.side_by_side(
        matrix, ((0, front), (layout.topic - 1, layout.topic_end + 2), (layout.kept, layout.kept_end), (layout.out, layout.end))
    )
    text = front + 1 + topic_bytes
    made[:, front] = topic_bytes
    made[:, text : text + 2] = np.frombuffer((made.shape[1] - text - 2).to_bytes(2), np.uint8)
    made[:, :4] = np.frombuffer(made.shape[1].to_bytes(4), np.uint8)
    may_have_tags = TAGS in kept
    other_topics: list[bytes] = []
    if is_other.any():
        rest = np.flatnonzero(is_other)
        others = joined(_one_by_one(data.data, starts[rest], sizes[rest]))
        if (others.sizes != made.shape[1]).any():
            return None
        may_have_tags |= TAGS in others.data.tobytes()
        other_topics = LogRecords(others).routes.topics
        made[rest] = others.data.reshape(len(rest), -1)
        queue_ids[rest] = cells(others.data, ">i4")[others.starts + 12]
    ends = np.arange(1, len(sizes) + 1) * made.shape[1]
    held = Encoded(made.reshape(-1), ends - made.shape[1], np.full(len(sizes), made.shape[1]))
    sums.empty(held.data, ends)
    address(held, queue_ids, np.zeros(len(sizes), np.int64), 0)
    topic = matrix[0, layout.topic : layout.topic_end].tobytes()
    is_one = same[layout.topic : layout.topic_end].all() and other_topics in ([], [topic])
    return LogRecords(held, one_topic(topic, held) if is_one else None, may_have_tags=may_have_tags)


def _layout_of(record: bytes) -> alike.Layout | None:
    """Return where the parts of a timer lie; None when it is no regular one, or has more than these."""
    _, at, _, behind = parts_of(record)
    end, kept = len(record), behind + _LENGTH_BYTES
    sum_at = sums.place_in(record)
    if record[4:8] != _MAGIC_V1 or record[39] & HOST_BITS or record[at:behind] != _WHEEL_FIELD or sum_at != end - sums.PROPERTY_BYTES:
        return None
    out = record.rfind(_OUT, kept, sum_at) + 1
    queue = record.rfind(_QUEUE, kept, out) + 1
    topic = record.rfind(_TOPIC, kept, queue) + 1
    value = topic + len(_TOPIC) - 1
    if not out or not queue or not topic or record[sum_at - 1] != _END or not 0 < queue - 1 - value <= log.MAX_V1_TOPIC_BYTES:
        return None
    return alike.Layout(at, kept, topic, value, queue - 1, queue + len(_QUEUE) - 1, out, out + len(_OUT) - 1, sum_at, end)


def _cut(data: Any, starts: Ints, found: Waiting, rows: Ints | None) -> Encoded:
    """Return regular timers as records of their topics.

    A column is laid over the buffer, whose elements are in turn: all up to the topic, the old topic, the properties that are kept, the
    name of ``REAL_TOPIC``, its value with one byte before and two behind it, the rest of ``REAL_QID``, ``TIMER_OUT_MS``, what the engine
    noted, the sum, and all up to the next record. The bytes round the value become the length of the topic and that of the properties.
    """
    count = len(starts)
    kept = (starts, found.topic_field, found.kept, found.kept_end, found.topic - 1, found.topic_end + 2, found.out, found.out_end)
    columns = (*kept, found.sum, found.sum + sums.PROPERTY_BYTES)
    bounds = np.append(np.stack(columns, axis=1).reshape(-1), len(data))
    at = np.arange(count) if rows is None else rows
    picks = at[:, None] * len(columns) + np.array((0, 4, 2, 6, 8))
    front = found.topic_field - starts
    topic_bytes = found.topic_end - found.topic
    text_bytes = (found.kept_end - found.kept) + (found.out_end - found.out) + sums.PROPERTY_BYTES
    if rows is not None:
        front, topic_bytes, text_bytes = front[rows], topic_bytes[rows], text_bytes[rows]
    sizes = front + 1 + topic_bytes + _LENGTH_BYTES + text_bytes
    made = taken(pieces_of(data, bounds), picks)
    ends = np.cumsum(sizes)
    first = ends - sizes
    held = Encoded(made, first, sizes)
    queue_ids = found.queue_ids if rows is None else found.queue_ids[rows]
    cells(made, ">i4")[first] = sizes
    made[first + front] = topic_bytes
    cells(made, ">i2")[first + front + 1 + topic_bytes] = text_bytes
    sums.empty(made, ends)
    address(held, queue_ids, np.zeros(count, np.int64), 0)
    return held
