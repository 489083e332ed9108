"""Messages of the commit log by topic and queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.inspecting.log_files import Records


class QueueName(NamedTuple):
    """A queue of a topic."""

    topic: str
    queue_id: int


class Tally:
    """What the log holds of one queue."""

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.first_ms = 2**63 - 1
        self.last_ms = -1


def by_queue(records: Records) -> Iterator[tuple[QueueName, Ints]]:
    """Yield the rows of each queue, in the order of the log."""
    coded = _as_array(records).dictionary_encode()
    codes = coded.indices.to_numpy()
    queues = np.asarray(records.columns.queue_id)
    order = np.lexsort((queues, codes))
    codes, queues = codes[order], queues[order]
    bounds = np.flatnonzero(np.append(True, (codes[1:] != codes[:-1]) | (queues[1:] != queues[:-1]))).tolist()
    names = [name.decode(errors="replace") for name in coded.dictionary.to_pylist()]
    for begin, end in zip(bounds, [*bounds[1:], len(order)], strict=True):
        yield QueueName(names[int(codes[begin])], int(queues[begin])), order[begin:end]


def _as_array(records: Records) -> pa.Array:
    topic = records.columns.topic
    return topic if isinstance(topic, pa.Array) else pa.repeat(topic, len(records.columns))


class Topics:
    """Counts messages while the records go by."""

    def __init__(self) -> None:
        self.tallies: dict[QueueName, Tally] = {}

    def take(self, name: QueueName, records: Records, rows: Ints) -> None:
        """Count records of one queue."""
        tally = self.tallies.setdefault(name, Tally())
        stored = np.asarray(records.columns.store_ms)[rows]
        tally.messages += len(rows)
        tally.bytes += int(records.sizes[rows].sum())
        tally.first_ms = min(tally.first_ms, int(stored.min()))
        tally.last_ms = max(tally.last_ms, int(stored.max()))
