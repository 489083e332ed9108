"""What a ``forget`` removes: whole runs, parts of runs, and what pointed at them."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable

from rmqstore.contract import TimerCursor
from rmqstore.engine.kv.base import WriteBatch
from rmqstore.engine.records import deliver_at_of, has_keys
from rmqstore.engine.runs import ONE, Run, decode_run, encode_run, single_facts, single_of
from rmqstore.engine.schema import PAIR, TIMERS, TRACES
from rmqstore.engine.timers import tombstones
from rmqstore.engine.timers.counts import MINUTE_MS


class Removal:
    """What one page of ``forget`` removes, gathered run by run in key order.

    Attributes:
        delivered: (tick, seq, epoch) of the timers that go.
        deltas: how the number of pending timers changes, by minute of the due time.
        ticks: those of which timers may have gone.
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

    def __bool__(self) -> bool:
        """Say whether there is anything to write."""
        return bool(self._stretches)

    def stage(self, write: WriteBatch) -> None:
        """Add it all to a write, but for the counters."""
        for keys in self._stretches:
            write.delete_range(TIMERS, keys[0], keys[-1] + b"\x00", keys)
        write.put_many(TIMERS, self._rest)
        tombstones.put_delivered(write, self.delivered)
        if self._index:
            write.delete_many(TRACES, self._index)
        if self._holes_gone:
            write.delete_many(TRACES, [tombstones.hole_key(*hole) for hole in sorted(self._holes_gone)])

    def add(self, key: bytes, value: bytes) -> None:
        """Look at the next run in key order: it stays, goes, or is cut.

        Raises:
            DamagedRunError: it goes, but cannot be read: :meth:`remove_damaged`.
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
        covered = bisect_right(run.deltas, bound - first_seq)
        for at in range(covered):
            self._account(tick, first_seq + run.deltas[at], run.epoch, run.records[at], self._holes)
        self._remove(key)
        if covered < len(run.records):
            self._cut(tick, first_seq, run, covered, self._holes)

    def _cut(self, tick: int, first_seq: int, run: Run, covered: int, holes: set[tuple[int, int]]) -> None:
        """Keep what is left of a run without its holes, so that a run of one record is never a hole."""
        places = range(covered, len(run.records))
        self._holes_gone.update((tick, first_seq + run.deltas[at]) for at in places if (tick, first_seq + run.deltas[at]) in holes)
        live = [at for at in places if (tick, first_seq + run.deltas[at]) not in holes]
        if live:
            first_left = run.deltas[live[0]]
            left = encode_run(run.epoch, run.store_ms, [run.records[at] for at in live], [run.deltas[at] - first_left for at in live])
            self._rest.append((PAIR.pack(tick, first_seq + first_left), left))
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

    def remove_damaged(self, key: bytes, holes: set[tuple[int, int]]) -> None:
        """Remove a run that cannot be read, with the holes that are in it."""
        self._remove(key)
        self._holes_gone |= holes
        self.damaged = True

    def move_damaged(self, key: bytes, value: bytes) -> None:
        """Keep a damaged run that was removed, at a key that is not covered."""
        self._rest.append((key, value))
        tick = PAIR.unpack(key)[0]
        self._keep(tick)
        if self.put_off_tick is None:
            self.put_off_tick = tick

    def _remove(self, key: bytes) -> None:
        if not self._goes_on:
            self._stretches.append([])
            self._goes_on = True
        self._stretches[-1].append(key)

    def _keep(self, tick: int) -> None:
        self._goes_on = False
        if self.kept_tick is None:
            self.kept_tick = tick
