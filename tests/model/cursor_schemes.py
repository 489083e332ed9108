"""Ways to remember what was handed over: the staircase that rmqstore uses, and the two designs that the model refutes.

A scheme decides where a put goes, what a seal closes, what a cursor covers, and how a cursor moves past a batch. Cursors and sealed sets
are tuples of integer tuples throughout, so that a state of the model hashes and compares by value:

==========  =========================================  =======================================
scheme      cursor                                     sealed set
==========  =========================================  =======================================
stairs      corners ``(tick, seq)``                    corners ``(tick, seq)``
single      one ``(tick, seq)``, compared as a pair    one ``(tick,)``
levels      one ``(level, tick, seq)`` a level         one ``(level, tick)`` a level
==========  =========================================  =======================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

Corners = tuple[tuple[int, ...], ...]

Late = Literal["same", "next", "own"]
Absent = Literal["new", "done", "keep"]


class Put(NamedTuple):
    """One timer in the timer log. ``tick`` is where it was placed; it is ``deliver`` unless the scheme moves late puts."""

    message: int
    deliver: int
    level: int
    tick: int
    seq: int
    epoch: int
    stamp: int

    @property
    def place(self) -> tuple[int, int]:
        """The position in (tick, seq) order."""
        return self.tick, self.seq


class Found(NamedTuple):
    """What ``due`` found: the puts it gives, those it leaves for later, and whether it stopped before one that is not durable."""

    given: list[Put]
    left: list[Put]
    stopped: bool


class Scheme(ABC):
    """The part of the protocol in which the designs differ."""

    no_cursor: Corners
    nothing_sealed: Corners

    @abstractmethod
    def covers(self, cursor: Corners, put: Put) -> bool:
        """Say whether ``cursor`` claims that ``put`` was handed over."""

    @abstractmethod
    def seals(self, sealed: Corners, put: Put) -> bool:
        """Say whether ``put`` is closed."""

    @abstractmethod
    def place(self, sealed: Corners, cursor: Corners, puts: Sequence[Put], deliver: int, now: int) -> tuple[int, int, Corners]:
        """Return level and tick of a new put, and the sealed set, which may grow by a level."""

    @abstractmethod
    def seal(self, sealed: Corners, until: int, last_seq: int) -> Corners:
        """Close everything up to ``until``."""

    @abstractmethod
    def advance(self, cursor: Corners, sealed: Corners, until: int, found: Found, kept: Sequence[Put]) -> Corners:
        """Return the cursor behind ``found.given``, which is not empty; ``kept`` are the puts that are not reclaimed."""

    @abstractmethod
    def highest_seq(self, cursor: Corners) -> int:
        """Return the largest seq that ``cursor`` knows; 0 when it knows none."""

    @abstractmethod
    def recover(self, seals: Sequence[Corners], cursor: Corners, kept: Sequence[Put]) -> Corners:
        """Return the sealed set after a reopen, from the surviving seal records and the receiver's cursor."""


# ---------------------------------------------------------------- the staircase


def stairs(corners: Iterable[tuple[int, ...]]) -> Corners:
    """Return the corners that no other one dominates, tick falling and seq rising."""
    kept: list[tuple[int, ...]] = []
    highest_seq = 0
    for tick, seq in sorted(set(corners), reverse=True):
        if tick >= 1 and seq > highest_seq:
            kept.append((tick, seq))
            highest_seq = seq
    return tuple(kept)


def stairs_cover(corners: Corners, tick: int, seq: int) -> bool:
    """Say whether some corner is at least ``(tick, seq)`` in both coordinates."""
    return any(corner_tick >= tick and corner_seq >= seq for corner_tick, corner_seq in corners)


class Stairs(Scheme):
    """The scheme of rmqstore (docs/handover.md).

    Args:
        hold: cut sealed corners to the last ``until``, as ``due`` itself does.
        max_corners: longest cursor; corners are dropped from a longer one, largest tick first.
        drop_checked: drop a corner only when nothing under it is left in the timer log.
        last_seq_only: corners take the largest seq of the batch instead of the sealed one.
    """

    no_cursor = ()
    nothing_sealed = ()

    def __init__(self, *, hold: bool, max_corners: int, drop_checked: bool, last_seq_only: bool) -> None:
        self.hold = hold
        self.max_corners = max_corners
        self.drop_checked = drop_checked
        self.last_seq_only = last_seq_only

    def covers(self, cursor: Corners, put: Put) -> bool:
        return stairs_cover(cursor, put.tick, put.seq)

    def seals(self, sealed: Corners, put: Put) -> bool:
        return stairs_cover(sealed, put.tick, put.seq)

    def place(self, sealed: Corners, cursor: Corners, puts: Sequence[Put], deliver: int, now: int) -> tuple[int, int, Corners]:
        return 0, deliver, sealed

    def seal(self, sealed: Corners, until: int, last_seq: int) -> Corners:
        return stairs((*sealed, (until, last_seq)))

    def advance(self, cursor: Corners, sealed: Corners, until: int, found: Found, kept: Sequence[Put]) -> Corners:
        end_tick, end_seq = found.given[-1].place
        complete = not found.left and not found.stopped
        passed: list[tuple[int, ...]] = []
        for sealed_tick, seq in sealed:
            tick = min(sealed_tick, until) if self.hold else sealed_tick
            if complete or tick < end_tick:
                passed.append((tick, seq))
            else:
                passed += [(end_tick, min(end_seq, seq)), (end_tick - 1, seq)]
        if self.last_seq_only:
            last = max(put.seq for put in found.given)
            passed = [(tick, min(seq, last)) for tick, seq in passed]
        return self._shortened(stairs((*cursor, *passed)), kept)

    def _shortened(self, cursor: Corners, kept: Sequence[Put]) -> Corners:
        while len(cursor) > self.max_corners:
            if self.drop_checked and any(stairs_cover(cursor[:1], put.tick, put.seq) for put in kept):
                break
            cursor = cursor[1:]
        return cursor

    def highest_seq(self, cursor: Corners) -> int:
        return max((seq for _, seq in cursor), default=0)

    def recover(self, seals: Sequence[Corners], cursor: Corners, kept: Sequence[Put]) -> Corners:
        return stairs((*(corner for sealed in seals for corner in sealed), *cursor))


