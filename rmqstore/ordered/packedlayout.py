"""The packed layout: the timers of one call that are due within one minute share one value, whatever their ticks (``packs``).

A put of a thousand timers spread over an hour is sixty entries instead of a thousand. Where all timers of a call in a minute have one tick,
lone ones among them, they lie in runs as in the row layout; so do timers that were taken in from another store. What follows is about
packs. Runs and packs are merged by tick and seq wherever timers are read in order.

A pack is never changed. So what becomes of its timers is written beside it:

- *cancelled*: a hole, always, also for the last one;
- *forgotten*: one staircase for all packs, ``forgotten`` (F). A timer is kept when a pack has it and F does not cover it.

A ``forget`` goes through the timers that its cursor covers and F does not, page by page in the order of hand-over. One write a page takes
them off the counters, out of the index and their holes away, leaves their tombstones, and moves F on to the end of the page. The last page
removes the packs whose bucket F covers up to their largest seq, which their keys tell.

Why no crash point loses or doubles anything:

1. F moves in the write that accounts for what it newly covers, and never over anything else. So in each prefix of the log the counters,
   the index, the holes and the tombstones are those of the kept timers, as if the forgotten ones had been cut out of their packs.
2. F covers what a durable cursor of the receiver covered, and no put is inserted under such a corner (docs/handover.md, A). A timer that
   is taken in from another store may have any place, so it is never put into a pack. So F hides nothing that is still to go out.
3. A pack is removed when F covers its whole bucket up to its largest seq, so all its timers, each of which was accounted for by 1. When
   the crash comes before that, F is there, and the next ``forget`` that finds the pack removes it.
4. The cursor may lose a corner under which nothing is kept (docs/handover.md, at most 15 corners), while packs still have what it covered.
   F keeps the corner. F itself loses corners only when no pack is left that has anything under them.
5. A cancel is refused by what is sealed, else it writes hole and tombstone in one write, and its timer is not covered by F, since F covers
   only what is sealed. ``due`` passes over the hole; ``forget`` takes the hole away with the timer, and counts it no second time. A damaged
   pack is no timer: no hole hides it, and those in it go with it.
6. ``due`` reads packs, holes and F alone. A window (``packwindow``) is a cache of packs, which do not change. It is dropped with all else
   that is known whenever the database is opened again, and when F loses a corner. So the same call gives the same answer, before and
   after a crash.
7. The tombstones of a tick may be looked up only if later ones hold greater seqs (``traces``). Runs and packs of one tick go in one order,
   that of their seqs: a page ends at one place for both, and the seqs of two calls do not interleave.
8. A pack that cannot be read stands for one parked message, at its first tick, which its key tells. When F covers that place the rest of
   its timers was still to come, and it stands at the end of its bucket; so damage that comes late is not passed over either. ``forget``
   removes it when its place is covered and either ``due`` gave the message since the database was opened, or the cursor covers the end of
   the bucket too, so that everything in it went out. Else the cursor may be from before the damage: the pack is left, and F, which covers
   its place now, puts it at the end of its bucket. So a crash between hand-over and ``forget`` may park it twice, but never drops it. The
   write that removes it sets the counters to what is left, since nobody knows what the pack held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Final, Never, TypeAlias

import numpy as np

from rmqstore.contract import EMPTY_CURSOR, MAX_CORNERS, TimerCursor
from rmqstore.errors import CorruptStoreError
from rmqstore.ordered import traces
from rmqstore.ordered.forgetting import Removal
from rmqstore.ordered.kv import PAGE_BYTES, OrderedKV
from rmqstore.ordered.layout import FORGOTTEN_KEY, META, PAIR, TIMERS, U64
from rmqstore.ordered.packfinder import PackFinder
from rmqstore.ordered.packs import (
    BUCKET_MS,
    Numbers,
    behind_bucket,
    bucket_of,
    decode_pack,
    end_of_bucket,
    from_bucket,
    is_pack,
    pack_key,
    packs_of,
    parts_of,
)
from rmqstore.ordered.packwindow import LAST, Place, Window, Windows, pack_at
from rmqstore.ordered.placing import Entries, Times
from rmqstore.ordered.rowlayout import RowLayout, Runs
from rmqstore.ordered.runs import DamagedRunError
from rmqstore.ordered.staircase import reached
from rmqstore.ordered.timerlayout import FORGET_PAGE, LivePut, Located, OnDamage, Seen

_NEVER: Final = 2**63 - 2
"""A tick behind all others."""

_CHUNK: Final = 4096
_PAGE: Final = 64

_Fresh: TypeAlias = tuple[int, int, int, bytes, bytes | None]
"""Tick, seq, epoch and record of a timer that is to be forgotten; and the key of its pack when that is damaged."""


class PackedLayout(RowLayout):
    """Finds timers in packs, and in runs as the row layout does."""

    def __init__(self, kv: OrderedKV) -> None:
        super().__init__(kv)
        self._forgotten = TimerCursor.from_bytes(kv.get(META, FORGOTTEN_KEY) or b"")
        self._windows = Windows(kv, lambda: self._forgotten)
        self._low_bucket = 0
        self._finder = PackFinder(kv, lambda: self._forgotten)
        self._counted: dict[int, Counter[int]] = {}
        self._counted_at = -1

    # ------------------------------------------------------------ puts

    def gather(self, records: list[bytes], ticks: Times, first_seq: int, now_ms: int, epoch: int) -> Entries:
        return packs_of(records, ticks, first_seq, now_ms, epoch)

    def note_put(self, entries: Entries) -> None:
        for key, value in entries:
            if is_pack(key):
                self._windows.note(key, value)
                self._low_bucket = min(self._low_bucket, parts_of(key)[0])

    # ------------------------------------------------------------ finding

    def locate(self, tick: int, seq: int) -> Located | None:
        found = self._finder.locate(tick, seq)
        return super().locate(tick, seq) if found is None else found

    def in_search_order(self, places: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        # The packs of a bucket do not overlap in their seqs.
        return sorted(places, key=lambda place: (bucket_of(place[0]), place[1]))

    def locate_each(self, places: Sequence[tuple[int, int, int]]) -> Iterator[Located | None]:
        runs = Runs(self._run_at)
        for (tick, seq, _), found in zip(places, self._finder.locate_each(places), strict=True):
            yield runs.locate(tick, seq) if found is None else found

    def has_place(self, tick: int, seq: int) -> bool:
        return super().has_place(tick, seq) or (not self._forgotten.covers(tick, seq) and self._finder.entry_of(tick, seq) is not None)

    def count_of_tick(self, tick: int) -> int:
        if self._counted_at != self._kv.position:
            self._counted.clear()
            self._counted_at = self._kv.position
        bucket = bucket_of(tick)
        if bucket not in self._counted:
            counts: Counter[int] = Counter()
            for window, first, stop in self._spans((bucket, 0), end_of_bucket(bucket), keep=False):
                ticks, seqs = window.ticks[first:stop], window.seqs[first:stop]
                kept = ticks[~self._forgotten.covers_each(ticks, seqs)]
                counts.update(dict(zip(*(column.tolist() for column in np.unique(kept, return_counts=True)), strict=True)))
            self._counted[bucket] = counts
        return super().count_of_tick(tick) + self._counted[bucket][tick]

    def first_tick(self, from_tick: int) -> int | None:
        in_runs = super().first_tick(from_tick)
        place = (from_tick, 0)
        while (bucket := self._next_bucket(place[0])) is not None and (in_runs is None or bucket <= in_runs):
            start = max(place, (bucket, 0))
            for window, first, stop in self._spans(start, end_of_bucket(bucket)):
                row = self._first_row(window, first, stop, EMPTY_CURSOR)
                if row is not None:
                    tick = int(window.ticks[row])
                    return tick if in_runs is None else min(tick, in_runs)
            place = (bucket + BUCKET_MS, 0)
        return in_runs

    def _next_bucket(self, from_tick: int) -> int | None:
        """Return the first bucket with a pack, from that of ``from_tick`` on."""
        found = self._kv.scan(TIMERS, from_bucket(from_tick), None, 1)
        return parts_of(found[0][0])[0] if found else None

    def last_tick(self, before_tick: int | None) -> int | None:
        in_runs = super().last_tick(before_tick)
        before = _NEVER if before_tick is None else before_tick
        while before > 0 and (found := self._kv.scan(TIMERS, U64.pack(2**63), behind_bucket(before - 1), 1, reverse=True)):
            bucket = parts_of(found[0][0])[0]
            if in_runs is not None and bucket + BUCKET_MS <= in_runs:
                break
            latest = -1
            for window, first, stop in self._spans((bucket, 0), min(bucket + BUCKET_MS, before) - 1, keep=False):
                ticks, seqs = window.ticks[first:stop], window.seqs[first:stop]
                kept = ticks[~self._forgotten.covers_each(ticks, seqs)]
                latest = int(kept[-1]) if len(kept) else latest
            if latest >= 0:
                return latest if in_runs is None else max(latest, in_runs)
            before = bucket
        return in_runs

    def _spans(self, start: Place, stop_tick: int, *, keep: bool = True, step: int = _CHUNK) -> Iterator[tuple[Window, int, int]]:
        """Yield (window, first row, row behind the last) of pieces of windows, from ``start`` to the end of ``stop_tick``."""
        place = start
        while place[0] <= stop_tick:
            window = self._windows.at(place, stop_tick, keep=keep)
            first, behind = window.index(place), window.index((stop_tick + 1, 0))
            for at in range(first, behind, step):
                yield window, at, min(at + step, behind)
            place = window.end

    def _first_row(self, window: Window, first: int, stop: int, covered: TimerCursor, sealed: TimerCursor | None = None) -> int | None:
        """Return the first row that is kept, not covered, and sealed if that is asked for."""
        ticks, seqs = window.ticks[first:stop], window.seqs[first:stop]
        wanted = ~(self._forgotten.covers_each(ticks, seqs) | covered.covers_each(ticks, seqs))
        if sealed is not None:
            wanted &= sealed.covers_each(ticks, seqs)
        return first + int(wanted.argmax()) if wanted.any() else None

    # ------------------------------------------------------------ seal and due

    def is_open(self, from_tick: int, until_ms: int, sealed: TimerCursor) -> bool:
        if super().is_open(from_tick, until_ms, sealed):
            return True
        for window, first, stop in self._spans((from_tick, 0), until_ms):
            ticks, seqs = window.ticks[first:stop], window.seqs[first:stop]
            rows = first + np.flatnonzero(~(self._forgotten.covers_each(ticks, seqs) | sealed.covers_each(ticks, seqs)))
            if any(True for _ in self._uncancelled(window, rows)):
                return True
        return False

    def first_closed(self, from_tick: int, sealed: TimerCursor, after: TimerCursor) -> int | None:
        in_runs = super().first_closed(from_tick, sealed, after)
        for window, first, stop in self._spans((from_tick, 0), sealed.highest_tick if in_runs is None else in_runs, keep=False):
            row = self._first_row(window, first, stop, after, sealed)
            if row is not None:
                tick = int(window.ticks[row])
                return tick if in_runs is None else min(tick, in_runs)
        return in_runs

    def _holes(self, window: Window, first: int, last: int) -> set[Place]:
        """Return the holes between two rows of a window, both included.

        A damaged pack may stand where a timer of it was that had been cancelled; it is there all the same.
        """
        return traces.holes_from(self._kv, window.place(first), window.place(last)) - window.damaged.keys()

    def _uncancelled(self, window: Window, rows: Numbers) -> Iterator[tuple[Place, int]]:
        """Yield (place, row) of the rows that are no hole."""
        if len(rows):
            holes = self._holes(window, int(rows[0]), int(rows[-1]))
            places = zip(window.ticks[rows].tolist(), window.seqs[rows].tolist(), strict=True)
            for place, row in zip(places, rows.tolist(), strict=True):
                if not holes or place not in holes:
                    yield place, row

    def live(self, start: Place, seen: Seen, limit: int) -> Iterator[tuple[int, int, bytes]]:
        return merge(super().live(start, seen, limit), self._live_in_packs(start, seen, limit))

    def _live_in_packs(self, start: Place, seen: Seen, limit: int) -> Iterator[tuple[int, int, bytes]]:
        done = self._forgotten.join(seen.after.corners)
        for window, first, stop in self._spans(start, seen.until_ms, step=max(_CHUNK // 4, limit + 1)):
            ticks, seqs = window.ticks[first:stop], window.seqs[first:stop]
            rows = first + np.flatnonzero(seen.sealed.covers_each(ticks, seqs) & ~done.covers_each(ticks, seqs))
            for (tick, seq), row in self._uncancelled(window, rows):
                yield tick, seq, window.records[row]
                # Only now, since what was asked for last is not always given.
                if window.damaged and (tick, seq) in window.damaged:
                    self._parked.add(window.damaged[tick, seq][0])

    # ------------------------------------------------------------ forget

    def is_anything_under(self, low_tick: int, tick: int, seq: int) -> bool:
        if super().is_anything_under(low_tick, tick, seq):
            return True
        for window, first, stop in self._spans((low_tick, 0), tick):
            ticks, seqs = window.ticks[first:stop], window.seqs[first:stop]
            if ((seqs <= seq) & ~self._forgotten.covers_each(ticks, seqs)).any():
                return True
        return False

    def removals(self, low_tick: int, upto: TimerCursor) -> Iterator[Removal]:
        reach = max(upto.highest_tick, self._forgotten.highest_tick)
        bucket = self._next_bucket(self._low_bucket)
        if bucket is not None:
            self._low_bucket = bucket
        if bucket is None or bucket > reach:
            yield from super().removals(low_tick, upto)
            if self._forgotten.corners:
                # No pack has anything under F.
                removal = Removal(upto, set(), checked=True)
                removal.forgotten = EMPTY_CURSOR
                yield removal
            return
        place: Place = (low_tick, 0)
        while place < LAST:
            removal, place = self._page(place, upto)
            yield removal
        self._windows.drop_before(bucket_of(upto.highest_tick))

    def _page(self, place: Place, upto: TimerCursor) -> tuple[Removal, Place]:
        """Return what goes from ``place`` on, and the place behind it, which is behind all when nothing is left that ``upto`` covers."""
        stop_tick = upto.highest_tick
        runs, are_more_runs = self._runs_page(PAIR.pack(*place), U64.pack(stop_tick + 1))
        rows, kept_tick, is_more = self._covered(place, upto, FORGET_PAGE)
        # A page ends at one place for runs and packs. A run of another call lies on one side of it as a whole.
        ends: list[Place] = [PAIR.unpack(runs[-1][0])] if are_more_runs else []
        ends += [rows[-1][:2]] if is_more else []
        end = min(ends, default=LAST)
        holes = traces.holes_between(self._kv, PAIR.pack(*place), min(end[0], stop_tick))
        removal = Removal(upto, holes, checked=not self.met_damage)
        for key, value in runs:
            if PAIR.unpack(key) <= end:
                self._add(removal, key, value, upto)
        for tick, seq, epoch, record, damaged_key in rows:
            if (tick, seq) > end:
                break
            if damaged_key is None:
                removal.account(tick, seq, epoch, record)
            elif self._is_over(damaged_key, upto):
                removal.remove_damaged(damaged_key, self._holes_of_pack(damaged_key))
                self._parked.discard(damaged_key)
            else:
                removal.put_off(end_of_bucket(tick))
        removal.delivered.sort()
        if kept_tick is not None:
            removal.keep(kept_tick)
        covered = upto.corners if end == LAST else reached(upto, _NEVER, end)
        forgotten = self._forgotten.join(covered)
        if end == LAST:
            forgotten = self._shortened(forgotten)
            for first, behind in self._spent(forgotten):
                removal.clear(first, behind)
        if forgotten != self._forgotten:
            removal.forgotten = forgotten
        return removal, LAST if end == LAST else (end[0], end[1] + 1)

    def _is_over(self, damaged_key: bytes, upto: TimerCursor) -> bool:
        """Say whether nothing of a damaged pack whose place is covered is still to come: it was parked, or all that it held went out."""
        bucket, last_seq, _ = parts_of(damaged_key)
        return damaged_key in self._parked or upto.covers(end_of_bucket(bucket), last_seq)

    def _holes_of_pack(self, damaged_key: bytes) -> set[Place]:
        """Return the holes that lie in no run, and in no pack if not in this one."""
        bucket, last_seq, _ = parts_of(damaged_key)
        holes = traces.holes_between(self._kv, PAIR.pack(bucket, 0), end_of_bucket(bucket))
        inside = ((tick, seq) for tick, seq in holes if seq <= last_seq and super(PackedLayout, self).locate(tick, seq) is None)
        return {hole for hole in inside if (entry := self._finder.entry_of(*hole)) is not None and entry[0] == damaged_key}

    def _runs_page(self, start: bytes, stop: bytes) -> tuple[Sequence[tuple[bytes, bytes]], bool]:
        """Return some runs of a range, and whether there are more."""
        page = self._kv.scan(TIMERS, start, stop, FORGET_PAGE) if start < stop else []
        return page, bool(page) and bool(self._kv.scan(TIMERS, page[-1][0] + b"\x00", stop, 1))

    def _covered(self, start: Place, upto: TimerCursor, limit: int) -> tuple[list[_Fresh], int | None, bool]:
        """Return the first rows that ``upto`` covers and F does not, the first kept tick among the others, and whether there are more."""
        found: list[_Fresh] = []
        kept_tick: int | None = None
        for window, first, stop in self._spans(start, upto.highest_tick):
            ticks, seqs = window.ticks[first:stop], window.seqs[first:stop]
            kept = ~self._forgotten.covers_each(ticks, seqs)
            fresh = kept & upto.covers_each(ticks, seqs)
            left = kept & ~fresh
            if kept_tick is None and left.any():
                kept_tick = int(ticks[left.argmax()])
            rows = first + np.flatnonzero(fresh)
            numbers = (column[rows].tolist() for column in (window.ticks, window.seqs, window.epochs))
            records = [window.records[row] for row in rows.tolist()]
            keys = [window.damaged.get(window.place(row), (None,))[0] for row in rows.tolist()] if window.damaged else [None] * len(rows)
            found += zip(*numbers, records, keys, strict=True)
            if len(found) > limit:
                return found[:limit], kept_tick, True
        return found, kept_tick, False

    def _spent(self, forgotten: TimerCursor) -> Iterator[tuple[bytes, bytes]]:
        """Yield the ranges of packs of which nothing is kept: those of buckets that F covers up to the largest seq of a pack."""
        at = from_bucket(self._low_bucket)
        low: int | None = None
        while found := self._kv.scan(TIMERS, at, None, 1):
            key = found[0][0]
            bucket, last_seq, _ = parts_of(key)
            bound = forgotten.bound(end_of_bucket(bucket))
            if last_seq <= bound:
                at = pack_key(bucket, bound + 1)
                yield key, at
                continue
            low = bucket if low is None else low
            if bucket + BUCKET_MS > forgotten.highest_tick:
                break
            at = behind_bucket(bucket)
        self._low_bucket = _NEVER if low is None else low

    def _shortened(self, forgotten: TimerCursor) -> TimerCursor:
        """Drop corners of F under which no pack has anything, forgotten or not, when there are more than a cursor may have."""
        corners = list(forgotten.corners)
        while len(corners) > MAX_CORNERS and not self._is_packed_under(*corners[0]):
            corners.pop(0)
        return TimerCursor(tuple(corners))

    def _is_packed_under(self, tick: int, seq: int) -> bool:
        for key, value in self._kv.scan_all(TIMERS, from_bucket(self._low_bucket), behind_bucket(tick), page=_PAGE):
            try:
                pack = decode_pack(key, value)
            except DamagedRunError:
                return True
            if any(pack.bucket + step <= tick and pack.last_seq - back <= seq for step, back in zip(pack.steps, pack.backs, strict=True)):
                return True
        return False

    def note_removal(self, removal: Removal) -> None:
        # A window may still have what was removed, which only F hides.
        is_hidden = removal.forgotten is None or all(removal.forgotten.covers(*corner) for corner in self._forgotten.corners)
        # And a damaged pack may have another place by what is forgotten now.
        if removal.damaged or removal.put_off_tick is not None or not is_hidden:
            self._windows.clear()
        if removal.forgotten is not None:
            self._forgotten = removal.forgotten

    # ------------------------------------------------------------ reading all

    def live_puts(
        self, start: tuple[int, int], stop_tick: int | None, on_damage: OnDamage, handed: TimerCursor = EMPTY_CURSOR
    ) -> Iterator[LivePut]:
        in_runs = super().live_puts(start, stop_tick, on_damage, handed)
        in_packs = self._puts_in_packs(start, _NEVER if stop_tick is None else min(stop_tick - 1, _NEVER), on_damage, handed)
        return merge(in_runs, in_packs, key=lambda put: (put.tick, put.seq))

    def _puts_in_packs(self, start: Place, stop_tick: int, on_damage: OnDamage, handed: TimerCursor) -> Iterator[LivePut]:
        done = self._forgotten.join(handed.corners)
        for window, first, stop in self._spans(start, stop_tick, keep=False):
            ticks, seqs = window.ticks[first:stop], window.seqs[first:stop]
            rows = first + np.flatnonzero(~done.covers_each(ticks, seqs))
            for place, row in self._uncancelled(window, rows):
                if place in window.damaged:
                    key, reason = window.damaged[place]
                    on_damage(pack_at(key), reason)
                else:
                    yield LivePut(*place, int(window.epochs[row]), int(window.stores[row]), window.records[row])

    def page_behind(self, after: bytes | None, limit: int) -> tuple[Sequence[LivePut], bytes | None]:
        def refuse(where: str, reason: str) -> Never:
            raise CorruptStoreError(f"the {where} is damaged ({reason}); deliver it first, which parks it", offset=where)

        start: Place = (0, 0) if after is None else PAIR.unpack(after)
        found: list[LivePut] = []
        size = 0
        for put in islice(self.live_puts(start, None, refuse), limit):
            found.append(put)
            size += len(put.record)
            if size > PAGE_BYTES:
                break
        return found, PAIR.pack(found[-1].tick, found[-1].seq + 1) if found else None
