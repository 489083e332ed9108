"""``Fetcher``: the messages of timers, read from the log by seq, and checked when they are.

The consume queue of the wheel's topic says where a message is. What is there must say so itself: its offset, its queue offset, the
length and the CRC of its body, and the sum of the rest (``sums``). What does not is parked: it becomes a message of ``%PARKED%`` that says
why (T12).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import starmap
from typing import Any, Final

import numpy as np

from rmqstore.batch import MessageBatch
from rmqstore.engine.runs import parked_message
from rmqstore.errors import CorruptStoreError
from rmqstore.late import pa
from rmqstore_wheel.formats import commit_log as log_format, log_reading, properties as texts
from rmqstore_wheel.formats.binary_columns import Bytes, Flags, Ints, cells
from rmqstore_wheel.formats.commit_log import Record
from rmqstore_wheel.formats.log_columns import Columns
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.formats.property_columns import decode_column
from rmqstore_wheel.log.commit_log import CommitLog
from rmqstore_wheel.log.ledger import Ledger
from rmqstore_wheel.queues.soundness import fault_of, gather, held
from rmqstore_wheel.records import message_records as records, sums
from rmqstore_wheel.records.addressing import for_delivery
from rmqstore_wheel.records.message_records import LogRecords, as_delivered
from rmqstore_wheel.records.parts import value_in

_FEW: Final = 8
"""So few messages are read one by one."""

_NONE: Final = LogRecords.of([])
_TOPIC: Final = WHEEL_TOPIC.encode()


Units = np.ndarray[Any, np.dtype[np.void]]


class Fetcher:
    """Reads messages of the wheel's topic."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def units(self, seqs: Ints) -> Units:
        """Return what the consume queue has of the messages of timers."""
        return self._ledger.queues.of(WHEEL_TOPIC, 0).gather(seqs - 1)

    def _locate(self, seqs: Ints, units: Units | None = None) -> tuple[Ints, Ints]:
        """Return where the messages of timers are in the log, and how long they are."""
        units = self.units(seqs) if units is None else units
        return units["log_offset"].astype(np.int64), units["size"].astype(np.int64)

    def messages(self, seqs: Ints, units: Units | None = None) -> MessageBatch:
        """Return the messages of timers, in the order of ``seqs``, as they go to their topics; ``units`` are theirs, if they are known."""
        if not len(seqs):
            return MessageBatch(source=_NONE)
        offsets, sizes = self._locate(seqs, units)
        if len(seqs) <= _FEW:
            places = zip(seqs.tolist(), offsets.tolist(), sizes.tolist(), strict=True)
            return MessageBatch(source=LogRecords(list(starmap(self._message, places))))
        log = self._ledger.log
        made: list[Bytes] = [b""] * len(seqs)
        for file_start, rows in _by_file(log, offsets):
            data, starts, sound = gather(log, file_start, offsets[rows] - file_start, sizes[rows], _TOPIC, 0, seqs[rows] - 1)
            if sound.all() and len(rows) == len(seqs):
                return MessageBatch(source=for_delivery(data, starts, sizes[rows]))
            good = rows[sound]
            for row, record in zip(good.tolist(), for_delivery(data, starts[sound], sizes[good]).records, strict=True):
                made[row] = record
            for row in rows[~sound].tolist():
                made[row] = self._message(int(seqs[row]), int(offsets[row]), int(sizes[row]))
        return MessageBatch(source=LogRecords.of(made))

    def _message(self, seq: int, offset: int, size: int) -> bytes:
        """Return the message of one timer as it goes to its topic, or what parks it."""
        raw = self._ledger.log.record(offset, size)
        if fault_of(raw, offset, _TOPIC, 0, seq - 1) is None:
            return as_delivered(raw)
        return records.encode_message(parked_message(raw, _reason(raw, seq, offset), f"timer {seq}"))

    def columns(self, seqs: Ints) -> dict[str, pa.Array]:
        """Return the columns of ``IN_SCHEMA`` and ``store_ms`` of some timers, in this order.

        Raises:
            CorruptStoreError: a record is not what it should be.
        """
        offsets, sizes = self._locate(seqs)
        log = self._ledger.log
        places: list[Ints] = []
        pieces: list[dict[str, pa.Array]] = []
        for file_start, rows in _by_file(log, offsets):
            data, starts, sound = gather(log, file_start, offsets[rows] - file_start, sizes[rows], _TOPIC, 0, seqs[rows] - 1)
            if not sound.all():
                at = int(rows[sound.argmin()])
                raise self._damage(int(seqs[at]), int(offsets[at]), int(sizes[at]))
            found = log_reading.decode_columns(data, starts, sizes[rows], verify=False)
            places.append(rows)
            pieces.append({**records.columns_of(found), "store_ms": pa.array(found.store_ms, pa.int64())})
        if len(pieces) == 1:
            return pieces[0]
        back = pa.array(np.argsort(np.concatenate(places), kind="stable"))
        return {name: pa.concat_arrays([piece[name] for piece in pieces]).take(back) for name in pieces[0]}

    def _damage(self, seq: int, offset: int, size: int) -> CorruptStoreError:
        log = self._ledger.log
        raw = log.record(offset, size)
        file = str(log.chain.path_of(offset))
        return CorruptStoreError(f"{file}: timer {seq}: {_reason(raw, seq, offset)}", file=file, offset=offset)

    def timer_columns(self, seqs: Ints) -> Columns:
        """Return the records of timers; one that cannot be read is empty."""
        offsets, sizes = self._locate(seqs)
        log = self._ledger.log
        file_start = int(offsets[0]) // log.file_bytes * log.file_bytes
        data, starts, sound = gather(log, file_start, offsets - file_start, sizes, _TOPIC, 0, seqs - 1)
        if sound.all():
            return log_reading.decode_columns(data, starts, sizes, verify=False)
        found = [self.record(offset, size) for offset, size in zip(offsets.tolist(), sizes.tolist(), strict=True)]
        texts = [b"" if each is None else each.properties for each in found]
        return Columns(topic=_TOPIC, body=pa.array([b""] * len(found), pa.binary()), properties=(pa.array(texts, pa.binary()),))

    def properties(self, seq: int) -> bytes:
        """Return the properties of the message of a timer; empty when it cannot be read."""
        offset, size, _ = self._ledger.queues.of(WHEEL_TOPIC, 0).read_one(seq - 1)
        record = self.record(offset, size)
        return b"" if record is None else record.properties

    def record(self, offset: int, size: int) -> Record | None:
        """Return the record at an offset of the log; None when no sound one of this size is there."""
        raw = self._ledger.log.record(offset, size)
        try:
            record = log_format.decode_record(raw, log_offset=offset)
        except CorruptStoreError:
            return None
        return record if sums.is_good(raw, size - len(record.properties)) else None

    def seqs_at(self, offsets: Sequence[int]) -> list[int]:
        """Return the seq that each message at some offsets of the log gives itself, unchecked; 0 where nothing is."""
        at, behind = log_format.QUEUE_OFFSET_AT, log_format.PHYSICAL_OFFSET_AT
        heads = (self._ledger.log.record(offset, log_format.MIN_BYTES) for offset in offsets)
        return [int.from_bytes(head[at:behind], signed=True) + 1 if head else 0 for head in heads]

    def with_key(self, offsets: Sequence[int], topic: str, key: str) -> Iterator[tuple[int, CorruptStoreError | None]]:
        """Yield the seqs of the timers at some offsets of the log that are of this topic and have this key.

        Of those that cannot be read it is unknown, so they are among them, each with the error that says where it is.
        """
        for offset in offsets:
            head = self._ledger.log.record(offset, log_format.MIN_BYTES)
            if not head:
                continue
            record = self.record(offset, int.from_bytes(head[:4], signed=True))
            if record is None:
                seq = int.from_bytes(head[log_format.QUEUE_OFFSET_AT : log_format.PHYSICAL_OFFSET_AT], signed=True) + 1
                if (size := self._size_at(seq, offset)) is not None:
                    yield seq, self._damage(seq, offset, size)
            elif record.topic == _TOPIC:
                text = record.properties
                if value_in(text, texts.REAL_TOPIC).decode() == topic and key in texts.split_keys(value_in(text, texts.KEYS).decode()):
                    yield record.queue_offset + 1, None

    def seqs_at_many(self, offsets: Ints) -> Ints:
        """As :meth:`seqs_at`, of many."""
        seqs = np.zeros(len(offsets), np.int64)
        log = self._ledger.log
        for file_start, rows in _by_file(log, offsets) if len(offsets) else ():
            starts = offsets[rows] - file_start
            data, inside = held(log, file_start, starts, np.full(len(rows), log_format.MIN_BYTES))
            seqs[rows[inside]] = cells(data, ">i8")[starts[inside] + log_format.QUEUE_OFFSET_AT] + 1
        return seqs

    def with_keys(self, seqs: Ints, offsets: Ints, topic: str, keys: Sequence[str]) -> Flags:
        """Say which timers are at these offsets of the log, are of this topic, and have the key that is given for each.

        Raises:
            CorruptStoreError: of one this is unknown, as it cannot be read.
        """
        places, sizes = self._locate(seqs)
        is_it: Flags = places == offsets
        here = np.flatnonzero(is_it)
        if len(here):
            (column,) = self.timer_columns(seqs[here]).properties
            read = decode_column(column)
            found = zip(here.tolist(), read.column(texts.REAL_TOPIC).to_pylist(), read.column(texts.KEYS).to_pylist(), strict=True)
            for row, of_topic, joined in found:
                if of_topic is None:
                    raise self._damage(int(seqs[row]), int(offsets[row]), int(sizes[row]))
                is_it[row] = of_topic == topic and joined is not None and (joined == keys[row] or keys[row] in texts.split_keys(joined))
        return is_it

    def _size_at(self, seq: int, offset: int) -> int | None:
        """Return how long the message of a timer is; None when it is not at this offset."""
        queue = self._ledger.queues.of(WHEEL_TOPIC, 0)
        if not queue.first < seq <= queue.count:
            return None
        offsets, sizes = self._locate(np.array([seq]))
        return int(sizes[0]) if int(offsets[0]) == offset else None


def _reason(raw: bytes, seq: int, offset: int) -> str:
    """Return why the message of a timer is not what is at an offset of the log."""
    if not raw:
        return f"no message lies at offset {offset} of the log"
    try:
        log_format.decode_record(raw, log_offset=offset)
    except CorruptStoreError as error:
        return str(error)
    return f"no sound record at offset {offset}: {fault_of(raw, offset, _TOPIC, 0, seq - 1)}"


def _by_file(log: CommitLog, offsets: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield (start of a file, rows that are in it)."""
    files = offsets // log.file_bytes * log.file_bytes
    if (files == files[0]).all():
        yield int(files[0]), np.arange(len(offsets))
        return
    for file_start in np.unique(files).tolist():
        yield file_start, np.flatnonzero(files == file_start)
