"""Copies of messages at the end of the commit log: the same messages at the same offsets of the same queues."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from rmqstore_wheel.formats import commit_log as log_format, log_reading
from rmqstore_wheel.formats.binary_columns import Flags, Ints, cells, measure
from rmqstore_wheel.formats.log_columns import Columns, Encoded
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.log import frames
from rmqstore_wheel.log.call import Entries, Messages
from rmqstore_wheel.log.ledger import Ledger
from rmqstore_wheel.queues.soundness import sound_rows
from rmqstore_wheel.records.parts import body_places, topic_places
from rmqstore_wheel.timers.index import TimerIndex
from rmqstore_wheel.timers.records import read_keys


def copy_timers(ledger: Ledger, index: TimerIndex, seqs: Ints) -> None:
    """Copy the messages of timers, by seqs that rise; those that cannot be read stay where they are.

    Raises:
        StoreFullError: no room; some of them may be copied.
    """
    log = ledger.log
    units = index.queue_units(seqs)
    offsets, sizes = units["log_offset"].astype(np.int64), units["size"].astype(np.int64)
    files = offsets // log.file_bytes * log.file_bytes
    # A frame of copies has to fit into a file.
    most = min(ledger.sizes.slice_bytes, log.file_bytes // 4)
    pieces = np.cumsum(sizes) // most
    bounds = np.flatnonzero((np.diff(files) != 0) | (np.diff(pieces) != 0)) + 1
    for begin, stop in pairwise([0, *bounds.tolist(), len(seqs)]):
        if begin == stop:
            continue
        file_start = int(files[begin])
        starts = offsets[begin:stop] - file_start
        sound = sound_rows(log, file_start, starts, sizes[begin:stop], WHEEL_TOPIC.encode(), 0, seqs[begin:stop] - 1)
        rows = begin + np.flatnonzero(sound)
        if not len(rows):
            continue
        place = Stretch(log.chain.view(file_start), file_start, starts[sound], sizes[rows])
        copies = copies_of(index, place, WHEEL_TOPIC, 0, seqs[rows] - 1, np.zeros(len(rows), np.bool_))
        ledger.append([copies], noted=[index.copied(seqs[rows])])


class Stretch(NamedTuple):
    """Sound records of a file of the log: what it holds, where it starts, and where in it they are."""

    view: memoryview
    file_start: int
    starts: Ints
    sizes: Ints


def copies_of(index: TimerIndex, place: Stretch, topic: str, queue: int, offsets: Ints, spare: Flags, codes: Ints | int = 0) -> Messages:
    """Return copies of records of a queue, and for those of timers what enters their keys for the new places.

    Args:
        spare: which of them are copied without their bodies.
        codes: hashes of their tags.
    """
    found = log_reading.decode_columns(place.view, place.starts, place.sizes, log_offset=place.file_start)
    keys = _with_keys(index, found) if topic == WHEEL_TOPIC else None
    return Messages(topic, queue, offsets, without_frames(place, found, spare), int(np.max(np.asarray(found.store_ms))), codes, keys)


def _with_keys(index: TimerIndex, found: Columns) -> Entries:
    hashes, rows = read_keys(found)
    times = np.asarray(found.store_ms)[rows]
    return lambda offsets, _: partial(index.keys.add_many, hashes, offsets[rows], times)


def without_frames(place: Stretch, found: Columns, spare: Flags) -> Encoded:
    """Return copies of records, which were read, without what those say of a frame that end one; their sums stay."""
    view, _, starts, sizes = place
    source = np.frombuffer(view, np.uint8)
    ends, bare = frames.ends_of(source, starts, sizes), np.flatnonzero(spare)
    shorter = sizes.copy()
    shorter[ends] -= frames.PROPERTY_BYTES
    # Around a body that is left out are two pieces.
    bodies = body_places(source, starts[bare])
    behind = topic_places(source, starts[bare])
    lasts = starts[bare] + shorter[bare] - behind
    lengths = shorter.copy()
    lengths[bare] = bodies - starts[bare]
    data = np.frombuffer(
        bytearray().join(_stretches(view, np.insert(starts, bare + 1, behind), np.insert(lengths, bare + 1, lasts))), np.uint8
    )
    shorter[bare] -= behind - bodies
    places = np.cumsum(shorter) - shorter
    if len(bare):
        cells(data, ">i4")[places[bare]] = shorter[bare]
        cells(data, ">i4")[places[bare] + log_format.BODY_CRC_AT] = log_format.body_crc(b"")
        cells(data, ">i4")[places[bare] + (bodies - starts[bare]) - 4] = 0
    if len(ends):
        lengths = np.broadcast_to(measure(found.text).lengths, len(starts))[ends]
        cells(data, ">i4")[places[ends]] = shorter[ends]
        cells(data, ">i2")[places[ends] + shorter[ends] + frames.PROPERTY_BYTES - lengths - 2] = lengths - frames.PROPERTY_BYTES
    return Encoded(data, places, shorter)


def _stretches(view: memoryview, starts: Ints, sizes: Ints) -> Sequence[Any]:
    """Return the bytes of records, those that are side by side in one piece."""
    ends = starts + sizes
    bounds = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    pairs = pairwise([0, *bounds.tolist(), len(starts)])
    return [view[int(starts[begin]) : int(ends[stop - 1])] for begin, stop in pairs]
