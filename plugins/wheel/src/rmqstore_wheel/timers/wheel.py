"""``WheelIndex``: the timer wheel over the timer log (``TimerWheel``, ``TimerLog``, RIP-43): which timers are due at which tick.

Slot n of the wheel holds the timers of ticks n·p < tick <= (n + 1)·p, p being the precision: RocketMQ's slot of the time n·p. Timers that
are further ahead than the roll window go into a nearer slot, marked to be rolled; where in the later half of the window is spread by their
number, so that what was put at once does not meet again (RocketMQ: #8203). A timer that finds its place in the ring taken by another lap,
or whose slot is more than a span back, is told to its owner, which keeps it aside.

A slot's units are a chain in the timer log (``slot_chains``).

The slots are in memory and on disk as a snapshot, ``timerwheel`` and the one before it as ``timerwheel.bak``. It is written under another
name and renamed when it is on disk; a check point names the one that belongs to it by its CRC-32. One that belongs to none, as its check
point found no room, is replaced by the next one, and ``timerwheel.bak`` stays. Units are appended to the timer log, which a check point
vouches for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from zlib_ng.zlib_ng import crc32

from rmqstore.errors import CorruptStoreError, StoreFullError
from rmqstore_wheel.files.disk import Disk, DiskFile
from rmqstore_wheel.files.units import Numbers, RebuildReason, Sums, UnitLog
from rmqstore_wheel.formats import timer_log, wheel
from rmqstore_wheel.formats.binary_columns import Flags, Ints, Rows, put_rows
from rmqstore_wheel.formats.wheel import SLOT_BYTES, Ring
from rmqstore_wheel.timers.records import EncodedTimer
from rmqstore_wheel.timers.slot_chains import walk

ROLL_WINDOW_SLOTS: Final = 172_800
"""RocketMQ's ``timerRollWindowSlot``: two days at a precision of 1 s."""

ROLLS: Final = 2
"""In the field that RocketMQ carries along without a meaning: a slot with timers that are to be rolled."""

FRAYED: Final = 4
"""In the same field: a slot with timers whose tick is not its end, as other stores gave them out."""

ROLLED: Final = 8
"""In the same field: a slot that was rolled while timers of its own stayed. Units of those that rolled on are still in its chain, where
another roll would take them again; so no other far timer may wait there."""

_SPREAD: Final = 0x9E3779B97F4A7C15
_MASK: Final = 2**64 - 1
_SPREAD_SHIFT: Final = 33
_NO_ROWS: Final = np.zeros(0, np.int64)
_NO_ROW: Final[tuple[int, ...]] = ()


class SlotUnits(msgspec.Struct, gc=False):
    """Units that are ahead of the last one of the timer log, and what becomes of the slots at ``places`` with them.

    Attributes:
        begins: where the first of these units is in each slot.
    """

    data: memoryview
    places: Ints
    rows: Rows
    begins: Ints
    counts: Ints | int
    marks: Ints
    first_roll: int | None


class Placement(msgspec.Struct, gc=False):
    """Timers that were written for their slots, and are not counted in yet.

    Attributes:
        rolled: says of each whether it is in another slot than its own.
        aside: which of them found no place at all.
    """

    rolled: Flags
    aside: Ints
    units: SlotUnits | None


class SmallPlacement(msgspec.Struct, gc=False):
    """As :class:`Placement`, of a few timers.

    Attributes:
        elsewhere: rows of those that are not in their own slots.
        aside: rows of those among them that found no place at all.
        units: the bytes of their units.
        slots: for each slot its first unit, the first of these units, the last, how many timers there are more, and marks.
        first_roll: the first slot into which one rolled.
    """

    elsewhere: tuple[int, ...]
    aside: tuple[int, ...]
    units: bytes
    slots: dict[int, tuple[int, int, int, int, int]]
    first_roll: int | None = None


