"""``Fetcher``: the messages of timers, read from the log by seq, and checked when they are.

The consume queue of the wheel's topic says where a message is. What is there must say so itself: its offset, its queue offset, the
length and the CRC of its body, and the sum of the rest (``sums``). What does not is parked: it becomes a message of ``%PARKED%`` that says
why (T12).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap
from typing import Final

import numpy as np

from rmqstore.batch import MessageBatch
from rmqstore.columns import numbers_column
from rmqstore.engine.runs import parked_message
from rmqstore.errors import CorruptStoreError
from rmqstore.late import pa
from rmqstore_wheel.formats import commit_log as log_format, log_reading, properties as texts
from rmqstore_wheel.formats.binary_columns import Flags, Ints, Rows, cells, stretches_of
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.formats.properties import decode_column
from rmqstore_wheel.log.commit_log import CommitLog
from rmqstore_wheel.log.ledger import Ledger
from rmqstore_wheel.queues.soundness import Gathered, fault_of, gather, held
from rmqstore_wheel.records import message_records as records, sums
from rmqstore_wheel.records.addressing import for_delivery
from rmqstore_wheel.records.message_records import LogRecords, as_delivered
from rmqstore_wheel.records.parts import text_of, text_places, value_in

_NO_ROWS: Final = np.zeros(0, np.int64)
_FEW: Final = 8
"""So few messages are read one by one."""

_LOOK: Final = 65_536
"""So many places of messages are looked at together."""

_NONE: Final = LogRecords([])
_TOPIC: Final = WHEEL_TOPIC.encode()


class Fetcher:
    """Reads messages of the wheel's topic."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def units(self, seqs: Ints) -> Rows:
        """Return what the consume queue has of the messages of timers."""
        return self._ledger.queues.of(WHEEL_TOPIC, 0).gather(seqs - 1)

    def _locate(self, seqs: Ints, units: Rows | None = None) -> tuple[Ints, Ints]:
        """Return where the messages of timers are in the log, and how long they are."""
        units = self.units(seqs) if units is None else units
        return units["log_offset"].astype(np.int64), units["size"].astype(np.int64)

    def _gathered(self, seqs: Ints, offsets: Ints, sizes: Ints) -> Iterator[tuple[Ints, Gathered]]:
        """Yield which messages of timers are in each file of the log, and these."""
        log = self._ledger.log
        for file_start, rows in _by_file(log, offsets):
            yield rows, gather(log, file_start, offsets[rows] - file_start, sizes[rows], _TOPIC, 0, seqs[rows] - 1)

    def messages(self, seqs: Ints, units: Rows | None = None) -> MessageBatch:
        """Return the messages of timers, in the order of ``seqs``, as they go to their topics; ``units`` are theirs, if they are known."""
        if not len(seqs):
            return MessageBatch(source=_NONE)
        offsets, sizes = self._locate(seqs, units)
        if len(seqs) <= _FEW:
            places = zip(seqs.tolist(), offsets.tolist(), sizes.tolist(), strict=True)
            return MessageBatch(source=LogRecords(list(starmap(self._message, places))))
        parts = list(self._gathered(seqs, offsets, sizes))
        if all(part.sound.all() for _, part in parts):
            found = [for_delivery(part.data.data, part.starts, sizes[rows]) for rows, part in parts]
            return MessageBatch(
                source=found[0] if len(found) == 1 else LogRecords.merged(found, np.concatenate([rows for rows, _ in parts]))
            )
        made: list[bytes] = [b""] * len(seqs)
        for rows, (data, starts, sound) in parts:
            good = rows[sound]
            for row, record in zip(good.tolist(), for_delivery(data.data, starts[sound], sizes[good]).records, strict=True):
                made[row] = record
            for row in rows[~sound].tolist():
                made[row] = self._message(int(seqs[row]), int(offsets[row]), int(sizes[row]))
        return MessageBatch(source=LogRecords(made))

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
        places: list[Ints] = []
        pieces: list[dict[str, pa.Array]] = []
        for rows, (data, starts, sound) in self._gathered(seqs, offsets, sizes):
            if not sound.all():
                raise self._damage(int(seqs[rows[sound.argmin()]]))
            found = log_reading.decode_columns(data.data, starts, sizes[rows], verify=False)
            places.append(rows)
            pieces.append({**records.columns_of(found), "store_ms": pa.array(found.store_ms, pa.int64())})
        if len(pieces) == 1:
            return pieces[0]
        back = numbers_column(np.argsort(np.concatenate(places), kind="stable"))
        return {name: pa.concat_arrays([piece[name] for piece in pieces]).take(back) for name in pieces[0]}

    def _damage(self, seq: int) -> CorruptStoreError:
        offset, size = self._place(seq)
        raw = self._ledger.log.record(offset, size)
        file = str(self._ledger.log.chain.path_of(offset))
        return CorruptStoreError(f"{file}: timer {seq}: {_reason(raw, seq, offset)}", file=file, offset=offset)

    # ------------------------------------------------------------ properties, and timers by their keys

    def _place(self, seq: int) -> tuple[int, int]:
        """Return where the message of a timer is in the log, and how long it is."""
        offset, size, _ = self._ledger.queues.of(WHEEL_TOPIC, 0).read_one(seq - 1)
        return offset, size

    def properties(self, seq: int) -> bytes:
        """Return the properties of the message of a timer; empty when it cannot be read."""
        offset, size = self._place(seq)
        raw = self._ledger.log.record(offset, size)
        return b"" if fault_of(raw, offset, _TOPIC, 0, seq - 1) else text_of(raw)

    def property_column(self, seqs: Ints) -> pa.Array:
        once, places = np.unique(seqs, return_inverse=True)
        offsets, sizes = self._locate(once)
        columns = [stretches_of(b"", _NO_ROWS, _NO_ROWS)]
        rows_of = [_NO_ROWS]
        for rows, (data, starts, sound) in self._gathered(once, offsets, sizes):
            good, bad = rows[sound], rows[~sound]
            rows_of += [good, bad]
            columns.append(stretches_of(data, text_places(data, starts[sound]), starts[sound] + sizes[good]))
            if len(bad):
                columns.append(pa.array(map(self.properties, once[bad].tolist()), pa.binary()))
        return pa.concat_arrays(columns).take(numbers_column(np.argsort(np.concatenate(rows_of))[places]))

    def seqs_at(self, offsets: Sequence[int]) -> list[int]:
        """Return the seq of the timer whose message is at each of some offsets of the log; 0 where none is that anything is known of.

        The message says its seq itself. Where the queue has another place for that, the queue has the last word.
        """
        at, behind = log_format.QUEUE_OFFSET_AT, log_format.PHYSICAL_OFFSET_AT
        heads = [self._ledger.log.record(offset, log_format.MIN_BYTES) for offset in offsets]
        return self._seqs_of(offsets, [int.from_bytes(head[at:behind], signed=True) + 1 if head else 0 for head in heads])

    def seqs_at_many(self, offsets: Ints) -> Ints:
        seqs = np.zeros(len(offsets), np.int64)
        log = self._ledger.log
        for file_start, rows in _by_file(log, offsets):
            starts = offsets[rows] - file_start
            data, inside = held(log, file_start, starts, np.full(len(rows), log_format.MIN_BYTES))
            seqs[rows[inside]] = cells(data, ">i8")[starts[inside] + log_format.QUEUE_OFFSET_AT] + 1
        queue = self._ledger.queues.of(WHEEL_TOPIC, 0)
        known = np.flatnonzero((queue.first < seqs) & (seqs <= queue.count))
        is_right = seqs == 0
        is_right[known] = self._locate(seqs[known])[0] == offsets[known]
        others = np.flatnonzero(~is_right)
        seqs[others] = self._seqs_of(offsets[others].tolist(), seqs[others].tolist())
        return seqs

    def _seqs_of(self, offsets: Sequence[int], said: Sequence[int]) -> list[int]:
        """Return the seqs of what is at some offsets, given what it says itself."""
        seqs = list(map(self._seq_at, offsets, said))
        unsure = [offset for offset, seq in zip(offsets, seqs, strict=True) if seq is None]
        owners = self._owners(unsure) if unsure else {}
        return [owners.get(offset, 0) if seq is None else seq for offset, seq in zip(offsets, seqs, strict=True)]

    def _seq_at(self, offset: int, said: int) -> int | None:
        """Return a seq that what is at an offset says is its own, 0 where nothing is known of it; None when the queue does not say so."""
        queue = self._ledger.queues.of(WHEEL_TOPIC, 0)
        if queue.first < said <= queue.count:
            place, _ = self._place(said)
            if place == offset:
                return said
            return 0 if self._are_copies(offset, place) else None
        if said == 0 or (0 < said <= queue.first and (queue.first == queue.count or offset < self._place(queue.first + 1)[0])):
            # It is gone, as is all that was written before what the queue has.
            return 0
        return None

    def _owners(self, offsets: Sequence[int]) -> dict[int, int]:
        """Return by their offsets the seqs of the timers whose messages are there, by a look at each place that the queue has."""
        queue = self._ledger.queues.of(WHEEL_TOPIC, 0)
        owners: dict[int, int] = {}
        for first in range(queue.first, queue.count, _LOOK):
            places = queue.read(first, min(_LOOK, queue.count - first))["log_offset"]
            found = np.flatnonzero(np.isin(places, offsets))
            owners.update(zip(places[found].tolist(), (found + first + 1).tolist(), strict=True))
        return owners

    def _are_copies(self, one: int, other: int) -> bool:
        """Say whether the records at two offsets are one message, which was copied: then they have one sum."""
        log = self._ledger.log
        sizes = [int.from_bytes(log.record(offset, log_format.MIN_BYTES)[:4], signed=True) for offset in (one, other)]
        first, second = (sums.sum_of(log.record(offset, size)) for offset, size in zip((one, other), sizes, strict=True))
        return first is not None and first == second

    def with_key(self, seqs: Iterable[int], topic: str, key: str) -> list[int]:
        """Return which of some timers are of this topic and have this key.

        Raises:
            CorruptStoreError: of one this is unknown, as it cannot be read.
        """
        found = []
        for seq in seqs:
            text = self.properties(seq)
            if not text:
                raise self._damage(seq)
            if value_in(text, texts.REAL_TOPIC).decode() == topic and key in texts.split_keys(value_in(text, texts.KEYS).decode()):
                found.append(seq)
        return found

    def with_keys(self, seqs: Ints, topic: str, keys: Sequence[str]) -> Flags:
        """As :meth:`with_key`, of timers and a key for each: whether it has that."""
        read = decode_column(self.property_column(seqs))
        columns = (read.column(name).to_pylist() for name in (texts.REAL_TOPIC, texts.KEYS))
        has_key = np.zeros(len(seqs), np.bool_)
        for row, (of_topic, joined) in enumerate(zip(*columns, strict=True)):
            if of_topic is None:
                raise self._damage(int(seqs[row]))
            has_key[row] = of_topic == topic and joined is not None and (joined == keys[row] or keys[row] in texts.split_keys(joined))
        return has_key


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
    if len(files) and (files == files[0]).all():
        yield int(files[0]), np.arange(len(offsets))
        return
    for file_start in np.unique(files).tolist():
        yield file_start, np.flatnonzero(files == file_start)
