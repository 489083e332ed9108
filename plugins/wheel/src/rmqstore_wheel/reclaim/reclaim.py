"""``Reclaim``: files of the commit log go when nothing is live in them; what is live in nearly dead ones is copied forward.

Files go from the oldest on, without a gap. Consume queues say how much is live in each file (``liveness``), a slice at a time. Once of the
files from the oldest up to some other one less is live than the settings say (30 %), what is live in them is copied to the end of the log,
and they go. The state, of which a copy is written then as well, counts as live. So a copied byte makes room for more than two others; and
a log is never longer than what is live in it asks for, though far timers fill its first file.

A store where nothing happens comes to an end with it, whatever the settings say: of files in which as much is live as in a file of copies,
nothing is copied. Files of copies are not full, as no record crosses the end of one: of records of a bit more than a third of a file, two
are in each.

Why no crash point loses or doubles anything here. The log alone says everything (``ledger``), and that stays so of the files that are left:

- **Messages.** A copy is the same record with the same queue offset, so a replay of the log finds one message at that offset, wherever
  the queue leads to: to the place that comes last. A timer whose number is known is not placed a second time. As long as the old file is
  there the log says the same thing twice; once it is gone, it says it once.
- **What copies do not say.** The epoch of a timer is that of its frame, and its cancel may be in the old file: both stand in the journal
  record of the frame that holds the copies (``journal.Copied``), so they are there if and only if the copies are. Its tick follows from its
  times, which stay.
- **What was taken away**: dropped queues, removed messages, cancels. Each is said by a record behind all records of the message that it
  speaks of, save later copies; and nothing dead is copied, save cancelled timers without their bodies, which say so. Files go from
  the oldest on, so what was taken away goes before what took it away.
- **State.** Before a file goes, a frame behind it begins with ``journal.Restart`` and holds all maps; the largest seq and what was
  forgotten are among them. Changes that are before it are void, so it does not matter that earlier ones are missing. First offsets and
  next offsets of queues are in the maps; a queue that is made again is empty where no message is left.
- **Frames over two files.** When the first is gone, what is left of a frame is at the beginning of the log. It was whole when the check
  point was made; its messages count, its changes are void.
- **Order.** Copies, then the state, then a check point, which syncs the log first: each is durable before the next. Then the files, one
  after the other, each name gone for good before the next one goes. A crash before the check point leaves all files. Units of consume
  queues that lead to copies are in memory until then; while a check point writes them, caches are in doubt, and an open rebuilds
  everything from the log (``files.units.RebuildReason``). A crash behind it leaves some of the files, the newest; the check point
  needs none of those that went, and neither does rebuilding everything.

- **A full disk.** What needs room, copies of a little, the state, a check point, gets it from the spare (``files.spare``).
- **Damage.** What is not live is not read. Of what is live, every record is checked before any is copied; if one is damaged, its file
  and all behind it stay until no consume queue leads to it (T12).
"""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np

from rmqstore.contract import UpkeepReport
from rmqstore.errors import CorruptStoreError, StoreFullError
from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.log.call import Messages
from rmqstore_wheel.log.ledger import Ledger
from rmqstore_wheel.reclaim.liveness import Census, Liveness, Look, Records
from rmqstore_wheel.timers.copies import Stretch, copies_of
from rmqstore_wheel.timers.index import TimerIndex

AGAIN_MS: Final = 10 * 60_000
"""When nothing could go, everything is looked at again after this time."""

_MOST_LIVE_BYTES: Final = 256 * 1024 * 1024
"""Of files in which more is live, the records are not noted at the same time."""

_PART_BESIDE_COPIES: Final = 8
"""Less than this part of a file of copies is what they do not say themselves: 14 bytes a timer, and some hundred a frame."""

_SHARE_OF_SPARE: Final = 4
"""On a full disk so much of the spare may be taken by copies."""

_STATE_PERCENT: Final = 30
"""The state is copied as live records are, or when it is less than this, where live records are not copied."""

_TIMES_OWED: Final = 3
_MOST_OWED_BYTES: Final = 256 * 1024 * 1024
_TURN_MS: Final = 1000
_IDLE_BYTES: Final = 64 * 1024
"""Who writes less between two turns leaves time for more than a slice."""

_IDLE_SLICES: Final = 8