class WheelIndex:
    """Slots and timer log; times are in ms, slots are numbered by time / precision.

    Args:
        directory: RocketMQ's store directory.
        roll_window: slots ahead beyond which a timer is rolled.
        unit_log: how the timer log is reached.

    Attributes:
        first_roll: the first slot that holds timers to be rolled; None when there is none.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        ring: Ring,
        units_per_file: int,
        ask_rebuild: Callable[[RebuildReason], None],
        roll_window: int = ROLL_WINDOW_SLOTS,
        unit_log: type[UnitLog] = UnitLog,
    ) -> None:
        self.ring = ring
        self._length = ring.length
        self._snapshot = WheelSnapshot(disk, directory / "timerwheel", ring)
        self.window = roll_window
        self.units = unit_log(
            disk,
            directory / "timerlog",
            timer_log.UNIT,
            units_per_file,
            blank=timer_log.encode_blank(timer_log.BLANK_BYTES),
            fill_bytes=4 * 1024 * 1024,
            ask_rebuild=ask_rebuild,
        )
        self.slots = np.zeros(ring.length, wheel.SLOT)
        self._pages = np.zeros(-(-ring.length // PAGE_SLOTS), np.bool_)
        self.first_roll: int | None = None
        # Behind it, no slot holds timers.
        self._last = -1

    # ------------------------------------------------------------ numbers

    def slot_of(self, tick: Numbers) -> Numbers:
        """Return the slot of a tick, or those of many."""
        return -(-tick // self.ring.precision_ms) - 1

    # ------------------------------------------------------------ putting

    def reserve(
        self, seqs: Ints, ticks: Ints, write_ms: int, log_offsets: Ints, sizes: Ints, topic_hashes: Ints | int = 0
    ) -> Placement:  # fmt: skip
        """Write timers for their slots, as of ``write_ms``, where no reader sees them before :meth:`publish`."""
        precision = self.ring.precision_ms
        now = write_ms // precision
        own = self.slot_of(ticks)
        slots = own
        ahead = own - now
        rolled = ahead >= self.window
        if rolled.any():
            half = self.window // 2
            spread = (seqs.astype(np.uint64) * np.uint64(_SPREAD) >> np.uint64(_SPREAD_SHIFT)).astype(np.int64)
            slots = np.where(rolled, now + half + spread % (self.window - half), own)
        aside = ahead < -self.ring.slots
        held = self.slots.take(slots % self._length)
        aside |= (held["timers"] > 0) & ((held["tick"] != slots) | (rolled & ((held["magic"] & ROLLED) != 0)))
        marks = np.where(rolled, ROLLS, np.where(ticks % precision, FRAYED, 0))
        if not aside.any():
            return Placement(rolled, _NO_ROWS, self._write(seqs, slots, marks, now, log_offsets, sizes, topic_hashes))
        rows = np.flatnonzero(~aside)
        units = self._write(seqs[rows], slots[rows], marks[rows], now, log_offsets[rows], sizes[rows], _of(topic_hashes, rows))
        return Placement(rolled, np.flatnonzero(aside), units)

    def reserve_cancel(self, seq: int, tick: int, write_ms: int, log_offset: int, size: int) -> SmallPlacement | None:
        """As :meth:`reserve_cancels`, of one; None when its slot holds no timer."""
        slot, precision = self.slot_of(tick), self.ring.precision_ms
        now = write_ms // precision
        held_slot, first, last, timers, _ = self.slots[slot % self._length].item()
        if timers <= 0 or held_slot != slot or abs(slot - now) > self.ring.slots:
            return None
        unit = timer_log.encode_one(
            timer_log.UNIT_BYTES,
            last,
            timer_log.DEFAULT | timer_log.DELETE,
            now * precision,
            (slot - now) * precision,
            log_offset,
            size,
            0,
            seq,
        )
        self.units.write_ahead(unit)
        position = self.units.position(self.units.count)
        return SmallPlacement(_NO_ROW, _NO_ROW, unit, {slot: (first, position, position, 0, 0)})

    def reserve_cancels(self, seqs: Ints, ticks: Ints, write_ms: int, log_offsets: Ints, sizes: Ints) -> Placement:
        """Write the cancels of timers that are in their own slots behind them, for a broker; they count for nothing here."""
        now = write_ms // self.ring.precision_ms
        slots = self.slot_of(ticks)
        held = self.slots.take(slots % self._length)
        rows = np.flatnonzero((held["timers"] > 0) & (held["tick"] == slots) & (np.abs(slots - now) <= self.ring.slots))
        none = np.zeros(len(rows), np.int64)
        units = self._write(seqs[rows], slots[rows], none, now, log_offsets[rows], sizes[rows], 0, timer_log.DEFAULT | timer_log.DELETE)
        return Placement(np.zeros(len(seqs), np.bool_), _NO_ROWS, units)

    def reserve_few(
        self, seq: int, timers: Sequence[EncodedTimer], write_ms: int, log_offsets: Sequence[int], sizes: Sequence[int]
    ) -> SmallPlacement:  # fmt: skip
        """As :meth:`reserve`, of a few timers by seqs from ``seq`` on."""
        precision, window, lap = self.ring.precision_ms, self.window, self.ring.slots
        units, slots, length = self.units, self.slots, self._length
        now, number = write_ms // precision, units.count
        placed = SmallPlacement(_NO_ROW, _NO_ROW, b"", {})
        known, data = placed.slots, []
        for row, timer in enumerate(timers):
            tick = timer.tick
            slot = -(-tick // precision) - 1
            ahead = slot - now
            rolled = ahead >= window
            if rolled:
                half = window // 2
                slot = now + half + (((seq + row) * _SPREAD & _MASK) >> _SPREAD_SHIFT) % (window - half)
            held_slot, first, last, count, magic = slots[slot % length].item()
            is_live = count > 0 and held_slot == slot
            is_aside = ahead < -lap or (count > 0 and (not is_live or (rolled and magic & ROLLED)))
            if rolled or is_aside:
                placed.elsewhere = (*placed.elsewhere, row)
            if is_aside:
                placed.aside = (*placed.aside, row)
                continue
            position = number // units.per_file * units.chain.file_bytes + number % units.per_file * timer_log.UNIT_BYTES
            number += 1
            flags, mark = (timer_log.DEFAULT | timer_log.ROLL, ROLLS) if rolled else (timer_log.DEFAULT, FRAYED if tick % precision else 0)
            if slot not in known:
                previous = last if is_live else timer_log.NO_POSITION
                known[slot] = (first if is_live else position, position, position, 1, mark)
            else:
                first, begin, previous, count, marks = known[slot]
                known[slot] = (first, begin, position, count + 1, marks | mark)
            if rolled and (placed.first_roll is None or slot < placed.first_roll):
                placed.first_roll = slot
            delay_ms = (slot - now) * precision
            data.append(
                timer_log.encode_one(
                    timer_log.UNIT_BYTES, previous, flags, now * precision, delay_ms, log_offsets[row], sizes[row], timer.hash, seq + row
                )
            )
        if data:
            placed.units = b"".join(data)
            units.write_ahead(placed.units)
        return placed

    def publish_few(self, placed: SmallPlacement) -> None:
        if not placed.units:
            return
        self.units.advance(placed.units)
        for slot, (first, begin, last, count, marks) in placed.slots.items():
            place = slot % self._length
            # It may have been emptied since: then its marks count for nothing, and its chain begins anew.
            held_slot, _, _, before, magic = self.slots[place].item()
            if held_slot == slot and before > 0:
                self.slots[place] = (slot, first, last, before + count, magic | marks)
            else:
                self.slots[place] = (slot, begin, last, count, marks)
            self._pages[place // PAGE_SLOTS] = True
            self._last = max(self._last, slot)
        if placed.first_roll is not None:
            self.first_roll = placed.first_roll if self.first_roll is None else min(self.first_roll, placed.first_roll)

    def publish(self, placed: Placement) -> None:
        """Count in what was written."""
        units = placed.units
        if units is None:
            return
        self.units.advance(units.data)
        # Timers may have left these slots since, as some roll from a slot while others roll into it: a chain that was emptied begins anew.
        held, rows, places = self.slots.take(units.places), units.rows, units.places
        stays = (held["tick"] == rows["tick"]) & (held["timers"] > 0)
        rows["first"] = np.where(stays, rows["first"], units.begins)
        rows["timers"] = np.where(stays, held["timers"], 0) + units.counts
        rows["magic"] = np.where(stays, held["magic"], 0) | units.marks
        put_rows(self.slots, places, rows)
        self._pages[places // PAGE_SLOTS] = True
        self._last = max(self._last, int(rows["tick"].max()))
        if units.first_roll is not None:
            self.first_roll = units.first_roll if self.first_roll is None else min(self.first_roll, units.first_roll)

    def _write(
        self,
        seqs: Ints,
        slots: Ints,
        marks: Ints,
        now: int,
        log_offsets: Ints,
        sizes: Ints,
        topic_hashes: Ints | int,
        flags: int = timer_log.DEFAULT,
    ) -> SlotUnits | None:
        precision = self.ring.precision_ms
        count = len(slots)
        if not count:
            return None
        order = _stable_order(slots)
        last_slot = slots[-1]
        if count > 1 and slots[order[-1]] != last_slot:
            # A broker's recovery takes its queue cursor from the last unit, so that must be the last message's.
            low, high = np.searchsorted(slots[order], [last_slot, last_slot + 1])
            order = np.concatenate((order[:low], order[high:], order[low:high]))
        in_order = slots[order]
        starts = np.empty(count, np.bool_)
        starts[0] = True
        np.not_equal(in_order[1:], in_order[:-1], out=starts[1:])
        firsts = np.flatnonzero(starts)
        lasts = np.append(firsts[1:], count) - 1
        numbers = self.units.count + np.arange(count)
        positions = self.units.position(numbers)
        places = in_order[firsts] % self._length
        held = self.slots.take(places)
        live = (held["timers"] > 0) & (held["tick"] == in_order[firsts])
        rolled = marks == ROLLS
        rolls = bool(rolled.any())
        previous = np.empty(count, np.int64)
        previous[1:] = positions[:-1]
        previous[firsts] = np.where(live, held["last"], timer_log.NO_POSITION)
        all_flags = np.where(rolled[order], timer_log.DEFAULT | timer_log.ROLL, timer_log.DEFAULT) if rolls else flags
        delays_ms, hashes = (in_order - now) * precision, _of(topic_hashes, order)
        units = timer_log.rows_of(previous, all_flags, now * precision, delays_ms, log_offsets[order], sizes[order], hashes, seqs[order])
        data = units.view(np.uint8).data
        self.units.write_ahead(data)
        rows = np.empty(len(firsts), wheel.SLOT)
        rows["tick"] = in_order[firsts]
        rows["first"] = np.where(live, held["first"], positions[firsts])
        rows["last"] = positions[lasts]
        counts = 0 if flags & timer_log.DELETE else lasts - firsts + 1
        slot_marks = np.bitwise_or.reduceat(marks[order], firsts)
        return SlotUnits(data, places, rows, positions[firsts], counts, slot_marks, int(slots[rolled].min()) if rolls else None)

    def count_off(self, slots: Ints) -> None:
        """Take timers off the counts of their slots, one for each mention; an empty slot is free for another lap."""
        distinct, counts = np.unique(slots, return_counts=True) if len(slots) > 1 else (slots, 1)
        places = distinct % self._length
        rows = self.slots.take(places)
        ours = rows["tick"] == distinct
        left = rows["timers"] - counts * ours
        self.slots["timers"][places] = left
        self.slots["magic"][places[left <= 0]] = 0

    def count_off_one(self, slot: int) -> None:
        place = slot % self._length
        held_slot, first, last, timers, magic = self.slots[place].item()
        if held_slot == slot:
            self.slots[place] = (slot, first, last, timers - 1, magic if timers > 1 else 0)

    # ------------------------------------------------------------ looking

    def live_slots(self, first: int, last: int, *, rolls: bool = False) -> Ints:
        """Return the slots from ``first`` to ``last`` that hold timers, rising; with ``rolls`` those with timers to be rolled."""
        last = min(last, self._last)
        if last < first:
            return _NO_ROWS
        if last - first + 1 < self._length:
            at, end = first % self._length, last % self._length
            if at <= end:
                slots = self._live_in(at, end + 1, rolls)
            else:
                slots = np.concatenate((self._live_in(at, self._length, rolls), self._live_in(0, end + 1, rolls)))
        else:
            slots = np.sort(self._live_in(0, self._length, rolls))
        found: Ints = slots[(slots >= first) & (slots <= last)]
        return found

    def first_of(self, slots: Ints, limit: int) -> Ints:
        """Return the first of some slots, enough to hold about ``limit`` timers, at least one."""
        counts = self.slots["timers"][slots % self._length].cumsum()
        return slots[: int(counts.searchsorted(limit)) + 1]

    def _live_in(self, begin: int, stop: int, rolls: bool = False) -> Ints:
        first = begin // PAGE_SLOTS
        used = self._pages[first : -(-stop // PAGE_SLOTS)].nonzero()[0]
        if not len(used):
            return _NO_ROWS
        begin, stop = max(begin, (first + int(used[0])) * PAGE_SLOTS), min(stop, (first + int(used[-1]) + 1) * PAGE_SLOTS)
        rows = self.slots[begin:stop]
        places = (rows["magic"] & ROLLS if rolls else rows["timers"] > 0).nonzero()[0]
        found: Ints = rows["tick"][places].astype(np.int64)
        return found

    def slots_to_roll(self, last: int) -> Ints:
        """Return the slots up to ``last`` that hold timers to be rolled, rising."""
        if self.first_roll is None or self.first_roll > last:
            return np.zeros(0, np.int64)
        return self.live_slots(self.first_roll, last, rolls=True)

    def note_rolled(self, slots: Ints) -> None:
        places = slots % self._length
        places = places[self.slots["tick"][places] == slots]
        self.slots["magic"][places] &= ~ROLLS
        self.slots["magic"][places[self.slots["timers"][places] > 0]] |= ROLLED
        self._find_first_roll()

    def _find_first_roll(self) -> None:
        used = self._used()
        left = used["tick"][used["magic"] & ROLLS > 0]
        self.first_roll = int(left.min()) if len(left) else None

    def _used(self) -> Rows:
        """Return the slots of the pages that were ever used: all that may hold something."""
        if self._pages.all():
            return self.slots
        places = (self._pages.nonzero()[0][:, np.newaxis] * PAGE_SLOTS + np.arange(PAGE_SLOTS)).ravel()
        return self.slots.take(places[places < self._length])

    def next_live(self, after: int) -> int | None:
        """Return the first slot behind ``after`` that holds timers; None when there is none."""
        step = 4096
        low = after + 1
        while low <= min(after + self._length, self._last):
            high = min(low + step, after + self._length)
            found = self.live_slots(low, high)
            if len(found):
                return int(found[0])
            low, step = high + 1, 8 * step
        if self._last <= after + self._length:
            return None
        beyond = self._live_in(0, self._length)
        beyond = beyond[beyond > after]
        return int(beyond.min()) if len(beyond) else None

    def is_even(self, slot: int) -> bool:
        """Say whether all timers that are in a slot are due at its end."""
        row = self.slots[slot % self._length]
        return bool(row["tick"] == slot and not row["magic"])

    def has_rolls(self, slot: int) -> bool:
        """Say whether timers may wait in a slot to be rolled."""
        row = self.slots[slot % self._length]
        return bool(row["tick"] == slot and row["magic"] & ROLLS)

    def count_in(self, slot: int) -> int:
        row = self.slots[slot % self._length]
        return max(int(row["timers"]), 0) if row["tick"] == slot else 0

    def walk(self, slots: Ints) -> tuple[Ints, Ints]:
        """Return (units by number, slot of each) of all chains of some slots, in no order; see ``slot_chains.walk``."""
        rows = self.slots.take(slots % self._length)
        return walk(self.units, rows["last"].astype(np.int64), rows["first"].astype(np.int64), slots)

    # ------------------------------------------------------------ snapshots

    def start(self, sums: Sums, crc: int) -> None:
        """Begin with the snapshot that has this CRC-32, and the timer log as far as a check point vouches for it.

        Raises:
            CorruptStoreError: there is no such snapshot, or a file of the timer log is missing.
        """
        self.units.start(sums)
        self.slots, self._pages = self._snapshot.read(crc)
        self._last = int(self._used()["tick"].max(initial=-1))
        self._find_first_roll()

    def start_empty(self) -> None:
        self.units.chain.drop_from(0)
        self.units.start(Sums())
        self.slots = np.zeros(self._length, wheel.SLOT)
        self._pages[:] = False
        self.first_roll = None
        self._last = -1

    def check_point(self) -> tuple[Sums, int]:
        """Write a snapshot, that of the last check point being kept; returns what a check point has to know."""
        return self.units.sync(), self._snapshot.write(self.slots, self._pages)

    def release(self) -> None:
        """Let go of what the check point written last needs no more."""
        self._snapshot.is_named = True
        self.units.release()

    def first_needed(self) -> int:
        """Return the number of the oldest unit that a live slot needs."""
        used = self._used()
        firsts = used["first"][used["timers"] > 0]
        return int(self.units.numbers(firsts.astype(np.int64)).min()) if len(firsts) else self.units.count

    def close(self) -> None:
        """Let go of the files, and of the slots: tens of MiB that would stay until the collector runs."""
        self.units.close()
        self.slots = self.slots[:0].copy()


def _stable_order(slots: Ints) -> Ints:
    """Return what sorts slots and keeps the order of equal ones; numpy is several times faster at numbers of 16 bits."""
    above = slots - slots.min()
    return np.argsort(above.astype(np.uint16) if int(above.max()) < 2**16 else above, kind="stable")


def _of(values: Ints | int, rows: Ints) -> Ints | int:
    return values if isinstance(values, int) else values[rows]


PAGE_SLOTS: Final = 4096 // SLOT_BYTES
"""Slots that are written together, or stay a hole when none of them was ever used."""


class WheelSnapshot:
    """The file at ``path``, of the length that ``ring`` asks for.

    Attributes:
        is_named: a check point names what is at ``path``, so another one must not take its place before a check point names that.
    """

    def __init__(self, disk: Disk, path: Path, ring: Ring) -> None:
        self._disk = disk
        self._path = path
        self._ring = ring
        self.is_named = False

    def read(self, crc: int) -> tuple[Rows, Flags]:
        """Return the slots that have this CRC-32, and which pages of them were ever used; see :meth:`WheelIndex.start`."""
        for path in (self._path, self._path.with_suffix(".bak")):
            try:
                with closing(self._disk.open(path)) as file:
                    if file.length == self._ring.file_bytes:
                        slots, pages = self._filled(file)
                        if _crc_of(slots, pages) == crc:
                            self.is_named = path == self._path
                            return slots, pages
            except StoreFullError:
                raise
            except OSError:
                continue
        raise CorruptStoreError(f"{self._path} is not the wheel of the check point", file=str(self._path))

    def _filled(self, file: DiskFile) -> tuple[Rows, Flags]:
        """Read the slots, and find out which pages hold any; holes, most of the file as a rule, are not read."""
        slots, pages = np.zeros(self._ring.length, wheel.SLOT), np.zeros(-(-self._ring.length // PAGE_SLOTS), np.bool_)
        data = slots.view(np.uint8).data
        for begin, stop in file.data_from(0):
            file.read_into(begin, data[begin:stop])
            first, behind = begin // SLOT_BYTES // PAGE_SLOTS, -(-stop // SLOT_BYTES // PAGE_SLOTS)
            pages[first:behind] = _filled_pages(slots[first * PAGE_SLOTS : behind * PAGE_SLOTS])
        return slots, pages

    def write(self, slots: Rows, pages: Flags) -> int:
        """Write a snapshot, the last one that a check point names being kept; returns its CRC-32."""
        new = self._path.with_suffix(".new")
        used = np.flatnonzero(pages)
        bounds = [
            (int(run[0]) * PAGE_SLOTS, min((int(run[-1]) + 1) * PAGE_SLOTS, self._ring.length))
            for run in np.split(used, np.flatnonzero(np.diff(used) != 1) + 1)
            if len(run)
        ]
        pieces = [(begin * SLOT_BYTES, slots[begin:stop].view(np.uint8).data) for begin, stop in bounds]
        self._disk.write_new(new, self._ring.file_bytes, pieces)
        if self.is_named and self._path.exists():
            self._disk.rename(self._path, self._path.with_suffix(".bak"))
        self.is_named = False
        self._disk.rename(new, self._path)
        self._disk.sync_directory(self._path.parent)
        return _crc_of(slots, pages)


def _filled_pages(slots: Rows) -> Flags:
    words = slots.view(np.uint64)
    pages: Flags = np.bitwise_or.reduceat(words, np.arange(0, len(words), PAGE_SLOTS * SLOT_BYTES // 8)) != 0
    return pages


def _crc_of(slots: Rows, pages: Flags) -> int:
    """Return the CRC-32 of the pages that are not empty, with their numbers."""
    crc = 0
    for page in np.flatnonzero(pages).tolist():
        piece = slots[page * PAGE_SLOTS : (page + 1) * PAGE_SLOTS]
        if piece.view(np.uint64).any():
            crc = crc32(piece.view(np.uint8).data, crc32(page.to_bytes(4, "big"), crc))
    return crc
