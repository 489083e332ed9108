"""Records on their way to a queue: due timers become records of their real topic, and records are given topic, queue, offset and time.

Many go by the column and few one by one; both give the same bytes. All of them end with room for their sums (``sums``), which are filled in
with the store time. Where a record is in the log is written last, by ``Encoded.place``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from rmqstore.columns import lengths_of, numbers_column, pieces_of
from rmqstore_wheel.formats import commit_log as log, properties as texts
from rmqstore_wheel.formats.binary_columns import Bytes, Flags, Ints, Octets, cells, join_columns, matrix_at, measure, stretches_of, taken
from rmqstore_wheel.formats.log_columns import Encoded, joined
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.records import sums
from rmqstore_wheel.records.message_records import NONE, TAGS, LogRecords, as_delivered, one_topic
from rmqstore_wheel.records.parts import OF_WAITING, V6_MORE, parts_of, store_ms_places, topic_bounds, topic_places

TICK: Final = f"{texts.OWN_PREFIX}TICK"
EPOCH: Final = f"{texts.OWN_PREFIX}EPOCH"
"""Properties of a timer that another store had: its tick and its epoch."""


_FEW: Final = 24
_KINDS_OF_A_WIDTH: Final = 16
_WHEEL_FIELD: Final = log.topic_field(WHEEL_TOPIC.encode())
_LENGTH_BYTES: Final = 2
_MAX_DIGITS: Final = 9
_END: Final = 2
_TOPIC: Final = f"\x02{texts.REAL_TOPIC}\x01".encode()
_QUEUE, _OUT = (f"{name}\x01".encode() for name in (texts.REAL_QUEUE_ID, texts.OUT_MS))
_NOTED: Final = tuple(f"{name}\x01".encode() for name in (TICK, EPOCH))
"""What may stand between ``TIMER_OUT_MS`` and the sum."""

_SIZE_MAGIC: Final = struct.Struct(">ii")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_I64X2: Final = struct.Struct(">qq")


# ---------------------------------------------------------------- placing


def placed_one(record: Bytes, topic: bytes, queue_id: int, queue_offset: int, store_ms: int, physical_offset: int = 0) -> bytearray:
    """Return one record with its topic, queue, offset, store time and sum; ``physical_offset`` is where it will be in the log."""
    _, at, _, end = parts_of(record)
    field = log.topic_field(topic)
    if record[at : at + len(field)] == field and record[7] == log.magic_of(topic) & 0xFF:
        copy = bytearray(record)
    else:
        copy = bytearray().join((record[:at], field, record[end:]))
        _SIZE_MAGIC.pack_into(copy, 0, len(copy), log.magic_of(topic))
    _I32.pack_into(copy, 12, queue_id)
    _I64X2.pack_into(copy, log.QUEUE_OFFSET_AT, queue_offset, physical_offset)
    _I64.pack_into(copy, log.STORE_MS_AT + (V6_MORE if record[39] & log.BORN_HOST_V6 else 0), store_ms)
    sums.seal(copy, at + len(field) + 2)
    return copy


def placed(records: Sequence[bytes] | LogRecords, topic: bytes, queue_id: int, first_queue_offset: int, store_ms: int) -> Encoded:
    """Return records of whatever topics as records of one queue, one behind the other from ``first_queue_offset`` on.

    Only what is at a fixed place is written into a record that has the topic already; any other is built again around the same body and
    properties. The records are copied; physical offsets are 0 until ``Encoded.place``.
    """
    if isinstance(records, LogRecords):
        held = Encoded(records.encoded.data.copy(), records.encoded.starts, records.encoded.sizes)
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
    """Return due timers, records of the wheel topic that are in ``buffer``, as records of the topics that they wait for, in this order.

    The same bytes as ``message_records.as_delivered`` gives for each. What stands behind the bodies is mostly alike: those of one kind are
    cut together, as the columns of a matrix; of any other record, or where there are few of a kind, each goes alone.
    """
    if len(starts) <= _FEW:
        return LogRecords(joined(_one_by_one(buffer, starts, sizes)))
    data = np.frombuffer(buffer, np.uint8)
    behind = topic_places(data, starts)
    kinds = list(_kinds(data, starts, behind, starts + sizes))
    rest = np.ones(len(starts), np.bool_)
    for kind in kinds:
        rest[kind.rows] = False
    alone = np.flatnonzero(rest)
    others = _one_by_one(buffer, starts[alone], sizes[alone]) if len(alone) else []
    heads = behind - starts
    if len(kinds) == 1 and not others and (heads == heads[0]).all():
        (only,), head_bytes = kinds, int(heads[0])
        made = np.empty((len(starts), head_bytes + only.tails.shape[1]), np.uint8)
        # Of one kind that is all of them, the rows are in their order.
        made[:, :head_bytes] = matrix_at(data, starts, head_bytes)
        made[:, head_bytes:] = only.tails
        ends = np.arange(1, len(starts) + 1) * made.shape[1]
        held = Encoded(made.reshape(-1), ends - made.shape[1], np.full(len(starts), made.shape[1]))
    else:
        held = _put_together(data, starts, behind, kinds, alone, joined(others))
    cells(held.data, ">i4")[held.starts] = held.sizes
    queue_ids = cells(held.data, ">i4")[held.starts + 12].astype(np.int64)
    for kind in kinds:
        queue_ids[kind.rows] = kind.queue_ids
    address(held, queue_ids, np.zeros(len(starts), np.int64), 0)
    may_have_tags = any(kind.may_have_tags for kind in kinds) or any(TAGS in bytes(record) for record in others)
    is_one = len(kinds) == 1 and not others and kinds[0].topic is not None
    return LogRecords(held, one_topic(kinds[0].topic or b"", held) if is_one else None, may_have_tags=may_have_tags)


def _put_together(data: Octets, starts: Ints, behind: Ints, kinds: list[Kind], alone: Ints, others: Encoded) -> Encoded:
    """Return records of kinds, from ``starts`` to ``behind`` and what their kind has for them then, and those that go ``alone``."""
    behind = behind.copy()
    behind[alone] = starts[alone]
    pool, bounds, picks = [others.data], [np.append(others.starts, len(others.data))], np.zeros(len(starts), np.int64)
    picks[alone] = np.arange(len(alone))
    at, number = len(others.data), len(alone) + 1
    for kind in kinds:
        count, width = kind.tails.shape
        pool.append(kind.tails.reshape(-1))
        bounds.append(at + width * np.arange(count + 1))
        picks[kind.rows] = number + np.arange(count)
        at, number = at + width * count, number + count + 1
    tails = pieces_of(np.concatenate(pool), np.concatenate(bounds)).take(numbers_column(picks))
    sizes = behind - starts + lengths_of(tails)
    parts = [measure(stretches_of(data, starts, behind)), measure(tails)]
    return Encoded(join_columns(parts, len(starts), int(sizes.sum())), np.cumsum(sizes) - sizes, sizes)


def _one_by_one(buffer: Bytes, starts: Ints, sizes: Ints) -> list[Bytes]:
    view = memoryview(buffer)
    return [as_delivered(view[start:end]) for start, end in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)]


class Kind(NamedTuple):
    """Timers that are alike behind their bodies: which rows they are, what their records have there, and their queues.

    ``topic`` is None when they go to several.
    """

    rows: Ints
    tails: Octets
    queue_ids: Ints
    topic: bytes | None
    may_have_tags: bool


def _kinds(data: Octets, starts: Ints, behind: Ints, ends: Ints) -> Iterator[Kind]:
    """Yield the kinds of which there are many; what is behind the bodies starts at ``behind``."""
    widths = np.where(cells(data, ">i4")[starts + 4] == log.MAGIC_V1, ends - behind, 0)
    for width in np.unique(widths[widths > len(_WHEEL_FIELD)]).tolist():
        rows = np.flatnonzero(widths == width)
        for _ in range(_KINDS_OF_A_WIDTH):
            if len(rows) <= _FEW:
                break
            tails = matrix_at(data, behind[rows], width)
            layout = _layout_of(tails[0].tobytes())
            if layout is None:
                rows = rows[1:]
                continue
            alike, queue_ids = _alike(tails, layout)
            if not alike.all():
                tails, queue_ids = tails[alike], queue_ids[alike]
            if (kind := _cut(rows[alike], tails, queue_ids, layout)) is not None:
                yield kind
            rows = rows[~alike]


class Entry(NamedTuple):
    """Where a property starts, where its value does, and where that ends."""

    start: int
    value: int
    end: int


class Layout(NamedTuple):
    """Where the parts are of what stands behind the body of a timer.

    Its own properties are the last ones: ``entries`` are ``REAL_TOPIC``, ``REAL_QID``, ``TIMER_OUT_MS``, and what the engine noted.
    ``kept`` is where the properties before them start, and ``sum`` where the sum does.
    """

    kept: int
    entries: list[Entry]
    sum: int


def _layout_of(tail: bytes) -> Layout | None:
    """Return where the parts are; None when it is no regular timer, or has more than these."""
    kept, sum_at = len(_WHEEL_FIELD) + _LENGTH_BYTES, sums.place_in(tail)
    if not tail.startswith(_WHEEL_FIELD) or sum_at < kept or tail[sum_at - 1] != _END:
        return None
    at = tail.rfind(_TOPIC, kept, sum_at) + 1
    if not at:
        return None
    entries = []
    while at < sum_at:
        value, end = tail.find(b"\x01", at, sum_at) + 1, tail.find(b"\x02", at, sum_at)
        if not at < value <= end:
            return None
        entries.append(Entry(at, value, end))
        at = end + 1
    names = [tail[each.start : each.value] for each in entries]
    topic_bytes = entries[0].end - entries[0].value
    if names[1:3] != [_QUEUE, _OUT] or not all(name in _NOTED for name in names[3:]) or not 0 < topic_bytes <= log.MAX_V1_TOPIC_BYTES:
        return None
    return Layout(kept, entries, sum_at)


def _alike(tails: Octets, layout: Layout) -> tuple[Flags, Ints]:
    """Say which timers have the parts that the first one has, where that has them; and their queues.

    Compared is all that says so: the wheel's topic, the length of the properties, and the names of those that are not kept, with what ends
    their values.
    """
    fixed = [(0, layout.kept), (layout.sum - 1, layout.sum + sums.DIGITS_AT), (tails.shape[1] - 1, tails.shape[1])]
    fixed += [(entry.start - 1, entry.value) for entry in layout.entries]
    values = [(entry.value, entry.end) for entry in layout.entries]
    if tails.shape[1] > (frame := layout.sum + sums.PROPERTY_BYTES):
        fixed.append((frame - 1, frame + len(sums.FRAME)))
        values.append((frame, tails.shape[1] - 1))
    alike = np.ones(len(tails), np.bool_)
    for right in (
        *(tails[:, begin:end] == tails[0, begin:end] for begin, end in fixed),
        *(tails[:, begin:end] != _END for begin, end in values),
    ):
        if not right.all():
            alike &= right.all(axis=1)
    digits = tails[:, layout.entries[1].value : layout.entries[1].end]
    width = digits.shape[1]
    if not 0 < width <= _MAX_DIGITS:
        return np.zeros(len(tails), np.bool_), np.zeros(len(tails), np.int64)
    if (digits == digits[0]).all() and digits[0].tobytes().isdigit():
        return alike, np.full(len(tails), int(digits[0].tobytes()))
    are_numbers = ((digits >= ord("0")) & (digits <= ord("9"))).all(axis=1)
    queue_ids = np.where(are_numbers, (digits.astype(np.int64) - ord("0")) @ 10 ** np.arange(width)[::-1], NONE)
    if width == len(b"-1"):
        are_numbers |= (digits == np.frombuffer(b"-1", np.uint8)).all(axis=1)
    return alike & are_numbers, queue_ids


def _cut(rows: Ints, tails: Octets, queue_ids: Ints, layout: Layout) -> Kind | None:
    """Return timers of one kind as they go to their topics; None when there is none, or some keep what only one that waits has use for."""
    if not len(rows):
        return None
    topic, _, out = layout.entries[:3]
    kept = np.ascontiguousarray(tails[:, layout.kept : topic.start]).tobytes()
    if any(name in kept for name in OF_WAITING):
        return None
    topic_bytes, kept_bytes, out_bytes = topic.end - topic.value, topic.start - layout.kept, out.end + 1 - out.start
    text = 1 + topic_bytes + _LENGTH_BYTES
    made = np.empty((len(rows), text + kept_bytes + out_bytes + sums.PROPERTY_BYTES), np.uint8)
    made[:, 0] = topic_bytes
    made[:, 1 : 1 + topic_bytes] = tails[:, topic.value : topic.end]
    made[:, 1 + topic_bytes : text] = np.frombuffer((made.shape[1] - text).to_bytes(_LENGTH_BYTES), np.uint8)
    made[:, text : text + kept_bytes] = tails[:, layout.kept : topic.start]
    made[:, text + kept_bytes : -sums.PROPERTY_BYTES] = tails[:, out.start : out.end + 1]
    made[:, -sums.PROPERTY_BYTES :] = np.frombuffer(sums.ROOM, np.uint8)
    topics = tails[:, topic.value : topic.end]
    name = topics[0].tobytes() if (topics == topics[0]).all() else None
    return Kind(rows, made, queue_ids, name, TAGS in kept)
