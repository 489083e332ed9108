"""Applying frames that an open found in the log, many at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from rmqstore_wheel.formats import consume_queue, log_reading, properties as texts
from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.formats.properties import decode_column
from rmqstore_wheel.log import journal
from rmqstore_wheel.log.commit_log import Frame

if TYPE_CHECKING:
    from rmqstore_wheel.log.ledger import Ledger

_RECORDS: Final = 32_768


class Replay:
    """Gathers frames and applies them to the caches of a ledger; what a frame says is applied as it was when it was written."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        # Where records start in the file, how long they are, and their epochs.
        self._parts: list[tuple[Ints, Ints, Ints]] = []
        self._file_start = self._count = 0

    def add(self, frame: Frame) -> None:
        self._ledger.epoch = frame.epoch
        for part in frame.parts:
            if self._count and (part.file_start != self._file_start or self._count >= _RECORDS):
                self.finish()
            self._file_start = part.file_start
            self._parts.append((part.starts, part.sizes, np.full(len(part.starts), frame.epoch, np.int64)))
            self._count += len(part.starts)

    def finish(self) -> None:
        if not self._count:
            return
        starts, sizes, epochs = (np.concatenate(each) for each in zip(*self._parts, strict=True))
        self._parts, self._count = [], 0
        ledger = self._ledger
        view = ledger.log.chain.view(self._file_start)
        # The frame's CRC has covered every byte.
        found = log_reading.decode_columns(view, starts, sizes, log_offset=self._file_start, verify=False)
        ledger.store_ms = max(ledger.store_ms, int(np.max(found.store_ms)))
        codes = consume_queue.tags_codes(decode_column(found.text).column(texts.TAG))
        offsets, groups = np.asarray(found.queue_offset), log_reading.by_queue(found.topic, np.asarray(found.queue_id))
        in_journal = [row for topic, _, rows in groups if topic == journal.TOPIC for row in rows.tolist()]
        changes = {row: journal.decode(found.body[row].as_py()) for row in in_journal}
        # A queue that is dropped may begin again at once, with the same offsets.
        bounds = [row + 1 for row, each in changes.items() if any(isinstance(change, journal.DropQueue) for change in each)]
        begin = 0
        for end in [*bounds, len(starts)]:
            for topic, queue, of_queue in groups:
                rows = of_queue[slice(*np.searchsorted(of_queue, [begin, end]))]
                if topic == journal.TOPIC or not len(rows):
                    continue
                new = rows[np.argsort(offsets[rows], kind="stable")]
                new = new[np.append(np.diff(offsets[new]) != 0, True)]
                ledger.queues.reserve(topic, queue, offsets[new], starts[new] + self._file_start, sizes[new], codes[new])()
                if topic == WHEEL_TOPIC:
                    ledger.timers.replay(view, self._file_start, starts[rows], sizes[rows], epochs[rows])
            for row, each in changes.items():
                if begin <= row < end:
                    ledger.apply_again(each, self._file_start + int(starts[row]))
            begin = end
