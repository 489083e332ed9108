"""``Gaps``: for each space one interval that is known to be empty, so that scans need not walk the tombstones in it.

A range delete leaves a tombstone until compaction, and a queue leaves thousands of them side by side below its first live key. A forward
scan from below passes them at about 1 µs each, a reverse scan that finds nothing above them at 5 µs each, on every call (5000 deletes,
1 M keys: 6 and 23 ms). The interval that the last range deletes emptied is usually all of that.

**Floors.** A table that is worked off from its beginning, as what ends or is forgotten by time, leaves a tombstone of each key, too. So
what a scan from the beginning of a table found first is remembered as its floor, where the next one begins. Without, half the time of a
store goes into upkeep that walks what it removed (5,000 pops and 2,000 marks a second, each remembered for a minute).
"""

from __future__ import annotations

from typing import NamedTuple

from rmqstore.engine.kv.base import DeleteMany, DeleteRange, WriteBatch
from rmqstore.engine.schema import after_prefix

FLOORED_BYTES = 2
"""The beginning of a table, which alone has a floor, is a byte, and maybe another one, of what its keys share."""


class Gap(NamedTuple):
    """No key with ``low <= key < high`` is there."""

    low: bytes
    high: bytes


class Gaps:
    """Kept under the lock that orders writes; a scan takes its gap and its iterator under that lock too.

    Attributes:
        gaps: by space, what is known to be empty.
        floors: by space, where a forward scan from a key may begin: no key is stored between the two.
    """

    def __init__(self, spaces: int) -> None:
        self.gaps: list[Gap | None] = [None] * spaces
        self._range_deletes = [0] * spaces
        self.floors: list[dict[bytes, bytes]] = [{} for _ in range(spaces)]
        self._thinned: list[set[bytes]] = [set() for _ in range(spaces)]

    def has_floor(self, space: int, start: bytes) -> bool:
        """Tell whether ``start`` is the beginning of a table from which keys were taken one by one."""
        return len(start) <= FLOORED_BYTES and start[:1] in self._thinned[space] and start[-1:] != b"\xff"

    def raise_floor(self, space: int, start: bytes, floor: bytes) -> None:
        """Remember what a scan found: no key with ``start <= key < floor``; nothing may have been written since."""
        # Only keys that begin with ``start`` lower it again.
        self.floors[space][start] = min(floor, after_prefix(start))

    def follow(self, batch: WriteBatch) -> None:
        """Take account of a batch that was written."""
        for op in batch.ops:
            if isinstance(op, DeleteMany):
                self._thinned[op.space].update(op.keys[0][:1] for _ in op.keys[:1])
            elif not isinstance(op, DeleteRange) and (floors := self.floors[op.space]):
                for key, _ in op.items:
                    for size in range(1, FLOORED_BYTES + 1):
                        if key < floors.get(key[:size], b""):
                            floors[key[:size]] = key
            gap = self.gaps[op.space]
            if isinstance(op, DeleteRange):
                self._range_deletes[op.space] += 1
                self.gaps[op.space] = _joined(gap, op.start, op.stop) or Gap(op.start, op.stop)
            elif gap is not None and not isinstance(op, DeleteMany):
                low, high = gap
                inside = [key for key, _ in op.items if low <= key < high]
                if inside:
                    # The part above the highest new key is the one next to the live keys.
                    self.gaps[op.space] = Gap(max(inside) + b"\x00", high)

    def learn(self, space: int, low: bytes, high: bytes) -> None:
        """Widen the gap by an interval that a scan found empty, if the two touch; nothing may have been written since the scan."""
        joined = _joined(self.gaps[space], low, high)
        if joined is not None:
            self.gaps[space] = joined

    def crowded(self, limit: int) -> list[int]:
        """Return the spaces with ``limit`` range deletes or more since they were last returned here."""
        if max(self._range_deletes) < limit:
            return []
        crowded = [space for space, count in enumerate(self._range_deletes) if count >= limit]
        for space in crowded:
            self._range_deletes[space] = 0
        return crowded

    def touches(self, space: int, low: bytes, high: bytes) -> bool:
        """Tell whether :meth:`learn` would widen the gap."""
        gap = self.gaps[space]
        return gap is not None and low <= gap.high and high >= gap.low and (low < gap.low or high > gap.high)


def _joined(gap: Gap | None, low: bytes, high: bytes) -> Gap | None:
    if gap is None or low > gap.high or high < gap.low:
        return None
    return Gap(min(low, gap.low), max(high, gap.high))