# ---------------------------------------------------------------- refuted: one pair


class Single(Scheme):
    """One ``(tick, seq)`` pair, as a cursor over a sorted log would be.

    Args:
        late: where a put goes whose tick is closed already: ``same`` = into the last closed tick, ``next`` = into the tick behind it,
            ``own`` = it keeps its own tick.
    """

    no_cursor = ((0, 0),)
    nothing_sealed = ((0,),)

    def __init__(self, *, late: Late) -> None:
        self.late = late

    def covers(self, cursor: Corners, put: Put) -> bool:
        return put.place <= cursor[0]

    def seals(self, sealed: Corners, put: Put) -> bool:
        return put.tick <= sealed[0][0]

    def place(self, sealed: Corners, cursor: Corners, puts: Sequence[Put], deliver: int, now: int) -> tuple[int, int, Corners]:
        ((closed,),) = sealed
        if deliver > closed or self.late == "own":
            return 0, deliver, sealed
        return 0, closed + (self.late == "next"), sealed

    def seal(self, sealed: Corners, until: int, last_seq: int) -> Corners:
        return ((max(sealed[0][0], until),),)

    def advance(self, cursor: Corners, sealed: Corners, until: int, found: Found, kept: Sequence[Put]) -> Corners:
        return (found.given[-1].place,)

    def highest_seq(self, cursor: Corners) -> int:
        return cursor[0][1]

    def recover(self, seals: Sequence[Corners], cursor: Corners, kept: Sequence[Put]) -> Corners:
        return ((max([sealed[0][0] for sealed in seals] + [cursor[0][0]]),),)


# ---------------------------------------------------------------- refuted: a stack of logs


class Levels(Scheme):
    """A stack of sorted logs: a put that is late for one level goes to a level above, which starts at the clock of that moment.

    Args:
        unique: a level's number is never used again.
        absent: what it means that a level is not in the cursor: ``new`` = nothing of it was handed over, ``done`` = all of it was,
            ``keep`` = entries never leave the cursor.
        late: where a put goes that is late for every level and due at once (see :class:`Single`).
    """

    no_cursor = ()
    nothing_sealed = ((0, 0),)

    def __init__(self, *, unique: bool, absent: Absent, late: Late) -> None:
        self.unique = unique
        self.absent = absent
        self.late = late

    def covers(self, cursor: Corners, put: Put) -> bool:
        for level, tick, seq in cursor:
            if level == put.level:
                return put.place <= (tick, seq)
        if not cursor:
            return False
        if self.unique:
            return self.absent != "keep" and 0 < put.level < max(level for level, _, _ in cursor)
        return self.absent == "done" and put.level > 0

    def seals(self, sealed: Corners, put: Put) -> bool:
        for level, tick in sealed:
            if level == put.level:
                return put.tick <= tick
        merged_into = [tick for level, tick in sealed if level < put.level or level == 0][-1]
        return put.tick <= merged_into

    def place(self, sealed: Corners, cursor: Corners, puts: Sequence[Put], deliver: int, now: int) -> tuple[int, int, Corners]:
        for level, tick in sealed:
            if deliver > tick:
                return level, deliver, sealed
        level, tick = sealed[-1]
        if deliver <= now:
            return level, tick + (self.late == "next"), sealed
        if self.unique:
            level = max([level for level, _ in sealed] + [put.level for put in puts] + [entry[0] for entry in cursor])
        return level + 1, deliver, (*sealed, (level + 1, now))

    def seal(self, sealed: Corners, until: int, last_seq: int) -> Corners:
        levels = list(sealed)
        level, tick = levels[-1]
        levels[-1] = (level, max(tick, until))
        while len(levels) > 1 and levels[-1][1] >= levels[-2][1]:
            _, tick = levels.pop()
            levels[-1] = (levels[-1][0], tick)
        return tuple(levels)

    def advance(self, cursor: Corners, sealed: Corners, until: int, found: Found, kept: Sequence[Put]) -> Corners:
        ends = {level: (tick, seq) for level, tick, seq in cursor}
        for put in found.given:
            ends[put.level] = max(ends.get(put.level, (0, 0)), put.place)
        named = {level for level, _ in sealed} | {0} | {put.level for put in found.left}
        if self.unique:  # name every level that may still give something
            given = {put.message for put in found.given}
            open_levels = {put.level for put in kept if put.message not in given and not self.covers(cursor, put)}
            for level in {level for level, _ in sealed} | {0} | open_levels:
                ends.setdefault(level, (0, 0))
                named.add(level)
            named.add(max(ends))
        moved = tuple((level, *end) for level, end in sorted(ends.items()) if self.absent == "keep" or level in named)
        return moved or (((0, 0, 0),) if self.absent == "done" else ())

    def highest_seq(self, cursor: Corners) -> int:
        return max((seq for _, _, seq in cursor), default=0)

    def recover(self, seals: Sequence[Corners], cursor: Corners, kept: Sequence[Put]) -> Corners:
        closed = {0: 0} | {level: tick for level, tick, _ in cursor}
        for level, tick in seals[-1] if seals else ():
            closed[level] = max(closed.get(level, 0), tick)
        for put in kept:
            closed.setdefault(put.level, 0)
        return tuple(sorted(closed.items()))
