"""What is live in the commit log: which records of a stretch somebody may still ask for.

A message is live when the consume queue of its queue leads to this very record, at or behind the first offset that is kept, and it was not
taken out. A message that was copied forward is live at its new place alone. A timer must be pending besides, or gone and still answered
for. All else is dead: cancels, which come behind their timers, go after them, and are said again by copies; and the journal, once a whole
copy of the state follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from rmqstore_wheel.formats import log_reading
from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.log import journal
from rmqstore_wheel.log.ledger import Ledger
from rmqstore_wheel.timers.index import TimerIndex

_PAGE: Final = 64 * 1024


class LiveRows(NamedTuple):
    """Records of one queue that are live: which rows of those asked for, by rising offset, their queue offsets, and their units.

    ``spare`` says which of them nobody is going to read: cancelled timers, of whose messages the bodies may go.
    """

    topic: str
    queue: int
    rows: Ints
    offsets: Ints
    units: np.ndarray[Any, np.dtype[np.void]]
    spare: np.ndarray[Any, np.dtype[np.bool_]]


class Liveness:
    """Answers for the whole of a ledger."""

    def __init__(self, ledger: Ledger, index: TimerIndex) -> None:
        self._ledger = ledger
        self._index = index

    def of(self, file_start: int, starts: Ints, sizes: Ints) -> list[LiveRows]:
        """Return what is live of some records of a file of the log, by queue.

        Raises:
            CorruptStoreError: one of them is damaged.
        """
        view = self._ledger.log.chain.view(file_start)
        found = log_reading.decode_columns(view, starts, sizes, log_offset=file_start, verify=False)
        topics = found.topic.dictionary_encode() if isinstance(found.topic, pa.Array) else pa.array([found.topic]).dictionary_encode()
        names = [name.decode() for name in topics.dictionary.to_pylist()]
        numbers = topics.indices.to_numpy()
        queue_ids, offsets = np.asarray(found.queue_id), np.asarray(found.queue_offset)
        order = np.lexsort((offsets, queue_ids, numbers))
        bounds = np.flatnonzero((np.diff(numbers[order]) != 0) | (np.diff(queue_ids[order]) != 0)) + 1
        live = []
        for rows in np.split(order, bounds):
            topic, queue = names[numbers[rows[0]]], int(queue_ids[rows[0]])
            if topic == journal.TOPIC:
                continue
            here, units = self._ledger.queues.units_at(topic, queue, offsets[rows], starts[rows] + file_start)
            rows = rows[here]
            if topic == WHEEL_TOPIC:
                answered = self._index.is_answered(offsets[rows] + 1)
                rows, units = rows[answered], units.compress(answered)
            if len(rows):
                live.append(LiveRows(topic, queue, rows, offsets[rows], units, self._spare(topic, offsets[rows])))
        return live

    def _spare(self, topic: str, offsets: Ints) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return self._index.cancelled.get_many(offsets + 1) if topic == WHEEL_TOPIC else np.zeros(len(offsets), np.bool_)

    def led_to(self, begin: int, end: int) -> Iterator[LiveRows]:
        """Yield what consume queues lead to between two offsets of the log, and is live; that takes long, and reads no record.

        Their ``rows`` count from 0 in each.
        """
        for topic, queue in list(self._ledger.queues):
            log = self._ledger.queues.of(topic, queue)
            for first, behind in log.held(self._ledger.queues.first(topic, queue)):
                for at in range(first, behind, _PAGE):
                    places = log.read(at, min(_PAGE, behind - at))["log_offset"]
                    offsets = at + np.flatnonzero((places >= begin) & (places < end))
                    here, units = self._ledger.queues.units_at(topic, queue, offsets, places[offsets - at])
                    offsets = offsets[here]
                    if topic == WHEEL_TOPIC:
                        answered = self._index.is_answered(offsets + 1)
                        offsets, units = offsets[answered], units.compress(answered)
                    if len(offsets):
                        yield LiveRows(topic, queue, np.arange(len(offsets)), offsets, units, self._spare(topic, offsets))
