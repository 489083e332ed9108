"""``KeyIndex``: from a key of a timer to the places of its messages in the log, by hash (``IndexFile``, ``IndexService``).

What is found by a hash may belong to another key, or to a timer that is gone: whoever looks something up compares.
"""

from __future__ import annotations

import numpy as np

from rmqstore_wheel.formats.binary_columns import Ints


class KeyIndex:
    """Hashes of ``topic#key`` and offsets of the commit log."""

    def __init__(self) -> None:
        self._offsets: dict[int, list[int]] = {}

    def add_many(self, hashes: Ints, offsets: Ints) -> None:
        """Add entries."""
        for hashed, offset in zip(hashes.tolist(), offsets.tolist(), strict=True):
            self._offsets.setdefault(hashed, []).append(offset)

    def lookup(self, hashed: int) -> list[int]:
        """Return the offsets of a hash, oldest first."""
        return self._offsets.get(hashed, [])

    def drop_before(self, offset: int) -> None:
        """Forget what lies before an offset of the log."""
        for hashed, offsets in list(self._offsets.items()):
            if min(offsets) < offset:
                kept = [each for each in offsets if each >= offset]
                if kept:
                    self._offsets[hashed] = kept
                else:
                    del self._offsets[hashed]

    def dump(self) -> tuple[bytes, bytes]:
        """Return everything, for a check point."""
        hashes = [hashed for hashed, offsets in self._offsets.items() for _ in offsets]
        offsets = [offset for found in self._offsets.values() for offset in found]
        return np.array(hashes, "<i4").tobytes(), np.array(offsets, "<i8").tobytes()

    @classmethod
    def load(cls, dumped: tuple[bytes, bytes]) -> KeyIndex:
        """Read what :meth:`dump` gave."""
        index = cls()
        index.add_many(np.frombuffer(dumped[0], "<i4"), np.frombuffer(dumped[1], "<i8"))
        return index
