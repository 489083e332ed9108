"""Applying frames that an open found in the log, many at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from rmqstore_wheel.formats import consume_queue, log_reading
from rmqstore_wheel.formats import properties as texts
from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.formats.log_columns import Columns
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.formats.property_columns import decode_column
from rmqstore_wheel.log import journal
from rmqstore_wheel.log.commit_log import Frame

if TYPE_CHECKING:
    from rmqstore_wheel.log.ledger import Ledger

_RECORDS: Final = 32_768


class Replay:
    """Gathers frames and applies them to the caches of a ledger; what a frame says is applied as it was when it was written."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._starts: list[Ints] = []
        self._sizes: list[Ints] = []
        self._epochs: list[Ints] = []
        self._file_start = 0
        self._count = 0

    def add(self, frame: Frame) -> None:
        """Take one more frame."""
        self._ledger.epoch = frame.epoch
        for part in frame.parts:
            if self._count and (part.file_start != self._file_start or self._count >= _RECORDS):
                self.finish()
            self._file_start = part.file_start
            self._starts.append(part.starts)
            self._sizes.append(part.sizes)
            self._epochs.append(np.full(len(part.starts), frame.epoch, np.int64))
            self._count += len(part.starts)

    def finish(self) -> None:
        """Apply what was gathered."""
        if not self._count:
            return
        starts, sizes, epochs = (np.concatenate(each) for each in (self._starts, self._sizes, self._epochs))
        self._starts, self._sizes, self._epochs, self._count = [], [], [], 0
        ledger = self._ledger
        view = ledger.log.chain.view(self._file_start)
        # The frame's CRC has covered every byte.
        found = log_reading.decode_columns(view, starts, sizes, log_offset=self._file_start, verify=False)
        ledger.store_ms = max(ledger.store_ms, int(np.max(found.store_ms)))
        topics = found.topic.dictionary_encode() if isinstance(found.topic, pa.Array) else pa.array([found.topic]).dictionary_encode()
        names = [name.decode() for name in topics.dictionary.to_pylist()]
        numbers = topics.indices.to_numpy()
        in_journal = numbers == names.index(journal.TOPIC) if journal.TOPIC in names else np.zeros(len(starts), np.bool_)
        changes = {row: journal.decode(found.body[row].as_py()) for row in np.flatnonzero(in_journal).tolist()}
        # A queue that is dropped may begin again at once, with the same offsets.
        bounds = [row + 1 for row, each in changes.items() if any(isinstance(change, journal.DropQueue) for change in each)]
        begin = 0
        for end in [*bounds, len(starts)]:
            rows = np.arange(begin, end)
            appended = rows[~in_journal[begin:end]]
            if len(appended):
                self._index(found, starts, sizes, appended, numbers, names)
            if WHEEL_TOPIC in names:
                timers = rows[numbers[begin:end] == names.index(WHEEL_TOPIC)]
                ledger.timers.replay(view, self._file_start, starts[timers], sizes[timers], epochs[timers])
            for row in rows[in_journal[begin:end]].tolist():
                ledger.apply_again(changes[row], self._file_start + int(starts[row]))
            begin = end

    def _index(self, found: Columns, starts: Ints, sizes: Ints, rows: Ints, numbers: Ints, names: list[str]) -> None:
        """Put messages into their consume queues."""
        tags = decode_column(found.properties[0]).column(texts.TAG)
        codes = consume_queue.tags_codes(tags)
        queue_ids, offsets = np.asarray(found.queue_id), np.asarray(found.queue_offset)
        order = rows[np.lexsort((rows, offsets[rows], queue_ids[rows], numbers[rows]))]
        changes = (np.diff(numbers[order]) != 0) | (np.diff(queue_ids[order]) != 0)
        for group in np.split(order, np.flatnonzero(changes) + 1):
            topic, queue = names[numbers[group[0]]], int(queue_ids[group[0]])
            group = group[np.append(np.diff(offsets[group]) != 0, True)]
            places = starts[group] + self._file_start
            self._ledger.queues.reserve(topic, queue, offsets[group], places, sizes[group], codes[group])()
