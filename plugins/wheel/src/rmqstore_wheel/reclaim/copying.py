"""``FileCopy``: what is live in a file of the commit log goes to the end of it, slice by slice, in frames of its own."""

from __future__ import annotations

import numpy as np

from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.formats.log_reading import Scan
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.log.appending import Messages
from rmqstore_wheel.log.ledger import Ledger
from rmqstore_wheel.reclaim.file_look import Slices
from rmqstore_wheel.reclaim.liveness import Liveness
from rmqstore_wheel.timers.copies import read_sound, with_keys, without_frames
from rmqstore_wheel.timers.index import TimerIndex


class FileCopy(Slices):
    """Copies what is live in a file, slice by slice; what was live when somebody looked may be dead now."""

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
            records, store_ms = without_frames(view, self.file_start, starts[live.rows], sizes[live.rows], live.spare)
            prepare = None
            if live.topic == WHEEL_TOPIC:
                timers = live.offsets + 1
                found = read_sound(self._index, view, self.file_start, starts[live.rows], sizes[live.rows])
                prepare = with_keys(self._index, found, self.file_start, starts[live.rows])
            codes = live.units["tags_code"].astype(np.int64)
            pieces.append(Messages(live.topic, live.queue, live.offsets, records, store_ms, codes, prepare))
        if pieces:
            self._ledger.append(pieces, noted=[self._index.copied(timers)])
