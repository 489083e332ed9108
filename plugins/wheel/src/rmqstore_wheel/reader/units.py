"""``ReadUnits``: a unit log in files of another process: what a check point vouches for is read from there, the rest is kept here.

The owner appends behind what the check point counted, which does not matter here. But it may also rewrite units, remove the files, or
rebuild them from the log. So no byte of a file is ever believed: every look takes a copy of a whole block and compares its CRC-32 with
what the unit log knows of the block in the state that is seen. What is applied since the check point goes into memory, by the block where
it replaces something. A block that is not what it should be raises :class:`OutrunError`: the view has to be made in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from zlib_ng.zlib_ng import crc32

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.files.units import BLOCK, Sums, UnitLog
from rmqstore_wheel.formats.binary_columns import Bytes, Ints, Rows

_KEPT_BLOCKS: Final = 16


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
        # By number: blocks that are written to, as far as they are, and the last ones that were read.
        self._own: dict[int, Rows] = {}
        self._recent: dict[int, Rows] = {}

    def start_empty(self) -> None:
        self.chain.starts = []
        self.start(Sums())

    def _drop_files(self, begin: int, stop: int) -> None:
        """Look past files that the check point does not know, which are the owner's."""
        first, behind = begin * self.chain.file_bytes, stop * self.chain.file_bytes
        self.chain.starts = [start for start in self.chain.starts if not first <= start < behind]

    def close(self) -> None:
        """Let go of the files; what was applied since the check point stays, as it is nowhere else."""
        super().close()
        self._recent = {}

    # ------------------------------------------------------------ writing

    def reserve(self, numbers: Ints, units: Rows) -> Callable[[], None]:
        def publish() -> None:
            if not len(numbers):
                return
            blocks = numbers // BLOCK
            for block in np.unique(blocks).tolist():
                rows = np.flatnonzero(blocks == block)
                places = numbers[rows] % BLOCK
                self._room_in(block, int(places[-1]) + 1)[places] = units[rows]
            self.count = max(self.count, int(numbers[-1]) + 1)

        return publish

    def _room_in(self, block: int, behind: int) -> Rows:
        """Return a block that is written to, up to place ``behind`` at least; of most queues few units come, so not all of it is kept."""
        own = self._own.get(block)
        if own is None:
            own = self._block(block)[: max(behind, self.count - block * BLOCK)].copy()
        elif len(own) < behind:
            own = self._filled_up(own, min(max(behind, 2 * len(own)), BLOCK))
        self._own[block] = own
        return own

    def _filled_up(self, units: Rows, count: int) -> Rows:
        """Return units with what fills a block behind them, ``count`` in all."""
        filled = np.repeat(self._fill, count)
        filled[: len(units)] = units
        return filled

    def write_ahead(self, data: Bytes, number: int | None = None) -> None:
        """Do nothing: no reader can see it."""

    def advance(self, data: Bytes) -> None:
        units = np.frombuffer(data, self.unit)
        self.reserve(self.count + np.arange(len(units)), units)()

    # ------------------------------------------------------------ reading

    def held(self, number: int) -> Iterator[tuple[int, int]]:
        files = [start // self.chain.file_bytes * self.per_file for start in self.chain.starts]
        own = [block * BLOCK for block in self._own]
        at = max(number, self.first)
        for begin, stop in sorted([(first, first + self.per_file) for first in files] + [(first, first + BLOCK) for first in own]):
            begin, stop = max(begin, at), min(stop, self.count)
            if begin < stop:
                yield begin, stop
                at = stop

    def _block(self, block: int) -> Rows:
        """Return a block, which its owner cannot change any more, with what fills it where the check point knows of no unit."""
        own = self._own.get(block)
        if own is not None:
            return own if len(own) == BLOCK else self._filled_up(own, BLOCK)
        known = self._recent.get(block)
        if known is not None:
            return known
        base = block * BLOCK
        begin, end = max(base, self.first), min(base + BLOCK, self._summed)
        units = np.repeat(self._fill, BLOCK)
        if begin >= end:
            return units
        self._copy_into(units[begin - base : end - base], begin)
        if crc32(units[begin - base : end - base].view(np.uint8).data) != self._crcs[block]:
            raise OutrunError(f"{self.chain.path_of(self.position(begin))}: units {begin} to {end - 1} are not those of the check point")
        if len(self._recent) >= _KEPT_BLOCKS:
            del self._recent[next(iter(self._recent))]
        self._recent[block] = units
        return units

    def _copy_into(self, units: Rows, begin: int) -> None:
        """Copy units from number ``begin`` on out of the files; what fills them stays where none is."""
        room, size = units.view(np.uint8).data, self.unit.itemsize
        at, end = begin, begin + len(units)
        try:
            while at < end:
                stop = min(end, (at // self.per_file + 1) * self.per_file)
                start = at // self.per_file * self.chain.file_bytes
                if start in self.chain.starts:
                    self.chain.file(start).read_into(self.position(at) - start, room[(at - begin) * size : (stop - begin) * size])
                at = stop
        except OSError as error:
            raise OutrunError(str(error)) from error

    def around(self, number: int) -> tuple[int, memoryview]:
        block = number // BLOCK
        return block * BLOCK, self._block(block).view(np.uint8).data

    def _raw(self, number: int, count: int) -> Rows:
        pieces = [np.zeros(0, self.unit)]
        while count > 0:
            at = number % BLOCK
            pieces.append(self._block(number // BLOCK)[at : at + count])
            number, count = number + len(pieces[-1]), count - len(pieces[-1])
        return pieces[1] if len(pieces) == 2 else np.concatenate(pieces)

    def gather(self, numbers: Ints) -> Rows:
        units = np.empty(len(numbers), self.unit)
        blocks = numbers // BLOCK
        for block in np.unique(blocks).tolist():
            rows = np.flatnonzero(blocks == block)
            units[rows] = self._block(block)[numbers[rows] % BLOCK]
        return units

    def check(self, number: int, count: int) -> None:
        """Do nothing: every look checks."""
