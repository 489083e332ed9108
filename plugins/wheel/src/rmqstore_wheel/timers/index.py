"""``TimerIndex``: all that is derived from the timers in the log: facts, wheel, cancels, counts; what a check point keeps of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from rmqstore.contract import EMPTY_CURSOR, TimerCursor
from rmqstore.engine.kv.base import OrderedKV, PutMany
from rmqstore.engine.schema import META, U64
from rmqstore_wheel.files.bitmap import Bits
from rmqstore_wheel.files.units import Sums
from rmqstore_wheel.formats import timer_log
from rmqstore_wheel.formats.binary_columns import Flags, Ints, Rows
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.formats.wheel import SLOTS, Ring
from rmqstore_wheel.log.check_point import TimerSection
from rmqstore_wheel.log.journal import Change, Copied
from rmqstore_wheel.log.ledger import Ledger
from rmqstore_wheel.timers import table as timer_table
from rmqstore_wheel.timers.keys import KeyIndex
from rmqstore_wheel.timers.records import EncodedTimer, EncodedTimers, read_timers
from rmqstore_wheel.timers.slot_counts import SlotCounts
from rmqstore_wheel.timers.table import CANCEL, NOTHING, TIMER, Due, joined
from rmqstore_wheel.timers.wheel import Placement, WheelIndex

FORGOTTEN_KEY: Final = b"mforgotten"
LAST_SEQ_KEY: Final = b"mlast_seq"

_ROLLED_SLOTS: Final = 256
_WINDOW_TIMERS: Final = 131_072
_FACTS_A_TIMER: Final = 8
"""A slot is looked for in the facts when at most so many are there for each of its timers."""


def noted_last_seq(kv: OrderedKV) -> int:
    """Return the largest seq that was noted, because the message that has it is gone, or came with the state of another store."""
    return int(U64.unpack(kv.get(META, LAST_SEQ_KEY) or bytes(U64.size))[0])


class TimerIndex:
    """See the module docstring. The caller serialises all calls.

    Attributes:
        pending: timers that are neither cancelled nor forgotten.
        write_ms: when the last put or seal was, as the clock said then; it may be before an earlier one.
        answered_from: of timers that are gone, only those of this tick or a later one are answered for.
        forgotten: what was handed over and forgotten, as a staircase of any length.
    """

    def __init__(self, ledger: Ledger, precision_ms: int) -> None:
        self._ledger = ledger
        self.precision_ms = precision_ms
        self._open()

    def _open(self) -> None:
        ledger = self._ledger
        self.facts = timer_table.new_log(ledger.disk, ledger.root, ledger.ask_rebuild, ledger.unit_log)
        self.wheel = WheelIndex(
            ledger.disk,
            ledger.root,
            Ring(self.precision_ms, SLOTS),
            ledger.sizes.timer_file_units,
            ledger.ask_rebuild,
            unit_log=ledger.unit_log,
        )
        self.keys = KeyIndex(ledger.disk, ledger.root / "index", ledger.sizes.index_slots, ledger.sizes.index_entries, ledger.ask_rebuild)
        self._clear()

    def _clear(self) -> None:
        self.cancelled = Bits()
        self.rolled = Bits()
        self.aside: dict[int, int] = {}
        self.pending = 0
        self.write_ms = 0
        self.first_kept = 0
        self.answered_from = 0
        # Up to this tick, what is the first to be kept stays so.
        self._stays_before = -1
        self.forgotten = EMPTY_CURSOR
        # How many timers of each slot are elsewhere, to be rolled or aside; None until somebody asks.
        self._away: SlotCounts | None = None

    @property
    def last_seq(self) -> int:
        return self.facts.count

    # ------------------------------------------------------------ putting

    def put_many(
        self, found: EncodedTimers, seqs: Ints, epochs: Ints | int, write_ms: int, offsets: Ints, sizes: Ints
    ) -> Callable[[], None]:  # fmt: skip
        """Write what is known of timers that a call puts, by seqs that rise; see ``log.call.Entries``."""
        publish_facts = self.facts.reserve(seqs - 1, timer_table.rows_of(found.ticks, found.dues, epochs))
        placed = self.wheel.reserve(seqs, found.ticks, write_ms, offsets, sizes, found.hashes)

        def publish() -> None:
            publish_facts()
            self._publish_places(placed, seqs, found.ticks, write_ms)
            self.pending += len(seqs)
            self.keys.add_many(found.key_hashes, offsets[found.key_rows], write_ms)

        return publish

    def put_few(
        self, found: Sequence[EncodedTimer], seq: int, epoch: int, write_ms: int, offsets: Sequence[int], sizes: Sequence[int]
    ) -> Callable[[], None]:
        """As :meth:`put_many`, of a few by seqs from ``seq`` on."""
        facts, keyed = [], []
        for row, each in enumerate(found):
            facts.append(timer_table.encode_one(each.tick, epoch, each.tick - each.due, TIMER))
            if each.key_hashes:
                keyed.append(row)
        publish_facts = self.facts.reserve_few(seq - 1, b"".join(facts))
        placed = self.wheel.reserve_few(seq, found, write_ms, offsets, sizes)

        def publish() -> None:
            publish_facts()
            self.write_ms = write_ms
            self.wheel.publish_few(placed)
            if placed.elsewhere:
                self.rolled.set_many(np.array(placed.elsewhere) + seq)
                self.aside.update((seq + row, found[row].tick) for row in placed.aside)
                if self._away is not None:
                    self._away.add(self.wheel.slot_of(np.array([found[row].tick for row in placed.elsewhere])), 1)
            self.pending += len(found)
            for row in keyed:
                hashes = found[row].key_hashes
                self.keys.add_many(np.array(hashes), np.full(len(hashes), offsets[row]), write_ms)

        return publish

    def put_cancels(self, seq: int, targets: Ints, epoch: int, offsets: Ints | int, sizes: Ints | int) -> Callable[[], None]:
        """As :meth:`put_many`, of messages from ``seq`` on that are cancels of pending timers."""
        seqs, none = np.arange(seq, seq + len(targets)), np.zeros(len(targets), np.int64)
        publish_marks = self.facts.reserve(seqs - 1, timer_table.rows_of(none, none, epoch, CANCEL))
        placed = self._reserve_cancels(seqs, targets, np.atleast_1d(offsets), np.atleast_1d(sizes))

        def publish() -> None:
            publish_marks()
            self.wheel.publish(placed)
            self.cancel(targets)

        return publish

    def put_cancel(self, seq: int, target: int, tick: int, epoch: int, offsets: Sequence[int], sizes: Sequence[int]) -> Callable[[], None]:
        """As :meth:`put_many`, of a message that is the cancel of one pending timer."""
        publish_mark = self.facts.reserve_few(seq - 1, timer_table.encode_one(0, epoch, 0, CANCEL))
        is_rolled = self.rolled.get(target)
        placed = None if is_rolled else self.wheel.reserve_cancel(seq, tick, self.write_ms, offsets[0], sizes[0])

        def publish() -> None:
            publish_mark()
            if placed is not None:
                self.wheel.publish_few(placed)
            self.cancelled.set(target)
            self.pending -= 1
            if is_rolled:
                self.aside.pop(target, None)
                if self._away is not None:
                    self._away.add(self.wheel.slot_of(np.array([tick])), -1)
            else:
                self.wheel.count_off_one(self.wheel.slot_of(tick))

        return publish

    def _publish_places(self, placed: Placement, seqs: Ints, ticks: Ints, write_ms: int) -> None:
        """Count in timers that were written for their slots at ``write_ms``."""
        self.write_ms = write_ms
        self.wheel.publish(placed)
        if placed.rolled.any():
            self.rolled.set_many(seqs[placed.rolled])
        if len(placed.aside):
            self.rolled.set_many(seqs[placed.aside])
            self.aside.update(zip(seqs[placed.aside].tolist(), ticks[placed.aside].tolist(), strict=True))
        if self._away is not None:
            away = placed.rolled.copy()
            away[placed.aside] = True
            self._away.add(self.wheel.slot_of(ticks[away]), 1)

    def _reserve_cancels(self, seqs: Ints, targets: Ints, log_offsets: Ints, sizes: Ints) -> Placement:
        """Write cancels behind the timers that are in slots of their own, for a broker."""
        ticks = self.facts.gather(targets - 1)["tick"].astype(np.int64)
        own = ~self.rolled.get_many(targets)
        return self.wheel.reserve_cancels(seqs[own], ticks[own], self.write_ms, log_offsets[own], sizes[own])

    def _place_all(self, seqs: Ints, ticks: Ints, write_ms: Ints, log_offsets: Ints, sizes: Ints, hashes: Ints) -> None:
        """Put timers into the wheel, those together between which no slot begins."""
        slots = write_ms // self.precision_ms
        for rows in np.split(np.arange(len(seqs)), np.flatnonzero(np.diff(slots)) + 1):
            if len(rows):
                latest_ms = int(write_ms[rows].max())
                placed = self.wheel.reserve(seqs[rows], ticks[rows], latest_ms, log_offsets[rows], sizes[rows], hashes[rows])
                self._publish_places(placed, seqs[rows], ticks[rows], latest_ms)

    # ------------------------------------------------------------ cancels

    def cancel(self, seqs: Ints) -> None:
        """Take timers out that are pending."""
        self.cancelled.set_many(seqs)
        self.leave(seqs, self.facts.gather(seqs - 1)["tick"])

    def leave(self, seqs: Ints, ticks: Ints) -> None:
        """Count timers off that were pending."""
        self.pending -= len(seqs)
        rolled = self.rolled.get_many(seqs)
        own = ~rolled
        if True in own:
            self.wheel.count_off(self.wheel.slot_of(ticks[own]))
        if self._away is not None:
            self._away.add(self.wheel.slot_of(ticks[rolled]), -1)
        if self.aside:
            for seq in seqs[rolled].tolist():
                self.aside.pop(seq, None)

    # ------------------------------------------------------------ rolling

    def roll(self, until_ms: int) -> None:
        """Put timers nearer to their slots that wait in slots which are closed now, as of ``until_ms``."""
        self.write_ms = until_ms
        slots = self.wheel.slots_to_roll(self.wheel.slot_of(until_ms))
        for begin in range(0, len(slots), _ROLLED_SLOTS):
            self._roll_slots(slots[begin : begin + _ROLLED_SLOTS])
        if self.aside:
            self._retry_aside(until_ms)

    def to_roll(self, until_ms: int) -> Iterator[Ints]:
        """Yield the seqs, which rise, of the timers that :meth:`roll` is going to put elsewhere, some slots at a time."""
        slots = self.wheel.slots_to_roll(self.wheel.slot_of(until_ms))
        for begin in range(0, len(slots), _ROLLED_SLOTS):
            seqs, _, _, live = self._rolling(slots[begin : begin + _ROLLED_SLOTS])
            yield seqs[live]

    def _rolling(self, slots: Ints) -> tuple[Ints, Ints, Ints, Flags]:
        """Return seqs, ticks and slots of the timers that wait in slots which are not theirs, and which of them still do.

        One that was rolled and handed over behind the last check point waits here again after a crash, and is forgotten by then.
        """
        numbers, owners = self.wheel.walk(slots)
        seqs = self.wheel.units.gather(numbers)["reserved"].astype(np.int64)
        ticks = self.facts.gather(seqs - 1)["tick"]
        away = (self.wheel.slot_of(ticks) != owners) & self.rolled.get_many(seqs)
        order = np.argsort(seqs[away], kind="stable")
        seqs, ticks, owners = seqs[away][order], ticks[away][order], owners[away][order]
        return seqs, ticks, owners, ~self.is_gone(seqs, ticks)

    def _roll_slots(self, slots: Ints) -> None:
        seqs, ticks, owners, live = self._rolling(slots)
        seqs_live, ticks_live = seqs[live], ticks[live]
        placed = self._place_again(seqs_live, ticks_live)
        if len(owners):
            self.wheel.count_off(owners)
        # The units stay in the chains of these slots, so they must not be rolled a second time.
        self.wheel.note_rolled(slots)
        self._come_back(seqs, ticks_live)
        self._publish_places(placed, seqs_live, ticks_live, self.write_ms)

    def _place_again(self, seqs: Ints, ticks: Ints) -> Placement:
        units = self.queue_units(seqs)
        return self.wheel.reserve(seqs, ticks, self.write_ms, units["log_offset"].astype(np.int64), units["size"].astype(np.int64))

    def _retry_aside(self, until_ms: int) -> None:
        """Find room in the wheel for what is ahead and was put aside."""
        ahead = [(seq, tick) for seq, tick in self.aside.items() if tick > until_ms]
        if ahead:
            seqs, ticks = np.ascontiguousarray(np.array(ahead, np.int64).T)
            placed = self._place_again(seqs, ticks)
            for seq, _ in ahead:
                del self.aside[seq]
            self._come_back(seqs, ticks)
            self._publish_places(placed, seqs, ticks, self.write_ms)

    def _come_back(self, seqs: Ints, ticks: Ints) -> None:
        """Count timers no more among those that are elsewhere; of those that are not gone, the ticks are given."""
        self.rolled.set_many(seqs, on=False)
        if self._away is not None:
            self._away.add(self.wheel.slot_of(ticks), -1)

    def count_of_tick(self, tick: int) -> int:
        """Return how many timers the slot of a tick has: those that are in it or elsewhere, and none that wait in it to be rolled."""
        if self._away is None:
            away = SlotCounts()
            for piece in self.live() if self.rolled.any else ():
                away.add(self.wheel.slot_of(piece.ticks[self.rolled.get_many(piece.seqs)]), 1)
            self._away = away
        slot = self.wheel.slot_of(tick)
        waiting = len(self._rolling(np.array([slot]))[0]) if self.wheel.has_rolls(slot) else 0
        return self.wheel.count_in(slot) - waiting + self._away.of(slot)

    def queue_units(self, seqs: Ints) -> Rows:
        return self._ledger.queues.of(WHEEL_TOPIC, 0).gather(seqs - 1)

    # ------------------------------------------------------------ looking

    def window(self, low_tick: int, until_ms: int, limit: int = _WINDOW_TIMERS) -> tuple[Due, int | None]:
        """Return what is there of ticks from ``low_tick`` to ``until_ms``, and the tick up to which that goes; None: all.

        About ``limit`` timers, whole slots, in the order of their hand-over; cancelled ones are left out, forgotten ones may be there.
        """
        slots = self.wheel.live_slots(self.wheel.slot_of(low_tick), self.wheel.slot_of(until_ms))
        if len(slots) and self.end_of(last := int(slots[-1])) > until_ms and self.wheel.is_even(last):
            # It is under way, and all that is in it is due at its end.
            slots = slots[:-1]
        bound: int | None = None
        if len(slots) > 1 and len(first := self.wheel.first_of(slots, limit)) < len(slots):
            slots, bound = first, self.end_of(int(first[-1]))
        numbers, owners = self.wheel.walk(slots)
        pieces = []
        # A slot may hold any number of timers: of what was read of them only what is needed stays in memory.
        for at in range(0, len(numbers), _WINDOW_TIMERS):
            pieces.append(self._of_units(numbers[at : at + _WINDOW_TIMERS], owners[at : at + _WINDOW_TIMERS], low_tick, until_ms))
        found = joined(pieces)
        if self.aside:
            found = self._with_aside(found, low_tick, until_ms if bound is None else min(bound, until_ms))
        return found.in_order(), bound

    def crowded_slot(self, low_tick: int, until_ms: int) -> int | None:
        """Return the first slot from ``low_tick`` on when it holds more timers than a window does, all of them due at its end and by
        ``until_ms``, so that :meth:`in_crowded` gives them; None for any other slot.
        """
        if self.pending <= _WINDOW_TIMERS or self.aside:
            return None
        slot = self.wheel.next_live(self.wheel.slot_of(low_tick) - 1)
        if slot is None or self.end_of(slot) > until_ms or not self.wheel.is_even(slot):
            return None
        count = self.wheel.count_in(slot)
        return slot if count > _WINDOW_TIMERS and self.facts.count - self.first_kept <= _FACTS_A_TIMER * count else None

    def in_crowded(self, slot: int) -> Iterator[Due]:
        """Yield the timers of such a slot by seq, a stretch at a time, as :meth:`window` would; others may be put meanwhile.

        By the facts, which are in this order: a walk of the slot goes from its end, so it must be over before the first timer is known.
        """
        tick, at = self.end_of(slot), self.first_kept
        while (page := next(timer_table.pages(self.facts, at), None)) is not None:
            first, facts = page
            at = first + len(facts)
            rows = np.flatnonzero((facts["kind"] == TIMER) & (facts["tick"] == tick))
            seqs = first + 1 + rows
            keep = ~self.cancelled.get_many(seqs)
            yield Due(np.full(int(keep.sum()), tick), seqs[keep], timer_table.dues_of(facts.take(rows[keep])))

    def end_of(self, slot: int) -> int:
        return (slot + 1) * self.precision_ms

    def _of_units(self, numbers: Ints, owners: Ints, low_tick: int, until_ms: int) -> Due:
        """Return the timers of some units of slots that are in these slots for good, of a span of ticks, and not cancelled."""
        units = self.wheel.units.gather(numbers)
        seqs = units["reserved"].astype(np.int64)
        facts = self.facts.gather(seqs - 1)
        ticks = facts["tick"].astype(np.int64)
        keep = (facts["kind"] == TIMER) & (ticks <= until_ms) & (ticks >= low_tick) & (self.wheel.slot_of(ticks) == owners)
        keep &= ((units["flags"] & timer_log.DELETE) == 0) & ~self.cancelled.get_many(seqs)
        return Due(ticks[keep], seqs[keep], timer_table.dues_of(facts.compress(keep)))

    def _with_aside(self, found: Due, low_tick: int, high_tick: int) -> Due:
        extra = [(tick, seq) for seq, tick in self.aside.items() if low_tick <= tick <= high_tick]
        if not extra:
            return found
        ticks, seqs = np.array(extra, np.int64).T
        dues = timer_table.dues_of(self.facts.gather(seqs - 1))
        return Due(np.append(found.ticks, ticks), np.append(found.seqs, seqs), np.append(found.dues, dues))

    def first_tick(self, after: int) -> int | None:
        """Return the first tick behind ``after`` at which something must be done; None when nothing is there."""
        ticks = [tick for tick in self.aside.values() if tick > after] if self.aside else []
        slot = self.wheel.next_live(self.wheel.slot_of(after) - 1)
        while slot is not None:
            end = self.end_of(slot)
            # Of a slot whose timers are all due at its end, none is looked at, however many they are.
            found = np.array([end]) if self.wheel.is_even(slot) else self._ticks_in(slot, end)
            found = found[found > after]
            if len(found):
                ticks.append(int(found.min()))
                break
            slot = self.wheel.next_live(slot)
        return min(ticks) if ticks else None

    def _ticks_in(self, slot: int, end: int) -> Ints:
        """Return when something must be done for each pending timer that is in a slot.

        Args:
            end: of the slot, when its timers must be rolled.
        """
        numbers, _ = self.wheel.walk(np.array([slot]))
        seqs = self.wheel.units.gather(numbers)["reserved"].astype(np.int64)
        facts = self.facts.gather(seqs - 1)
        ticks = facts["tick"].astype(np.int64)
        ticks = np.where(self.wheel.slot_of(ticks) == slot, ticks, end)
        found: Ints = ticks[(facts["kind"] == TIMER) & ~self.cancelled.get_many(seqs)]
        return found

    def live(self, handed: TimerCursor = EMPTY_CURSOR) -> Iterator[Due]:
        """Yield every pending timer that ``handed`` does not cover, by seq, in pieces."""
        for first, facts in timer_table.pages(self.facts, self.first_kept):
            seqs = np.arange(first + 1, first + 1 + len(facts))
            ticks = facts["tick"]
            keep = (facts["kind"] == TIMER) & ~self.cancelled.get_many(seqs)
            keep &= ~self.forgotten.covers_each(ticks, seqs) & ~handed.covers_each(ticks, seqs)
            rows = np.flatnonzero(keep)
            if len(rows):
                yield Due(ticks[rows].astype(np.int64), seqs[rows], timer_table.dues_of(facts.take(rows)))

    # ------------------------------------------------------------ forgetting

    def drop_answers(self, before_tick: int) -> bool:
        """Remember nothing any more of timers that are gone and whose tick is before ``before_tick``; says whether there were any.

        A later call may give an earlier tick, as the clock may go back: what is put then is remembered like all else.
        """
        self.answered_from = before_tick
        if before_tick <= self._stays_before:
            return False
        self._stays_before = -1
        first = max(self.first_kept, self.facts.first)
        for number, facts in timer_table.pages(self.facts, first):
            seqs = np.arange(number + 1, number + 1 + len(facts))
            stays = (facts["kind"] == TIMER) & ((facts["tick"] >= before_tick) | ~self.is_gone(seqs, facts["tick"]))
            if stays.any():
                row = int(stays.argmax())
                self.first_kept = number + row
                self._stays_before = int(facts["tick"][row])
                break
            self.first_kept = number + len(facts)
        if self.first_kept == first:
            return False
        self._ledger.queues.trim(WHEEL_TOPIC, 0, self.first_kept)
        return True

    def is_gone(self, seqs: Ints, ticks: Ints) -> Flags:
        """Say which timers are cancelled or forgotten."""
        return self.cancelled.get_many(seqs) | self.forgotten.covers_each(ticks, seqs)

    # ------------------------------------------------------------ check points

    def start(self, section: TimerSection | None) -> None:
        self._clear()
        if section is None:
            self.facts.chain.drop_from(0)
            self.facts.start(Sums())
            self.wheel.start_empty()
            self.keys.start([])
            return
        self.facts.start(section.facts)
        self.wheel.start(section.units, section.wheel_crc)
        self.cancelled, self.rolled = Bits.load(section.cancelled), Bits.load(section.rolled)
        self.aside = dict(section.aside)
        self.keys.start(section.keys)
        self.pending, self.write_ms, self.first_kept = section.pending, section.write_ms, section.first_kept
        self.forgotten = TimerCursor.from_bytes(section.forgotten)

    def check_point(self) -> TimerSection:
        self.wheel.units.trim(self.wheel.first_needed())
        self.facts.trim(self.first_kept)
        self.cancelled.drop_before(self.facts.first)
        self.rolled.drop_before(self.facts.first)
        # What may find no room comes before the wheel's snapshot is replaced.
        keys, facts = self.keys.check_point(), self.facts.sync()
        units, crc = self.wheel.check_point()
        return TimerSection(
            facts=facts,
            units=units,
            wheel_crc=crc,
            write_ms=self.write_ms,
            pending=self.pending,
            cancelled=self.cancelled.dump(),
            rolled=self.rolled.dump(),
            aside=list(self.aside.items()),
            keys=keys,
            first_kept=self.first_kept,
            forgotten=self.forgotten.to_bytes(),
        )

    def release(self) -> None:
        self.wheel.release()
        self.facts.release()
        self.keys.release()

    def replay(self, view: memoryview, file_start: int, starts: Ints, sizes: Ints, epochs: Ints) -> None:
        if not len(starts):
            return
        found = read_timers(view, file_start, starts, sizes, epochs, self.precision_ms)
        is_timer = found.kinds == TIMER
        rows = timer_table.rows_of(found.ticks * is_timer, found.dues * is_timer, found.epochs, found.kinds)
        # A message that was copied forward is where it was; it is new when what it is a copy of is gone.
        fresh = np.flatnonzero(self._kinds(found.seqs) == NOTHING)
        if len(fresh):
            fresh = fresh[np.unique(found.seqs[fresh], return_index=True)[1]]
            self.facts.reserve(found.seqs[fresh] - 1, rows[fresh])()
        timers = np.sort(fresh[is_timer[fresh]])
        self._place_all(
            found.seqs[timers],
            found.ticks[timers],
            found.write_ms[timers],
            starts[timers] + file_start,
            sizes[timers],
            found.hashes[timers],
        )
        self.pending += len(timers)
        self.keys.add_many(found.key_hashes, found.key_offsets, found.key_times)
        cancels = np.flatnonzero(found.kinds == CANCEL)
        self._cancel_again(found.targets[cancels], found.seqs[cancels], starts[cancels] + file_start, sizes[cancels])

    def _kinds(self, seqs: Ints) -> Ints:
        kinds = np.full(len(seqs), NOTHING, np.uint8)
        known = (seqs > self.facts.first) & (seqs <= self.facts.count)
        kinds[known] = self.facts.gather(seqs[known] - 1)["kind"]
        return kinds

    def _cancel_again(self, targets: Ints, seqs: Ints, log_offsets: Ints, sizes: Ints) -> None:
        """Apply cancels that were found in the log; the message of a timer may be gone since, or follow as a copy that says so itself."""
        targets, rows = np.unique(targets, return_index=True)
        pending = (self._kinds(targets) == TIMER) & ~self.cancelled.get_many(targets)
        targets, rows = targets[pending], rows[pending]
        if len(targets):
            self.wheel.publish(self._reserve_cancels(seqs[rows], targets, log_offsets[rows], sizes[rows]))
            self.cancel(targets)

    # ------------------------------------------------------------ copies

    def copied(self, seqs: Ints) -> Copied:
        epochs = self.facts.gather(seqs - 1)["epoch"]
        return Copied(seqs.astype("<i8").tobytes(), epochs.astype("<u4").tobytes(), self.cancelled.get_many(seqs).tobytes())

    def take_copied(self, change: Copied) -> None:
        seqs = np.frombuffer(change.seqs, "<i8").astype(np.int64)
        known = self._kinds(seqs) == TIMER
        seqs, epochs = seqs[known], np.frombuffer(change.epochs, "<u4")[known]
        facts = self.facts.gather(seqs - 1)
        wrong = facts["epoch"] != epochs
        if wrong.any():
            facts = facts[wrong].copy()
            facts["epoch"] = epochs[wrong]
            self.facts.reserve(seqs[wrong] - 1, facts)()
        gone = seqs[np.frombuffer(change.cancelled, np.bool_)[known]]
        gone = np.unique(gone[~self.cancelled.get_many(gone)])  # a cancel is counted once
        if len(gone):
            self.cancel(gone)

    def unsaid(self) -> list[Change]:
        last_seq = max(self.last_seq, noted_last_seq(self._ledger))
        return [PutMany(META, [(FORGOTTEN_KEY, self.forgotten.to_bytes()), (LAST_SEQ_KEY, U64.pack(last_seq))])]

    def is_answered(self, seqs: Ints) -> Flags:
        """Say which messages are timers that are pending, or gone and still answered for."""
        known = (seqs > self.facts.first) & (seqs <= self.facts.count)
        if not known.all():
            known[known] = self.is_answered(seqs[known])
            return known
        facts = self.facts.gather(seqs - 1)
        ticks = facts["tick"]
        found: Flags = facts["kind"] == TIMER
        if (gone := found & (ticks < self.answered_from)).any():
            found[gone] = ~self.is_gone(seqs[gone], ticks[gone])
        return found

    def settle(self) -> None:
        # A broker, and an inspection, take units for what they are up to where they end.
        self.wheel.units.cut()

    def reopen(self) -> None:
        self.close()
        self._open()

    def close(self) -> None:
        self.facts.close()
        self.wheel.close()
        self.keys.close()
