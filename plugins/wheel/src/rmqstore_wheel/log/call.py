"""A call on its way into the log: what it appends is gathered by queue, what caches will hold of it is written first, then its frame.

What is written before the frame is where no reader looks. No reader sees any of it before the commits that come out here are done, which
cannot fail; see ``ledger`` for why that loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Final

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

FEW: Final = 96
"""So many messages of a call go without arrays, which take longer than their rows."""

_WITH_BODIES = 4
"""Records are searched bodies and all where they are not more than so many times their properties."""

Entries = Callable[[Ints, Ints], Callable[[], None]]
"""Writes what caches will hold of messages, where no reader looks, given where in the log they will be and how long they are.

It returns what counts that in once the call is written, which cannot fail; raises ``OSError``."""

FewEntries = Callable[[Sequence[int], Sequence[int]], Callable[[], None]]
"""As :data:`Entries`, of a few messages."""


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


class Few(msgspec.Struct, frozen=True, gc=False):
    """A few messages of a queue at offsets that follow one another, as :class:`Messages`; their queue offsets are in their records.

    ``text_at`` is where in the last record the length of the properties is; -1 when that is to be looked up.
    """

    topic: str
    queue: int
    offset: int
    records: Sequence[Bytes]
    store_ms: int
    codes: Sequence[int]
    entries: FewEntries | None = None
    text_at: int = -1

    def many(self) -> Messages:
        few = self.entries
        entries: Entries | None = None if few is None else lambda offsets, sizes: few(offsets.tolist(), sizes.tolist())
        return Messages(self.topic, self.queue, self.offset, joined(self.records), self.store_ms, np.array(self.codes, np.int64), entries)


def appended(topic: str, queue: int, offset: int, records: Sequence[bytes], store_ms: int) -> Messages | Few:
    """Return records, whatever topics they name, as messages of one queue from ``offset`` on."""
    name, count = topic.encode(), len(records)
    if count > FEW:
        return Messages(topic, queue, offset, placed(records, name, queue, offset, store_ms), store_ms, tags_codes(records))
    few, codes = [], []
    for at in range(count):
        record = records[at]
        few.append(placed_one(record, name, queue, offset + at, store_ms))
        codes.append(consume_queue.tags_code(message_records.tag_of(record).decode()) if message_records.TAGS in record else 0)
    return Few(topic, queue, offset, few, store_ms, codes)


Part = Messages | Few | ClearOffsets | DropQueue


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


def gathered(parts: Sequence[Part]) -> tuple[list[Messages | Few], list[Change]]:
    """Return what a call appends, and what else it changes; a few messages of a queue that follow others of it go with them."""
    if len(parts) == 1 and isinstance(alone := parts[0], (Messages, Few)):
        return [alone], []
    changes: list[Change] = []
    messages: list[Messages | list[Few]] = []
    latest: dict[tuple[str, int, int], list[Few]] = {}
    for part in parts:
        if isinstance(part, Messages):
            messages.append(part)
        elif not isinstance(part, Few):
            changes.append(part)
        else:
            run = latest.get(place := (part.topic, part.queue, part.store_ms))
            # A revive appends its messages one by one.
            if part.entries is None and run is not None and run[-1].offset + len(run[-1].records) == part.offset:
                run.append(part)
            else:
                messages.append(run := [part])
                if part.entries is None:
                    latest[place] = run
    return [each if isinstance(each, Messages) else each[0] if len(each) == 1 else _joined_run(each) for each in messages], changes


def _joined_run(run: Sequence[Few]) -> Messages | Few:
    first = run[0]
    records, codes = ([*chain.from_iterable(column)] for column in zip(*((each.records, each.codes) for each in run), strict=True))
    found = Few(first.topic, first.queue, first.offset, records, first.store_ms, codes)
    return found if len(records) <= FEW else found.many()


def tags_codes(found: Sequence[bytes]) -> Ints | int:
    """Return what consume queues hold of the tags of records."""
    if isinstance(found, message_records.LogRecords):
        if not found.may_have_tags or message_records.TAGS not in _texts_of(found.encoded):
            return 0
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
    messages: Sequence[Messages | Few]
    changes: Sequence[Change]
    for_brokers: BrokerRecords | None
    journal: int
    store_ms: int
    epoch: int

    def commit(self) -> int:
        """Write what caches will hold, then the frame, and let readers see it; returns how many journal records it has.

        A call of a few messages of one queue, or of none, goes without arrays, unless it begins another file.

        Raises:
            OSError: the disk failed or has no room; no reader sees anything of the call.
        """
        few = self.messages[0] if self.messages else None
        if len(self.messages) > 1 or isinstance(few, Messages):
            return self._commit_many()
        log, text_at = self.log, -1
        records: list[Bytes] = []
        if few is not None:
            records += few.records
            text_at = record_parts.parts_of(records[-1])[3] if few.text_at < 0 else few.text_at
        count = len(records)
        if self.for_brokers is not None:
            records += self.for_brokers.records
        in_journal = 0
        if self.changes or few is None or len(few.records[-1]) - text_at - 2 > frames.MOST_TEXT_BYTES:
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
        if few is not None:
            sizes = [*map(len, few.records)]
            places = [place] if count == 1 else [*accumulate(sizes[:-1], initial=place)]
            if len(records) == count:
                sizes[-1] += frames.PROPERTY_BYTES
            publishers.append(self.queues.reserve_few(few.topic, few.queue, few.offset, places, sizes, few.codes))
            if few.entries is not None:
                publishers.append(few.entries(places, sizes))
        log.write_whole(frame)
        for publish in publishers:
            publish()
        if self.for_brokers is not None:
            self.for_brokers.publish([*accumulate(map(len, records[:-1]), initial=place)][count:-1])
        return in_journal

    def _commit_many(self) -> int:
        """As :meth:`commit`, of any call."""
        messages = [each.many() if isinstance(each, Few) else each for each in self.messages]
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
