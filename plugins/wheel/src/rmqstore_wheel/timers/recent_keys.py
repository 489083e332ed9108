"""``RecentKeys``: keys that are in no index file yet, as hashes and offsets of the log, in 12 bytes each.

Large calls become runs that are sorted by hash, and runs of like size become one, so that there are few; small calls wait in a dict.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import numpy as np

from rmqstore_wheel.formats.binary_columns import Ints

_FEW: Final = 512
"""So many entries wait in the dict."""

_FAN_OUT: Final = 4
"""So many runs, none more than so many times as long as the last one, become one."""


class RecentKeys:
    """Entries in the order in which they came: the offsets of one hash rise."""

    def __init__(self) -> None:
        self._few: dict[int, list[int]] = {}
        self._few_count = 0
        self._runs: list[tuple[Ints, Ints]] = []

    def add_many(self, hashes: Ints, offsets: Ints) -> None:
        """Add entries that came behind all others."""
        if len(hashes) < _FEW:
            for hashed, offset in zip(hashes.tolist(), offsets.tolist(), strict=True):
                self._few.setdefault(hashed, []).append(offset)
            self._few_count += len(hashes)
            if self._few_count >= _FEW:
                self._settle()
        else:
            self._settle()
            self._add_run(hashes, offsets)

    def _settle(self) -> None:
        """Make a run of what waits in the dict."""
        if self._few:
            counts = [len(offsets) for offsets in self._few.values()]
            hashes = np.repeat(np.array(list(self._few), np.int64), counts)
            self._add_run(hashes, np.array([offset for offsets in self._few.values() for offset in offsets], np.int64))
            self._few, self._few_count = {}, 0

    def _add_run(self, hashes: Ints, offsets: Ints) -> None:
        self._runs.append(_sorted(hashes.astype(np.int32), offsets))
        while len(self._runs) >= _FAN_OUT and len(self._runs[-_FAN_OUT][0]) < _FAN_OUT * len(self._runs[-1][0]):
            hashes, offsets = (np.concatenate(column) for column in zip(*self._runs[-_FAN_OUT:], strict=True))
            self._runs[-_FAN_OUT:] = [_sorted(hashes, offsets)]

    def lookup(self, hashed: int, settled: int = -1) -> list[int]:
        """Return the offsets of a hash behind ``settled``, oldest first."""
        found: list[int] = []
        # Of another type, every search would copy the whole run first.
        key = np.int32(hashed)
        for hashes, offsets in self._runs:
            first, behind = np.searchsorted(hashes, key, "left"), np.searchsorted(hashes, key, "right")
            first += np.searchsorted(offsets[first:behind], settled, "right")
            found += offsets[first:behind].tolist()
        few = self._few.get(hashed, [])
        return found + few[bisect_right(few, settled) :]


def _sorted(hashes: Ints, offsets: Ints) -> tuple[Ints, Ints]:
    order = np.argsort(hashes, kind="stable")
    return hashes[order], offsets[order]
