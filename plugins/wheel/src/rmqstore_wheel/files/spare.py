"""``Spare``: room on the disk that is set aside for what leads to more of it, and needs some before: upkeep, pops and acks (F1).

It is a file of zeros. Where one of these finds no room, a piece of the file is given back to the disk, and it is done again at once: a send
or upkeep that came between would set the piece aside again. Upkeep does so behind its work. Pops and acks leave half of the file to upkeep.
As long as something is lent, the log takes no messages, which would be in the place of all that.
"""

from __future__ import annotations

import os
from pathlib import Path

from rmqstore.errors import NO_ROOM, StorePathError
from rmqstore_wheel.files.disk import Disk, DiskFile


class Spare:
    """The file at ``path``, of ``size`` bytes once it is whole, which comes and goes in pieces. What is lent is a hole at its end.

    Attributes:
        size: bytes of all of it.
        is_lent: less is set aside than there was when the disk was not full, in this open or an earlier one.
    """

    def __init__(self, disk: Disk, path: Path, size: int, piece: int) -> None:
        self._disk = disk
        self._path = path
        self.size = size
        self._piece = piece
        self._file: DiskFile | None = None
        self._length = self._wanted = 0
        self.is_lent = False

    def open(self) -> None:
        """Find what is set aside already; who does not call this changes nothing.

        Raises:
            StorePathError: there is something else than a file at the path.
        """
        if self._path.is_file():
            file = self._file = self._disk.open(self._path)
            filled, length = file.filled, file.length
            self._length = self.size if filled >= self.size else filled - filled % self._piece
            was = self.size if length % self._piece == 1 else length if filled < length else self._length
            self._wanted = min(was, self.size)
            self.is_lent = self._length < self._wanted
        elif os.path.lexists(self._path):
            raise StorePathError(f"{self._path} is in the place of a file of zeros, and is none; move it away")

    def lend(self, *, to_upkeep: bool) -> bool:
        """Give a piece back to the disk; False when none is left, or the disk has bytes and lacks names of files."""
        file = self._file
        if file is None or self._length <= (0 if to_upkeep else self.size // 2):
            return False
        left = self._disk.left(self._path.parent)
        if not left.names and left.bytes >= self._piece:
            return False
        self._length = (self._length - 1) // self._piece * self._piece
        self._cut(file)
        return True

    def grow(self) -> bool:
        """Set another piece aside, if one is missing and there is room; says whether there was."""
        upto = min(self._length + self._piece, self.size)
        if self._length == upto or self._disk.left(self._path.parent).bytes < upto - self._length:
            return False
        file = self._file = self._file or self._disk.create(self._path)
        try:
            file.zero_fill(self._length, upto - self._length)
        except OSError as error:
            self._cut(file)
            if error.errno not in NO_ROOM:
                raise
            return False
        self._length = upto
        self._wanted = max(upto, self._wanted)
        self.is_lent = self._length < self._wanted
        return True

    def _cut(self, file: DiskFile) -> None:
        """Let a hole follow what is set aside, up to what there was before, for the next open."""
        self.is_lent = self._length < self._wanted
        file.truncate(self._length + 1)  # a length that tells of it, where the next step does not come
        file.truncate(self._wanted)

    def close(self) -> None:
        """Let go of the file, which stays."""
        if self._file is not None:
            self._file.close()
            self._file = None
