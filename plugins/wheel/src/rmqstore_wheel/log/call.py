"""A call on its way into the log: what it appends is gathered by queue, what caches will hold of it is written first, then its frame.

What is written before the frame lies where nobody looks. Nobody sees any of it before the commits that come out here are done, which cannot
fail; see ``ledger`` for why that loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np

from rmqstore_wheel.formats import commit_log as log_format
from rmqstore_wheel.formats import consume_queue
from rmqstore_wheel.formats import properties as texts
from rmqstore_wheel.formats.binary_columns import Bytes, Ints, cells
from rmqstore_wheel.formats.log_columns import Encoded, joined
from rmqstore_wheel.log import frames, journal
from rmqstore_wheel.log.commit_log import CommitLog
from rmqstore_wheel.log.consume_queues import ConsumeQueues
from rmqstore_wheel.log.journal import Change
from rmqstore_wheel.log.ledger_ports import Beside
from rmqstore_wheel.records import message_records as records
from rmqstore_wheel.records.addressing import placed, placed_one

_FEW = 32


Prepare = Callable[[Ints, Ints], Callable[[], None]]
"""Takes offsets and sizes of records in the log."""


class Messages(msgspec.Struct, frozen=True, gc=False):
    """Messages of one queue, ready for the log.

    Attributes:
        offset: queue offset of the first one, or those of all, which rise.
        records: their bytes; store times are in them, offsets are not.
        store_ms: the latest of their store times.
        codes: hashes of their tags.
        prepare: called with their places in the log before the call is written, to do what may fail; returns what is done after it.
    """

    topic: str
    queue: int
    offset: Ints | int
    records: Encoded
    store_ms: int
    codes: Ints | int = 0
    prepare: Prepare | None = None

    @property
    def offsets(self) -> Ints:
        """The queue offset of each."""
        return self.offset + np.arange(len(self.records.starts)) if isinstance(self.offset, int) else self.offset


class One(msgspec.Struct, frozen=True, gc=False):
    """One message of a queue, as :class:`Messages`; its queue offset is in its record."""

    topic: str
    queue: int
    offset: int
    record: Bytes
    store_ms: int
    code: int = 0
    prepare: Callable[[int, int], Callable[[], None]] | None = None

    def many(self) -> Messages:
        """Return it as a batch of one."""
        prepare = self.prepare
        wrapped = None if prepare is None else lambda offsets, sizes: prepare(int(offsets[0]), int(sizes[0]))
        return Messages(self.topic, self.queue, self.offset, joined([self.record]), self.store_ms, self.code, wrapped)


class Append(msgspec.Struct, frozen=True, gc=False):
    """Records that go to a queue, whatever topic they name."""

    topic: str
    queue: int
    offset: int
    records: Sequence[bytes]
    store_ms: int


def gathered(parts: Sequence[Any]) -> tuple[list[Messages | One], list[Change]]:
    """Return what a call appends, and what else it changes; appends to one queue that follow one another become one."""
    appended: list[Messages | One | Append] = []
    changes: list[Change] = []
    for part in parts:
        (appended if isinstance(part, (Messages, One, Append)) else changes).append(part)
    if len(appended) == 1 and (one := _one_of(appended[0])) is not None:
        return [one], changes
    messages: list[Messages | One] = []
    appends: dict[tuple[str, int, int, int], Sequence[bytes]] = {}
    growing: dict[tuple[str, int, int, int], list[bytes]] = {}
    ends: dict[tuple[str, int, int], tuple[str, int, int, int]] = {}
    for part in appended:
        if isinstance(part, Messages):
            messages.append(part)
        elif isinstance(part, One):
            messages.append(part.many())
        else:
            name = (part.topic, part.queue, part.store_ms)
            key = ends.get(name)
            if key is None or key[2] + len(appends[key]) != part.offset:
                key = ends[name] = (part.topic, part.queue, part.offset, part.store_ms)
                appends[key] = part.records
                continue
            # A revive appends its messages one by one.
            if key not in growing:
                appends[key] = growing[key] = list(appends[key])
            growing[key] += part.records
    for (topic, queue, offset, store_ms), found in appends.items():
        messages.append(Messages(topic, queue, offset, placed(found, topic.encode(), queue, offset, store_ms), store_ms, tags_codes(found)))
    return messages, changes


def _one_of(part: Messages | One | Append) -> One | None:
    """Return a message that goes alone; None when there are more."""
    if isinstance(part, One):
        return part
    if isinstance(part, Messages) or len(part.records) != 1:
        return None
    record = part.records[0]
    code = consume_queue.tags_code(records.tag_of(record).decode())
    made = placed_one(record, part.topic.encode(), part.queue, part.offset, part.store_ms)
    return One(part.topic, part.queue, part.offset, made, part.store_ms, code)


def tags_codes(found: Sequence[bytes]) -> Ints | int:
    """Return what consume queues hold of the tags of records."""
    if isinstance(found, records.LogRecords):
        if not found.may_have_tags or records.TAGS not in found.encoded.data.tobytes():
            return 0
    elif len(found) <= _FEW:
        return np.array([consume_queue.tags_code(records.tag_of(each).decode()) for each in found], np.int64)
    elif not any(records.TAGS in each for each in found):
        return 0
    return consume_queue.tags_codes(records.property_columns(found, [texts.TAG])[texts.TAG])


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
        if len(body) > journal.PIECE_BYTES:
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
    groups, last = journal.cut(call.changes) if call.changes else [], pieces[-1] if pieces else None
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
