"""The timer wheel: for every tick of the future, where its timers lie in the timer log (``TimerWheel``, ``Slot``, RIP-43).

One file, no header: a ring of twice as many slots as the wheel spans, so that a span of past slots does not meet one of future ones.
RocketMQ has 604 800 slots, 38 707 200 bytes, whatever the precision. Time t (ms) has its slot at (t / precision) mod (2 × slots)::

    0    i64  tick: t / precision
    8    i64  position of its first unit in the timer log, -1 = none
    16   i64  position of its newest unit, from which the others are found
    24   i32  number of timers, less the cancels; statistics
    28   i32  magic, without a meaning to RocketMQ; of ours, 2: timers of the slot are to be rolled, 4: some are not due at its end

A slot of another tick than the one that is asked for is empty: it was never written, or belongs to an earlier lap.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from rmqstore.errors import CorruptStoreError, IllegalArgumentError
from rmqstore_wheel.formats.binary_columns import Bytes, Ints, put_rows

SLOT_BYTES: Final = 32
SLOTS: Final = 7 * 24 * 3600
PRECISIONS_MS: Final = (100, 200, 500, 1000)
NO_POSITION: Final = -1
KEEP: Final = -2
"""In ``revise``: leave the position as it is (RocketMQ's IGNORE)."""

NEVER: Final = 2**63 - 1

SLOT: Final = np.dtype([("tick", ">i8"), ("first", ">i8"), ("last", ">i8"), ("timers", ">i4"), ("magic", ">i4")])

Slots = np.ndarray[Any, np.dtype[np.void]]


class Slot(NamedTuple):
    """One slot. Positions are those of units in the timer log; an empty slot has -1 for all three."""

    tick: int
    first: int
    last: int
    timers: int
    magic: int = 0


EMPTY: Final = Slot(-1, NO_POSITION, NO_POSITION, 0)


class Ring(NamedTuple):
    """The arithmetic of a wheel: ``precision_ms`` a tick, ``slots`` ticks ahead, a ring of twice as many."""

    precision_ms: int = 1000
    slots: int = SLOTS

    @property
    def length(self) -> int:
        """Slots of the ring."""
        return 2 * self.slots

    @property
    def file_bytes(self) -> int:
        """Bytes of the file."""
        return self.length * SLOT_BYTES

    def tick(self, time_ms: int) -> int:
        """Return the tick of a time."""
        return time_ms // self.precision_ms

    def place(self, time_ms: int) -> int:
        """Return the place of a time's slot in the ring."""
        return self.tick(time_ms) % self.length

    def ticks(self, times_ms: Ints) -> Ints:
        """Return the ticks of many times."""
        return times_ms // self.precision_ms

    def places(self, ticks: Ints) -> Ints:
        """Return the places of many ticks."""
        return ticks % self.length

    def slot_time_ms(self, deliver_ms: int) -> int:
        """Return the time whose slot RocketMQ gives to a deliver time: the last multiple of the precision before it (``HookUtils``)."""
        return -(-deliver_ms // self.precision_ms) * self.precision_ms - self.precision_ms


def snap_precision(precision_ms: int) -> int:
    """Return the precision that RocketMQ takes for a setting: the next smaller of those it knows, or the smallest."""
    return max((each for each in PRECISIONS_MS if each <= precision_ms), default=PRECISIONS_MS[0])


def create(ring: Ring) -> bytearray:
    """Return the file of an empty wheel."""
    return bytearray(ring.file_bytes)


def slots_of(buffer: Bytes, ring: Ring) -> Slots:
    """Return the slots of a file, without a copy; may be written to when the buffer may.

    Raises:
        CorruptStoreError: the file has the wrong length for this ring.
    """
    view = memoryview(buffer).cast("B")
    if len(view) != ring.file_bytes:
        raise CorruptStoreError(f"the timer wheel has {len(view)} bytes; {ring.slots} slots take {ring.file_bytes}", offset=len(view))
    return np.frombuffer(view, SLOT)


def get(slots: Slots, ring: Ring, time_ms: int) -> Slot:
    """Return the slot of a time; :data:`EMPTY` when it is of another lap, or was never written."""
    tick, first, last, timers, magic = slots[ring.place(time_ms)].item()
    if tick != ring.tick(time_ms) or (tick == 0 and first == last == timers == 0):
        return EMPTY
    return Slot(tick, first, last, timers, magic)


def put(slots: Slots, ring: Ring, time_ms: int, first: int, last: int, timers: int, magic: int = 0) -> None:
    """Write the slot of a time."""
    slots[ring.place(time_ms)] = (ring.tick(time_ms), first, last, timers, magic)


def get_many(slots: Slots, ring: Ring, ticks: Ints) -> Slots:
    """Return copies of the slots of many ticks; those of another lap come out empty."""
    found = slots.take(ring.places(ticks))
    unwritten = (ticks == 0) & (found["first"] == 0) & (found["last"] == 0) & (found["timers"] == 0)
    found[(found["tick"] != ticks) | unwritten] = EMPTY
    return found


def put_many(slots: Slots, ring: Ring, ticks: Ints, first: Ints, last: Ints, timers: Ints) -> None:
    """Write the slots of many ticks, no two of which share a place."""
    places = ring.places(ticks)
    if len(np.unique(places)) != len(places):
        raise IllegalArgumentError(f"two of the {len(places)} ticks share a slot: they are {ring.length} ticks apart, or the same")
    rows = np.zeros(len(ticks), SLOT)
    rows["tick"], rows["first"], rows["last"], rows["timers"] = ticks, first, last, timers
    put_rows(slots, places, rows)


def revise(slots: Slots, ring: Ring, time_ms: int, first: int, last: int, *, force: bool) -> None:
    """Write the positions of a slot anew, when it has this tick; when it has another, only by ``force``.

    A position of :data:`KEEP` stays, and is taken from ``last`` in a slot that is made anew. Count and magic are never touched, so after a
    recovery the count may be that of an earlier lap.
    """
    row: Any = slots[ring.place(time_ms)]
    if row["tick"] == ring.tick(time_ms):
        if first != KEEP:
            row["first"] = first
        if last != KEEP:
            row["last"] = last
    elif force:
        row["tick"], row["first"], row["last"] = ring.tick(time_ms), last if first == KEEP else first, last


def first_position_behind(slots: Slots, ring: Ring, start_ms: int, max_position: int) -> int:
    """Return the smallest first position of the slots, of the lap from ``start_ms`` on, that point behind ``max_position``.

    That is where a recovery must read the timer log again; :data:`NEVER` when no slot points behind it (``TimerWheel.checkPhyPos``).
    """
    ticks = ring.tick(start_ms) + np.arange(ring.length)
    lap = slots.take(ring.places(ticks))
    behind = lap["first"][(lap["tick"] == ticks) & (lap["last"] > max_position)]
    return int(behind.min()) if len(behind) else NEVER
