"""``UnitLog``: a cache file set of units of one size, numbered from 0: consume queues, the timer log, what is known of each timer.

A cache can always be made again from the commit log. So it needs no order among its writes; it needs to know damage when it meets it. Every
block of :data:`BLOCK` units has a CRC-32, kept in the check point (:class:`Sums`); a block that a check point vouches for is checked when
somebody first looks into it, and what was written since the store was opened needs no check.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.disk import Disk
from rmqstore_wheel.file_chain import FileChain
from rmqstore_wheel.formats.binary_columns import Bytes, Ints

BLOCK: Final = 4096


class Doubt(enum.Enum):
    """Why caches may not be what a check point says."""

    REWRITTEN = "units were written anew, which the next check point will know"
    DAMAGED = "units are not what was written"


class Sums(msgspec.Struct, frozen=True, array_like=True):
    """What a check point knows of a unit log: its first and next number, and the CRC-32 of each block, the last one as far as it goes."""

    first: int = 0
    count: int = 0
    crcs: bytes = b""


class UnitLog:
    """Units in files; ``blank_bytes`` at the end of every file hold none.

    Args:
        unit: the layout of one.
        per_file: how many a file holds.
        doubt: called before units are written anew, and when some are not what was written: the next open makes everything anew, unless a
            check point comes before it.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        unit: np.dtype[Any],
        per_file: int,
        *,
        blank: bytes = b"",
        fill_bytes: int = 1024 * 1024,
        made_above: int = 1,
        doubt: Callable[[Doubt], None] = lambda doubt: None,
    ) -> None:
        self._doubt = doubt
        self.unit = unit
        self.per_file = per_file
        self._blank = blank
        self.chain = FileChain(disk, directory, per_file * unit.itemsize + len(blank), fill_bytes, made_above)
        self.count = self.first = 0
        self._crcs = np.zeros(0, np.uint32)
        self._trusted = np.zeros(0, np.bool_)
        self._open_crc = 0

    # ------------------------------------------------------------ numbers and places

    def position(self, number: int) -> int:
        """Return the byte at which a unit lies."""
        return number // self.per_file * self.chain.file_bytes + number % self.per_file * self.unit.itemsize

    def positions(self, numbers: Ints) -> Ints:
        """Return the bytes at which units lie."""
        found: Ints = numbers // self.per_file * self.chain.file_bytes + numbers % self.per_file * self.unit.itemsize
        return found

    def numbers(self, positions: Ints) -> Ints:
        """Return which units lie at these bytes; -1 where none does."""
        found: Ints = positions // self.chain.file_bytes * self.per_file + positions % self.chain.file_bytes // self.unit.itemsize
        return np.where(self.positions(found) == positions, found, -1)

    # ------------------------------------------------------------ writing

    def start(self, sums: Sums) -> None:
        """Begin with what a check point vouches for; what lies behind it is written anew.

        Raises:
            CorruptStoreError: a file of what it vouches for is missing.
        """
        self.first, self.count = sums.first, sums.count
        self._crcs = np.frombuffer(sums.crcs, "<u4").astype(np.uint32)
        self._trusted = np.zeros(len(self._crcs), np.bool_)
        # What was summed of the last block goes on to be summed, and is checked with it.
        self._open_crc = int(self._crcs[-1]) if self.count % BLOCK else 0
        end = self.position(self.count)
        if self.count > self.first and (
            not self.chain.starts or not self.chain.first <= self.position(self.first) <= end <= self.chain.end
        ):
            path = str(self.chain.directory)
            raise CorruptStoreError(f"{path} does not hold units {self.first} to {self.count}", file=path, offset=end)
        if self.count > self.first:
            self.chain.check()
        if not self.chain.starts:
            self.chain.begin_at(end // self.chain.file_bytes * self.chain.file_bytes)
        self.chain.set_filled(max(end, self.chain.first))

    def reserve(self, count: int) -> None:
        """See to it that ``count`` more units find room."""
        if count:
            self.chain.reserve(self.position(self.count + count - 1) + self.unit.itemsize + len(self._blank))

    def append(self, data: Bytes) -> int:
        """Append units, in space that was reserved; returns the number of the first."""
        first = self.count
        self.write_ahead(data)
        self.advance(data)
        return first

    def write_ahead(self, data: Bytes) -> None:
        """Write units behind the last one, where nobody sees them until :meth:`advance`."""
        view = memoryview(data).cast("B")
        size = self.unit.itemsize
        first = at = self.count
        behind = first + len(view) // size
        while at < behind:
            stop = min(behind, (at // self.per_file + 1) * self.per_file)
            self.chain.write_at(self.position(at), view[(at - first) * size : (stop - first) * size])
            if self._blank and stop % self.per_file == 0:
                self.chain.write_at(self.position(stop - 1) + size, self._blank)
            at = stop

    def advance(self, data: Bytes) -> None:
        """Count in what was written ahead."""
        view = memoryview(data).cast("B")
        self._sum(view, self.count + len(view) // self.unit.itemsize)

    def _sum(self, view: memoryview, behind: int) -> None:
        """Take appended units into the sums."""
        size, first, at = self.unit.itemsize, self.count, self.count
        crcs = []
        while at < behind:
            stop = min(behind, (at // BLOCK + 1) * BLOCK)
            self._open_crc = zlib.crc32(view[(at - first) * size : (stop - first) * size], self._open_crc)
            crcs.append(self._open_crc)
            if stop % BLOCK == 0:
                self._open_crc = 0
            at = stop
        blocks = first // BLOCK
        if len(self._crcs) < blocks:
            # Nothing lies before the first unit.
            missing = blocks - len(self._crcs)
            self._crcs = np.append(self._crcs, np.zeros(missing, np.uint32))
            self._trusted = np.append(self._trusted, np.ones(missing, np.bool_))
        if first % BLOCK and len(self._crcs) > blocks and crcs:
            # A block whose older part is not checked yet stays so.
            self._crcs[blocks] = crcs.pop(0)
            blocks += 1
        if crcs:
            self._crcs = np.append(self._crcs[:blocks], np.asarray(crcs, np.uint32))
            self._trusted = np.append(self._trusted[:blocks], np.ones(len(crcs), np.bool_))
        self.count = behind

    def replace(self, number: int, data: Bytes) -> None:
        """Write units anew that are there already."""
        self._doubt(Doubt.REWRITTEN)
        view = memoryview(data).cast("B")
        size = self.unit.itemsize
        for at in range(len(view) // size):
            self.check(number + at, 1)
            self.chain.write_at(self.position(number + at), view[at * size : (at + 1) * size])
        behind = number + len(view) // size
        for block in range(number // BLOCK, (behind - 1) // BLOCK + 1):
            self._sum_block(block)

    def _sum_block(self, block: int) -> None:
        first, stop = max(block * BLOCK, self.first), min((block + 1) * BLOCK, self.count)
        self._crcs[block] = zlib.crc32(self._raw(first, stop - first).tobytes())
        if stop == self.count and stop % BLOCK:
            self._open_crc = int(self._crcs[block])

    # ------------------------------------------------------------ reading

    def read(self, number: int, count: int) -> np.ndarray[Any, np.dtype[np.void]]:
        """Return units that follow one another.

        Raises:
            CorruptStoreError: they are not what was written.
        """
        self.check(number, count)
        return self._raw(number, count)

    def _raw(self, number: int, count: int) -> np.ndarray[Any, np.dtype[np.void]]:
        pieces = []
        while count > 0:
            step = min(count, self.per_file - number % self.per_file)
            data = self.chain.read(self.position(number), step * self.unit.itemsize)
            # A file that was cut off holds fewer, which do not have the sum.
            pieces.append(np.frombuffer(data, self.unit, len(data) // self.unit.itemsize))
            number, count = number + step, count - step
        if len(pieces) == 1:
            return pieces[0]
        # The byte order stays, too: sums are over what is in the files.
        return np.concatenate(pieces, dtype=self.unit) if pieces else np.zeros(0, self.unit)

    def gather(self, numbers: Ints) -> np.ndarray[Any, np.dtype[np.void]]:
        """Return units of any numbers, in their order; see :meth:`read`."""
        if not len(numbers):
            return np.zeros(0, self.unit)
        low, high = int(numbers.min()), int(numbers.max())
        if not self._trusted[low // BLOCK : high // BLOCK + 1].all():
            for block in np.unique(numbers // BLOCK).tolist():
                self.check(block * BLOCK, 1)
        if low // self.per_file == high // self.per_file:
            base = low // self.per_file * self.per_file
            found: np.ndarray[Any, np.dtype[np.void]] = self._units_of(base // self.per_file)[numbers - base]
            return found
        units = np.empty(len(numbers), self.unit)
        files = numbers // self.per_file
        for file in np.unique(files).tolist():
            rows = files == file
            units[rows] = self._units_of(file)[numbers[rows] - file * self.per_file]
        return units

    def _units_of(self, file: int) -> np.ndarray[Any, np.dtype[np.void]]:
        """Return the units of one file, written or not."""
        data = self.chain.view(file * self.chain.file_bytes)
        return np.frombuffer(data, self.unit, min(len(data) // self.unit.itemsize, self.per_file))

    def check(self, number: int, count: int) -> None:
        """Check the blocks of some units, as far as nobody has looked into them yet."""
        first, stop = number // BLOCK, (number + count - 1) // BLOCK + 1 if count > 0 else 0
        for block in (np.flatnonzero(~self._trusted[first:stop]) + first).tolist():
            begin, end = max(block * BLOCK, self.first), min((block + 1) * BLOCK, self.count)
            if zlib.crc32(self._raw(begin, end - begin).tobytes()) != self._crcs[block]:
                path = str(self.chain.path_of(self.position(begin)))
                self._doubt(Doubt.DAMAGED)
                raise CorruptStoreError(
                    f"{path}: units {begin} to {end - 1} are not what was written; open the store again, which makes them anew",
                    file=path,
                    offset=self.position(begin),
                )
            self._trusted[block] = True

    # ------------------------------------------------------------ durability and the end

    def sync(self) -> Sums:
        """Make everything durable; returns what a check point has to know."""
        self.chain.sync()
        return Sums(self.first, self.count, self._crcs.astype("<u4").tobytes())

    def trim(self, number: int) -> None:
        """Let what is kept begin with the file that holds ``number``; the files before it go with :meth:`release`."""
        kept = min(number, self.count) // self.per_file * self.per_file
        if kept <= self.first:
            return
        if kept % BLOCK and kept < self.count:
            self.check(kept, 1)
        self.first = kept
        if kept % BLOCK:
            # Also when nothing is left of the block: what is appended to it goes on from this sum.
            self._sum_block(kept // BLOCK)

    def release(self) -> None:
        """Remove the files before what is kept, once a durable check point says so."""
        self.chain.drop_before(self.position(self.first))

    def close(self) -> None:
        """Let go of the files."""
        self.chain.close()
