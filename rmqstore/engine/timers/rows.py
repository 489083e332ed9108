"""``TimerRuns``: the timers of a store as they are in their space, one run a tick and call, keyed by (tick, first seq).

So the order of hand-over is the order of the keys. With deliver times that differ, that is one entry a timer; a burst into one tick is a
few entries, whatever its size. ``timers`` says what is sealed, covered and cancelled, and makes each call one write. Here timers are found
again: by place, in order, and what a ``forget`` removes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from rmqstore.contract import EMPTY_CURSOR, TimerCursor
from rmqstore.engine.floors import Floors
from rmqstore.engine.kv.base import PAGE_BYTES, OrderedKV, WriteBatch, is_last
from rmqstore.engine.records import decode_message, deliver_at_of, encode_message, has_keys
from rmqstore.engine.runs import (
    ONE,
    DamagedRunError,
    Run,
    count_of,
    decode_run,
    encode_run,
    parked_message,
    single_facts,
    single_of,
)
from rmqstore.engine.schema import PAIR, TIMERS, TRACES, U64
from rmqstore.engine.timers import tombstones
from rmqstore.engine.timers.ticks import MINUTE_MS
from rmqstore.errors import CorruptStoreError
from rmqstore.message import Message

_FORGET_PAGE: Final = 4096
"""So many runs a ``forget`` removes in one write."""

_READ_PAGE: Final = 512
_EACH_BYTES: Final = 128
"""So much ``due`` reads first for each timer that it wants, as a run may hold one or thousands."""
_LEAST: Final = 63
"""So many runs it reads at least."""
_FIND_PAGE: Final = 32
_FIND_BYTES: Final = 1024 * 1024
"""Runs of more bytes together are looked up one by one, since a body may be of some MiB."""
_PEEK_PAGE: Final = 64


class LivePut(msgspec.Struct, frozen=True):
    """A kept, uncancelled put."""

    tick: int
    seq: int
    epoch: int
    record: bytes

    @property
    def due_ms(self) -> int:
        """Its deliver time, or its tick when it was sent without one."""
        deliver = deliver_at_of(self.record)
        return self.tick if deliver < 0 else deliver

    def message(self) -> Message:
        """Its message, decoded."""
        return decode_message(self.record)


class Located(msgspec.Struct, frozen=True):
    """A kept put that was found by its place, cancelled or not: the key of the run that holds it, and how many that had."""

    key: bytes
    put: LivePut
    of: int


OnDamage = Callable[[str, str], None]
"""Is told of a run that cannot be read: where it is, and what is wrong with it."""


class TimerRuns:
    """The timers of one open database.

    Attributes:
        met_damage: a run that ``forget`` is to remove may be damaged.
    """

    def __init__(self, kv: OrderedKV, floors: Floors) -> None:
        self._kv = kv
        self._floors = floors
        # Until the first ``forget`` is done, the runs that it removes are unchecked.
        self.met_damage = True

    # ------------------------------------------------------------ finding

    def locate(self, tick: int, seq: int) -> Located | None:
        """Find the kept put (tick, seq), cancelled or not; a damaged run holds none."""
        entry = self._entry_at(tick, seq)
        run = None if entry is None else _FoundRun.of(*entry)
        return None if run is None else run.locate(tick, seq)

    def _entry_at(self, tick: int, seq: int) -> tuple[bytes, bytes] | None:
        """Return the run that would hold a place: the last of its tick that begins at or before it."""
        if tick >= 2**63 or seq >= 2**63:
            return None
        key = PAIR.pack(tick, seq)
        entry = self._kv.floor(TIMERS, key)
        return entry if entry is not None and entry[0][: U64.size] == key[: U64.size] else None

    def locate_each(self, places: Sequence[tuple[int, int]]) -> Iterator[Located | None]:
        """Yield what :meth:`locate` gives for each of some sorted (tick, seq), one after the other: records may be large."""
        # Most runs have one timer, whose place is the key; of one that has more, several may be wanted.
        run: _FoundRun | None = None
        at, step = 0, 1
        while at < len(places):
            some = places[at : at + step]
            keys = [PAIR.pack(tick, seq) for tick, seq in some]
            values = self._kv.get_many(TIMERS, keys)
            for (tick, seq), key, value in zip(some, keys, values, strict=True):
                if value is not None:
                    run = _FoundRun.of(key, value)
                elif run is None or not run.spans(tick, seq):
                    entry = self._entry_at(tick, seq)
                    run = None if entry is None else _FoundRun.of(*entry)
                yield None if run is None else run.locate(tick, seq)
            at += step
            step = min(2 * step, _FIND_PAGE) if sum(len(value or b"") for value in values) < _FIND_BYTES else 1

    def check_place(self, tick: int, seq: int) -> None:
        """Raise when the run that would hold (tick, seq) cannot be read.

        Raises:
            CorruptStoreError: it names the run.
        """
        if (entry := self._entry_at(tick, seq)) is not None:
            try:
                decode_run(entry[1])
            except DamagedRunError as error:
                raise CorruptStoreError(f"{_name_of(*PAIR.unpack(entry[0]))}: {error}") from error

    def has_place(self, tick: int, seq: int) -> bool:
        """Say whether there is a run that could hold (tick, seq)."""
        return self._entry_at(tick, seq) is not None

    def count_of_tick(self, tick: int) -> int:
        """Return how many live timers a tick has."""
        start, stop = U64.pack(tick), U64.pack(tick + 1)
        kept = sum(count_of(value) for _, value in self._kv.scan_all(TIMERS, start, stop))
        return kept - len(tombstones.holes_between(self._kv, self._floors, start, stop))

    def _holes_of(self, page: Sequence[tuple[bytes, bytes]]) -> set[tuple[int, int]]:
        """Return the holes in some runs that follow one another; of a damaged one at their end, none behind its first timer."""
        tick, first_seq = PAIR.unpack(page[-1][0])
        return tombstones.holes_between(self._kv, self._floors, page[0][0], PAIR.pack(tick, first_seq + _last_delta(page[-1][1]) + 1))

    def first_tick(self, from_tick: int) -> int | None:
        """Return the tick of the first kept put at or after ``from_tick``; None when there is none."""
        first = self._kv.scan(TIMERS, U64.pack(from_tick), None, 1)
        return U64.unpack_from(first[0][0])[0] if first else None

    def last_tick(self, before_tick: int | None) -> int | None:
        """Return the tick of the last kept put before ``before_tick``, None for the last of all; None when there is none."""
        last = self._kv.scan(TIMERS, b"", None if before_tick is None else U64.pack(before_tick), 1, reverse=True)
        return U64.unpack_from(last[0][0])[0] if last else None

    # ------------------------------------------------------------ seal and due

    def is_open(self, from_tick: int, until_ms: int, sealed: TimerCursor) -> bool:
        """Say whether a live put of ``from_tick`` <= tick <= ``until_ms`` is not sealed."""
        for key, value in self._kv.scan_all(TIMERS, U64.pack(from_tick), U64.pack(until_ms + 1), _PEEK_PAGE):
            tick, first_seq = PAIR.unpack(key)
            # One call's runs are sealed together, so the first record speaks for all of them.
            if first_seq <= sealed.bound(tick):
                continue
            if value[8:12] == ONE:
                return True
            try:
                run = decode_run(value)
            except DamagedRunError:
                return True
            holes = self._holes_of([(key, value)])
            if any((tick, first_seq + step) not in holes for step in run.deltas):
                return True
        return False

    def first_closed(self, from_tick: int, sealed: TimerCursor, after: TimerCursor) -> int | None:
        """Return the tick of the first kept put at or after ``from_tick`` that is sealed and not covered by ``after``."""
        stop = U64.pack(sealed.highest_tick + 1)
        for key, value in self._kv.scan_all(TIMERS, U64.pack(from_tick), stop, page=_PEEK_PAGE):
            tick, first_seq = PAIR.unpack(key)
            done = after.bound(tick)
            # A batch may have ended within a run; it covers more of the ticks before.
            within = min(self._last_seq(key, value), sealed.bound(tick), after.bound(tick - 1))
            if first_seq <= sealed.bound(tick) and (done < first_seq or done < within):
                return int(tick)
        return None

    def live(
        self, start: tuple[int, int], until_ms: int, sealed: TimerCursor, after: TimerCursor, limit: int
    ) -> Iterator[tuple[int, int, bytes]]:
        """Yield (tick, seq, record) of what is sealed, up to ``until_ms``, and neither covered by ``after`` nor cancelled.

        It comes by tick and seq, from the place ``start`` on.
        A damaged run yields one parked message, at the last place that it may hold: a batch may have ended within it when it was whole,
        and what covers that message covers all of it. About ``limit`` are wanted.
        """
        at = self._start_of(start) if start[1] else PAIR.pack(*start)
        stop = U64.pack(until_ms + 1)
        page_bytes = min(_EACH_BYTES * limit, PAGE_BYTES)
        while at < stop and (page := self._kv.scan(TIMERS, at, stop, limit + 1, page_bytes=page_bytes)):
            at = stop if is_last(page, limit + 1, page_bytes) else page[-1][0] + b"\x00"
            limit = max(limit - len(page), _LEAST)
            page_bytes = min(4 * page_bytes, PAGE_BYTES)
            yield from self._live_of(page, sealed, after)

    def _live_of(self, page: Sequence[tuple[bytes, bytes]], sealed: TimerCursor, after: TimerCursor) -> Iterator[tuple[int, int, bytes]]:
        holes: set[tuple[int, int]] | None = None
        last_tick = -1
        sealed_bound = done_bound = before_bound = 0
        for key, value in page:
            tick, first_seq = PAIR.unpack(key)
            if tick != last_tick:
                last_tick, sealed_bound, done_bound, before_bound = tick, sealed.bound(tick), after.bound(tick), after.bound(tick - 1)
            if first_seq > sealed_bound:
                continue
            try:
                if value[8:12] == ONE:
                    # A run of one is never a hole.
                    if first_seq > done_bound:
                        yield tick, first_seq, single_of(value)
                    continue
                run = decode_run(value)
            except DamagedRunError as error:
                self.met_damage = True
                last_seq = min(self._last_seq_of_damaged(key), sealed_bound)
                # New, or a batch ended within it. What may come behind it later does not bring back one that was parked.
                if done_bound < first_seq or done_bound < min(last_seq, before_bound):
                    yield tick, last_seq, encode_message(parked_message(value, str(error), _name_of(tick, first_seq)))
                continue
            if holes is None:
                holes = self._holes_of(page)
            for step, record in zip(run.deltas, run.records):  # noqa: B905 - a checked run has both; this is the hottest loop
                if done_bound < first_seq + step <= sealed_bound and (not holes or (tick, first_seq + step) not in holes):
                    yield tick, first_seq + step, record

    # ------------------------------------------------------------ forget

    def is_anything_under(self, low_tick: int, tick: int, seq: int) -> bool:
        """Say whether a kept put from ``low_tick`` on is under the corner (tick, seq)."""
        kept = self._kv.scan_all(TIMERS, U64.pack(low_tick), U64.pack(tick + 1))
        return any(PAIR.unpack(key)[1] <= seq for key, _ in kept)

    def removals(self, low_tick: int, upto: TimerCursor, corner: tuple[int, int], *, ends_within: bool) -> Iterator[Removal]:
        """Yield, page by page, what ``upto`` covers from ``low_tick`` to one of its corners; a page is written before the next one.

        ``ends_within`` the tick of that: what is left of it, which may be millions, is not looked at.
        """
        tick, seq = corner
        start, stop = U64.pack(low_tick), PAIR.pack(tick, seq + 1) if ends_within else U64.pack(tick + 1)
        while start < stop and (page := self._kv.scan(TIMERS, start, stop, _FORGET_PAGE)):
            start = stop if is_last(page, _FORGET_PAGE) else page[-1][0] + b"\x00"
            removal = Removal(upto, partial(self._holes_of, page), checked=not self.met_damage)
            for key, value in page:
                try:
                    removal.add(key, value)
                except DamagedRunError:
                    self._add_damaged(removal, key, value, upto)
            yield removal

    def _add_damaged(self, removal: Removal, key: bytes, value: bytes, upto: TimerCursor) -> None:
        """Remove a run that cannot be read."""
        tick, last_seq = PAIR.unpack(key)[0], self._last_seq_of_damaged(key)
        holes = tombstones.holes_between(self._kv, self._floors, key, PAIR.pack(tick, last_seq + 1))
        bound = upto.bound(tick)
        # A batch that ended within a tick covers more of the ticks before. What is behind it is still to come, so the run moves there
        # to be parked. That seq was given out, so no put will take the place.
        moves = bound < min(upto.bound(tick - 1), last_seq)
        removal.add_damaged(key, value, {hole for hole in holes if self.locate(*hole) is None}, (tick, bound + 1) if moves else None)

    def _last_seq(self, key: bytes, value: bytes) -> int:
        """Return the last seq of a run, or what bounds it when the run cannot be read."""
        try:
            return int(PAIR.unpack(key)[1]) + decode_run(value).deltas[-1]
        except DamagedRunError:
            return self._last_seq_of_damaged(key)

    def _last_seq_of_damaged(self, key: bytes) -> int:
        """Return the seq before that of the next run of the tick, which is as far as a run that cannot be read may go."""
        following = self._kv.scan(TIMERS, key + b"\x00", U64.pack(PAIR.unpack(key)[0] + 1), 1)
        return int(PAIR.unpack(following[0][0])[1]) - 1 if following else 2**63

    # ------------------------------------------------------------ reading all

    def live_puts(
        self, start: tuple[int, int], stop_tick: int | None, on_damage: OnDamage, handed: TimerCursor = EMPTY_CURSOR
    ) -> Iterator[LivePut]:
        """Yield the live puts from the place ``start`` on and before ``stop_tick``, by tick and seq, without those ``handed`` covers."""
        at = self._start_of(start)
        stop = None if stop_tick is None else U64.pack(min(stop_tick, 2**63))
        while page := self._kv.scan(TIMERS, at, stop, _READ_PAGE):
            at = page[-1][0] + b"\x00"
            holes = self._holes_of(page)
            for key, value in page:
                tick, first_seq = PAIR.unpack(key)
                try:
                    run = decode_run(value)
                except DamagedRunError as error:
                    on_damage(_name_of(tick, first_seq), str(error))
                    continue
                for step, record in zip(run.deltas, run.records, strict=True):
                    place = (tick, first_seq + step)
                    if place >= start and place not in holes and not handed.covers(*place):
                        yield LivePut(*place, run.epoch, record)

    def _start_of(self, place: tuple[int, int]) -> bytes:
        """Return the key of the run that would hold a place, which starts at or before it."""
        entry = self._entry_at(*place) if place[1] else None
        return PAIR.pack(*place) if entry is None else entry[0]


class Removal:
    """What one page of ``forget`` removes, gathered run by run in key order.

    Attributes:
        delivered: (tick, seq, epoch) of the timers that go.
        deltas: how the number of pending timers changes, by minute of the due time.
        ticks: those of which timers may have gone; without any, there is nothing to write.
        kept_tick: tick of the first run that stays, of those that were looked at; None when none does.
        put_off_tick: earliest tick at which a damaged run that was covered stands from now on; None for none.
        damaged: a run that held an unknown number of timers is removed.
    """

    def __init__(self, upto: TimerCursor, find_holes: Callable[[], set[tuple[int, int]]], *, checked: bool) -> None:
        """``find_holes`` returns the holes in these runs; ``checked``: ``due`` has read them and found no damage, so none is looked for."""
        self._upto = upto
        self._checked = checked
        self._find_holes = find_holes
        self._holes: set[tuple[int, int]] | None = None
        self._tick = -1
        self._bound = 0
        self._goes_on = False
        self._stretches: list[list[bytes]] = []
        self._rest: list[tuple[bytes, bytes]] = []
        self._index: list[bytes] = []
        self._holes_gone: set[tuple[int, int]] = set()
        self.delivered: list[tuple[int, int, int]] = []
        self.deltas: dict[int, int] = defaultdict(int)
        self.ticks: set[int] = set()
        self.kept_tick: int | None = None
        self.put_off_tick: int | None = None
        self.damaged = False

    def add_to(self, write: WriteBatch) -> None:
        """Add it all to a write, but for the counters."""
        for keys in self._stretches:
            write.delete_range(TIMERS, keys[0], keys[-1] + b"\x00", keys)
        if self._rest:
            write.put_many(TIMERS, self._rest)
        tombstones.put_delivered(write, self.delivered)
        if self._index:
            write.delete_many(TRACES, self._index)
        if self._holes_gone:
            write.delete_many(TRACES, [tombstones.hole_key(*hole) for hole in sorted(self._holes_gone)])

    def add(self, key: bytes, value: bytes) -> None:
        """Look at the next run in key order: it stays, goes, or is cut.

        Raises:
            DamagedRunError: it goes, but cannot be read: :meth:`add_damaged`.
        """
        tick, first_seq = PAIR.unpack(key)
        if tick != self._tick:
            self._tick, self._bound = tick, self._upto.bound(tick)
        bound = self._bound
        if first_seq > bound:
            self._keep(tick)
            return
        self.ticks.add(tick)
        if self._checked and value[8:12] == ONE:
            epoch, deliver_ms, keyed = single_facts(value)
            self.delivered.append((tick, first_seq, epoch))
            self.deltas[(tick if deliver_ms < 0 else deliver_ms) // MINUTE_MS] -= 1
            if keyed:
                self._unindex(tick, first_seq, single_of(value))
            self._remove(key)
            return
        run = decode_run(value)
        if self._holes is None:
            self._holes = self._find_holes()
        timers = [(first_seq + step, record) for step, record in zip(run.deltas, run.records, strict=True)]
        covered = bisect_right(run.deltas, bound - first_seq)
        for seq, record in timers[:covered]:
            self._account(tick, seq, run.epoch, record, self._holes)
        self._remove(key)
        # What is left of a run goes without its holes, so that a run of one record is never a hole.
        left = [each for each in timers[covered:] if (tick, each[0]) not in self._holes]
        self._holes_gone.update((tick, seq) for seq, _ in timers[covered:] if (tick, seq) in self._holes)
        if left:
            first_left = left[0][0]
            value = encode_run(run.epoch, run.store_ms, [record for _, record in left], [seq - first_left for seq, _ in left])
            self._rest.append((PAIR.pack(tick, first_left), value))
            self._keep(tick)

    def _account(self, tick: int, seq: int, epoch: int, record: bytes, holes: set[tuple[int, int]]) -> None:
        """Take a timer off the counters and the index."""
        if (tick, seq) in holes:
            self._holes_gone.add((tick, seq))
            return
        self.delivered.append((tick, seq, epoch))
        due = deliver_at_of(record)
        self.deltas[(tick if due < 0 else due) // MINUTE_MS] -= 1
        if has_keys(record):
            self._unindex(tick, seq, record)

    def _unindex(self, tick: int, seq: int, record: bytes) -> None:
        self._index += tombstones.index_keys(record, tick, seq)

    def add_damaged(self, key: bytes, value: bytes, holes: set[tuple[int, int]], moves_to: tuple[int, int] | None) -> None:
        """Remove a run that cannot be read, with the holes that are in it; or move it to a place that is not covered."""
        self._remove(key)
        self._holes_gone |= holes
        self.damaged = True
        if moves_to is not None:
            self._rest.append((PAIR.pack(*moves_to), value))
            self._keep(moves_to[0])
            self.put_off_tick = moves_to[0] if self.put_off_tick is None else self.put_off_tick

    def _remove(self, key: bytes) -> None:
        if not self._goes_on:
            self._stretches.append([])
            self._goes_on = True
        self._stretches[-1].append(key)

    def _keep(self, tick: int) -> None:
        self._goes_on = False
        if self.kept_tick is None:
            self.kept_tick = tick


class _FoundRun(NamedTuple):
    """A run in which a timer is looked for."""

    key: bytes
    tick: int
    first_seq: int
    run: Run

    @classmethod
    def of(cls, key: bytes, value: bytes) -> _FoundRun | None:
        """Check a run; a damaged one holds no timer."""
        tick, first_seq = PAIR.unpack(key)
        try:
            return cls(key, tick, first_seq, decode_run(value))
        except DamagedRunError:
            return None

    def spans(self, tick: int, seq: int) -> bool:
        """Say whether a place is between those of the first and the last timer, so that it is in this run or in none."""
        return tick == self.tick and 0 <= seq - self.first_seq <= self.run.deltas[-1]

    def locate(self, tick: int, seq: int) -> Located | None:
        """Return the timer of a place; None when there is none."""
        run, delta = self.run, seq - self.first_seq
        if not self.spans(tick, seq) or run.deltas[at := bisect_right(run.deltas, delta) - 1] != delta:
            return None
        return Located(self.key, LivePut(tick, seq, run.epoch, run.record(at)), len(run.sizes))


def _last_delta(value: bytes) -> int:
    """Return how far the last seq of a run is behind its first one; 0 when the run cannot be read."""
    try:
        return decode_run(value).deltas[-1]
    except DamagedRunError:
        return 0


def pass_over(where: str, reason: str) -> None:
    """Leave out what cannot be read."""


def _name_of(tick: int, seq: int) -> str:
    """Return how messages name a run."""
    return f"timer run {tick}/{seq}"
