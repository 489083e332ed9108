"""``WheelSnapshot``: the slots of the wheel on disk, ``timerwheel`` and the one before it as ``timerwheel.bak`` (``TimerWheel``).

A snapshot is written under another name and renamed when it is on disk. A check point names the one that belongs to it by its CRC-32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from zlib_ng.zlib_ng import crc32

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.files.disk import Disk
from rmqstore_wheel.formats import wheel
from rmqstore_wheel.formats.wheel import SLOT_BYTES, Ring, Slots

PAGE_SLOTS: Final = 4096 // SLOT_BYTES
"""Slots that are written together, or stay a hole when none of them was ever used."""

Pages = np.ndarray[Any, np.dtype[np.bool_]]
"""Which pages of slots were ever used."""


class WheelSnapshot:
    """The file at ``path``, of the length that ``ring`` asks for."""

    def __init__(self, disk: Disk, path: Path, ring: Ring) -> None:
        self._disk = disk
        self._path = path
        self._ring = ring

    def read(self, crc: int) -> tuple[Slots, Pages]:
        """Return the slots that have this CRC-32, and which pages of them were ever used.

        Raises:
            CorruptStoreError: there is no such snapshot.
        """
        for path in (self._path, self._path.with_suffix(".bak")):
            try:
                data = np.fromfile(path, wheel.SLOT) if path.stat().st_size == self._ring.file_bytes else None
            except OSError:
                data = None
            if data is not None:
                pages = _filled_pages(data)
                if _crc_of(data, pages) == crc:
                    return data, pages
        raise CorruptStoreError(f"{self._path} is not the wheel of the check point", file=str(self._path))

    def write(self, slots: Slots, pages: Pages) -> int:
        """Write a snapshot, the one before it being kept; returns its CRC-32."""
        new = self._path.with_suffix(".new")
        file = self._disk.create(new, self._ring.file_bytes)
        try:
            used = np.flatnonzero(pages)
            for run in np.split(used, np.flatnonzero(np.diff(used) != 1) + 1) if len(used) else ():
                begin = int(run[0]) * PAGE_SLOTS
                stop = min((int(run[-1]) + 1) * PAGE_SLOTS, self._ring.length)
                file.write_at(begin * SLOT_BYTES, slots[begin:stop].view(np.uint8).data)
            file.sync()
        finally:
            file.close()
        if self._path.exists():
            self._disk.rename(self._path, self._path.with_suffix(".bak"))
        self._disk.rename(new, self._path)
        self._disk.sync_directory(self._path.parent)
        return _crc_of(slots, pages)


def _filled_pages(slots: Slots) -> Pages:
    padded = -(-len(slots) // PAGE_SLOTS) * PAGE_SLOTS
    raw = slots.view(np.uint64).reshape(len(slots), -1)
    filled = raw.any(axis=1)
    pages: Pages = np.any(np.pad(filled, (0, padded - len(slots))).reshape(-1, PAGE_SLOTS), axis=1)
    return pages


def _crc_of(slots: Slots, pages: Pages) -> int:
    """Return the CRC-32 of the pages that are not empty, with their numbers."""
    crc = 0
    for page in np.flatnonzero(pages).tolist():
        piece = slots[page * PAGE_SLOTS : (page + 1) * PAGE_SLOTS]
        if piece.view(np.uint64).any():
            crc = crc32(piece.view(np.uint8).data, crc32(page.to_bytes(4, "big"), crc))
    return crc
