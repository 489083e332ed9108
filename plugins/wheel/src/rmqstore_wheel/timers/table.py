"""The table of timers: what is known of every timer by its number, without looking into the log: a side file of our own.

``rmqstore/facts/``, a chain of files of 1 048 576 units; the unit of the timer with seq s has the number s - 1, as its message has the
queue offset s - 1 in the wheel's topic. 16 bytes, little-endian::

    0    i64  tick, ms
    8    u32  open epoch in which it was put
    12   u16  ms that the tick is behind the due time
    14   u8   what the message is: 0 nothing, 1 a timer, 2 a cancel, 3 a copy of a rolled timer
    15   u8   0

A fact never changes. What changes, whether a timer is cancelled, is in memory (``files.bitmap``), in the check point, and in the log.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from rmqstore_wheel.files.disk import Disk
from rmqstore_wheel.files.units import RebuildReason, UnitLog
from rmqstore_wheel.formats.binary_columns import Flags, Ints, Rows

FACT: Final = np.dtype([("tick", "<i8"), ("epoch", "<u4"), ("early_ms", "<u2"), ("kind", "u1"), ("pad", "u1")])
encode_one: Final = struct.Struct("<qIHBx").pack
"""Returns one fact, of the tick, the epoch, the ms that the tick is behind the due time, and what the message is."""

PER_FILE: Final = 1024 * 1024

NOTHING, TIMER, CANCEL, COPY = range(4)

_PAGE: Final = 256 * 1024


def new_log(disk: Disk, directory: Path, ask_rebuild: Callable[[RebuildReason], None], unit_log: type[UnitLog] = UnitLog) -> UnitLog:
    """Return the facts of an engine directory."""
    return unit_log(disk, directory / "rmqstore" / "facts", FACT, PER_FILE, fill_bytes=1024 * 1024, made_above=2, ask_rebuild=ask_rebuild)


def rows_of(ticks: Ints, dues: Ints, epoch: Ints | int, kind: Ints | int = TIMER) -> Rows:
    """Return facts as they are stored; tick and due time of what is no timer are 0."""
    rows = np.zeros(len(ticks), FACT)
    rows["tick"], rows["epoch"], rows["early_ms"], rows["kind"] = ticks, epoch, ticks - dues, kind
    return rows


def dues_of(facts: Rows) -> Ints:
    """Return the due times of timers."""
    found: Ints = facts["tick"] - facts["early_ms"]
    return found


def pages(log: UnitLog, first: int) -> Iterator[tuple[int, Rows]]:
    """Yield (number of the first, facts) of all that may be something from ``first`` on, in pieces of moderate size."""
    for begin, behind in log.held(first):
        for at in range(begin, behind, _PAGE):
            yield at, log.read(at, min(_PAGE, behind - at))


_KEY_BITS: Final = 63


class Due(msgspec.Struct, frozen=True, gc=False):
    """Timers, mostly in the order of their hand-over: by tick, then by seq."""

    ticks: Ints
    seqs: Ints
    dues: Ints

    def __len__(self) -> int:
        return len(self.seqs)

    def select(self, rows: Ints | Flags | slice) -> Due:
        return Due(self.ticks[rows], self.seqs[rows], self.dues[rows])

    def in_order(self) -> Due:
        """Return them by tick, then by seq.

        Most are so near to each other that both fit into one number; those are sorted in a third of the time. Those of one slot are mostly
        in order already.
        """
        if len(self.seqs) < 2:
            return self
        ticks, seqs = self.ticks - self.ticks.min(), self.seqs - self.seqs.min()
        bits = int(seqs.max()).bit_length()
        if int(ticks.max()).bit_length() + bits > _KEY_BITS:
            return self.select(np.lexsort((seqs, ticks)))
        keys = ticks << bits | seqs
        return self if (keys[1:] > keys[:-1]).all() else self.select(np.argsort(keys))


def joined(pieces: Sequence[Due]) -> Due:
    """Return timers of several pieces, one behind the other."""
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return Due(*np.zeros((3, 0), np.int64))
    return Due(*(np.concatenate(columns) for columns in zip(*map(msgspec.structs.astuple, pieces), strict=True)))
