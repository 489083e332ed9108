"""A call on its way into the log: what it appends is gathered by queue, what caches will hold of it is written first, then its frame.

What is written before the frame is where no reader looks. No reader sees any of it before the commits that come out here are done, which
cannot fail; see ``ledger`` for why that loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import msgspec
import numpy as np

from rmqstore.engine.kv.base import WriteBatch
from rmqstore_wheel.formats import commit_log as log_format, consume_queue
from rmqstore_wheel.formats.binary_columns import Bytes, Ints, cells, stretches_of
from rmqstore_wheel.formats.log_columns import Encoded, joined
from rmqstore_wheel.log import frames, journal
from rmqstore_wheel.log.commit_log import CommitLog
from rmqstore_wheel.log.consume_queues import ConsumeQueues
from rmqstore_wheel.log.journal import Change, ClearOffsets, DropQueue
from rmqstore_wheel.records import message_records, parts as record_parts
from rmqstore_wheel.records.addressing import placed, placed_one

_FEW = 32

_WITH_BODIES = 4
"""Records are searched bodies and all where they are not more than so many times their properties."""

Entries = Callable[[Ints, Ints], Callable[[], None]]
"""Writes what caches will hold of messages, where no reader looks, given where in the log they will be and how long they are.

It returns what counts that in once the call is written, which cannot fail; raises ``OSError``."""

Entry = Callable[[int, int], Callable[[], None]]
"""As :data:`Entries`, of one message."""


class Messages(msgspec.Struct, frozen=True, gc=False):
    """Messages of one queue, ready for the log.

    Attributes:
        offset: queue offset of the first one, or those of all, which rise.
        records: their bytes; store times are in them, offsets are not.
        store_ms: the latest of their store times.
        codes: hashes of their tags.
        entries: what caches beside the consume queue hold of them.
    """

    topic: str
    queue: int
    offset: Ints | int
    records: Encoded
    store_ms: int
    codes: Ints | int = 0
    entries: Entries | None = None

    @property
    def offsets(self) -> Ints:
        return self.offset + np.arange(len(self.records.starts)) if isinstance(self.offset, int) else self.offset


class One(msgspec.Struct, frozen=True, gc=False):
    """One message of a queue, as :class:`Messages`; its queue offset is in its record.

    ``text_at`` is where in the record the length of the properties is; -1 when that is to be looked up.
    """

    topic: str
    queue: int
    offset: int
    record: Bytes
    store_ms: int
    code: int = 0
    entry: Entry | None = None
    text_at: int = -1

    def many(self) -> Messages:
        entry = self.entry
        entries: Entries | None = None if entry is None else lambda offsets, sizes: entry(int(offsets[0]), int(sizes[0]))
        return Messages(self.topic, self.queue, self.offset, joined([self.record]), self.store_ms, self.code, entries)


def appended(topic: str, queue: int, offset: int, records: Sequence[bytes], store_ms: int) -> Messages | One:
    """Return records, whatever topics they name, as messages of one queue from ``offset`` on."""
    if len(records) > 1:
        made = placed(records, topic.encode(), queue, offset, store_ms)
        return Messages(topic, queue, offset, made, store_ms, tags_codes(records))
    record = records[0]
    code = consume_queue.tags_code(message_records.tag_of(record).decode()) if message_records.TAGS in record else 0
    return One(topic, queue, offset, placed_one(record, topic.encode(), queue, offset, store_ms), store_ms, code)


Part = Messages | One | ClearOffsets | DropQueue


class LogBatch(WriteBatch):
    """The changes of a call that is written to the log.

    Attributes:
        parts: what it appends, and takes away, of messages.
        consumes_at_ms: the time of a call that only gives leases or acks them, which a pop buffer may hold; None for another one.
    """

    parts: list[Part] = msgspec.field(default_factory=list)
    consumes_at_ms: int | None = None

    def __bool__(self) -> bool:
        return bool(self.ops or self.parts)


def parts_of(batch: WriteBatch) -> list[Part]:
    """Return what a call of a store whose log this is appends and takes away."""
    assert isinstance(batch, LogBatch)
    return batch.parts


def gathered(parts: Sequence[Part]) -> tuple[list[Messages | One], list[Change]]:
    """Return what a call appends, and what else it changes; single messages of a queue that follow one another become a batch."""
    if len(parts) == 1 and isinstance(alone := parts[0], (Messages, One)):
        return [alone], []
    changes: list[Change] = []
    messages: list[list[Messages | One]] = []
    latest: dict[tuple[str, int, int], list[Messages | One]] = {}
    for part in parts:
        if not isinstance(part, (Messages, One)):
            changes.append(part)
            continue
        run = latest.get(place := (part.topic, part.queue, part.store_ms))
        # A revive appends its messages one by one.
        if isinstance(part, One) and part.entry is None and run is not None and run[0].offset + len(run) == part.offset:
            run.append(part)
        else:
            messages.append([part])
            if isinstance(part, One) and part.entry is None:
                latest[place] = messages[-1]
    return [_batch_of(run) if len(run) > 1 else run[0] for run in messages], changes


def _batch_of(run: Sequence[Messages | One]) -> Messages:
    ones = [each for each in run if isinstance(each, One)]
    first = ones[0]
    codes = np.array([each.code for each in ones], np.int64)
    return Messages(first.topic, first.queue, first.offset, joined([each.record for each in ones]), first.store_ms, codes)


def tags_codes(found: Sequence[bytes]) -> Ints | int:
    """Return what consume queues hold of the tags of records."""
    if isinstance(found, message_records.LogRecords):
        if not found.may_have_tags or message_records.TAGS not in _texts_of(found.encoded):
            return 0
    elif len(found) <= _FEW:
        return np.array([consume_queue.tags_code(message_records.tag_of(each).decode()) for each in found], np.int64)
    elif not any(message_records.TAGS in each for each in found):
        return 0
    return consume_queue.tags_codes(message_records.tag_column(found))


def _texts_of(encoded: Encoded) -> bytes:
    """Return all that properties of records are in: the records themselves, unless most of that are bodies."""
    starts, ends = encoded.starts, encoded.starts + encoded.sizes
    begins = record_parts.text_places(encoded.data, starts)
    if _WITH_BODIES * int((ends - begins).sum()) > len(encoded.data):
        return encoded.data.tobytes()
    return stretches_of(encoded.data, begins, ends).buffers()[2].to_pybytes()  # type: ignore[no-any-return]


class BrokerRecords(msgspec.Struct, gc=False):
    """Records for brokers, which go before the journal record of a call. Their queue offsets are in them.

    Attributes:
        store_ms: the latest of their store times.
        publish: called with their places in the log once they are there.
    """

    records: Sequence[bytes]
    store_ms: int
    publish: Callable[[Sequence[int]], None]


class Call(msgspec.Struct, frozen=True, gc=False):
    """What a call writes.

    Attributes:
        messages: that it appends.
        changes: what else it changes, which becomes one journal record or more.
        for_brokers: records that go before the first of these.
        journal: number of the next journal record.
        store_ms: the store time of journal records.
        epoch: the open epoch.
    """

    log: CommitLog
    queues: ConsumeQueues
    messages: Sequence[Messages | One]
    changes: Sequence[Change]
    for_brokers: BrokerRecords | None
    journal: int
    store_ms: int
    epoch: int

    def commit(self) -> int:
        """Write what caches will hold, then the frame, and let readers see it; returns how many journal records it has.

        A call of one message at most goes without arrays, unless it begins another file.

        Raises:
            OSError: the disk failed or has no room; no reader sees anything of the call.
        """
        one = self.messages[0] if self.messages else None
        if len(self.messages) > 1 or isinstance(one, Messages):
            return self._commit_many()
        log = self.log
        records: list[Bytes] = [] if one is None else [one.record]
        if self.for_brokers is not None:
            records += self.for_brokers.records
        text_at = -1
        if one is not None:
            text_at = record_parts.parts_of(one.record)[3] if one.text_at < 0 else one.text_at
        in_journal = 0
        if self.changes or one is None or len(one.record) - text_at - 2 > frames.MOST_TEXT_BYTES:
            in_journal = 1
            records.append(journal.record(self.changes, self.journal, self.store_ms))
            text_at = len(records[-1]) - 2
            if text_at > journal.PIECE_BYTES:
                return self._commit_many()
        place = log.tail
        frame = frames.whole(records, text_at, place, self.epoch, log.durable, log.file_bytes)
        if frame is None:
            return self._commit_many()
        publishers: list[Callable[[], None]] = []
        if one is not None:
            size = len(one.record) + (frames.PROPERTY_BYTES if len(records) == 1 else 0)
            publishers.append(self.queues.reserve_one(one.topic, one.queue, one.offset, place, size, one.code))
            if one.entry is not None:
                publishers.append(one.entry(place, size))
        log.write_whole(frame)
        for publish in publishers:
            publish()
        if self.for_brokers is not None:
            self.for_brokers.publish([*accumulate(map(len, records[:-1]), initial=place)][len(self.messages) : -1])
        return in_journal

    def _commit_many(self) -> int:
        """As :meth:`commit`, of any call."""
        messages = [each.many() if isinstance(each, One) else each for each in self.messages]
        pieces = [each.records for each in messages]
        ends = np.cumsum([len(piece.starts) for piece in pieces])
        queue_offsets = [each.offsets for each in messages]
        for each, offsets in zip(messages, queue_offsets, strict=True):
            cells(each.records.data, ">i8")[each.records.starts + log_format.QUEUE_OFFSET_AT] = offsets
        groups, last = journal.cut(self.changes) if self.changes else [], pieces[-1] if pieces else None
        if not groups and (last is None or not frames.has_room_in(bytes(last.data[int(last.starts[-1]) :]))):
            groups = [[]]
        for at, group in enumerate(groups):
            record = journal.record(group, self.journal + at, self.store_ms)
            before = self.for_brokers.records if self.for_brokers is not None and not at else ()
            pieces.append(frames.one(record, is_last=at == len(groups) - 1, before=before))
        if not groups and last is not None:
            pieces[-1:] = frames.with_room(last)
        planned = self.log.plan(pieces)
        *places, others = np.split(np.concatenate([offset + piece.starts for offset, piece in planned]), ends)
        *sizes, _ = np.split(np.concatenate([piece.sizes for _, piece in planned]), ends)
        publishers: list[Callable[[], None]] = []
        for name, rows in _by_queue(messages).items():
            units = [(queue_offsets[row], places[row], sizes[row], _each(messages[row].codes, places[row])) for row in rows]
            columns = units[0] if len(units) == 1 else [np.concatenate(column) for column in zip(*units, strict=True)]
            publishers.append(self.queues.reserve(*name, *columns))
        for each, offsets, lengths in zip(messages, places, sizes, strict=True):
            if each.entries is not None:
                publishers.append(each.entries(offsets, lengths))
        self.log.write(planned, self.epoch)
        for publish in publishers:
            publish()
        if self.for_brokers is not None:
            self.for_brokers.publish(others[: len(self.for_brokers.records)].tolist())
        return len(groups)


def _by_queue(messages: Sequence[Messages]) -> dict[tuple[str, int], list[int]]:
    """Return which messages go to each queue, in the order of their offsets."""
    found: dict[tuple[str, int], list[int]] = {}
    for row, each in enumerate(messages):
        found.setdefault((each.topic, each.queue), []).append(row)
    return found


def _each(codes: Ints | int, places: Ints) -> Ints:
    return np.full(len(places), codes) if isinstance(codes, int) else codes
