"""``FileLook``: how much of one file of the commit log is live, found slice by slice."""

from __future__ import annotations

import numpy as np
from zlib_ng.zlib_ng import crc32

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel import frames, sums
from rmqstore_wheel.commit_log import CommitLog
from rmqstore_wheel.formats import log_reading
from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.formats.log_reading import Scan, Stop
from rmqstore_wheel.liveness import Liveness


class Slices:
    """Goes through the records of a file of the log.

    Attributes:
        at: byte of the file from which the next slice goes on.
        is_done: the end of the file was reached, or what cannot be read.
        is_damaged: something cannot be read; what lies behind it was not looked at.
    """

    def __init__(self, log: CommitLog, file_start: int) -> None:
        self._log = log
        self.file_start = file_start
        self.at = 0
        self.is_done = self.is_damaged = False

    def next(self, slice_bytes: int) -> Scan:
        """Return the records of about the next ``slice_bytes``, one of them at least, as long as there are any."""
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


class FileLook(Slices):
    """Looks at every frame of a file, and counts what is live.

    Attributes:
        live: bytes of the records that are live, so far.
    """

    def __init__(self, log: CommitLog, liveness: Liveness, file_start: int) -> None:
        super().__init__(log, file_start)
        self._liveness = liveness
        self._carried = self._crc = 0
        self._is_head = True
        self.live = 0

    def go_on(self, slice_bytes: int) -> int:
        """Look at the next slice; returns its bytes."""
        before = self.at
        found = self.next(slice_bytes)
        if len(found.starts):
            try:
                self._check_frames(found)
                for rows in self._liveness.of(self.file_start, found.starts, found.sizes):
                    self.live += int(found.sizes[rows.rows].sum())
            except CorruptStoreError:
                self.is_done = self.is_damaged = True
        return max(self.at - before, 1)

    def _check_frames(self, found: Scan) -> None:
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
