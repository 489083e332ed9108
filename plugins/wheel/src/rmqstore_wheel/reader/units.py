"""``ReadUnits``: a unit log in files of another process: what a check point vouches for is read from there, the rest is kept here.

The owner appends behind what the check point counted, which does not matter here. But it may also rewrite units, remove the files, or
rebuild them from the log. So no byte of a file is ever believed: every look takes a copy of a whole block and compares its CRC-32 with
what the unit log knows of the block in the state that is seen. What is applied since the check point goes into memory, by the block where
it replaces something. A block that is not what it should be raises :class:`OutrunError`: the view has to be made in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from zlib_ng.zlib_ng import crc32

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.files.units import BLOCK, Sums, UnitLog
from rmqstore_wheel.formats.binary_columns import Bytes, Ints

_KEPT_BLOCKS: Final = 16

Units = np.ndarray[Any, np.dtype[np.void]]


class OutrunError(Exception):
    """The owner changed what was about to be read. Never leaves a session that was opened for reading."""


class ReadUnits(UnitLog):
    """See the module docstring. Nothing of it ever reaches a file."""

    def start(self, sums: Sums) -> None:
        try:
            super().start(sums)
            if self.count > self.first:
                # A later removal takes their names only.
                for start in self.chain.starts:
                    if self.position(self.first) < start + self.chain.file_bytes and start < self.position(self.count):
                        self.chain.file(start)
        except (CorruptStoreError, OSError) as error:
            raise OutrunError(str(error)) from error
        self._replaced: dict[int, Units] = {}
        self._recent: dict[int, Units] = {}
        # From the beginning of the block in which the check point ends, by the number of the block.
        self._own_first = max(self.count // BLOCK * BLOCK, self.first)
        self._own_blocks: dict[int, Units] = {}
        self._is_own = False

    def _drop_files(self, begin: int, stop: int) -> None:
        """Look past files that the check point does not know, which are the owner's."""
        first, behind = begin * self.chain.file_bytes, stop * self.chain.file_bytes
        self.chain.starts = [start for start in self.chain.starts if not first <= start < behind]

    def close(self) -> None:
        super().close()
        self._replaced, self._recent, self._own_blocks = {}, {}, {}

    # ------------------------------------------------------------ writing

    def reserve(self, numbers: Ints, units: Units) -> Callable[[], None]:
        known = int(np.searchsorted(numbers, self.count))

        def publish() -> None:
            self._put(numbers[:known], units[:known])
            if known < len(numbers):
                self._begin_own()
                self.count = int(numbers[-1]) + 1
                self._put(numbers[known:], units[known:])

        return publish

    def write_ahead(self, data: Bytes, number: int | None = None) -> None:
        """Do nothing: no reader can see it."""

    def advance(self, data: Bytes) -> None:
        units = np.frombuffer(data, self.unit)
        self.reserve(self.count + np.arange(len(units)), units)()

    def _begin_own(self) -> None:
        """Take the block in which the check point ends over from the file, before more is put behind it."""
        if not self._is_own:
            if self._own_first < self.count:
                self._own_block(self._own_first // BLOCK)[: self.count - self._own_first] = self._block(self._own_first // BLOCK)
                self._replaced.pop(self._own_first // BLOCK, None)
            self._is_own = True

    def _own_block(self, block: int) -> Units:
        """Return a block of this reader's own, with what fills it when it is new."""
        if block not in self._own_blocks:
            begin = max(block * BLOCK, self.first)
            self._own_blocks[block] = np.repeat(self._fill, (block + 1) * BLOCK - begin)
        return self._own_blocks[block]

    def _put(self, numbers: Ints, units: Units) -> None:
        """Write units that are counted in."""
        blocks = numbers // BLOCK
        for block in np.unique(blocks).tolist():
            rows = np.flatnonzero(blocks == block)
            begin = max(block * BLOCK, self.first)
            if self._is_own and begin >= self._own_first:
                changed = self._own_block(block)
            else:
                changed = self._block(block).copy()
                self._replaced[block] = changed
            changed[numbers[rows] - begin] = units[rows]

    # ------------------------------------------------------------ reading

    def held(self, number: int) -> Iterator[tuple[int, int]]:
        files = [start // self.chain.file_bytes * self.per_file for start in self.chain.starts]
        blocks = [block * BLOCK for block in {*self._replaced, *self._own_blocks}]
        at = max(number, self.first)
        for begin, stop in sorted([(first, first + self.per_file) for first in files] + [(first, first + BLOCK) for first in blocks]):
            begin, stop = max(begin, at), min(stop, self.count)
            if begin < stop:
                yield begin, stop
                at = stop

    def _block(self, block: int) -> Units:
        """Return the units of a block, which their owner cannot change any more."""
        begin, end = max(block * BLOCK, self.first), min((block + 1) * BLOCK, self.count)
        if self._is_own and begin >= self._own_first:
            return self._own_block(block)[: end - begin]
        known = self._replaced.get(block, self._recent.get(block))
        if known is not None:
            return known
        units = self._copied(begin, end)
        if crc32(units.view(np.uint8).data) != self._crcs[block]:
            raise OutrunError(f"{self.chain.path_of(self.position(begin))}: units {begin} to {end - 1} are not those of the check point")
        if len(self._recent) >= _KEPT_BLOCKS:
            del self._recent[next(iter(self._recent))]
        self._recent[block] = units
        return units

    def _copied(self, begin: int, end: int) -> Units:
        units = np.zeros(end - begin, self.unit)
        room = units.view(np.uint8).data
        size = self.unit.itemsize
        at = begin
        try:
            while at < end:
                stop = min(end, (at // self.per_file + 1) * self.per_file)
                start = at // self.per_file * self.chain.file_bytes
                if start not in self.chain.starts:
                    units[at - begin : stop - begin] = self._fill[0]
                    at = stop
                    continue
                self.chain.file(start).read_into(self.position(at) - start, room[(at - begin) * size : (stop - begin) * size])
                at = stop
        except OSError as error:
            raise OutrunError(str(error)) from error
        return units

    def _raw(self, number: int, count: int) -> Units:
        pieces = []
        while count > 0:
            units = self._block(number // BLOCK)
            begin = max(number // BLOCK * BLOCK, self.first)
            pieces.append(units[number - begin : number - begin + count])
            number, count = number + len(pieces[-1]), count - len(pieces[-1])
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.zeros(0, self.unit)

    def gather(self, numbers: Ints) -> Units:
        units = np.empty(len(numbers), self.unit)
        blocks = numbers // BLOCK
        for block in np.unique(blocks).tolist():
            rows = np.flatnonzero(blocks == block)
            units[rows] = self._block(block)[numbers[rows] - max(block * BLOCK, self.first)]
        return units

    def check(self, number: int, count: int) -> None:
        """Do nothing: every look checks."""