class Reclaim:
    """Looks, copies and removes, a slice a call. The caller serialises all calls.

    What callers write is owed three times over: while they write n bytes, files of 3 n bytes are gone through for the copies, which add
    less than a third of that, and then they go; looks at the queues are paid from it too. So the log ends at a few times what is live,
    whatever the load is. Costs follow what is written, not how often this is called; a slice has its turn every second in any case. A look
    that found that nothing can go is not made again before as much was written as it looked at, or a long time passed.
    """

    def __init__(self, ledger: Ledger, index: TimerIndex) -> None:
        self._ledger = ledger
        self._index = index
        self._liveness = Liveness(ledger, index)
        self._begin()
        ledger.reopened.append(self._begin)

    def _begin(self) -> None:
        self._census: Census | None = None
        self._records: Records | None = None
        self._copies: list[FileCopy] = []
        # Of the files that are to go and did not yet, how much is live.
        self._live: dict[int, int] = {}
        self._copied_upto = self._free_upto = 0
        self._most_live_bytes = _MOST_LIVE_BYTES
        self._fits_spare = False
        self._again_upto = 0
        self._looked_ms: int | None = None
        self._tail = self._ledger.log.tail
        self._owed_bytes = self._turn_bytes = 0
        self._turn_ms: int | None = None

    def upkeep(self, now_ms: int, beside: UpkeepReport) -> UpkeepReport:
        """Do what is due of the log; returns that together with what was done beside it.

        Each side does so when it is maintained, as a store may use the engine for timers alone, or for pops alone.
        """
        made, found = self._ledger.upkeep(now_ms), self.go_on(now_ms)
        more = beside.more or found.more or bool(self._ledger.queues.due)
        return UpkeepReport(beside.done + made + found.done, more, beside.expired)

    def go_on(self, now_ms: int) -> UpkeepReport:
        """Look at a slice, or copy one, if one is owed; what was done counts files that went.

        While the files are copied (``store_copy``) it is put off.
        """
        if self._ledger.copying.locked():
            return UpkeepReport()
        written, self._tail = self._ledger.log.tail - self._tail, self._ledger.log.tail
        if len(self._ledger.log.chain.starts) < 2:
            # The last file stays in any case.
            return UpkeepReport()
        self._ledger.grow_spare()
        slice_bytes = self._ledger.sizes.slice_bytes
        self._owed_bytes = min(self._owed_bytes + _TIMES_OWED * written, _MOST_OWED_BYTES)
        self._turn_bytes += written
        if self._turn_ms is None or not 0 <= now_ms - self._turn_ms < _TURN_MS:
            self._owed_bytes = max(self._owed_bytes, _IDLE_SLICES * slice_bytes if self._turn_bytes < _IDLE_BYTES else 1)
            self._turn_ms, self._turn_bytes = now_ms, 0
        try:
            if self._owed_bytes > 0:
                done = self._step(slice_bytes, now_ms)
                self._tail = self._ledger.log.tail  # copies are owed already
                self._owed_bytes = self._owed_bytes - done if done else 0
        except StoreFullError:
            # What was done so far stays. It is begun again with less, for which the spare has room.
            self._owed_bytes = 0
            self._copies, self._live = [], {}
            self._most_live_bytes = self._ledger.spare.size // _SHARE_OF_SPARE
        try:
            return UpkeepReport(self._ledger.in_spare(self._release), more=self._owed_bytes > 0)
        except StoreFullError:
            self._owed_bytes = 0
            return UpkeepReport()

    def _step(self, slice_bytes: int, now_ms: int) -> int:
        """Look at a slice, or copy one; returns its bytes, 0 when there is none."""
        if self._copies:
            copy = partial(self._copy, slice_bytes)
            return self._ledger.in_spare(copy) if self._fits_spare else copy()
        return self._ledger.in_spare(partial(self._find_records if self._live else self._count, slice_bytes, now_ms))

    def _count(self, slice_bytes: int, now_ms: int) -> int:
        """Look at a slice of the queues for how much is live in each file."""
        # Whatever ends a look before its end, a signal handler for one, it is begun anew: it may have missed a page.
        census, self._census = self._census, None
        if census is None:
            begin, end = max(self._ledger.log.chain.first, self._free_upto), self._end
            is_known = self._looked_ms is not None and 0 <= now_ms - self._looked_ms < AGAIN_MS and end <= self._again_upto
            if begin >= end or is_known:
                return 0
            census = Census(self._ledger, self._liveness, begin, end)
        done = self._look_on(census, slice_bytes, now_ms)
        if not census.is_done:
            self._census = census
        else:
            self._decide(census)
            if not self._live:
                self._put_off(now_ms, census)
        return done

    @property
    def _end(self) -> int:
        """The start of the last file, which is written to still."""
        log = self._ledger.log
        return log.tail // log.file_bytes * log.file_bytes

    def _look_on(self, look: Look, slice_bytes: int, now_ms: int) -> int:
        """Look at a slice of the queues; one that meets a damaged page ends there, and says so."""
        try:
            return look.go_on(slice_bytes)
        except CorruptStoreError:
            self._put_off(now_ms, look)
            raise

    def _put_off(self, now_ms: int, look: Look) -> None:
        """Keep all files until another look is worth it; this one found that none can go."""
        self._again_upto = max(look.end, self._end) + look.bytes
        self._looked_ms = now_ms
        self._copies, self._live = [], {}

    def _decide(self, census: Census) -> None:
        """Choose the files that go: from the oldest up to the first with which little enough of all is live, and on from there."""
        file_bytes = self._ledger.log.file_bytes
        most = self._ledger.sizes.copy_live_percent
        state = self._ledger.bytes_to_release(census.end)
        # So much of a file of copies they fill at least: of the next record there may have been no room for any, and they are not all.
        filled = file_bytes - census.largest - file_bytes // _PART_BESIDE_COPIES
        begin = live = 0
        for row, bytes_live in enumerate(census.live.tolist(), 1):
            live += bytes_live
            room = file_bytes * (row - begin)
            written = live + (state if self._ledger.restart < census.begin + row * file_bytes else 0)
            is_worth_it = not live or (100 * live < most * room and written < filled * (row - begin))
            if is_worth_it and 100 * written < max(most, _STATE_PERCENT) * room:
                begin, live = row, 0
        self._live = {census.begin + row * file_bytes: bytes_live for row, bytes_live in enumerate(census.live[:begin].tolist())}

    def _find_records(self, slice_bytes: int, now_ms: int) -> int:
        """Look at a slice of the queues for the records of the files that go next."""
        records, self._records = self._records, None
        if records is None:
            begin = end = min(self._live)
            live = 0
            while end in self._live and (live + self._live[end] <= self._most_live_bytes or end == begin):
                live += self._live[end]
                end += self._ledger.log.file_bytes
            self._fits_spare = live <= self._most_live_bytes < _MOST_LIVE_BYTES
            if not live:
                return self._let_go(end)
            records = Records(self._ledger, self._liveness, begin, end)
        done = self._look_on(records, slice_bytes, now_ms)
        if not records.is_done:
            self._records = records
        elif records.sound_upto == records.begin:
            self._put_off(now_ms, records)
        else:
            self._copies = [FileCopy(self._ledger, self._index, self._liveness, *found) for found in records.by_file()]
            self._copied_upto = records.sound_upto
            if records.sound_upto < records.end:
                self._live = {start: live for start, live in self._live.items() if start < records.sound_upto}
            if not self._copies:
                self._let_go(records.sound_upto)
        return done

    def _copy(self, slice_bytes: int) -> int:
        file = self._copies[0]
        # A frame of copies has to fit into a file.
        try:
            done = file.go_on(min(slice_bytes, self._ledger.log.file_bytes // 4))
        except CorruptStoreError:
            # It was sound a moment ago; the next look sees it too.
            self._copies, self._live = [], {}
            return slice_bytes
        if file.is_done:
            self._copies.pop(0)
            if not self._copies:
                self._let_go(self._copied_upto)
        return done

    def _let_go(self, upto: int) -> int:
        self._free_upto = upto
        self._live = {start: live for start, live in self._live.items() if start >= self._free_upto}
        return 1

    def _release(self) -> int:
        before = len(self._ledger.log.chain.starts)
        if self._free_upto > self._ledger.log.chain.first:
            self._ledger.release_log(self._free_upto)
            self._most_live_bytes = _MOST_LIVE_BYTES
            self._index.keys.drop_before(self._ledger.log.chain.first)
        return before - len(self._ledger.log.chain.starts)


class FileCopy:
    """Copies what is live of some records of a file, slice by slice; what was live when they were noted may be dead now.

    Args:
        starts, sizes: where in the file the records are, in order, and how long.

    Attributes:
        is_done: all of them were copied.
    """

    def __init__(self, ledger: Ledger, index: TimerIndex, liveness: Liveness, file_start: int, starts: Ints, sizes: Ints) -> None:
        self._ledger = ledger
        self._index = index
        self._liveness = liveness
        self._file_start = file_start
        self._starts, self._sizes = starts, sizes
        self._row = 0
        self.is_done = False

    def go_on(self, slice_bytes: int) -> int:
        """Copy what is live of the next records, as one frame, as far as they lie within ``slice_bytes``, one at least; returns how many.

        Raises:
            CorruptStoreError: something cannot be read; nothing of the slice was copied.
            StoreFullError: no room; nothing of the slice was copied.
        """
        first = self._row
        begin = int(self._starts[first])
        stop = max(int(np.searchsorted(self._starts, begin + slice_bytes)), first + 1)
        self._copy(self._starts[first:stop], self._sizes[first:stop])
        self._row = stop
        self.is_done = stop == len(self._starts)
        return int(self._starts[stop - 1] + self._sizes[stop - 1]) - begin

    def _copy(self, starts: Ints, sizes: Ints) -> None:
        view = self._ledger.log.chain.view(self._file_start)
        pieces: list[Messages] = []
        timers: Ints = np.zeros(0, np.int64)
        for live in self._liveness.of(self._file_start, starts, sizes):
            if live.topic == WHEEL_TOPIC:
                timers = live.offsets + 1
            codes = live.units["tags_code"].astype(np.int64)
            place = Stretch(view, self._file_start, starts[live.rows], sizes[live.rows])
            pieces.append(copies_of(self._index, place, live.topic, live.queue, live.offsets, live.spare, codes))
        if pieces:
            self._ledger.append(pieces, noted=[self._index.copied(timers)])
