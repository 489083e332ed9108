"""``UnitLog``: a cache file set of units of one size, numbered from 0: consume queues, the timer log, what is known of each timer.

A cache can always be made again from the commit log. So it needs no order among its writes; it needs to know damage when it meets it. Every
block of :data:`BLOCK` units has a CRC-32, made at the check point that keeps it (:class:`Sums`); a block that a check point vouches for is
checked when it is first looked into, and what was written since the store was opened needs no check.

Numbers may leave gaps, which a load makes by the million: a fill unit stands at a number that nothing was written to, and a file that would
hold nothing else is not there.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import msgspec
import numpy as np
from zlib_ng.zlib_ng import crc32

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.files.chain import FileChain
from rmqstore_wheel.files.disk import Disk
from rmqstore_wheel.formats.binary_columns import Bytes, Ints, Rows, put_rows

BLOCK: Final = 4096
_NEAR: Final = 512
"""Units that are written in one piece though so many between two of them stay as they are."""


class RebuildReason(enum.Enum):
    """Why caches may not be what a check point says."""

    REWRITTEN = "units were written anew, which the next check point will know"
    DAMAGED = "units are not what was written"


class Sums(msgspec.Struct, frozen=True, array_like=True):
    """What a check point knows of a unit log.

    Attributes:
        first, count: its first and its next number.
        crcs: the CRC-32 of each block, the last one as far as it goes.
        absent: files between them that are not there, as (number of the first, number behind the last).
    """

    first: int = 0
    count: int = 0
    crcs: bytes = b""
    absent: list[tuple[int, int]] = []


Numbers = TypeVar("Numbers", int, Ints)


class UnitLog:
    """Units in files; ``blank_bytes`` at the end of every file hold none.

    Attributes:
        is_rewritten: whether units that a check point may vouch for are others since the last sync that came to its end.

    Args:
        unit: the layout of one. per_file: how many a file holds. fill: the unit that stands where nothing was written; zeros when it is not
        given. ask_rebuild: called before units are rewritten, and when some are not what was written: the next open rebuilds everything,
            unless a check point comes before it.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        unit: np.dtype[Any],
        per_file: int,
        *,
        blank: bytes = b"",
        fill: bytes = b"",
        fill_bytes: int = 1024 * 1024,
        made_above: int = 1,
        ask_rebuild: Callable[[RebuildReason], None] = lambda reason: None,
    ) -> None:
        self._ask_rebuild = ask_rebuild
        self.unit = unit
        self.per_file = per_file
        self._blank = blank
        self._fill = np.frombuffer(fill or bytes(unit.itemsize), unit)
        self._fill_crc = crc32(np.repeat(self._fill, BLOCK).tobytes())
        # Blocks whose sums the next check point makes.
        self._stale: set[int] = set()
        self.chain = FileChain(disk, directory, per_file * unit.itemsize + len(blank), fill_bytes, made_above)
        self.count = self.first = 0
        self._crcs = np.zeros(0, np.uint32)
        # Of each block that a check point vouches for, whether it was looked into.
        self._trusted = np.zeros(0, np.bool_)
        # The next number when the sums were made.
        self._summed = 0
        # What was rewritten since the last sync: numbers that rise, and their units.
        self._new_numbers: Ints = np.zeros(0, np.int64)
        self._new_units: Rows = np.zeros(0, unit)
        self.is_rewritten = False

    # ------------------------------------------------------------ numbers and places

    def position(self, number: Numbers) -> Numbers:
        """Return the byte at which a unit is, or those of many."""
        found: Numbers = number // self.per_file * self.chain.file_bytes + number % self.per_file * self.unit.itemsize
        return found

    def numbers(self, positions: Ints) -> Ints:
        """Return which units are at these bytes; -1 where none is."""
        files, places = np.divmod(positions, self.chain.file_bytes)
        rows, rest = np.divmod(places, self.unit.itemsize)
        found: Ints = files * self.per_file + rows
        found[(rows >= self.per_file) | (rest != 0)] = -1
        return found

    def number(self, position: int) -> int:
        """Return which unit is at this byte; -1 where none is."""
        file, place = divmod(position, self.chain.file_bytes)
        row, rest = divmod(place, self.unit.itemsize)
        return -1 if rest or row >= self.per_file else file * self.per_file + row

    # ------------------------------------------------------------ writing

    def start(self, sums: Sums) -> None:
        """Begin with what a check point vouches for; what is behind it is rewritten.

        Raises:
            CorruptStoreError: a file of what it vouches for is missing.
        """
        self.first, self.count = sums.first, sums.count
        self._forget_replaced()
        self.is_rewritten = False
        self._stale.clear()
        self._crcs = np.frombuffer(sums.crcs, "<u4").astype(np.uint32)
        self._trusted = np.zeros(len(self._crcs), np.bool_)
        self._summed = self.count
        end = self.position(self.count)
        if self.count > self.first and not all(self.chain.has(file * self.chain.file_bytes) for file in self._held_files(sums.absent)):
            path = str(self.chain.directory)
            raise CorruptStoreError(f"{path} does not hold units {self.first} to {self.count}", file=path, offset=end)
        for begin, stop in sums.absent:
            self._drop_files(begin, stop)
        self.chain.set_filled(max(end, self.chain.first))

    def start_empty(self) -> None:
        """Begin with nothing, whatever the files hold. The first one stays and is cleared, as the names of a new one take several syncs."""
        self.chain.drop_from(self.chain.file_bytes)
        self.chain.clear_from(0)
        self.start(Sums())

    def _drop_files(self, begin: int, stop: int) -> None:
        """Remove files that the check point does not know: they were made after it."""
        self.chain.drop_between(begin * self.chain.file_bytes, stop * self.chain.file_bytes)

    def _held_files(self, absent: list[tuple[int, int]]) -> Iterator[int]:
        bounds = [self.first // self.per_file, *(bound for gap in absent for bound in gap), -(-self.count // self.per_file)]
        for begin, stop in zip(bounds[::2], bounds[1::2], strict=True):
            yield from range(begin, stop)

    def _absent_files(self) -> list[tuple[int, int]]:
        """Return the files that are not there, as :class:`Sums` has them."""
        first, behind = self.first // self.per_file, -(-self.count // self.per_file)
        held = [start // self.chain.file_bytes for start in self.chain.starts]
        bounds = [first - 1, *(file for file in held if first <= file < behind), behind]
        return [(file + 1, after) for file, after in pairwise(bounds) if after > file + 1]

    def held(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield (first, behind) of the units of each file from ``number`` on; elsewhere nothing was written."""
        for file in self._held_files(self._absent_files()):
            first, behind = max(file * self.per_file, self.first, number), min((file + 1) * self.per_file, self.count)
            if first < behind:
                yield first, behind

    def _make_room(self, first: int, behind: int) -> None:
        for file in range(first // self.per_file, (behind - 1) // self.per_file + 1):
            start, stop = file * self.chain.file_bytes, (file + 1) * self.per_file
            is_new = not self.chain.has(start)
            self.chain.reserve_in(start, self.position(min(behind, stop) - 1) + self.unit.itemsize + len(self._blank))
            if is_new and stop <= self.count:
                self.chain.write_at(start, np.repeat(self._fill, self.per_file).view(np.uint8).data)

    def make_room_at(self, numbers: Ints) -> None:
        """See to it that units at these numbers, which rise, find room, and what has to fill the gaps between them."""
        if len(numbers) and int(numbers[-1]) >= self.count and self.count % self.per_file:
            self._make_room(self.count, min(int(numbers[-1]), self.count // self.per_file * self.per_file + self.per_file - 1) + 1)
        files = numbers // self.per_file
        lasts = np.flatnonzero(np.diff(files, append=-1))
        for file, last in zip(files[lasts].tolist(), numbers[lasts].tolist(), strict=True):
            self._make_room(file * self.per_file, last + 1)

    def write_ahead(self, data: Bytes, number: int | None = None) -> None:
        """Write units, with room for them, behind the last one or from a later number on; no reader sees them before :meth:`advance`."""
        size, blank = self.unit.itemsize, len(self._blank)
        first = at = self.count if number is None else number
        file, row = divmod(at, self.per_file)
        behind = first + len(data) // size
        if row + behind - first < self.per_file:  # most do not reach the end of a file
            self.chain.write_at(file * self.chain.file_bytes + row * size, data, blank)
            return
        view = memoryview(data).cast("B")
        while at < behind:
            file, row = divmod(at, self.per_file)
            stop = min(behind, at - row + self.per_file)
            position = file * self.chain.file_bytes + row * size
            self.chain.write_at(position, view[(at - first) * size : (stop - first) * size], blank)
            if blank and stop % self.per_file == 0:
                self.chain.write_at(position + (stop - at) * size, self._blank)
            at = stop

    def advance(self, data: Bytes) -> None:
        """Count in what was written ahead."""
        first, self.count = self.count, self.count + len(data) // self.unit.itemsize
        self._stale.update(range(first // BLOCK, -(-self.count // BLOCK)))

    def reserve(self, numbers: Ints, units: Rows) -> Callable[[], None]:
        """Write units at numbers that rise, where no reader sees them, and make room; returns what makes them seen.

        Those that are there already are rewritten only then. What is between them and was never written is filled.
        """
        if self._follow(numbers):
            data = np.ascontiguousarray(units).view(np.uint8).data
            self.write_ahead(data)
            return partial(self.advance, data)
        self.make_room_at(numbers)
        known = int(np.searchsorted(numbers, self.count))
        pieces = list(self._pieces(numbers[known:], units[known:]))
        for number, data in pieces:
            self.write_ahead(data, number)

        def publish() -> None:
            if known:
                self._replace(numbers[:known], units[:known])
            for number, data in pieces:
                if number > self.count:
                    self._pass_over(number)
                self.advance(data)

        return publish

    def reserve_few(self, number: int, data: bytes) -> Callable[[], None]:
        """As :meth:`reserve`, of a few units from ``number`` on, given as bytes, in files without a blank end."""
        row, size = number % self.per_file, self.unit.itemsize
        if number != self.count or row * size + len(data) > self.chain.file_bytes:
            units = np.frombuffer(data, self.unit)
            return self.reserve(np.arange(number, number + len(units)), units)
        self.chain.write_at(number // self.per_file * self.chain.file_bytes + row * size, data)
        return partial(self.advance, data)

    def _follow(self, numbers: Ints) -> bool:
        """Say whether units at these numbers are one behind the other behind all others."""
        return bool(len(numbers)) and int(numbers[0]) == self.count and int(numbers[-1]) == self.count + len(numbers) - 1

    def _pieces(self, numbers: Ints, units: Rows) -> Iterator[tuple[int, memoryview]]:
        """Yield (number of the first, units) of stretches to be appended, with what fills the gaps where files are."""
        at = self.count
        bounds = np.flatnonzero(np.diff(numbers // self.per_file)) + 1
        for begin, stop in pairwise([0, *bounds.tolist(), len(numbers)]):
            if begin < stop:
                first, behind = int(numbers[begin]), int(numbers[stop - 1]) + 1
                for start, end in self._held_between(at, first):
                    yield start, np.repeat(self._fill, end - start).view(np.uint8).data
                rows = np.repeat(self._fill, behind - first)
                rows[numbers[begin:stop] - first] = units[begin:stop]
                yield first, rows.view(np.uint8).data
                at = behind

    def _held_between(self, first: int, behind: int) -> Iterator[tuple[int, int]]:
        """Yield the stretches between two numbers that are in files which are there."""
        starts = [start // self.chain.file_bytes * self.per_file for start in self.chain.starts]
        for start in starts:
            if start < behind and start + self.per_file > first:
                yield max(first, start), min(behind, start + self.per_file)

    def _replace(self, numbers: Ints, units: Rows) -> None:
        """Let other units be at these numbers. They are in memory until the next sync, so a call cannot fail here any more."""
        blocks = np.unique(numbers // BLOCK).tolist()
        for block in blocks:
            self.check(block * BLOCK, 1)
        rows = np.searchsorted(self._new_numbers, numbers)
        known = np.append(self._new_numbers, -1)[rows] == numbers
        changed, new = self._new_units.copy(), units[~known].astype(self.unit)
        put_rows(changed, rows[known], units[known])
        block = f"V{self.unit.itemsize}"  # numpy's own way goes field by field
        self._new_units = np.insert(changed.view(block), rows[~known], new.view(block)).view(self.unit)
        self._new_numbers = np.insert(self._new_numbers, rows[~known], numbers[~known])
        self._stale.update(blocks)
        self.is_rewritten = True

    def _write_replaced(self) -> None:
        """Write what was replaced, what is near by in one piece."""
        numbers = self._new_numbers
        bounds = np.flatnonzero((np.diff(numbers) > _NEAR) | (np.diff(numbers // self.per_file) != 0)) + 1
        for begin, stop in pairwise([0, *bounds.tolist(), len(numbers)]):
            if begin < stop:
                first, behind = int(numbers[begin]), int(numbers[stop - 1]) + 1
                self.chain.write_at(self.position(first), np.ascontiguousarray(self._raw(first, behind - first)).view(np.uint8).data)
        self._forget_replaced()

    def _forget_replaced(self) -> None:
        self._new_numbers = np.zeros(0, np.int64)
        self._new_units = np.zeros(0, self.unit)

    def _with_replaced(self, units: Rows, numbers: Ints) -> Rows:
        """Return units that were read at these numbers, the replaced ones as they are now."""
        rows = np.searchsorted(self._new_numbers, numbers)
        rows[rows == len(self._new_numbers)] = 0
        hits = self._new_numbers[rows] == numbers
        if hits.any():
            units = units.copy()
            put_rows(units, np.flatnonzero(hits), self._new_units.take(rows[hits]))
        return units

    def _pass_over(self, number: int) -> None:
        """Count numbers up to ``number`` whose files are not there."""
        self._stale |= {self.count // BLOCK, (number - 1) // BLOCK}
        self.count = number

    def _sum_of(self, block: int) -> int:
        """Return the sum of a block; of one that was not looked into so far, from the sum that was made before on."""
        first, stop = max(block * BLOCK, self.first), min((block + 1) * BLOCK, self.count)
        before = 0
        if block < len(self._trusted) and not self._trusted[block]:
            first, before = self._summed, int(self._crcs[block])
        return crc32(self._raw(first, stop - first).view(np.uint8).data, before)

    def cut(self) -> None:
        """Let nothing be behind the last unit: an owner that was killed may have written there what no log says."""
        end = self.position(self.count)
        self.chain.drop_from(-(-end // self.chain.file_bytes) * self.chain.file_bytes)
        self.chain.clear_from(end)

    # ------------------------------------------------------------ reading

    def read(self, number: int, count: int) -> Rows:
        """Return units that follow one another.

        Raises:
            CorruptStoreError: they are not what was written.
        """
        if number // BLOCK < len(self._trusted):
            self.check(number, count)
        return self._raw(number, count)

    def read_one(self, number: int) -> tuple[Any, ...]:
        """Return one unit as a tuple of its fields; see :meth:`read`."""
        fields: tuple[Any, ...] = self.read(number, 1)[0].item()
        return fields

    def around(self, number: int) -> tuple[int, memoryview]:
        """Return (number of the first, bytes) of units side by side, this one and all around it that are at hand; see :meth:`read`."""
        self.check(number, 1)
        file = number // self.per_file
        first, behind = max(file * self.per_file, self.first), min((file + 1) * self.per_file, self.count)
        unsure = (~self._trusted).nonzero()[0]
        at = int(unsure.searchsorted(number // BLOCK))
        if at:
            first = max(first, (int(unsure[at - 1]) + 1) * BLOCK)
        if at < len(unsure):
            behind = min(behind, int(unsure[at]) * BLOCK)
        return first, self._raw(first, behind - first).view(np.uint8).data

    def _raw(self, number: int, count: int) -> Rows:
        file, row = divmod(number, self.per_file)
        if not 0 < count <= self.per_file - row:
            made = np.empty(max(count, 0), self.unit)
            at = 0
            while at < count:
                step = min(count - at, self.per_file - (number + at) % self.per_file)
                made[at : at + step] = self._raw(number + at, step)
                at += step
            return made
        start = file * self.chain.file_bytes
        if start not in self.chain.starts:
            return np.repeat(self._fill, count)
        data = self.chain.read(start + row * self.unit.itemsize, count * self.unit.itemsize)
        if len(data) < count * self.unit.itemsize:
            self._refuse(number, number + count)
        units = np.frombuffer(data, self.unit)
        return self._with_replaced(units, np.arange(number, number + count)) if len(self._new_numbers) else units

    def gather(self, numbers: Ints) -> Rows:
        """Return units of any numbers, in their order, not to be changed; see :meth:`read`."""
        if not len(numbers):
            return np.zeros(0, self.unit)
        low, high = (int(numbers.min()), int(numbers.max())) if len(numbers) > 1 else (int(numbers[0]),) * 2
        if len(numbers) >= BLOCK and high - low + 1 == len(numbers) and (numbers[1:] > numbers[:-1]).all():
            return self.read(low, len(numbers))
        if False in self._trusted[low // BLOCK : high // BLOCK + 1]:
            for block in np.unique(numbers // BLOCK).tolist():
                self.check(block * BLOCK, 1)
        if low // self.per_file == high // self.per_file:
            return self._in_file(low // self.per_file, numbers, high)
        units = np.empty(len(numbers), self.unit)
        files = numbers // self.per_file
        for file in np.unique(files).tolist():
            rows = np.flatnonzero(files == file)
            put_rows(units, rows, self._in_file(file, numbers[rows], int(numbers[rows].max())))
        return units

    def _in_file(self, file: int, numbers: Ints, highest: int) -> Rows:
        start, first = file * self.chain.file_bytes, file * self.per_file
        if start not in self.chain.starts:
            return np.repeat(self._fill, len(numbers))
        data = self.chain.view(start, (highest - first + 1) * self.unit.itemsize)
        units = np.frombuffer(data, self.unit, min(len(data) // self.unit.itemsize, self.per_file))
        if highest - first >= len(units):
            self._refuse(first + len(units), highest + 1)
        found: Rows = units.take(numbers - first)
        return self._with_replaced(found, numbers) if len(self._new_numbers) else found

    def check(self, number: int, count: int) -> None:
        """Check the blocks of some units, as far as they were not looked into yet."""
        first, stop = number // BLOCK, (number + count - 1) // BLOCK + 1 if count > 0 else 0
        for block in ((~self._trusted[first:stop]).nonzero()[0] + first).tolist():
            begin, end = max(block * BLOCK, self.first), min((block + 1) * BLOCK, self._summed)
            if crc32(self._raw(begin, end - begin).view(np.uint8).data) != self._crcs[block]:
                self._refuse(begin, end)
            self._trusted[block] = True

    def _refuse(self, first: int, behind: int) -> NoReturn:
        at = self.position(first)
        path = str(self.chain.path_of(at))
        self._ask_rebuild(RebuildReason.DAMAGED)
        remedy = "open the store again, which makes them anew"
        raise CorruptStoreError(f"{path}: units {first} to {behind - 1} are not what was written; {remedy}", file=path, offset=at)

    # ------------------------------------------------------------ durability and the end

    def unsynced(self) -> list[tuple[int, bytes]]:
        """Return the units that came behind those of the last sync, as (number of the first, units); between them nothing was written."""
        return [(first, self._raw(first, behind - first).tobytes()) for first, behind in self.held(self._summed)]

    def sync(self) -> Sums:
        """Make everything durable; returns what a check point has to know."""
        if len(self._new_numbers):
            # From here to the next check point, files are not what the one before it says.
            self._ask_rebuild(RebuildReason.REWRITTEN)
            self._write_replaced()
        self.chain.sync()
        # Blocks between those that were written to hold only what fills.
        crcs = np.append(self._crcs, np.full(-(-self.count // BLOCK) - len(self._crcs), self._fill_crc, np.uint32))
        for block in self._stale:
            if (block + 1) * BLOCK > self.first:
                crcs[block] = self._sum_of(block)
        self._crcs = crcs  # all of them at once: a block may not be summed a second time
        self._stale.clear()
        self._summed = self.count
        self.is_rewritten = False
        return Sums(self.first, self.count, self._crcs.astype("<u4").tobytes(), self._absent_files())

    def trim(self, number: int) -> None:
        """Let what is kept begin with the file that holds ``number``; the files before it go with :meth:`release`."""
        kept = min(number, self.count) // self.per_file * self.per_file
        if kept <= self.first:
            return
        if kept % BLOCK and kept < self.count:
            self.check(kept, 1)
        self.first = kept
        if kept % BLOCK:
            # Also when nothing is left of the block: its sum begins here from now on.
            self._trusted[kept // BLOCK : kept // BLOCK + 1] = True
            self._stale.add(kept // BLOCK)

    def release(self) -> None:
        """Remove the files before what is kept, once a durable check point says so."""
        self.chain.drop_before(self.position(self.first))

    def close(self) -> None:
        self.chain.close()
