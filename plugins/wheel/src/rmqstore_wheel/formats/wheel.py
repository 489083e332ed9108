"""The timer wheel: for every tick of the future, where its timers are in the timer log (``TimerWheel``, ``Slot``, RIP-43).

One file, no header: a ring of twice as many slots as the wheel spans, so that a span of past slots does not meet one of future ones.
RocketMQ has 604 800 slots, 38 707 200 bytes, whatever the precision. Time t (ms) has its slot at (t / precision) mod (2 × slots)::

    0    i64  tick: t / precision
    8    i64  position of its first unit in the timer log, -1 = none
    16   i64  position of its newest unit, from which the others are found
    24   i32  number of timers, less the cancels; statistics
    28   i32  magic, without a meaning to RocketMQ; of ours, 2: timers of the slot are to be rolled, 4: some are not due at its
         end, 8: it was rolled while others stayed

A slot of another tick than the one that is asked for is empty: it was never written, or belongs to an earlier lap.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

SLOT_BYTES: Final = 32
SLOTS: Final = 7 * 24 * 3600
PRECISIONS_MS: Final = (100, 200, 500, 1000)

SLOT: Final = np.dtype([("tick", ">i8"), ("first", ">i8"), ("last", ">i8"), ("timers", ">i4"), ("magic", ">i4")])


class Ring(NamedTuple):
    """The arithmetic of a wheel: ``precision_ms`` a tick, ``slots`` ticks ahead, a ring of twice as many."""

    precision_ms: int = 1000
    slots: int = SLOTS

    @property
    def length(self) -> int:
        return 2 * self.slots

    @property
    def file_bytes(self) -> int:
        return self.length * SLOT_BYTES
