"""``Spare``: room on the disk that is set aside for what leads to more of it, and needs some before: upkeep, pops and acks (F1).

It is a file of zeros. Where one of these finds no room, a piece of the file is given back to the disk, and it is done again at once: a send
or upkeep that came between would set the piece aside again. Upkeep does so behind its work. Pops and acks leave half of the file to upkeep.
As long as something is lent, the log takes no messages, which would be in the place of all that.
"""

from __future__ import annotations

from pathlib import Path

from rmqstore.errors import NO_ROOM
from rmqstore_wheel.files.disk import Disk, DiskFile


class Spare:
    """The file at ``path``, of ``size`` bytes once it is whole, which comes and goes in pieces.

    Attributes:
        size: bytes of all of it.
        is_lent: less is set aside than there was when the disk was not full; in a file of an earlier open, than there shall be.
    """

    def __init__(self, disk: Disk, path: Path, size: int, piece: int) -> None:
        self._disk = disk
        self._path = path
        self.size = size
        self._piece = piece
        self._file: DiskFile | None = None
        self._length, self._wanted = 0, size
        # Else messages would take what is left of it whenever the store is opened.
        self.is_lent = path.is_file() and path.stat().st_size < size

    def lend(self, *, to_upkeep: bool) -> bool:
        """Give a piece back to the disk; False when none is left."""
        if self._file is None and not self._path.exists():
            return False
        file = self._opened()
        if self._length <= (0 if to_upkeep else self.size // 2):
            return False
        if not self.is_lent:
            self.is_lent, self._wanted = True, self._length
        self._length = max(self._length - self._piece, 0)
        file.truncate(self._length)
        return True

    def grow(self) -> bool:
        """Set another piece aside, if one is missing and there is room; says whether there was."""
        file = self._opened()
        upto = min(self._length + self._piece, self.size)
        if self._length == upto:
            return False
        try:
            file.zero_fill(self._length, upto - self._length)
        except OSError as error:
            file.truncate(self._length)
            if error.errno not in NO_ROOM:
                raise
            return False
        self._length = upto
        self.is_lent = self.is_lent and self._length < self._wanted
        return True

    def _opened(self) -> DiskFile:
        if self._file is None:
            self._file = self._disk.open(self._path) if self._path.exists() else self._disk.create(self._path)
            self._length = min(self._file.length, self.size)
        return self._file

    def close(self) -> None:
        """Let go of the file, which stays."""
        if self._file is not None:
            self._file.close()
            self._file = None
