"""``SlotCounts``: how many timers each of very many slots has, where most have few."""

from __future__ import annotations

from typing import Final

import numpy as np

from rmqstore_wheel.formats.binary_columns import Ints

_FEW: Final = 4096
_PART: Final = 8
"""What changed is merged once it is this part of all, so that a change costs little however many slots there are."""


class SlotCounts:
    """Slots that have any timers take 16 bytes each; what changed lately is in a map beside them."""

    def __init__(self) -> None:
        self._slots: Ints = np.zeros(0, np.int64)
        self._counts: Ints = np.zeros(0, np.int64)
        self._changes: dict[int, int] = {}

    def of(self, slot: int) -> int:
        at = int(self._slots.searchsorted(slot))
        known = int(self._counts[at]) if at < len(self._slots) and self._slots[at] == slot else 0
        return known + self._changes.get(slot, 0)

    def add(self, slots: Ints, change: int) -> None:
        """Note that each mention of a slot is a timer that it got (1) or lost (-1)."""
        distinct, counts = np.unique(slots, return_counts=True)
        changes = self._changes
        for slot, count in zip(distinct.tolist(), counts.tolist(), strict=True):
            changes[slot] = changes.get(slot, 0) + change * count
        if len(changes) > max(_FEW, len(self._slots) // _PART):
            self._merge()

    def _merge(self) -> None:
        slots = np.append(self._slots, np.fromiter(self._changes.keys(), np.int64, len(self._changes)))
        counts = np.append(self._counts, np.fromiter(self._changes.values(), np.int64, len(self._changes)))
        distinct, places = np.unique(slots, return_inverse=True)
        sums = np.zeros(len(distinct), np.int64)
        np.add.at(sums, places, counts)
        self._slots, self._counts = distinct[sums != 0], sums[sums != 0]
        self._changes = {}
