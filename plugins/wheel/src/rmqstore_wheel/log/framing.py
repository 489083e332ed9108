"""A call on its way into the log: what caches will hold of it is written first, where nobody looks, then its frame.

Nobody sees any of it before the commits that come out here are done, which cannot fail; see ``ledger`` for why that loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

import msgspec
import numpy as np

from rmqstore_wheel.formats import commit_log as log_format
from rmqstore_wheel.formats.binary_columns import Bytes, Ints, cells
from rmqstore_wheel.formats.log_columns import Encoded
from rmqstore_wheel.log import frames, journal, state
from rmqstore_wheel.log.appending import Messages, One
from rmqstore_wheel.log.commit_log import CommitLog
from rmqstore_wheel.log.consume_queues import ConsumeQueues
from rmqstore_wheel.log.journal import Change
from rmqstore_wheel.log.ledger_ports import Beside


class Call(msgspec.Struct, frozen=True, gc=False):
    """What a call writes.

    Attributes:
        messages: that it appends.
        changes: what else it changes, which becomes one journal record or more.
        beside: records that go before the first of these.
        journal: number of the next journal record.
        store_ms: the store time of journal records.
        epoch: the open epoch.
    """

    messages: Sequence[Messages | One]
    changes: Sequence[Change]
    beside: Beside | None
    journal: int
    store_ms: int
    epoch: int


class Written(msgspec.Struct, frozen=True, gc=False):
    """What is to be done once the frame is written, and how many journal records it has."""

    commits: list[Callable[[], None]]
    journal_records: int


def write(log: CommitLog, queues: ConsumeQueues, call: Call) -> Written:
    """Write a call; one of one message at most goes without arrays, unless its frame begins another file.

    Raises:
        OSError: the disk failed or has no room; nobody sees anything of the call.
    """
    one = call.messages[0] if call.messages else None
    if len(call.messages) > 1 or isinstance(one, Messages):
        return _write_many(log, queues, call)
    records: list[Bytes] = [] if one is None else [one.record]
    before = () if call.beside is None else call.beside.records
    first_beside = len(records)
    records += before
    if call.changes or one is None or not frames.has_room_in(one.record):
        body = journal.encode(call.changes)
        if len(body) > state.PIECE_BYTES:
            return _write_many(log, queues, call)
        records.append(journal.record(body, call.journal, call.store_ms))
    places = log.places_of(records)
    if places is None:
        return _write_many(log, queues, call)
    commits: list[Callable[[], None]] = []
    if one is not None:
        size = len(one.record) + (frames.PROPERTY_BYTES if len(records) == 1 else 0)
        commits.append(queues.prepare_one(one.topic, one.queue, one.offset, places[0], size, one.code))
        if one.prepare is not None:
            commits.append(one.prepare(places[0], size))
    if call.beside is not None:
        commits.append(partial(call.beside.commit, places[first_beside:-1]))
    log.write_few(records, call.epoch)
    return Written(commits, len(records) - first_beside - len(before))


def _write_many(log: CommitLog, queues: ConsumeQueues, call: Call) -> Written:
    """Write any call."""
    messages = [each.many() if isinstance(each, One) else each for each in call.messages]
    pieces = [each.records for each in messages]
    queue_offsets = [each.offsets for each in messages]
    for each, offsets in zip(messages, queue_offsets, strict=True):
        cells(each.records.data, ">i8")[each.records.starts + log_format.QUEUE_OFFSET_AT] = offsets
    groups, last = state.cut(call.changes) if call.changes else [], pieces[-1] if pieces else None
    if not groups and (last is None or not frames.has_room_in(bytes(last.data[int(last.starts[-1]) :]))):
        groups = [[]]
    for at, group in enumerate(groups):
        record = journal.record(journal.encode(group), call.journal + at, call.store_ms)
        before = call.beside.records if call.beside is not None and not at else ()
        pieces.append(frames.one(record, is_last=at == len(groups) - 1, before=before))
    if not groups and last is not None:
        pieces[-1] = frames.with_room(last)
    planned = log.plan(pieces)
    places = [_places_of(piece) for piece in pieces[: len(messages)]]
    commits: list[Callable[[], None]] = []
    for name, rows in _by_queue(messages).items():
        units = [(queue_offsets[row], places[row], pieces[row].sizes, _each(messages[row].codes, places[row])) for row in rows]
        columns = units[0] if len(units) == 1 else [np.concatenate(column) for column in zip(*units, strict=True)]
        commits.append(queues.prepare(*name, *columns))
    for each, offsets, piece in zip(messages, places, pieces, strict=False):
        if each.prepare is not None:
            commits.append(each.prepare(offsets, piece.sizes))
    if call.beside is not None:
        commits.append(partial(call.beside.commit, _first_places(pieces[len(messages)], call.beside.records)))
    log.write(planned, call.epoch)
    return Written(commits, len(groups))


def _by_queue(messages: Sequence[Messages]) -> dict[tuple[str, int], list[int]]:
    """Return which messages go to each queue, in the order of their offsets."""
    found: dict[tuple[str, int], list[int]] = {}
    for row, each in enumerate(messages):
        found.setdefault((each.topic, each.queue), []).append(row)
    return found


def _each(codes: Ints | int, places: Ints) -> Ints:
    return np.full(len(places), codes) if isinstance(codes, int) else codes


def _places_of(records: Encoded) -> Ints:
    """Return where in the log records lie that were planned."""
    found: Ints = cells(records.data, ">i8")[records.starts + log_format.PHYSICAL_OFFSET_AT].astype(np.int64)
    return found


def _first_places(piece: Encoded, records: Sequence[bytes]) -> list[int]:
    """Return where in the log the first records of a piece lie, without the price of numpy for few."""
    starts = accumulate(map(len, records[:-1]), initial=log_format.PHYSICAL_OFFSET_AT)
    return [int.from_bytes(piece.data[at : at + 8]) for at in starts]
