"""``CommitLog``: the one file set that is the truth, appended to by whole frames (``CommitLog``, ``MappedFileQueue``).

A frame that does not fit into what is left of a file begins the next one; only a frame longer than a file runs on over several.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from zlib_ng.zlib_ng import crc32

from rmqstore.errors import CorruptStoreError, FormatVersionError, IllegalArgumentError, StoreFullError
from rmqstore_wheel.files.chain import FailedSyncError, FileChain
from rmqstore_wheel.files.disk import Disk, ScatteredReads
from rmqstore_wheel.formats import commit_log as log, log_reading
from rmqstore_wheel.formats.binary_columns import Bytes, Ints, Octets, cells
from rmqstore_wheel.formats.log_columns import Encoded
from rmqstore_wheel.formats.log_reading import Stop
from rmqstore_wheel.log import frames, journal
from rmqstore_wheel.records import sums
from rmqstore_wheel.records.parts import text_places

FILL_BYTES: Final = 4 * 1024 * 1024
_JOINED_BYTES: Final = 64 * 1024
_MARK: Final = re.compile(re.escape(frames.PROPERTY))

_SECTOR_BYTES: Final = 512
"""A disk writes so many bytes as a whole or not at all."""

_WITHOUT_SUMS: Final = (journal.TOPIC.encode(), b"rmq_sys_REVIVE_LOG_rmqs-")
"""How the topics begin whose records are ours although they have no sum (``sums``)."""


class Part(NamedTuple):
    """Records of a frame that are in one file: where the file starts, where in it the records start, and how long they are."""

    file_start: int
    starts: Ints
    sizes: Ints


class Frame(NamedTuple):
    """A whole frame that was found: its first byte, the byte behind it, its epoch, and its records."""

    start: int
    end: int
    epoch: int
    parts: list[Part]


class CommitLog:
    """The open log.

    **What an open cuts.** What stands behind the last whole frame was never promised, when it is what a crash left of a call. Three things
    tell that it is something else, and then nothing is cut: a later frame that stands where it says and was written when the place at
    fault was durable; a check point that was written when it was (``promised``); and a sound record that is not ours, which a broker
    appended. What a crash left cannot pass for the last: each of our messages ends with its sum, or, torn, with zeros or over a sector of
    zeros.

    Attributes:
        promised: up to where everything was on disk once, as another file says.
        tail: where the next frame goes, at the earliest.
        durable: up to where everything is on disk.
        scattered: reads of records that are all over it.
    """

    def __init__(self, disk: Disk, directory: Path, file_bytes: int = log.FILE_BYTES, fill_bytes: int = FILL_BYTES) -> None:
        self.chain = FileChain(disk, directory, file_bytes, fill_bytes)
        self.chain.holds_back = True
        self.chain.check()
        self.file_bytes = file_bytes
        self.tail = self.chain.first
        self.durable = self.tail
        self.promised = 0
        self.scattered = ScatteredReads()

    # ------------------------------------------------------------ appending

    def plan(self, pieces: Sequence[Encoded]) -> list[tuple[int, Encoded]]:
        """Tell the records of a frame where they will be, if this is the next one; returns the pieces with their offsets.

        The last piece has room for the frame's property (``frames.with_room``).
        """
        total = sum(len(piece.data) for piece in pieces)
        start = self.tail
        left = self.file_bytes - start % self.file_bytes
        if not log.fits(total, left) and left < self.file_bytes:
            start += left
        return self._place(pieces, start)

    def write(self, placed: list[tuple[int, Encoded]], epoch: int) -> None:
        """Append a frame that was planned: visible to readers at once, durable with the next sync.

        Raises:
            OSError: the disk failed or has no room; nothing of the frame is there.
        """
        frames.finish([piece for _, piece in placed], epoch, self.durable)
        self._write(placed)
        last_offset, last = placed[-1]
        self.tail = last_offset + len(last.data)

    def write_whole(self, data: Bytes) -> None:
        """Append a frame that ``frames.whole`` made for the tail.

        Raises:
            OSError: as for :meth:`write`.
        """
        try:
            self.chain.write_at(self.tail, data)
        except BaseException:
            self._take_back()
            raise
        self.tail += len(data)

    def _place(self, pieces: Sequence[Encoded], offset: int) -> list[tuple[int, Encoded]]:
        """Give every piece its place, cut where a file ends."""
        placed: list[tuple[int, Encoded]] = []
        waiting = list(reversed(pieces))
        while waiting:
            piece = waiting.pop()
            left = self.file_bytes - offset % self.file_bytes
            if not log.fits(len(piece.data), left):
                piece, rest = piece.split(left)
                waiting.append(rest)
                if not len(piece.starts):
                    if left == self.file_bytes:
                        raise IllegalArgumentError(f"a record of {rest.sizes[0]} bytes does not fit into a file of the log of {left} bytes")
                    offset += left
                    continue
            piece.place(offset)
            placed.append((offset, piece))
            offset += len(piece.data)
        return placed

    def _write(self, placed: list[tuple[int, Encoded]]) -> None:
        start = placed[0][0]
        end = placed[-1][0] + len(placed[-1][1].data)
        blanks = []
        at = self.tail
        for offset, piece in placed:
            if offset != at:
                blanks.append((at, log.encode_blank(self.file_bytes - at % self.file_bytes)))
            at = offset + len(piece.data)
        try:
            for offset, blank in blanks:
                self.chain.reserve(offset + len(blank))
                # The rest of the file stays a hole.
                self.chain.set_filled(offset // self.file_bytes * self.file_bytes + self.file_bytes)
            self.chain.reserve(end)
            for offset, blank in blanks:
                self.chain.write_at(offset, blank)
            if len(placed) > 1 and not blanks and end - start <= _JOINED_BYTES:
                self.chain.write_at(start, np.concatenate([piece.data for _, piece in placed]).data)
            else:
                for offset, piece in placed:
                    self.chain.write_at(offset, piece.data.data)
        except BaseException:
            self._take_back()
            raise

    def _take_back(self) -> None:
        """Let nothing stand behind the tail after a frame was not written whole."""
        try:
            self.chain.clear_from(self.tail)
        except OSError as error:
            if error.errno is None:  # of a signal handler
                raise
            raise OSError(errno.EIO, f"a part of a call cannot be taken out of the log: {error.strerror or error}") from error

    def sync(self) -> None:
        """Make what is appended now durable.

        Raises:
            FailedSyncError: it may never be, also where the process could not open a file for that.
        """
        tail = self.tail
        try:
            self.chain.sync()
        except StoreFullError as error:  # a call that was told so could not be taken back
            raise FailedSyncError(errno.EIO, f"a sync failed: {error}") from error
        self.durable = max(self.durable, tail)

    # ------------------------------------------------------------ reading

    def record(self, offset: int, size: int) -> bytes:
        """Return what is at ``offset``, unchecked; nothing unless a record of this size may be there.

        It would be in a file that is kept, before the tail, and not over the end of a file.
        """
        start = offset // self.file_bytes * self.file_bytes
        if start in self.chain.starts and size >= log.MIN_BYTES and offset + size <= min(self.tail, start + self.file_bytes):
            return bytes(self.chain.read(offset, size))
        return b""

    # ------------------------------------------------------------ recovery

    def recover(self, offset: int, epoch: int = 0) -> Iterator[Frame]:
        """Yield the whole frames from ``offset`` on, where one begins, and then cut off what is behind the last of them.

        ``epoch`` is that of the frame before. The tail is set when the iteration is over, all of what is kept is durable then. Of the
        first frame of a log whose first files are gone, what is left is yielded: it was whole when they went.

        Raises:
            CorruptStoreError: what is not whole was durable once.
            FormatVersionError: records of another program stand behind the frames.
        """
        self.tail = max(offset, self.chain.first)
        at = begin = self.tail
        is_head = begin == self.chain.first > 0
        carried: list[Part] = []
        carried_count = carried_crc = 0
        while at // self.file_bytes * self.file_bytes in self.chain.starts:
            file_start = at // self.file_bytes * self.file_bytes
            view = self._looked_at(file_start)
            found = log_reading.scan(view, at - file_start)
            data = np.frombuffer(view, np.uint8)
            first = 0
            for row in frames.ends_of(data, found.starts, found.sizes).tolist():
                rows = slice(first, row + 1)
                part = Part(file_start, found.starts[rows], found.sizes[rows])
                end = file_start + int(found.starts[row] + found.sizes[row])
                trailer = self._check(view, data, part, carried_count, carried_crc, epoch)
                if trailer is None and is_head:
                    trailer = self._check_rest(part, carried)
                is_head = False
                if trailer is None:
                    self._cut(begin, epoch)
                    return
                frame = Frame(carried[0].file_start + int(carried[0].starts[0]) if carried else file_start + int(part.starts[0]), end,
                              trailer.epoch, [*carried, part])  # fmt: skip
                carried, carried_count, carried_crc = [], 0, 0
                first, epoch = row + 1, trailer.epoch
                self.tail = end
                yield frame
            if found.stop is not Stop.BLANK:
                break
            if first < len(found.starts):
                part = Part(file_start, found.starts[first:], found.sizes[first:])
                if not self._lies_right(data, part):
                    break
                carried.append(part)
                carried_count += len(part.starts)
                carried_crc = crc32(view[int(part.starts[0]) : found.end], carried_crc)
            at = file_start + self.file_bytes
        self._cut(begin, epoch)

    def _looked_at(self, file_start: int) -> memoryview:
        """Return the content of a file, in which frames are looked for."""
        return self.chain.view(file_start)

    @staticmethod
    def _lies_right(data: Octets, part: Part) -> bool:
        offsets = cells(data, ">i8")[part.starts + log.PHYSICAL_OFFSET_AT]
        return bool((offsets == part.starts + part.file_start).all())

    def _check(
        self, view: memoryview, data: Octets, part: Part, carried_count: int, carried_crc: int, epoch: int
    ) -> frames.Trailer | None:  # fmt: skip
        """Return the trailer of a frame whose records are ``part`` and those carried over from the file before; None if it is not whole."""
        begin, end = int(part.starts[0]), int(part.starts[-1] + part.sizes[-1])
        trailer = frames.read_trailer(bytes(view[end - frames.PROPERTY_BYTES : end]))
        if trailer is None or trailer.records != carried_count + len(part.starts) or trailer.epoch < epoch:
            return None
        if crc32(view[begin : end - frames.TAIL_BYTES], carried_crc) != trailer.crc or not self._lies_right(data, part):
            return None
        return trailer

    def _check_rest(self, last: Part, carried: Sequence[Part]) -> frames.Trailer | None:
        """Return the trailer of a frame that began in a file which is gone; None if what is left of it is not sound."""
        end = int(last.starts[-1] + last.sizes[-1])
        trailer = frames.read_trailer(bytes(self._looked_at(last.file_start)[end - frames.PROPERTY_BYTES : end]))
        count = sum(len(part.starts) for part in (*carried, last))
        if trailer is None or trailer.records <= count:
            return None
        for part in (*carried, last):
            view = self._looked_at(part.file_start)
            if log_reading.count_sound(view, part.starts, part.sizes, log_offset=part.file_start) < len(part.starts):
                return None
            if sums.wrong_rows(np.frombuffer(view, np.uint8), part.starts, part.sizes).any():
                return None
        return trailer

    def _cut(self, begin: int, epoch: int) -> None:
        """Cut the log behind its last whole frame, unless something behind it proves that more was there."""
        if self.tail < self.promised:
            raise self._damaged(f"a check point says that everything was on disk up to {self.promised}")
        self._refuse_damage(epoch)
        self._refuse_strangers()
        file_end = -(-self.tail // self.file_bytes) * self.file_bytes
        self.chain.drop_from(max(file_end, self.chain.first + self.file_bytes))
        self.chain.clear_from(self.tail)
        self.chain.mark_unsynced(begin, self.tail)
        self.chain.sync()
        self.durable = self.tail

    def _refuse_damage(self, epoch: int) -> None:
        scans: dict[int, log_reading.Scan] = {}
        for start in self.chain.starts:
            if start + self.file_bytes <= self.tail:
                continue
            view = self._looked_at(start)
            for low, high in self._data_in(start, max(self.tail - start, 0)):
                # Not by mmap.find, which reads beyond the map before Python 3.11.5. What is looked for cannot overlap itself.
                for found in _MARK.finditer(view, low, high):
                    end = found.start() + frames.PROPERTY_BYTES
                    trailer = frames.read_trailer(bytes(view[found.start() : end]))
                    if trailer is None or not self.tail < trailer.durable <= start + end or trailer.epoch < epoch:
                        continue
                    begin = self._begin_of(start, end, trailer, scans)
                    if begin >= max(self.tail, trailer.durable):
                        raise self._damaged(f"a later one at {begin} says that it was on disk")

    def _data_in(self, file_start: int, begin: int) -> Iterable[tuple[int, int]]:
        """Return where in a file something else than a hole is looked at, from a place on."""
        return self.chain.file(file_start).data_from(begin)

    def _begin_of(self, file_start: int, end: int, trailer: frames.Trailer, scans: dict[int, log_reading.Scan]) -> int:
        """Return where the frame begins that ends at a byte of a file; -1 where a copy of one is in the body of a message.

        One that is longer than a file begins with one, and all of a file before its end is its own. ``scans`` keeps what is in such files,
        as a body may hold very many copies.
        """
        is_long = trailer.size > end
        if is_long and file_start < self.tail:
            return -1
        parts: list[Part] = []
        left = trailer.size
        while left > 0 and file_start in self.chain.starts:
            view = self._looked_at(file_start)
            if not is_long:
                found = log_reading.scan(view[:end], end - left)
            elif (kept := scans.get(file_start)) is not None:
                found = kept
            else:
                found = scans[file_start] = log_reading.scan(view)
            rows = len(found.starts) if parts else int(found.starts.searchsorted(end))
            part = Part(file_start, found.starts[:rows], found.sizes[:rows])
            if not rows or (not parts and int(part.starts[-1] + part.sizes[-1]) != end):
                return -1
            if not self._lies_right(np.frombuffer(view, np.uint8), part):
                return -1
            parts.insert(0, part)
            left -= int(part.sizes.sum())
            file_start -= self.file_bytes
        if not parts or left or sum(len(part.starts) for part in parts) != trailer.records:
            return -1
        crc = 0
        for part in parts:
            behind = int(part.starts[-1] + part.sizes[-1]) - (frames.TAIL_BYTES if part is parts[-1] else 0)
            crc = crc32(self._looked_at(part.file_start)[int(part.starts[0]) : behind], crc)
        return parts[0].file_start + int(parts[0].starts[0]) if crc == trailer.crc else -1

    def _damaged(self, how_known: str) -> CorruptStoreError:
        path = str(self.chain.path_of(self.tail))
        return CorruptStoreError(f"{path}: the call at offset {self.tail} is damaged; {how_known}", file=path, offset=self.tail)

    def _refuse_strangers(self) -> None:
        """Raise when sound records that are not ours stand behind the last whole frame."""
        at = self.tail
        while (start := at // self.file_bytes * self.file_bytes) in self.chain.starts:
            view = self._looked_at(start)
            found = log_reading.scan(view, at - start)
            sound = log_reading.count_sound(view, found.starts, found.sizes, log_offset=start)
            data, starts, ends = np.frombuffer(view, np.uint8), found.starts[:sound], (found.starts + found.sizes)[:sound]
            texts = text_places(data, starts)
            for row in np.flatnonzero((sums.places_of(data, texts, ends) < 0) & ((data[ends - 1] != 0) | (texts == ends))).tolist():
                topic = log.decode_record(view, int(starts[row])).topic
                sum_from = max(int(texts[row]), int(ends[row]) - sums.MOST_BYTES)
                if not topic.startswith(_WITHOUT_SUMS) and not _is_torn(data, max(self.tail - start, 0), sum_from, int(ends[row])):
                    raise FormatVersionError(
                        f"{self.chain.path_of(start)} holds at offset {start + int(starts[row])} a record of topic "
                        f"{topic.decode(errors='replace')!r} that this engine did not write, as of a RocketMQ broker; nothing was changed. "
                        "`rmqstore inspect` reads such a log, and a broker opens it; open here a snapshot of before the broker had it"
                    )
            if sound < len(found.starts) or found.stop is not Stop.BLANK:
                return
            at = start + self.file_bytes

    def close(self) -> None:
        self.chain.close()


def _is_torn(data: Octets, written_from: int, begin: int, end: int) -> bool:
    """Say whether a sector with some of the bytes from ``begin`` to ``end`` holds nothing of what was to be written from a byte on."""
    first = begin // _SECTOR_BYTES * _SECTOR_BYTES
    return any(not data[max(at, written_from) : at + _SECTOR_BYTES].any() for at in range(first, end, _SECTOR_BYTES))
