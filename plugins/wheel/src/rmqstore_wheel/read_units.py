"""``ReadUnits``: a unit log in files of somebody else: what a check point vouches for is read from there, the rest is kept here.

The owner appends behind what the check point counted, which does not matter here. But it may also write units anew, remove the files, or
make them again from the log. So no byte of a file is ever believed: every look takes a copy of a whole block and compares its CRC-32 with
what the unit log knows of the block in the state that is seen. What is applied since the check point goes into memory, by the block where
it replaces something. A block that is not what it should be raises :class:`OutrunError`: the view has to be made in another way.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

import numpy as np

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.formats.binary_columns import Bytes, Ints
from rmqstore_wheel.unit_log import BLOCK, Sums, UnitLog

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
                # Whoever removes them later takes their names only.
                for start in self.chain.starts:
                    if self.position(self.first) < start + self.chain.file_bytes and start < self.position(self.count):
                        self.chain.file(start)
        except (CorruptStoreError, OSError) as error:
            raise OutrunError(str(error)) from error
        self._replaced: dict[int, Units] = {}
        self._recent: dict[int, Units] = {}
        # From the beginning of the block in which the check point ends.
        self._own_first = self.count
        self._own = np.zeros(0, self.unit)

    # ------------------------------------------------------------ writing

    def reserve(self, count: int) -> None:
        """Do nothing: memory is taken as it is needed."""

    def write_ahead(self, data: Bytes) -> None:
        """Do nothing: nobody can see it."""

    def advance(self, data: Bytes) -> None:
        units = np.frombuffer(data, self.unit)
        if not len(units):
            return
        if not len(self._own):
            self._take_last_block()
        used = self.count - self._own_first
        if used + len(units) > len(self._own):
            grown = np.zeros(max(2 * len(self._own), used + len(units), 64), self.unit)
            grown[:used] = self._own[:used]
            self._own = grown
        self._own[used : used + len(units)] = units
        self._sum(units.view(np.uint8).data, self.count + len(units))

    def _take_last_block(self) -> None:
        begin = max(self.count // BLOCK * BLOCK, self.first)
        if begin < self.count:
            self._own = self._block(begin // BLOCK).copy()
            self._replaced.pop(begin // BLOCK, None)
        self._own_first = begin

    def replace(self, number: int, data: Bytes) -> None:
        units = np.frombuffer(data, self.unit)
        for block in range(number // BLOCK, (number + len(units) - 1) // BLOCK + 1):
            begin = max(block * BLOCK, self.first)
            changed = self._block(block).copy()
            low, high = max(number, begin), min(number + len(units), begin + len(changed))
            changed[low - begin : high - begin] = units[low - number : high - number]
            if begin >= self._own_first:
                self._own[begin - self._own_first : begin - self._own_first + len(changed)] = changed
            else:
                self._replaced[block] = changed
            self._crcs[block] = zlib.crc32(changed.tobytes())
            if begin + len(changed) == self.count and self.count % BLOCK:
                self._open_crc = int(self._crcs[block])

    # ------------------------------------------------------------ reading

    def _block(self, block: int) -> Units:
        """Return the units of a block, which nobody else can change any more."""
        begin, end = max(block * BLOCK, self.first), min((block + 1) * BLOCK, self.count)
        if begin >= self._own_first:
            return self._own[begin - self._own_first : end - self._own_first]
        known = self._replaced.get(block, self._recent.get(block))
        if known is not None:
            return known
        units = self._copied(begin, end)
        if zlib.crc32(units.view(np.uint8).data) != self._crcs[block]:
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
