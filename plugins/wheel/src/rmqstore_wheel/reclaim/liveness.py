"""What is live in the commit log: which records of a stretch may still be asked for.

A message is live when the consume queue of its queue leads to this very record, at or behind the first offset that is kept, and it was not
taken out. A message that was copied forward is live at its new place alone. A timer must be pending besides, or gone and still answered
for. All else is dead: cancels, which come behind their timers, go after them, and are said again by copies; and the journal, once a whole
copy of the state follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from zlib_ng.zlib_ng import crc32

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.formats import log_reading
from rmqstore_wheel.formats.binary_columns import Flags, Ints, cells
from rmqstore_wheel.formats.log_reading import Scan, Stop
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.log import frames, journal
from rmqstore_wheel.log.commit_log import CommitLog
from rmqstore_wheel.log.ledger import Ledger
from rmqstore_wheel.queues.soundness import sound_rows
from rmqstore_wheel.records import sums
from rmqstore_wheel.records.parts import body_places
from rmqstore_wheel.timers.index import TimerIndex

_PAGE: Final = 64 * 1024


class LiveRows(NamedTuple):
    """Records of one queue that are live: which rows of those asked for, by rising offset, their queue offsets, and their units.

    ``spare`` says which of them will not be read: cancelled timers, of whose messages the bodies may go.
    """

    topic: str
    queue: int
    rows: Ints
    offsets: Ints
    units: np.ndarray[Any, np.dtype[np.void]]
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
            live.append(self._live(topic, queue, rows, offsets[rows], starts[rows] + file_start))
        return [each for each in live if len(each.rows)]

    def _live(self, topic: str, queue: int, rows: Ints, offsets: Ints, places: Ints) -> LiveRows:
        """Return what is live of records at some offsets of a queue, and of the log."""
        here, units = self._ledger.queues.units_at(topic, queue, offsets, places)
        rows, offsets = rows[here], offsets[here]
        if topic != WHEEL_TOPIC:
            return LiveRows(topic, queue, rows, offsets, units, np.zeros(len(rows), np.bool_))
        answered = self._index.is_answered(offsets + 1)
        rows, offsets = rows[answered], offsets[answered]
        return LiveRows(topic, queue, rows, offsets, units.compress(answered), self._index.cancelled.get_many(offsets + 1))

    def led_to(self, begin: int, end: int) -> Iterator[LiveRows]:
        """Yield what consume queues lead to between two offsets of the log, and is live; that takes long, and reads no record."""
        for topic, queue in list(self._ledger.queues):
            log = self._ledger.queues.of(topic, queue)
            for first, behind in log.held(self._ledger.queues.first(topic, queue)):
                for at in range(first, behind, _PAGE):
                    places = log.read(at, min(_PAGE, behind - at))["log_offset"]
                    offsets = at + np.flatnonzero((places >= begin) & (places < end))
                    found = self._live(topic, queue, offsets, offsets, places[offsets - at])
                    if len(found.rows):
                        yield found


class Slices:
    """Goes through the records of a file of the log.

    Args:
        known: the records to go through, where their chain of sizes cannot be followed.

    Attributes:
        at: byte of the file from which the next slice goes on.
        is_done: the end of the file was reached, or what cannot be read.
        is_damaged: something cannot be read; what is behind it was not looked at.
    """

    def __init__(self, log: CommitLog, file_start: int, known: Scan | None = None) -> None:
        self._log = log
        self._known = known
        self.file_start = file_start
        self.at = 0
        self.is_done = self.is_damaged = False

    def next(self, slice_bytes: int) -> Scan:
        """Return the records of about the next ``slice_bytes``, one of them at least, as long as there are any."""
        if self._known is not None:
            return self._next_known(self._known, slice_bytes)
        view = self._log.chain.view(self.file_start)
        while True:
            end = min(self.at + slice_bytes, len(view))
            found = log_reading.scan(view[:end], self.at)
            if found.end > self.at or found.stop in (Stop.BLANK, Stop.DAMAGE) or end == len(view):
                break
            slice_bytes *= 2
        is_last = found.stop is Stop.BLANK
        self.is_damaged |= not is_last and (end == len(view) or found.end == self.at)
        self.is_done = is_last or self.is_damaged
        self.at = found.end
        return found

    def _next_known(self, known: Scan, slice_bytes: int) -> Scan:
        first = int(np.searchsorted(known.starts, self.at))
        stop = max(int(np.searchsorted(known.starts, self.at + slice_bytes)), first + 1)
        self.is_done = stop >= len(known.starts)
        self.at = known.end if self.is_done else int(known.starts[stop])
        return Scan(known.starts[first:stop], known.sizes[first:stop], self.at, Stop.END)


class FileLook(Slices):
    """Looks at every frame of a file, and counts what is live.

    Attributes:
        live: bytes of the records that are live, so far.
        led_to: of a damaged file, the records that are live, when all of them are sound.
    """

    def __init__(self, log: CommitLog, liveness: Liveness, file_start: int) -> None:
        super().__init__(log, file_start)
        self._carried = self._crc = 0
        self._is_head = True
        self._liveness = liveness
        self.live = 0
        self.led_to: Scan | None = None

    def _spare_bytes(self, starts: Ints) -> int:
        """Return how long the bodies of some records are."""
        data = np.frombuffer(self._log.chain.view(self.file_start), np.uint8)
        return int(cells(data, ">i4")[body_places(data, starts) - 4].sum()) if len(starts) else 0

    def go_on(self, slice_bytes: int) -> int:
        """Look at the next slice; returns its bytes."""
        before = self.at
        try:
            found = self.next(slice_bytes)
            if len(found.starts):
                self._check_frames(found)
                for rows in self._liveness.of(self.file_start, found.starts, found.sizes):
                    self.live += int(found.sizes[rows.rows].sum()) - self._spare_bytes(found.starts[rows.rows[rows.spare]])
        except CorruptStoreError:
            self.is_done = self.is_damaged = True
        if self.is_damaged:
            self._look_from_queues()
        return max(self.at - before, 1)

    def _look_from_queues(self) -> None:
        """Count what consume queues lead to in a damaged file; if all of it is sound, the damage is to what is not needed."""
        end = self.file_start + self._log.file_bytes
        places: list[Ints] = [np.zeros(0, np.int64)]
        lengths: list[Ints] = [np.zeros(0, np.int64)]
        is_sound = True
        for rows in self._liveness.led_to(self.file_start, end):
            starts, sizes = rows.units["log_offset"].astype(np.int64) - self.file_start, rows.units["size"].astype(np.int64)
            is_sound &= bool(sound_rows(self._log, self.file_start, starts, sizes, rows.topic.encode(), rows.queue, rows.offsets).all())
            places.append(starts)
            lengths.append(sizes)
        starts, sizes = np.concatenate(places), np.concatenate(lengths)
        order = np.argsort(starts)
        self.live = int(sizes.sum()) if is_sound else self._log.file_bytes
        self.led_to = Scan(starts[order], sizes[order], self._log.file_bytes, Stop.END) if is_sound else None

    def _check_frames(self, found: Scan) -> None:
        """Raise :class:`CorruptStoreError` when a frame that ends in a slice is damaged."""
        view = self._log.chain.view(self.file_start)
        begin = 0
        for row in frames.ends_of(np.frombuffer(view, np.uint8), found.starts, found.sizes).tolist():
            end = int(found.starts[row] + found.sizes[row])
            trailer = frames.read_trailer(bytes(view[end - frames.PROPERTY_BYTES : end]))
            count = self._carried + row + 1 - begin
            crc = crc32(view[int(found.starts[begin]) : end - frames.TAIL_BYTES], self._crc)
            if self._is_head and trailer is not None and trailer.records > count:
                # It began in the file before.
                self._check_records(found.starts[begin : row + 1], found.sizes[begin : row + 1])
            elif trailer is None or (trailer.records, trailer.crc) != (count, crc):
                raise CorruptStoreError(f"the call that ends at {self.file_start + end} is damaged", offset=self.file_start + end)
            self._carried = self._crc = 0
            self._is_head = False
            begin = row + 1
        if begin < len(found.starts):
            self._check_records(found.starts[begin:], found.sizes[begin:])
            self._carried += len(found.starts) - begin
            self._crc = crc32(view[int(found.starts[begin]) : found.end], self._crc)

    def _check_records(self, starts: Ints, sizes: Ints) -> None:
        view = self._log.chain.view(self.file_start)
        sound = log_reading.count_sound(view, Scan(starts, sizes, 0, Stop.END), log_offset=self.file_start)
        if sound < len(starts) or sums.wrong_rows(np.frombuffer(view, np.uint8), starts, sizes).any():
            raise CorruptStoreError("a record is damaged", offset=self.file_start)
