"""What is live in the commit log: which of its records may still be asked for.

A message is live when the consume queue of its queue leads to this very record, at or behind the first offset that is kept, and it was not
taken out. A message that was copied forward is live at its new place alone. A timer must be pending besides, or gone and still answered
for. All else is dead: cancels, which come behind their timers, go after them, and are said again by copies; and the journal, once a whole
copy of the state follows.

So the queues say all of it, at 20 bytes a message, and the log need not be read to find out that nothing can go. They are gone through a
page at a time while other calls go on. Nothing is missed by that: of the files that were full before, a message is never live again once it
is dead, and none that was live comes to another queue; what is new in a queue leads behind them. So what is found is all that is live when
the last page was looked at, and some that is not any more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from rmqstore_wheel.formats import commit_log as log_format, consume_queue, log_reading
from rmqstore_wheel.formats.binary_columns import Flags, Ints, Rows
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.log import journal
from rmqstore_wheel.log.ledger import Ledger
from rmqstore_wheel.records import sums
from rmqstore_wheel.timers.index import TimerIndex

_PAGE: Final = 64 * 1024
_CHECKED_PAGE: Final = 1024
"""So many messages are looked at together, and so many where their records are read as well."""

_LEAST_PAGE_BYTES: Final = 4096
"""A page counts for as much at least, as its queue is opened for it."""

_SPARE_BYTES: Final = 400
"""What about is left of a cancelled timer that is copied, without its body."""


class LiveRows(NamedTuple):
    """Records of one queue that are live: which rows of those asked for, by rising offset, their queue offsets, and their units.

    ``spare`` says which of them will not be read: cancelled timers, of whose messages the bodies may go.
    """

    topic: str
    queue: int
    rows: Ints
    offsets: Ints
    units: Rows
    spare: Flags


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
        queues, offsets = log_reading.queues_of(view, starts, sizes, log_offset=file_start)
        live = []
        for topic, queue, rows in queues:
            if topic == journal.TOPIC:
                continue
            rows = rows[np.argsort(offsets[rows], kind="stable")]
            here, units = self._ledger.queues.units_at(topic, queue, offsets[rows], starts[rows] + file_start)
            rows = rows[here]
            live.append(self._live(topic, queue, rows, offsets[rows], units))
        return [each for each in live if len(each.rows)]

    def _live(self, topic: str, queue: int, rows: Ints, offsets: Ints, units: Rows) -> LiveRows:
        """Return what is live of what a queue leads to."""
        if topic != WHEEL_TOPIC:
            return LiveRows(topic, queue, rows, offsets, units, np.zeros(len(rows), np.bool_))
        answered = self._index.is_answered(offsets + 1)
        if not answered.all():
            rows, offsets, units = rows[answered], offsets[answered], units.compress(answered)
        return LiveRows(topic, queue, rows, offsets, units, self._index.cancelled.get_many(offsets + 1))

    def pages(self, begin: int, end: int, count: int) -> Iterator[tuple[int, LiveRows]]:
        """Yield what ``count`` places of a queue lead to between two offsets of the log, and is live, and how many bytes say so.

        Other calls may come between two of them. No record is read.

        Raises:
            CorruptStoreError: a part of a queue is damaged.
        """
        queues = self._ledger.queues
        for name in list(queues):
            if name not in queues:
                continue  # dropped by now
            for first, behind in queues.of(*name).held(queues.first(*name)):
                for at in range(first, behind, count):
                    if name in queues:
                        wanted = min(count, behind - at)
                        start, units = queues.read(*name, at, wanted)
                        # Where the beginning went meanwhile, units of the next page are read.
                        units = units[: max(at + wanted - start, 0)]
                        places = units["log_offset"]
                        rows = np.flatnonzero(consume_queue.is_message(units) & (places >= begin) & (places < end))
                        looked_at = max(units.nbytes, _LEAST_PAGE_BYTES)
                        yield looked_at, self._live(*name, rows, start + rows, units if len(rows) == len(units) else units[rows])


class Look(ABC):
    """Goes through the consume queues, for what is live between two offsets of the log.

    Attributes:
        is_done: all pages were looked at.
        bytes: how many were looked at.
    """

    page = _PAGE

    def __init__(self, ledger: Ledger, liveness: Liveness, begin: int, end: int) -> None:
        # Else nothing would lead to what came since for brokers to read.
        ledger.settle()
        self._log = ledger.log
        self._pages = liveness.pages(begin, end, self.page)
        self.begin, self.end = begin, end
        self.is_done = False
        self.bytes = 0

    def go_on(self, most_bytes: int) -> int:
        """Look at some more pages; returns how many bytes they have.

        Raises:
            CorruptStoreError: see :meth:`Liveness.pages`.
        """
        done = 0
        while done < most_bytes:
            page = next(self._pages, None)
            if page is None:
                self.is_done = True
                break
            done += page[0]
            if len(page[1].rows):
                done += self._take(page[1])
        self.bytes += done
        return max(done, 1)

    @abstractmethod
    def _take(self, found: LiveRows) -> int:
        """Take in what is live of a page; returns how many bytes of the log were read."""


class Census(Look):
    """Counts how much is live in each file.

    Attributes:
        live: about how many bytes of each of the files.
        largest: bytes of the largest record of them that is live.
    """

    def __init__(self, ledger: Ledger, liveness: Liveness, begin: int, end: int) -> None:
        super().__init__(ledger, liveness, begin, end)
        self.live: Ints = np.zeros((end - begin) // ledger.log.file_bytes, np.int64)
        self.largest = 0

    def _take(self, found: LiveRows) -> int:
        sizes = found.units["size"].astype(np.int64)
        np.minimum(sizes, _SPARE_BYTES, out=sizes, where=found.spare)
        files = (found.units["log_offset"].astype(np.int64) - self.begin) // self._log.file_bytes
        self.live += np.bincount(files, sizes, len(self.live)).astype(np.int64)
        self.largest = max(self.largest, int(sizes.max()))
        return 0


class Records(Look):
    """Notes where the live records of some files are.

    Attributes:
        sound_upto: start of the first file of which some are damaged; the end when none is.
    """

    page = _CHECKED_PAGE

    def __init__(self, ledger: Ledger, liveness: Liveness, begin: int, end: int) -> None:
        super().__init__(ledger, liveness, begin, end)
        self._found: dict[int, list[tuple[Ints, Ints]]] = {}
        self.sound_upto = end

    def _take(self, found: LiveRows) -> int:
        places, sizes = found.units["log_offset"].astype(np.int64), found.units["size"].astype(np.int64)
        files = places // self._log.file_bytes * self._log.file_bytes
        for start in np.unique(files).tolist():
            here = files == start
            starts = places[here] - start
            if start < self.sound_upto and not self._are_sound(start, starts, sizes[here], found, here):
                self.sound_upto = start
            self._found.setdefault(start, []).append((starts, sizes[here]))
        return int(sizes.sum())

    def _are_sound(self, file_start: int, starts: Ints, sizes: Ints, found: LiveRows, rows: Flags) -> bool:
        """Say whether records of one file are whole, and say themselves what the queue says that leads to them; those of brokers too."""
        view = self._log.chain.view(file_start)
        if (sizes < log_format.MIN_BYTES).any() or (starts + sizes > len(view)).any():
            return False
        if log_reading.count_sound(view, starts, sizes, log_offset=file_start) < len(starts):
            return False
        if sums.wrong_rows(np.frombuffer(view, np.uint8), starts, sizes).any():
            return False
        queues, offsets = log_reading.queues_of(view, starts, sizes, log_offset=file_start)
        return [each[:2] for each in queues] == [(found.topic, found.queue)] and bool((offsets == found.offsets[rows]).all())

    def by_file(self) -> Iterator[tuple[int, Ints, Ints]]:
        """Yield the start of each sound file in which something is live, and where in it what is, in order, and how long."""
        for start in sorted(start for start in self._found if start < self.sound_upto):
            starts, sizes = (np.concatenate(column) for column in zip(*self._found[start], strict=True))
            order = np.argsort(starts)
            yield start, starts[order], sizes[order]
