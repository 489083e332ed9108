"""``Reclaim``: files of the commit log go when nothing is live in them; what is live in nearly dead ones is copied forward.

Files go from the oldest on, without a gap. From the oldest on they are looked at, a slice at a time; once of those looked at so far less is
live than the settings say (30 %), what is live in them is copied to the end of the log, and they go. The state, of which a copy is written
then as well, counts as live. So a copied byte makes room for more than two others, which is why a store where nothing happens comes to an
end with it; and a log is never longer than what is live in it asks for, though far timers fill its first file.

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

- **Damage.** Where a file cannot be read from end to end, consume queues say what is live in it. If all of that is sound, the damage is to
  what is not needed, and the file goes like any other. Else it stays until no consume queue leads to what is damaged (T12).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rmqstore.contract import UpkeepReport
from rmqstore.errors import CorruptStoreError, StoreFullError
from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.formats.log_reading import Scan
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.log.call import Messages
from rmqstore_wheel.log.ledger import Ledger
from rmqstore_wheel.reclaim.liveness import FileLook, Liveness, Slices
from rmqstore_wheel.timers.copies import Stretch, copies_of
from rmqstore_wheel.timers.index import TimerIndex

AGAIN_MS: Final = 10 * 60_000
"""When nothing could go, everything is looked at again after this time."""

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

    What callers write is owed three times over: once to look at the log, once to go through it again for the copies, once for what the
    copies add to it. While n bytes are gone through, they write 2/3 n, and n go but for what is live; so the log ends at about three times
    that, whatever the load is. Costs follow what is written, not how often this is called; a slice has its turn every second in any case.
    """

    def __init__(self, ledger: Ledger, index: TimerIndex) -> None:
        self._ledger = ledger
        self._index = index
        self._liveness = Liveness(ledger, index)
        self._looks: list[FileLook] = []
        self._copies: list[FileCopy] = []
        self._copied_upto = self._free_upto = 0
        self._tail = ledger.log.tail
        self._owed_bytes = self._turn_bytes = 0
        self._turn_ms: int | None = None
        self._looked_ms: int | None = None

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
        slice_bytes = self._ledger.sizes.slice_bytes
        self._owed_bytes = min(self._owed_bytes + _TIMES_OWED * written, _MOST_OWED_BYTES)
        self._turn_bytes += written
        if self._turn_ms is None or not 0 <= now_ms - self._turn_ms < _TURN_MS:
            self._owed_bytes = max(self._owed_bytes, _IDLE_SLICES * slice_bytes if self._turn_bytes < _IDLE_BYTES else 1)
            self._turn_ms, self._turn_bytes = now_ms, 0
        if self._looked_ms is not None and not 0 <= now_ms - self._looked_ms < AGAIN_MS and not self._copies:
            self._looks, self._looked_ms = [], None
        try:
            if self._owed_bytes > 0:
                done = self._step(slice_bytes, now_ms)
                self._tail = self._ledger.log.tail  # copies are owed already
                self._owed_bytes = self._owed_bytes - done if done else 0
            return UpkeepReport(self._release(), more=self._owed_bytes > 0)
        except StoreFullError:
            # What was done so far stays, and is gone on with once there is room.
            self._owed_bytes = 0
            return UpkeepReport()

    def _step(self, slice_bytes: int, now_ms: int) -> int:
        """Look at a slice, or copy one; returns its bytes, 0 when there is none."""
        if self._copies:
            return self._copy(slice_bytes)
        if not self._looks or self._looks[-1].is_done:
            start = self._next_start()
            if start is None:
                if self._looked_ms is None:
                    self._looked_ms = now_ms
                return 0
            # Else nothing would lead to check points that came since the last check point.
            self._ledger.settle()
            self._looks.append(FileLook(self._ledger.log, self._liveness, start))
        look = self._looks[-1]
        done = look.go_on(slice_bytes)
        if look.is_done:
            self._decide()
        return done

    def _next_start(self) -> int | None:
        """Return the start of the next file to look at; None when that is written to still."""
        log = self._ledger.log
        start = self._looks[-1].file_start + log.file_bytes if self._looks else max(log.chain.first, self._free_upto)
        return start if start < log.tail // log.file_bytes * log.file_bytes else None

    def _decide(self) -> None:
        """Let the files that were looked at go, if little enough of them is live."""
        file_bytes = self._ledger.log.file_bytes
        last = self._looks[-1]
        live = sum(look.live for look in self._looks)
        most = self._ledger.sizes.copy_live_percent
        if live and 100 * live >= most * file_bytes * len(self._looks):
            return
        written = live + self._ledger.bytes_to_release(last.file_start + file_bytes)
        if 100 * written >= max(most, _STATE_PERCENT) * file_bytes * len(self._looks):
            return
        if any(look.is_damaged and look.led_to is None for look in self._looks):
            return
        self._copies = [
            FileCopy(self._ledger, self._index, self._liveness, look.file_start, look.led_to) for look in self._looks if look.live
        ]  # fmt: skip
        self._looks = []
        if not self._copies:
            self._free_upto = last.file_start + file_bytes
        else:
            self._copied_upto = last.file_start + file_bytes

    def _copy(self, slice_bytes: int) -> int:
        file = self._copies[0]
        # A frame of copies has to fit into a file.
        try:
            done = file.go_on(min(slice_bytes, self._ledger.log.file_bytes // 4))
        except CorruptStoreError:
            # The next look sees it too.
            self._copies = []
            return slice_bytes
        if file.is_damaged:
            self._copies = []
        elif file.is_done:
            self._copies.pop(0)
            if not self._copies:
                self._free_upto = self._copied_upto
        return done

    def _release(self) -> int:
        before = len(self._ledger.log.chain.starts)
        if self._free_upto > self._ledger.log.chain.first:
            self._ledger.release_log(self._free_upto)
            self._index.keys.drop_before(self._ledger.log.chain.first)
        return before - len(self._ledger.log.chain.starts)


class FileCopy(Slices):
    """Copies what is live in a file, slice by slice; what was live when it was looked at may be dead now."""

    def __init__(self, ledger: Ledger, index: TimerIndex, liveness: Liveness, file_start: int, known: Scan | None = None) -> None:
        super().__init__(ledger.log, file_start, known)
        self._ledger = ledger
        self._index = index
        self._liveness = liveness

    def go_on(self, slice_bytes: int) -> int:
        """Copy what is live in the next slice, as one frame; returns the bytes of the slice.

        Raises:
            CorruptStoreError: something cannot be read; nothing of the slice was copied.
            StoreFullError: no room; nothing of the slice was copied.
        """
        before = self.at, self.is_done
        found = self.next(slice_bytes)
        try:
            if len(found.starts):
                self._copy(found.starts, found.sizes)
        except BaseException:
            self.at, self.is_done = before
            raise
        return max(self.at - before[0], 1)

    def _copy(self, starts: Ints, sizes: Ints) -> None:
        view = self._ledger.log.chain.view(self.file_start)
        pieces: list[Messages] = []
        timers: Ints = np.zeros(0, np.int64)
        for live in self._liveness.of(self.file_start, starts, sizes):
            if live.topic == WHEEL_TOPIC:
                timers = live.offsets + 1
            codes = live.units["tags_code"].astype(np.int64)
            place = Stretch(view, self.file_start, starts[live.rows], sizes[live.rows])
            pieces.append(copies_of(self._index, place, live.topic, live.queue, live.offsets, live.spare, codes))
        if pieces:
            self._ledger.append(pieces, noted=[self._index.copied(timers)])
