"""The row layout: one run a tick and call, keyed by (tick, first seq), so that the order of hand-over is the order of the keys.

With deliver times that differ, that is one entry a timer; a burst into one tick is a few entries, whatever its size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from rmqstore.contract import EMPTY_CURSOR, TimerCursor
from rmqstore.ordered import traces
from rmqstore.ordered.forgetting import Removal
from rmqstore.ordered.kv import OrderedKV
from rmqstore.ordered.layout import PAIR, TIMERS, U64
from rmqstore.ordered.placing import Entries, Times, runs_of
from rmqstore.ordered.runpages import runs_behind
from rmqstore.ordered.runs import DamagedRunError, Run, count_of, decode_run, is_single, single_of
from rmqstore.ordered.timerlayout import FORGET_PAGE, LivePut, Located, OnDamage, Place, Seen, TimerLayout, parked_record

BEHIND_RUNS: Final = U64.pack(2**63)
"""Behind the key of every run."""

_READ_PAGE: Final = 512
_FIND_PAGE: Final = 32
_FIND_BYTES: Final = 1024 * 1024
"""Runs of more bytes together are looked up one by one, since a body may be of some MiB."""
_PEEK_PAGE: Final = 64


def run_at(tick: int, seq: int) -> str:
    """Return how messages name a run."""
    return f"timer run {tick}/{seq}"


class RowLayout(TimerLayout):
    """Finds timers by the keys of their runs."""

    def __init__(self, kv: OrderedKV) -> None:
        super().__init__(kv)
        # Keys of the damaged entries that ``due`` gave since the database was opened.
        self._parked: set[bytes] = set()

    def gather(self, records: list[bytes], ticks: Times, first_seq: int, now_ms: int, epoch: int) -> Entries:
        return runs_of(records, ticks, first_seq, now_ms, epoch)

    def note_put(self, entries: Entries) -> None:
        pass

    # ------------------------------------------------------------ finding

    def locate(self, tick: int, seq: int) -> Located | None:
        run = self._run_at(tick, seq)
        return None if run is None else run.locate(tick, seq)

    def _run_at(self, tick: int, seq: int) -> _FoundRun | None:
        """Return the run that would hold a place: the last of its tick that begins at or before it."""
        if tick >= 2**63 or seq >= 2**63:
            return None
        entry = self._kv.floor(TIMERS, PAIR.pack(tick, seq))
        return None if entry is None or entry[0][: U64.size] != U64.pack(tick) else _FoundRun.of(*entry)

    def in_search_order(self, places: Iterable[Place]) -> list[Place]:
        return sorted(places)

    def locate_each(self, places: Sequence[Place]) -> Iterator[Located | None]:
        # Most runs have one timer, whose place is the key; of one that has more, several may be wanted.
        runs = Runs(self._run_at)
        at, step = 0, 1
        while at < len(places):
            some = places[at : at + step]
            keys = [PAIR.pack(tick, seq) for tick, seq, _ in some]
            values = self._kv.get_many(TIMERS, keys)
            for (tick, seq, _), key, value in zip(some, keys, values, strict=True):
                if value is not None:
                    runs.last = _FoundRun.of(key, value)
                    yield None if runs.last is None else runs.last.locate(tick, seq)
                else:
                    yield runs.locate(tick, seq)
            at += step
            step = min(2 * step, _FIND_PAGE) if sum(len(value or b"") for value in values) < _FIND_BYTES else 1

    def has_place(self, tick: int, seq: int) -> bool:
        entry = self._kv.floor(TIMERS, PAIR.pack(tick, seq))
        return entry is not None and entry[0][: U64.size] == U64.pack(tick)

    def count_of_tick(self, tick: int) -> int:
        prefix = U64.pack(tick)
        kept = sum(count_of(value) for _, value in self._kv.scan_all(TIMERS, prefix, U64.pack(tick + 1)))
        return kept - len(traces.holes_between(self._kv, prefix, tick))

    def first_tick(self, from_tick: int) -> int | None:
        first = self._kv.scan(TIMERS, U64.pack(from_tick), BEHIND_RUNS, 1)
        return U64.unpack_from(first[0][0])[0] if first else None

    def last_tick(self, before_tick: int | None) -> int | None:
        last = self._kv.scan(TIMERS, b"", BEHIND_RUNS if before_tick is None else U64.pack(before_tick), 1, reverse=True)
        return U64.unpack_from(last[0][0])[0] if last else None

    # ------------------------------------------------------------ seal and due

    def is_open(self, from_tick: int, until_ms: int, sealed: TimerCursor) -> bool:
        for key, value in self._kv.scan_all(TIMERS, U64.pack(from_tick), U64.pack(until_ms + 1), page=_PEEK_PAGE):
            tick, first_seq = PAIR.unpack(key)
            # One call's runs are sealed together, so the first record speaks for all of them.
            if first_seq <= sealed.bound(tick):
                continue
            if count_of(value) == 1:
                return True
            try:
                run = decode_run(value)
            except DamagedRunError:
                return True
            holes = traces.holes_between(self._kv, key, tick)
            if any((tick, first_seq + step) not in holes for step in run.deltas):
                return True
        return False

    def first_closed(self, from_tick: int, sealed: TimerCursor, after: TimerCursor) -> int | None:
        stop = U64.pack(sealed.highest_tick + 1)
        for key, value in self._kv.scan_all(TIMERS, U64.pack(from_tick), stop, page=_PEEK_PAGE):
            tick, first_seq = PAIR.unpack(key)
            done = after.bound(tick)
            # A batch may have ended within a run.
            if first_seq <= sealed.bound(tick) and (done < first_seq or done < first_seq + _last_delta(value)):
                return int(tick)
        return None

    def live(self, start: tuple[int, int], seen: Seen, limit: int) -> Iterator[tuple[int, int, bytes]]:
        at = self._start_of(start)
        stop = U64.pack(seen.until_ms + 1)
        while at < stop and (page := self._kv.scan(TIMERS, at, stop, limit + 1)):
            at = page[-1][0] + b"\x00"
            holes = traces.holes_between(self._kv, page[0][0], U64.unpack_from(page[-1][0])[0])
            yield from self._live_of(page, seen, holes)

    def _live_of(self, page: Sequence[tuple[bytes, bytes]], seen: Seen, holes: set[tuple[int, int]]) -> Iterator[tuple[int, int, bytes]]:
        last_tick = -1
        sealed_bound = done_bound = 0
        for key, value in page:
            tick, first_seq = PAIR.unpack(key)
            if tick != last_tick:
                last_tick, sealed_bound, done_bound = tick, seen.sealed.bound(tick), seen.after.bound(tick)
            if first_seq > sealed_bound:
                continue
            try:
                if is_single(value):
                    if first_seq > done_bound:
                        yield tick, first_seq, single_of(value)
                    continue
                run = decode_run(value)
            except DamagedRunError as error:
                self.met_damage = True
                if done_bound < first_seq:
                    yield tick, first_seq, parked_record(value, str(error), run_at(tick, first_seq))
                    # Only now, since what was asked for last is not always given.
                    self._parked.add(key)
                continue
            for step, record in zip(run.deltas, run.records):  # noqa: B905 - a checked run has both; this is the hottest loop
                if done_bound < first_seq + step <= sealed_bound and (not holes or (tick, first_seq + step) not in holes):
                    yield tick, first_seq + step, record

    # ------------------------------------------------------------ forget

    def is_anything_under(self, low_tick: int, tick: int, seq: int) -> bool:
        kept = self._kv.scan_all(TIMERS, U64.pack(low_tick), U64.pack(tick + 1))
        return any(PAIR.unpack(key)[1] <= seq for key, _ in kept)

    def removals(self, low_tick: int, upto: TimerCursor) -> Iterator[Removal]:
        start, stop = U64.pack(low_tick), U64.pack(upto.highest_tick + 1)
        while start < stop and (page := self._kv.scan(TIMERS, start, stop, FORGET_PAGE)):
            start = page[-1][0] + b"\x00"
            holes = traces.holes_between(self._kv, page[0][0], U64.unpack_from(page[-1][0])[0])
            removal = Removal(upto, holes, checked=not self.met_damage)
            for key, value in page:
                self._add(removal, key, value, upto)
            yield removal

    def _add(self, removal: Removal, key: bytes, value: bytes, upto: TimerCursor) -> None:
        """Show a removal the next run."""
        try:
            removal.add(key, value)
        except DamagedRunError:
            tick, first_seq = PAIR.unpack(key)
            following = self._kv.scan(TIMERS, key + b"\x00", U64.pack(tick + 1), 1)
            last_seq = PAIR.unpack(following[0][0])[1] - 1 if following else 2**63
            holes = traces.holes_from(self._kv, (tick, first_seq), (tick, last_seq))
            removal.remove_damaged(key, {hole for hole in holes if self.locate(*hole) is None})
            bound = upto.bound(tick)
            # A batch that ended within a tick covers more of the ticks before. What lies behind it is still to come, so the run moves there
            # to be parked. That seq was given out, so no put will take the place.
            if key not in self._parked and bound < min(upto.bound(tick - 1), last_seq):
                removal.move_damaged(PAIR.pack(tick, bound + 1), value)

    def note_removal(self, removal: Removal) -> None:
        pass

    # ------------------------------------------------------------ reading all

    def live_puts(
        self, start: tuple[int, int], stop_tick: int | None, on_damage: OnDamage, handed: TimerCursor = EMPTY_CURSOR
    ) -> Iterator[LivePut]:
        at = self._start_of(start)
        stop = BEHIND_RUNS if stop_tick is None else U64.pack(min(stop_tick, 2**63))
        while page := self._kv.scan(TIMERS, at, stop, _READ_PAGE):
            at = page[-1][0] + b"\x00"
            holes = traces.holes_between(self._kv, page[0][0], U64.unpack_from(page[-1][0])[0])
            for key, value in page:
                tick, first_seq = PAIR.unpack(key)
                try:
                    run = decode_run(value)
                except DamagedRunError as error:
                    on_damage(run_at(tick, first_seq), str(error))
                    continue
                for step, record in zip(run.deltas, run.records, strict=True):
                    place = (tick, first_seq + step)
                    if place >= start and place not in holes and not handed.covers(*place):
                        yield LivePut(*place, run.epoch, run.store_ms, record)

    def _start_of(self, place: tuple[int, int]) -> bytes:
        """Return the key of the run that would hold a place, which starts at or before it."""
        key = PAIR.pack(*place)
        entry = self._kv.floor(TIMERS, key) if place[1] else None
        return entry[0] if entry is not None and entry[0][: U64.size] == key[: U64.size] else key

    def page_behind(self, after: bytes | None, limit: int) -> tuple[Sequence[LivePut], bytes | None]:
        runs = list(runs_behind(self._kv, TIMERS, after, limit))
        if not runs:
            return [], None
        (first_key, _), (last_key, _) = runs[0], runs[-1]
        holes = traces.holes_between(self._kv, first_key, U64.unpack_from(last_key)[0])
        found = []
        for key, run in runs:
            tick, first_seq = PAIR.unpack(key)
            for step, record in zip(run.deltas, run.records, strict=True):
                if (tick, first_seq + step) not in holes:
                    found.append(LivePut(tick, first_seq + step, run.epoch, run.store_ms, record))
        return found, last_key


class Runs:
    """The run that was found last, and how the next one is found."""

    def __init__(self, run_at: Callable[[int, int], _FoundRun | None]) -> None:
        self._run_at = run_at
        self.last: _FoundRun | None = None

    def locate(self, tick: int, seq: int) -> Located | None:
        """Return the timer of a place; None when there is none."""
        if self.last is None or not self.last.spans(tick, seq):
            self.last = self._run_at(tick, seq)
        return None if self.last is None else self.last.locate(tick, seq)


class _FoundRun(NamedTuple):
    """A run in which a timer is looked for."""

    key: bytes
    tick: int
    first_seq: int
    run: Run

    @classmethod
    def of(cls, key: bytes, value: bytes) -> _FoundRun | None:
        """Decode a run; a damaged one holds no timer."""
        tick, first_seq = PAIR.unpack(key)
        try:
            return cls(key, tick, first_seq, decode_run(value))
        except DamagedRunError:
            return None

    def spans(self, tick: int, seq: int) -> bool:
        """Say whether a place lies between those of the first and the last timer, so that it is in this run or in none."""
        return tick == self.tick and 0 <= seq - self.first_seq <= self.run.deltas[-1]

    def locate(self, tick: int, seq: int) -> Located | None:
        """Return the timer of a place; None when there is none."""
        run, delta = self.run, seq - self.first_seq
        if not self.spans(tick, seq) or run.deltas[at := bisect_right(run.deltas, delta) - 1] != delta:
            return None
        put = LivePut(tick, seq, run.epoch, run.store_ms, run.records[at])
        return Located(self.key, put, is_alone=len(run.records) == 1)


def _last_delta(value: bytes) -> int:
    """Return how far the last seq of a run is behind its first one; 0 when the run cannot be read."""
    try:
        return 0 if is_single(value) else decode_run(value).deltas[-1]
    except DamagedRunError:
        return 0
